"""What happens in the world changes what is true, and what cannot happen is refused."""

import random

import choice
import pytest
import world
from telling import Story
from world import Person, Thing

TOM, ANN = Person("Tom", "baker"), Person("Anna", "girl")


@pytest.fixture
def kite():
    return Thing("kite", {"kite": ["red "]})


@pytest.fixture
def here(kite):
    it = world.World()
    it.give(None, kite, TOM)
    return it


def test_only_who_has_a_thing_can_give_it(here, kite):
    here.give(TOM, kite, ANN)
    assert here.holders[kite] is ANN
    with pytest.raises(world.Impossible, match="does not have it"):
        here.give(TOM, kite, ANN)


def test_breaking_and_mending(here, kite):
    with pytest.raises(world.Impossible, match="not broken"):
        here.mend(kite)
    here.smash(kite)
    here.mend(kite)
    assert not here.broken


def test_counted_goods_are_conserved(here):
    here.move(None, 5, "coin", TOM)
    here.move(TOM, 2, "coin", ANN)
    assert (here.counts[TOM, "coin"], here.counts[ANN, "coin"]) == (3, 2)
    with pytest.raises(world.Impossible, match="too few"):
        here.move(TOM, 4, "coin", ANN)


def test_news_needs_somebody_who_knows(here):
    with pytest.raises(world.Impossible, match="does not know"):
        here.tell(TOM, "rain", ANN)
    here.known.add((TOM, "rain"))
    here.tell(TOM, "rain", ANN)
    assert (ANN, "rain") in here.known


def test_a_promise_is_decided_once(here):
    with pytest.raises(world.Impossible):
        here.decide(TOM, "yes", "mend the roof")
    here.vow(TOM, "mend the roof")
    here.decide(TOM, "no", "mend the roof")
    assert here.promises[TOM, "mend the roof"] is False
    with pytest.raises(world.Impossible):
        here.decide(TOM, "yes", "mend the roof")


def test_no_pronoun_reaches_over_a_role():
    story = Story(choice.Teller(random.Random(0)))
    story.set(a=TOM, e=world.Role("miller"))
    story.say("{a} saw a {e.noun}, and {e} saw {a.him}.")
    assert "".join(story.teller.printed) == "Tom saw a miller, and the miller saw Tom."


def test_a_pronoun_means_the_last_of_that_sex():
    story = Story(choice.Teller(random.Random(0)))
    story.set(a=TOM, b=Person("Peter", "miller"), c=ANN)
    story.say("{a} saw {c}, and {a.he} waved to {c.him}.")
    story.say("{b} saw {a}. {b.he} left, and {a.he} stayed with {a.his} hat.")
    text = "".join(story.teller.printed)
    assert text == ("Tom saw Anna, and he waved to her. Peter saw Tom. Peter left, and Tom stayed with his hat.")
