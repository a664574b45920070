"""Samples: texts that the model generates at each validation of its training."""

from collections.abc import Iterator, Sequence

from lmtool.generation.generate import complete
from lmtool.generation.params import AnyParams, MaskPredict, SamplingParams
from lmtool.model import LanguageModel
from lmtool.printable import first_line
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.training.checkpoint_manager import CheckpointManager
from lmtool.training.data import TextData, TrainingData
from lmtool.training.events import SampleGenerated, Warn


def choose_sample_prompts(recipe: Recipe, data: TrainingData) -> Sequence[str]:
    """Returns the prompts of the samples at each validation. The default for models that continue texts is the
    beginning of the validation text."""
    if recipe.evaluation.prompts is not None or not isinstance(data, TextData):
        return recipe.evaluation.prompts or ()
    continues = recipe.model.reads in ("past", "source") and not data.prompt_format.answers
    return (data.sample_prompt,) if continues else ()


def generate_and_log_samples(
    manager: CheckpointManager,
    lm: LanguageModel,
    prompt_format: PromptFormat,
    recipe: Recipe,
    prompts: Sequence[str],
    step: int,
) -> Iterator[SampleGenerated | Warn]:
    """Generates and logs a text for each prompt. A failure is a warning."""
    if manager.run is None:
        return
    params: AnyParams = SamplingParams(seed=recipe.seed, max_new_tokens=recipe.evaluation.sample_tokens)
    length = 0
    if lm.reads == "both":
        params, length = MaskPredict(seed=recipe.seed), recipe.evaluation.sample_tokens
    try:
        for completion in complete(lm, prompts, params, prompt_format, length=length, overflow="cut"):
            sampled = SampleGenerated(step, completion.prompt, completion.text.removeprefix(completion.prompt))
            yield from manager.log_sample(sampled)
            yield sampled
    except Exception as error:
        yield Warn(f"no samples at step {step}: {first_line(error, 200)}")
