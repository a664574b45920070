"""Text generation with a trained model: continuation, source to target, and mask filling."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from lmtool.compute.cores import threads_are_given
from lmtool.compute.device import InferenceName
from lmtool.decoding.settings import MaskPredict, Options, Sample, Settings, StrategyName, choose
from lmtool.decoding.text import Completion, Piece, complete, write
from lmtool.errors import UsageError
from lmtool.inference import load as build
from lmtool.model import LanguageModel
from lmtool.recipe.spec import DeviceName, Embedding

ONE_THREAD = 4_000_000
"""Largest number of parameters of models that a CPU decodes with one thread."""


def decoding_threads(model: LanguageModel) -> int | None:
    """Fastest number of threads of a CPU for a decoding step: 1 for small models; None for all threads.

    None as well where a variable of the environment sets their number, and for a bidirectional model, which computes
    all positions at once. It does not depend on the load of the machine, so that the same seed gives the same text.
    """
    if threads_are_given() or model.reads == "both":
        return None
    return 1 if sum(parameter.numel() for parameter in model.parameters()) <= ONE_THREAD else None


class Writer:
    """A trained model that generates text: continuations, targets of sources, and filled masks.

    threads: of a CPU, while it generates; None for all, see `decoding_threads`.
    """

    def __init__(self, loaded: build.Loaded) -> None:
        self.loaded = loaded
        self.threads = decoding_threads(loaded.model)

    def generate(
        self,
        prompts: str | Sequence[str],
        settings: Settings | None = None,
        options: Options | None = None,
        **changes: Any,
    ) -> Iterator[Piece]:
        """Pieces of text as they are generated, the last one of each request with its completion; see `write`.

        settings: by default `Sample()`, or `MaskPredict()` for a bidirectional model.
        changes: fields of `Options`, such as n=3 or stop=("\\n",).

        Raises UsageError as `write` does, and for a model that only embeds texts.
        """
        if isinstance(self.loaded.recipe.objective, Embedding):
            raise UsageError(
                "this model embeds texts, and predicts no tokens",
                where=str(self.loaded.run_path),
                fix="use lmtool embed --whole, or name a language model",
            )
        self.loaded.refuse_unpredictive()
        prompts = [prompts] if isinstance(prompts, str) else prompts
        settings = settings or (MaskPredict() if self.loaded.model.reads == "both" else Sample())
        options = replace(options or Options(), **changes)
        return self.computed(write(self.loaded.model, self.loaded.framing, prompts, settings, options))

    def completions(
        self,
        prompts: str | Sequence[str],
        settings: Settings | None = None,
        options: Options | None = None,
        **changes: Any,
    ) -> Iterator[Completion]:
        """Completions, in the order of the prompts and of their samples; see `generate`."""
        return complete(self.generate(prompts, settings, options, **changes))

    def complete(self, prompts: str | Sequence[str], settings: Settings | None = None, **changes: Any) -> list[str]:
        """The texts alone; see `completions`."""
        return [completion.text for completion in self.completions(prompts, settings, **changes)]

    def computed(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces, computed in the precision of the model, and with its number of threads."""
        while True:
            with self.loaded.compute.autocast(), _on(self.threads):  # not while the caller runs
                try:
                    piece = next(pieces)
                except StopIteration:
                    return
            yield piece

    def echoed(self, prompt: str, settings: Settings, echo: bool | None = None) -> str:
        """The printed prompt before its text; on a line of its own where the text is a target.

        echo: whether to print the prompt; None for all but sources. A text with filled masks contains it anyway.
        """
        answers = self.loaded.framing.answers
        wanted = not answers if echo is None else echo
        return prompt + "\n" * answers if wanted and not isinstance(settings, MaskPredict) else ""


@contextmanager
def _on(threads: int | None) -> Iterator[None]:
    """A context in which a CPU computes with that many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def writer_of(run: str = "last", *, device: DeviceName = "auto", precision: InferenceName = "float32") -> Writer:
    """The best checkpoint of a run, or a given checkpoint; see `load_packed` and `pack`."""
    return Writer(build.load_packed(run, device=device, precision=precision))


def load_for(
    run: str,
    strategy: StrategyName | None,
    *,
    biases: Sequence[tuple[str, float]] = (),
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    **asked: Any,
) -> tuple[Writer, Settings]:
    """As `load`, with the settings that a command line requests, resolved for this model.

    strategy, asked: as in `choose`. biases: texts, and the bias on the logit of the last token of each.

    Raises UsageError as `choose` does, where possible before the model is loaded.
    """
    settings = choose(strategy, **asked)
    writer = writer_of(run, device=device, precision=precision)
    if writer.loaded.model.reads == "both":
        settings = choose(strategy, reads_both=True, **{**asked, "seed": settings.seed})
    if biases:
        encode = writer.loaded.tokenizer.encode
        settings = replace(settings, logit_bias=tuple((tuple(encode(text)), bias) for text, bias in biases))
    return writer, settings
