"""`lmtool runs`: list runs, show one, compare or remove some, merge the adapters of one, or clear the cache."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.filesize import decimal

from lmtool.cli.arguments import TASKS_HELP, Json, RunName, TaskName
from lmtool.cli.help import argument, flag, folder_to_write, group, option, register
from lmtool.cli.output import (
    eprint,
    load_model,
    print_json,
    print_lines,
    print_picture,
    print_table,
    print_text,
    warn,
    warn_of_leaks,
)
from lmtool.cli.progress import Display
from lmtool.cli.settings import READ_OPTIONS, key_options, to_data, to_settings, with_stdin
from lmtool.errors import UsageError
from lmtool.printable import format_count, printable

if TYPE_CHECKING:
    from lmtool.apps.checking.cache import CacheEntryInfo
    from lmtool.recipe.spec.text import Data
    from lmtool.runs.directory import Run
    from lmtool.runs.listing import RunSummary
    from lmtool.runs.paired import PairedComparison

DROPPED = ("model", "recipe", "size", "started", "step")
"""Columns that are dropped on a narrow terminal, in this order. `lmtool runs show` has them all."""


def ls(json: Json = False) -> None:
    """List all runs, newest first.

    Examples:
    lmtool runs ls
    lmtool runs ls --json
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    from lmtool.runs.listing import summarize_all_runs
    from lmtool.runs.paths import runs_root

    summaries = summarize_all_runs()
    if json:
        print_json([asdict(summary) for summary in summaries], indent=1)
        return
    if not summaries:
        eprint(f"there are no runs yet in the folder {runs_root()}")
        return
    shown = {
        "result": _format_result,
        "started": lambda run: _format_time(run.started),
        "size": lambda run: decimal(run.bytes),
    }
    names = ("name", "step", "result", "started", "size", "state", "recipe", "model")
    cells = {name: [printable(str(shown.get(name, attrgetter(name))(run))) for run in summaries] for name in names}
    console, table = Console(), Table(box=None, pad_edge=False)
    widths = {name: max(map(cell_len, [name, *column])) for name, column in cells.items()}
    for name in DROPPED if console.is_terminal else ():
        if sum(widths.values()) + 2 * (len(widths) - 1) > console.width:
            del widths[name]
    for name, width in widths.items():
        table.add_column(name, justify="right" if name in ("step", "size") else "left", no_wrap=True, width=width)
    # Names are typed again, so they are never truncated: on a very narrow terminal lines wrap.
    console.width = max(console.width, sum(widths.values()) + 2 * len(widths))
    print_table(table, zip(*(cells[name] for name in widths), strict=True), console)


def show(run: RunName = "last", json: Json = False) -> None:
    """Show one run: its sessions, checkpoints and losses, drawn over the steps.

    Examples:
    lmtool runs show last
    lmtool runs show last --json
    """
    from lmtool.interop.resolve import resolve_reference
    from lmtool.runs.history import describe_training_data_of_lineage
    from lmtool.runs.listing import (
        describe_fingerprints_and_lineage,
        read_recipe_values,
        summarize_run,
        validation_part,
    )

    shown = resolve_reference(run).run
    summary = summarize_run(shown.path)
    if json:
        print_json(asdict(summary) | shown.info.model_dump(exclude={"checksum"}, exclude_unset=True), indent=1)
        return
    part = validation_part(read_recipe_values(shown)).replace("validation", "valid")
    facts = [
        ("name", summary.name),
        ("path", summary.path),
        ("state", summary.state),
        ("recipe", summary.recipe),
        ("model", summary.model),
        ("step", str(summary.step)),
        ("result", _format_result(summary)),
    ]
    for source, figures in summary.test.items():
        table = f" {source}".removesuffix(" test").strip()
        listed = ", ".join(f"{name.replace('_', ' ')} {_format_value(value)}" for name, value in figures.items())
        facts.append(("test", f"{table}: {listed}" if table else listed))
    facts += [
        (f"{part} loss", _format_loss(summary.valid_loss)),
        (f"lowest {part} loss", _format_loss(summary.best_valid_loss)),
        ("size", decimal(summary.bytes)),
    ]
    facts += [*describe_training_data_of_lineage(shown), *describe_fingerprints_and_lineage(shown)]
    for session in shown.info.sessions:
        began = "started" if session.step == 0 else f"resumed at step {session.step}"
        facts.append(("session", f"{_format_time(session.started)} {began}: {shlex.join(session.command)}"))
        facts.append(("", ", ".join(f"{k} {v}" for k, v in session.environment.items() if v is not None)))
    for checkpoint in summary.checkpoints:
        notes = [decimal(checkpoint.bytes), *(["best"] if checkpoint.best else []), checkpoint.problem]
        facts.append(("checkpoint", f"{checkpoint.name}: {', '.join(note for note in notes if note)}"))
    if summary.problem:
        facts.append(("problem", summary.problem))
    print_lines(*(f"{printable(name):21} {value}" for name, value in facts))
    if not summary.problem:
        _draw_losses(shown, held_out=part == "valid")


def _draw_losses(run: "Run", *, held_out: bool) -> None:
    """Draws the losses over the steps, as wide as the terminal, in ASCII without colours."""
    from lmtool.report.terminal import plot_lines
    from lmtool.runs.history import finite_number

    drawn: dict[str, list[tuple[float, float]]] = {"loss": [], "valid_loss": []}
    for record in run.metrics.read_records():
        for key, points in drawn.items():
            if (value := finite_number(record.get(key))) is not None:
                points.append((float(record["step"]), value))
    names = "training loss", "validation loss" if held_out else "loss of the rows trained on"
    named = zip(names, drawn.values(), strict=True)
    print_picture(partial(plot_lines, [(name, points) for name, points in named if len(points) > 1]))


@key_options(READ_OPTIONS)
def compare(
    runs: list[str] = argument("RUN", "Two runs or more, as for `show`.", ..., shown=True),
    test: list[str] | None = option(
        "TABLE", "Run them on the rows of this table: is the first better than each other? May be repeated."
    ),
    task: TaskName = "",
    tasks: str | None = option("NAME,...", TASKS_HELP),
    *,
    json: Json = False,
    **reading: Any,
) -> None:
    """Compare runs: best loss, bits per byte, tokens, time and speed, and what differs in their recipes.

    With --test or --tasks also row by row: the difference with its interval, and whether it is more than chance.

    Examples:
    lmtool runs compare tiny lstm
    lmtool runs compare tiny lstm --test test.csv
    lmtool runs compare tiny lstm --tasks bundled
    lmtool runs compare A B --json
    """
    from rich.console import Console
    from rich.table import Table

    from lmtool.interop.resolve import resolve_reference
    from lmtool.runs.history import (
        RunHistory,
        collect_summary_values,
        explain_indistinguishable_scores,
        find_differing_recipe_values,
    )
    from lmtool.storage.records import replace_nonfinite
    from lmtool.tasks.benchmarks import import_and_silence_lm_eval

    if len(runs) < 2:
        raise UsageError("one run cannot be compared", where=runs[0], fix="name a second run")
    settings = to_settings(reading)
    if settings and not test:
        raise UsageError(
            "this option says how a table is read, and none is named",
            where=settings[0].flag,
            fix="name one with --test",
        )
    (test,) = with_stdin("table", test)
    if tasks is not None:
        import_and_silence_lm_eval()
    histories = [RunHistory.from_run(resolve_reference(run).run) for run in runs]
    different = find_differing_recipe_values(histories)
    tested = [one for table in test or () for one in _compare_on_table(table, runs, task, to_data(settings))]
    tested += [] if tasks is None else _compare_on_tasks(tasks.split(","), runs, json)
    notes = explain_indistinguishable_scores(histories, has_paired_comparison=bool(tested))
    if json:
        summaries = [{"name": history.name} | history.summary() for history in histories]
        tests = {"tests": [one.to_json() for one in tested]} if tested else {}
        print_json(replace_nonfinite({"runs": summaries, "differences": different, "notes": notes} | tests), indent=1)
        return
    rows = [
        [name, *map(_format_value, values)] for name, values in (collect_summary_values(histories) | different).items()
    ]
    heading = ["", *(history.name for history in histories)]
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in heading:
        table.add_column(overflow="fold", style=None if name else "dim")
    print_table(table, [heading, *rows], Console())
    for note in notes:
        print_text(f"note\t{printable(note)}")
    for comparison in tested:
        print_lines(*comparison.format_lines())


def _compare_on_table(table: str, runs: Sequence[str], task: str, reading: "Data") -> "Iterator[PairedComparison]":
    """Compares the first run with each other one, row by row, on a table."""
    from lmtool.tasks.comparison import compare_row_scores, score_table_rows

    scored = []
    for run in runs:
        loaded = load_model(run, "auto", "float32")
        warn(loaded.reference.warnings)
        scored.append(score_table_rows(loaded, run, table, task, reading))
        warn_of_leaks(loaded, scored[-1].rows)
    return (compare_row_scores(table, scored[0], other) for other in scored[1:])


def _compare_on_tasks(names: list[str], runs: Sequence[str], quiet: bool) -> "Iterator[PairedComparison]":
    """Compares the first run with each other one, row by row, on each task of lm-eval."""
    from lmtool.tasks.benchmarks import (
        evaluate_lm_eval_tasks,
        iterate_row_names_and_answered_prompts,
        load_lm_eval_tasks,
    )
    from lmtool.tasks.comparison import compare_row_scores, extract_row_scores_by_task

    models = [load_model(run, "auto", "float32") for run in runs]
    tasks = load_lm_eval_tasks(names, models)
    texts, scored = list(iterate_row_names_and_answered_prompts(tasks)), []
    for run, loaded in zip(runs, models, strict=True):
        warn(loaded.reference.warnings)
        warn_of_leaks(loaded, texts)
        with Display(shown=True, quiet=quiet) as display:
            scored.append(extract_row_scores_by_task(run, evaluate_lm_eval_tasks(loaded, tasks, report=display.report)))
    return (compare_row_scores(name, scored[0][name], other[name]) for other in scored[1:] for name in other)


def _format_value(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.4f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(map(_format_value, value)) or "-"
    return str(value)


def merge(
    run: RunName,
    output: Path | None = option(
        "DIR", "The run directory; a new one in runs/ by default.", "--output", "-o", parser=folder_to_write
    ),
) -> None:
    """Merge the adapters of a run into the weights: a new run that predicts alike and needs no base run.

    Prints the new run directory.

    Examples:
    lmtool runs merge last -o runs/merged
    """
    from lmtool.interop.resolve import resolve_reference
    from lmtool.runs.merging import merge_adapters_into_new_run as make_merged

    adapted = resolve_reference(run)
    merged = make_merged(adapted, output, ["lmtool", *sys.argv[1:]])
    warn(adapted.warnings)
    print_text(merged)


def rm(
    runs: list[str] | None = argument("RUN", "Names or directories of runs or sweeps, or last."),
    older_than: str | None = option(
        "AGE", "Instead of RUN: all runs last used so long ago, such as 12h, 30d or 8w; imported ones stay."
    ),
    yes: bool = flag("Do not ask.", "--yes", "-y"),
) -> None:
    """Remove runs with all their checkpoints, after asking; of a sweep all runs. A run in use is never removed.

    Examples:
    lmtool runs rm 2026-11-20-tiny-7f3a last
    lmtool runs rm --older-than 30d --yes
    """
    from lmtool.apps.sweeping.folder import find_sweep, list_sweep_runs, remove_sweep_files_and_empty_folder
    from lmtool.runs import removal
    from lmtool.runs.listing import folder_size_bytes

    if bool(runs) == (older_than is not None):
        raise UsageError("give the runs to remove, or --older-than", fix="see lmtool runs rm --help")
    sweeps: dict[Path, list[Path]] = {}
    if older_than is None:
        found = {name: find_sweep(name) for name in runs or ()}
        sweeps = {folder: list_sweep_runs(folder) for folder in found.values() if folder is not None}
        alone = [name for name, folder in found.items() if folder is None]
        paths = removal.resolve_removable_runs([*alone, *(str(path) for inside in sweeps.values() for path in inside)])
    else:
        paths = removal.find_removable_runs_older_than(removal.parse_age(older_than))
        if not paths:
            eprint(f"no runs older than {older_than}")
            return
    lines = [f"{path}, {decimal(folder_size_bytes(path))}" for path in paths]
    if not yes and not _ask_confirmation(lines, f"remove {'it' if len(paths) == 1 else f'these {len(paths)} runs'}?"):
        return
    freed = 0
    for path in paths:
        size = removal.remove_run(path)
        freed += size
        print_lines(f"removed {path}, {decimal(size)} freed")
        if path.exists():
            eprint(f"kept in {path}: files that are not the run's")
    for folder, inside in sweeps.items():
        logs = [run.with_name(f"{run.name}.log") for run in inside]
        if not remove_sweep_files_and_empty_folder(folder, logs):
            eprint(f"kept in {folder}: files that are not the sweep's")
    if len(paths) > 1:
        print_lines(f"{decimal(freed)} freed in all")


def _ask_confirmation(lines: Sequence[str], question: str) -> bool:
    """Asks whether to remove what these lines name. Raises UsageError if there is no terminal to ask on."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nobody is there to be asked before anything is removed", fix="add --yes")
    eprint(*lines)
    typer.echo(f"{question} [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    eprint("nothing is removed")
    return False


def cache(
    kinds: list[str] | None = argument("KIND", "models, datasets, tokens, tokenizers, surveys, kernels or streams."),
    older_than: str | None = option("AGE", "Only what was last used so long ago, such as 12h, 30d or 8w."),
    clear: bool = flag("Remove what is listed, after asking.", "--clear"),
    yes: bool = flag("Do not ask.", "--yes", "-y"),
    *,
    json: Json = False,
) -> None:
    """Show what the cache holds, and how much; with KIND each entry of that kind. Or clear it.

    Removed entries are made, imported or downloaded again when they are needed. Entries that a process is making stay,
    and so do the base models of adapters.

    Examples:
    lmtool runs cache
    lmtool runs cache models
    lmtool runs cache tokens --older-than 30d --clear
    lmtool runs cache --clear --yes
    """
    from rich.console import Console
    from rich.table import Table

    from lmtool.apps.checking.cache import find_cache_entries, remove_cache_entry_or_explain
    from lmtool.runs.removal import parse_age
    from lmtool.storage.durable import cache_folder

    entries = find_cache_entries(kinds or (), None if older_than is None else parse_age(older_than))
    rows = _cache_rows(entries, single=bool(kinds))
    total = f"{decimal(sum(entry.size for entry in entries))} in {cache_folder()}"
    kept: dict[Path, str] = {}
    if clear and entries:
        if not yes and not _ask_confirmation([*map("\t".join, rows), total], "remove them?"):
            return
        kept = {entry.path: why for entry in entries if (why := remove_cache_entry_or_explain(entry))}
        eprint(*(f"kept {path}: {why}" for path, why in kept.items()))
    if json:
        records = [
            {"kind": entry.kind, "path": str(entry.path), "bytes": entry.size, "used": entry.last_used.isoformat()}
            | ({"removed": entry.path not in kept} if clear else {})
            for entry in entries
        ]
        print_json({"cache": str(cache_folder()), "entries": records}, indent=1)
    elif clear:
        print_lines(f"{decimal(sum(entry.size for entry in entries if entry.path not in kept))} freed")
    else:
        table = Table(box=None, pad_edge=False)
        for name in ("name",) if kinds else ("kind", "what", "entries"):
            table.add_column(name, overflow="fold", justify="right" if name == "entries" else "left")
        table.add_column("size", justify="right")
        table.add_column("last used")
        print_table(table, rows, Console())
        print_lines(total)


def _cache_rows(entries: "Sequence[CacheEntryInfo]", *, single: bool) -> list[list[str]]:
    """Returns table rows for the entries of the cache, or for their kinds, the last used first."""
    from lmtool.apps.checking.cache import CACHE_KINDS, describe_cache_entry

    if single:
        return [
            [printable(describe_cache_entry(one)), decimal(one.size), _format_time(one.last_used.isoformat())]
            for one in entries
        ]
    rows = []
    for kind in CACHE_KINDS:
        if some := [entry for entry in entries if entry.kind == kind]:
            size, last_used = decimal(sum(entry.size for entry in some)), _format_time(some[0].last_used.isoformat())
            rows.append([kind, CACHE_KINDS[kind].description, f"{len(some):,}", size, last_used])
    return rows


def _format_loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _format_result(summary: "RunSummary") -> str:
    """Formats the main result of a run with its metric, part and standard error."""
    if summary.value is None:
        return "-"
    part = "" if summary.part == "validation" else f"{summary.part} "
    error = "" if summary.standard_error is None else f" ± {summary.standard_error:.2g}"
    rows = f", {format_count(summary.rows, 'row')}" if summary.rows else ""
    return f"{part}{summary.metric} {summary.value:.{2 if summary.metric == 'bleu' else 4}f}{error}{rows}"


def _format_time(stamp: str) -> str:
    """Formats an ISO 8601 time as local time, to the minute."""
    from datetime import datetime

    try:
        return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return stamp or "-"


app = group(
    "List training runs, show one, compare or remove some, merge the adapters of one, or clear the cache.",
    *("lmtool runs ls", "lmtool runs show last", "lmtool runs rm --older-than 30d"),
)
for _command in (ls, show, compare, merge, rm, cache):
    register(app, _command.__name__, _command)
