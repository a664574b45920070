"""Conventional names of the columns of texts, labels and pairs, by language; column_names.yaml lists them."""

import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path

import yaml

from lmtool.data.rowfile import fold_name

_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@lru_cache(4096)
def normalize_name(name: str) -> str:
    """Folds a name as `fold_name` does, and removes accents and other marks on letters."""
    letters = unicodedata.normalize("NFKD", fold_name(name))
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")


def _normalize_names_and_plurals(names_by_language: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the normalized names of all languages, each once, English first, and the English plurals last."""
    names = chain.from_iterable(map(str.split, names_by_language.values()))
    plurals = (f"{name}s" for name in names_by_language["en"].split())
    return tuple(dict.fromkeys(map(normalize_name, chain(names, plurals))))


def _normalize_pairs(by_language: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = (pair.partition("/") for pair in chain.from_iterable(map(str.split, by_language.values())))
    return tuple(dict.fromkeys((normalize_name(first), normalize_name(second)) for first, _, second in pairs))


TEXT_NAMES = _normalize_names_and_plurals(_TABLES["texts"])
TITLE_NAMES = frozenset(("headline", "headlines", "title", "titles"))
"""Names of texts that another text often follows."""
LABEL_SYNONYMS, RATING_NAMES, CATEGORY_NAMES = (
    _normalize_names_and_plurals(_TABLES[kind]) for kind in ("label_synonyms", "ratings", "categories")
)
LABEL_NAMES = (*LABEL_SYNONYMS, *RATING_NAMES, *CATEGORY_NAMES)
TEXT_COMPANIONS = _normalize_pairs(_TABLES["text_companions"])
TEXT_PAIR_NAMES = _normalize_pairs(_TABLES["text_pairs"])
SOURCE_TARGET_NAMES = _normalize_pairs(_TABLES["source_targets"])
ID_SUFFIXES = frozenset(_normalize_names_and_plurals(_TABLES["id_suffixes"]))
METADATA_SUFFIXES = ID_SUFFIXES | frozenset(_normalize_names_and_plurals(_TABLES["metadata_suffixes"]))
"""Last words of names of columns that are no labels, unless they are the only other column."""
AMOUNT_NAMES = frozenset(_normalize_names_and_plurals(_TABLES["amounts"]))
CONVENTIONAL_NAMES = frozenset((*TEXT_NAMES, *LABEL_NAMES, *chain(*TEXT_PAIR_NAMES, *SOURCE_TARGET_NAMES)))
LANGUAGE_NAMES = frozenset(map(normalize_name, _TABLES["languages"].split()))
"""Two columns with such names are a translation, from the first to the second."""


def find_conventional_column(
    columns: Iterable[str], conventional_names: Iterable[str], exclude: Iterable[str | None] = ()
) -> str | None:
    """Returns the column, not one of `exclude`, that has the earliest of the normalized names; None if none has."""
    excluded = tuple(exclude)
    left = [column for column in columns if column not in excluded]
    return next((column for name in conventional_names for column in left if normalize_name(column) == name), None)
