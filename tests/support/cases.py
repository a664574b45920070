"""Which cases of a parametrised test run always, and which by night."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def nightly_but(cases: Iterable[Any], *daily: str | int, unpack: bool = False) -> list[ParameterSet]:
    """Marks all cases as slow but those that are daily, so that `make test-slow` runs them.

    Args:
        daily: Names of cases (the case itself, its id, or the first of its values), or their positions.
        unpack: Whether a case that is a tuple has a value for each of several parameters.
    """
    found, unknown = [], set(daily)
    for i, case in enumerate(cases):
        one = case if isinstance(case, ParameterSet) else pytest.param(*case) if unpack else pytest.param(case)
        names = {i, *(name for name in (one.id, one.values[0]) if isinstance(name, str))}
        unknown -= names
        marks = one.marks if names & set(daily) else [*one.marks, pytest.mark.slow]
        found.append(pytest.param(*one.values, id=one.id, marks=marks))
    assert not unknown, f"no such cases: {unknown}"
    return found
