"""Cells that hold conversations: lists of messages, as objects with role and content, or from and value (ShareGPT)."""

from typing import Any

from lmtool.text.chat import ROLES, Message
from lmtool.text.delimited import FIELD_LIMIT, misfit
from lmtool.text.files import shown
from lmtool.text.tokenizer import without_surrogates

KEYS = (("role", "content"), ("from", "value"))
"""Names of who writes a message, and of its text."""

NAMES = {"human": "user", "gpt": "assistant"}
"""Other names of roles."""

_SHAPE = 'write a list of messages: [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


class MessageFault(Exception):
    """A cell that is no conversation. kind: the fault without details."""

    def __init__(self, kind: str, what: str, fix: str = _SHAPE) -> None:
        super().__init__(what)
        self.kind, self.what, self.fix = kind, what, fix


def as_messages(cell: Any) -> tuple[Message, ...]:
    """The messages of a cell. All keys but role and content are ignored. Raises MessageFault."""
    if cell is None or cell == []:
        raise MessageFault("empty messages", "the list of messages is empty")
    if not isinstance(cell, list):
        raise MessageFault("wrong type", f"the cell is {type(cell).__name__}, not a list of messages")
    return tuple(_message(value, number) for number, value in enumerate(cell, 1))


def _message(value: Any, number: int) -> Message:
    if not isinstance(value, dict):
        raise MessageFault("wrong type", f"message {number} is {type(value).__name__}, not an object")
    keys = next((keys for keys in KEYS if any(value.get(key) is not None for key in keys)), KEYS[0])
    named, text = (value.get(key) for key in keys)
    if not isinstance(named, str):
        what = "has no" if named is None else f"has {type(named).__name__} as its"
        raise MessageFault("wrong role", f"message {number} {what} {keys[0]}")
    role = NAMES.get(named, named)
    if role not in ROLES:
        fix = f"name one of {', '.join(ROLES)}"
        raise MessageFault("wrong role", f"message {number} is by {shown(named, 30)}, which is no role", fix)
    if not isinstance(text, str):
        what = "no" if text is None else f"{type(text).__name__}, not text, as its"
        raise MessageFault("wrong type", f"message {number} has {what} {keys[1]}", "write text")
    if role == "assistant" and not text.strip():
        raise MessageFault("empty answer", f"message {number}, of the assistant, is empty", "fill it")
    fault = misfit((text,), None, FIELD_LIMIT)
    if fault is not None:
        raise MessageFault(fault.kind, f"message {number}: {fault.what}", fault.fix)
    return Message(role=role, content=without_surrogates(text))
