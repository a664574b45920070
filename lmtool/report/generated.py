"""Generated texts as a page: tokens shaded by probability, their alternatives, the tree of a beam search."""

from collections.abc import Sequence
from itertools import count, groupby
from math import exp
from typing import Any

from markupsafe import Markup
from rich.cells import cell_len

from lmtool.generation.request import BeamNode, Completion
from lmtool.printable import printable
from lmtool.report.charts import CHARACTER_PIXELS
from lmtool.report.page import Section, embed_json, figure, page, render, table
from lmtool.tokenization.tokenizer import Tokenizer

N_SHADES = 10
"""Number of shades for probabilities above 0."""

STEP_PIXELS, LANE_PIXELS = 84, 32
"""Distances in the tree of a beam search: from step to step, and between hypotheses."""

SCORE_PIXELS = 40
"""Space for the scores of hypotheses that end in the last step."""

MAX_SHOWN_PIECE_CHARACTERS = 10
"""Longest piece that the tree shows whole."""


def render_completions_page(completions: Sequence[tuple[str, Completion]], tokenizer: Tokenizer, facts: str) -> str:
    """Renders texts as a complete HTML page.

    completions: each with the prompt to show before it; they have details. facts: run, checkpoint and settings.
    """
    sections = []
    for number, (prompt, completion) in enumerate(completions, 1):
        score = "" if completion.score is None else f", score {completion.score:.4f}"
        title = f"Text {number}{score}, ended by {completion.finish_reason}"
        sections.append(Section(title, _render_tokens(f"tokens-{number}", prompt, completion, tokenizer)))
        if completion.tree:
            sections.append(Section(f"Search of text {number}", _render_beam_tree(completion.tree, tokenizer)))
    lead = render("generated.html", facts=printable(facts), shades=[f"p{shade}" for shade in range(N_SHADES + 1)])
    return page("Generated text", sections, lead=lead, styles=["tokens.css"], scripts=["tokens.js"])


def _render_tokens(identifier: str, prompt: str, completion: Completion, tokenizer: Tokenizer) -> Markup:
    """Renders the tokens of a text, and their numbers as a table."""
    tokens, details_by_token = [], []
    rows: list[Sequence[str | int | float]] = []
    chosen = completion.tokens, completion.logprobs, completion.ranks or (), completion.removed or ()
    details = zip(*chosen, completion.alternatives or (), strict=True)
    for number, (token, logprob, rank, removed, alternatives) in enumerate(details, 1):
        p, piece = exp(logprob), tokenizer.display_token(token)
        tokens.append({"piece": piece, "shade": round(p * N_SHADES)})
        others, listed = [], []
        for other in alternatives:
            name, share = tokenizer.display_token(other.id), round(exp(other.logprob), 6)
            others.append({"piece": name, "p": share, "kept": other.kept, "taken": other.id == token})
            listed.append(f"{name!r} {share:.4f}{'' if other.kept else ', removed'}")
        numbers = f"{piece!r}: p {p:.4f}, rank {rank}, filters removed {removed:.4f}"
        details_by_token.append({"text": numbers, "alternatives": others})
        rows.append([number, repr(piece), p, rank, removed, "\n".join(listed)])
    data = embed_json(identifier, details_by_token)
    text = render("tokens.html", prompt=printable(prompt, keep_line_breaks=True), tokens=tokens, data=data)
    columns = ["place", "token", "p", "rank", "removed by filters", "most probable"]
    return text + render("numbers.html", numbers=table(columns, rows))


def _render_beam_tree(tree: Sequence[BeamNode], tokenizer: Tokenizer) -> Markup:
    """Renders the tree of a beam search, from left to right, and its numbers as a table."""
    placed = assign_steps_and_lanes(tree)
    best = {i for i, node in enumerate(tree) if node.rank is not None for i in _list_node_and_ancestors(tree, i)}
    nodes: list[dict[str, Any]] = []
    edges, rows = [], []
    for i, (node, (step, lane)) in enumerate(zip(tree, placed, strict=True)):
        x, y = 12 + step * STEP_PIXELS, 14 + lane * LANE_PIXELS
        piece = tokenizer.display_token(node.token)
        score = "" if node.score is None else f", score {node.score:.4f}"
        p = exp(node.total - (0.0 if node.parent is None else tree[node.parent].total))
        title = f"{piece!r}, p {p:.4f}, log-probability {node.total:.4f}{score}"
        shown = piece if len(piece) <= MAX_SHOWN_PIECE_CHARACTERS else f"{piece[: MAX_SHOWN_PIECE_CHARACTERS - 1]}…"
        below = f"{p:.2f}" if node.score is None else f"score {node.score:.3f}"  # both would reach into the next step
        place = {"x": x, "y": y, "piece": shown, "below": below, "title": title}
        nodes.append(place | {"returned": i in best, "ended": node.finish})
        if node.parent is not None:
            before, above = placed[node.parent]
            wide = round(CHARACTER_PIXELS * cell_len(nodes[node.parent]["piece"]))
            left, top = 16 + before * STEP_PIXELS + wide, 14 + above * LANE_PIXELS
            edges.append((i in best, f"M{left} {top}C{x - 4} {top} {left} {y} {x - 4} {y}"))
        parent, rank = (None if index is None else index + 1 for index in (node.parent, node.rank))
        rows.append([i + 1, parent, step + 1, repr(piece), p, node.total, node.score, node.finish, rank])
    last_step, last_lane = map(max, zip(*placed, strict=True))
    width, height = 24 + STEP_PIXELS * (1 + last_step) + SCORE_PIXELS, 40 + LANE_PIXELS * last_lane
    label = f"Tree of {len(tree)} hypotheses"
    picture = render("beams.svg", width=width, height=height, label=label, nodes=nodes, edges=edges)
    columns = ["hypothesis", "continues", "step", "token", "p", "log-probability", "score", "ended by", "returned as"]
    caption = (
        "Hypotheses that were kept, step by step, each token with its probability after those before it; those of the "
        "texts returned are coloured. Ended ones are bold, with the score that they are ranked by in its place."
    )
    return figure(picture, caption, table(columns, rows))


def _list_node_and_ancestors(tree: Sequence[BeamNode], index: int | None) -> list[int]:
    """Returns the nodes of a hypothesis, the last token first."""
    nodes = []
    while index is not None:
        nodes.append(index)
        index = tree[index].parent
    return nodes


def assign_steps_and_lanes(tree: Sequence[BeamNode]) -> list[tuple[int, int]]:
    """Returns the step and the lane of each node, which no two nodes share.

    The first child of a node, in the order of the returned texts and then of the search, stays on its lane; the others
    get the lowest free one.
    """
    rank: dict[int, int] = {}
    for i in sorted((i for i, node in enumerate(tree) if node.rank is not None), key=lambda i: tree[i].rank or 0):
        for node in _list_node_and_ancestors(tree, i):
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
