"""entailment.csv: a short story, and a statement about how things are at its end.

A row is written backwards. First the statement is drawn, then the label, and only then a story after which the statement
is true (entailment), false (contradiction), or may be either (neutral). So every statement is as likely under each
label, and nothing can be guessed from the statement alone.

A story interleaves threads, each of which follows one thing (or person, or promise): one thread decides the label, the
other is there to mislead. What a thread can tell is worked out from the world: all its courses of events are simulated,
and sorted by whether the statement is then true in all worlds that are still possible, in none, or in some.

    python data/make/entailment.py [FOLDER]      writes entailment.csv and entailment.test.csv
"""

import sys
from pathlib import Path
from typing import Any

from choice import Teller
from entailment_hands import counts, hands, places
from entailment_scene import LABELS, Scene
from entailment_states import arrivals, beliefs, breakage, promises
from labelled import Table

FAMILIES = {hands: 3.0, places: 4.0, counts: 4.0, breakage: 3.0, beliefs: 3.0, promises: 3.0, arrivals: 4.0}


def row(teller: Teller) -> str:
    """Write the statement, a line end and the story; the label."""
    t = Scene(teller)
    tell = teller.choose(list(FAMILIES), list(FAMILIES.values()))(t)
    label = teller.choose(LABELS)
    t.premise()
    tell(label)
    return label


ENTAILMENT = Table(
    "entailment",
    ("premise", "hypothesis"),
    ("hypothesis", "premise"),
    LABELS,
    row,
    train_size=4000,
    test_size=1000,
    seed=7,
)


def limits() -> dict[str, dict[str, Any]]:
    """What is known of each file: see labelled.py."""
    return {name: limit for name, _, limit in ENTAILMENT.files()}


if __name__ == "__main__":
    ENTAILMENT.write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
