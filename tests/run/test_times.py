"""Times of sessions: those of clocks that are wrong are times too."""

import pytest

from lmtool.run.files import Session


@pytest.mark.parametrize("year", ["0100", "1970", "2026", "9027"])
def test_a_clock_may_be_wrong(year: str) -> None:
    stamp = f"{year}-01-01T00:00:00+00:00"
    session = Session(started=stamp, ended=None, step=0, outcome=None, command=[], environment={})
    assert session.started == stamp
