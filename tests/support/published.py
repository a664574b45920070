"""Published models that are made here."""

import json
from pathlib import Path

from tests.interop.test_importing import peer_in


def sentence_transformers(folder: Path, body: str = "bert") -> Path:
    """A small model as that library publishes them, with the mean of all positions."""
    peer_in(folder, body)
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
