"""The share of coherent stories of a model: those that the generator of the training text could have produced.

    python data/make/coherence.py [RUN] [--stories 200] [--temperatures 0.5 0.8] [--top-k 40] [--show]

A story is coherent when the generator has a derivation of it, to the last word: whose coat it is, who is still owed how
much, whose watch it was. A single wrong name is a failure. For runs trained on data/stories.txt.
"""

import argparse

from choice import derivations
from stories import story

from lmtool.generation import generate as generating
from lmtool.generation.params import SamplingParams


def holds(text: str) -> bool:
    """Whether the generator has a derivation of this story."""
    try:
        return bool(derivations(story, text.strip()))
    except RuntimeError:  # the search for a derivation gives up, far from any story
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="last", metavar="RUN")
    parser.add_argument("--stories", type=int, default=200, metavar="N", help="at each temperature")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.5, 0.8], metavar="T")
    parser.add_argument("--top-k", type=int, default=40, metavar="K")
    parser.add_argument("--show", action="store_true", help="print the incoherent stories")
    given = parser.parse_args()
    model = generating.TextGenerator.open(given.run)
    print("| temperature | stories | coherent |\n|---|---|---|")
    for temperature in given.temperatures:
        settings = SamplingParams(temperature=temperature, top_k=given.top_k, max_new_tokens=500)
        texts = model.complete("", settings, n=given.stories)
        broken = [text for text in texts if not holds(text)]
        print(f"| {temperature:g} | {len(texts)} | {1 - len(broken) / len(texts):.0%} |", flush=True)
        if given.show:
            print(*broken, sep="\n\n")


if __name__ == "__main__":
    main()
