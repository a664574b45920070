"""What happens in the world changes what is true, and what cannot happen is refused."""

import random
from collections.abc import Callable

import choice  # type: ignore[import-not-found]
import pytest
import world  # type: ignore[import-not-found]
from telling import Story  # type: ignore[import-not-found]

TOM, ANN = world.Person("Tom", "baker"), world.Person("Anna", "girl")


def told(*lines: str, **slots: object) -> str:
    story = Story(choice.Teller(random.Random(0)))
    story.set(**slots)
    for line in lines:
        story.say(line)
    return "".join(story.teller.printed)


def test_what_happens_once_cannot_happen_again() -> None:
    here, kite = world.World(), world.Thing("kite", {"kite": ["red "]})
    here.known.add((TOM, "rain"))
    here.give(None, kite, TOM)
    here.move(None, 5, "coin", TOM)
    here.smash(kite)
    here.vow(TOM, "mend the roof")
    acts: dict[str, Callable[[], object]] = {
        "does not have it": lambda: here.give(TOM, kite, ANN),
        "too few": lambda: here.move(TOM, 3, "coin", ANN),
        "not broken": lambda: here.mend(kite),
        "no open promise": lambda: here.decide(TOM, "no", "mend the roof"),
    }
    for refused, act in acts.items():
        act()
        with pytest.raises(world.Impossible, match=refused):
            act()
    assert here.holders[kite] is ANN
    assert (here.counts[TOM, "coin"], here.counts[ANN, "coin"]) == (2, 3)
    assert here.promises[TOM, "mend the roof"] is False
    with pytest.raises(world.Impossible, match="does not know"):
        here.tell(ANN, "rain", TOM)
    here.tell(TOM, "rain", ANN)
    here.tell(ANN, "rain", TOM)


def test_a_pronoun_means_the_last_of_that_sex_and_reaches_over_no_role() -> None:
    lines = (
        "{a} saw {c}, and {a.he} waved to {c.him}.",
        "{b} saw {a}. {b.he} left, and {a.he} stayed with {a.his} hat.",
    )
    assert told(*lines, a=TOM, b=world.Person("Peter", "miller"), c=ANN) == (
        "Tom saw Anna, and he waved to her. Peter saw Tom. Peter left, and Tom stayed with his hat."
    )
    over_a_role = told("{a} saw a {e.noun}, and {e} saw {a.him}.", a=TOM, e=world.Role("miller"))
    assert over_a_role == "Tom saw a miller, and the miller saw Tom."
