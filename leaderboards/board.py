"""The declaration of a board, ``boards/*.yaml``: a title, the tasks that are its columns, and what it ranks by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from dare_bench.config import one_line, read_yaml
from dare_bench.errors import UsageError, unknown

if TYPE_CHECKING:
    from dare_bench.leaderboards.entries import BoardEntry

FOLDER = Path(__file__).parent / "boards"


class TaskColumn(BaseModel):
    """One task of a board. Without ``metric`` ("metric,filter" as in lm-eval's files) it shows the headline metric.
    ``ranked``: is it part of the mean that ranks, and may a row not lack it?"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    metric: str | None = None
    label: str | None = None
    ranked: bool = True

    @property
    def name(self) -> str:
        return self.label or self.task


class Board(BaseModel):
    """A board's declaration.

    ``rank_by``: "mean" of all columns, "none", one of the tasks, or "auto": the mean if at least half of the rows have
    all tasks, otherwise the task that most rows have. ``rows``: "checkpoint" combines runs of one checkpoint with the
    same settings and different tasks into one row, "run" gives each run a separate row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    about: str = ""
    tasks: Literal["all"] | tuple[TaskColumn, ...] = "all"
    rank_by: str = "mean"
    rows: Literal["checkpoint", "run"] = "checkpoint"

    @field_validator("tasks", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        """A task may be written as its name alone."""
        return [{"task": v} if isinstance(v, str) else v for v in value] if isinstance(value, list) else value

    @field_validator("tasks")
    @classmethod
    def _each_once(cls, value: Literal["all"] | tuple[TaskColumn, ...]) -> Literal["all"] | tuple[TaskColumn, ...]:
        if value != "all":
            keys = [(column.task, column.metric) for column in value]
            if not keys or len(set(keys)) < len(keys):
                raise ValueError("name at least one task, and each task and metric once")
        return value

    @model_validator(mode="after")
    def _ranks_by_a_column(self) -> Board:
        if self.tasks == "all":
            return self
        allowed = ["mean", "none", "auto", *(column.task for column in self.tasks)]
        if self.rank_by not in allowed:
            raise ValueError(f"rank_by is {self.rank_by!r}; allowed: {', '.join(allowed)}")
        return self

    def ranked(self, columns: Sequence[TaskColumn]) -> list[int]:
        """The numbers of the columns that rank: one task's, all of a mean, or none."""
        if self.rank_by == "mean":
            return [at for at, column in enumerate(columns) if column.ranked]
        return [at for at, column in enumerate(columns) if column.task == self.rank_by][:1]

    def columns(self, runs: Sequence[BoardEntry]) -> list[TaskColumn]:
        """The declared columns, or every task and group that any run has a score of; those that only external results
        have are not ranked."""
        if self.tasks != "all":
            return list(self.tasks)
        ours = {task for run in runs if not run.is_external for task in run.top_level}
        every = dict.fromkeys(task for run in runs for task in run.top_level)
        return [TaskColumn(task=task, ranked=task in ours or not ours) for task in every]


def column_names(columns: Sequence[TaskColumn]) -> list[str]:
    """A unique name for each column: columns of one task with several metrics name the metric."""
    names = [column.name for column in columns]
    names = [f"{column.name} {column.metric}" if names.count(column.name) > 1 else column.name for column in columns]
    return [name if names.count(name) == 1 else f"{name} ({at + 1})" for at, name in enumerate(names)]


def load_board(source: str | Mapping[str, Any]) -> Board:
    """A board by its name in ``boards/``, by the path of a YAML file, or of its fields.

    Raises:
        UsageError: no such board, a file that cannot be read, or a setting that is not allowed.
    """
    fields, where = source, ""
    if isinstance(source, str):
        path = Path(source)
        if path.suffix not in (".yaml", ".yml"):
            path = FOLDER / f"{source}.yaml"
            if not path.is_file():
                raise unknown("board", source, [file.stem for file in FOLDER.glob("*.yaml")])
        fields, where = read_yaml(path), f"{path}: "
    try:
        return Board.model_validate(fields)
    except ValidationError as error:
        raise UsageError(f"{where}{one_line(error, 'a board')}") from error
