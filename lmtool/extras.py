"""Libraries that only some commands need, and that `pip install lmtool` leaves out."""

from importlib import import_module
from typing import Any

from lmtool.errors import ResourceError


def library(name: str, what: str, extra: str, otherwise: str = "") -> Any:
    """A module of an extra of lmtool. Raises ResourceError, with the line to type, where it is not installed.

    what: is done by it, in words. otherwise: what else can be done.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = f"{what} {name.partition('.')[0]}, which is not installed"
        raise ResourceError(missing, fix=f"pip install 'lmtool[{extra}]'{otherwise}") from error
