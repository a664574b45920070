"""`lmtool plan`: what a recipe takes before it is run."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import DEFAULT_RECIPE, TEXT_HELP, Json, Overrides, Quiet
from lmtool.cli.progress import scaled

if TYPE_CHECKING:
    from lmtool.training.planning import Forecast


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe (lmtool recipes ls) or a file.")],
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help=f"{TEXT_HELP} It is tokenized. May be repeated.", show_default=False),
    ] = None,
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
    """Say what a recipe takes before it is run: parameters, FLOPs, memory, steps, time.

    On this machine, a second or two of steps are measured; nothing is kept but the tokens of the text.
    """
    from lmtool.cli.progress import Display
    from lmtool.recipe.load import Resolved, Setting, load
    from lmtool.recipe.pretraining import DefaultRecipe
    from lmtool.training.planning import forecast_of

    flags = [Setting("data.train", text, "--text")] if text else []
    resolved: Resolved | DefaultRecipe
    if recipe == DEFAULT_RECIPE and text:
        resolved = DefaultRecipe.of(overrides or (), flags)
    else:
        resolved = load(recipe, overrides or (), flags)
    with Display(shown=True, quiet=quiet) as display:
        found = forecast_of(
            resolved, n_devices=devices, kind=device_kind, utilisation=utilization, report=display.report
        )
    if as_json:
        typer.echo(json.dumps(found.record()))
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: "Forecast") -> list[str]:
    lines = [
        f"model: {found.title}, {found.parameters:,} parameters, vocabulary {found.vocab_size:,}",
        f"compute: {scaled(found.flops_per_token, 'FLOP')} a token, forward and backward",
    ]
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
    passes = "" if found.epochs is None else f", {found.epochs:.1f} passes over the text"
    lines.append(f"length: {found.steps:,} steps, {scaled(found.tokens, '')}tokens{passes}")
    if found.seconds is None or found.step_seconds is None:
        lines.append(f"time: unknown, since {found.basis}")
    else:
        lines.append(f"time: {_duration(found.seconds)}, {_short(found.step_seconds)} a step ({found.basis})")
    share = found.tokens / found.optimal_tokens
    lines.append(
        f"compute-optimal: {scaled(found.optimal_tokens, '')}tokens for this size, by the rule of 20 a parameter "
        f"(Hoffmann et al. 2022); planned are {f'{share:,.3g} times' if share >= 2 else f'{100 * share:.3g} % of'} them"
    )
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _short(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
