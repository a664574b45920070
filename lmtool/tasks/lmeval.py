"""A model of lmtool as one of the models of lm-eval, EleutherAI's lm-evaluation-harness.

Importing this module needs lm-eval: pip install 'lmtool[lmeval]'.
"""

import json
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

from lmtool.data.survey import Progress
from lmtool.errors import NumericalError
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams
from lmtool.inference.evaluation import ignore_progress
from lmtool.inference.load import LoadedModel
from lmtool.inference.scoring import score_continuations, score_long_texts
from lmtool.tokenization.prompt_format import Prompt

SAMPLED = ("temperature", "top_k", "top_p")
"""Keys of `generation_kwargs` that say how to sample, with the same names here."""


class LmtoolModel(LM):  # type: ignore[misc]  # lm-eval has no types
    """Answers the requests of lm-eval: texts in batches by length, and what requests of a row have in common once.

    n_cut: requests so far whose context does not fit that of the model, and lost its beginning, as in lm-eval's `hf`.
    """

    def __init__(self, loaded: LoadedModel, report: Progress = ignore_progress) -> None:
        super().__init__()
        self._loaded, self._report = loaded, report
        self._device = loaded.device
        self.n_cut = 0

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The log-probability of each continuation after its context, and whether greedy decoding writes it."""
        # choices without their question, for mutual information, are the same in many rows
        rows = [
            list(row) for _, row in groupby(requests, key=lambda one: (one.task_name, one.doc_id, one.args[0] == ""))
        ]
        pairs = [tuple((context, continuation) for context, continuation in (one.args for one in row)) for row in rows]
        origins = {pair: f"{row[0].task_name}, row {row[0].doc_id + 1}" for pair, row in zip(pairs, rows, strict=True)}
        found = score_continuations(self._loaded, [*origins], [*origins.values()], cuts=True, report=self._report)
        scored = dict(zip(origins, found, strict=True))
        answers = [one for pair in pairs for one in scored[pair]]
        self.n_cut += sum(one.is_cut for one in answers)
        return [(self._finite(one.total), one.is_greedy) for one in answers]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text, of any length."""
        texts = [text for (text,) in (one.args for one in requests)]
        return list(map(self._finite, score_long_texts(self._loaded, texts, self._report)))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, up to the first of the texts that end it."""
        written: dict[int, str] = {}
        kinds = [json.dumps(one.args[1], sort_keys=True, default=str) for one in requests]
        for kind in dict.fromkeys(kinds):
            chosen = [n for n, other in enumerate(kinds) if other == kind]
            options = normalize_gen_kwargs(requests[chosen[0]].args[1])
            stop = tuple(text for text in options["until"] if text)
            params = SamplingParams("greedy", max_new_tokens=options["max_gen_toks"])
            if options["do_sample"]:
                sampling = {key: options[key] for key in SAMPLED if options.get(key) is not None}
                params = SamplingParams("sample", max_new_tokens=options["max_gen_toks"], **sampling)
            prompts = [self._prompt(requests[n].args[0], params.max_new_tokens) for n in chosen]
            found = TextGenerator(self._loaded).completions(prompts, params, stop=stop, overflow="cut")
            for done, (n, completion) in enumerate(zip(chosen, found, strict=True), len(written) + 1):
                written[n] = completion.text
                self._report("generating", done, len(requests))
        return [written[n] for n in range(len(requests))]

    def _prompt(self, text: str, n_new: int) -> Prompt:
        """A prompt that leaves room for so many tokens in the context, where the context is that long."""
        prompt, context = self._loaded.prompt_format.make_prompt(text), self._loaded.model.context
        if context is None or prompt.source is not None or len(prompt.tokens) <= max(1, context - n_new):
            return prompt
        self.n_cut += 1
        return prompt.keep_last(max(1, context - n_new))

    def _finite(self, log_p: float) -> float:
        if math.isnan(log_p):
            fix = "name an earlier checkpoint, RUN@STEP, or train anew with a lower optimizer.lr"
            where = str(self._loaded.run_path)
            raise NumericalError(
                "a log-probability is NaN: the weights of this model are useless", where=where, fix=fix
            )
        return log_p
