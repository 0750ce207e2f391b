"""One call of a reward: what it is given, how long it may take, what it may return, and what is said when it raises.

A reward is ``f(prompts, texts, options)``, or a function of TRL's: ``f(prompts, completions, **columns)``. In the main
thread a signal interrupts it at the limit, also where it waits (not SIGALRM, which a reward may use); in another
thread, a reward runs in a further one, which is left behind when its time is up.
"""

from __future__ import annotations

import inspect
import math
import signal
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from numbers import Real
from typing import Any, TypeVar

from dare_bench.errors import DareError, TrainingError, UsageError, brief, in_one_line
from dare_bench.types import Reward, RewardPrompt

SECONDS = 1200.0
"""Default limit of a call. It is less than the 30 minutes that other processes wait for this one."""
_MOST_FRAMES = 4
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

RewardFunction = Callable[..., Any]


def call_reward(
    name: str,
    function: RewardFunction,
    prompts: Sequence[RewardPrompt],
    texts: Sequence[str],
    options: Mapping[str, Any],
    seconds: float,
) -> list[Reward]:
    """The rewards of answers by one function. Raises TrainingError: it raised, took longer than ``seconds``, or
    returned something else than a reward for each answer; a DareError that it raises is not changed."""

    def call(prompts: Sequence[RewardPrompt], texts: Sequence[str]) -> list[Any]:
        return _several(_returned(function, prompts, texts, options), name)

    try:
        results = limited(lambda: call(prompts, texts), seconds)
    except DareError:
        raise
    except TimeLimitError:
        raise TrainingError(
            f"the reward {name!r} took longer than reward_timeout={seconds:g} seconds for {len(texts)} answers to "
            f"{_places(prompts)}; mend it, or give it more time"
        ) from None
    except (Exception, SystemExit) as error:
        where = _where_it_raises(call, prompts, texts, seconds)
        raise TrainingError(
            f"{where}: the reward {name!r} raised {in_one_line(error)}{frames(error, __file__)}"
        ) from error
    if len(results) != len(texts):
        raise TrainingError(
            f"the reward {name!r} returned {len(results)} rewards for {len(texts)} answers to {_places(prompts)}; "
            "return one for each answer, in order"
        )
    return [_reward(result, name, prompt) for result, prompt in zip(results, prompts, strict=True)]


def check_signature(name: str, function: RewardFunction, prompts: Sequence[RewardPrompt]) -> None:
    """Raise UsageError for a function that cannot be called with these prompts."""
    columns = _columns(prompts)
    if (signature := _signature(function)) is None:
        return
    try:
        signature.bind(**_chosen(signature, columns)) if _is_trl(signature) else signature.bind(None, None, None)
    except TypeError as error:
        raise UsageError(
            f"the reward {name!r} takes {signature} ({error}); expected f(prompts, texts, options), or "
            f"f(prompts, completions, **columns) with these columns of the rows: {', '.join(columns)}"
        ) from None


def _signature(function: RewardFunction) -> inspect.Signature | None:
    """None of some functions in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


# -- what it is given --------------------------------------------------------------------------------------------------


def _returned(
    function: RewardFunction, prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]
) -> Any:
    if (signature := _signature(function)) is None or not _is_trl(signature):
        return function(prompts, texts, options)
    answers = [
        text if isinstance(prompt.prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    questions = [p.prompt if isinstance(p.prompt, str) else list(p.prompt) for p in prompts]
    given = {**_columns(prompts), "prompts": questions, "completions": answers}
    return function(**_chosen(signature, given))


def _is_trl(signature: inspect.Signature) -> bool:
    return "completions" in signature.parameters


def _columns(prompts: Sequence[RewardPrompt]) -> dict[str, list[Any]]:
    """The columns of the rows as TRL gives them; ``truth`` is the reference answer."""
    names = dict.fromkeys(name for prompt in prompts for name in prompt.extra)
    columns = {name: [prompt.extra.get(name) for prompt in prompts] for name in names}
    return {"prompts": [], "completions": [], "truth": [prompt.truth for prompt in prompts], **columns}


def _chosen(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a function takes: all of them if it has ``**kwargs``."""
    parameters = signature.parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return dict(given)
    return {p.name: given[p.name] for p in parameters if p.kind in _NAMED and p.name in given}


# -- what it returns ---------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _several(results: Any, name: str) -> list[Any]:
    results = _plain(results)
    if isinstance(results, str | bytes | Mapping) or not isinstance(results, Iterable):
        raise TrainingError(
            f"the reward {name!r} returned {brief(results, 100)}, a {type(results).__name__}; expected a list with one "
            "reward for each answer"
        )
    return list(results)


def _reward(result: Any, name: str, prompt: RewardPrompt) -> Reward:
    """A result as a reward of Python numbers, which JSON can hold."""
    given = result if isinstance(result, Reward) else Reward(result, result if isinstance(result, bool) else None)
    try:
        value, accuracy = _number(given.value), _number(given.accuracy)
        if accuracy not in (None, 0.0, 1.0):
            raise ValueError
        terms = {str(term): number for term, of in given.terms.items() if (number := _number(of)) is not None}
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise TrainingError(
            f"{prompt.where}: the reward {name!r} returned {brief(result, 100)}; expected a finite number, a bool, "
            "None (the answer cannot be scored), or dare_bench.types.Reward with such values and an accuracy of 0 or 1"
        ) from None
    return Reward(value, accuracy, terms)


def _number(value: Any) -> float | None:
    """A finite number, also in an array of one; None for None. Raises TypeError or ValueError."""
    value = _plain(value)
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if value is None:
        return None
    if not isinstance(value, Real):
        raise TypeError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


# -- what is said when it raises ---------------------------------------------------------------------------------------


def _where_it_raises(
    call: Callable[[Sequence[RewardPrompt], Sequence[str]], Any],
    prompts: Sequence[RewardPrompt],
    texts: Sequence[str],
    seconds: float,
) -> str:
    """The place of the prompt whose answer makes it raise, with the answer; of all prompts if it is none alone."""

    def search() -> str | None:
        for prompt, text in zip(prompts, texts, strict=True):
            try:
                call([prompt], [text])
            except (Exception, SystemExit):
                return f"{prompt.where} (answer {brief(text, 100)})"
        return None

    try:
        return limited(search, seconds) or _places(prompts)
    except TimeLimitError:
        return _places(prompts)


def _places(prompts: Sequence[RewardPrompt]) -> str:
    places = list(dict.fromkeys(prompt.where for prompt in prompts))
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def frames(error: BaseException, *ours: str) -> str:
    """The lines of the user's code that led to an exception, outermost first; without any, those of libraries.
    ``ours``: the files whose lines lead to the user's."""
    every = traceback.extract_tb(error.__traceback__)
    own = every[max((i for i, frame in enumerate(every) if frame.filename in ours), default=-1) + 1 :]
    own = [frame for frame in own if not frame.filename.startswith("<frozen")]
    users = [frame for frame in own if not frame.filename.startswith(_LIBRARIES)] or own
    return "".join(f"; {f.filename}:{f.lineno}, in {f.name}: {f.line}" for f in users[-_MOST_FRAMES:])


# -- how long it may take ----------------------------------------------------------------------------------------------


Result = TypeVar("Result")

SIGNAL = signal.SIGRTMIN + 5
AGAIN = 1.0
"""Seconds until code that caught the interruption is interrupted again."""


class TimeLimitError(Exception):
    """The code took longer than its limit."""


class _TimeUp(BaseException):
    """Raised inside the code; ``except Exception`` there does not stop it."""


def limited(call: Callable[[], Result], seconds: float) -> Result:
    """What ``call`` returns. Raises TimeLimitError: it took longer than ``seconds``."""
    if threading.current_thread() is threading.main_thread():
        return _interrupted(call, seconds)
    return _left_behind(call, seconds)


def _interrupted(call: Callable[[], Result], seconds: float) -> Result:
    main, over = threading.get_ident(), threading.Event()

    def stop(*_: object) -> None:
        if not over.is_set():
            raise _TimeUp

    def watch() -> None:
        pause = seconds
        while not over.wait(pause):
            signal.pthread_kill(main, SIGNAL)
            pause = AGAIN

    before = signal.signal(SIGNAL, stop)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            return call()
        finally:
            over.set()
    except _TimeUp:
        raise TimeLimitError from None
    finally:
        watcher.join()  # its last signal arrives before the handler is gone
        signal.signal(SIGNAL, before)


def _left_behind(call: Callable[[], Result], seconds: float) -> Result:
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if wait([result], seconds).not_done:
        raise TimeLimitError
    return result.result()
