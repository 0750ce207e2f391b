"""Names by which code that can evaluate a text as a program is recognized."""

from __future__ import annotations

import re

# What can evaluate a text as a program: sympy's sympify is Python's eval, and pickle runs what it reads.
EVALUATES = re.compile(
    r"\b(?:sympy|sympify|lambdify|parse_expr|parse_latex|math_verify|latex2sympy\w*|numexpr)\b"
    r"|\b(?:pickle|cloudpickle|dill|joblib|marshal|shelve|subprocess|unsafe_load|os\.system|os\.popen)\b"
    r"|\bos\.(?:exec|spawn|posix_spawn)\w*|\bimport\s+(?:eval|exec|compile|system|popen)\b"
    r"|(?<!\w)(?:eval|exec|__import__)(?=\s*\()|(?<![\w.])compile(?=\s*\()"
)
