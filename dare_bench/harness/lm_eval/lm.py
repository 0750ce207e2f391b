"""The model class through which lm-eval uses a model of dare-bench; its tasks' requests, built by their methods; and
their templates, which are rendered in Jinja's sandbox."""

from __future__ import annotations

import functools
import inspect
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
from jinja2 import Environment, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval.api.model import LM
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.utils import set_torch_seed

from dare_bench import chat
from dare_bench.config import RunSpec
from dare_bench.errors import DataError, UsageError, unknown
from dare_bench.harness.common.requests import MessagesText
from dare_bench.protocols import LoadedModel
from dare_bench.types import Sample


class AnsweringLM(LM):
    """lm-eval's view of a :class:`~dare_bench.protocols.LoadedModel`: tokenizer, chat template, answers.

    ``answer`` returns one sample for each of lm-eval's instances (``dare-bench eval`` passes :func:`sample_lookup`,
    lm-eval's command the engine's queue); None if prompts are only rendered. ``template`` is a chat template's name.
    """

    def __init__(
        self,
        model: LoadedModel,
        answer: Callable[[Sequence[Any]], list[Sample]] | None = None,
        template: bool | str = False,
    ) -> None:
        super().__init__()
        self.model, self._answer = model, answer
        self._template = template if isinstance(template, str) else None
        self.notes: list[str] = []

    def generate_until(self, requests: list[Any]) -> list[str]:
        return self._answers("generate_until", requests, lambda answer: answer.text or "")

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        # lm-eval turns is_greedy into a number even where no metric reads it, hence False for "not computed".
        return self._answers("loglikelihood", requests, lambda answer: (answer.value, bool(answer.is_greedy)))

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return self._answers("loglikelihood_rolling", requests, lambda answer: float(answer.value))

    def _answers(self, kind: str, requests: list[Any], value_of: Callable[[Any], Any]) -> list[Any]:
        """The value of each answer, which lm-eval's cache keeps too."""
        assert self._answer is not None, "this model renders prompts only"
        values = [value_of(sample.answer) for sample in self._answer(requests)]
        for instance, value in zip(requests, values, strict=True):
            self.cache_hook.add_partial(kind, instance.args, value)
        return values

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def max_length(self) -> int:
        return self.model.spec.context_limit

    @property
    def eot_token_id(self) -> int | None:
        return self.model.spec.eos_ids[0] if self.model.spec.eos_ids else None

    @property
    def tokenizer_name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "")).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval adds to ``results["config"]``."""
        facts = {"model_num_parameters": self.model.spec.parameters, "model_dtype": self.model.spec.precision}
        return {**facts, "model_revision": "", "model_sha": ""}

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's text, for the record; None without ``--apply-chat-template``."""
        if chat_template is False or chat_template is None or self._server_renders:
            return None
        return str(self.tokenizer.get_chat_template(self._template_name(chat_template)))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as one prompt; without a generation prompt the last message is left open, to be continued.

        A server with the chat template gets the messages themselves (:class:`MessagesText`); it continues none.
        """
        if self._server_renders:
            if self._template is not None or not add_generation_prompt:
                what = f"a template by name ({self._template!r})" if self._template else "a message that is continued"
                raise UsageError(
                    f"--apply-chat-template: the server renders the messages, and cannot be given {what}; to render"
                    " them here, give the tokenizer: --engine-args tokenizer=FOLDER"
                )
            return MessagesText(json.dumps(chat_history))
        try:
            return self._render(chat_history, add_generation_prompt)
        except TemplateError as error:
            rest = [message for message in chat_history if message["role"] != "system"]
            if len(rest) == len(chat_history):
                raise UsageError(f"the model's chat template refuses the messages: {error}") from error
            note = f"the chat template rejects system messages ({error}): they were omitted"
            self.notes += [note] if note not in self.notes else []
            return self._render(rest, add_generation_prompt)

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        name = self._template_name(self._template)
        chat_template = {"chat_template": name} if name else {}
        return chat.render(
            messages,
            self.tokenizer,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **chat_template,
        )

    @property
    def _server_renders(self) -> bool:
        return self.tokenizer is None and self.model.capabilities.messages

    def _template_name(self, template: bool | str | None) -> str | None:
        """The name of the tokenizer's template to use; None for its default.

        An unknown name is refused: transformers would take the name itself for the template's text.
        """
        available = getattr(self.tokenizer, "chat_template", None)
        if not available:
            seen = "no tokenizer" if self.tokenizer is None else "a tokenizer without a chat template"
            raise UsageError(f"--apply-chat-template: the model has {seen}; leave the flag out")
        if not isinstance(template, str):
            return None
        names = list(available) if isinstance(available, Mapping) else ["default"]
        if template not in names:
            raise unknown("chat template", template, names)
        return template if isinstance(available, Mapping) else None


def sample_lookup(samples: Mapping[Any, Sample], part: int) -> Callable[[Sequence[Any]], list[Sample]]:
    """Answers instances of :class:`~dare_bench.harness.lm_eval.documents.TaskDocuments` from finished samples, by
    (task, document, index, repeat). ``part``: which of ``--repeats``; a task that itself asks for r answers gets those
    from ``part * r`` on."""
    counts: Counter[Any] = Counter()

    def next_sample(instance: Any) -> Sample:
        key = instance.true_key
        repeat = part * (instance.repeats or 1) + counts[key]
        counts[key] += 1
        return samples[(*key, repeat)]

    return lambda instances: list(map(next_sample, instances))


def build_requests(
    tasks: Mapping[str, Any], spec: RunSpec, lm: AnsweringLM, samples: Mapping[str, Sequence[int]] | None
) -> None:
    """Fill ``task.instances`` of every task with the settings that lm-eval's ``simple_evaluate`` sets before it calls
    the model; raises DataError. ``samples``: the documents by task; None: the first ``spec.limit`` of each."""
    for name, task in tasks.items():
        _check(name, task)
    random.seed(spec.seeds[0])
    numpy.random.seed(spec.seeds[1])
    set_torch_seed(spec.seeds[2])
    for task in tasks.values():
        _configure(task, spec)
    for name, task in tasks.items():
        task.build_all_requests(
            limit=get_sample_size(task, spec.limit),
            samples=None if samples is None else samples.get(name),
            rank=0,
            world_size=1,
            cache_requests=False,
            rewrite_requests_cache=False,
            system_instruction=spec.system_instruction,
            apply_chat_template=bool(spec.apply_chat_template),
            fewshot_as_multiturn=spec.fewshot_as_multiturn,
            chat_template=lm.apply_chat_template if spec.apply_chat_template else None,
            tokenizer_name=lm.tokenizer_name if spec.apply_chat_template else "",
        )


def _check(name: str, task: Any) -> None:
    if getattr(task, "MULTIMODAL", False):
        raise DataError(f"task {name!r} has images or sound, which the models here cannot read")
    metrics = getattr(task, "_metric_fn_list", {})  # None: not found, or not needed where the task has a scorer
    missing = [str(metric) for metric, compute in metrics.items() if compute is None]
    if missing and task.get_config("output_type") == "generate_until" and task.get_config("process_results") is None:
        raise DataError(
            f"task {name!r}: lm-eval has no metric {missing[0]!r}, and scripts of the evaluate library are never run; "
            "use a metric of lm-eval (exact_match, ...), or leave out the task"
        )


def _configure(task: Any, spec: RunSpec) -> None:
    if spec.decoding and task.get_config("output_type") == "generate_until":
        task.set_config(key="generation_kwargs", value=dict(spec.decoding), update=True)
    shots = task.get_config("num_fewshot")
    if shots is None or (spec.num_fewshot is not None and shots != 0):
        task.set_config(key="num_fewshot", value=spec.num_fewshot or 0)
    task.set_fewshot_seed(seed=spec.seeds[3])


class _Sandbox(ImmutableSandboxedEnvironment):
    """The settings of ``plain`` (filters, undefined values, line ends), in the sandbox."""

    def __init__(self, plain: Environment) -> None:
        settings = inspect.signature(Environment).parameters
        super().__init__(**{name: value for name, value in vars(plain).items() if name in settings})
        self.filters, self.tests = plain.filters, plain.tests
        self.globals = {**plain.globals, "range": self.globals["range"]}  # that of the sandbox has a limit


def sandbox_templates() -> None:
    """From now on lm-eval renders in the sandbox, in this process: it looks up ``lm_eval.utils.env`` at each call, so
    only that name is replaced. Compiled templates are cached: lm-eval compiles a task's again for every document."""
    from lm_eval import utils

    if not isinstance(utils.env, _Sandbox):
        sandbox: Any = _Sandbox(utils.env)
        sandbox.from_string = functools.lru_cache(maxsize=1024)(sandbox.from_string)
        utils.env = sandbox


sandbox_templates()
