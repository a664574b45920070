"""The teacher of a distilled model: which runs can be one, and the objective that uses it."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from lmtool.compute.device import ExecutionContext
from lmtool.errors import UsageError
from lmtool.interop.resolve import resolve_reference
from lmtool.model.size import build_on_meta
from lmtool.objective import Objective
from lmtool.objective.distillation import DistillationObjective
from lmtool.recipe.load import ResolvedRecipe
from lmtool.recipe.spec.objective import AnyObjective, Classification
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.load import load_trained_model
from lmtool.runs.reference import Reference
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer

TEACHER_KEY = "distillation.teacher"


def resolve_teacher_and_set_tokenizer(
    resolved: ResolvedRecipe, base: Reference | None
) -> tuple[ResolvedRecipe, Reference | None]:
    """Finds the teacher that a recipe names.

    Returns the student's recipe, with the tokenizer of its teacher, and the teacher's best checkpoint, if it has one.
    base: the run that initializes the student. Raises UsageError if its tokenizer, or one that a setting asks for, is
    not the teacher's; CheckpointError as `resolve_reference` does.
    """
    recipe = resolved.recipe
    if recipe.distillation.teacher is None:
        # a recipe of a student trains without a teacher too
        if (setting := _find_option(resolved.origins, "distillation.")) is not None:
            fix = "name one with --teacher RUN, or omit the settings of distillation"
            raise UsageError("this setting needs a teacher, and none is named", where=setting, fix=fix)
        return resolved, None
    teacher = resolve_reference(recipe.distillation.teacher)
    if base is not None:
        _check_same_tokenizer(teacher, base.tokenizer, base.run.name)
        return resolved, teacher
    setting = _find_option(resolved.origins, "tokenizer.")
    if setting is not None:
        what = "a student uses the tokenizer of its teacher, so none can be chosen"
        raise UsageError(what, where=setting, fix="omit it, or train without the teacher")
    tokenizer = recipe.with_unvalidated_values({"tokenizer": teacher.recipe.tokenizer})
    return replace(resolved, recipe=tokenizer), teacher


def add_distillation_loss(
    objective: Objective,
    student_recipe: Recipe,
    tokenizer: Tokenizer,
    teacher: Reference | None,
    compute: ExecutionContext,
) -> Objective:
    """Returns the objective of a student, with its teacher on the same device; unchanged without a teacher.

    student_recipe: resolved.
    """
    if teacher is None:
        return objective
    check_teacher(teacher, student_recipe, tokenizer)
    # dropout and new weights of the teacher must not move the student's random numbers
    with torch.random.fork_rng(devices=[compute.device] if compute.device.type == "cuda" else []):
        lm = load_trained_model(teacher, compute)
    lm.eval().requires_grad_(False)
    head = teacher.recipe.objective if isinstance(teacher.recipe.objective, Classification) else None
    return DistillationObjective(objective, student_recipe.distillation, lm, head, tokenizer.vocab_size)


def check_teacher(teacher: Reference, student_recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Raises UsageError for a run that cannot teach a student. student_recipe: resolved."""
    _check_same_tokenizer(teacher, tokenizer, "the student")
    _check_same_task_and_row_format(teacher, student_recipe, tokenizer)
    ours, theirs = student_recipe.model, teacher.recipe.model
    longest = build_on_meta(theirs, tokenizer.vocab_size).max_positions
    if longest is not None and ours.context > longest:
        what = f"the rows of the student have up to {ours.context} positions, but its teacher has {longest}"
        raise UsageError(
            what, where=TEACHER_KEY, fix=f"set model.context to {longest} or less, or name another teacher"
        )
    if student_recipe.distillation.cosine and (
        _hidden_width(ours) is None or _hidden_width(ours) != _hidden_width(theirs)
    ):
        widths = f"{_describe_width(theirs)}, {_describe_width(ours)}"
        what = f"a {theirs.title} and a {ours.title} have no states to compare: {widths}"
        raise UsageError(what, where="distillation.cosine", fix="set it to 0, or take a student as wide as its teacher")


def _hidden_width(model: Model) -> int | None:
    """Returns the width of the hidden states at each position; None if there are none, or those of two networks."""
    plain = isinstance(model, Recurrent) and model.shape != "bidirectional" and model.attention is None
    return model.d_model if isinstance(model, Transformer) or plain else None


def _describe_width(model: Model) -> str:
    width = _hidden_width(model)
    return "none at each position" if width is None else f"{width} wide"


def _check_same_tokenizer(teacher: Reference, tokenizer: Tokenizer, student_name: str) -> None:
    if teacher.tokenizer.fingerprint != tokenizer.fingerprint:
        what = f"teacher and student have different tokenizers: {teacher.run.name} and {student_name}"
        fix = "name a teacher with the student's tokenizer, or train the student from scratch, with its teacher's"
        raise UsageError(what, where=TEACHER_KEY, fix=fix)


def _check_same_task_and_row_format(teacher: Reference, student_recipe: Recipe, tokenizer: Tokenizer) -> None:
    """Raises UsageError for a teacher that predicts something else, or reads rows of another form."""
    ours, theirs = student_recipe.objective, teacher.recipe.objective
    if ours.kind != theirs.kind:
        what = f"the teacher was trained with objective {theirs.kind}, but the student has {ours.kind}"
        raise UsageError(what, where=TEACHER_KEY, fix=f"name a run with objective {ours.kind}")
    if (
        isinstance(ours, Classification)
        and isinstance(theirs, Classification)
        and (ours.task, ours.labels) != (theirs.task, theirs.labels)
    ):
        what = f"the teacher predicts {_describe_labels(theirs)}, but the table has {_describe_labels(ours)}"
        raise UsageError(what, where=TEACHER_KEY, fix="name a run that was fine-tuned on the same labels")
    if _describe_row_format(student_recipe, tokenizer) != _describe_row_format(teacher.recipe, teacher.tokenizer):
        what = f"a {teacher.recipe.model.title} reads rows of another form than a {student_recipe.model.title}"
        raise UsageError(what, where=TEACHER_KEY, fix="name a teacher of the student's shape")


def _describe_row_format(recipe: Recipe, tokenizer: Tokenizer) -> tuple[object, ...]:
    """Returns what the rows of student and teacher must have in common: special tokens, and where a source is."""
    prompt_format = PromptFormat.from_recipe(recipe, tokenizer)
    common = (prompt_format.answers, prompt_format.shares_row, prompt_format.chat is None)
    if isinstance(recipe.objective, Classification):
        return *common, prompt_format.before, prompt_format.between, prompt_format.after
    return common


def _describe_labels(spec: AnyObjective) -> str:
    if not isinstance(spec, Classification):
        return "no labels"
    return ", ".join(spec.labels[:5]) + ", ..." * (len(spec.labels) > 5) if spec.labels else "numbers"


def _find_option(origins: Mapping[str, str], section: str) -> str | None:
    """Returns the command-line option that sets a key of a section of the recipe, if any."""
    return next((o for key, o in origins.items() if key.startswith(section) and o.startswith("-")), None)
