"""Speculative decoding: the text or the distribution without a draft, and what a draft proposes."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.generation.drafts import Draft, ModelDraft, NGramDraft
from lmtool.generation.generate import complete, generate
from lmtool.generation.params import SamplingParams
from lmtool.model import LanguageModel
from lmtool.model.packed import pack_weights_
from lmtool.tokenization.prompt_format import Prompt
from tests.generation.models import HistoryModel, PrefixModel, TableModel
from tests.reference import decoding as reference
from tests.support.errors import refuses
from tests.support.generating import PROMPTS
from tests.support.scripted import DOCUMENTS, SPECIAL, ByteTokenizer, ScriptModel
from tests.support.writers import Repeating, model_of, prompts_of, transformer

GREEDY = SamplingParams("greedy", max_new_tokens=20)
Texts = dict[tuple[int, int], tuple[tuple[int, ...], tuple[float, ...], int, int]]


class Leaning(HistoryModel):
    """Logits near those of `HistoryModel`: a draft that is often, not always, right."""

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        noise = super().logits_after([*ids, -7])
        return super().logits_after(ids) + 0.6 * noise


def texts(
    model: LanguageModel,
    prompts: Sequence[Any],
    settings: SamplingParams,
    end_ids: Collection[int] = (2,),
    n: int = 1,
    **options: Any,
) -> Texts:
    """(tokens, log-probabilities, proposed, accepted) of each request."""
    found = {}
    for token in generate(model, prompts, settings, end_ids=end_ids, n=n, **options):
        if (one := token.completion) is not None:
            found[divmod(token.request, n)] = one.tokens, one.logprobs, one.proposed, one.accepted
    return found


def same_texts(drafted: Texts, plainly: Texts) -> None:
    assert drafted.keys() == plainly.keys()
    for request, (tokens, logprobs, _, _) in plainly.items():
        assert drafted[request][0] == tokens
        assert drafted[request][1] == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.parametrize("changes", [{"position": {"kind": "alibi"}}, {"pattern": {"kind": "window", "size": 5}}])
def test_greedy_texts_are_those_without_a_draft(changes: dict[str, Any]) -> None:
    """The model itself, and others that are mostly wrong, of families that cannot go back too."""
    model = transformer(**changes)
    prompts, settings = prompts_of(model, 4), replace(GREEDY, max_new_tokens=24)
    plainly = texts(model, prompts, settings)
    assert len({tokens for tokens, *_ in plainly.values()}) > 2
    same: Draft = ModelDraft(model, 3)
    small = ModelDraft(transformer(seed=9, n_layers=1, d_model=8, context=10), 5)
    others = (ModelDraft(model_of(name, torch.float64), 2) for name in ("3-gram", "lstm"))
    for draft in (NGramDraft(), same, small, *others):
        drafted = texts(model, prompts, settings, draft=draft)
        same_texts(drafted, plainly)
        n_proposed, n_accepted = (sum(counts) for counts in list(zip(*drafted.values(), strict=True))[2:])
        assert 0 <= n_accepted <= n_proposed
        if draft is same:
            longest = max(len(tokens) for tokens, *_ in plainly.values())
            assert n_accepted > 0.7 * longest  # the rest are the tokens after those accepted


@pytest.mark.parametrize("shape", ["prefix", "encoder-decoder"])
def test_models_with_a_source_have_drafts_of_their_kind(shape: str) -> None:
    """A source longer than the context of the draft is cut for it, also where the draft slides."""
    model = transformer(shape=shape)
    other = transformer(seed=9, shape="prefix" if shape == "encoder-decoder" else "encoder-decoder", n_layers=1)
    short = transformer(seed=9, shape=shape, n_layers=1, context=8)
    prompts = [*prompts_of(model, 3), Prompt((1,), tuple(range(3, 14)))]
    plainly = texts(model, prompts, GREEDY)
    for draft in (NGramDraft(), ModelDraft(model), ModelDraft(other), ModelDraft(short)):
        same_texts(texts(model, prompts, GREEDY, draft=draft), plainly)


def test_a_prefix_that_is_continued_slides_as_without_a_draft() -> None:
    model = PrefixModel(context=9)
    prompts = [Prompt((3,), (5, 6, 7), joined=True), Prompt((4,), (1,), joined=True)]
    plainly = texts(model, prompts, GREEDY)
    for draft in (NGramDraft(3), ModelDraft(model, 3)):
        same_texts(texts(model, prompts, GREEDY, draft=draft), plainly)


PENALTIES = {"repetition_penalty": 1.4, "no_repeat_ngram": 3, "frequency_penalty": 0.1, "presence_penalty": -0.5}


@pytest.mark.parametrize(
    "settings",
    [
        SamplingParams("greedy", max_new_tokens=30, **PENALTIES),  # type: ignore[arg-type]
        SamplingParams("greedy", max_new_tokens=30, min_new_tokens=28, logit_bias=(((4, 5), 3.0), ((7,), -2.0))),
        SamplingParams(max_new_tokens=30, temperature=1.4, top_k=6, top_p=0.9, **PENALTIES),  # type: ignore[arg-type]
    ],
    ids=["penalties", "biases", "sampled"],
)
def test_look_up_leaves_every_text_as_it_is_sampled_ones_too(settings: SamplingParams) -> None:
    for model in (Repeating(context=12), transformer()):
        plainly = texts(model, PROMPTS, settings, {5}, n=2, banned_ids={3})
        drafted = texts(model, PROMPTS, settings, {5}, n=2, banned_ids={3}, draft=NGramDraft(3))
        same_texts(drafted, plainly)
        assert sum(proposed for _, _, proposed, _ in drafted.values())


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_a_pass_over_proposals_computes_the_sums_of_steps_bit_for_bit_in_int8(position: str) -> None:
    """Whose inputs are rounded to few values: without that, last bits would become differences of texts."""
    of: dict[str, Any] = {"n_kv_heads": 1, "norm": {"kind": "rms"}} if position == "rotary" else {}
    model = transformer(dtype=torch.float32, d_model=64, context=64, position={"kind": position}, **of)
    pack_weights_(model, "int8", torch.device("cpu"))
    tokens_BT = torch.randint(17, (1, 40), generator=torch.Generator().manual_seed(1))

    def hidden_by(sizes: Sequence[int]) -> torch.Tensor:
        _, state = model.forward_incremental(tokens_BT[:, :20], model.initial_state(Batch(tokens_BT)))
        found = []
        for n in sizes:
            hidden_BTD, state = model.forward_incremental(tokens_BT[:, state.length : state.length + n], state)
            found.append(hidden_BTD)
        return torch.cat(found, 1)

    with torch.inference_mode():
        assert torch.equal(hidden_by((5, 2, 1, 9, 3)), hidden_by([1] * 20))


@pytest.mark.parametrize(
    ("filters", "context"), [({"t": 1.0}, None), ({"t": 0.8, "p": 0.8}, 5), ({"t": 2.0, "k": 7, "p": 0.7}, 9)]
)
def test_sampling_with_a_model_equals_the_plain_reference(filters: dict[str, Any], context: int | None) -> None:
    model, draft = HistoryModel(context=context), Leaning(context=context)
    settings = SamplingParams(
        max_new_tokens=25, temperature=filters["t"], top_k=filters.get("k"), top_p=filters.get("p"), seed=6
    )
    prompts = [prompt for prompt in PROMPTS if context is None or len(prompt) <= context]
    found = texts(model, prompts, settings, n=3, draft=ModelDraft(draft, 3))
    n_accepted = n_proposed = 0
    for (prompt, sample), (tokens, _, proposed, accepted) in found.items():
        expected = reference.speculative(
            lambda ids: model.logits_after(ids).tolist(),
            lambda ids: draft.logits_after(ids).tolist(),
            prompts[prompt],
            n=3,
            max_new_tokens=25,
            context=context,
            end_ids={2},
            seed=6,
            sample=sample,
            **filters,
        )
        assert (list(tokens), proposed, accepted) == expected
        n_accepted, n_proposed = n_accepted + accepted, n_proposed + proposed
    assert 0.1 * n_proposed < n_accepted < 0.9 * n_proposed


def test_the_model_reads_once_what_is_proposed() -> None:
    class Passing(Repeating):
        passes = 0

        def forward_incremental(self, tokens_BT: torch.Tensor, state: Any) -> Any:
            self.passes += 1
            return super().forward_incremental(tokens_BT, state)

    model = Passing()
    found = texts(model, [[0, 1, 2, 0, 1]], replace(GREEDY, max_new_tokens=50), (), draft=NGramDraft(4))
    assert found[0, 0][0] == tuple((2 + i) % 3 for i in range(50))
    assert found[0, 0][2:] == (40, 40)
    assert model.passes == 1 + 10
    assert model.read == 5 + 50


def test_a_prompt_is_read_once_for_all_samples() -> None:
    model, draft = HistoryModel(), Leaning()
    settings = SamplingParams(max_new_tokens=2, temperature=1.0)
    list(generate(model, [[1] * 50], settings, n=8, draft=ModelDraft(draft, 3)))
    assert model.read == 50 + 8 * 4
    assert draft.read == 50 + 8 * 3


class Noting(NGramDraft):
    """Keeps each text, the number of tokens asked for, and what was proposed."""

    def start_proposals(self, state: Any, sampler: Any, vocab_size: int) -> Any:
        self.proposed: list[tuple[list[int], int, list[int]]] = []
        proposals = super().start_proposals(state, sampler, vocab_size)
        proposal = next(proposals)
        while True:
            hypothesis, n = yield proposal
            proposal = proposals.send((hypothesis, n))
            self.proposed.append((list(hypothesis.text), n, proposal.tokens))


def test_what_followed_the_same_tokens_before_is_proposed() -> None:
    """By the plain rule, at each point of texts with many repetitions; also beyond the end of the text."""
    generator = torch.Generator().manual_seed(1)
    for vocab_size in (2, 9):
        model = TableModel([[1 / vocab_size] * vocab_size] * vocab_size)
        prompt = torch.randint(vocab_size, (12,), generator=generator).tolist()
        for end_ids in ((), (1,)):
            draft = Noting(5)
            texts(model, [prompt], SamplingParams(max_new_tokens=40, temperature=1.0), end_ids, draft=draft)
            assert draft.proposed
            for text, n, tokens in draft.proposed:
                assert tokens == reference.looked_up(text, n, end_ids)


def test_a_source_is_looked_up_too() -> None:
    draft, settings = Noting(3), SamplingParams("greedy", max_new_tokens=2, logit_bias=(((9,), 1e4),))
    found = texts(transformer(shape="encoder-decoder"), [Prompt((8,), (7, 8, 9, 10, 11))], settings, draft=draft)
    assert found[0, 0][0] == (9, 9)
    assert draft.proposed == [([8, 9], 3, [10, 11, 8])]


def test_details_and_limits_are_those_without_a_draft() -> None:
    model, prompt = Repeating(), [[0, 1, 2, 0]]
    plainly = list(generate(model, prompt, GREEDY, details=True))
    drafted = list(generate(model, prompt, GREEDY, details=True, draft=NGramDraft(4)))
    for one, other in zip(drafted, plainly, strict=True):
        assert (one.id, one.rank, one.finish_reason) == (other.id, other.rank, other.finish_reason)
        assert [choice.id for choice in one.alternatives or ()] == [choice.id for choice in other.alternatives or ()]
        assert one.removed == pytest.approx(other.removed)
    late = list(generate(model, prompt, replace(GREEDY, max_time=1e-9), draft=NGramDraft(4)))
    assert [event.finish_reason for event in late] == ["time"]
    ended = list(generate(model, prompt, GREEDY, end_ids={2}, draft=NGramDraft(4)))
    assert [(event.id, event.finish_reason) for event in ended] == [(1, None), (2, "end")]
    assert ended[-1].completion is not None
    assert ended[-1].completion.proposed == 1


def test_stop_strings_and_whole_characters() -> None:
    script = [*ByteTokenizer().encode("ab é ab é ab é, then."), ByteTokenizer.eos_id, *[SPECIAL] * 9]
    model, settings = ScriptModel(script, n_prompt=2), SamplingParams("greedy")
    for stop in ((), ("then",), ("é,",)):
        (plainly,) = complete(model, ["a"], settings, DOCUMENTS, stop=stop)
        pieces = list(generate(model, ["a"], settings, DOCUMENTS, stop=stop, draft=NGramDraft(4)))
        drafted = pieces[-1].completion
        assert drafted is not None
        assert "".join(piece.text for piece in pieces) == drafted.text == plainly.text
        assert (drafted.tokens, drafted.finish_reason) == (plainly.tokens, plainly.finish_reason)
        assert 0 < drafted.accepted <= drafted.proposed
        assert (plainly.proposed, plainly.accepted) == (0, 0)


def test_a_padded_vocabulary_and_a_draft_without_a_next_token() -> None:
    model = transformer()
    plainly = texts(model, [[1, 2]], GREEDY, banned_ids={15, 16})
    for vocab_size in (15, 24):
        draft = ModelDraft(transformer(seed=9, vocab_size=vocab_size), 3)
        same_texts(texts(model, [[1, 2]], GREEDY, banned_ids={15, 16}, draft=draft), plainly)
    nothing = ModelDraft(TableModel([[0.0] * 17] * 17))
    drafted = texts(model, [[1, 2]], GREEDY, banned_ids={15, 16}, draft=nothing)
    same_texts(drafted, plainly)
    assert drafted[0, 0][2:] == (0, 0)


def test_filters_that_leave_nothing_are_an_error_only_where_the_text_arrives() -> None:
    model = TableModel([[0.6, 0.4], [0.4, 0.6]])

    def written(n: int) -> list[int]:
        settings = SamplingParams("greedy", max_new_tokens=n, no_repeat_ngram=1)
        return [event.id for event in generate(model, [[0]], settings, draft=ModelDraft(model, 3))]

    with refuses("usage"):
        written(9)
    assert written(1) == [1]


def test_drafts_that_do_not_fit_are_refused() -> None:
    """Of beam search, of models that cannot go back, and of drafts with another source or vocabulary."""
    model, others = transformer(), (transformer(shape="encoder-decoder"), transformer(vocab_size=12))
    refused: list[tuple[Any, Any, Any]] = [(model, SamplingParams("beam", num_beams=1), NGramDraft())]
    refused += [(model_of(name, torch.float64), GREEDY, NGramDraft()) for name in ("lstm", "3-gram", "gru-attention")]
    for reader, settings, draft in (*refused, *((model, GREEDY, ModelDraft(other)) for other in others)):
        with refuses("usage"):
            generate(reader, [[1]], settings, draft=draft)
    with refuses("usage"):
        NGramDraft(0)
