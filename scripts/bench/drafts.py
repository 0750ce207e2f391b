"""Forwards that drafts save on the bundled checkpoints, where a forward costs the same whatever it computes.

    python scripts/bench/drafts.py [--prompts 8] [--gen-length 32]

A CPU makes no drafts by itself; here it does, since what is counted is the same on every device. The tokens must be
those without drafts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dare_bench
from dare_bench import model_adapters
from dare_bench.model_adapters.sampling import drafts

TINY = Path(model_adapters.__file__).parent / "tiny"
PUZZLE = "sudoku\n{}3.4\n4..3\n.431\n.14.\n="


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--gen-length", type=int, default=32)
    args = parser.parse_args()
    drafts.IDLE_TOKENS["cpu"] = 1 << 40
    texts = [f"{a}+{a + 7}=" if a % 2 else PUZZLE.format("." if a % 4 else a % 9) for a in range(1, args.prompts + 1)]
    for name in sorted(folder.name for folder in TINY.iterdir() if folder.is_dir()):
        model, counts, tokens = dare_bench.load(name, device="cpu"), [], []
        for count in (0, 1, 3, 7):
            answers = model.generate(texts, gen_length=args.gen_length, draft_steps=count, max_rows=1)
            counts.append(sum(answer.nfe for answer in answers))
            tokens.append([answer.tokens for answer in answers])
        if any(other != tokens[0] for other in tokens):
            raise SystemExit(f"error: {name} answers otherwise with drafts")
        saved = ", ".join(f"{n} drafts {c} ({counts[0] / c:.2f}x)" for n, c in zip((1, 3, 7), counts[1:], strict=True))
        print(f"{name}: {counts[0]} forwards; with {saved}; same tokens", flush=True)


if __name__ == "__main__":
    main()
