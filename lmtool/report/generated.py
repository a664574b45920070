"""Generated texts as a page: tokens shaded by probability, what else was probable, the tree of a beam search."""

from collections.abc import Sequence
from itertools import count, groupby
from math import exp
from typing import Any

from markupsafe import Markup
from rich.cells import cell_len

from lmtool.generation.request import BeamNode, Completion
from lmtool.printable import printable
from lmtool.report.charts import CHARACTER
from lmtool.report.page import Section, asset, embed, figure, page, render, table
from lmtool.tokenization.tokenizer import Tokenizer

SHADES = 10
"""Steps of the shade that stands for a probability."""

COLUMN, LANE = 84, 22
"""Pixels from step to step of a beam search, and between hypotheses."""

SHOWN = 10
"""Characters of a piece in the tree."""


def as_page(completions: Sequence[tuple[str, Completion]], tokenizer: Tokenizer, facts: str) -> str:
    """Texts, each with the prompt that is shown before it, as an HTML page that stands alone.

    The completions have details. facts: run, checkpoint and settings, in a line.
    """
    sections = []
    for number, (prompt, completion) in enumerate(completions, 1):
        score = "" if completion.score is None else f", score {completion.score:.4f}"
        title = f"Text {number}{score}, ended by {completion.finish_reason}"
        sections.append(Section(title, _text(f"tokens-{number}", prompt, completion, tokenizer)))
        if completion.tree:
            sections.append(Section(f"Search of text {number}", _search(completion.tree, tokenizer)))
    lead = render("generated.html", facts=printable(facts), shades=[f"p{shade}" for shade in range(SHADES + 1)])
    return page("Generated text", sections, lead=lead, styles=[asset("tokens.css")], scripts=[asset("tokens.js")])


def _text(identifier: str, prompt: str, completion: Completion, tokenizer: Tokenizer) -> Markup:
    """The tokens of a text, and their numbers as a table."""
    tokens, known = [], []
    rows: list[Sequence[str | int | float]] = []
    chosen = completion.tokens, completion.logprobs, completion.ranks or (), completion.removed or ()
    details = zip(*chosen, completion.alternatives or (), strict=True)
    for number, (token, logprob, rank, removed, alternatives) in enumerate(details, 1):
        p, piece = exp(logprob), tokenizer.display_token(token)
        tokens.append({"piece": piece, "shade": round(p * SHADES)})
        others, listed = [], []
        for other in alternatives:
            name, share = tokenizer.display_token(other.id), round(exp(other.logprob), 6)
            others.append({"piece": name, "p": share, "kept": other.kept, "taken": other.id == token})
            listed.append(f"{name!r} {share:.4f}{'' if other.kept else ', removed'}")
        numbers = f"{piece!r}: p {p:.4f}, rank {rank}, filters removed {removed:.4f}"
        known.append({"text": numbers, "alternatives": others})
        rows.append([number, repr(piece), p, rank, removed, "\n".join(listed)])
    text = render(
        "tokens.html", prompt=printable(prompt, keep_line_breaks=True), tokens=tokens, data=embed(identifier, known)
    )
    columns = ["place", "token", "p", "rank", "removed by filters", "most probable"]
    return text + render("numbers.html", numbers=table(columns, rows))


def _search(tree: Sequence[BeamNode], tokenizer: Tokenizer) -> Markup:
    """The tree of a beam search, from left to right, and its numbers as a table."""
    placed = lanes(tree)
    best = {i for i, node in enumerate(tree) if node.rank is not None for i in _line(tree, i)}
    nodes: list[dict[str, Any]] = []
    edges, rows = [], []
    for i, (node, (step, lane)) in enumerate(zip(tree, placed, strict=True)):
        x, y = 12 + step * COLUMN, 14 + lane * LANE
        piece = tokenizer.display_token(node.token)
        score = "" if node.score is None else f", score {node.score:.4f}"
        title = f"{piece!r}, log-probability {node.total:.4f}{score}"
        shown = piece if len(piece) <= SHOWN else f"{piece[: SHOWN - 1]}…"
        nodes.append({"x": x, "y": y, "piece": shown, "title": title, "returned": i in best, "ended": node.finish})
        if node.parent is not None:
            before, above = placed[node.parent]
            wide = round(CHARACTER * cell_len(nodes[node.parent]["piece"]))
            left, top = 16 + before * COLUMN + wide, 14 + above * LANE
            edges.append((i in best, f"M{left} {top}C{x - 4} {top} {left} {y} {x - 4} {y}"))
        parent, rank = (None if index is None else index + 1 for index in (node.parent, node.rank))
        rows.append([i + 1, parent, step + 1, repr(piece), node.total, node.score, node.finish, rank])
    width, height = 24 + COLUMN * (1 + max(step for step, _ in placed)), 28 + LANE * max(lane for _, lane in placed)
    label = f"Tree of {len(tree)} hypotheses"
    picture = render("beams.svg", width=width, height=height, label=label, nodes=nodes, edges=edges)
    columns = ["hypothesis", "continues", "step", "token", "log-probability", "score", "ended by", "returned as"]
    caption = "Hypotheses that were kept, step by step; those of the texts returned are coloured, ended ones are bold."
    return figure(picture, caption, table(columns, rows))


def _line(tree: Sequence[BeamNode], index: int | None) -> list[int]:
    """A hypothesis and all that it extends, the last first."""
    line = []
    while index is not None:
        line.append(index)
        index = tree[index].parent
    return line


def lanes(tree: Sequence[BeamNode]) -> list[tuple[int, int]]:
    """Step and lane of each node, which no two nodes share.

    A node stays on the lane of its parent where it is the first child, in the order of the returned texts and then of
    the search; all others have the lowest free one.
    """
    rank: dict[int, int] = {}
    for i in sorted((i for i, node in enumerate(tree) if node.rank is not None), key=lambda i: tree[i].rank or 0):
        for node in _line(tree, i):
            rank.setdefault(node, tree[i].rank or 0)
    steps: list[int] = []
    for one in tree:
        steps.append(0 if one.parent is None else steps[one.parent] + 1)
    lane_of: dict[int, int] = {}
    ordered = sorted(range(len(tree)), key=lambda i: (steps[i], rank.get(i, len(tree)), i))
    for _, at_step in groupby(ordered, steps.__getitem__):
        here, first_of = list(at_step), dict[int, int]()
        for i in here:
            if (parent := tree[i].parent) is not None:
                first_of.setdefault(parent, i)
        lane_of |= {i: lane_of[parent] for parent, i in first_of.items()}
        free = (lane for lane in count() if lane not in [lane_of[i] for i in first_of.values()])
        lane_of.update(zip((i for i in here if i not in lane_of), free, strict=False))
    return [(steps[i], lane_of[i]) for i in range(len(tree))]
