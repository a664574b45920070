"""Imports libraries that only some commands need and that `pip install lmtool` does not install."""

from importlib import import_module
from typing import Any

from lmtool.errors import ResourceError


def import_extra(module: str, purpose: str, extra: str, alternative_fix: str = "") -> Any:
    """Imports a module of an extra of lmtool. Raises ResourceError, with the command to type, if it is not installed.

    purpose: begins the message, such as "this needs". alternative_fix: what else the user can do, after the command.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = f"{purpose} {module.partition('.')[0]}, which is not installed"
        raise ResourceError(missing, fix=f"pip install 'lmtool[{extra}]'{alternative_fix}") from error
