"""What lm-eval may ask of a model beside answers: its tokenizer, its chat template, facts for the results file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError
from lm_eval.api.model import LM

from dare_bench import chat
from dare_bench.errors import UsageError, unknown
from dare_bench.harness.lm_eval.templates import sandbox_templates
from dare_bench.protocols import LoadedModel

sandbox_templates()


class BaseLM(LM):
    """lm-eval's view of a :class:`~dare_bench.protocols.LoadedModel`; subclasses answer."""

    def __init__(self, model: LoadedModel, template: bool | str = False) -> None:
        super().__init__()
        self.model = model
        self._template = template if isinstance(template, str) else None
        self.notes: list[str] = []

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
        spec = self.model.spec
        return {
            "model_num_parameters": spec.parameters,
            "model_dtype": spec.dtype,
            "model_revision": "",
            "model_sha": "",
        }

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's own text, for the record; None without ``--apply-chat-template``."""
        if chat_template is False or chat_template is None:
            return None
        return str(self.tokenizer.get_chat_template(self._named(chat_template)))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as one prompt; without a generation prompt the last message is left open, to be continued."""
        self._named(self._template)
        try:
            return self._render(chat_history, add_generation_prompt)
        except TemplateError as error:
            rest = [message for message in chat_history if message["role"] != "system"]
            if len(rest) == len(chat_history):
                raise UsageError(f"the model's chat template refuses the messages: {error}") from error
            note = f"the chat template refuses system messages ({error}): they were left out"
            self.notes += [note] if note not in self.notes else []
            return self._render(rest, add_generation_prompt)

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        name = self._named(self._template)
        named = {"chat_template": name} if name else {}
        return chat.render(
            messages,
            self.tokenizer,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **named,
        )

    def _named(self, template: bool | str | None) -> str | None:
        """The name of the template to ask the tokenizer for; None for the one it takes by itself.

        A name that it does not have is refused: transformers would take the name itself for the template's text.
        """
        has = getattr(self.tokenizer, "chat_template", None)
        if not has:
            what = "no tokenizer" if self.tokenizer is None else "a tokenizer without a chat template"
            raise UsageError(f"--apply-chat-template: the model has {what}; leave the flag out")
        if not isinstance(template, str):
            return None
        names = list(has) if isinstance(has, Mapping) else ["default"]
        if template not in names:
            raise unknown("chat template", template, names)
        return template if isinstance(has, Mapping) else None
