"""`lmtool plan`: what training takes before it is begun."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli import pretrain
from lmtool.cli.arguments import TEXT_HELP, Column, Json, Overrides, Quiet
from lmtool.cli.pretrain import Epochs, Minutes, Tokens, Valid
from lmtool.cli.progress import count, scaled

if TYPE_CHECKING:
    from lmtool.inference.base import Base
    from lmtool.recipe.load import Setting
    from lmtool.training.planning import Forecast, Planned


def plan(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|TABLE|RECIPE",
            help="What would be trained on, as for pretrain or finetune; and a recipe, or that alone.",
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", metavar="NAME", help="The recipe, if it is not named before.", show_default=""),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help=f"A text beside those named. {TEXT_HELP}", show_default=False),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="The run that would be trained further.", show_default=False),
    ] = None,
    valid: Valid = None,
    column: Column = None,
    minutes: Minutes = None,
    epochs: Epochs = None,
    tokens: Tokens = None,
    devices: Annotated[int, typer.Option(metavar="N", min=1, help="Devices that share each batch.")] = 1,
    device_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="h100, a100, rtx4090 and others; this machine by default.", show_default=False
        ),
    ] = None,
    utilization: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the peak that a device of this kind reaches.")
    ] = 0.4,
    overrides: Overrides = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what training takes before it is begun: parameters, FLOPs, memory, steps, time.

    Of a text, a labelled table, or a recipe alone. On this machine, a second or two of steps are measured; nothing is
    kept but the tokens of the text.
    """
    from lmtool.cli.progress import Display
    from lmtool.errors import UsageError
    from lmtool.recipe.load import settings_of

    recipes = [*filter(_is_recipe, names or ()), *filter(None, [recipe])]
    sources = [*(name for name in names or () if name not in recipes), *(text or ())]
    if len(recipes) > 1:
        raise UsageError(f"a plan is of one recipe, not of {' and '.join(recipes)}", fix="name one of them")
    flags = pretrain.settings(sources, valid, column, minutes=minutes, epochs=epochs, tokens=tokens)
    planned, base = _planned(recipes[0] if recipes else None, source, settings_of(overrides or (), flags))

    from lmtool.training.planning import forecast_of

    with Display(shown=True, quiet=quiet) as display:
        found = forecast_of(
            planned, base, n_devices=devices, kind=device_kind, utilisation=utilization, report=display.report
        )
    if as_json:
        typer.echo(json.dumps(found.record()))
        return
    for line in _lines(found):
        typer.echo(line)


def _is_recipe(name: str) -> bool:
    """Whether a recipe is named rather than a text; where there is neither, what the name is like decides."""
    from lmtool.recipe.load import near, shipped
    from lmtool.text.files import FORMATS, nearby
    from lmtool.text.hub import PREFIX

    if name in shipped() or name.endswith((".yaml", ".yml")):
        return True
    is_other = name == "last" or os.path.exists(name) or name.startswith(PREFIX) or name.endswith(FORMATS)
    return not is_other and bool(near(name)) and not nearby(Path(name))


def _planned(recipe: str | None, source: str | None, settings: "list[Setting]") -> "tuple[Planned, Base | None]":
    """What `lmtool finetune` would train, where recipe or data are for it, or else `pretrain`; and the run it is on."""
    from lmtool.errors import UsageError
    from lmtool.interop.reference import run_of, with_runs
    from lmtool.recipe.load import load
    from lmtool.training.checking import subject_of
    from lmtool.training.start import is_for_tables, plan_finetuning

    scratch = None if recipe is None else load(recipe, settings)
    if scratch is not None:
        sources = [*scratch.recipe.data.sources, *scratch.recipe.data.tasks]
        is_table = is_for_tables(scratch.recipe)
    else:
        about_data = [setting for setting in settings if setting.key.startswith("data.")]
        data = load("linear", about_data).recipe.data
        sources = [*data.sources, *data.tasks]
        if not sources:
            raise UsageError("nothing to plan", fix="name a text, a table or a recipe: lmtool plan book.txt")
        subject = subject_of(data.train, data, is_text=any(setting.key == "data.column" for setting in about_data))
        if subject == "run":
            raise UsageError("a run is planned on a text or a table", fix=f"lmtool plan TEXT --from {data.train[0]}")
        is_table = subject == "table" or bool(data.tasks)
    if is_table and sources:
        if scratch is not None and source is not None:
            raise UsageError("--from fine-tunes a run, --recipe trains from scratch", fix="give only one of them")
        found = plan_finetuning(None if source is None else run_of(source), scratch, settings, ())
        known = None if found.base is None else found.base.recipe
        return replace(found, resolved=with_runs(found.resolved, known)), found.base
    if scratch is not None and not sources:
        return with_runs(scratch), None
    return pretrain.resolve(recipe, source, settings)


def _lines(found: "Forecast") -> list[str]:
    lines = [
        f"model: {found.title}, {found.parameters:,} parameters, vocabulary {found.vocab_size:,}",
    ]
    if found.flops_per_token:
        lines.append(f"compute: {scaled(found.flops_per_token, 'FLOP')} a token, forward and backward")
    where = f"{found.n_devices} x {found.device}" if found.n_devices > 1 else found.device
    print_ = found.footprint
    if print_ is not None:
        parts = ("weights", "gradients", "moments", "activations", "logits")
        listed = ", ".join(f"{part} {scaled(getattr(print_, part), 'B')}" for part in parts)
        lines.append(f"memory: {listed}; {scaled(print_.peak, 'B')} at the peak")
    rows = f"micro-batch {found.rows}" + (f", {found.micro_batches} a step" if found.micro_batches > 1 else "")
    if found.memory is not None:
        verdict = "fits" if found.fits else "does not fit"
        lines.append(f"device: {where}, {found.precision}, {scaled(found.memory, 'B')}: {verdict} with {rows}")
    else:
        lines.append(f"device: {where}, {found.precision}; {rows}")
    is_table = found.tokens is None
    extent = count(found.examples, "row") if found.tokens is None else f"{scaled(found.tokens, '')}tokens"
    passes = "" if found.epochs is None else f", {found.epochs:.1f} passes over the {'table' if is_table else 'text'}"
    lines.append(f"length: {count(found.steps, 'step')}, {extent}{passes}")
    if found.seconds is None or found.step_seconds is None:
        lines.append(f"time: unknown, since {found.basis}")
    else:
        lines.append(f"time: {_duration(found.seconds)}, {_short(found.step_seconds)} a step ({found.basis})")
    if found.tokens is not None and found.optimal_tokens:
        share = found.tokens / found.optimal_tokens
        lines.append(
            f"compute-optimal: {scaled(found.optimal_tokens, '')}tokens for this size, by the rule of 20 a parameter "
            f"(Hoffmann et al. 2022); planned are {f'{share:,.3g} times' if share >= 2 else f'{100 * share:.3g} % of'}"
            " them"
        )
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _short(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
