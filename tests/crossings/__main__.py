"""`python -m tests.crossings`: train with each pair of features at once, and print what was tried and what failed."""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.campaigns.harness import Campaign, Case, Generator, Planned, Told, main
from tests.crossings.axes import USUAL, Row, chosen
from tests.crossings.crossing import Crossing
from tests.crossings.home import build
from tests.crossings.pairs import Language, Pair, all_pairs, covering, drawn, pairs_of

ROUNDS = 4
"""How often rows are made of pairs that no run had, since it was refused."""


class Crossings(Generator):
    """Crossings of rows that together have all pairs, or of rows that are drawn."""

    language: Language
    has_all_pairs = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--sample", type=int, metavar="N", help="so many rows drawn at random")
        parser.add_argument("--row", dest="case", metavar="JSON", help="only this crossing; its files stay")

    def plan_rounds(self, options: argparse.Namespace, home: Path, done: Sequence[Case]) -> Iterator[Planned]:
        self.language = Language(home / "tiny.yaml")
        rng = random.Random(options.seed)
        if options.sample is not None:
            self.has_all_pairs = False
            yield plan_rows([drawn(self.language, rng) for _ in range(options.sample)])
            return
        left = all_pairs()
        for _ in range(ROUNDS):
            rows = list(covering(self.language.without(refused_in(done)), left, rng))
            if not rows:
                break
            yield plan_rows(rows)
            settled = covered_by(done) | refused_in(done)
            left = [pair for pair in left if pair not in settled]

    def find_case(self, options: argparse.Namespace, home: Path) -> tuple[Campaign, int]:
        return plan_rows([{**USUAL, **json.loads(options.case)}])[0]

    def how_to_repeat(self, case: Case, seed: int) -> str:
        row = case.found["row"]
        return f"--seed {seed} --row '{json.dumps({'task': row['task'], **chosen(row)})}'"

    def summarize(self, done: Sequence[Case]) -> tuple[list[str], bool]:
        unnamed = [f"refused without the name of a key: {one}" for one in dict.fromkeys(self.language.unnamed)]
        if not self.has_all_pairs:
            return unnamed, bool(unnamed)
        covered = covered_by(done)
        late = sum(bool(self.language.tasks_with(sorted(pair))) for pair in all_pairs() if pair not in covered)
        lines = [
            f"{len(covered)} pairs ran, {len(all_pairs()) - len(covered)} did not, {late} of them as a command refused"
        ]
        return [*lines, *unnamed], bool(unnamed)


def covered_by(done: Sequence[Case]) -> set[Pair]:
    return {pair for case in done if case.found for pair in pairs_of(case.found["row"])}


def refused_in(done: Sequence[Case]) -> set[Pair]:
    return {frozenset((a, b) for a, b in pair) for case in done for pair in case.found.get("refused", ())}


def plan_rows(rows: Sequence[Row]) -> Planned:
    """A case of each row."""

    def run(home: Path, rng: random.Random, number: int) -> Told:
        crossing = Crossing(home, rows[number])
        crossing.run(rng)
        return crossing.did, crossing.problems, {"row": crossing.row, "refused": crossing.refused}

    campaign = Campaign("crossings", len(rows), run)
    return [(campaign, number) for number in range(len(rows))]


if __name__ == "__main__":
    sys.exit(main(Crossings("crossings", (), build)))
