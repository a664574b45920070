"""Fine-tuning compared with Transformers: the same weights and rows, in turns.

    python benchmarks/finetuning.py TRAIN TEST [--layers 4 --width 256 --heads 4 --batch 32 --epochs 2]
    python benchmarks/finetuning.py TRAIN TEST --from DIRECTORY [--valid VALID --epochs 2 --rate 1e-4 --seed 1]

From scratch: throughput with the same optimizer. Every contender trains its own copy of one BERT with a head on [CLS]
on all rows of a labelled table. They take turns of some steps each, so that other load on the machine affects all
alike; figures are medians over turns.
Transformers runs in the usual loop: rows shuffled, each batch padded to its longest row, fused AdamW, eager or SDPA
attention. lmtool runs its own loop, which batches rows by length. lmtool and the fastest of the others then train to
the end and are evaluated on TEST.

--from: time and accuracy, from published weights in a directory of Transformers' format. lmtool does what `lmtool
finetune TRAIN --from DIRECTORY --test TEST` does, by its own rules, with reading, validations and checkpoints.
Transformers runs a plain loop of --epochs passes: bfloat16 autocast, rows sorted by length in buckets, AdamW, linear
warm-up over a tenth of the steps, linear decay. Each turn is an equal share of the steps of both.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from lmtool.compute.device import Compute, choose_compute
from lmtool.data.table import open_table
from lmtool.inference.evaluation import not_reported
from lmtool.inference.load import build_model
from lmtool.interop.reference import run_of
from lmtool.model.heads import Classifier
from lmtool.objective import build_objective
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.load import Setting, settings_of
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import Data, WordPieceTokenizer
from lmtool.recipe.spec.training import AdamW, Linear, Training
from lmtool.recipe.spec.transformer import Norm, Transformer
from lmtool.tables.prepare import open_tables, read_tables
from lmtool.tables.reading import read_labelled
from lmtool.tables.rows import POOL_BATCHES, EncodedRow, TableExamples
from lmtool.tables.tasks.classification import HeadTask
from lmtool.tables.tasks.results import Results
from lmtool.tables.tasks.task import AnsweringModel
from lmtool.training.events import Ended, Plan, Stepped
from lmtool.training.finetuning import FineTuning, plan_finetuning
from lmtool.training.fit import Trainable, fit
from lmtool.training.optimizer import Optimizers
from lmtool.training.start import Invocation


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
    for step in fit(Trainable(model, objective, optimizers), examples, recipe, compute):
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


class Plain:
    """A plain loop over published weights, as one finds it in tutorials, but with rows bucketed by length."""

    def __init__(self, plan: FineTuning, given: argparse.Namespace) -> None:
        (table,) = plan.tables
        train = read_labelled(table.table, table.columns, kind="class")
        assert train.labels is not None
        test = read_labelled(open_table(str(given.test)), table.columns, labels=train.labels)
        self._classes = train.labels.names
        self._tokenizer = AutoTokenizer.from_pretrained(given.source)
        self._longest = plan.resolved.recipe.model.context
        self.train, self.test = ([self._encoded(item) for item in part.items] for part in (train, test))
        torch.manual_seed(given.seed)
        self.model = AutoModelForSequenceClassification.from_pretrained(given.source, num_labels=len(self._classes))
        self._rate = given.rate
        rng = np.random.default_rng(given.seed)
        order = np.concatenate([rng.permutation(len(self.train)) for _ in range(given.epochs)])
        self.batches: list[list[int]] = []
        for start in range(0, len(order), POOL_BATCHES * given.batch):
            pool = sorted(order[start : start + POOL_BATCHES * given.batch].tolist(), key=self._length)
            cut = [pool[i : i + given.batch] for i in range(0, len(pool), given.batch)]
            self.batches += [cut[i] for i in rng.permutation(len(cut))]

    def steps(self) -> Iterator[float]:
        """Train, and yield the loss of each step."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self._rate, weight_decay=0.01, fused=True)
        n, warmup = len(self.batches), math.ceil(len(self.batches) / 10)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warmup, (n - step) / (n - warmup))
        )
        self.model.train()
        for batch in self.batches:
            labels_B = torch.tensor([self.train[i][1] for i in batch])
            loss = nn.functional.cross_entropy(self._scores([self.train[i][0] for i in batch]), labels_B)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            yield float(loss.detach())

    @torch.inference_mode()
    def accuracy(self) -> float:
        """On the test table."""
        self.model.eval()
        right = 0
        for start in range(0, len(self.test), 64):
            inputs, labels = zip(*self.test[start : start + 64], strict=True)
            right += int((self._scores(inputs).argmax(1) == torch.tensor(labels)).sum())
        return right / len(self.test)

    def _encoded(self, item: Any) -> tuple[dict[str, list[int]], int]:
        row = self._tokenizer(*item.texts, truncation=True, max_length=self._longest)
        return dict(row), self._classes.index(item.label)

    def _length(self, i: int) -> int:
        return len(self.train[i][0]["input_ids"])

    def _scores(self, inputs: Sequence[dict[str, list[int]]]) -> Tensor:
        batch = self._tokenizer.pad(list(inputs), return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16):
            scores_BC: Tensor = self.model(**batch).logits
        return scores_BC.float()


def from_published(given: argparse.Namespace) -> None:
    """Time and accuracy of lmtool and of a plain loop."""
    flags = [Setting("data.train", [str(given.train)], "TRAIN"), Setting("data.test", str(given.test), "TEST")]
    flags += [] if given.valid is None else [Setting("data.valid", [str(given.valid)], "--valid")]
    plan = plan_finetuning(run_of(str(given.source)), None, settings_of([f"seed={given.seed}"], flags))
    with tempfile.TemporaryDirectory() as folder:
        events = plan.run(Invocation([], not_reported, lambda: False, Path(folder) / "run"))
        began = time.perf_counter()
        n_ours = next(event.steps for event in events if isinstance(event, Plan))
        ours = time.perf_counter() - began
        began = time.perf_counter()
        peer = Plain(plan, given)
        theirs = time.perf_counter() - began
        losses, ended = enumerate(peer.steps(), start=1), False
        for turn in range(1, given.turns + 1):
            began = time.perf_counter()
            while not ended:
                event = next(events)
                ended = isinstance(event, Ended)
                if isinstance(event, Stepped) and event.step.step >= turn * n_ours / given.turns and turn < given.turns:
                    break
            ours += time.perf_counter() - began
            began = time.perf_counter()
            next((step for step, _ in losses if step >= turn * len(peer.batches) / given.turns), None)
            theirs += time.perf_counter() - began
        (results,) = (event for event in events if isinstance(event, Results))
    print(f"{given.source.name}, {len(peer.train):,} rows, seed {given.seed}; {torch.get_num_threads()} threads")
    print(f"{'lmtool':13} {n_ours:5,} steps {ours:6.0f} s  test accuracy {100 * results.figures['accuracy']:.1f}")
    print(
        f"{'Transformers':13} {len(peer.batches):5,} steps {theirs:6.0f} s  test accuracy {100 * peer.accuracy():.1f}"
    )
    print(f"lmtool takes {ours / theirs:.2f} of the time")


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
    parser.add_argument("--from", dest="source", type=Path, help="a directory with published weights")
    parser.add_argument("--valid", type=Path, help="with --from: validation table of lmtool; else a part of TRAIN")
    parser.add_argument("--rate", type=float, default=1e-4, help="with --from: learning rate of the plain loop")
    given = parser.parse_args()
    if given.source is None:
        from_scratch(given)
    else:
        from_published(given)


def from_scratch(given: argparse.Namespace) -> None:
    """Throughput of one architecture, and accuracy of lmtool and the fastest of the others."""
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
    recipe, tokenizer = data.recipe, data.prompt_format.tokenizer
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
    fast, exact = choose_compute(given.device, "auto"), choose_compute(given.device, "float32")

    def fresh(compute: Compute) -> Classifier:
        model = build_model(recipe, tokenizer, compute)
        assert isinstance(model, Classifier)
        return model

    models: dict[str, tuple[nn.Module, Compute]] = {f"lmtool {fast.precision}": (fresh(fast), fast)}
    for compute in (fast, exact):
        for attention in ("eager", "sdpa"):
            peer = same_weights(fresh(compute), config, attention).to(compute.device)
            models[f"transformers {compute.precision} {attention}"] = peer, compute
    at_first, _ = task.scores(AnsweringModel(fresh(exact), objective, exact), test[:64])
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
            scores_RC, _ = task.scores(AnsweringModel(model, objective, compute), test)
        else:
            assert isinstance(model, Peer)
            scores_RC = scores_of(model, test, compute).numpy()
        accuracy = float((scores_RC.argmax(1) == labels_R).mean())
        print(f"{name:28} loss {statistics.fmean(losses[name][-100:]):.3f}, accuracy {accuracy:.3f} at the end")


if __name__ == "__main__":
    main()
