"""Reads a tokenizer.json by the `tokenizers` library, without what ends the process or panics in it."""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer as Inner


def inner_of(content: str) -> Inner:
    """The tokenizer of a tokenizer.json.

    Raises ValueError for what the library cannot read, and for what it would abort or panic on: BPE whose merges do not
    go on with the prefix of continuing pieces, and templates with tokens that they do not define.
    """
    described = json.loads(content)
    if isinstance(described, dict):
        _check_merges(described.get("model"))
        _check_templates(described.get("post_processor"))
    try:
        return Inner.from_str(content)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(str(error)) from error


def _check_merges(model: Any) -> None:
    prefix = model.get("continuing_subword_prefix") if isinstance(model, dict) else None
    merges = model.get("merges") if prefix else None
    for merge in merges if isinstance(merges, list) else ():
        pieces = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pieces, list) or not all(str(piece).startswith(str(prefix)) for piece in pieces[1:]):
            raise ValueError(f"the merge {str(merge)[:40]!r} does not go on with {str(prefix)[:20]!r}")


def _check_templates(processor: Any) -> None:
    for template in _templates(processor):
        defined = template.get("special_tokens")
        for part in [*_list(template.get("single")), *_list(template.get("pair"))]:
            named = part.get("SpecialToken") if isinstance(part, dict) else None
            name = named.get("id") if isinstance(named, dict) else None
            if name is not None and not (isinstance(defined, dict) and name in defined):
                raise ValueError(f"the template has a token {str(name)[:40]!r} that it does not define")


def _templates(processor: Any) -> Iterator[dict[str, Any]]:
    """The templates anywhere in a post-processor."""
    pending = [processor]
    while pending:
        match pending.pop():
            case {"type": "TemplateProcessing"} as template:
                yield template
            case {"type": "Sequence", "processors": list() as parts}:
                pending.extend(parts)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
