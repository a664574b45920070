"""Write the bundled files, the same bytes every time: python data/make/bundle.py [FOLDER]

limits.json holds, by the SHA-256 of each file's bytes, what the best possible model would reach. For documents:
    documents, bytes   how many there are, and the UTF-8 bytes of their text without what separates them
    bits               the sum of -log2 of the probability of each text under the program that wrote it. The end of a
                       text is part of it: a model is to be scored on every token of the text and on its end.
    bits_per_document, bits_per_byte
For the translation tables: the same of the sources, and the best accuracy and BLEU of the targets.
For the labelled tables: the best accuracy to be expected, and what a majority and a bag of words reach.
For tags and questions: their numbers, the best F1 or exact match, and what never answering reaches.
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
