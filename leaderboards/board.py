"""What a board shows: a title, the tasks that are its columns, and what it ranks by. Declared in ``boards/*.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from dare_bench.config import one_line, read_yaml
from dare_bench.errors import UsageError, unknown

FOLDER = Path(__file__).parent / "boards"


class _Scored(Protocol):
    @property
    def top_level(self) -> list[str]: ...


class TaskColumn(BaseModel):
    """One task of a board. Without ``metric`` ("metric,filter" as in lm-eval's files) its headline metric is taken."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    metric: str | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        return self.label or self.task


class Board(BaseModel):
    """A board's declaration.

    ``rank_by``: "mean" of all columns, "none", one of the tasks, or "auto": the mean where most rows have all tasks,
    else the task that most have. ``rows``: "checkpoint" puts runs of one checkpoint
    that were asked alike and have other tasks on one row, "run" gives each run its own.
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

    def columns(self, runs: Sequence[_Scored]) -> list[TaskColumn]:
        """The columns: those declared, or every task and group that any run has a score of."""
        if self.tasks != "all":
            return list(self.tasks)
        return [TaskColumn(task=task) for task in dict.fromkeys(task for run in runs for task in run.top_level)]


def column_names(columns: Sequence[TaskColumn]) -> list[str]:
    """The columns' names, no two alike: of one task with several metrics each tells its own."""
    names = [column.name for column in columns]
    several = [f"{column.name} {column.metric}" if names.count(column.name) > 1 else column.name for column in columns]
    return [name if several.count(name) == 1 else f"{name} ({at + 1})" for at, name in enumerate(several)]


def load_board(name: str) -> Board:
    """A board by its name in ``boards/`` or by the path of a YAML file.

    Raises:
        UsageError: no such board, a file that cannot be read, or a setting that is off.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = FOLDER / f"{name}.yaml"
        if not path.is_file():
            raise unknown("board", name, [file.stem for file in FOLDER.glob("*.yaml")])
    try:
        return Board.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UsageError(f"{path}: {one_line(error, 'a board')}") from error
