"""`python -m tests.faults`: run fault campaigns, and print what was tried and what failed."""

import argparse
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # no threads, before torch is imported: this process is forked
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

from tests.faults.campaign import CAMPAIGNS, Campaign, Case, Tally, planned, run_all, run_here  # noqa: E402
from tests.faults.home import build  # noqa: E402

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
SHOWN, LINES = 12, 12
"""How many of the things that were done are told of a campaign, and lines of a problem."""

NAMES = tuple(campaign.name for campaign in CAMPAIGNS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run campaigns. Returns 1 when a case failed."""
    asked = _parser().parse_args(argv)
    names = asked.only or NAMES
    if asked.case is not None:
        if len(names) != 1:
            sys.exit("--case needs --only CAMPAIGN")
        campaign = next(campaign for campaign in CAMPAIGNS if campaign.name == names[0])
        return _repeat(campaign, asked.case, asked.seed, asked.home)
    began = time.monotonic()
    deadline = began + 60 * asked.minutes if asked.minutes else float("inf")
    tallies = {campaign.name: Tally() for campaign in CAMPAIGNS if campaign.name in names}
    print(f"seed {asked.seed}", flush=True)
    with ExitStack() as stack:
        folder = asked.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmtool-faults-")))
        build(folder)
        gc.freeze()
        cases = planned(names, asked.count, asked.first)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):  # what was tried until then is told
            for case in run_all(folder, cases, asked.seed, asked.workers, deadline):
                tallies[case.campaign].add(case)
                if case.problems:
                    print(_told(case, asked.seed), flush=True)
    told = _table(tallies)
    failed = sum(len(tally.failed) for tally in tallies.values())
    print(told)
    print(f"seed {asked.seed}, {failed} failed, in {time.monotonic() - began:.0f} s")
    if asked.page is not None:
        _write_figures(asked.page, f"Seed {asked.seed}, {(time.monotonic() - began) / 60:.0f} minutes:\n\n{told}")
    return int(failed > 0)


def _repeat(campaign: Campaign, number: int, seed: int, home: Path | None) -> int:
    """Run one case again, and leave its files."""
    folder = home or Path(tempfile.mkdtemp(prefix="lmtool-faults-"))
    build(folder)
    case, place = run_here(folder, campaign, number, seed)
    print(_told(case, seed) if case.problems else f"no problem: {', '.join(case.did)}")
    print(f"its files: {place}")
    return int(bool(case.problems))


def _table(tallies: Mapping[str, Tally]) -> str:
    """What was tried and what failed, by campaign, as Markdown."""
    lines = ["| campaign | tried | failed | what happened |", "|---|---|---|---|"]
    for name, tally in tallies.items():
        did = ", ".join(f"{what} {n}" for what, n in sorted(tally.did.items(), key=lambda item: -item[1])[:SHOWN])
        lines.append(f"| {name} | {tally.tried} | {len(tally.failed)} | {did} |")
    return "\n".join(lines)


def _write_figures(page: Path, text: str) -> None:
    """Put the figures between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{text}\n{END}{after}", encoding="utf-8")


def _told(case: Case, seed: int) -> str:
    lines = [f"{case.campaign} {case.number} failed: {', '.join(case.did)}"]
    lines += [f"  {line}" for problem in case.problems for line in problem.splitlines()[-LINES:]]
    lines.append(f"  again: python -m tests.faults --only {case.campaign} --seed {seed} --case {case.number}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    sizes = ", ".join(f"{campaign.name} ({campaign.size})" for campaign in CAMPAIGNS)
    parser.add_argument("--only", action="append", choices=NAMES, metavar="CAMPAIGN", help=f"one of: {sizes}")
    parser.add_argument("--seed", type=int, default=1, help="decides everything that is drawn; 1 by default")
    parser.add_argument("--count", type=int, metavar="N", help="at most so many cases of each campaign")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with this case of each campaign")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no more cases after so many minutes")
    parser.add_argument("--case", type=int, metavar="N", help="only this case of a campaign; its files stay")
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="make the home here and leave it, or take it from here"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the figures into this page as well")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N", help="cases side by side")
    return parser


if __name__ == "__main__":
    sys.exit(main())
