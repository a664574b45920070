"""Fine-tuning published weights, beside a plain loop over Transformers: the same rows, in turns.

    python benchmarks/finetuning.py TRAIN TEST --from DIRECTORY [--valid VALID --epochs 2 --rate 1e-4 --seed 1]

Time and accuracy, from published weights in a directory of Transformers' format. lmtool does what `lmtool finetune
TRAIN --from DIRECTORY --test TEST` does, by its own rules, with reading, validations and checkpoints. Transformers runs
a plain loop of --epochs passes: bfloat16 autocast, rows sorted by length in buckets, AdamW, linear warm-up over a tenth
of the steps, linear decay. Each turn is an equal share of the steps of both.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench import describe_machine, options_of, print_head, print_row, run_in_turns, time_call
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lmtool.data.survey import no_progress
from lmtool.data.table import open_table
from lmtool.interop.resolve import import_if_published
from lmtool.recipe.load import Setting, parse_settings
from lmtool.tasks.reading import read_labelled_table
from lmtool.tasks.results import Results
from lmtool.tasks.rows import BATCHES_PER_POOL
from lmtool.training.events import StepCompleted, TrainingEnded, TrainingStarted
from lmtool.training.finetuning import plan_finetuning
from lmtool.training.job import SessionOptions
from lmtool.training.plan import TrainingPlan
from lmtool.training.train import train


class Plain:
    """A plain loop over published weights, as one finds it in tutorials, but with rows bucketed by length."""

    def __init__(self, plan: TrainingPlan, given: argparse.Namespace) -> None:
        (table,) = plan.tables
        train = read_labelled_table(table.table, table.columns, kind="class")
        assert train.labels is not None
        test = read_labelled_table(open_table(str(given.test)), table.columns, labels=train.labels)
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
        for first in range(0, len(order), BATCHES_PER_POOL * given.batch):
            pool = sorted(order[first : first + BATCHES_PER_POOL * given.batch].tolist(), key=self._length)
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
        for first in range(0, len(self.test), 64):
            inputs, labels = zip(*self.test[first : first + 64], strict=True)
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


def compare(given: argparse.Namespace) -> None:
    """Time and accuracy of lmtool and of a plain loop."""
    flags = [Setting("data.train", [str(given.train)], "TRAIN"), Setting("data.test", str(given.test), "TEST")]
    flags += [] if given.valid is None else [Setting("data.valid", [str(given.valid)], "--valid")]
    plan = plan_finetuning(import_if_published(str(given.source)), None, parse_settings([f"seed={given.seed}"], flags))
    with tempfile.TemporaryDirectory() as folder:
        events = train(plan, SessionOptions([], no_progress, lambda: False, Path(folder) / "run"))
        began = time.perf_counter()
        n_ours = next(event.steps for event in events if isinstance(event, TrainingStarted))
        reading = time.perf_counter() - began
        began = time.perf_counter()
        peer = Plain(plan, given)
        encoding = time.perf_counter() - began
        losses, shares = enumerate(peer.steps(), start=1), (range(1, given.turns + 1) for _ in range(2))
        own_share, peer_share = map(iter, shares)

        def lmtool_share() -> None:
            """Trains to the next share of the steps; the last one ends with the run."""
            turn = next(own_share)
            for event in events:
                reached = isinstance(event, StepCompleted) and event.step.step >= turn * n_ours / given.turns
                if isinstance(event, TrainingEnded) or (reached and turn < given.turns):
                    return

        def plain_share() -> None:
            turn = next(peer_share)
            next((step for step, _ in losses if step >= turn * len(peer.batches) / given.turns), None)

        spent = run_in_turns(
            {"lmtool": partial(time_call, lmtool_share), "plain": partial(time_call, plain_share)}, given.turns
        )
        ours, theirs = reading + sum(spent["lmtool"]), encoding + sum(spent["plain"])
        (results,) = (event for event in events if isinstance(event, Results))
    print(f"{given.source.name}, {len(peer.train):,} rows, seed {given.seed}; {describe_machine()}")
    print_head("", "steps", "seconds", "test accuracy")
    print_row("lmtool", f"{n_ours:,}", f"{ours:.0f}", f"{100 * results.figures['accuracy']:.1f}")
    print_row("Transformers", f"{len(peer.batches):,}", f"{theirs:.0f}", f"{100 * peer.accuracy():.1f}")
    print(f"lmtool takes {ours / theirs:.2f} of the time")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="a directory with published weights")
    parser.add_argument("--valid", type=Path, help="validation table of lmtool; else a part of TRAIN")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate of the plain loop")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
