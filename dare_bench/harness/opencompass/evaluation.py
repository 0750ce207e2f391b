"""OpenCompass's scoring of a data set: postprocessors and evaluator, in the order of its evaluation task."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dare_bench.errors import DataError
from dare_bench.harness.common.answering import error_line
from dare_bench.harness.common.time_limits import ALGEBRA, ANSWER_SECONDS, Answers, AnswerTimeout, source_names, within
from dare_bench.harness.opencompass.components import resolve
from dare_bench.harness.opencompass.dataset import DataSet, config_errors
from dare_bench.opencompass_numbers import numbers


class DataSetEvaluator:
    """Postprocesses and evaluates answers to a data set's documents, or any part of them; raises DataError."""

    def __init__(self, data: DataSet) -> None:
        self._data = data
        self._cfg: Mapping[str, Any] = data.cfg["eval_cfg"]
        self._column: str | None = data.cfg["reader_cfg"].get("output_column")
        self._positions = {document: position for position, document in enumerate(data.documents)}
        self.lost: list[tuple[Any, str]] = []
        """Answers (or their documents) that the postprocessor or the evaluator failed on, with the errors."""

    @cached_property
    def _rows(self) -> Any:
        """The requested documents, with postprocessed references."""
        rows, column = self._data.test.select(self._data.documents), self._column
        if "dataset_postprocessor" not in self._cfg or column is None:
            return rows
        postprocess = _postprocessor(self._cfg["dataset_postprocessor"])
        with config_errors(self._data.config, self._data.name, "postprocessing its references"):
            return rows.map(lambda row: {**row, column: postprocess(row[column])}, load_from_cache_file=False)

    @cached_property
    def references(self) -> dict[int, Any]:
        """The reference of each document; empty if the data set has no output column."""
        if self._column is None:
            return {}
        return dict(zip(self._data.documents, self._rows[self._column], strict=True))

    @cached_property
    def _post(self) -> Any:
        cfg = self._cfg.get("pred_postprocessor")
        return _postprocessor(cfg) if cfg else None

    def extract(self, text: str) -> Any:
        """The data set's postprocessed answer. If the postprocessor fails or does not end, the answer counts as empty
        and is noted: no answer may prevent a run's scores."""
        if self._post is None:
            return text
        try:
            with within(ANSWER_SECONDS):
                return self._post(text)
        except (Exception, AnswerTimeout) as error:
            self.lost.append((text, error_line(error)))
            return ""

    @cached_property
    def kind(self) -> Any:
        """The evaluator's class."""
        component = self._cfg["evaluator"]["type"]
        if (evaluator := resolve(component, "ICL_EVALUATORS")) is None:
            raise DataError(f"data set {self._data.name!r}: OpenCompass has no evaluator {component!r}")
        return evaluator

    @cached_property
    def compares_formulas(self) -> bool:
        """May one comparison not terminate? So it is if the evaluator's file names a computer algebra package."""
        return source_names(self.kind, ALGEBRA)

    @cached_property
    def compares_texts(self) -> bool:
        """Is a document right exactly if prediction and reference are the same text? OpenCompass's AccEvaluator reports
        no details, and loading its metric for each document would take minutes."""
        from opencompass.openicl.icl_evaluator import AccEvaluator

        return all(getattr(self.kind, name, None) is getattr(AccEvaluator, name) for name in ("score", "_preprocess"))

    def evaluate(self, documents: Sequence[int], predictions: list[Any]) -> dict[str, Any]:
        """The evaluator's result, ``details`` included. A prediction that takes too long is noted, and emptied in
        ``predictions``; raises DataError."""
        data, answers = self._data, Answers(predictions, math.inf if self.compares_formulas else ANSWER_SECONDS)
        with config_errors(data.config, data.name, f"scoring with {self.kind.__name__}"):
            while (result := self._within_limits(documents, answers)) is None:
                predictions[:] = answers
        if "error" in result and not numbers(result):
            raise DataError(f"data set {data.name!r}: {self.kind.__name__} reports: {result['error']}")
        if self.compares_texts:
            pairs = zip(predictions, (self.references[document] for document in documents), strict=True)
            result["details"] = [{"correct": str(prediction) == str(reference)} for prediction, reference in pairs]
        return result

    def _within_limits(self, documents: Sequence[int], answers: Answers) -> dict[str, Any] | None:
        """None if an answer took the evaluator too long; that answer is empty now."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                return self._score(documents, answers, folder)
        except AnswerTimeout as error:
            self.lost.append((documents[answers.give_up()], str(error)))
            return None

    def _score(self, documents: Sequence[int], predictions: list[Any], folder: str) -> dict[str, Any]:
        rows = self._rows.select([self._positions[document] for document in documents])
        references = rows[self._column] if self._column is not None else None
        settings = {key: value for key, value in copy.deepcopy(dict(self._cfg["evaluator"])).items() if key != "type"}
        if {"predictions", "references"} <= set(inspect.signature(self.kind).parameters):
            settings |= {"predictions": predictions, "references": references}
        evaluator = self.kind(**settings)
        evaluator._out_dir = str(Path(folder) / "results")
        postprocess = getattr(evaluator, "pred_postprocess", None)
        available = {
            "predictions": postprocess(predictions) if postprocess is not None else predictions,
            "references": references,
            "test_set": rows,
            "origin_prompt": [self._data.questions[document][0].args[0] for document in documents],
            "gold": references,
            "prediction": predictions,
        }
        parameters = inspect.signature(evaluator.score).parameters.values()
        names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        missing = [name for name in names if name not in available]
        if missing:
            raise DataError(f"{self.kind.__name__} needs {', '.join(missing)}, which these answers do not have")
        return dict(evaluator.score(**{name: available[name] for name in names}))


def _postprocessor(cfg: Mapping[str, Any]) -> Any:
    """The function that a configuration names, with its arguments."""
    arguments = copy.deepcopy(dict(cfg))
    component = arguments.pop("type")
    if (function := resolve(component, "TEXT_POSTPROCESSORS")) is None:
        raise DataError(f"OpenCompass has no postprocessor {component!r}")
    return functools.partial(function, **arguments)
