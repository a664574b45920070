"""`lmtool check`: verify a run, or look in a table or text for problems that would ruin training."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.cli.arguments import Json, Quiet
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import check_new, load_model, print_json, print_lines
from lmtool.cli.progress import Display
from lmtool.cli.settings import LABEL_OPTIONS, READ_OPTIONS, Column, Overrides, key_options, to_settings, with_stdin
from lmtool.errors import ResourceError, UsageError
from lmtool.printable import align_columns, format_count

if TYPE_CHECKING:
    from lmtool.apps.checking.check import CheckResult
    from lmtool.recipe.load import Setting
    from lmtool.recipe.spec.recipe import Recipe
    from lmtool.tokenization.tokenizer import Tokenizer

NEAR = 0.95
"""Cosine similarity from which on rows are nearly equal."""

MOST = 20
"""Damaged files that are listed."""


@key_options(READ_OPTIONS | LABEL_OPTIONS)
def check(
    names: list[str] | None = argument("RUN|TABLE|TEXT", "A run, a table, texts, or a folder of tokens."),
    valid: list[str] | None = option("FILE", "Validation text or table. May be repeated."),
    test: str | None = option("TABLE", "Test table."),
    tokenizer: str | None = option("RUN", "Check whether the text fits the tokenizer of this run or file."),
    column: Column = None,
    fix: Path | None = option(
        "FILE", "Write the table without duplicates, contradictions and leaks to a new file.", parser=file_to_write
    ),
    run: str | None = option(
        "RUN", "Another way to name the run. With --fix, also drop rows whose vectors by this run are nearly equal."
    ),
    near: float | None = option("X", "Minimum similarity of nearly equal rows.", shown=str(NEAR), min=0.0, max=1.0),
    *,
    overrides: Overrides = None,
    with_cache: bool = flag("Verify the cache of tokens too.", "--cache"),
    with_device: bool = flag("Compare every fast computation on this machine with the plain one.", "--device"),
    strict: bool = flag("Any finding is an error, exit code 3.", "--strict"),
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Verify every file of a run, or look in a table or text for problems that would ruin training.

    It finds duplicates, held-out rows or text in the training data, contradictory labels, and truncated texts.

    Examples:
    lmtool check last
    lmtool check reviews.csv --test test.csv
    lmtool check reviews.csv --test test.csv --fix clean.csv
    lmtool check book.txt --tokenizer last --json
    lmtool check --device
    """
    from lmtool.data.files import name_without_compression
    from lmtool.interop.references import HUB_PREFIX
    from lmtool.interop.resolve import import_if_published

    if run is not None and fix is None and not names:
        names, run = [run], None
    names, valid, test = with_stdin("text or table", names, valid, test)
    if with_device:
        _check_device(as_json)
    if not names and (fix is not None or not (with_cache or with_device)):
        raise UsageError("nothing to check", fix="name a run, a table or a text; or --cache or --device")
    if names and len(names) == 1 and not names[0].startswith(HUB_PREFIX):  # there a name is of a dataset
        names = [import_if_published(names[0])]
    if run is not None and fix is None:
        raise UsageError("--run needs --fix, which then drops nearly equal rows", fix="name a new file: --fix FILE")
    if near is not None and run is None:
        raise UsageError("--near needs --run, whose vectors are compared", fix="name one: --run RUN")
    if fix is not None and names and Path(names[0]).is_dir():
        raise UsageError("--fix needs a table, not a folder", where=names[0], fix="name a table")
    log = None if fix is None else fix.with_suffix(".removed.jsonl")
    if fix is not None and names:
        check_new(fix, *filter(None, [Path(name_without_compression(Path(names[0]))).suffix]))
        check_new(log)
    texts = ("data.train", names, "TEXT"), ("data.valid", valid, "--valid"), ("data.column", column, "--column")
    others = *texts, ("data.test", test, "--test")
    settings = to_settings(options, READ_OPTIONS, *others, overrides=overrides)
    recipe = None
    if fix is not None:
        from lmtool.apps.checking.fixing import open_fixable_table, write_cleaned_table
        from lmtool.recipe.load import parse_settings

        # no rows are held out of the table that is fixed
        recipe = _load_recipe([*settings, *parse_settings(["data.valid_fraction=0"])])
        open_fixable_table(recipe)  # raises before anything is printed
    reports = [_check_subject(names, settings, tokenizer, quiet)] if names else []
    if with_cache:
        from lmtool.apps.checking.check import check_cache

        reports.append(check_cache())
    for checked in reports:
        _print_check(checked, as_json)
    if recipe is not None and fix is not None and log is not None:
        model = None if run is None else load_model(run, "auto", "float32")
        min_similarity = NEAR if near is None else near
        n_gone = write_cleaned_table(recipe, fix, log, embedding_model=model, min_similarity=min_similarity)
        if as_json:
            print_json({"fixed": str(fix), "log": str(log), "removed": n_gone})
        else:
            print_lines(f"fixed    {fix}: without {format_count(n_gone, 'row')}, listed in {log}")
    for checked in reports:
        checked.raise_for_problems(strict=strict)


def _check_device(as_json: bool) -> None:
    from lmtool.apps.checking.device import check_fast_paths
    from lmtool.compute.device import configure_compute

    compute = configure_compute("auto", "auto")
    compared = list(check_fast_paths(compute.device))
    if as_json:
        print_json({"device": compute.describe(), "ways": [way._asdict() for way in compared]})
    else:
        print_lines(compute.describe())
        times = [["-" if s is None else f"{1000 * s:.2f} ms" for s in (way.fast, way.plain)] for way in compared]
        rows = [(way.name, *of_way, way.verdict) for way, of_way in zip(compared, times, strict=True)]
        print_lines(*align_columns([("way", "fast", "plain", "result"), *rows], 4))
    if faults := [way.name for way in compared if way.verdict != "same"]:
        what = f"some fast ways of computing do not work here: {', '.join(faults)}"
        fix = "use --precision float32 if matrices are among them; the others are then not used by themselves"
        raise ResourceError(what, fix=fix)


def _check_subject(names: list[str], settings: "list[Setting]", tokenizer: str | None, quiet: bool) -> "CheckResult":
    from lmtool.apps.checking import check as checking
    from lmtool.tasks.subject import infer_subject_kind
    from lmtool.training.finetuning import open_finetuning_tables

    recipe = _load_recipe(settings)
    data = recipe.data
    is_text = any(setting.key == "data.column" for setting in settings)
    with Display(shown=True, quiet=quiet) as display:
        match infer_subject_kind(names, data, is_text=is_text, infer_labels_from_cells=True):
            case "run":
                return checking.check_run(names[0], display.report)
            case "tokens":
                return checking.check_token_stores(Path(names[0]))
            case "table":
                return checking.check_labelled_tables(*open_finetuning_tables(settings), *_load_tokenizer(tokenizer))
        return checking.check_text(data, recipe.seed, *_load_tokenizer(tokenizer), display.report)


def _load_recipe(settings: "list[Setting]") -> "Recipe":
    from lmtool.recipe.load import load

    return load("linear", [setting for setting in settings if setting.key != "objective.kind"]).recipe


def _load_tokenizer(name: str | None) -> "tuple[Tokenizer | None, float | None]":
    """A tokenizer, and the bytes that its tokens had in the text of its run, where these are known."""
    from lmtool.interop.resolve import find_tokenizer_path
    from lmtool.runs.directory import Run
    from lmtool.runs.paths import RUN_INFO_FILE
    from lmtool.tokenization.tokenizer import Tokenizer

    if name is None:
        return None, None
    path = Path(find_tokenizer_path(name))
    folder = path if path.is_dir() else path.parent
    data = Run.open(folder).info.data if (folder / RUN_INFO_FILE).exists() else None
    return Tokenizer.load(path), None if data is None else data.bytes_per_token


def _print_check(checked: "CheckResult", as_json: bool) -> None:
    if as_json:
        print_json(checked.json_record)
        return
    print_lines(*(f"{checked.subject:8} {line}" for line in checked.lines))
    print_lines(*(f"damaged  {path}: {problem}" for path, problem in checked.damage[:MOST]))
    if len(checked.damage) > MOST:
        print_lines(f"damaged  {len(checked.damage) - MOST:,} more; --json lists all")
    for notice in checked.notices:
        is_named = notice.text.startswith(notice.kind.split()[0])
        print_lines(f"found    {'' if is_named else f'{notice.kind}: '}{notice}")
    if not checked.damage and not checked.notices:
        print_lines("nothing found")
