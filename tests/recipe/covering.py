"""Few shipped recipes that together have every key, and every kind of a part, that some shipped recipe has."""

from functools import cache
from typing import Any

from lmtool.recipe.dump import iterate_values
from lmtool.recipe.load import load, shipped_recipes
from tests.recipe.reading import value


@cache
def covering() -> list[str]:
    """Their names: of those with the most that the ones before lack."""
    has = {}
    for name in shipped_recipes():
        recipe: Any = load(name).recipe
        paths = [path for path, _ in iterate_values(recipe)]
        has[name] = {(path, value(recipe, ".".join(map(str, path))) if path[-1] == "kind" else "") for path in paths}
    names: list[str] = []
    lacking = set().union(*has.values())
    while lacking:
        names.append(max(has, key=lambda name: len(has[name] & lacking)))
        lacking -= has[names[-1]]
    return names
