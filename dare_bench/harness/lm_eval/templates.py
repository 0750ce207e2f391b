"""Templates of lm-eval's tasks in Jinja's sandbox: they can access a document's fields, but no Python internals.

lm-eval renders prompts, targets and choices by ``lm_eval.utils.apply_template``, which looks up its environment,
``lm_eval.utils.env``, at each call. So only that name has to be replaced, wherever a module imported the function from.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from jinja2 import Environment
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Sandbox(ImmutableSandboxedEnvironment):
    """The settings of ``plain`` (filters, undefined values, line ends), in the sandbox."""

    def __init__(self, plain: Environment) -> None:
        settings = inspect.signature(Environment).parameters
        super().__init__(**{name: value for name, value in vars(plain).items() if name in settings})
        self.filters, self.tests = plain.filters, plain.tests
        self.globals = {**plain.globals, "range": self.globals["range"]}  # that of the sandbox has a limit


def sandbox_templates() -> None:
    """From now on lm-eval renders in the sandbox, in this process.

    Compiled templates are cached: lm-eval compiles a task's template again for every document, which takes longer than
    everything else.
    """
    from lm_eval import utils

    if not isinstance(utils.env, _Sandbox):
        sandbox: Any = _Sandbox(utils.env)
        sandbox.from_string = functools.lru_cache(maxsize=1024)(sandbox.from_string)
        utils.env = sandbox
