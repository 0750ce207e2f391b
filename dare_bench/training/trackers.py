"""The trackers of a training, by the names that transformers has for them."""

from __future__ import annotations

from collections.abc import Sequence

from dare_bench.errors import UsageError, unknown
from dare_bench.training.spec import TrainSpec


def trackers(requested: Sequence[str]) -> list[str]:
    """The requested trackers that are installed; TensorBoard, the default, is left out where it is not.

    Raises:
        UsageError: one that transformers does not know, or that is not installed.
    """
    from transformers.integrations import get_available_reporting_integrations  # slow to import
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    installed = get_available_reporting_integrations()
    default = TrainSpec.model_fields["report_to"].default
    for name in requested:
        if name != "none" and name not in INTEGRATION_TO_CALLBACK:
            raise unknown("tracker", name, [*INTEGRATION_TO_CALLBACK, "none"])
        if name != "none" and name not in installed and tuple(requested) != default:
            raise UsageError(
                f"report_to={','.join(requested)}: {name} is not installed; pip install {name}, or leave it out "
                f"(installed: {', '.join(sorted(installed)) or 'none'})"
            )
    return [name for name in requested if name in installed]
