"""Rewards of answers, by the name of the reward in each prompt, or by several rewards with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from dare_bench.errors import UsageError
from dare_bench.registry import Registration, registry
from dare_bench.seeds import key
from dare_bench.training.reward_calls import SECONDS, RewardFunction, call_reward, check_signature
from dare_bench.types import Reward, RewardPrompt

Weights = Mapping[str, float]
Functions = Mapping[str, RewardFunction]
NO_WEIGHTS: Weights = MappingProxyType({})
NO_FUNCTIONS: Functions = MappingProxyType({})


def rewards(
    prompts: Sequence[RewardPrompt],
    texts: Sequence[str],
    options: Mapping[str, Any],
    *,
    weights: Weights = NO_WEIGHTS,
    functions: Functions = NO_FUNCTIONS,
    seconds: float = SECONDS,
) -> list[Reward]:
    """One reward for each answer, in the order of the prompts.

    Args:
        prompts: with the record of each row (``truth``, ``extra``) and the reward's name (``task``).
        texts: the text of each answer, cut at EOS.
        options: of the rewards; an entry ``{name: {...}}`` is for the reward of that name only. ``random=True`` is a
            control experiment: the value is a coin flip that depends on the prompt's ``key`` and not on the answer.
        weights: of the rewards that score every answer, in place of the one that its row names. The value is their
            weighted sum, without those that are None; the accuracy is the first one; of several rewards the terms are
            their values.
        functions: rewards that are not registered.
        seconds: limit of a call.

    Raises:
        UsageError: a reward of that name is not registered, or it does not have an option.
        DataError: a prompt without what its reward needs.
        TrainingError: a reward raised, took too long, or returned something else than a reward for each answer.
    """
    if len(prompts) != len(texts):
        raise ValueError(f"{len(prompts)} prompts and {len(texts)} answers; one answer belongs to each prompt")
    parts: list[dict[str, Reward]] = [{} for _ in prompts]
    for name, places in _by_reward(prompts, weights).items():
        function = functions[name] if name in functions else _registered(name, prompts[places[0]]).load()
        of_name = (
            [replace(prompts[i], task=name) for i in places],
            [texts[i] for i in places],
            _options_of(name, options),
        )
        for i, reward in zip(places, call_reward(name, function, *of_name, seconds), strict=True):
            parts[i][name] = reward
    results = [_combined(part, weights) for part in parts]
    if options.get("random", False):
        return [replace(r, value=float(key("coin", p.key) % 2)) for r, p in zip(results, prompts, strict=True)]
    return results


def check_rewards(
    prompts: Sequence[RewardPrompt],
    options: Mapping[str, Any],
    *,
    weights: Weights = NO_WEIGHTS,
    functions: Functions = NO_FUNCTIONS,
) -> None:
    """Check the requirements of the rewards (a sandbox, a package) beside what :func:`check_options` checks, before a
    training begins: a reward registers the function that checks its own, ``requires="module:function"``, which is
    called with its options and raises UsageError with what is missing. Otherwise raises as :func:`rewards`."""
    for name, places in _by_reward(prompts, weights).items():
        if name in functions:
            check_signature(name, functions[name], prompts)
            continue
        entry = _registered(name, prompts[places[0]])
        if "requires" in entry.about:
            entry.load("requires")(_options_of(name, options))
    check_options(prompts, options, weights=weights, functions=functions)


def check_options(
    prompts: Sequence[RewardPrompt],
    options: Mapping[str, Any],
    *,
    weights: Weights = NO_WEIGHTS,
    functions: Functions = NO_FUNCTIONS,
) -> None:
    """Check names and options of rewards and the rows, also on a machine that misses a requirement of the rewards;
    raises as :func:`rewards`. A reward is not called before it has answers to score, since a call may cost something,
    unless it is registered with ``checks_rows=True``: it then scores an empty answer to every prompt."""
    if not isinstance(options.get("random", False), bool):
        raise UsageError(f"random={options['random']!r} of the rewards must be True or False")
    used = _by_reward(prompts, weights)
    for name in options.keys() & set(registry().names("reward")) - used.keys():
        raise UsageError(f"options are given for the reward {name!r}, which no row has; rows have {', '.join(used)}")
    for name, places in used.items():
        if name not in functions and _registered(name, prompts[places[0]]).about.get("checks_rows"):
            own = [replace(prompts[i], task=name) for i in places]
            rewards(own, [""] * len(own), options)


def _by_reward(prompts: Sequence[RewardPrompt], weights: Weights) -> dict[str, Sequence[int]]:
    if weights:
        return dict.fromkeys(weights, range(len(prompts))) if prompts else {}
    places: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        places.setdefault(prompt.task, []).append(i)
    return {**places}


def _combined(parts: Mapping[str, Reward], weights: Weights) -> Reward:
    values = {name: part.value for name, part in parts.items() if part.value is not None}
    value = sum(weights.get(name, 1.0) * value for name, value in values.items()) if values else None
    accuracy = next((part.accuracy for part in parts.values() if part.accuracy is not None), None)
    terms = values if len(parts) > 1 else next(iter(parts.values())).terms
    return Reward(value, accuracy, terms)


def _registered(name: str, prompt: RewardPrompt) -> Registration:
    known = registry().names("reward")
    if name not in known:
        raise UsageError(
            f"{prompt.where}: there is no reward {name!r}; known: {', '.join(known)}; name one in the row's "
            "extra_info.task, or register one with a plugin"
        )
    return registry().get("reward", name)


def _options_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for all rewards, overridden by those for this one."""
    names = registry().names("reward")
    common = {name: value for name, value in options.items() if name not in (*names, "random")}
    own = options.get(name, {})
    if not isinstance(own, Mapping):
        raise UsageError(f"the options of the reward {name!r} are {own!r:.60}; expected a mapping of names to values")
    return {**common, **own}
