"""`neighbors --similarity`: cosines of word vectors against similarities that people have given, by rank.

Shapes: P pairs of words.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from lmtool.errors import DataError
from lmtool.inference.load import Loaded, load_run
from lmtool.inference.neighbors import token_of
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.text import Data
from lmtool.tables.labels import as_number
from lmtool.tables.metrics import regression_metrics
from lmtool.text.files import shown
from lmtool.text.prepare import default_cache
from lmtool.text.table import Row, Skipped, Table, open_table
from lmtool.text.tokenizer import Tokenizer

AS_INFERRED = Data()
"""A table is read as it seems to be written."""


@dataclass(frozen=True)
class Similarity:
    """Spearman's rho between cosines and given similarities, over the pairs whose words both have vectors.

    rho: NaN where all of either are equal. n_pairs: of the table. missing: words without a vector, sorted. skipped: bad
    rows.
    """

    loaded: Loaded
    rho: float
    n_scored: int
    n_pairs: int
    missing: tuple[str, ...]
    skipped: Skipped

    def record(self) -> dict[str, object]:
        """The JSON record."""
        return {
            "spearman": None if math.isnan(self.rho) else self.rho,
            "scored": self.n_scored,
            "pairs": self.n_pairs,
            "missing": list(self.missing),
        }

    def lines(self) -> list[str]:
        """The results as text lines."""
        share = 100 * self.n_scored / self.n_pairs
        lines = [f"spearman  {self.rho:.4f}", f"pairs     {self.n_scored:,} of {self.n_pairs:,} ({share:.1f} %)"]
        if self.missing:
            more = ", ..." if len(self.missing) > 8 else ""
            words = f"{len(self.missing):,} word{'s' * (len(self.missing) != 1)}"
            lines.append(f"missing   {words}: {', '.join(self.missing[:8])}{more}")
        return lines


def measure_similarity(
    reference: str, source: str, *, device: DeviceName = "auto", reading: Data = AS_INFERRED
) -> Similarity:
    """Compare a table of similarities with the static vectors of a run.

    source: a table whose first two columns are words, and the next one of numbers their similarity, as in WordSim-353
    and SimLex-999. reading: how it is read. A word is looked up as it is spelled, then in lower case.
    Raises DataError for a table that is not like that, or of which less than two pairs have vectors.
    """
    table = open_table(source, cache=default_cache(), encoding=reading.encoding, delimiter=reading.delimiter)
    skipped = Skipped()
    pairs = list(_pairs(table, skipped if reading.skip_bad_rows else None))
    loaded = load_run(reference, device=device, precision="float32")
    words = {word: _token(loaded.tokenizer, word) for pair in pairs for word in pair[:2]}
    scored = [
        (words[one], words[other], given) for one, other, given in pairs if None not in (words[one], words[other])
    ]
    missing = tuple(sorted(word for word, token in words.items() if token is None))
    if len(scored) < 2:
        raise DataError(
            f"{len(scored)} of {len(pairs)} pairs are of words that both have vectors; a correlation needs two",
            where=shown(source),
            fix="name a table of words that are in the run's training text",
        )
    ones, others, given = zip(*scored, strict=True)
    unit_VD: Tensor = F.normalize(loaded.model.token_vectors().detach().double(), dim=-1)
    cosines = (unit_VD[list(ones)] * unit_VD[list(others)]).sum(1)
    rho = regression_metrics(np.array(given), cosines.cpu().numpy()).spearman
    return Similarity(loaded, rho, len(scored), len(pairs), missing, skipped)


def _token(tokenizer: Tokenizer, word: str) -> int | None:
    return next((token for form in (word, word.lower()) if (token := token_of(tokenizer, form)) is not None), None)


def _pairs(table: Table, skipped: Skipped | None) -> Iterator[tuple[str, str, float]]:
    """The two words of each row, and their similarity."""
    column = None
    for row in table.rows(skipped):
        if column is None:
            numbers = (i for i, value in enumerate(row.values) if i > 1 and as_number(str(value)) is not None)
            column = next(numbers, None)
        given = None if column is None else as_number(str(row.values[column]))
        if given is None:
            raise DataError(
                "no number after two words: a table of similarities has two columns of words, then one of numbers",
                where=table.file.where(row.number, row.line, None),
                fix=f"write it with a header, as word1,word2,similarity; it has {shown(', '.join(table.names))}",
            )
        yield _word(row, 0), _word(row, 1), given


def _word(row: Row, column: int) -> str:
    return str(row.values[column]).strip()
