"""`lmtool sweep`: train with several values of keys, and compare the runs."""

import random
import shlex
import time
from pathlib import Path
from typing import Any

import typer

from lmtool.cli.arguments import TEXT_HELP, Json, Quiet
from lmtool.cli.help import argument, flag, folder_to_write, option
from lmtool.cli.output import eprint, print_json, print_table, print_text
from lmtool.cli.progress import Display
from lmtool.cli.settings import LABEL_OPTIONS, READ_OPTIONS, key_options, recipe_option, to_settings, with_stdin
from lmtool.cli.signals import StopAtStep
from lmtool.errors import UsageError
from lmtool.printable import format_count

_VALUES = "A key of the recipe and its values: A,B,C, whole numbers 2..6, or N numbers A..B/N. May be repeated."
_MINUTES = "Search for N minutes: all runs start, the better third continues. Without values, common ones are tried."


@key_options(READ_OPTIONS | LABEL_OPTIONS)
def sweep(
    data: list[str] = argument("TEXT|TABLE", f"What to train on, as for pretrain or finetune. {TEXT_HELP}", ...),
    recipe: str | None = recipe_option(None),
    values: list[str] | None = option("KEY=VALUES", _VALUES, "--set", "-s"),
    source: str | None = option("RUN", "The run that is trained further.", "--from"),
    *,
    seeds: int = option("N", "Seeds of each setting.", default=1, min=1, max=1000),
    one_at_a_time: bool = flag("Change one key at a time; all others keep their first value.", "--one-at-a-time"),
    minutes: float | None = option("N", _MINUTES, min=0.01),
    jobs: int | None = option("N", "Runs at once.", shown="one for each GPU or core", min=1, max=1000),
    output: Path | None = option(
        "DIR", "Directory of the sweep; a new one in runs/ by default.", "--output", "-o", parser=folder_to_write
    ),
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Train with each combination of values, and compare the runs by validation: a table, and a page.

    Ctrl-C saves and stops; the same command with -o DIR continues. The table lists runs that failed.

    Examples:
    lmtool sweep book.txt -r tiny -s optimizer.lr=0.001..0.1/5 -s training.steps=500 -o runs/rates
    lmtool sweep reviews.csv -r linear -s model.ngrams=1,2,3 --seeds 3
    lmtool sweep book.txt -r tiny -s model.residual=true,false -s model.d_ff=null,0 --one-at-a-time
    lmtool sweep reviews.csv --minutes 3
    """
    from lmtool.apps.sweeping.grid import (
        default_axes,
        list_grid_points,
        list_one_at_a_time_points,
        name_grid_point,
        parse_fixed_and_swept_settings,
    )
    from lmtool.recipe.load import check_settings, parse_settings
    from lmtool.recipe.resolve import resolve

    began = time.monotonic()
    (data,) = with_stdin("text or table", data)
    fixed, axes = parse_fixed_and_swept_settings(values or ())
    read_by = to_settings(options)
    # mistakes are reported before anything heavy is imported
    check_settings(parse_settings([*fixed, *(f"{key}={value}" for key, each in axes.items() for value in each)]))
    if recipe is not None:
        resolve(recipe, [*parse_settings([*fixed, *(f"{key}={each[0]}" for key, each in axes.items())]), *read_by])

    from rich.console import Console
    from rich.table import Table

    from lmtool.apps.sweeping.halving import train_by_halving
    from lmtool.apps.sweeping.results import get_validation_metric, make_results_table
    from lmtool.apps.sweeping.sweep import SharedRunArguments, Sweep, default_n_parallel_runs
    from lmtool.report.numbers import format_number
    from lmtool.runs.creation import make_run_path

    if twice := next((one for one in read_by if one.key in axes), None):
        raise UsageError(f"{twice.flag} and -s {twice.key} set the same key", fix="give one of them")
    with Display(True, quiet) as display:
        typed = SharedRunArguments(data, source, recipe, fixed, read_by)
        inputs, chosen = typed.resolve_for_all_runs(axes, display.report)
    usual = inputs.resolve_recipe({})
    if minutes is not None and seeds > 1:
        raise UsageError("a search trains with one seed", fix="search first, then train the best with several --seeds")
    if seeds > 1:
        axes = {"seed": [str(usual.seed + i) for i in range(seeds)], **axes}
    if not axes and minutes is None:
        fix = "give values, such as -s optimizer.lr=1e-4,1e-3,1e-2, or --seeds 3, or --minutes 3 for a search"
        raise UsageError("there is nothing to compare", fix=fix)
    axes = axes or default_axes(usual, inputs.source is not None)
    if one_at_a_time:
        points = list_one_at_a_time_points({key: axes[key] for key in axes if key != "seed"}, axes.get("seed", ()))
    else:
        points = list_grid_points(axes)
    choices = {name_grid_point(choice): choice for choice in points}
    recipes = {name: inputs.resolve_recipe(choice) for name, choice in choices.items()}
    if minutes is not None:
        default = next((name for name in choices if recipes[name] == usual), name_grid_point({}))
        # so that those that there is no time for are not all of one kind
        others = random.Random(usual.seed).sample([*choices], len(choices))
        choices = {default: {}} | {name: choices[name] for name in others}
    slots = min(len(choices), jobs or default_n_parallel_runs())
    folder, stop = output or make_run_path("sweep"), StopAtStep(notify=not quiet)
    n_ended = 0

    def print_run_end(name: str) -> None:
        nonlocal n_ended
        n_ended += 1
        if not quiet:
            eprint(f"{n_ended}: {name}, {this.describe_run_progress(name)}")

    commands = {name: inputs.build_command(choice) for name, choice in choices.items()}
    this = Sweep(folder, choices, commands, slots, stop.requested, print_run_end)
    this.check_and_create_folder()
    if not quiet:
        about = (
            f"sweep {folder}: {format_count(len(choices), 'run')}, {slots} at once; what they say is in {folder}/*.log"
        )
        eprint(*chosen.splitlines(), about)
    if not quiet and (in_use := this.list_locked_runs()):
        eprint(f"waiting until the processes of an earlier sweep have saved: {', '.join(in_use)}")
    this.wait_for_locked_runs()
    stop.open()
    try:
        if minutes is None:
            this.train(list(choices))
        else:
            train_by_halving(list(choices), slots, lambda: 60 * minutes - (time.monotonic() - began), this)
    except KeyboardInterrupt:
        eprint(f"stopped; the same command goes on, with -o {folder}")
    rows = this.rank_results()
    page, best = this.write_page_and_best_recipe(
        f"Sweep of {', '.join(key for key in axes if key != 'seed') or 'seeds'}", rows, axes
    )
    columns, cells = make_results_table(rows)
    if as_json:
        print_json({"keys": [*axes], "rows": [row.to_json_values() for row in rows], "page": str(page)}, indent=1)
    else:
        texts = [
            ["-" if cell is None else cell if isinstance(cell, str) else format_number(cell) for cell in row]
            for row in cells
        ]
        table = Table(*columns, box=None, pad_edge=False, show_header=False)
        print_table(table, [columns, *texts], Console())
        print_text(page)
    if stop.requested():
        raise typer.Exit(stop.exit_code)
    if not quiet and rows[0].runs:
        again = inputs.build_command(rows[0].point)
        if inputs.source is None:
            again = [*again[:2], "-r", str(best)]
        eprint(f"the best again: {shlex.join(again)}")
        if len({get_validation_metric(run)[1] for row in rows for run in row.runs}) == 1 < len(rows):
            eprint(
                "warning: every setting gave the same result: what varies has no effect here, or not in so few steps"
            )
        elif len(rows) > 1 and seeds == 1:
            eprint("one seed each: --seeds 3 shows how much of a difference is chance")
    if this.failures:
        raise typer.Exit(next(code for _, code in this.failures.values()))
