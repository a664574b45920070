"""Keeps an n-gram model in a run, to interpolate its language model with it; `load_packed_for_inference` loads both.

It is a run of its own in the folder `ngrams` of the run. Its weight in the interpolation is among the run's results.
"""

from lmtool.model.ngram import NGramModel
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Training
from lmtool.recipe.spec.words import NGram
from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.directory import NGRAMS, RECIPE, Run
from lmtool.runs.files import RunInfo
from lmtool.runs.saving import CheckpointContent
from lmtool.storage import durable
from lmtool.storage.durable import atomic_output_folder
from lmtool.tokenization.tokenizer import Tokenizer


def replace_saved_ngram_model(run: Run, recipe: Recipe, tokenizer: Tokenizer, ngram: NGramModel | None) -> None:
    """Removes the n-gram model that a run keeps, and writes `ngram`, unless it is None, in its place.

    Raises ResourceError.
    """
    folder = run.path / NGRAMS
    durable.remove_file_or_tree(folder)
    if ngram is None:
        return
    counted = Recipe(
        description=f"The {ngram.order}-grams of the training text of {run.name}",
        model=NGram(kind="ngram", order=ngram.order, context=recipe.model.context),
        tokenizer=recipe.tokenizer,
        data=recipe.data.with_unvalidated_values({"mixture": {}, "train": recipe.data.sources, "stream": False}),
        training=Training(steps=1, batch_size=1),
    )
    info = RunInfo.create(recipe="ngram", summary=ngram.description, fingerprints=run.info.fingerprints)
    files = {RECIPE: dump_yaml(counted).encode(), **tokenizer.serialize_files()}
    snapshot = CheckpointContent(0, ngram.state_dict(), {}, {"recipe": counted.model_dump(mode="json")})
    with atomic_output_folder(folder) as new, create_and_lock_run(new, info, files) as kept:
        kept.save_checkpoint(snapshot, keep_last=1)
