"""Names: lazy, unique, and helpful when misspelled."""

from __future__ import annotations

import re
import signal

import pytest

from dare_bench.errors import PluginWarning, UnknownNameError, UsageError, unknown
from dare_bench.registry import Registry, load_plugins, registry


def test_a_name_twice_names_both_places():
    names = Registry()
    names.add("trainer", "sft", "one:fit", origin="package-one")
    with pytest.raises(UsageError, match="'sft' is registered twice: one:fit by package-one, two:fit by package-two"):
        names.add("trainer", "sft", "two:fit", origin="package-two")
    assert names.get("trainer", "sft").target == "one:fit"


def test_kinds_are_closed_and_names_are_guessed():
    names = Registry()
    with pytest.raises(UsageError, match="kinds are family, checkpoint"):
        names.add("flavour", "x", "a:b", origin="here")
    with pytest.raises(UnknownNameError, match="unknown family 'lada'; closest: llada"):
        registry().get("family", "lada")


def test_targets_load_when_asked():
    names = Registry()
    names.add("trainer", "path", "pathlib:Path", origin="here")
    from pathlib import Path

    assert names.get("trainer", "path").load() is Path


class Point:
    """An entry point, as ``importlib.metadata`` gives it."""

    dist = None

    def __init__(self, name, found):
        self.name, self.value, self.found = name, f"{name}:register", found

    def load(self):
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


def plugged(monkeypatch, *points):
    monkeypatch.delenv("DARE_BENCH_PLUGINS", raising=False)
    monkeypatch.setattr("dare_bench.registry.entry_points", lambda group: list(points))
    names = Registry()
    load_plugins(names)
    return names


@pytest.mark.parametrize("error", [ImportError("x"), SystemExit(3), RecursionError("deep\nand deeper")])
@pytest.mark.parametrize("imports", [True, False])
def test_a_plugin_that_raises_is_left_out_as_a_whole(monkeypatch, error, imports):
    def register(names):
        names.add("trainer", "half", "a:b", origin="bad")
        raise error

    good = Point("good", lambda names: names.add("trainer", "mine", "a:b", origin="good"))
    with pytest.warns(PluginWarning, match=f"plugin 'bad' .* left out: {type(error).__name__}") as said:
        names = plugged(monkeypatch, good, Point("bad", register if imports else error))
    assert len(said) == 1 and "\n" not in str(said[0].message)
    assert names.names("trainer") == ["mine"]
    assert [(plugin.name, plugin.error is None, len(plugin.added)) for plugin in names.plugins] == [
        ("bad", False, 0),
        ("good", True, 1),
    ]


@pytest.mark.parametrize("pressed", [True, False])
def test_ctrl_c_while_a_plugin_is_registered_ends_the_command_and_its_own_interrupt_does_not(monkeypatch, pressed):
    def register(names):
        if pressed:
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt

    left_by_others = signal.signal(signal.SIGINT, signal.default_int_handler)  # torch's elastic agent leaves one
    expected = pytest.raises(KeyboardInterrupt) if pressed else pytest.warns(PluginWarning, match="not by Ctrl-C")
    with expected:
        plugged(monkeypatch, Point("slow", register))
    assert signal.signal(signal.SIGINT, left_by_others) is signal.default_int_handler


def test_the_plugins_to_load_can_be_named(monkeypatch):
    points = [Point(name, lambda names, by=name: names.add("trainer", by, "a:b", origin=by)) for name in ("one", "two")]
    assert plugged(monkeypatch, *points).names("trainer") == ["one", "two"]
    for chosen, loaded in (("two,none", ["two"]), ("", [])):
        monkeypatch.setenv("DARE_BENCH_PLUGINS", chosen)
        monkeypatch.setattr("dare_bench.registry.entry_points", lambda group: points)
        names = Registry()
        load_plugins(names)
        assert names.names("trainer") == loaded


def test_of_two_plugins_with_one_name_the_first_by_name_has_it(monkeypatch):
    points = [Point(name, lambda names, by=name: names.add("trainer", "x", f"{by}:x", origin=by)) for name in "ba"]
    with pytest.warns(PluginWarning, match="plugin 'b' .* trainer 'x' is registered twice: a:x by a, b:x by b"):
        names = plugged(monkeypatch, *points)
    assert names.get("trainer", "x").target == "a:x"


@pytest.mark.parametrize(
    ("arguments", "about", "said"),
    [
        (("trainer", "x", Registry), {}, "is not a string; name and target must be strings"),
        (("trainer", "x", "module"), {}, "'module' is not a target; write module:attribute"),
        (("suite", "x", "/no/such/file.yaml"), {}, "there is no /no/such/file.yaml"),
        (("family", "x", "a:b"), {"fields": "sharp"}, "fields='sharp' must be a list of names"),
        (("family", "x", "a:b"), {"matches": "llada"}, "matches='llada' must be a list of"),
        (("family", "x", "a:b"), {"matches": [["m", "A"]]}, "belong to two families: 'first' by one, 'x' by me"),
    ],
)
def test_registrations_that_could_not_be_used(arguments, about, said):
    names = Registry()
    names.add("family", "first", "a:b", origin="one", matches=[("m", "A"), ("m", "B")])
    with pytest.raises(UsageError, match=re.escape(said)):
        names.add(*arguments, origin="me", **about)
    assert names.names("family") == ["first"]


def test_a_plugins_target_that_does_not_import_says_whose_it_is(monkeypatch):
    add = Point("late", lambda names: names.add("trainer", "x", "no_such_module:X", origin="me"))
    names = plugged(monkeypatch, add)
    names.add("trainer", "ours", "no_such_module:X", origin="here")  # only those of plugins are imported
    with pytest.raises(UsageError, match="trainer 'x' of the plugin 'late' does not import: no_such_module:X raises"):
        names.get("trainer", "x").load()
    with pytest.warns(PluginWarning, match="trainer 'x' of the plugin 'late'"):
        assert not list(names.plugged_in("trainer"))
    names.add("trainer", "missing", "no_such_module:X", origin="here")
    with pytest.raises(ModuleNotFoundError):
        names.get("trainer", "missing").load()


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("stpes", ["steps", "eps"], "unknown x 'stpes'; closest: steps, eps"),
        ("STEPS", ["steps", "eps"], "unknown x 'STEPS'; closest: steps, eps"),
        ("qq", ["steps", "eps"], "unknown x 'qq'; known: eps, steps"),
        ("qq", [f"name_{at}" for at in range(2000)], "unknown x 'qq'; none of the 2,000 known names is similar"),
        ("qq", [], "unknown x 'qq'; no names are known"),
    ],
)
def test_what_is_not_near_is_not_suggested(name: str, known: list[str], said: str) -> None:
    assert str(unknown("x", name, known)) == said
