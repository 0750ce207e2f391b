"""The canvas of a response as HTML: each token with its step and its confidence, and a chart of the order.

A page may hold ten thousand tokens, so this builds strings: every text goes through :func:`escaped`, everything else
is made of numbers. ``static/slider.js`` reads the canvas at each step from the same elements:

- ``<b class="s3 c9" data-s=12 data-c=.98>text</b>`` a token, written in step 12 (color 3 of 0 to 9) with confidence
  .98 (color 9); ``never``, without numbers: a position that nothing was written to;
- ``data-w='[[2,"text",.5],[7,null,null]]'`` what stood there before: written in step 2, masked again in step 7;
- ``data-v=+.012 data-u=3`` the token's weight in an update, and the color of it (-5 to 5); none where it is 0;
- ``data-f="5:.99 6:.98"`` on a fold: step and confidence of each of the equal tokens that it stands for.
"""

from __future__ import annotations

import json
from functools import lru_cache
from html import escape

from markupsafe import Markup

from dare_bench.analysis.unmasking import Fold, Piece, Unmasking, Write, folded
from dare_bench.formatting import figure
from dare_bench.runs.text import visible

TOKEN_LIMIT = 200
"""Maximum number of characters of one token; real vocabularies stay far below."""
STATES = 2_000
"""Maximum number of earlier states in one canvas."""


def escaped(text: str, limit: int) -> str:
    """A text of a model or data set as HTML: every character is visible, none is markup, a note replaces the rest."""
    return escape(visible(text, limit))


def canvas(order: Unmasking, most: int) -> Markup:
    """The first ``most`` positions of a response."""
    states = STATES
    parts = []
    for piece in folded(order.pieces[:most]):
        if isinstance(piece, Fold):
            parts.append(_fold(piece))
        else:
            parts.append(_token(piece, max(states, 0)))
            states -= len(piece.past)
    if (left := len(order.pieces) - most) > 0:
        parts.append(f'<span class="cut"> … {left:,} more positions</span>')
    return Markup("".join(parts))


def _token(piece: Piece, states: int) -> str:
    body, after = _short(piece.text) if len(piece.text) <= 40 else _body(piece.text)
    past = f' data-w="{_past(piece.past[:states])}"' if piece.past else ""
    more = f" data-v={_signed(piece.weight)} data-u={piece.weight_level}{past}" if piece.weight else past
    if piece.step is None:
        return f"<b class=never{more}>{body}</b>{after}"
    if piece.confidence is None:
        return f"<b class=s{piece.level} data-s={piece.step}{more}>{body}</b>{after}"
    sure = _brief(piece.confidence)
    return f'<b class="s{piece.level} c{piece.sure}" data-s={piece.step} data-c={sure}{more}>{body}</b>{after}'


def _body(text: str) -> tuple[str, str]:
    """A token's text, and the line breaks at its end, which stand behind its box."""
    text = visible(text, TOKEN_LIMIT)
    body = text.rstrip("\n")
    breaks = text[len(body) :]
    return escape(body.replace("\n", "↵\n")) + "↵" * bool(breaks) or "∅", breaks


_short = lru_cache(maxsize=50_000)(_body)


def _past(states: tuple[Write, ...]) -> str:
    rows = [
        [state.step, None if state.text is None else visible(state.text, TOKEN_LIMIT), state.confidence]
        for state in states
    ]
    return escape(json.dumps(rows, separators=(",", ":")))


def _brief(value: float) -> str:
    """A confidence in few characters: ".98", "1", "-3.21"."""
    text = f"{value:.2f}" if abs(value) < 1000 else f"{value:.2e}"
    return {"1.00": "1", "0.00": "0", "-0.00": "0"}.get(text) or (text[1:] if text.startswith("0.") else text)


def _signed(weight: float) -> str:
    """A weight in few characters: "+.012", "−1.2e-05"."""
    return f"{weight:+.2g}".replace("-", "−", 1 if weight < 0 else 0).replace("0.", ".", 1)


def _fold(fold: Fold) -> str:
    steps = " ".join(
        "" if piece.step is None else f"{piece.step}:{'' if piece.confidence is None else _brief(piece.confidence)}"
        for piece in fold.pieces
    )
    text, _ = _body(fold.text)
    first, last = fold.first_step, fold.last_step
    when = f"steps {first}–{last}" if first != last else f"step {last}" if last else "never"
    return f'<span class="fold" data-f="{steps}">{text} × {fold.count} <small>{when}</small></span>'


def order_chart(order: Unmasking, most: int) -> Markup:
    """Position horizontally, step vertically, a mark where a token was written: decoding from left to right is a
    diagonal, random order a cloud."""
    width = max(min(len(order.pieces), most), 1)
    marks: list[str] = []
    begin, row = 0, None
    for at, piece in enumerate([*order.pieces[:most], None]):  # neighbors of one step are one stroke
        step = piece.step if piece is not None else None
        if step != row or piece is None:
            if row is not None:
                marks.append(f"M{begin} {row}h{at - begin}")
            begin, row = at, step
    label = f"When each position was written: {figure(width)} positions across, {figure(order.steps)} steps downwards"
    return Markup(
        f'<svg class="order" viewBox="0 .5 {width} {max(order.steps, 1)}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}"><path d="{"".join(marks)}"/></svg>'
    )
