"""`python -m tests.crossings`: train with each pair of features at once, and print what was tried and what failed."""

import argparse
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # no threads, before torch is imported: this process is forked
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

from tests.crossings.axes import USUAL, Row, chosen  # noqa: E402
from tests.crossings.crossing import Crossing  # noqa: E402
from tests.crossings.home import build  # noqa: E402
from tests.crossings.pairs import Language, Pair, all_pairs, covering, drawn, pairs_of  # noqa: E402
from tests.faults.campaign import Campaign, run_all, run_here  # noqa: E402

ROUNDS = 4
"""How often rows are made of pairs that no run had, since it was refused."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run crossings. Returns 1 when one failed."""
    options = _parser().parse_args(argv)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = options.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmtool-crossings-")))
        home = folder / "home" if (folder / "home").exists() else build(folder)
        gc.freeze()
        rng = random.Random(options.seed)
        language = Language(home / "tiny.yaml")
        if options.row is not None:
            return _repeat(folder, json.loads(options.row), options.seed)
        campaign = Rounds(folder, options.seed, options.workers)
        if options.sample is not None:
            campaign.run([drawn(language, rng) for _ in range(options.sample)])
        else:
            left = all_pairs()
            for _ in range(ROUNDS):
                rows = list(covering(language.without(campaign.refused), left, rng))
                if not rows:
                    break
                campaign.run(rows)
                left = [pair for pair in left if pair not in campaign.covered and pair not in campaign.refused]
            late = sum(bool(language.tasks_with(sorted(pair))) for pair in left)
            n_refused = len(all_pairs()) - len(campaign.covered)
            print(
                f"{len(campaign.covered)} pairs ran, {n_refused} are refused, {late} of them not by the language alone"
            )
    print(file=sys.stderr)
    for message in dict.fromkeys(language.unnamed):
        print(f"refused without the name of a key: {message}")
    print(f"{', '.join(f'{what} {n}' for what, n in campaign.did.most_common())}")
    seconds = time.monotonic() - began
    print(f"seed {options.seed}: {campaign.tried} crossings, {campaign.failed} failed, in {seconds:.0f} s")
    return int(campaign.failed > 0 or bool(language.unnamed))


class Rounds:
    """Crossings side by side, and what became of them."""

    def __init__(self, folder: Path, seed: int, workers: int) -> None:
        self._folder, self._seed, self._workers = folder, seed, workers
        self.tried = self.failed = 0
        self.covered: set[Pair] = set()
        self.refused: set[Pair] = set()
        self.did: Counter[str] = Counter()

    def run(self, rows: Sequence[Row]) -> None:
        campaign = campaign_of(rows)
        cases = [(campaign, number) for number in range(len(rows))]
        for case in run_all(self._folder, cases, self._seed, self._workers, float("inf")):
            self.tried += 1
            print(f"\r{self.tried} crossings", end="", file=sys.stderr, flush=True)
            result = json.loads(case.did[-1]) if case.did else {"row": {}, "refused": []}
            self.refused |= {frozenset((a, b) for a, b in pair) for pair in result["refused"]}
            if result["row"]:
                self.covered |= set(pairs_of(result["row"]))
            self.did.update(case.did[:-1])
            if case.problems:
                self.failed += 1
                print(told(result["row"] or rows[case.number], case.problems), flush=True)


def campaign_of(rows: Sequence[Row]) -> Campaign:
    """Crossings of these rows as a campaign; what each did ends with its row and what of it was refused."""

    def case(home: Path, rng: random.Random, number: int) -> tuple[list[str], list[str]]:
        crossing = Crossing(home, rows[number])
        crossing.run(rng)
        return [*crossing.did, json.dumps({"row": crossing.row, "refused": crossing.refused})], crossing.problems

    return Campaign("crossings", len(rows), case)


def told(row: Row, problems: Iterable[str]) -> str:
    features = ", ".join(f"{axis} {value}" for axis, value in chosen(row).items())
    lines = [f"{row['task']} with {features or 'nothing'}:"]
    lines += [f"  {line}" for problem in problems for line in problem.splitlines()[-12:]]
    short = {"task": row["task"], **chosen(row)}
    return "\n".join([*lines, f"  again: python -m tests.crossings --row '{json.dumps(short)}'"])


def _repeat(folder: Path, row: Row, seed: int) -> int:
    """Run one crossing again, and leave its files."""

    case, place = run_here(folder, campaign_of([{**USUAL, **row}]), 0, seed)
    print(told({**USUAL, **row}, case.problems) if case.problems else f"no problem: {', '.join(case.did[:-1])}")
    print(f"its files: {place}")
    return int(bool(case.problems))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.crossings", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides everything that is drawn; 1 by default")
    parser.add_argument("--sample", type=int, metavar="N", help="so many rows drawn at random, instead of all pairs")
    parser.add_argument("--row", metavar="JSON", help="only this crossing; with --home its files stay")
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="make the home here and leave it, or take it from here"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N", help="crossings side by side")
    return parser


if __name__ == "__main__":
    sys.exit(main())
