"""Fine-tuning throughput compared with Transformers: the same weights, rows and optimizer, in turns.

    python benchmarks/finetuning.py TRAIN TEST [--layers 4 --width 256 --heads 4 --batch 32 --epochs 2]

Every contender trains its own copy of one BERT with a head on [CLS] on all rows of a labelled table, from scratch. They
take turns of some steps each, so that other load on the machine affects all alike; figures are medians over turns.
Transformers runs in the usual loop: rows shuffled, each batch padded to its longest row, fused AdamW, eager or SDPA
attention. lmtool runs its own loop, which batches rows by length. lmtool and the fastest of the others then train to
the end and are evaluated on TEST.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from lmtool.compute.device import Compute, resolve
from lmtool.compute.processes import World
from lmtool.inference.load import build_model
from lmtool.model.classifier import Classifier
from lmtool.objective import ClassificationObjective, build_objective
from lmtool.recipe.spec import (
    AdamW,
    Classification,
    Data,
    LearnedPosition,
    Linear,
    Norm,
    Recipe,
    Training,
    Transformer,
    WordPieceTokenizer,
)
from lmtool.tables.data import open_tables, read_tables
from lmtool.tables.rows import EncodedRow, TableExamples
from lmtool.tables.tasks import AnsweringModel, HeadTask
from lmtool.training.fit import fit
from lmtool.training.optimizer import Optimizers


class Peer(nn.Module):
    """Transformers' BERT with a linear head on [CLS]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.body = BertModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.head = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, tokens_BT: Tensor, keep_BT: Tensor) -> Tensor:
        hidden_BTD = self.body(input_ids=tokens_BT, attention_mask=keep_BT).last_hidden_state
        scores: Tensor = self.head(self.dropout(hidden_BTD[:, 0]))
        return scores


def padded(rows: Sequence[EncodedRow]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, attention mask, and labels."""
    T = max(len(row.tokens) for row in rows)
    tokens_BT, keep_BT = torch.zeros(len(rows), T, dtype=torch.int64), torch.zeros(len(rows), T, dtype=torch.int64)
    for i, row in enumerate(rows):
        tokens_BT[i, : len(row.tokens)] = torch.from_numpy(row.tokens)
        keep_BT[i, : len(row.tokens)] = 1
    return tokens_BT, keep_BT, torch.tensor([int(row.label[0]) for row in rows if row.label is not None])


def ours(
    model: Classifier, objective: ClassificationObjective, rows: Sequence[EncodedRow], recipe: Recipe, compute: Compute
) -> Iterator[float]:
    """Losses of lmtool's own training loop, per step."""
    examples = TableExamples(rows, recipe.training.batch_size, recipe.seed)
    optimizers = Optimizers(recipe.optimizer, model, compute)
    for step in fit(model, objective, optimizers, examples, recipe, compute, World()):
        yield step.loss


def theirs(model: Peer, rows: Sequence[EncodedRow], recipe: Recipe, compute: Compute) -> Iterator[float]:
    """Losses of a plain loop over Transformers' BERT, per step."""
    spec = recipe.optimizer
    assert isinstance(spec, AdamW)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": spec.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=True)
    steps, warmup = recipe.training.steps, recipe.schedule.warmup_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / (steps - warmup))
    )
    rng, order = np.random.default_rng(recipe.seed), np.array([], dtype=np.int64)
    for _ in range(steps):
        if len(order) < recipe.training.batch_size:
            order = np.concatenate((order, rng.permutation(len(rows))))
        batch, order = order[: recipe.training.batch_size], order[recipe.training.batch_size :]
        tokens_BT, keep_BT, labels_B = (part.to(compute.device) for part in padded([rows[i] for i in batch]))
        with compute.autocast():
            scores_BC = model(tokens_BT, keep_BT)
        loss = nn.functional.cross_entropy(scores_BC.float(), labels_B)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach())


def same_weights(source: Classifier, config: BertConfig, attention: str) -> Peer:
    """Transformers' BERT with our weights."""
    config._attn_implementation = attention
    model = Peer(config)
    own = source.state_dict()
    embeddings = {
        "word_embeddings": "tokens",
        "position_embeddings": "position.table",
        "token_type_embeddings": "segments",
        "LayerNorm": "norm",
    }
    names = {f"embeddings.{theirs_}": f"inputs.{ours_}" for theirs_, ours_ in embeddings.items()}
    renamed = {f"head.{kind}": own[f"head.{kind}"] for kind in ("weight", "bias")}
    for layer in range(config.num_hidden_layers):
        there, attend, feed = (
            f"encoder.layer.{layer}",
            f"stack.sublayers.{2 * layer}",
            f"stack.sublayers.{2 * layer + 1}",
        )
        names |= {
            f"{there}.attention.output.dense": f"{attend}.mixer.out",
            f"{there}.attention.output.LayerNorm": f"{attend}.norm",
            f"{there}.intermediate.dense": f"{feed}.mixer.up",
            f"{there}.output.dense": f"{feed}.mixer.out",
            f"{there}.output.LayerNorm": f"{feed}.norm",
        }
        for kind in ("weight", "bias"):
            parts = own[f"body.{attend}.mixer.qkv.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                renamed[f"body.{there}.attention.self.{name}.{kind}"] = part
    for theirs_, ours_ in names.items():
        for kind in ("weight", "bias"):
            if f"body.{ours_}.{kind}" in own:
                renamed[f"body.{theirs_}.{kind}"] = own[f"body.{ours_}.{kind}"]
    model.load_state_dict(renamed)
    return model


@torch.inference_mode()
def scores_of(model: Peer, rows: Sequence[EncodedRow], compute: Compute) -> Tensor:
    """Logits of a peer for rows, (R, C)."""
    model.eval()
    found = []
    for start in range(0, len(rows), 64):
        tokens_BT, keep_BT, _ = padded(rows[start : start + 64])
        with compute.autocast():
            found.append(model(tokens_BT.to(compute.device), keep_BT.to(compute.device)).float().cpu())
    model.train()
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12, help="steps in a turn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    given = parser.parse_args()
    model_spec = Transformer(
        kind="transformer",
        shape="encoder",
        n_layers=given.layers,
        d_model=given.width,
        n_heads=given.heads,
        context=128,
        n_segments=2,
        activation="gelu",
        dropout=0.1,
        position=LearnedPosition(kind="learned"),
        norm=Norm(kind="layer", place="post", embedding=True),
    )
    wanted = Recipe(
        seed=given.seed,
        model=model_spec,
        objective=Classification(kind="classification", dense="none"),
        tokenizer=WordPieceTokenizer(kind="wordpiece"),
        # all rows are for training; the test table takes the place of a validation table
        data=Data(train=(str(given.train),), valid=(str(given.test),)),
        training=Training(steps=1, epochs=given.epochs, batch_size=given.batch),
        optimizer=AdamW(lr=5e-4, weight_decay=0.01, beta2=0.98),
        schedule=Linear(kind="linear", warmup_steps=50),
    )
    data = read_tables(wanted, open_tables(wanted.data), None)
    recipe, tokenizer = data.recipe, data.framing.tokenizer
    (rows,) = data.tasks
    train, test, task = rows.train, rows.valid, rows.task
    assert isinstance(task, HeadTask)
    spec = recipe.objective
    assert isinstance(spec, Classification)
    objective = build_objective(recipe, tokenizer)
    assert isinstance(objective, ClassificationObjective)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=given.heads,
        intermediate_size=4 * given.width,
        max_position_embeddings=128,
        layer_norm_eps=1e-5,
        num_labels=len(spec.labels),
    )
    fast, exact = resolve(given.device, "auto"), resolve(given.device, "float32")

    def fresh(compute: Compute) -> Classifier:
        model = build_model(recipe, tokenizer, compute)
        assert isinstance(model, Classifier)
        return model

    models: dict[str, tuple[nn.Module, Compute]] = {f"lmtool {fast.precision}": (fresh(fast), fast)}
    for compute in (fast, exact):
        for attention in ("eager", "sdpa"):
            peer = same_weights(fresh(compute), config, attention).to(compute.device)
            models[f"transformers {compute.precision} {attention}"] = peer, compute
    at_first, _ = task.scores(AnsweringModel(fresh(exact), objective, exact, World()), test[:64])
    peer = models[f"transformers {exact.precision} eager"][0]
    assert isinstance(peer, Peer)
    apart = float(np.abs(at_first - scores_of(peer, test[:64], exact).double().numpy()).max())
    print(f"{given.layers} layers x {given.width}, B {given.batch}, {len(train):,} rows; {fast.describe()}")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; at first scores differ by {apart:.1e} at most"
    )

    def steps_of(model: nn.Module, compute: Compute) -> Iterator[float]:
        if isinstance(model, Classifier):
            return ours(model, objective, train, recipe, compute)
        assert isinstance(model, Peer)
        return theirs(model.train(), train, recipe, compute)

    running = {name: steps_of(model, compute) for name, (model, compute) in models.items()}
    speeds: dict[str, list[float]] = {name: [] for name in running}
    losses: dict[str, list[float]] = {name: [next(steps)] for name, steps in running.items()}
    for _ in range(given.turns):
        for name, steps in running.items():
            began = time.perf_counter()
            losses[name] += [next(steps) for _ in range(given.steps)]
            speeds[name].append(given.steps * given.batch / (time.perf_counter() - began))
    medians = {name: statistics.median(turns) for name, turns in speeds.items()}
    for name, speed in medians.items():
        print(f"{name:28} {speed:7,.0f} rows/s", flush=True)
    lmtool, *peers = medians
    for precision in dict.fromkeys((fast.precision, "float32")):
        best = max(medians[name] for name in peers if precision in name)
        print(f"{lmtool} / transformers {precision}: {medians[lmtool] / best:.2f}", flush=True)
    labels_R = np.array([int(row.label[0]) for row in test])
    for name in (lmtool, max(peers, key=medians.__getitem__)):
        losses[name] += list(running[name])
        model, compute = models[name]
        if isinstance(model, Classifier):
            scores_RC, _ = task.scores(AnsweringModel(model, objective, compute, World()), test)
        else:
            assert isinstance(model, Peer)
            scores_RC = scores_of(model, test, compute).numpy()
        accuracy = float((scores_RC.argmax(1) == labels_R).mean())
        print(f"{name:28} loss {statistics.fmean(losses[name][-100:]):.3f}, accuracy {accuracy:.3f} at the end")


if __name__ == "__main__":
    main()
