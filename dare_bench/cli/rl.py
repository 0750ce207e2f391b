"""``dare-bench rl``: inspect a training run of reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dare_bench.cli.plain import echo, echo_error, echo_json, log_to_stderr, plain_console
from dare_bench.runs.text import visible
from dare_bench.runs.writer import refuse_target

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

    if html is not None:
        refuse_target(html, "--html")
    log_to_stderr()
    record = replayed(Path(out), step, model)
    shown = sorted(record["groups"], key=lambda group: not any(c["advantage"] for c in group))[:groups]
    if html is not None:
        from dare_bench.leaderboards.answer_pages import write_rollout

        echo_error(f"wrote {write_rollout(record | {'groups': shown}, html)}")
    if json:
        echo_json(record)
        return
    updated = ""
    if record["updated_from"] is None:
        why = f"weights of tokens need checkpoint-{step - 1}, which was not kept"
        updated = "; " + ("it has no weights of tokens" if record["sampled_from"].startswith("the table") else why)
    echo(
        f"step {step} of {record['steps']}: rollout {record['rollout'] + 1}, inner iteration {record['iteration'] + 1} "
        f"of {record['iterations']}, sampled from {record['sampled_from']}{updated}"
    )
    for group in shown:
        _print_group(plain_console(), group)
    echo(f"\n{len(shown)} of {len(record['groups'])} groups; --groups N shows more, --json all")


def _print_group(console: Console, group: Sequence[dict[str, Any]]) -> None:
    """A prompt and its completions; green tokens become likelier, red ones less likely."""
    from rich.text import Text

    echo(f"\nprompt ({group[0]['where']}): " + _line(group[0]["prompt_text"]))
    for c in group:
        reward = "none  " if c["reward"] is None else f"{c['reward']:<6.3g}"
        line = Text(f"  reward {reward} advantage {c['advantage']:<+8.3g}")
        scored = c["pieces"][: c["scored"]]  # an ELBO scores all of them
        for piece, weight in zip(scored, c["weights"] or [None] * len(scored), strict=False):
            color = "" if not weight else "green" if weight > 0 else "red"
            line.append(" " + (_line(piece) or "∅"), style=color)
            line.append("" if weight is None else f"({weight:+.2g})", style="dim")
        console.print(line, soft_wrap=True)
        for each in c["predictions"]:
            said = f"advantage {each['advantage']:<+8.3g} predicted {_line(each['text'])}"
            echo(f"    {len(each['masked'])} masked: {said}")


def _line(text: str) -> str:
    return visible(text).replace("\n", "⏎")
