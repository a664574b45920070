"""The words of the world: people, places, animals, things; numbers and plurals. Lists go from common to rare."""

from words import before, load, table

PEOPLE, ANIMAL, NUMBERS = load("people"), load("animals"), load("numbers")
WOMEN, MEN, TRADES = PEOPLE["women"], PEOPLE["men"], PEOPLE["trades"]
NAMES = [name for pair in zip(WOMEN, MEN, strict=True) for name in pair]
CHILDREN = ("girl", "boy")
SEX = dict.fromkeys([*WOMEN, *PEOPLE["she"]], "she") | dict.fromkeys([*MEN, *PEOPLE["he"]], "he")
DAYS = load("days")["days"]
PLACES = table(load("places")["places"])
ANIMALS = {kind.noun: kind for kind in table(ANIMAL["animals"])}
PET_NAMES = ANIMAL["names"]
TREASURES = {noun: before(looks) for noun, looks in load("things")["treasures"].items()}


def number(n: int) -> str:
    """0 -> no, 1 -> one, ... 99 -> ninety-nine."""
    small, tens = NUMBERS["numbers"], NUMBERS["tens"]
    if n < len(small):
        return str(small[n])
    return tens[n // 10 - 2] + (f"-{small[n % 10]}" if n % 10 else "")


def plural(noun: str) -> str:
    if noun in NUMBERS["plurals"]:
        return str(NUMBERS["plurals"][noun])
    if noun.endswith(("s", "sh", "ch", "x")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


class Number(int):
    """A number that is written in words; with a noun as its form, {n.apple}, as so many of it."""

    def __str__(self) -> str:
        return number(int(self))

    def render(self, form: str, said: object) -> str:
        return f"{self} {form if self == 1 else plural(form)}" if form else str(self)
