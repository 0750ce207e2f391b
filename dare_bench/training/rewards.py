"""Rewards of answers, by the name of the reward in each prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dare_bench.errors import TrainingError, UsageError
from dare_bench.registry import Registration, registry
from dare_bench.seeds import key
from dare_bench.types import Reward, RewardPrompt


def rewards(prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """One reward for each answer, in the order of the prompts.

    The target of a registered ``reward`` is called once for all its answers, so that it can score several at a time:
    ``score(prompts, texts, options) -> list[Reward]``. It raises only for prompts and options, never for an answer.

    Args:
        prompts: with the record of each row (``truth``, ``extra``) and the reward's name (``task``).
        texts: the text of each answer, cut at EOS.
        options: the options of the rewards. An entry ``{name: {...}}`` holds options for the reward of that name only.
            ``random=True`` is a control experiment: the value is a coin that is drawn from the prompt's ``key`` and
            does not depend on the answer, so that there is nothing to learn from it; accuracy and terms stay.

    Raises:
        UsageError: a reward of that name is not registered, or it does not have an option.
        DataError: a prompt without what its reward needs.
        TrainingError: a reward returned NaN, an infinite value, or not one reward for each answer.
    """
    if len(prompts) != len(texts):
        raise ValueError(f"{len(prompts)} prompts and {len(texts)} answers; one answer belongs to each prompt")
    places: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        places.setdefault(prompt.task, []).append(i)
    results: dict[int, Reward] = {}
    for name, chosen in places.items():
        score = _registered(name, prompts[chosen[0]]).load()
        scored = score([prompts[i] for i in chosen], [texts[i] for i in chosen], _options_of(name, options))
        if len(scored) != len(chosen):
            raise TrainingError(f"the reward {name!r} returned {len(scored)} rewards for {len(chosen)} answers")
        for i, reward in zip(chosen, scored, strict=True):
            results[i] = _checked(reward, name, prompts[i])
    if options.get("random", False):
        return [replace(results[i], value=float(key("coin", p.key) % 2)) for i, p in enumerate(prompts)]
    return [results[i] for i in range(len(prompts))]


def check_rewards(prompts: Sequence[RewardPrompt], options: Mapping[str, Any]) -> None:
    """Check the requirements of the rewards (a sandbox, a package) beside what :func:`check_options` checks, so that
    whatever is missing or wrong is an error before a training begins.

    A reward names the function that checks its requirements when it is registered: ``requires="module:function"``. It
    is called with the options of the reward, and raises UsageError with what is missing.

    Raises:
        UsageError: a requirement is missing. Otherwise as :func:`rewards`.
    """
    for name, prompt in {prompt.task: prompt for prompt in reversed(prompts)}.items():
        entry = _registered(name, prompt)
        if (target := entry.about.get("requires")) is not None:
            replace(entry, target=target).load()(_options_of(name, options))
    check_options(prompts, options)


def check_options(prompts: Sequence[RewardPrompt], options: Mapping[str, Any]) -> None:
    """Score an empty answer to every prompt, so that a malformed row, an unknown reward or option is an error, also on
    a machine that misses a requirement of the rewards. Raises as :func:`rewards`."""
    if not isinstance(options.get("random", False), bool):
        raise UsageError(f"random={options['random']!r} of the rewards must be True or False")
    used = dict.fromkeys(prompt.task for prompt in prompts)
    for name in options.keys() & set(registry().names("reward")) - used.keys():
        raise UsageError(f"options are given for the reward {name!r}, which no row has; rows have {', '.join(used)}")
    rewards(prompts, [""] * len(prompts), options)


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


def _checked(reward: Reward, name: str, prompt: RewardPrompt) -> Reward:
    if not math.isfinite(reward.value) or reward.accuracy not in (0.0, 1.0):
        raise TrainingError(
            f"{prompt.where}: the reward {name!r} returned value={reward.value!r}, accuracy={reward.accuracy!r}; "
            "a value is a finite number, an accuracy is 0 or 1"
        )
    return reward
