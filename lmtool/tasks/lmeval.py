"""A model of lmtool as one of the models of lm-eval, EleutherAI's lm-evaluation-harness.

Importing this module needs lm-eval: pip install 'lmtool[lmeval]'.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any

from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

from lmtool.data.survey import Progress, no_progress
from lmtool.errors import NumericalError
from lmtool.evaluation.scoring import score_continuations, score_long_texts
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingFilters, SamplingParams
from lmtool.runs.load import LoadedModel
from lmtool.tokenization.prompt_format import Prompt

FILTER_NAMES = tuple(field.name for field in fields(SamplingFilters))
"""Keys of `generation_kwargs` that are sampling filters here."""

OFF_AT_ZERO = ("top_k", "min_p")
"""Filters that 0 turns off in Hugging Face Transformers, for which tasks are written."""


class LmtoolModel(LM):  # type: ignore[misc]  # lm-eval has no types
    """Answers the requests of lm-eval: in batches by length, computing what the requests of a row share once.

    n_truncated: requests so far whose context was too long for the model and lost its beginning, as in lm-eval's `hf`.
    """

    def __init__(self, loaded: LoadedModel, report: Progress = no_progress) -> None:
        super().__init__()
        self._loaded, self._report = loaded, report
        self._device = loaded.device
        self.n_truncated = 0

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Computes the log-probability of each continuation after its context, and whether it is the greedy one."""
        # Choices without their question, for mutual information, are the same in many rows.
        groups = groupby(requests, key=lambda one: (one.task_name, one.doc_id, one.args[0] == ""))
        rows = [list(row) for _, row in groups]
        pairs = [tuple(one.args for one in row) for row in rows]
        origins = {pair: f"{row[0].task_name}, row {row[0].doc_id + 1}" for pair, row in zip(pairs, rows, strict=True)}
        report, places = self._report, [*origins.values()]
        found = score_continuations(self._loaded, [*origins], places, truncate_contexts=True, report=report)
        scored = dict(zip(origins, found, strict=True))
        answers = [one for pair in pairs for one in scored[pair]]
        self.n_truncated += sum(one.is_cut for one in answers)
        return [(self._raise_if_nan(one.total), one.is_greedy) for one in answers]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Computes the log-probability of each text, of any length."""
        texts = [text for (text,) in (one.args for one in requests)]
        return list(map(self._raise_if_nan, score_long_texts(self._loaded, texts, self._report)))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generates a continuation of each context, up to the first of the texts that end it."""
        generated: dict[int, str] = {}
        options_of_requests = [json.dumps(one.args[1], sort_keys=True, default=str) for one in requests]
        for key in dict.fromkeys(options_of_requests):
            chosen = [n for n, other in enumerate(options_of_requests) if other == key]
            options = normalize_gen_kwargs(requests[chosen[0]].args[1])
            stop = tuple(text for text in options["until"] if text)
            params = SamplingParams("greedy", max_new_tokens=options["max_gen_toks"])
            if options["do_sample"]:
                sampling = {key: options[key] for key in FILTER_NAMES if options.get(key) is not None}
                sampling = {key: value for key, value in sampling.items() if value or key not in OFF_AT_ZERO}
                params = SamplingParams("sample", max_new_tokens=options["max_gen_toks"], **sampling)
            prompts = [self._make_truncated_prompt(requests[n].args[0], params.max_new_tokens) for n in chosen]
            found = TextGenerator(self._loaded).completions(prompts, params, stop=stop, overflow="cut")
            for done, (n, completion) in enumerate(zip(chosen, found, strict=True), len(generated) + 1):
                generated[n] = completion.text
                self._report("generating", done, len(requests))
        return [generated[n] for n in range(len(requests))]

    def _make_truncated_prompt(self, text: str, max_new_tokens: int) -> Prompt:
        """Returns a prompt that leaves room for `max_new_tokens` tokens in the context, truncated at its beginning."""
        prompt, context = self._loaded.prompt_format.make_prompt(text), self._loaded.model.context
        if context is None or prompt.source is not None or len(prompt.tokens) <= max(1, context - max_new_tokens):
            return prompt
        self.n_truncated += 1
        return prompt.keep_last_tokens(max(1, context - max_new_tokens))

    def _raise_if_nan(self, log_p: float) -> float:
        if math.isnan(log_p):
            what = "a log-probability is NaN: the weights of this model are useless"
            fix = "name an earlier checkpoint, RUN@STEP, or train anew with a lower optimizer.lr"
            raise NumericalError(what, where=str(self._loaded.run_path), fix=fix)
        return log_p
