"""``dare-bench rl``: inspect a training run of reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.plain import echo, echo_error, echo_json, log_to_stderr, plain_console
from dare_bench.runs.text import visible

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(help="Inspect a training run of reinforcement learning.", no_args_is_help=True)


@app.command()
def replay(
    out: Annotated[str, typer.Argument(metavar="OUT", help="The output folder of the training.")],
    step: Annotated[int, typer.Option(help="The optimizer step, counted from 1 as in the log.")],
    groups: Annotated[int, typer.Option(min=1, help="Groups that are shown, those with an advantage first.")] = 2,
    model: Annotated[str | None, typer.Option(help="Where the starting checkpoint is now, if it was moved.")] = None,
    html: Annotated[str | None, typer.Option(help="Also write the shown groups to an HTML file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all groups as JSON.")] = False,
) -> None:
    """Regenerate the rollout of an optimizer step from the checkpoint that sampled it.

    Prints prompts, completions, rewards, advantages, and the weight of each token in the update. The HTML file shows
    each completion on the unmasking slider.

    Example: dare-bench rl replay out --step 1 --html step1.html
    """
    from dare_bench.training.setup import replay as replayed

    log_to_stderr()
    result, piece = replayed(Path(out), step, model)
    shown = sorted(result.groups, key=lambda group: not any(c.advantage for c in group))[:groups]
    if html is not None:
        from dare_bench.leaderboards.answer_pages import write_rollout

        echo_error(f"wrote {write_rollout(_record(result, shown, piece), html)}")
    if json:
        echo_json(_record(result, result.groups, piece))
        return
    updated = "; it has no weights of tokens" if result.is_table else "" if result.updated_from else (
        f"; weights of tokens need checkpoint-{result.step - 1}, which was not kept"
    )  # fmt: skip
    echo(
        f"step {result.step} of {result.steps}: rollout {result.rollout + 1}, inner iteration {result.iteration + 1} "
        f"of {result.iterations}, sampled from {result.sampled_from}{updated}"
    )
    for group in shown:
        _print_group(plain_console(), group, piece)
    echo(f"\n{len(shown)} of {len(result.groups)} groups; --groups N shows more, --json all")


def _print_group(console: Console, group: Any, piece: Callable[[int], str]) -> None:
    """A prompt and its completions; green tokens become likelier, red ones less likely."""
    from rich.text import Text

    echo(f"\nprompt ({group[0].where}): " + visible(_text(group[0].prompt, piece)).replace("\n", "⏎"))
    for c in group:
        reward = "none  " if c.reward is None else f"{c.reward:<6.3g}"
        line = Text(f"  reward {reward} advantage {c.advantage:<+8.3g}")
        scored = c.tokens[: c.scored]  # an ELBO scores all of them
        for token, weight in zip(scored, c.weights or [None] * len(scored), strict=False):
            color = "" if not weight else "green" if weight > 0 else "red"
            line.append(" " + (visible(piece(token)).replace("\n", "⏎") or "∅"), style=color)
            line.append("" if weight is None else f"({weight:+.2g})", style="dim")
        console.print(line, soft_wrap=True)
        for predicted in c.predictions:
            seen = visible(_text(predicted.tokens[: predicted.scored], piece)).replace("\n", "⏎")
            echo(f"    {len(predicted.masked)} masked: advantage {predicted.advantage:<+8.3g} predicted {seen}")


def _text(tokens: Sequence[int], piece: Callable[[int], str]) -> str:
    return "".join(map(piece, tokens))


def _record(result: Any, groups: Sequence[Any], piece: Callable[[int], str]) -> dict[str, Any]:
    """Groups of the replay as JSON, with the texts of the tokens."""
    names = ("step", "steps", "rollout", "iteration", "iterations", "sampled_from", "updated_from")
    return {
        **{name: getattr(result, name) for name in names},
        "groups": [[_completion_record(completion, piece) for completion in group] for group in groups],
    }


def _completion_record(completion: Any, piece: Callable[[int], str]) -> dict[str, Any]:
    names = ("where", "text", "reward", "advantage", "prompt", "tokens", "scored", "set_at", "logprobs", "weights")
    return {
        **{name: getattr(completion, name) for name in names},
        "prompt_text": _text(completion.prompt, piece),
        "pieces": [piece(token) for token in completion.tokens],
        "predictions": [
            {"masked": each.masked, "advantage": each.advantage, "text": _text(each.tokens[: each.scored], piece)}
            for each in completion.predictions
        ],
    }
