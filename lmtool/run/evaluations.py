"""What `lmtool eval` has measured of a run, kept in its directory: figures of data that it was not trained on."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from pydantic import RootModel

from lmtool import durable, records
from lmtool.errors import CheckpointError
from lmtool.records import FileModel
from lmtool.run.directory import EVALUATIONS, Run
from lmtool.run.files import Count, read


class SavedEvaluation(FileModel, extra="allow"):
    """Figures of one checkpoint on some data. source: names of its files. rows: of a table, else None."""

    __pydantic_extra__: dict[str, int | float | None]

    source: str
    step: Count
    rows: Count | None = None


SavedEvaluations = RootModel[list[SavedEvaluation]]
"""The content of evaluations.json, the last one at the end."""


def evaluations_of(run: Run) -> list[SavedEvaluation]:
    """What was measured of a run, the last one at the end. Raises CheckpointError when the file is damaged."""
    file = run.path / EVALUATIONS
    return (
        read(SavedEvaluations, file, "delete it: it is made anew by lmtool eval").root if os.path.lexists(file) else []
    )


def keep_evaluation(folder: Path, sources: Sequence[str], known: Sequence[str], figures: Mapping[str, object]) -> None:
    """Keep figures in a run directory, in place of earlier ones of the same data and step, if it can be written.

    sources: the files that they are of, as named. known: those of training and validation, for which none are kept.
    figures: with "step"; those that are not plain numbers are left out.
    """
    if any(_is_known(source, name) for source in sources for name in known):
        return
    plain = {name: value for name, value in figures.items() if _is_number(value) or value is None}
    found = SavedEvaluation.model_validate(
        {**records.finite(plain), "source": ", ".join(map(os.path.basename, sources))}
    )
    with suppress(CheckpointError, OSError):
        run = Run.open(folder)
        earlier: list[SavedEvaluation] = []
        with suppress(CheckpointError):
            earlier = evaluations_of(run)
        kept = [other for other in earlier if (other.source, other.step) != (found.source, found.step)]
        content = [other.model_dump(exclude_unset=True) for other in (*kept, found)]
        durable.replace(folder / EVALUATIONS, records.encode(content))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_known(source: str, name: str) -> bool:
    """Whether a source is one that a run was trained on, or in a folder or among the files of a pattern that was."""
    inside = os.path.realpath(source).startswith(os.path.join(os.path.realpath(name), ""))
    return inside or fnmatch(os.path.basename(os.path.normpath(source)), os.path.basename(os.path.normpath(name)))
