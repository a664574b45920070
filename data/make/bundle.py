"""Write the bundled files, the same bytes every time: python data/make/bundle.py [FOLDER]

limits.json holds, by the SHA-256 of each file's bytes, what the best possible model would reach: see data/README.md.
"""

import hashlib
import json
import sys
from pathlib import Path

import questions
import stories
import tags
import translation
from entailment import ENTAILMENT
from kinship import KINSHIP
from reviews import REVIEWS

HERE = Path(__file__).resolve().parent.parent


def build(folder: Path) -> None:
    """Write every file and limits.json into the folder."""
    limits = {}
    for source in (stories, translation, REVIEWS, ENTAILMENT, KINSHIP, tags, questions):
        for name, data, limit in source.files():
            (folder / name).write_bytes(data)
            limits[hashlib.sha256(data).hexdigest()] = {"file": name, **limit}
    (folder / "limits.json").write_text(json.dumps(limits, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
