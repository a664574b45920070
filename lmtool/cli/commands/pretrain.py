"""`lmtool pretrain`: train a model on text; `lmtool resume`: continue a run."""

from functools import partial
from typing import Any

from lmtool.cli.arguments import TEXT_HELP, OutputDir, Profile, Quiet, StartOrResume, Until
from lmtool.cli.help import argument, option
from lmtool.cli.settings import TEXT_OPTIONS, Overrides, key_options, recipe_option, to_settings, with_stdin
from lmtool.cli.training import resume_if_begun, run_training


@key_options(TEXT_OPTIONS)
def pretrain(
    text: list[str] | None = argument("TEXT", f"{TEXT_HELP} Omit it for a recipe with data.mixture."),
    recipe: str | None = recipe_option(None),
    overrides: Overrides = None,
    *,
    source: str | None = option(
        "RUN", "Continue training from this run's weights, with its model and tokenizer.", "--from"
    ),
    teacher: str | None = option("RUN", "Learn this run's probabilities beside the targets."),
    output: OutputDir = None,
    start_or_resume: StartOrResume = False,
    until: Until = 1.0,
    profile: Profile = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Train a model on text, from scratch or from a run.

    Prints the run directory at the end. Ctrl-C saves and stops; `lmtool resume` continues.

    Examples:
    lmtool pretrain book.txt
    lmtool pretrain poems/*.txt --recipe lstm -s training.steps=500
    lmtool pretrain letters.txt --from last -o runs/letters
    """
    if start_or_resume and resume_if_begun(output, quiet, until, profile):
        return
    from lmtool.recipe.load import check_settings
    from lmtool.recipe.resolve import resolve

    text, options["valid"] = with_stdin("text", text, options["valid"])
    others = ("data.train", text, "TEXT"), ("distillation.teacher", teacher, "--teacher")
    chosen = to_settings(options, TEXT_OPTIONS, *others, overrides=overrides)
    # mistakes are reported before anything heavy is imported
    check_settings(chosen) if source else resolve(recipe, chosen)

    from lmtool.runs.creation import check_output_free_and_writable
    from lmtool.training.plan import plan_pretraining
    from lmtool.training.train import train

    check_output_free_and_writable(output, start_or_resume)  # before the text is read
    run_training(
        lambda session: train(plan_pretraining(source, recipe, chosen, session.report), session),
        quiet,
        output=output,
        replace_aborted=start_or_resume,
        until=until,
        profiles=profile,
    )


def resume(
    run: str | None = argument(
        "RUN",
        "A run's name or directory, RUN@STEP, a checkpoint directory, or last.",
        shown="the last that was stopped",
    ),
    overrides: Overrides = None,
    profile: Profile = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its newest intact checkpoint, exactly as if it had never been interrupted.

    Without RUN, finished runs and runs without a checkpoint are skipped.

    `-s training.steps=+500` trains the last run longer; where it was finished, with new optimizer moments, unless it
    kept them (checkpoint.keep_optimizer). Name a checkpoint to continue from that instead of the newest.

    Examples:
    lmtool resume
    lmtool resume last -s training.steps=+500
    lmtool resume last@500
    """
    from lmtool.recipe.load import check_settings, parse_settings

    check_settings(settings := parse_settings(overrides or ()))
    from lmtool.training import resuming

    run_training(partial(resuming.resume, run, settings), quiet, profiles=profile)
