"""What happens in the world changes what is true, and what cannot happen is refused."""

import random

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


def test_things_change_hands_and_are_broken_and_mended() -> None:
    here, kite = world.World(), world.Thing("kite", {"kite": ["red "]})
    here.give(None, kite, TOM)
    here.give(TOM, kite, ANN)
    assert here.holders[kite] is ANN
    with pytest.raises(world.Impossible, match="does not have it"):
        here.give(TOM, kite, ANN)
    with pytest.raises(world.Impossible, match="not broken"):
        here.mend(kite)
    here.smash(kite)
    here.mend(kite)
    assert not here.broken


def test_counted_goods_are_conserved() -> None:
    here = world.World()
    here.move(None, 5, "coin", TOM)
    here.move(TOM, 2, "coin", ANN)
    assert (here.counts[TOM, "coin"], here.counts[ANN, "coin"]) == (3, 2)
    with pytest.raises(world.Impossible, match="too few"):
        here.move(TOM, 4, "coin", ANN)


def test_news_needs_somebody_who_knows() -> None:
    here = world.World()
    with pytest.raises(world.Impossible, match="does not know"):
        here.tell(TOM, "rain", ANN)
    here.tell(None, "rain", TOM)
    here.tell(TOM, "rain", ANN)
    assert (ANN, "rain") in here.known


def test_a_promise_is_decided_once() -> None:
    here = world.World()
    with pytest.raises(world.Impossible):
        here.decide(TOM, "yes", "mend the roof")
    here.vow(TOM, "mend the roof")
    here.decide(TOM, "no", "mend the roof")
    assert here.promises[TOM, "mend the roof"] is False
    with pytest.raises(world.Impossible):
        here.decide(TOM, "yes", "mend the roof")


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
