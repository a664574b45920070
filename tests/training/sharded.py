"""Sessions whose processes shard the model: run as `python -m tests.training.sharded FOLDER PROCESSES NAME...`."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lmtool.compute.fsdp import ShardedModel
from tests.compute.forked import forked
from tests.support.training import Work

SHARDED = "training.shard=full"
SHORT = ("model.dropout=0", "training.steps=6", "evaluation.every=3", "checkpoint.every=3")
UNEVEN = "model.d_model=18"
"""Rows that processes cannot share evenly."""

RECIPES: dict[str, tuple[str, ...]] = {
    "adamw": (
        UNEVEN,
        "model.ngram_embedding={min_count: 2, entries: 99}",
        "training.micro_batch=1",
        "training.clip_norm=0.1",
        "evaluation.prompts=[the]",
    ),
    "muon": (
        "optimizer={kind: muon, lr: 0.02, weight_decay: 0.1, adamw: {lr: 0.003}}",
        "model={kind: transformer, n_layers: 3, d_model: 20, n_heads: 2, n_kv_heads: 1, context: 16, "
        "activation: swiglu, position: {kind: rotary}, norm: {kind: rms}, tie_embeddings: false, "
        "x0: true, smear: true, attention_gate: headwise}",
    ),
    "encoder": (
        "model={kind: transformer, shape: encoder, n_layers: 2, d_model: 16, n_heads: 2, context: 16, "
        "position: {kind: relative}, share_layers: true}",
        "objective={kind: masked, next_sentence: false}",
        "training.recompute=layers",
        "optimizer={kind: sgd, lr: 0.05, momentum: 0.9}",
    ),
    "bfloat16": ("training.precision=bfloat16", "evaluation.prompts=[the]"),
    "recomputed": (
        "model.n_layers=3",
        "model.x0=true",
        "training.recompute=layers",
        "checkpoint.background=true",
        "evaluation.prompts=[]",
        "evaluation.baseline=true",
    ),
}

IMPORTS = {"encoder": "torch._dynamo", "lora": "sklearn.metrics"}
"""What takes seconds to import in these sessions, and is imported once for all processes."""


class Given(Work):
    """A folder in which everything lies already, for processes that share it."""

    def __post_init__(self) -> None:
        self.text, self.recipe = self.folder / "text.txt", self.folder / "tiny.yaml"


def tuned(work: Work, *overrides: str, name: str) -> list[Any]:
    """The run `adamw`, fine-tuned by adapters on a table that lies there."""
    # rows are held out, since processes that share a model train no other one to score it
    lora = ("tuning.lora={rank: 2, dropout: 0}", "objective.dropout=0", "data.valid_fraction=0.2", *SHORT[:1])
    return work.finetune(*lora, *overrides, source=work.run("adamw"), table=work.folder / "table.csv", name=name)


def session(work: Work, name: str) -> None:
    """The sharded session of a name."""
    if name == "lora":
        tuned(work, SHARDED, name="sharded lora")
    else:
        with never_whole() if "evaluation.prompts=[]" in RECIPES[name] else nullcontext():
            work.pretrain(*SHORT, *RECIPES[name], SHARDED, name=f"sharded {name}")


@contextmanager
def never_whole() -> Iterator[None]:
    """No process may hold all weights: without samples it validates layer by layer."""
    genuine = ShardedModel.gather_all_for_inference
    ShardedModel.gather_all_for_inference = None  # type: ignore[method-assign, assignment]
    yield
    ShardedModel.gather_all_for_inference = genuine  # type: ignore[method-assign]


def main(folder: str, names: list[str]) -> None:
    """All sessions in one group of processes."""
    for name in names:
        session(Given(Path(folder)), name)


if __name__ == "__main__":
    for name in sys.argv[3:]:
        if name in IMPORTS:
            importlib.import_module(IMPORTS[name])
    sys.exit(forked(int(sys.argv[2]), lambda: main(sys.argv[1], sys.argv[3:])))
