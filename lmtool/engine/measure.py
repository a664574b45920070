"""`eval`: a run and a text to its perplexity."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmtool.engine.build import Loaded, load_packed
from lmtool.engine.device import InferenceName
from lmtool.engine.evaluate import Perplexity, evaluate
from lmtool.errors import UsageError
from lmtool.recipe.spec import Data, DeviceName
from lmtool.text import bundled
from lmtool.text.files import find_files
from lmtool.text.hub import PREFIX
from lmtool.text.prepare import Report, default_cache, encode_files


@dataclass(frozen=True)
class Measured:
    """The perplexity of a text, and the model that was asked.

    limit: bits per byte of the best possible model, where the text is a bundled one whose entropy is known.
    """

    perplexity: Perplexity
    loaded: Loaded
    limit: float | None


def measure(
    reference: str,
    sources: Sequence[str],
    *,
    context: int | None,
    stride: int | None,
    column: str | None = None,
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    report: Report = lambda stage, done, total: None,
) -> Measured:
    """Perplexity of the text in `sources` under a run.

    context, stride: tokens; by default the model's context, and a stride of the same, so that windows do not overlap. A
        context may be as long as the model's positions go, which but for learned ones have no end.
    column: of the text in tables; that of the training text by default. report: told how it goes.
    Raises UsageError when the stride is longer than the context, or the context longer than the model can read.
    """
    loaded = load_packed(reference, device=device, precision=precision)
    context = context or loaded.model.context or loaded.recipe.model.context
    stride = stride or context
    longest = loaded.model.longest
    if longest is not None and context > longest:
        raise UsageError(
            f"a context of {context} is longer than the model's, which has {longest} learned positions",
            fix=f"take {longest} or less",
        )
    if stride > context:
        raise UsageError(f"a stride of {stride} leaves out tokens", fix=f"take at most the context, {context}")
    data = loaded.recipe.data
    if column is not None:
        data = data.model_copy(update={"column": column})
    store = encode_files(sources, data, loaded.tokenizer, cache=default_cache(), report=report)
    result = evaluate(loaded.model, store, loaded.tokenizer, loaded.objective, loaded.compute, context, stride, report)
    return Measured(result, loaded, _limit(sources, data))


def _limit(sources: Sequence[str], data: Data) -> float | None:
    """The limit of bundled texts, which counts documents and their ends, as models trained on documents do."""
    if data.split != "document" or any(source.startswith(PREFIX) for source in sources):
        return None
    return bundled.limit([file for source in sources for file in find_files(source)])
