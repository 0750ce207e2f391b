"""What lm-eval may ask of a model beside answers: its tokenizer, its chat template, facts for the results file."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError
from lm_eval.api.model import LM

from dare_bench.errors import UsageError
from dare_bench.protocols import LoadedModel


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
        self._needs_template()
        return str(self.tokenizer.get_chat_template(chat_template if isinstance(chat_template, str) else None))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as one prompt; without a generation prompt the last message is left open, to be continued."""
        self._needs_template()
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
        named = {"chat_template": self._template} if self._template else {}
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **named,
            )
        )

    def _needs_template(self) -> None:
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            what = "no tokenizer" if self.tokenizer is None else "a tokenizer without a chat template"
            raise UsageError(f"--apply-chat-template: the model has {what}; leave the flag out")
