"""Models that call functions: one that knows its conversations by heart, and small ones that learn them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lmtool.generation.chat import choose_chat_or_plain_format, validate_messages
from lmtool.generation.generate import TextGenerator
from lmtool.interop.importing import import_to_cache
from tests.generation import talkers
from tests.generation.models import HistoryModel
from tests.support.training import Work
from tests.tokenization.tool_templates import QWEN, calling

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
]
RECIPE = """\
model: {kind: transformer, n_layers: 1, d_model: 48, n_heads: 4, context: 400}
objective: {kind: seq2seq}
training: {steps: 1, epochs: 80, batch_size: 5, device: cpu}
optimizer: {kind: adamw, lr: 0.01}
evaluation: {every: 500}
"""


def call(key: str, name: str, **arguments: str) -> dict[str, Any]:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def said(user: str, answer: str | None, calls: list[dict[str, Any]], result: str, last: str) -> list[dict[str, Any]]:
    results = [{"role": "tool", "content": result, "tool_call_id": one["id"]} for one in calls]
    first = {"role": "assistant", "content": answer, "tool_calls": calls}
    return [{"role": "user", "content": user}, first, *results, {"role": "assistant", "content": last}]


CONVERSATIONS = [
    said("The time, please", None, [call("a", "now")], "noon", "It is noon."),
    said("rome rome rome", "I look.", [call("b", "look", city="Rome")], "sun", "Sun in Rome."),
    said("BOTH OF THEM", "", [call("c", "now"), call("d", "look", city="Oslo")], "x", "Done."),
    [{"role": "user", "content": "h e l l o"}, {"role": "assistant", "content": "Hi."}],
]


class Recaller(HistoryModel):
    """Writes what follows in a known row, and else the first token."""

    def __init__(self, rows: Sequence[Sequence[int]], vocab_size: int) -> None:
        super().__init__(vocab_size, 4000)
        self._rows = [list(row) for row in rows]

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        known = (row[len(ids)] for row in self._rows if row[: len(ids)] == ids and len(row) > len(ids))
        logits = torch.zeros(self.vocab_size)
        logits[next(known, 0)] = 100.0
        return logits


def recaller(folder: Path) -> TextGenerator:
    """A model that knows CONVERSATIONS, and writes special tokens around its calls."""
    template = QWEN.replace("<|im_", "<|")
    names = (*talkers.NAMES, "<tool_call>", "</tool_call>")
    loaded = TextGenerator.open(
        str(import_to_cache(str(talkers.publish(folder, template=template, names=names))))
    ).loaded
    chat = choose_chat_or_plain_format(loaded).with_tools(TOOLS)
    rows = [chat.encode_conversation(validate_messages(one))[0] for one in CONVERSATIONS]
    return TextGenerator(replace(loaded, model=Recaller(rows, loaded.tokenizer.vocab_size)))


def learn(folder: Path, name: str | None) -> Path:
    """The run of a model that was trained on CONVERSATIONS. name: of its template; None for lmtool's own format."""
    known = [one for one in CONVERSATIONS if name != "llama" or len(one[1].get("tool_calls", ())) < 2]
    rows = [{"messages": one, "tools": TOOLS} for one in known]
    rows += [{"messages": one[:2], "tools": TOOLS} for one in known[:-1]]
    table, recipe = folder / "calls.jsonl", folder / "calls.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    table.write_text("".join(json.dumps(row) + "\n" for row in rows * 5))
    tokenizer = "tokenizer: {kind: bpe, vocab_size: 300}\n"
    if name is not None:
        calling(folder, name)
        tokenizer = f"tokenizer: {{kind: file, path: '{folder / name}'}}\n"
    recipe.write_text(RECIPE + tokenizer)
    Work(folder).learn_table(recipe, table, f"data.valid={table}", name="run")
    return folder / "run"
