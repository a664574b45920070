"""`lmtool plan`: estimate what training needs."""

from typing import TYPE_CHECKING, Any

from lmtool.cli.arguments import TEXT_HELP, Json, Quiet
from lmtool.cli.help import argument, option
from lmtool.cli.output import print_json, print_lines
from lmtool.cli.progress import Display, format_quantity
from lmtool.cli.settings import (
    LABEL_OPTIONS,
    READ_OPTIONS,
    TEXT_OPTIONS,
    Overrides,
    is_recipe,
    key_options,
    to_settings,
    with_stdin,
)
from lmtool.errors import UsageError
from lmtool.printable import format_count

if TYPE_CHECKING:
    from lmtool.training.cost.planning import TrainingForecast


@key_options(TEXT_OPTIONS | READ_OPTIONS | LABEL_OPTIONS)
def plan(
    names: list[str] | None = argument(
        "TEXT|TABLE|RECIPE", "A text or table to train on, as for pretrain or finetune, a recipe, or both."
    ),
    recipe: str | None = option("NAME", "The recipe, if it is not an argument.", "--recipe", "-r"),
    text: list[str] | None = option("FILE", f"A text beside those named. {TEXT_HELP}", hidden=True),
    source: str | None = option("RUN", "The run that would be trained further.", "--from"),
    *,
    devices: int = option("N", "Devices that share each batch.", default=1, min=1),
    device_kind: str | None = option("KIND", "h100, a100, rtx4090 and others; this machine by default."),
    utilization: float = option("SHARE", "Share of the peak that a device of this kind reaches.", default=0.4),
    overrides: Overrides = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Estimate what training needs: parameters, FLOPs, memory, steps, time.

    It takes a text, a labelled table, or a recipe alone. On this machine it times a second or two of training steps. It
    keeps only the tokens of the text.

    Examples:
    lmtool plan book.txt --recipe tiny
    lmtool plan reviews.csv --from last
    lmtool plan gpt2-124m --devices 8 --device-kind h100 -s training.tokens=10000000000
    """
    from lmtool.recipe.load import check_settings, parse_settings
    from lmtool.recipe.resolve import resolve

    # here and below mistakes are reported before anything heavy is imported
    check_settings(parse_settings(overrides or ()))
    names, text, options["valid"] = with_stdin("text or table", names, text, options["valid"])
    recipes = [*filter(is_recipe, names or ()), *filter(None, [recipe])]
    sources = [*(name for name in names or () if name not in recipes), *(text or ())]
    if len(recipes) > 1:
        raise UsageError(f"a plan takes one recipe, not {' and '.join(recipes)}", fix="name one of them")
    text_setting = "data.train", sources, "TEXT"
    settings = to_settings(options, TEXT_OPTIONS | READ_OPTIONS, text_setting, overrides=overrides)
    if recipes:
        resolve(recipes[0], settings)

    from lmtool.training.cost.planning import forecast_training
    from lmtool.training.finetuning import plan_training_for_data

    with Display(shown=True, quiet=quiet) as display:
        report = display.report
        planned = plan_training_for_data(source, recipes[0] if recipes else None, settings, report)
        result = forecast_training(
            planned, n_devices=devices, device_kind=device_kind, utilisation=utilization, report=report
        )
    if as_json:
        print_json(result.to_json())
    else:
        print_lines(*_format_forecast(result))


def _format_forecast(forecast: "TrainingForecast") -> list[str]:
    lines = [f"model: {forecast.title}, {forecast.parameters:,} parameters, vocabulary {forecast.vocab_size:,}"]
    if forecast.flops_per_token:
        lines.append(f"compute: {format_quantity(forecast.flops_per_token, 'FLOP')} a token, forward and backward")
    where = f"{forecast.n_devices} x {forecast.device}" if forecast.n_devices > 1 else forecast.device
    footprint = forecast.footprint
    if footprint is not None:
        parts = ("weights", "gradients", "moments", "activations", "logits")
        listed = ", ".join(f"{part} {format_quantity(getattr(footprint, part), 'B')}" for part in parts)
        lines.append(f"memory: {listed}; {format_quantity(footprint.peak, 'B')} at the peak")
    rows = f"micro-batch {forecast.rows}" + (f", {forecast.micro_batches} a step" if forecast.micro_batches > 1 else "")
    if forecast.memory is not None:
        rows = f"{format_quantity(forecast.memory, 'B')}: {'fits' if forecast.fits else 'does not fit'} with {rows}"
    lines.append(f"device: {where}, {forecast.precision}{'; ' if forecast.memory is None else ', '}{rows}")
    if forecast.tokens is None:
        extent, over = format_count(forecast.examples, "row"), "table"
    else:
        extent, over = f"{format_quantity(forecast.tokens, '')}tokens", "text"
    passes = "" if forecast.epochs is None else f", {forecast.epochs:.1f} passes over the {over}"
    lines.append(f"length: {format_count(forecast.steps, 'step')}, {extent}{passes}")
    if forecast.seconds is None or forecast.step_seconds is None:
        lines.append(f"time: unknown, since {forecast.basis}")
    else:
        step = f"{forecast.step_seconds:.3g} s"
        if forecast.step_seconds < 1:
            step = f"{1000 * forecast.step_seconds:.3g} ms"
        lines.append(f"time: {_format_duration(forecast.seconds)}, {step} a step ({forecast.basis})")
    if forecast.tokens is not None and forecast.optimal_tokens:
        share = forecast.tokens / forecast.optimal_tokens
        times = f"{share:,.3g} times" if share >= 2 else f"{100 * share:.3g} % of"
        rule = "by the rule of 20 a parameter (Hoffmann et al. 2022)"
        tokens = f"{format_quantity(forecast.optimal_tokens, '')}tokens"
        lines.append(f"compute-optimal: {tokens} for this size, {rule}; planned are {times} them")
    return [*lines, *(f"note: {note}" for note in forecast.notes)]


def _format_duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
