"""Our models from lm-eval's side.

Importing this module registers the model class ``dare``::

    import dare_bench.lm_eval, lm_eval
    lm_eval.simple_evaluate(model="dare", model_args="pretrained=tiny-llada,gen_length=64", tasks=["gsm8k"], limit=8)

lm-eval's own command sees only models that something imported, so here it is with ours among them::

    python -m dare_bench.lm_eval run --model dare --model_args pretrained=tiny-llada,gen_length=64 --tasks gsm8k

See :class:`DareLM` for the settings. A run of ``dare-bench eval`` does more: it resumes, redirects data, leaves failed
documents out of the scores and records its settings.
"""

from __future__ import annotations

import logging
import sys

from dare_bench.errors import DareError
from dare_bench.harness.lm_eval.dare_lm import DareLM

__all__ = ["DareLM", "main"]


def main() -> int:
    """lm-eval's command; returns the exit code."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except DareError as error:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
