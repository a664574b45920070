"""Conversations: answers are those of `generate` for the ids of Transformers' template, whatever is remembered."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from lmtool.compute.device import CPU
from lmtool.errors import LmtoolError, UsageError
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
from tests.support.errors import refuses
from tests.support.training import Work

QUESTIONS = ("Who saw the ball?", "  Are you sure?\n", "é 🙂 <|end|> [BOS]")
SAMPLED = SamplingParams(max_new_tokens=20, seed=7)


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def message(one: Any) -> Message:
    return Message(role=one.role, content=one.content)


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
    loaded: LoadedModel,
    ids: list[int],
    settings: SamplingParams = SAMPLED,
    ends: set[int] | None = None,
    first: int = 0,
) -> tuple[int, ...]:
    """What a new generation writes after these ids, up to an end of the model's template."""
    ends = set(ChatFormat.from_tokenizer_or_plain(loaded.tokenizer).end_ids) if ends is None else ends
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
    return Conversation(TextGenerator(loaded), SAMPLED)


class Script(HistoryModel):
    """Writes one text after the other, each ended by a token, after prompts that end with `mark`."""

    def __init__(self, loaded: LoadedModel, *texts: str) -> None:
        super().__init__(loaded.tokenizer.vocab_size, 10_000)
        t = loaded.tokenizer
        names = [t.token_name(i) for i in range(t.vocab_size)]
        self.mark = [names.index("<|start|>"), *t.encode("assistant\n")]
        self.scripts = [[*t.encode(text), names.index("<|end|>")] for text in texts]
        self.interrupted_at = -1

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        if len(ids) == self.interrupted_at:
            raise KeyboardInterrupt
        starts = [i for i in range(len(ids)) if ids[i : i + len(self.mark)] == self.mark]
        logits = torch.zeros(self.vocab_size)
        if starts:
            script = self.scripts[(len(starts) - 1) % len(self.scripts)]
            n_written = len(ids) - starts[-1] - len(self.mark)
            logits[script[min(n_written, len(script) - 1)] if n_written >= 0 else 0] = 100.0
        return logits


def scripted(loaded: LoadedModel, *texts: str, **options: Any) -> tuple[Conversation, Script]:
    model = Script(loaded, *texts)
    settings = SamplingParams("greedy", max_new_tokens=50)
    return Conversation(TextGenerator(replace(loaded, model=model)), settings, **options), model


@pytest.mark.parametrize(("strategy", "system"), [("greedy", ""), ("sample", "Be kind. ")])
def test_answers_are_those_of_generate_after_the_ids_of_transformers(
    loaded: LoadedModel, folder: Path, strategy: Any, system: str
) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    settings = SamplingParams(strategy, max_new_tokens=20, seed=7)
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
        assert answered(conversation, question) == generated(loaded, ids, settings, ends)
        messages.append({"role": "assistant", "content": conversation.turns[-1].content})
    assert [one.content for one in conversation.turns[::2]] == list(QUESTIONS)


@pytest.mark.parametrize("spec", ["{context: 120}", "{kind: recurrent, d_model: 12, context: 120}"])
def test_a_model_trained_here_reads_questions_and_answers_between_its_marks(work: Work, spec: str) -> None:
    work.pretrain(f"model={spec}", "training.steps=1")
    loaded = load_packed_for_inference(str(work.run()))
    t = loaded.tokenizer
    settings = replace(SAMPLED, min_new_tokens=5)
    conversation = Conversation(TextGenerator(loaded), settings)
    assert conversation.is_plain
    ids = [t.bos_id]
    for question in ("the cat", "a dog sat", "ran away"):
        ids += [*t.encode(question), t.sep_id]
        assert answered(conversation, question) == generated(loaded, ids, settings, {t.eos_id})
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


def test_the_same_question_has_another_sample_each_time(loaded: LoadedModel, conversation: Conversation) -> None:
    ids = prompt_of(loaded, user("Who?"))
    found = []
    for _ in range(3):
        found.append(answered(conversation, "Who?"))
        conversation.reset()
    assert found == [generated(loaded, ids, first=i) for i in range(3)]
    assert len(set(found)) == 3


@pytest.mark.parametrize(("stop", "shown", "reason"), [([], "yes it is", "end"), ([" is"], "yes it", "stop")])
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
    forgetful = replace(loaded, model=HistoryModel(loaded.tokenizer.vocab_size, context=100))
    settings = replace(SAMPLED, max_new_tokens=30)
    conversation = Conversation(TextGenerator(forgetful), settings)
    system = Message(role="system", content="Be kind.")
    conversation.system = "Be kind."
    left = []
    for number in range(5):
        answer = conversation.stream_reply(user(f"Who saw ball {number}?"))
        list(answer)
        assert answer.completion is not None
        left.append(answer.n_left)
        kept = conversation.turns[conversation.n_left : -1]
        ids = prompt_of(loaded, [system, *map(message, kept)])
        assert kept[0].role == "user"
        assert len(ids) <= 70
        assert answer.completion.tokens == generated(forgetful, ids, settings)
        if conversation.n_left:
            sooner = conversation.turns[conversation.n_left - 2 : -1]
            assert len(prompt_of(loaded, [system, *map(message, sooner)])) > 70, "no more leave than must"
    assert left[0] == 0
    assert sum(left) == conversation.n_left > 4
    assert len(conversation.turns) == 10


def test_an_answer_has_room_for_half_of_the_context_and_no_more_than_is_left(loaded: LoadedModel) -> None:
    model = HistoryModel(loaded.tokenizer.vocab_size, context=60)
    settings = SamplingParams("greedy", max_new_tokens=500, min_new_tokens=500)
    conversation = Conversation(TextGenerator(replace(loaded, model=model)), settings)
    assert len(answered(conversation, "Who?")) == 60 - len(prompt_of(loaded, user("Who?")))
    assert conversation.turns[-1].cut
    long = "Who saw the ball? " * 6
    n_ids = len(prompt_of(loaded, user(long)))
    assert 30 < n_ids < 60, "alone in the context, but without room for half of it"
    assert len(answered(conversation, long)) == 60 - n_ids
    assert conversation.n_left == 2


def test_what_is_refused_changes_nothing(conversation: Conversation) -> None:
    assistant = Message(role="assistant", content="Tom")
    wrong: list[Any] = [[], [Message(role="system", content="Be kind.")], [*user("Who?"), assistant]]
    wrong += [[{"role": "nobody", "content": "Who?"}], user("\udce9"), [{"role": "user"}], user("é" * 300)]
    answered(conversation, "Who?")
    conversation.system = "Be kind."
    said = list(conversation.turns)
    for messages in wrong:
        with pytest.raises(UsageError):
            conversation.stream_reply(messages)
    with pytest.raises(MessagesRefusedError, match="no, thanks"):
        conversation.system = "refuse me"
    assert (conversation.turns, conversation.n_left, conversation.system) == (said, 0, "Be kind.")
    conversation.reset()
    assert conversation.system == "Be kind.", "which outlives a reset"


def test_an_interrupt_within_the_model_leaves_the_conversation_whole(loaded: LoadedModel) -> None:
    conversation, model = scripted(loaded, "yes it is", "Tom saw it")
    ids = prompt_of(loaded, user("Who?"))
    model.interrupted_at = len(ids) + 2
    with pytest.raises(KeyboardInterrupt):
        list(conversation.stream_reply(user("Who?")))
    assert conversation.turns[-1].cut
    assert "yes it is".startswith(conversation.turns[-1].content)
    model.interrupted_at = -1
    answered(conversation, "And?")
    assert conversation.turns[-1].content == "Tom saw it"
    model.interrupted_at = len(ids) - 1
    conversation.reset()
    with pytest.raises(KeyboardInterrupt):
        list(conversation.stream_reply(user("Whose?")))
    assert conversation.turns == [], "an answer without text does not stay, nor its question"


def test_an_answer_without_text_does_not_stay(loaded: LoadedModel) -> None:
    conversation, _ = scripted(loaded, " \n")
    assert "".join(conversation.stream_reply(user("Who?"))) == ""
    assert conversation.turns == []


def test_a_saved_conversation_is_read_by_finetune(loaded: LoadedModel, tmp_path: Path) -> None:
    conversation, _ = scripted(loaded, "yes it is", "Tom saw it")
    path = tmp_path / "my talk.jsonl"
    with pytest.raises(UsageError):
        conversation.save_to_new_file(path)
    conversation.system = "Be kind. é"
    answered(conversation, 'Who "saw"?\n')
    next(conversation.stream_reply(user("Sure?")))
    conversation.save_to_new_file(path)
    said = [message(one) for one in conversation.turns]
    expected: list[Any] = [Message(role="system", content="Be kind. é"), *said]
    assert expected[1:3] == [*user('Who "saw"?\n'), Message(role="assistant", content="yes it is")]
    (line,) = path.read_text(encoding="utf-8").splitlines()
    saved = json.loads(line)["messages"]
    assert saved == [*expected[:-1], {**expected[-1], "cut": True}]
    assert [dict(one) for one in parse_messages(saved)] == expected
    for wrong in (path, tmp_path, tmp_path / "none" / "a.jsonl", path / "a.jsonl", Path("a\0b"), Path("a" * 300)):
        with pytest.raises(LmtoolError):
            conversation.save_to_new_file(wrong)
    assert path.read_text(encoding="utf-8").splitlines() == [line]


@pytest.mark.parametrize("shape", ["encoder", "encoder-decoder"])
def test_only_decoders_hold_conversations(work: Work, shape: str) -> None:
    objective = "masked" if shape == "encoder" else "prefix"
    work.pretrain(f"model.shape={shape}", f"objective.kind={objective}", "training.steps=1")
    with refuses("usage"):
        Conversation(TextGenerator(load_run(str(work.run()))))


def test_beam_search_and_a_model_of_pairs_in_another_format_hold_no_conversation(loaded: LoadedModel) -> None:
    with refuses("usage"):
        Conversation(TextGenerator(loaded), SamplingParams("beam"))
    pairs = replace(loaded)
    pairs.__dict__["prompt_format"] = replace(loaded.prompt_format, answers=True, chat=None)
    with refuses("usage"):
        Conversation(TextGenerator(pairs))
