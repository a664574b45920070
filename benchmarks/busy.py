"""Tokens per second alone and beside other programs, by how the threads of OpenMP wait for each other.

    python benchmarks/busy.py [--rounds 7] [--seconds 1.5] [--settings lmtool ...]
    python benchmarks/busy.py --sizes [--rounds 7] [--seconds 0.3]

The model is that of the default recipe, with random weights. `generate` writes one text, `train` takes training steps,
each for some seconds: alone, beside a busy loop, and beside a process of the same setting that trains. Each setting has
two processes of its own, as the variables are read once; in each round all settings have their turn. --sizes compares
the fastest decoding steps with one thread and with all for models of several sizes, for `ONE_THREAD` of
lmtool/generation/generate.py.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import torch

from lmtool.compute.device import choose_compute
from lmtool.generation.generate import decoding_threads, generate
from lmtool.generation.params import SamplingParams
from lmtool.model import LanguageModel, build
from lmtool.model.packed import pack
from lmtool.objective import CausalObjective
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.transformer import Transformer
from lmtool.run.files import describe_environment
from lmtool.tokenization.prompt_format import Prompt
from lmtool.training.fit import Trainable, fit
from lmtool.training.optimizer import Optimizers
from lmtool.training.windows import Windows

VOCABULARY = 2048
SETTINGS = {
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    "GOMP_SPINCOUNT=30000": {"GOMP_SPINCOUNT": "30000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=3000": {"GOMP_SPINCOUNT": "3000"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
    "lmtool": {},
}
"""Variables of each setting; with none of them those that lmtool has chosen."""

BESIDE = ("alone", "a busy loop", "a training")
SIZES = ((4, 64), (4, 128), (6, 192), (6, 256), (6, 384))
"""Layers and width of models."""


class Tokens:
    """Random tokens in memory, as a token store."""

    def __init__(self) -> None:
        self._tokens = np.random.default_rng(1).integers(VOCABULARY, size=1_000_000)
        self.vocab_size = VOCABULARY

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]


def written(model: LanguageModel, n_rows: int = 1) -> Iterator[int]:
    """Number of tokens of each decoding step, without end."""
    settings = SamplingParams(seed=1, max_new_tokens=200)
    while True:
        prompts = [Prompt(tuple(range(100, 108)))] * n_rows
        for number, _ in enumerate(generate(model, prompts, settings, max_rows=n_rows), 1):
            if number % n_rows == 0:
                yield n_rows


def trained() -> Iterator[int]:
    """Number of tokens of each training step of the default recipe, without end."""
    recipe = load("tiny", ["training.steps=1000000"]).recipe
    compute = choose_compute("cpu", "auto")
    torch.manual_seed(1)
    model = build(recipe.model, VOCABULARY)
    objective = CausalObjective(Causal(), -1, False)
    examples = Windows(Tokens(), objective.cut(recipe.model.context), seed=1)  # type: ignore[arg-type]  # as a store
    optimizers = Optimizers(recipe.optimizer, model, compute)
    for step in fit(Trainable(model, objective, optimizers), examples, recipe, compute):
        yield step.tokens


def speed(counts: Iterator[int], seconds: float) -> float:
    """Tokens per second of a sequence of steps, over at least so many seconds."""
    began, n = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        n += next(counts)
    return n / (time.perf_counter() - began)


def serve(chooses: bool) -> None:
    """Answer each line, a task and its seconds, by tokens per second. chooses: decode with lmtool's own threads."""
    torch.manual_seed(1)
    model = build(load("tiny").recipe.model, VOCABULARY).eval()
    every = torch.get_num_threads()
    fewer = (chooses and decoding_threads(model)) or every
    pack(model, "float32", torch.device("cpu"))
    tasks = {"generate": written(model), "train": trained()}
    threads = {"generate": fewer, "train": every}
    for counts in tasks.values():
        speed(counts, 0.1)
    print("ready", flush=True)
    for line in sys.stdin:
        task, seconds = line.split()
        torch.set_num_threads(threads[task])
        print(speed(tasks[task], float(seconds)), flush=True)


class Worker:
    """A process that computes with the variables of a setting."""

    def __init__(self, setting: str) -> None:
        given = SETTINGS[setting]
        names = {name for variables in SETTINGS.values() for name in variables}
        # lmtool has chosen already, in the environment of this process
        env = {name: value for name, value in os.environ.items() if not given or name not in names} | given
        command = [sys.executable, __file__, "--serve", *(["--chooses"] if not given else [])]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)
        if not self.answer():
            raise SystemExit(f"the process of {setting} has ended")

    def ask(self, task: str, seconds: float) -> None:
        assert self._process.stdin is not None
        print(task, seconds, file=self._process.stdin, flush=True)

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured(worker: Worker, partner: Worker, task: str, beside: str, seconds: float) -> float:
    """Tokens per second of a task beside something; of two trainings at once, the mean."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if beside == "a busy loop" else None
    if beside == "a training":
        partner.ask("train", seconds)
    worker.ask(task, seconds)
    found = [float(worker.answer())]
    if beside == "a training":
        other = float(partner.answer())
        found += [other] if task == "train" else []
    if loop is not None:
        loop.kill()
        loop.wait()
    return statistics.mean(found)


def compare_settings(settings: list[str], rounds: int, seconds: float) -> None:
    workers = {setting: (Worker(setting), Worker(setting)) for setting in settings}
    speeds = defaultdict(list)
    for _ in range(rounds):
        for task in ("generate", "train"):
            for beside in BESIDE:
                for setting, pair in workers.items():
                    speeds[setting, task, beside].append(measured(*pair, task, beside, seconds))
    for pair in workers.values():
        for worker in pair:
            worker.end()
    columns = [(task, beside) for task in ("generate", "train") for beside in BESIDE]
    print("| | " + " | ".join(f"{task}, {'beside ' * (beside != 'alone')}{beside}" for task, beside in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for setting in settings:
        medians = (statistics.median(speeds[setting, *column]) for column in columns)
        print(f"| {setting} | " + " | ".join(f"{median:,.0f}" for median in medians) + " |")


def fastest(counts: Iterator[int], seconds: float) -> float:
    """Seconds of the fastest step among those of so many seconds, which other programs disturb least."""
    began, best = time.perf_counter(), float("inf")
    while time.perf_counter() - began < seconds:
        step_began = time.perf_counter()
        next(counts)
        best = min(best, time.perf_counter() - step_began)
    return best


def compare_sizes(rounds: int, seconds: float) -> None:
    every = torch.get_num_threads()
    print(f"| parameters | rows | ms with one thread | with {every} | ratio |\n|---|---|---|---|---|")
    for n_layers, width in SIZES:
        shape = {"n_layers": n_layers, "d_model": width, "n_heads": width // 64}
        model = build(Transformer.model_validate(dict(load("tiny").recipe.model) | shape), VOCABULARY).eval()
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        pack(model, "float32", torch.device("cpu"))
        for n_rows in (1, 16):
            counts = written(model, n_rows)
            best = {1: float("inf"), every: float("inf")}
            for _ in range(rounds):
                for threads in best:
                    torch.set_num_threads(threads)
                    best[threads] = min(best[threads], fastest(counts, seconds))
            one, all_ = (1000 * best[threads] for threads in (1, every))
            print(f"| {n_parameters / 1e6:.2f} M | {n_rows} | {one:.2f} | {all_:.2f} | {all_ / one:.2f} |", flush=True)
        torch.set_num_threads(every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--sizes", action="store_true", help="one thread against all, by size of the model")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--chooses", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.chooses)
        return
    processor = describe_environment("cpu")["processor"]
    print(f"{processor}, torch {torch.__version__}, load average {os.getloadavg()[0]:.1f} before\n", flush=True)
    if asked.sizes:
        compare_sizes(asked.rounds, asked.seconds)
    else:
        compare_settings(asked.settings, asked.rounds, asked.seconds)


if __name__ == "__main__":
    main()
