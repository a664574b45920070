"""Speculative decoding: the text or the distribution without a draft, and what a draft proposes."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.generation.drafts import ModelDraft, NGramDraft
from lmtool.generation.generate import complete, generate
from lmtool.generation.params import SamplingParams
from lmtool.generation.strategy import verify_draft_token
from lmtool.model import NGramModel, build
from lmtool.model.language_model import DecodeState
from lmtool.model.packed import pack_weights_
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.words import NGram
from lmtool.tokenization.prompt_format import Prompt, PromptFormat
from tests.generation.models import HistoryModel, PrefixModel, TableModel
from tests.reference import decoding as reference
from tests.support.cases import nightly_but
from tests.support.generating import PROMPTS
from tests.support.scripted import SPECIAL, ByteTokenizer, ScriptModel
from tests.support.writers import Repeating, model_of, prompts_of, transformer

VARIANTS = {
    "learned": {},
    "rotary": {"position": {"kind": "rotary"}},
    "alibi": {"position": {"kind": "alibi"}},
    "windowed": {"pattern": {"kind": "window", "size": 5}},
    "grouped": {"n_kv_heads": 1, "position": {"kind": "rotary"}, "norm": {"kind": "rms"}},
}


class Leaning(HistoryModel):
    """Logits near those of `HistoryModel`: a draft that is often, not always, right."""

    def logits_after(self, ids: list[int]) -> Any:
        noise = super().logits_after([*ids, -7])
        return super().logits_after(ids) + 0.6 * noise


def texts(model: Any, prompts: Any, settings: SamplingParams, end_ids: Any = (2,), n: Any = 1, **options: Any) -> Any:
    """(tokens, log-probabilities, proposed, accepted) of each request."""
    found = {}
    for token in generate(model, prompts, settings, end_ids=end_ids, n=n, **options):
        if (one := token.completion) is not None:
            found[divmod(token.request, n)] = one.tokens, one.logprobs, one.proposed, one.accepted
    return found


def tokens_of(found: Any) -> Any:
    return {request: tokens for request, (tokens, *_) in found.items()}


def same_texts(drafted: Any, plainly: Any) -> None:
    assert drafted.keys() == plainly.keys()
    for request, (tokens, logprobs, _, _) in plainly.items():
        assert drafted[request][0] == tokens
        assert drafted[request][1] == pytest.approx(logprobs, abs=1e-5)


def drafts_for(model: Any) -> Any:
    """Look-up, the model itself, and smaller ones that are mostly wrong, of families that cannot go back too."""
    torch.manual_seed(5)
    counted = build(NGram(kind="ngram", order=3), 17)
    assert isinstance(counted, NGramModel)
    text_BT = torch.randint(17, (1, 300))
    counted.partial_fit_([Batch(text_BT[:, :-1], text_BT[:, 1:])], 300)
    lstm = build(Recurrent.model_validate({"kind": "recurrent", "n_layers": 1, "d_model": 8, "context": 9}), 17)
    small = transformer(seed=9, n_layers=1, d_model=8, context=10)
    return {
        "ngram": NGramDraft(),
        "itself": ModelDraft(model, 3),
        "small": ModelDraft(small, 5),
        "3-gram": ModelDraft(counted, 2),
        "lstm": ModelDraft(lstm.double(), 1),
    }


@pytest.mark.parametrize("variant", nightly_but(VARIANTS, "learned", "alibi"))
def test_greedy_texts_are_those_without_a_draft(variant: Any) -> None:
    model = transformer(**VARIANTS[variant])
    prompts, settings = prompts_of(model, 4), SamplingParams("greedy", max_new_tokens=24)
    plainly = texts(model, prompts, settings)
    assert len(set(tokens_of(plainly).values())) > 2
    for name, draft in drafts_for(model).items():
        drafted = texts(model, prompts, settings, draft=draft)
        same_texts(drafted, plainly)
        counts = [sum(column) for column in zip(*((p, a) for *_, p, a in drafted.values()), strict=True)]
        assert 0 <= counts[1] <= counts[0]
        if name == "itself":
            longest = max(len(tokens) for tokens, *_ in plainly.values())
            assert counts[1] > 0.7 * longest  # the rest are the tokens after those accepted


@pytest.mark.parametrize("shape", ["prefix", "encoder-decoder"])
def test_models_with_a_source_have_drafts_of_their_kind(shape: Any) -> None:
    """A source longer than the context of the draft is cut for it, also where the draft slides."""
    model = transformer(shape=shape)
    other = transformer(seed=9, shape="prefix" if shape == "encoder-decoder" else "encoder-decoder", n_layers=1)
    short = transformer(seed=9, shape=shape, n_layers=1, context=8)
    prompts = [*prompts_of(model, 6), Prompt((1,), tuple(range(3, 14)))]
    settings = SamplingParams("greedy", max_new_tokens=20)
    plainly = texts(model, prompts, settings)
    for draft in (NGramDraft(), ModelDraft(model), ModelDraft(other), ModelDraft(short)):
        same_texts(texts(model, prompts, settings, draft=draft), plainly)


def test_a_prefix_that_is_continued_slides_as_without_a_draft() -> None:
    model = PrefixModel(context=9)
    prompts = [Prompt((3,), (5, 6, 7), joined=True), Prompt((4,), (1,), joined=True)]
    settings = SamplingParams("greedy", max_new_tokens=30)
    plainly = texts(model, prompts, settings)
    for draft in (NGramDraft(3), ModelDraft(model, 3)):
        same_texts(texts(model, prompts, settings, draft=draft), plainly)


@pytest.mark.parametrize(
    "settings",
    nightly_but(
        [
            SamplingParams("greedy", max_new_tokens=30, repetition_penalty=1.4, no_repeat_ngram=3),
            SamplingParams("greedy", max_new_tokens=30, frequency_penalty=0.1, presence_penalty=-0.5),
            SamplingParams("greedy", max_new_tokens=30, min_new_tokens=28, logit_bias=(((4, 5), 3.0), ((7,), -2.0))),
            SamplingParams(max_new_tokens=30, temperature=1.0, seed=4),
            SamplingParams(
                max_new_tokens=30, temperature=1.4, top_k=6, top_p=0.9, repetition_penalty=1.2, no_repeat_ngram=3
            ),
            SamplingParams(max_new_tokens=30, temperature=0.0),
        ],
        0,
        3,
    ),
    ids=str,
)
def test_look_up_leaves_every_text_as_it_is_sampled_ones_too(settings: SamplingParams) -> None:
    for model in (HistoryModel(context=12), Repeating(context=12), transformer()):
        n = 2 if settings.is_random else 1
        plainly = texts(model, PROMPTS, settings, {5}, n=n, banned_ids={3})
        drafted = texts(model, PROMPTS, settings, {5}, n=n, banned_ids={3}, draft=NGramDraft(3))
        same_texts(drafted, plainly)
        assert sum(proposed for _, _, proposed, _ in drafted.values())


def test_float32_and_packed_matrices_write_the_same_greedy_texts() -> None:
    for precision in ("float32", "int8"):
        model = transformer(dtype=torch.float32)
        pack_weights_(model, precision, torch.device("cpu"))
        prompts, settings = prompts_of(model, 6), SamplingParams("greedy", max_new_tokens=16)
        plainly = texts(model, prompts, settings)
        for draft in (NGramDraft(), ModelDraft(model)):
            assert tokens_of(texts(model, prompts, settings, draft=draft)) == tokens_of(plainly)


@pytest.mark.parametrize("variant", ["learned", "rotary", "alibi", "grouped"])
def test_a_pass_over_proposals_computes_the_sums_of_steps_bit_for_bit_in_int8(variant: Any) -> None:
    """Whose inputs are rounded to few values: without that, last bits would become differences of texts."""
    model = transformer(dtype=torch.float32, d_model=64, context=64, **VARIANTS[variant])
    pack_weights_(model, "int8", torch.device("cpu"))
    tokens_BT = torch.randint(17, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        _, start = model.forward_incremental(tokens_BT[:, :20], model.initial_state(Batch(tokens_BT)))
        state, steps = start, []
        for i in range(20, 40):
            hidden_BTD, state = model.forward_incremental(tokens_BT[:, i : i + 1], state)
            steps.append(hidden_BTD)
        state, chunks = start, []
        for n in (5, 2, 1, 9, 3):
            first = state.length
            hidden_BTD, state = model.forward_incremental(tokens_BT[:, first : first + n], state)
            chunks.append(hidden_BTD)
    assert torch.equal(torch.cat(chunks, 1), torch.cat(steps, 1))


@pytest.mark.parametrize("context", nightly_but([None, 5, 9], 0), ids="context={}".format)
@pytest.mark.parametrize(
    "filters",
    nightly_but([{"t": 1.0}, {"t": 1.5, "k": 5}, {"t": 0.8, "p": 0.8}, {"t": 2.0, "k": 7, "p": 0.7}], 0, 2),
    ids=str,
)
def test_sampling_with_a_model_equals_the_plain_reference(filters: Any, context: Any) -> None:
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


P = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]]
Q = [[0.2, 0.2, 0.6], [0.6, 0.2, 0.2], [0.3, 0.4, 0.3]]


@pytest.mark.parametrize(("p", "q"), [(P[0], Q[0]), (P[1], Q[1]), (P[0], P[0]), ([0.0, 0.4, 0.6], [0.7, 0.3, 0.0])])
def test_one_token_is_accepted_as_often_as_the_distributions_overlap(p: Any, q: Any) -> None:
    """Leviathan et al. 2023, Corollary 3.6, and the distribution of what is returned, on a grid of numbers."""
    p_V, q_V = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    grid = [(i + 0.5) / 200 for i in range(200)]
    share, drawn = 0.0, Counter()
    for token in range(3):
        if not q[token]:
            continue
        for acceptance in grid:
            # the other number decides only among what is drawn after a rejection
            found, is_accepted = verify_draft_token(p_V, q_V, token, acceptance, 0.0)
            if is_accepted:
                assert found == token
                share += q[token] / len(grid)
                drawn[token] += q[token] / len(grid)
        n_rejected = sum(not verify_draft_token(p_V, q_V, token, acceptance, 0.0)[1] for acceptance in grid)
        for number in grid:
            found, is_accepted = verify_draft_token(p_V, q_V, token, 1 - 1e-9, number)
            if not is_accepted:
                drawn[found] += q[token] * n_rejected / len(grid) ** 2
    assert share == pytest.approx(sum(map(min, p, q)), abs=0.01)
    assert [drawn[token] for token in range(3)] == pytest.approx(p, abs=0.01)


def test_the_model_reads_once_what_is_proposed() -> None:
    class Passing(Repeating):
        passes = 0

        def forward_incremental(self, tokens_BT: torch.Tensor, state: DecodeState) -> Any:
            self.passes += 1
            return super().forward_incremental(tokens_BT, state)

    model = Passing()
    events = list(generate(model, [[0, 1, 2, 0, 1]], SamplingParams("greedy", max_new_tokens=50), draft=NGramDraft(4)))
    assert [event.id for event in events] == [(2 + i) % 3 for i in range(50)]
    assert (events[-1].completion.proposed, events[-1].completion.accepted) == (40, 40)
    assert model.passes == 1 + 10
    assert model.read == 5 + 50


def test_a_prompt_is_read_once_for_all_samples() -> None:
    model, draft = HistoryModel(), Leaning()
    settings = SamplingParams(max_new_tokens=2, temperature=1.0)
    list(generate(model, [[1] * 50], settings, n=8, draft=ModelDraft(draft, 3)))
    assert model.read == 50 + 8 * 4
    assert draft.read == 50 + 8 * 3


@pytest.mark.slow
def test_a_text_does_not_depend_on_others_nor_on_its_length() -> None:
    model = transformer(dtype=torch.float32)
    settings = SamplingParams(max_new_tokens=12, temperature=1.2, seed=3)
    for make in (lambda: NGramDraft(3), lambda: ModelDraft(transformer(seed=9, dtype=torch.float32, n_layers=1), 3)):
        together = texts(model, PROMPTS[:4], settings, n=3, draft=make())
        for prompt in (3, 0):
            alone = texts(model, [PROMPTS[prompt]], settings, n=1, first=2, draft=make())
            assert alone[0, 0] == together[prompt, 2]  # bit for bit
        short = texts(model, PROMPTS[:4], replace(settings, max_new_tokens=6), n=3, draft=make())
        assert tokens_of(short) == {key: tokens[:6] for key, tokens in tokens_of(together).items()}


def test_what_stood_before_is_proposed() -> None:
    """By the plain rule, at each point of texts with many repetitions; also beyond the end of the text."""
    generator = torch.Generator().manual_seed(1)
    for vocab_size in (2, 4, 9):
        model = TableModel([[1 / vocab_size] * vocab_size] * vocab_size)
        prompt = torch.randint(vocab_size, (12,), generator=generator).tolist()
        for end_ids in ((), (1,)):
            draft = Noting(5)
            settings = SamplingParams(max_new_tokens=40, temperature=1.0)
            for _ in generate(model, [prompt], settings, end_ids=end_ids, draft=draft):
                pass
            assert draft.proposed
            for text, n, tokens in draft.proposed:
                assert tokens == reference.looked_up(text, n, end_ids)


class Noting(NGramDraft):
    """Keeps each text, the number of tokens asked for, and what was proposed."""

    def start_proposals(self, state: DecodeState, sampler: Any, vocab_size: Any) -> Any:
        self.proposed = []
        proposals = super().start_proposals(state, sampler, vocab_size)
        proposal = next(proposals)
        while True:
            hypothesis, n = yield proposal
            proposal = proposals.send((hypothesis, n))
            self.proposed.append((list(hypothesis.text), n, proposal.tokens))


def test_a_source_is_looked_up_too() -> None:
    model = transformer(shape="encoder-decoder")
    draft = Noting(3)
    settings = SamplingParams("greedy", max_new_tokens=2, logit_bias=(((9,), 1e4),))
    events = list(generate(model, [Prompt((8,), (7, 8, 9, 10, 11))], settings, draft=draft))
    assert [event.id for event in events] == [9, 9]
    assert draft.proposed == [([8, 9], 3, [10, 11, 8])]


def test_details_and_limits_are_those_without_a_draft() -> None:
    model = Repeating()
    settings = SamplingParams("greedy", max_new_tokens=10)
    plainly = list(generate(model, [[0, 1, 2, 0]], settings, details=True))
    drafted = list(generate(model, [[0, 1, 2, 0]], settings, details=True, draft=NGramDraft(4)))
    for one, other in zip(drafted, plainly, strict=True):
        assert (one.id, one.rank, one.finish_reason) == (other.id, other.rank, other.finish_reason)
        assert [choice.id for choice in one.alternatives] == [choice.id for choice in other.alternatives]
        assert one.removed == pytest.approx(other.removed)
    late = list(generate(model, [[0, 1, 2, 0]], replace(settings, max_time=1e-9), draft=NGramDraft(4)))
    assert [event.finish_reason for event in late] == ["time"]
    ended = list(generate(model, [[0, 1, 2, 0]], settings, end_ids={2}, draft=NGramDraft(4)))
    assert [(event.id, event.finish_reason) for event in ended] == [(1, None), (2, "end")]
    assert ended[-1].completion.proposed == 1


def test_stop_strings_and_whole_characters() -> None:
    script = [*ByteTokenizer().encode("ab é ab é ab é, then."), ByteTokenizer.eos_id, *[SPECIAL] * 9]
    prompt_format = PromptFormat(ByteTokenizer(), "past", opening=(1,), documents=True)
    for stop in ((), ("then",), ("é,",)):
        model, options = ScriptModel(script, n_prompt=2), dict(stop=stop)
        (plainly,) = complete(model, ["a"], SamplingParams("greedy"), prompt_format, **options)
        pieces = list(generate(model, ["a"], SamplingParams("greedy"), prompt_format, **options, draft=NGramDraft(4)))
        drafted = pieces[-1].completion
        assert "".join(piece.text for piece in pieces) == drafted.text == plainly.text
        assert (drafted.tokens, drafted.finish_reason) == (plainly.tokens, plainly.finish_reason)
        assert 0 < drafted.accepted <= drafted.proposed
        assert (plainly.proposed, plainly.accepted) == (0, 0)


def test_a_padded_vocabulary_and_a_draft_without_a_next_token() -> None:
    model = transformer()
    settings = SamplingParams("greedy", max_new_tokens=12)
    plainly = texts(model, [[1, 2]], settings, banned_ids={15, 16})
    for vocab_size in (15, 17, 24):
        draft = ModelDraft(transformer(seed=9, vocab_size=vocab_size), 3)
        same_texts(texts(model, [[1, 2]], settings, banned_ids={15, 16}, draft=draft), plainly)
    nothing = TableModel([[0.0] * 17] * 17)
    drafted = texts(model, [[1, 2]], settings, banned_ids={15, 16}, draft=ModelDraft(nothing))
    same_texts(drafted, plainly)
    assert drafted[0, 0][2:] == (0, 0)


def test_filters_that_leave_nothing_are_an_error_only_where_the_text_arrives() -> None:
    model = TableModel([[0.6, 0.4], [0.4, 0.6]])

    def written(n: Any) -> Any:
        settings = SamplingParams("greedy", max_new_tokens=n, no_repeat_ngram=1)
        return [event.id for event in generate(model, [[0]], settings, draft=ModelDraft(model, 3))]

    with pytest.raises(UsageError, match="exclude every token"):
        written(9)
    assert written(1) == [1]


def test_drafts_that_do_not_fit_are_refused() -> None:
    model, greedy = transformer(), SamplingParams("greedy")
    for settings in (SamplingParams("beam"), SamplingParams("beam", num_beams=1)):
        with pytest.raises(UsageError, match="a draft is for strategies greedy and sample, not for beam"):
            generate(model, [[1]], settings, draft=NGramDraft())
    for family in ("lstm", "3-gram", "gru-attention"):
        with pytest.raises(UsageError, match="go back"):
            generate(model_of(family, torch.float64), [[1]], greedy, draft=NGramDraft())
    for other in (transformer(shape="encoder-decoder"), transformer(vocab_size=12)):
        with pytest.raises(UsageError):
            generate(model, [[1]], greedy, draft=ModelDraft(other))
    with pytest.raises(UsageError):
        NGramDraft(0)
