"""Sentences from templates, whose choices and slots are filled from left to right as they are written.

A template is text with `<one way|another way>` (nested as needed; a choice may be empty) and `{slot}` or `{slot.form}`.
A slot holds a string, a row of a table, or anything with `render(form, said)`, such as a `Lazy` value. That is drawn at
the moment its first word is written, so that the parser of choice.py never has to guess what is not yet visible.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from choice import Teller, zipf
from words import Fork

PIECE = re.compile(r"([<>|]|\{[^{}]*\})")


class Slot(NamedTuple):
    name: str
    form: str


@functools.cache
def compiled(template: str) -> list[Any]:
    """A template as strings, Slots and lists of branches. Raises ValueError if its brackets do not match."""
    stack: list[list[list[Any]]] = [[[]]]
    for piece in PIECE.split(template):
        if piece == "<":
            stack.append([[]])
        elif piece == "|" and len(stack) > 1:
            stack[-1].append([])
        elif piece == ">":
            if len(stack) == 1:
                raise ValueError(f"unmatched > in {template!r}")
            branches = stack.pop()
            stack[-1][-1].append(branches)
        elif piece.startswith("{"):
            name, _, form = piece[1:-1].partition(".")
            stack[-1][-1].append(Slot(name, form))
        elif piece:
            stack[-1][-1].append(piece)
    if len(stack) > 1:
        raise ValueError(f"unmatched < in {template!r}")
    return stack[0][0]


class Ask(NamedTuple):
    """What a slot needs drawn before it is written. text: what it would write for an option (None: unknown)."""

    options: Sequence[Any]
    weights: Sequence[float] | None
    text: Callable[[Any], str] | None
    take: Callable[[Any], None]


class Lazy:
    """A value that is drawn when it is first written or asked for; None until then.

    options may be a function, called at that moment; weights may be "zipf" or a function of the options.
    """

    def __init__(self, options: Any, weights: Any = None, value: Any = None) -> None:
        self.options, self.weights, self.value = options, weights, value

    def resolved(self) -> tuple[Sequence[Any], Sequence[float] | None]:
        options = self.options() if callable(self.options) else self.options
        if self.weights == "zipf":
            return options, zipf(len(options))
        return options, self.weights(options) if callable(self.weights) else self.weights

    def take(self, value: Any) -> None:
        self.value = value

    def ask(self, text: Callable[[Any], str] | None = str) -> Any:
        """The text of the value, or the Ask that draws it."""
        if self.value is None:
            return Ask(*self.resolved(), text, self.take)
        return text(self.value) if text else self.value

    def render(self, form: str, said: dict[str, Any]) -> str | Ask:
        return self.ask(lambda value: form_of(value, form))


def distinct(words: Sequence[Any], weights: Any = None) -> Callable[..., Lazy]:
    """A function that gives each key a word that no other key has, drawn when it is first written.

    It may be told which words fit(word) a key.
    """
    found: dict[Any, Lazy] = {}

    def word_of(key: Any, fit: Callable[[Any], bool] = lambda word: True) -> Lazy:
        def free() -> list[Any]:
            taken = [one.value for one in found.values()]
            return [word for word in words if word not in taken and fit(word)]

        return found.setdefault(key, Lazy(free, weights))

    return word_of


def form_of(value: Any, form: str) -> str:
    """A field of a row; of a string with an article {x.bare} without it, and {x.the} with the definite one."""
    if isinstance(value, str) and form in ("bare", "the"):
        return "the " * (form == "the") + value.split(" ", 1)[1]
    return str(getattr(value, form) if form else value)


class Story:
    """One text while it is told: a teller, the slots of its templates, and who was spoken of last.

    story["name"] = value sets a slot; story["name"] reads one, drawing it if it is lazy.
    `said` is passed to the render method of slots: it keeps whom a pronoun would be understood to mean.
    """

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.slots: dict[str, Any] = {}
        self.said: dict[str, Any] = {}
        self.gap = ""  # what separates the next sentence from the last
        self.choose, self.chance = teller.choose, teller.chance

    def __setitem__(self, name: str, value: Any) -> None:
        self.slots[name] = value

    def __getitem__(self, name: str) -> Any:
        value = self.slots[name]
        if not isinstance(value, Lazy):
            return value
        if value.value is None:
            value.take(self.choose(*value.resolved()))
        return value.value

    def set(self, **slots: Any) -> None:
        self.slots |= slots

    def render(self, slot: Slot, said: dict[str, Any]) -> str | Ask:
        value = self.slots[slot.name]
        return value.render(slot.form, said) if hasattr(value, "render") else form_of(value, slot.form)

    def head(self, nodes: Sequence[Any]) -> str:
        """The words that nodes certainly begin with: all up to the first choice."""
        words, said = "", self.said.copy()
        for node in nodes:
            text = self.render(node, said) if isinstance(node, Slot) else node
            if not isinstance(text, str):
                break
            words += text
        return words

    def write(self, template: str) -> None:
        """Write a template, making its choices."""
        nodes = compiled(template)
        while nodes:
            node, *nodes = nodes
            if isinstance(node, str):
                self.emit(node)
            elif isinstance(node, list):
                nodes = self.choose([[*branch, *nodes] for branch in node], head=self.head)
            else:
                while isinstance(text := self.render(node, self.said), Ask):
                    text.take(self.choose(*text[:3]))
                self.emit(text, self.slots[node.name])

    def emit(self, text: str, slot: Any = None) -> None:
        """Write text, which comes from a slot if its value is given."""
        self.teller.emit(text)

    def say(self, *ways: str, weights: Sequence[float] | None = None) -> int:
        """Tell one thing in one of several ways, as one or more sentences. Returns which way."""
        which = self.choose(
            range(len(ways)), weights, lambda i: self.gap + self.head(compiled(ways[i])) if ways[i] else ""
        )
        if ways[which]:
            self.write(self.gap + ways[which])
            self.gap = " ^"
        return which

    def maybe(self, *ways: str, p: float = 0.5) -> bool:
        """Tell it with probability p."""
        return self.say("", *ways, weights=[1 - p, *[p / len(ways)] * len(ways)]) > 0

    def fork(self, ways: Fork) -> str:
        """Choose what happens together with how it is told; the outcome."""
        return ways[self.say(*[way for _, way, _ in ways], weights=[weight for weight, _, _ in ways])][2]
