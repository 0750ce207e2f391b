"""As much of TeX as a table needs, for tests: what pdflatex would print, or an error where it would stop."""

from __future__ import annotations

import re
import unicodedata

_BREAK, _GRAVE = "\x00", "\x01"
PRINTED = {
    "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textgreater": ">",
    "textbar": "|", "textasciigrave": _GRAVE, "ldots": "…", "textendash": "–", "textemdash": "—",
    "textquoteleft": "‘", "textquoteright": "’", "textquotedblleft": "“", "textquotedblright": "”",
    "textbraceleft": "{", "textbraceright": "}", "dag": "†", "ddag": "‡", "S": "§", "P": "¶",
}  # fmt: skip
FORMULA = {
    "pm": "±", "times": "×", "leq": "≤", "geq": "≥", "approx": "≈", "rightarrow": "→", "infty": "∞", "ast": "∗",
    "circ": "°", "cdot": "·", "langle": "⟨", "rangle": "⟩", "parallel": "‖",
}  # fmt: skip
_GREEK = "ΓΔΘΛΞΠΣΦΨΩαβγδεζηθικλμνξπρστφχψω"
FORMULA |= {unicodedata.name(one).split()[-1].replace("LAMDA", "LAMBDA").lower(): one for one in _GREEK[10:]}
FORMULA |= {unicodedata.name(one).split()[-1].replace("LAMDA", "LAMBDA").title(): one for one in _GREEK[:10]}
GROUPS = ("textbf", "texttt", "textsuperscript")
LIGATURES = (("---", "—"), ("--", "–"), ("``", "“"), ("''", "”"), (",,", "„"), ("`", "‘"), ("'", "’"))
_TOKEN = re.compile(r"\\[A-Za-z]+ ?|\\.|[^\\]", re.DOTALL)


def typeset(source: str) -> str:
    """The text that a piece of LaTeX prints. Raises AssertionError for what pdflatex does not take there."""
    depth, formula, out = 0, False, []
    for token in _TOKEN.findall(source):
        word = token[1:].strip()
        if token == "$":
            formula = not formula
        elif token in "{}":
            depth += 1 if token == "{" else -1
            assert depth >= 0, f"a brace too many: {source!r}"
            out.append(_BREAK)
        elif token[0] != "\\":
            assert token not in "&#%" and (formula or token not in "^_"), f"raw {token!r} in {source!r}"
            assert ord(token) <= 0x17F, f"pdflatex has no {token!r}"
            out.append("" if formula and token in "^_" else "\xa0" if token == "~" else token)
        elif len(word) == 1 and not word.isalpha():
            assert word in "{}_%&#$", f"unknown command {token!r}"
            out.append(word)
        elif word not in GROUPS:
            known = FORMULA if formula else PRINTED
            assert word in known, f"unknown command {token!r}"
            out.append(known[word] + _BREAK)
    assert depth == 0 and not formula, f"a group is left open: {source!r}"
    text = "".join(out)
    for joined, sign in LIGATURES:
        text = text.replace(joined, sign)
    return text.replace(_BREAK, "").replace(_GRAVE, "`")


def tabular(source: str) -> list[list[str]]:
    """The printed cells of the one table in a LaTeX file, header first; checks its frame."""
    lines = [line for line in source.splitlines() if not line.startswith("%")]
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", "\n".join(lines)):
        opened.append(name) if kind == "begin" else None
        assert kind == "begin" or opened.pop() == name
    assert not opened
    (frame,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n\\toprule\n(.*?)\\bottomrule", "\n".join(lines), re.DOTALL)
    rows = [line for line in frame[1].splitlines() if line != r"\midrule"]
    cells = []
    for row in rows:
        assert row.endswith(r" \\")
        assert not re.match(r"\s*[\[*]", row), "it would be taken as an argument of the row before"
        cells.append([typeset(cell) for cell in re.split(r" (?<!\\)& ", row[: -len(r" \\")])])
        assert len(cells[-1]) == len(frame[0])
    return cells
