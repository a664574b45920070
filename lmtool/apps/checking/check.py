"""Checks runs, tables, texts and token stores before training: `lmtool check`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtool.compute.device import CPU
from lmtool.data.cached import find_damaged_entries
from lmtool.data.files import find_files
from lmtool.data.hub import HUB_PREFIX
from lmtool.data.notices import Notice
from lmtool.data.prepare import compute_tokenized_fingerprint, open_and_split_texts
from lmtool.data.store import STORE_MANIFEST, TokenStore
from lmtool.data.survey import Progress
from lmtool.data.text_problems import find_text_problems
from lmtool.errors import CheckpointError, DataError, LmtoolError
from lmtool.printable import format_count
from lmtool.recipe.spec.objective import RowSpec
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import Data
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.damage import find_damaged_run_files
from lmtool.runs.directory import CHECKPOINTS, Run
from lmtool.runs.find import find_run, find_run_directory, find_run_path_even_damaged
from lmtool.runs.load import load_trained_model
from lmtool.runs.reference import Reference, read_verified_tokenizer
from lmtool.storage.durable import cache_folder
from lmtool.tasks.build import get_row_kind
from lmtool.tasks.prepare import (
    OpenedTaskTables,
    check_tables,
    open_training_tables,
    parse_tables_and_weights,
    read_and_encode_tables,
)
from lmtool.tasks.subject import STORE_FOLDERS, Subject
from lmtool.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer


@dataclass(frozen=True)
class CheckResult:
    """The result of a check. damage: unusable files, and why. notices: findings. lines: what was checked."""

    subject: Subject | Literal["cache"]
    name: str
    lines: tuple[str, ...]
    damage: tuple[tuple[Path, str], ...]
    notices: tuple[Notice, ...]

    @property
    def json_record(self) -> dict[str, object]:
        """Returns the result as JSON values."""
        return {
            "subject": self.subject,
            "name": self.name,
            "findings": [{"kind": one.kind, "count": one.count, "text": one.text} for one in self.notices],
            "damage": [{"path": str(path), "problem": problem} for path, problem in self.damage],
        }

    def raise_for_problems(self, *, strict: bool) -> None:
        """Raises CheckpointError for a damaged run, DataError for damaged tokens, and with `strict` for any notice."""
        if self.damage:
            path, problem = self.damage[0]
            n = len(self.damage)
            what = f"{format_count(n, 'problem makes', 'problems make')} files unusable; the first: {problem}"
            if self.subject == "run":
                fix = "restore these files from a copy, or name an intact checkpoint, RUN@STEP"
                raise CheckpointError(what, where=str(path), fix=fix)
            fix = "nothing: they are made anew when they are needed" if self.subject == "cache" else "make it anew"
            raise DataError(what, where=str(path), fix=fix)
        if strict and self.notices:
            n = len(self.notices)
            what = f"{format_count(n, 'finding')}, and --strict allows none"
            raise DataError(what, where=self.name, fix="mend the data, or omit --strict")


def check_token_stores(folder: Path) -> CheckResult:
    """Checks the token stores of a folder."""
    stores = [folder / part for part in STORE_FOLDERS if (folder / part / STORE_MANIFEST).exists()]
    damage = []
    for store in stores:
        try:
            TokenStore(store).verify()
        except DataError as error:
            damage.append((store, error.what))
    if (folder / TOKENIZER_FILE).exists():
        try:
            Tokenizer.load(folder)
        except CheckpointError as error:
            damage.append((folder / TOKENIZER_FILE, error.what))
    return CheckResult("tokens", str(folder), tuple(map(str, stores)), tuple(damage), ())


def check_cache() -> CheckResult:
    """Checks all entries of the cache."""
    where = str(cache_folder())
    return CheckResult("cache", where, (where,), tuple(find_damaged_entries()), ())


def check_text(
    data: Data, seed: int, tokenizer: Tokenizer | None, usual_bytes_per_token: float | None, report: Progress
) -> CheckResult:
    """Checks the text that `data` names against its validation text, or the part that `seed` would hold out."""
    whole = data.with_unvalidated_values({"stream": False})
    ((train, valid),), data = open_and_split_texts(whole, seed=seed, report=report)
    notices = tuple(find_text_problems(train, valid, tokenizer, usual_bytes_per_token, brief=False))
    survey = train.text.counts
    kind = "one text" if data.split == "slice" else format_count(survey.documents, "document")
    held = ", ".join(data.valid) or f"{100 * data.valid_fraction:g} % of it"
    line = f"{kind}, {survey.characters:,} characters; validation: {held}"
    return CheckResult("text", ", ".join(data.train), (line,), (), notices)


def check_labelled_tables(
    recipe: Recipe, tables: Sequence[OpenedTaskTables], tokenizer: Tokenizer | None, usual_bytes_per_token: float | None
) -> CheckResult:
    """Checks the opened tables of a recipe; see `check_tables`."""
    lines, notices = check_tables(recipe, tables, tokenizer, usual_bytes_per_token)
    return CheckResult("table", ", ".join(recipe.data.train), tuple(lines), (), tuple(notices))


def check_run(name: str, report: Progress) -> CheckResult:
    """Checks every file of a run: checksums, records, recipe, tokenizer and weights of each checkpoint; and whether the
    training data, if they exist, are unchanged.

    Raises CheckpointError when there is no such run, or when it has not the checkpoint that is named.
    """
    path = find_run_path_even_damaged(name) or find_run_directory(name)
    damage = dict.fromkeys(find_damaged_run_files(path))
    lines, notices = [str(path)], []
    try:
        run = Run.open(path)
    except CheckpointError:
        return CheckResult("run", name, tuple(lines), tuple(damage), ())
    find_run(name)  # a checkpoint that is named must be there
    try:
        tokenizer = read_verified_tokenizer(run)
    except CheckpointError as error:
        damage[run.tokenizer_path, error.what] = None
        return CheckResult("run", name, tuple(lines), tuple(damage), ())
    recipe = None
    for _, folder in checkpoints.list_checkpoints(path / CHECKPOINTS):
        reference = Reference(run, folder)
        try:
            step = reference.checkpoint.step
        except CheckpointError:
            continue  # already told
        try:
            recipe = reference.recipe
            notices += [Notice("recipe.yaml unusable", 1, doubt) for doubt in reference.warnings]
            load_trained_model(reference, CPU)
            lines.append(f"step {step}: recipe, tokenizer and weights fit")
        except LmtoolError as error:
            damage[Path(error.where) if error.where.startswith(str(path)) else folder, error.what] = None
    if recipe is not None and run.info.origin is None:
        changed = list(_find_changed_training_data(run, recipe, tokenizer, report))
        notices += changed
        lines += [] if changed else ["training data: unchanged, or no longer there"]
    return CheckResult("run", name, tuple(lines), tuple(damage), tuple(dict.fromkeys(notices)))


def _find_changed_training_data(run: Run, recipe: Recipe, tokenizer: Tokenizer, report: Progress) -> Iterator[Notice]:
    """Yields a notice if the training data exist, and are not those that the run was started with."""
    if not is_data_on_disk(recipe.data):
        return
    try:
        if isinstance(recipe.objective, RowSpec):
            tables = open_training_tables(recipe.data, get_row_kind(recipe.objective))
            _, rows = read_and_encode_tables(recipe, tables, tokenizer, run.saved_split)
            fingerprint = rows.fingerprint
        else:
            fingerprint = compute_tokenized_fingerprint(recipe.data, tokenizer, seed=recipe.seed, report=report)
    except LmtoolError as error:
        yield Notice("training data unusable", 1, f"the training data can no longer be read: {error.what}")
        return
    if fingerprint != run.info.fingerprints.data:
        what = ", ".join((*recipe.data.train, *recipe.data.tasks, *recipe.data.valid))
        text = f"the training data have changed since the run was started, so it cannot be resumed: {what[:200]}"
        yield Notice("training data changed", 1, text)


def is_data_on_disk(data: Data) -> bool:
    """Returns whether all files of `data` exist; does not download datasets."""
    try:
        tables = [table for table, _ in parse_tables_and_weights(data).values()]
        sources = [*data.sources, *tables, *data.valid, *([data.test] if data.test else [])]
        return all(not source.startswith(HUB_PREFIX) and find_files(source) for source in sources)
    except LmtoolError:
        return False
