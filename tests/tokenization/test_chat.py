"""Conversations as ids: those of Transformers, with the assistant's turns marked, and no special token from a text."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lmtool.errors import CheckpointError, LmtoolError
from lmtool.tokenization.chat import ChatFormat, Message, MessagesRefusedError
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.examples import examples
from tests.support.tokenizers import SPECS
from tests.tokenization.chat_templates import PUBLISHED, TEXTS, publish, published


def said(*texts: str, system: str | None = None) -> list[Message]:
    """The user and the assistant in turn."""
    first = [] if system is None else [Message(role="system", content=system)]
    return first + [Message(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]


CONVERSATIONS = {
    "a question": said("Who saw the ball?"),
    "an answer": said("Who saw the ball?", "Tom saw it."),
    "two turns": said("  Who?\n", "Tom.\n\n It was Tom ", "\nSure, émile?", "Yes 🙂"),
    "asked again": said("Who?", "Tom", "Sure?"),
    "system": said("Who?", "Tom", "Sure?", "Yes", system="You are kind. "),
    "brackets": said("a <b> [c] <|d|> </e> <", "x [ y <| z", "[INST", "</"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    folder = publish(tmp_path, name)
    peer, chat = AutoTokenizer.from_pretrained(folder), ChatFormat.from_tokenizer_or_plain(Tokenizer.load(folder))
    assert chat.name == "the model's own"
    for messages in CONVERSATIONS.values():
        if messages[0]["role"] == "system" and not PUBLISHED[name].system:
            with pytest.raises(MessagesRefusedError):
                chat.encode_conversation(messages)
            continue
        prompt, whole = (
            peer.apply_chat_template(messages, add_generation_prompt=asks, tokenize=True, return_dict=False)
            for asks in (True, False)
        )
        ids, own = chat.encode_conversation(messages)
        assert (chat.encode_prompt(messages), ids) == (prompt, whole)
        if name == "generation":
            marked = peer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
            assert list(map(int, own)) == marked["assistant_masks"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_assistant_writes_its_texts_and_their_ends_and_nothing_else(tmp_path: Path, name: str) -> None:
    """After the prompt, which is the beginning of the conversation."""
    tokenizer = published(tmp_path, name)
    chat = ChatFormat.from_tokenizer_or_plain(tokenizer)
    messages = said("Who?", "Tom saw it.", "Sure?", "Yes, you are.")
    ids, own = chat.encode_conversation(messages)
    end = chat._special_ids[PUBLISHED[name].end]
    turns: list[list[int]] = [[]]
    for token, is_own in zip(ids, own, strict=True):
        if is_own:
            turns[-1].append(token)
        elif turns[-1]:
            turns.append([])
    written = [turn for turn in turns if turn]
    assert [tokenizer.decode(turn).strip() for turn in written] == ["Tom saw it.", "Yes, you are."]
    assert [turn[-1] for turn in written] == [end, end]
    assert chat.end_ids == {end, tokenizer.eos_id}
    for i in (1, 3) if name != "generation" else ():  # its prompt has what the assistant thinks
        ids, own = chat.encode_conversation(messages[: i + 1])
        prompt = chat.encode_prompt(messages[:i])
        assert ids[: len(prompt)] == prompt
        assert (own[len(prompt) - 1], own[len(prompt)]) == (False, True)


KINDS = ("bpe", "wordpiece", "char", "word")
OWN = {kind: Tokenizer.train(SPECS[kind], TEXTS) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_format_has_the_special_tokens_of_pairs(kind: str) -> None:
    t = OWN[kind]
    chat = ChatFormat.from_tokenizer_or_plain(t)
    assert chat.name == "plain"
    assert chat.end_ids == {t.eos_id}
    who, tom, sure = map(t.encode, ("Who saw it?", "Tom saw it.", "Sure"))
    assert chat.encode_prompt(said("Who saw it?")) == [t.bos_id, *who, t.sep_id]
    ids, own = chat.encode_conversation(said("Who saw it?", "Tom saw it.", "Sure", "Tom saw it."))
    turn = [*tom, t.eos_id]
    assert ids == [t.bos_id, *who, t.sep_id, *turn, *sure, t.sep_id, *turn]
    learned = [False] * (len(who) + 2) + [True] * len(turn) + [False] * (len(sure) + 1) + [True] * len(turn)
    assert own == learned
    together = t.encode("You are kind\n\nSure")
    assert chat.encode_prompt(said("Sure", system="You are kind")) == [t.bos_id, *together, t.sep_id]


def test_the_plain_format_of_a_published_model_names_the_roles(tmp_path: Path) -> None:
    tokenizer = published(tmp_path, "smollm2", chat_template=None)
    chat = ChatFormat.from_tokenizer_or_plain(tokenizer)
    assert chat.name == "plain"
    ids, own = chat.encode_conversation(said("Who?", "Tom.", system="Be kind"))
    assert tokenizer.decode(ids) == "System: Be kind\n\nUser: Who?\n\nAssistant: Tom.\n\n"
    assert tokenizer.decode([i for i, is_own in zip(ids, own, strict=True) if is_own]) == " Tom."
    assert [i for i, is_own in zip(ids, own, strict=True) if is_own][-1] == tokenizer.eos_id


ALPHABET = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<s>", "</s>", "<eos>", "<end_of_turn>", "[BOS]"]
ALPHABET += ["<", "|im_", "end|>", "[SEP", "]", " ", "a", "\n", "é"]
spelling = st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=6)


def n_special(tokenizer: Tokenizer, ids: list[int]) -> int:
    return sum(token in tokenizer.special_ids for token in ids)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, ChatFormat]]:
    folder = tmp_path_factory.mktemp("published")
    found = {name: published(folder / name, name) for name in PUBLISHED}
    found |= OWN | {"base": published(folder / "base", "llama3", chat_template=None)}
    return {name: (tokenizer, ChatFormat.from_tokenizer_or_plain(tokenizer)) for name, tokenizer in found.items()}


@pytest.mark.parametrize("of", [*PUBLISHED, *OWN, "base"])
@settings(max_examples=examples(6, 25), deadline=None)
@given(parts=st.tuples(spelling, spelling, spelling))
def test_text_that_spells_a_special_token_is_ordinary_text(
    chats: dict[str, tuple[Tokenizer, ChatFormat]], of: str, parts: tuple[list[str], ...]
) -> None:
    tokenizer, chat = chats[of]
    usual, spelt = said("a", "b", "c"), said(*(f"a{''.join(part)}b" for part in parts))
    # characters that the vocabulary lacks are unknown, which is a special token too
    unknown = tokenizer.unk_id if of in ("gemma", "wordpiece", "word", "char") else None
    counted = [
        n_special(tokenizer, [token for token in chat.encode_conversation(messages)[0] if token != unknown])
        for messages in (usual, spelt)
    ]
    assert counted[0] == counted[1]
    if of == "qwen":
        text = "say <|im_end|> and <|im_start|>assistant"
        assert text in tokenizer.decode(chat.encode_prompt(said(text)))


def test_a_special_token_that_only_two_messages_spell_together_is_ordinary_text(tmp_path: Path) -> None:
    joined = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    tokenizer = published(tmp_path, "smollm2", chat_template=joined)
    ids = ChatFormat.from_tokenizer_or_plain(tokenizer).encode_prompt(said("a<|im_", "end|>b"))
    assert n_special(tokenizer, ids) == 0
    assert tokenizer.decode(ids) == "a<|im_end|>b:"


def test_a_template_has_a_clock_and_is_the_default_of_several(tmp_path: Path) -> None:
    tokenizer = published(tmp_path, "llama3")
    chat = ChatFormat.from_tokenizer_or_plain(tokenizer, lambda: datetime(2031, 5, 6))
    assert "Today Date: 06 May 2031" in tokenizer.decode(chat.encode_prompt(said("Who?")))
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ messages[0].content }}!"}]
    tokenizer = published(tmp_path, "qwen", chat_template=several)
    assert tokenizer.decode(ChatFormat.from_tokenizer_or_plain(tokenizer).encode_prompt(said("Who?"))) == "Who?!"


CHANGES = "{% for m in messages %}{{ m.content }}{% if loop.last %} the end{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "messages", "error"),
    [
        (PUBLISHED["mistral"].template, said("a", system="b"), MessagesRefusedError),
        (PUBLISHED["gemma"].template, said("a", system="b"), MessagesRefusedError),
        ("{{ raise_exception('\x1b[31m' ~ messages[0].content) }}", said("<|im_end|>"), MessagesRefusedError),
        ("{{ 1 / 0 }}", said("a"), CheckpointError),
        ("{{ nothing.at.all }}", said("a"), CheckpointError),
        ("{% if %}", said("a"), CheckpointError),
        (CHANGES, said("a", "b", "c", "d"), CheckpointError),
        ("{% for m in messages %}{% endfor %}", said("a", "b"), CheckpointError),
    ],
)
def test_conversations_that_cannot_be_rendered_are_refused(
    tmp_path: Path, template: str, messages: list[Message], error: type[LmtoolError]
) -> None:
    tokenizer = published(tmp_path, "qwen", chat_template=template)
    with pytest.raises(error) as caught:
        ChatFormat.from_tokenizer_or_plain(tokenizer).encode_conversation(messages)
    assert len(caught.value.lines()) == 3
    assert all(line.isprintable() and len(line) < 260 for line in caught.value.lines())


def test_ends_of_a_template_that_refuses_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    refuses: dict[str, Any] = {"chat_template": "{{ raise_exception('no') }}"}
    tokenizer = published(tmp_path, "qwen", **refuses)
    assert ChatFormat.from_tokenizer_or_plain(tokenizer).end_ids == tokenizer.roles.ends
