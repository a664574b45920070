"""Sentences from templates, whose choices and slots are filled from left to right as they are written.

A template is text with `<one way|another way>` (nested as needed; a choice may be empty) and `{slot}` or `{slot.form}`.
A slot holds a string, a `Lazy` value, or anything with `render(form, said)` (see world.py). A lazy value is drawn at
the moment its first word is written, so that the parser of choice.py never has to guess what is not yet visible.
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from choice import Teller, zipf
from words import Fork

PIECE = re.compile(r"([<>|]|\{[^{}]*\})")


@dataclass(frozen=True)
class Slot:
    name: str
    form: str


@dataclass(frozen=True)
class Choice:
    branches: tuple[tuple[Any, ...], ...]


@functools.cache
def compiled(template: str) -> tuple[Any, ...]:
    """A template as a sequence of strings, Slots and Choices. Raises ValueError if its brackets do not match."""
    stack: list[list[list[Any]]] = [[[]]]
    for piece in PIECE.split(template):
        if piece == "<":
            stack.append([[]])
        elif piece == "|" and len(stack) > 1:
            stack[-1].append([])
        elif piece == ">":
            if len(stack) == 1:
                raise ValueError(f"unmatched > in {template!r}")
            choice = Choice(tuple(map(tuple, stack.pop())))
            stack[-1][-1].append(choice)
        elif piece.startswith("{"):
            name, _, form = piece[1:-1].partition(".")
            stack[-1][-1].append(Slot(name, form))
        elif piece:
            stack[-1][-1].append(piece)
    if len(stack) > 1:
        raise ValueError(f"unmatched < in {template!r}")
    return tuple(stack[0][0])


@dataclass
class Ask:
    """A slot that needs something drawn before it is written. texts(i): what option i would write (None: unknown)."""

    options: Sequence[Any]
    weights: Sequence[float] | None
    texts: Callable[[int], str] | None
    take: Callable[[Any], None]


class Lazy:
    """A value drawn when it is first written or asked for.

    options may be a function, called at that moment; weights may be "zipf" or a function of the options.
    """

    def __init__(self, options: Any, weights: Any = None) -> None:
        self.options, self.weights = options, weights

    def resolved(self) -> tuple[Sequence[Any], Sequence[float] | None]:
        options = self.options() if callable(self.options) else self.options
        if self.weights == "zipf":
            return options, zipf(len(options))
        return options, self.weights(options) if callable(self.weights) else self.weights


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
        if isinstance(value, Lazy):
            value = self.slots[name] = self.choose(*value.resolved())
        return value

    def set(self, **slots: Any) -> None:
        self.slots |= slots

    def render(self, slot: Slot, said: dict[str, Any]) -> str | Ask:
        value = self.slots[slot.name]
        if isinstance(value, Lazy):
            options, weights = value.resolved()
            take = functools.partial(self.slots.__setitem__, slot.name)
            return Ask(options, weights, lambda i: form_of(options[i], slot.form), take)
        if hasattr(value, "render"):
            return value.render(slot.form, said)
        return form_of(value, slot.form)

    def head(self, nodes: Sequence[Any]) -> str:
        """The words that nodes certainly begin with: all up to the first choice."""
        words, said = [], dict(self.said)
        for node in nodes:
            if isinstance(node, str):
                words.append(node)
            elif isinstance(node, Choice):
                break
            else:
                text = self.render(node, said)
                if isinstance(text, Ask):
                    break
                words.append(text)
        return "".join(words)

    def branch_head(self, branches: Sequence[tuple[Any, ...]], rest: Sequence[Any], index: int) -> str:
        return self.head([*branches[index], *rest])

    def write(self, template: str) -> None:
        """Write a template, making its choices."""
        nodes = list(reversed(compiled(template)))
        while nodes:
            node = nodes.pop()
            if isinstance(node, str):
                self.emit(node)
            elif isinstance(node, Choice):
                branches, rest = node.branches, nodes[::-1]
                branch = self.choose(branches, heads=functools.partial(self.branch_head, branches, rest))
                nodes.extend(reversed(branch))
            else:
                text = self.render(node, self.said)
                while isinstance(text, Ask):
                    text.take(self.choose(text.options, text.weights, text.texts))
                    text = self.render(node, self.said)
                self.emit(text, self.slots[node.name])

    def emit(self, text: str, slot: Any = None) -> None:
        """Write text, which comes from a slot if its value is given."""
        self.teller.emit(text)

    def say(self, *ways: str, weights: Sequence[float] | None = None) -> int:
        """Tell one thing in one of several ways, as one or more sentences. Returns which way."""
        which = self.choose(
            range(len(ways)), weights, heads=lambda i: self.gap + self.head(compiled(ways[i])) if ways[i] else ""
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
