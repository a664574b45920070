"""`python -m tests.faults`: run fault campaigns, and print what was tried and what failed."""

import sys

from tests.campaigns.harness import Campaign, Generator, main
from tests.faults import damage, forged, jobs, pairs
from tests.faults.home import build

FAULTS = Generator(
    "faults",
    (
        Campaign("kills", 200, jobs.kill),
        Campaign("signals", 100, jobs.signals),
        Campaign("damage", 1000, damage.case),
        Campaign("special-files", 300, damage.special),
        Campaign("forged", 300, forged.case),
        Campaign("full-disks", 1100, jobs.full_disk),
        Campaign("read-only", 60, jobs.read_only),
        Campaign("no-locks", 60, jobs.no_locks),
        Campaign("no-maps", 60, jobs.no_maps),
        Campaign("no-syncs", 60, jobs.no_syncs),
        Campaign("no-home", 60, jobs.no_home),
        Campaign("clocks", 40, jobs.clock),
        Campaign("pairs", 100, pairs.case),
    ),
    build,
)

if __name__ == "__main__":
    sys.exit(main(FAULTS))
