"""Conversations: answers are those of `generate` for the ids of Transformers' template, whatever is remembered."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import lmtool
from lmtool.compute.device import CPU
from lmtool.errors import ResourceError, UsageError
from lmtool.generation.chat import Conversation
from lmtool.generation.generate import TextGenerator, generate
from lmtool.generation.params import SamplingParams
from lmtool.generation.prefix_cache import BLOCK_TOKENS
from lmtool.interop.importing import import_to_cache
from lmtool.runs.load import LoadedModel, load_packed_for_inference, load_run
from lmtool.tasks.cells import parse_messages
from lmtool.tokenization.chat import ChatFormat, Message, MessagesRefusedError
from lmtool.tokenization.prompt_format import Prompt
from tests.generation import talkers
from tests.generation.models import HistoryModel
from tests.support.cases import nightly_but
from tests.support.errors import refuses
from tests.support.training import Work

QUESTIONS = ("Who saw the ball?", "  Are you sure?\n", "é 🙂 <|end|> [BOS]")
STRATEGIES = (
    SamplingParams("greedy", max_new_tokens=20),
    SamplingParams(max_new_tokens=20, seed=7),
    SamplingParams(max_new_tokens=9, top_k=5, seed=8),
)


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def prompt_of(loaded: LoadedModel, messages: list[Message]) -> list[int]:
    return ChatFormat.from_tokenizer_or_plain(loaded.tokenizer).encode_prompt(messages)


def answered(conversation: Conversation, text: str) -> tuple[int, ...]:
    """The tokens of a complete answer."""
    answer = conversation.stream_reply(user(text))
    pieces = list(answer)
    assert answer.completion is not None
    assert answer.text == "".join(pieces) == answer.completion.text.lstrip()
    return answer.completion.tokens


def generated(
    loaded: LoadedModel, ids: list[int], settings: SamplingParams, ends: set[int], first: int = 0
) -> tuple[int, ...]:
    """What a new generation writes after these ids."""
    banned = set(loaded.tokenizer.special_ids) - ends
    events = generate(loaded.model, [Prompt(tuple(ids))], settings, end_ids=ends, banned_ids=banned, first=first)
    return tuple(event.id for event in events)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talkers.publish(tmp_path_factory.mktemp("published") / "talker")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_run(str(import_to_cache(str(folder))), CPU)


@pytest.fixture
def conversation(loaded: LoadedModel) -> Conversation:
    return Conversation(TextGenerator(loaded), STRATEGIES[1])


def history(loaded: LoadedModel, context: int = 10_000) -> HistoryModel:
    return HistoryModel(loaded.tokenizer.vocab_size, context)


class Script(HistoryModel):
    """Writes one text after the other, each ended by a token, after prompts that end with `mark`."""

    def __init__(self, loaded: LoadedModel, *texts: str, context: int = 10_000) -> None:
        super().__init__(loaded.tokenizer.vocab_size, context)
        t = loaded.tokenizer
        names = [t.token_name(i) for i in range(t.vocab_size)]
        self.mark = [names.index("<|start|>"), *t.encode("assistant\n")]
        self.end = names.index("<|end|>")
        self.scripts = [[*t.encode(text), self.end] for text in texts]

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        starts = [i for i in range(len(ids)) if ids[i : i + len(self.mark)] == self.mark]
        logits = torch.zeros(self.vocab_size)
        if starts:
            script = self.scripts[(len(starts) - 1) % len(self.scripts)]
            n_written = len(ids) - starts[-1] - len(self.mark)
            logits[script[min(n_written, len(script) - 1)] if n_written >= 0 else 0] = 100.0
        return logits


def scripted(loaded: LoadedModel, *texts: str, **options: Any) -> tuple[Conversation, Script]:
    model = Script(loaded, *texts)
    return Conversation(
        TextGenerator(replace(loaded, model=model)), SamplingParams("greedy", max_new_tokens=50), **options
    ), model


@pytest.mark.parametrize(
    "settings", nightly_but(STRATEGIES, 0, 1), ids=lambda settings: f"{settings.strategy} {settings.max_new_tokens}"
)
@pytest.mark.parametrize("system", nightly_but(["", "Be kind. "], 0))
def test_answers_are_those_of_generate_after_the_ids_of_transformers(
    loaded: LoadedModel, folder: Path, settings: SamplingParams, system: str
) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    conversation = Conversation(TextGenerator(loaded), settings)
    conversation.system = system
    messages = [{"role": "system", "content": system}] if system else []
    ends = {theirs.convert_tokens_to_ids("<|end|>"), theirs.eos_token_id}
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        shown = [{**one, "content": one["content"].replace("<|end|>", "\0")} for one in messages]
        ids = theirs.apply_chat_template(shown, add_generation_prompt=True, return_dict=False)
        nul = theirs.encode("\0", add_special_tokens=False)
        text = theirs.encode("<|end|>", add_special_tokens=False, split_special_tokens=True)
        ids = [token for one in ids for token in (text if [one] == nul else [one])]
        tokens = answered(conversation, question)
        assert tokens == generated(loaded, ids, settings, ends)
        messages.append({"role": "assistant", "content": conversation.turns[-1].content})
    assert [one.content for one in conversation.turns[::2]] == list(QUESTIONS)


FAMILIES: dict[str, tuple[str, ...]] = {
    "decoder": ("model.context=120",),
    "window": ("model.context=120", "model.pattern={kind: window, size: 5}"),
    "lstm": ("model={kind: recurrent, d_model: 12, context: 120}",),
    "n-gram": ("model={kind: ngram, order: 3, context: 120}",),
}


@pytest.mark.parametrize("family", nightly_but(FAMILIES, "decoder", "lstm"))
def test_a_model_trained_here_reads_questions_and_answers_between_its_marks(work: Work, family: str) -> None:
    work.pretrain(*FAMILIES[family], "training.steps=1")
    loaded = load_packed_for_inference(str(work.run()))
    t = loaded.tokenizer
    settings = SamplingParams(max_new_tokens=20, min_new_tokens=5, seed=7)
    conversation = Conversation(TextGenerator(loaded), settings)
    assert conversation.is_plain
    ids = [t.bos_id]
    for question in ("the cat", "a dog sat", "ran away"):
        ids += [*t.encode(question), t.sep_id]
        tokens = answered(conversation, question)
        assert tokens == generated(loaded, ids, settings, {t.eos_id})
        ids += [*t.encode(conversation.turns[-1].content), t.eos_id]


def test_what_was_read_is_not_read_again(loaded: LoadedModel) -> None:
    conversation, model = scripted(loaded, "yes it is", "Tom saw it")
    answered(conversation, "Who saw the ball?")
    n_first = model.read
    answered(conversation, "yes")
    ids = prompt_of(loaded, [*map(message, conversation.turns[:3])])
    n_known = (n_first // BLOCK_TOKENS) * BLOCK_TOKENS  # whole blocks are kept
    assert model.read == n_first + len(ids) - n_known + len(model.scripts[1]) - 1
    assert 0 < n_known < len(ids)
    n_before = model.read
    conversation.reset()
    answered(conversation, "Who saw Anna?")
    again = prompt_of(loaded, user("Who saw Anna?"))
    n_same = next(i for i, (a, b) in enumerate(zip(ids, again, strict=False)) if a != b)
    assert n_same > 4
    assert model.read - n_before == len(again) - n_same // BLOCK_TOKENS * BLOCK_TOKENS + len(model.scripts[0]) - 1


def message(one: Any) -> Message:
    return Message(role=one.role, content=one.content)


def test_the_same_question_has_another_sample_each_time(loaded: LoadedModel, conversation: Conversation) -> None:
    ids = prompt_of(loaded, user("Who?"))
    found = []
    for _ in range(3):
        found.append(answered(conversation, "Who?"))
        conversation.reset()
    ends = set(ChatFormat.from_tokenizer_or_plain(loaded.tokenizer).end_ids)
    assert found == [generated(loaded, ids, STRATEGIES[1], ends, first=i) for i in range(3)]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("stop", "shown", "reason"), [([], "yes it is", "end"), ([" is"], "yes it", "stop")], ids=["end", "stop"]
)
def test_an_end_of_the_template_or_a_stop_string_ends_an_answer(
    loaded: LoadedModel, stop: list[str], shown: str, reason: str
) -> None:
    conversation, _ = scripted(loaded, " yes it is", stop=stop)
    answer = conversation.stream_reply(user("Who?"))
    assert "".join(answer) == shown, "without white space at the beginning"
    assert answer.completion is not None
    assert answer.completion.finish_reason == reason
    assert not conversation.turns[-1].cut


def test_the_oldest_turns_leave_the_context_and_the_system_message_stays(loaded: LoadedModel) -> None:
    model = history(loaded, context=100)
    settings = SamplingParams(max_new_tokens=30, seed=3)
    conversation = Conversation(TextGenerator(replace(loaded, model=model)), settings)
    conversation.system = "Be kind."
    left = []
    for number in range(8):
        answer = conversation.stream_reply(user(f"Who saw ball {number}?"))
        list(answer)
        assert answer.completion is not None
        left.append(answer.n_left)
        system = Message(role="system", content="Be kind.")
        kept = conversation.turns[conversation.n_left : -1]
        ids = prompt_of(loaded, [system, *map(message, kept)])
        assert kept[0].role == "user"
        assert len(ids) <= 70
        assert answer.completion.tokens == generated(
            replace(loaded, model=model),
            ids,
            settings,
            set(ChatFormat.from_tokenizer_or_plain(loaded.tokenizer).end_ids),
        )
        if conversation.n_left:
            sooner = conversation.turns[conversation.n_left - 2 : -1]
            assert len(prompt_of(loaded, [system, *map(message, sooner)])) > 70, "no more leave than must"
    assert left[0] == 0
    assert sum(left) == conversation.n_left > 4
    assert len(conversation.turns) == 16


def test_an_answer_has_room_for_half_of_the_context_and_no_more_than_is_left(loaded: LoadedModel) -> None:
    conversation = Conversation(
        TextGenerator(replace(loaded, model=history(loaded, 60))),
        SamplingParams("greedy", max_new_tokens=500, min_new_tokens=500),
    )
    ids = prompt_of(loaded, user("Who?"))
    tokens = answered(conversation, "Who?")
    assert len(tokens) == 60 - len(ids)
    assert conversation.turns[-1].cut
    long = "Who saw the ball? " * 6
    n_ids = len(prompt_of(loaded, user(long)))
    assert 30 < n_ids < 60, "alone in the context, but without room for half of it"
    assert len(answered(conversation, long)) == 60 - n_ids
    assert conversation.n_left == 2


def test_a_message_longer_than_the_context_is_refused_and_nothing_changes(conversation: Conversation) -> None:
    answered(conversation, "Who?")
    said = list(conversation.turns)
    with pytest.raises(UsageError):
        conversation.stream_reply(user("é" * 300))
    assert conversation.turns == said
    assert conversation.n_left == 0
    answered(conversation, "Who?")


def test_an_answer_that_is_not_read_to_its_end_stays_as_it_was_written(conversation: Conversation) -> None:
    answer = conversation.stream_reply(user("Who?"))
    while not answer.text:
        next(answer)
    written = answer.text + next(answer) + next(answer)
    del answer
    assert [one.content for one in conversation.turns] == ["Who?", written]
    assert conversation.turns[-1].cut
    answered(conversation, "Sure?")
    assert [one.role for one in conversation.turns] == ["user", "assistant"] * 2


def test_an_interrupt_within_the_model_leaves_the_conversation_whole(loaded: LoadedModel) -> None:
    conversation, model = scripted(loaded, "yes it is", "Tom saw it")
    step = model.logits_after
    model.logits_after = lambda ids: interrupt() if len(ids) == at else step(ids)  # type: ignore[method-assign]
    ids = prompt_of(loaded, user("Who?"))

    def interrupt() -> torch.Tensor:
        raise KeyboardInterrupt

    at = len(ids) + 2
    with pytest.raises(KeyboardInterrupt):
        list(conversation.stream_reply(user("Who?")))
    assert conversation.turns[-1].cut
    assert "yes it is".startswith(conversation.turns[-1].content)
    at = -1
    answered(conversation, "And?")
    assert conversation.turns[-1].content == "Tom saw it"
    at = len(ids) - 1
    conversation.reset()
    with pytest.raises(KeyboardInterrupt):
        list(conversation.stream_reply(user("Whose?")))
    assert conversation.turns == [], "an answer without text does not stay, nor its question"


def test_an_answer_without_text_does_not_stay(loaded: LoadedModel) -> None:
    conversation, _ = scripted(loaded, " \n")
    answer = conversation.stream_reply(user("Who?"))
    assert "".join(answer) == ""
    assert answer.completion is not None
    assert conversation.turns == []


def test_a_saved_conversation_is_read_by_finetune(loaded: LoadedModel, tmp_path: Path) -> None:
    conversation, _ = scripted(loaded, "yes it is", "Tom saw it")
    path = tmp_path / "my talk.jsonl"
    with pytest.raises(UsageError, match="nothing to save"):
        conversation.save_to_new_file(path)
    conversation.system = "Be kind. é"
    answered(conversation, 'Who "saw"?\n')
    next(conversation.stream_reply(user("Sure?")))
    conversation.save_to_new_file(path)
    expected = [
        {"role": "system", "content": "Be kind. é"},
        {"role": "user", "content": 'Who "saw"?\n'},
        {"role": "assistant", "content": "yes it is"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": conversation.turns[-1].content, "cut": True},
    ]
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {"messages": expected}
    assert [dict(one) for one in parse_messages(expected)] == [
        {key: one[key] for key in ("role", "content")} for one in expected
    ]
    with pytest.raises(UsageError, match="the file exists"):
        conversation.save_to_new_file(path)
    for wrong in (tmp_path, tmp_path / "none" / "a.jsonl", path / "a.jsonl", Path("a\0b"), Path("a" * 300)):
        with pytest.raises((UsageError, ResourceError)):
            conversation.save_to_new_file(wrong)
    assert path.read_text(encoding="utf-8").splitlines() == [line]


def test_a_refused_system_message_is_not_set(conversation: Conversation) -> None:
    conversation.system = "Be kind."
    with pytest.raises(MessagesRefusedError, match="no, thanks"):
        conversation.system = "refuse me"
    assert conversation.system == "Be kind."
    conversation.reset()
    assert conversation.system == "Be kind.", "which outlives a reset"
    conversation.system = ""
    answered(conversation, "Who?")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "system", "content": "Be kind."}],
        [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Tom"}],
        [{"role": "nobody", "content": "Who?"}],
        [{"role": "user"}],
        [{"role": "user", "content": "\udce9"}],
        [{"role": "user", "content": None}],
    ],
)
def test_what_is_no_message_is_refused(conversation: Conversation, messages: Any) -> None:
    with pytest.raises(UsageError):
        conversation.stream_reply(messages)
    assert conversation.turns == []


def test_from_python(folder: Path, loaded: LoadedModel) -> None:
    model = lmtool.load(str(folder), device="cpu")
    messages = [
        Message(role="system", content="Be kind."),
        Message(role="user", content="Who?"),
        Message(role="assistant", content="Tom."),
        Message(role="user", content="Sure?"),
    ]
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    tokens = generated(loaded, ids, STRATEGIES[1], {theirs.convert_tokens_to_ids("<|end|>"), theirs.eos_token_id})
    assert model.chat(messages, STRATEGIES[1]) == theirs.decode(tokens, skip_special_tokens=True).lstrip()


def test_beam_search_holds_no_conversation(loaded: LoadedModel) -> None:
    with refuses("usage"):
        Conversation(TextGenerator(loaded), SamplingParams("beam"))


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.shape=encoder", "objective.kind=masked"),
        ("model.shape=encoder-decoder", "objective.kind=prefix"),
        ("model.shape=prefix", "objective.kind=prefix"),
    ],
    ids=["encoder", "encoder-decoder", "prefix"],
)
def test_only_decoders_hold_conversations(work: Work, overrides: tuple[str, ...]) -> None:
    work.pretrain(*overrides, "training.steps=1")
    with pytest.raises(UsageError, match="only decoders"):
        Conversation(TextGenerator(load_run(str(work.run()))))


def test_a_model_of_pairs_in_another_format_is_refused(loaded: LoadedModel) -> None:
    prompt_format = replace(loaded.prompt_format, answers=True, chat=None)
    pairs = replace(loaded)
    pairs.__dict__["prompt_format"] = prompt_format
    with pytest.raises(UsageError, match="pairs of texts"):
        Conversation(TextGenerator(pairs))
