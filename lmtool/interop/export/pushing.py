"""Publishes runs on the Hugging Face Hub."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmtool.data.hub import import_hub_even_without_home
from lmtool.errors import ResourceError, UsageError
from lmtool.interop.export.exporting import ExportDtype, export, prepare_export
from lmtool.interop.resolve import resolve_reference
from lmtool.printable import first_line, printable

NAME_FIX = "write ORG/NAME; your user name is an ORG, too"


def push_to_hub(
    reference: str,
    repo_id: str,
    *,
    dtype: ExportDtype = "float32",
    private: bool = False,
    shows_progress: bool = True,
    on_accepted: Callable[[], None] = lambda: None,
) -> str:
    """Exports a run and uploads its directory to the repository ORG/NAME in one commit; returns the commit's address.

    The repository is created if there is none. If the upload breaks off, the repository is as before, and large files
    that arrived are not sent again by the next push of the same weights.

    private: a new repository is private, and a public one refused. on_accepted: called once the Hub has the repository,
        before the export.

    Raises UsageError for a name that the Hub does not allow and as `export` does, and ResourceError when the Hub cannot
    be reached or refuses.
    """
    hub = import_hub_even_without_home()
    if "/" not in repo_id:
        raise UsageError(f"{printable(repo_id)[:80]} names no owner", fix=NAME_FIX)
    prepare_export(resolve_reference(reference))
    if not shows_progress:
        hub.utils.disable_progress_bars()
    with _convert_hub_errors(repo_id):
        hub.create_repo(repo_id, private=private, exist_ok=True)  # before the export, since it may be refused
        is_public = private and not hub.repo_info(repo_id).private
    if is_public:
        fix = "push to another name, or make it private in its settings on the Hub"
        raise UsageError("--private is for a new repository, and this one exists and is public", where=repo_id, fix=fix)
    on_accepted()
    with tempfile.TemporaryDirectory(prefix="lmtool-push-") as folder:
        exported = Path(folder) / "model"
        export(reference, exported, dtype=dtype)
        with _convert_hub_errors(repo_id):
            commit = hub.upload_folder(repo_id=repo_id, folder_path=exported, commit_message="Upload a model of lmtool")
    return str(commit.commit_url)


@contextmanager
def _convert_hub_errors(name: str) -> Iterator[None]:
    """Converts what the Hub, or the way to it, refuses to ResourceError."""
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"the Hub allows no such name: {first_line(error, 200)}", fix=NAME_FIX) from error
    except Exception as error:  # the library raises whatever its back ends raise
        fix = "push again when it can be reached: what arrived whole is not sent again"
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            fix = "log in with a token that may write there: hf auth login"
        elif isinstance(error, OfflineModeIsEnabled):
            fix = "unset HF_HUB_OFFLINE"
        raise ResourceError(f"cannot push to the Hub: {first_line(error, 200)}", where=name, fix=fix) from error
