"""Text generation with a trained model: continuation, source to target, and mask filling."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from lmtool.compute.device import InferenceName, choose_compute, cpu_threads
from lmtool.compute.machine import threads_are_set
from lmtool.decoding.settings import MaskPredict, Options, Sample, Settings
from lmtool.decoding.speculative import Draft, ModelDraft, NGramDraft
from lmtool.decoding.text import Completion, Piece, complete, write
from lmtool.errors import UsageError
from lmtool.inference.load import Loaded, load_packed
from lmtool.model import LanguageModel
from lmtool.printable import plain
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Embedding, Masked
from lmtool.run.directory import LINES
from lmtool.run.lines import KnownLines

ONE_THREAD = 4_000_000
"""Largest number of parameters of models that a CPU decodes with one thread."""

DRAWS = 25
"""Times that a text is drawn at most, to be one that is not in the training data."""

NGRAM = "ngram"
"""The name of n-gram look-up, in place of the run of a draft."""

Prompts = str | Sequence[str]


def decoding_threads(model: LanguageModel) -> int | None:
    """Fastest number of threads of a CPU for a decoding step: 1 for small models; None for all threads.

    None as well where a variable of the environment sets their number, and for a bidirectional model, which computes
    all positions at once. It does not depend on the load of the machine, so that the same seed gives the same text.
    """
    if threads_are_set() or model.reads == "both":
        return None
    return 1 if sum(parameter.numel() for parameter in model.parameters()) <= ONE_THREAD else None


@dataclass(frozen=True)
class Drafter:
    """A draft, and the run of its model; None for n-gram look-up."""

    draft: Draft
    loaded: Loaded | None

    def record(self) -> dict[str, Any]:
        """What it is, as JSON values. run: null for n-gram look-up."""
        if self.loaded is None:
            return {"run": None, "tokens": self.draft.n_tokens}
        return self.loaded.record() | {"tokens": self.draft.n_tokens}

    @classmethod
    def open(cls, reference: str, n_tokens: int, loaded: Loaded) -> "Drafter":
        """A draft for a model. reference: a run, as for `load_packed`, or "ngram". n_tokens: see `Draft`.

        Raises UsageError when it has another tokenizer, or cannot propose tokens for the model: see `Draft.check`.
        """
        where = f"--draft {plain(reference)} for {plain(str(loaded.run_path))}"
        drafter = cls(NGramDraft(n_tokens), None)
        if reference != NGRAM:
            smaller = load_packed(reference, loaded.compute)
            TextGenerator(smaller).check_generates()
            if smaller.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
                fix = "name a draft with the same tokenizer, such as one distilled from it, or --draft ngram"
                raise UsageError("the draft has another tokenizer than the model", where=where, fix=fix)
            drafter = cls(ModelDraft(smaller.model, n_tokens), smaller)
        try:
            drafter.draft.check(loaded.model, loaded.tokenizer.vocab_size)
        except UsageError as error:
            raise UsageError(error.what, where=where, fix=error.fix) from None
        return drafter

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of its run."""
        return () if self.loaded is None else self.loaded.warnings

    def describe(self) -> str:
        """In a few words."""
        source = "n-gram look-up" if self.loaded is None else f"{self.loaded.run_path}, step {self.loaded.step}"
        return f"draft {source}, {self.draft.n_tokens} tokens at once"


class TextGenerator:
    """A trained model that generates text: continuations, targets of sources, and filled masks.

    drafter: what proposes its tokens; None for decoding without a draft.
    threads: of a CPU, while it generates; None for all, see `decoding_threads`.
    """

    def __init__(self, loaded: Loaded, drafter: Drafter | None = None) -> None:
        self.loaded = loaded
        self.drafter = drafter
        self.threads = decoding_threads(loaded.model)

    @classmethod
    def open(cls, run: str = "last", *, device: DeviceName = "auto", precision: InferenceName = "float32") -> Self:
        """The best checkpoint of a run, or a given checkpoint; see `load_packed` and `pack`."""
        return cls(load_packed(run, choose_compute(device, precision)))

    def generate(
        self, prompts: Prompts, settings: Settings | None = None, options: Options | None = None, **changes: Any
    ) -> Iterator[Piece]:
        """Pieces of text as they are generated, the last one of each request with its completion; see `write`.

        settings: by default `Sample()`, or `MaskPredict()` for a bidirectional model.
        changes: fields of `Options`, such as n=3 or stop=("\\n",).

        Raises UsageError as `write` does, and for a model that only embeds texts.
        """
        self.check_generates()
        prompts = [prompts] if isinstance(prompts, str) else prompts
        settings = settings or (MaskPredict() if self.loaded.model.reads == "both" else Sample())
        options = replace(options or Options(), **changes)
        draft = None if self.drafter is None else self.drafter.draft
        return self.computed(write(self.loaded.model, self.loaded.prompt_format, prompts, settings, options, draft))

    @property
    def writes(self) -> bool:
        """Whether the model generates from left to right."""
        try:
            self.check_generates()
        except UsageError:
            return False
        return self.loaded.model.reads in ("past", "source")

    def check_generates(self) -> None:
        """Raise UsageError for a model that only embeds texts, or is without likelihood, and so generates none."""
        if isinstance(self.loaded.recipe.objective, Embedding):
            what = "this model embeds texts, and does not predict tokens"
            fix = "use lmtool embed --whole, or name a language model"
            raise UsageError(what, where=str(self.loaded.run_path), fix=fix)
        objective = self.loaded.recipe.objective
        if isinstance(objective, Masked) and objective.permutation:
            what = "this model predicts tokens that no other position sees, and fills no masks (objective.permutation)"
            fix = "use lmtool eval, or fine-tune it: lmtool finetune TABLE --from RUN"
            raise UsageError(what, where=str(self.loaded.run_path), fix=fix)
        self.loaded.check_likelihood()

    def completions(
        self, prompts: Prompts, settings: Settings | None = None, options: Options | None = None, **changes: Any
    ) -> Iterator[Completion]:
        """Completions, in the order of the prompts and of their samples; see `generate`.

        Sampled texts that are lines of the training data are drawn again, up to DRAWS times, unless options say
        otherwise. Raises UsageError when options ask for it and the run does not keep these lines.
        """
        options = replace(options or Options(), **changes)
        prompts = [prompts] if isinstance(prompts, str) else prompts
        known = self.known_lines(settings or Sample(), options)
        if known is None:
            return complete(self.generate(prompts, settings, options))
        return self._novel(prompts, settings or Sample(), options, known)

    def known_lines(self, settings: Settings, options: Options) -> KnownLines | None:
        """The lines that no generated text is to be; None where it may be any. Raises as `completions` does."""
        samples = isinstance(settings, Sample) and settings.form is None
        if options.novel is False or not (samples or options.novel):
            return None
        kept = self._kept_lines if samples and self.loaded.model.reads == "past" else None
        if options.novel and kept is None:
            why = (
                "this run does not keep the lines of its training data"
                if samples
                else f"{settings.name} does not sample"
            )
            what = f"--novel is not possible here: {why}"
            fix = "omit --novel, which is for samples of a model that was trained on a list of short lines"
            raise UsageError(what, where=str(self.loaded.run_path), fix=fix)
        return kept

    @cached_property
    def _kept_lines(self) -> KnownLines | None:
        return KnownLines.read(self.loaded.run_path / LINES)

    def _novel(
        self, prompts: Sequence[str], settings: Settings, options: Options, known: KnownLines
    ) -> Iterator[Completion]:
        """Completions that are not known, in order; after DRAWS draws of each text whatever was drawn."""
        novel: list[list[Completion]] = [[] for _ in prompts]
        first, told, current = options.first, 0, 0
        for draws_left in reversed(range(DRAWS)):
            again = [i for i in range(current, len(prompts)) for _ in range(options.n - len(novel[i]))]
            redrawn = replace(options, n=1, first=first)
            first += max(Counter(prompts[i] for i in again).values(), default=0)
            completions = self.generate([prompts[i] for i in again], settings, redrawn) if again else ()
            for i, completion in zip(again, complete(completions), strict=True):
                text = prompts[i] + completion.text
                is_known = completion.finish_reason == "end" and text in known
                if is_known and draws_left:
                    continue
                novel[i].append(replace(completion, sample=len(novel[i]), is_known=is_known))
                while current < len(prompts):
                    yield from novel[current][told:]
                    told = len(novel[current])
                    if told < options.n:
                        break
                    current, told = current + 1, 0

    def complete(self, prompts: Prompts, settings: Settings | None = None, **changes: Any) -> list[str]:
        """The texts alone; see `completions`."""
        return [completion.text for completion in self.completions(prompts, settings, **changes)]

    def computed(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces, each computed as by `computing`."""
        while True:
            with self.computing():  # not while the caller runs
                try:
                    piece = next(pieces)
                except StopIteration:
                    return
            yield piece

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context in which the model computes in its precision, and with its number of threads."""
        with self.loaded.compute.autocast(), cpu_threads(self.threads):
            yield

    def echoed(self, prompt: str, settings: Settings, echo: bool | None = None) -> str:
        """The printed prompt before its text; on a line of its own where the text is a target.

        echo: whether to print the prompt; None for all but sources. A text with filled masks contains it anyway.
        """
        answers = self.loaded.prompt_format.answers
        wanted = not answers if echo is None else echo
        if not wanted or isinstance(settings, MaskPredict):
            return ""
        is_joined = settings.form is None or not prompt or prompt[-1].isspace()  # a form begins without a space
        return prompt + ("\n" if answers else "" if is_joined else " ")
