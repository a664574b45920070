"""The stories: one plot of plots_*.py, told as a Tale."""

import random

import plots_people
import plots_things
from choice import Teller, Written, written
from tale import Tale
from threads import THREADS

SEED = 7

DATED = (
    plots_people.promise,
    plots_people.secret,
    plots_people.illness,
    plots_people.suspicion,
    plots_things.letter,
    plots_things.coats,
    plots_things.watch,
)
ONE_DAY = {plots_people.suspicion, plots_things.letter, plots_things.coats}
UNDATED = (plots_things.storm,)
"""Plots that begin with a date, and plots that begin in their own way. Those of one day may look back at it."""


def story(teller: Teller) -> Tale:
    """Tell one story."""
    tale = Tale(teller, THREADS)
    if teller.choose((True, False), (len(DATED), len(UNDATED))):
        tale.date()
        plot = teller.choose(DATED)
    else:
        plot = teller.choose(UNDATED)
    tale.plot = plot.__name__
    plot(tale)
    if plot in ONE_DAY:
        tale.close()
    return tale


def number(index: int, seed: int = SEED) -> Written:
    """Story number index, whatever others are told. Strings seed the generator as Python promises (version 2)."""
    return written(story, random.Random(f"story {seed} {index}"))
