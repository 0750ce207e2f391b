"""How a recipe file is read: defaults, variants, names, and what a malformed one says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dare_bench import recipe_table, recipes
from dare_bench.errors import DataError

GOOD = """
checkpoint: toy
model: org/toy
family: llada
config: {n_layers: 2, d_model: 8}
defaults:
  published: {unit: percent, metric: accuracy, measures: accuracy, mean_over: documents, cache: none, source: paper}
  run: {harness: lm-eval, decoding: {gen_length: 8}}
  settings: partly
  missing: [$seed]
variants:
  long: {run: {decoding: {gen_length: 64}}, doubts: [long]}
scores:
  a: {published: {value: 50, test_set: toys}, run: {tasks: toy}}
  b: {like: [a, long], published: {value: 25}}
"""
SHARED = """
sources: {paper: {title: A paper}}
test_sets: {toys: {id: toys, documents: 4}}
tasks: {"lm-eval:toy": {shots: 2, score: {task: toy, metric: acc}}}
notes: {seed: the seed}
variants: {wide: {doubts: [wide]}}
"""


def write(folder, text=GOOD, shared=SHARED):
    (folder / "shared").mkdir()
    (folder / "shared" / "facts.yaml").write_text(shared)
    (folder / "toy.yaml").write_text(text)
    return folder / "toy.yaml"


def test_defaults_like_and_names_are_filled_in(tmp_path):
    scores = recipes.read(write(tmp_path)).scores
    assert scores["a"].run.decoding == {"gen_length": 8} and scores["a"].run.shots == 2
    assert scores["b"].run.decoding == {"gen_length": 64} and scores["b"].run.tasks == ("toy",)
    assert scores["b"].published.value == 25 and scores["b"].published.test_set.documents == 4
    assert scores["b"].missing == ("the seed",) and scores["b"].doubts == ("long",) and scores["a"].doubts == ()
    assert scores["a"].score.model_dump() == {"task": "toy", "metric": "acc", "filter": "none"}


def test_an_entry_can_be_like_a_variant_of_the_shared_files(tmp_path):
    scores = recipes.read(write(tmp_path, GOOD.replace("[a, long]", "[a, wide]"))).scores
    assert scores["b"].doubts == ("wide",)


@pytest.mark.parametrize(
    ("own", "like", "task", "said"),
    [
        ("[one]", "[two]", "", ("base", "one", "two", "mine")),
        ("[one]", "{only: [two]}", "", ("two", "mine")),
        ("{only: [one]}", "[two]", "", ("one", "two", "mine")),
        ("{only: []}", "[]", "", ("mine",)),
        ("[base, one]", "[one]", "", ("base", "one", "mine")),  # none twice
        ("[one]", "{only: [two]}", "doubts: [the task], ", ("two", "mine", "the task")),
        ("null", "[]", "", ("base", "mine")),
    ],
)
def test_doubts_are_added_up_unless_only_some_are_wanted(tmp_path, own, like, task, said):
    text = GOOD.replace("  missing: [$seed]\n", "  missing: [$seed]\n  doubts: [base]\n")
    text = text.replace("run: {tasks: toy}}", f"run: {{tasks: toy}}, doubts: {own}}}").replace("[long]", like)
    text = text.replace("value: 25}}", "value: 25}, doubts: [mine]}")
    scores = recipes.read(write(tmp_path, text, SHARED.replace("{shots", f"{{{task}shots"))).scores
    assert scores["b"].doubts == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("doubts: [long]", "doubts: long", "entry 'b': 'doubts' must be a list (added to inherited ones) or {only:"),
        ("doubts: [long]", "doubts: {also: [long]}", "or {only: [...]}, found {'also': ['long']}"),
        ("value: 50", "value: 500", "scores.a.published"),
        ("value: 50", "value: 500", "value=500.0 must lie between 0 and 100"),
        ("test_set: toys", "test_set: boys", "entry 'a': unknown test set 'boys'; closest: toys"),
        ("[$seed]", "[$sead]", "entry 'a': unknown note 'sead'; closest: seed"),
        ("[a, long]", "[a, short]", "entry 'b': unknown entry or variant 'short'"),
        ("[a, long]", "b", "entry 'b': 'like' is circular: b -> b"),
        ("missing: [$seed]", "missing: []", "only 'recorded' has none"),
        ("settings: partly", "settings: recorded", "settings='recorded' with 1 missing"),
        ("checkpoint: toy", "checkpoint: boy", "checkpoint='boy' must be the file's name, 'toy'"),
        ("tasks: toy}", "tasks: boy}", "scores.a.score.task"),
        ("tasks: toy}", "tusks: toy}", "scores.a.run.tusks"),
        ("family: llada", "family: llada\nabout: 3", "about=3"),
        ("  b:", "  long:", "'long' is both a variant and a score"),
        ("  long: {", "  wide: {", "'wide' is already a variant in the shared files; rename this one"),
        ("scores:", "scores: 3\nmore:", "'scores' must be a mapping, found int"),
        ("run: {tasks: toy}}", "run: null}", "without 'run', 'doubts' must give the reason"),
        ("family: llada", "family: llada\nfamily: dream", "duplicate key 'family'"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_file_and_entry(tmp_path, old, new, said):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(DataError) as seen:
        recipes.read(path)
    text = str(seen.value)
    assert text.startswith(f"{path}: ") and said in text and "\n" not in text


def test_an_unknown_section_of_the_shared_facts_is_refused(tmp_path):
    with pytest.raises(DataError, match="unknown section 'sauces'; closest: sources"):
        recipes.read(write(tmp_path, shared=SHARED.replace("sources", "sauces")))


def test_a_malformed_table_of_the_shared_facts_is_one_line(tmp_path, monkeypatch):
    path = write(tmp_path, shared=SHARED + "tables: {paper: {scores: many}}\n")
    fake = SimpleNamespace(get=lambda kind, name: SimpleNamespace(target=str(path)), names=lambda kind: ["toy"])
    monkeypatch.setattr(recipes, "registry", lambda: fake)
    monkeypatch.setattr(recipe_table, "registry", lambda: fake)
    with pytest.raises(DataError, match=r"table 'paper' of the shared recipe files: .*scores") as seen:
        recipe_table.markdown()
    assert "\n" not in str(seen.value)


def test_a_plugins_recipes_are_found(tmp_path, monkeypatch):
    path = write(tmp_path)
    entry = SimpleNamespace(target=str(path))
    fake = SimpleNamespace(get=lambda kind, name: entry, names=lambda kind: ["toy"])
    monkeypatch.setattr(recipes, "registry", lambda: fake)
    assert [recipe.name for recipe in recipes.find("toy")] == ["toy/a", "toy/b"]
