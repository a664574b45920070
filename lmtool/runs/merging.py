"""Merging the adapters of a run into its weights."""

from collections.abc import Sequence
from pathlib import Path

from lmtool.errors import UsageError
from lmtool.recipe.dump import dump_yaml
from lmtool.runs.creation import create_and_lock_run, make_run_path
from lmtool.runs.directory import BASELINE, EVALUATIONS, RECIPE, SPLIT
from lmtool.runs.files import RunInfo, describe_environment, read_saved_state
from lmtool.runs.listing import SavedEvaluations, read_evaluations
from lmtool.runs.load import read_merged_weights
from lmtool.runs.paths import add_to_runs_index
from lmtool.runs.reference import Reference
from lmtool.runs.saving import CheckpointContent
from lmtool.storage import durable
from lmtool.storage.durable import atomic_output_folder, check_folder_is_empty
from lmtool.storage.records import encode_json


def merge_adapters_into_new_run(adapted: Reference, output: Path | None, command_line: Sequence[str]) -> Path:
    """Makes a run that predicts as another one does, but has no adapters and needs no base run.

    It has the best checkpoint, or the given one, with its logs and results. An error or a kill leaves no run.
    Returns its directory.

    output: its directory; a new one under the runs directory by default. command_line: is written to run.json.
    Raises UsageError for a run without adapters and for a folder in use, CheckpointError if the base is missing or the
    run is damaged.
    """
    old, recipe, step = adapted.run, adapted.recipe, adapted.checkpoint.step
    if recipe.tuning.lora is None:
        what = "this run has no adapters: it needs no base run"
        raise UsageError(what, where=str(old.path), fix="name a run that was trained with tuning.lora")
    name = f"{old.info.recipe}-merged"
    folder = output or make_run_path(name)
    check_folder_is_empty(folder)
    plain = recipe.with_unvalidated_values({"tuning.lora": None})
    weights, state = read_merged_weights(adapted), read_saved_state(adapted.checkpoint).model_dump(exclude_unset=True)
    state |= {"stale": 0, "pending": None, "recipe": plain.model_dump(mode="json")}
    validated = old.last_validation
    if validated is not None and validated.best_step == step:
        state |= validated.model_dump(include={"best_step", "best_value", "best_loss"})
    else:
        state |= {"best_step": None, "best_value": None, "best_loss": None}
    kept = {key: getattr(old.info, key) for key in ("summary", "fingerprints", "teacher", "data")}
    info = RunInfo.create(recipe=name, **kept, base=adapted.to_source_record())
    files = {RECIPE: dump_yaml(plain).encode(), **adapted.tokenizer.serialize_files()}
    with atomic_output_folder(folder) as path, create_and_lock_run(path, info, files) as run:
        # report.html and validated.json are about other checkpoints too
        for log, copy in ((old.metrics, run.metrics), (old.samples, run.samples)):
            if log.path.exists():
                durable.write_and_sync_new_file(copy.path, log.read_lines_until_step(step))
        for file, content in ((SPLIT, old.saved_split), (BASELINE, old.saved_baselines)):
            if content is not None:
                durable.write_and_sync_new_file(run.path / file, encode_json(content.model_dump(exclude_unset=True)))
        run.rewind_and_start_session(step=step, command=command_line, environment=describe_environment("cpu"))
        results = old.results_by_task
        if results and all(figures.get("step") == step for figures in results.values()):
            run.write_results(results.get("", {"tasks": results}))
        if evaluations := [one for one in read_evaluations(old) if one.step == step]:
            saved = SavedEvaluations(evaluations).model_dump(exclude_unset=True)
            durable.write_and_sync_new_file(run.path / EVALUATIONS, encode_json(saved))
        run.save_checkpoint(CheckpointContent(step, weights, {}, state, step), keep_last=1)
        run.record_session_end("finished")
        run.remove_optimizer_states()
    add_to_runs_index(folder)
    return folder
