"""The Hub is reached through its own library; what goes wrong there is told in three lines."""

import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from lmtool.errors import CheckpointError
from lmtool.interop.published_models import download_hub_model


def not_found(*args: Any, **more: Any) -> str:
    raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)  # its arguments differ by version


def unreachable(*args: Any, **more: Any) -> str:
    raise LocalEntryNotFoundError("no\x1b[31m network\nmore lines")


@pytest.mark.parametrize(
    ("answer", "what"),
    [(not_found, "has no model some/model"), (unreachable, r"cannot download.*\\x1b\[31m network$")],
)
def test_what_the_hub_does_not_have(answer: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    with pytest.raises(CheckpointError) as caught:
        download_hub_model("hf:some/model")
    lines = caught.value.lines()
    assert len(lines) == 3
    assert re.search(what, lines[0])


def test_without_a_network_and_a_copy() -> None:
    """The tests are offline, as users may be."""
    with pytest.raises(CheckpointError, match="cannot download"):
        download_hub_model("hf:some/model@v1")


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (["pytorch_model.bin"], "is a pickle"),
        (["a.Q4_0.gguf"], "holds GGUF files"),
        (["README.md"], "has no model.safetensors"),
        (None, "has no model.safetensors"),
    ],
)
def test_repositories_without_weights_that_are_read(
    files: list[str] | None, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(*args: Any, **more: Any) -> list[str]:
        if files is None:
            raise OSError("offline")
        return files

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **more: str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "list_repo_files", listed)
    with pytest.raises(CheckpointError, match=what):
        download_hub_model("hf:some/model")


def test_only_files_that_are_read_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot(name: str, **more: Any) -> str:
        asked.update(more, name=name)
        return str(tmp_path / "c0ffee")

    (tmp_path / "c0ffee").mkdir()
    (tmp_path / "c0ffee" / "model.safetensors").touch()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert download_hub_model("hf:some/model@main") == (tmp_path / "c0ffee", "c0ffee")
    assert (asked["name"], asked["revision"]) == ("some/model", "main")
    assert "config.json" in asked["allow_patterns"]
    assert not any(pattern.endswith((".bin", ".py", "*", ".pt")) for pattern in asked["allow_patterns"])
