"""The stories: one plot of plots_*.py, told as a Tale."""

import random

import plots_a
import plots_b
import plots_c
import plots_d
import plots_e
import plots_f
from choice import Teller, Written, written
from tale import Tale
from threads import THREADS

SEED = 7

DATED = (
    plots_a.lost,
    plots_a.borrowed,
    plots_a.repair,
    plots_b.barter,
    plots_b.promise,
    plots_b.market,
    plots_c.secret,
    plots_c.illness,
    plots_c.missing,
    plots_d.visit,
    plots_d.present,
    plots_e.suspicion,
    plots_e.lesson,
    plots_e.box,
    plots_e.letter,
    plots_f.watch,
    plots_f.coats,
    plots_f.play,
)
ONE_DAY = {
    plots_a.lost,
    plots_a.repair,
    plots_b.barter,
    plots_b.market,
    plots_c.missing,
    plots_d.visit,
    plots_d.present,
    plots_d.race,
    plots_e.suspicion,
    plots_e.box,
    plots_e.letter,
    plots_f.coats,
    plots_f.play,
}
UNDATED = (plots_c.storm, plots_d.race, plots_f.contest)
"""Plots that begin with a date, and plots that begin in their own way."""


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
