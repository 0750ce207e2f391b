"""Templates of lm-eval's tasks in Jinja's sandbox: they see a document's fields, and nothing of Python behind them.

lm-eval renders prompts, targets and choices by ``lm_eval.utils.apply_template``, which looks up its environment,
``lm_eval.utils.env``, at each call. So that one name is what has to be replaced, however a module came by the function.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from jinja2 import Environment
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Sandbox(ImmutableSandboxedEnvironment):
    """Another environment's settings (filters, what is undefined, line ends), in the sandbox."""

    def __init__(self, plain: Environment) -> None:
        settings = inspect.signature(Environment).parameters
        super().__init__(**{name: value for name, value in vars(plain).items() if name in settings})
        self.filters, self.tests = plain.filters, plain.tests
        self.globals = {**plain.globals, "range": self.globals["range"]}  # the sandbox's own has a limit


def sandbox_templates() -> None:
    """From now on lm-eval renders in the sandbox, in this process.

    Compiled templates are kept: lm-eval compiles a task's template anew for every document, which takes longer than all
    the rest.
    """
    from lm_eval import utils

    if not isinstance(utils.env, _Sandbox):
        made: Any = _Sandbox(utils.env)
        made.from_string = functools.lru_cache(maxsize=1024)(made.from_string)
        utils.env = made
