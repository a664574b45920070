"""Errors by their codes, which stay when messages are reworded; the wording of each is tested where it is made."""

import pytest

from lmtool.errors import Code, LmtoolError


def refuses(code: Code) -> pytest.RaisesExc[LmtoolError]:
    """A context in which an error with this code has to be raised."""
    return pytest.raises(LmtoolError, check=lambda error: error.code == code)
