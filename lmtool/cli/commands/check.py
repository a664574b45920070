"""`lmtool check`: verify a run, or look for what ruins training in a table or a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.cli.arguments import Json, Quiet
from lmtool.cli.help import argument, flag, option
from lmtool.cli.output import check_new, open_model, put, put_json, tell
from lmtool.cli.progress import Display
from lmtool.cli.settings import LABELS, READING, Column, Overrides, sets, settings_in, stated_labels
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from lmtool.checks.check import Checked
    from lmtool.inference.load import Loaded
    from lmtool.recipe.load import Setting
    from lmtool.tokenization.tokenizer import Tokenizer

MOST = 20
"""Damaged files, and rows, that are listed."""

NEAR = 0.95
"""Cosine similarity from which rows are nearly equal."""


@sets(READING | LABELS)
def check(
    names: list[str] | None = argument("RUN|TABLE|TEXT", "A run, a table, texts, or a folder of tokens."),
    valid: list[str] | None = option("FILE", "Validation text or table. May be repeated."),
    test: str | None = option("TABLE", "Test table."),
    tokenizer: str | None = option("RUN", "Is the text in the language of this run's or file's tokenizer?"),
    column: Column = None,
    fix: Path | None = option("FILE", "Write the table without duplicates, contradictions and leaks to a new file."),
    run: str | None = option("RUN", "List rows whose vectors by this model are nearly equal; --fix removes them too."),
    near: float | None = option("X", "From which cosine similarity on, with --run.", shown="0.95", min=0.0, max=1.0),
    *,
    overrides: Overrides = None,
    with_cache: bool = flag("Verify the cache of tokens too.", "--cache"),
    strict: bool = flag("Any finding is an error, exit code 3.", "--strict"),
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Verify every file of a run; or look in a table or a text for what ruins training before it starts.

    Duplicates, rows or text that are held out and trained on, labels that contradict each other, cut texts.

    Examples:
    lmtool check last
    lmtool check reviews.csv --test test.csv
    lmtool check reviews.csv --test test.csv --fix clean.csv
    lmtool check book.txt --tokenizer last --json
    """
    from lmtool.interop.names import HUB
    from lmtool.interop.reference import run_of

    if not names and not with_cache:
        raise UsageError("nothing to check", fix="name a run, a table or a text; or --cache")
    if names and len(names) == 1 and not names[0].startswith(HUB):  # there a name is of a dataset
        names = [run_of(names[0])]
    texts = ("data.train", names, "TEXT"), ("data.valid", valid, "--valid"), ("data.column", column, "--column")
    if run is None and near is not None:
        raise UsageError("--near compares vectors of a model", fix="name it: --run RUN")
    check_new(fix)
    others = *texts, ("data.test", test, "--test"), stated_labels(options.pop("labels"))
    settings = settings_in(options, READING, *others, overrides=overrides)
    reports = []
    if names:
        loaded = None if run is None else open_model(run, "auto", "float32")
        likeness = (loaded, NEAR if near is None else near) if fix or run else None
        reports.append(_look(names, settings, tokenizer, quiet, likeness))
        if likeness and len(reports[0].tables) != 1:
            what = f"{'--fix' if fix else '--run'} is for one table with labels, not for a {reports[0].subject}"
            raise UsageError(what, fix="name one, and its columns with --text-column and --label-column")
    if with_cache:
        from lmtool.checks.check import check_cache

        reports.append(check_cache())
    for checked in reports:
        _show(checked, as_json)
    if fix:
        from lmtool.checks.fixing import removals, write_fixed

        (parts,) = reports[0].tables
        gone = {one.row: one for one in (*reports[0].near, *reversed([*removals(parts)]))}
        n_gone, log = write_fixed(parts["train"], gone, fix)
        (tell if as_json else put)(f"fixed    {fix}: without {n_gone:,} rows, which {log} lists")
    for checked in reports:
        checked.refuse(strict=strict)


def _look(
    names: list[str],
    settings: "list[Setting]",
    tokenizer: str | None,
    quiet: bool,
    likeness: "tuple[Loaded | None, float] | None",
) -> "Checked":
    from lmtool.checks import check as checking
    from lmtool.recipe.load import load
    from lmtool.training.finetuning import named_kind

    recipe = load("linear", [setting for setting in settings if setting.key != "objective.kind"]).recipe
    data = recipe.data
    if likeness:
        recipe = recipe.with_values({"data.valid_fraction": 0.0})  # all rows that are not in a table of their own
    is_text = any(setting.key == "data.column" for setting in settings)
    with Display(shown=True, quiet=quiet) as display:
        match checking.subject_of(names, data, is_text=is_text):
            case "run":
                return checking.check_run(names[0], display.report)
            case "tokens":
                return checking.check_tokens(Path(names[0]))
            case "table":
                return checking.check_labelled(recipe, named_kind(settings), *_tokenizer(tokenizer), likeness)
        return checking.check_text(data, recipe.seed, *_tokenizer(tokenizer), display.report)


def _tokenizer(name: str | None) -> "tuple[Tokenizer | None, float | None]":
    """A tokenizer, and the bytes that its tokens had in the text of its run, where these are known."""
    from lmtool.interop.reference import tokenizer_path
    from lmtool.run.directory import Run
    from lmtool.run.paths import INFO
    from lmtool.tokenization.tokenizer import Tokenizer

    if name is None:
        return None, None
    path = Path(tokenizer_path(name))
    folder = path if path.is_dir() else path.parent
    data = Run.open(folder).info.data if (folder / INFO).exists() else None
    return Tokenizer.load(path), None if data is None else data.bytes_per_token


def _show(checked: "Checked", as_json: bool) -> None:
    if as_json:
        put_json(checked.record)
        return
    put(*(f"{checked.subject:8} {line}" for line in checked.lines))
    put(*(f"damaged  {path}: {problem}" for path, problem in checked.damage[:MOST]))
    if len(checked.damage) > MOST:
        put(f"damaged  {len(checked.damage) - MOST:,} more; --json lists all")
    for notice in checked.notices:
        is_named = notice.text.startswith(notice.kind.split()[0])
        put(f"found    {'' if is_named else f'{notice.kind}: '}{notice}")
    put(*(f"near     {removal.describe()}" for removal in checked.near[:MOST]))
    if not checked.damage and not checked.notices:
        put("nothing found")
