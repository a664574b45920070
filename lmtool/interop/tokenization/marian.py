"""The tokenizer of a Marian model: a Unigram of SentencePiece cuts the text, and vocab.json gives the ids."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from lmtool.interop.tokenization.sentencepiece import SPACE, PieceRole, SentencePieceModel
from lmtool.interop.tokenization.settings import refusal
from lmtool.printable import plain


def marian_tokenizer(
    vocabulary: Mapping[str, int], source: SentencePieceModel, roles: Collection[str], where: str
) -> Tokenizer:
    """A tokenizer with the ids of `vocabulary` that cuts text as `source` does.

    The vocabulary has also special tokens and pieces of the target language, which must match no text. The library
    finds whatever an entry is called, so these go by other names: "<" in a piece, and so in the text, becomes a
    character that neither has, so that no text spells an entry such as </s>; pieces of the target alone begin with
    another such character. The decoder takes both back. Pieces of the source that have no id are left out.

    A run of characters that the source does not know is one piece, which may have an id all the same.

    roles: special tokens. where: the model directory, for errors. Raises CheckpointError when they do not fit.
    """
    names = [name for name, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    if list(range(len(names))) != sorted(vocabulary.values()):
        raise refusal("the ids of vocab.json have gaps", where)
    if missing := [role for role in ("<unk>", *roles) if role not in vocabulary]:
        raise refusal(f"vocab.json lacks {plain(missing[0])[:40]}", where)
    if any(piece.role in (PieceRole.USER_DEFINED, PieceRole.BYTE) for piece in source.pieces):
        raise refusal("source.spm has symbols of its own", where)
    scores = {piece.text: piece.score for piece in source.pieces if piece.role == PieceRole.NORMAL}
    known = {piece for piece in scores if len(piece) == 1}
    lowest = min(scores.values(), default=0.0)
    less, foreign, strange = islice(_unused(set().union(*vocabulary, *scores)), 3)
    codes = [name for name in names if name.startswith(">>") and name.endswith("<<")]
    whole = {"<unk>", *roles, *codes}
    runs = [name for name in names if name not in whole and known.isdisjoint(name)]

    def entry(name: str) -> tuple[str, float]:
        if name in whole:
            return name, 0.0
        renamed = name.replace("<", less)
        if name in scores:
            return renamed, scores[name]
        return (renamed, lowest if len(name) == 1 else 0.0) if known.isdisjoint(name) else (foreign + renamed, 0.0)

    inner = Tokenizer(models.Unigram([entry(name) for name in names], unk_id=vocabulary["<unk>"]))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(f"[{less}{foreign}]"), strange)]
    if source.charsmap:
        steps += [normalizers.NFC(), normalizers.Precompiled(source.charsmap)]
    if source.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    space = SPACE if source.escape_whitespaces else " "
    if source.add_dummy_prefix:
        steps.append(normalizers.Prepend(space))
    steps += [normalizers.Replace(" ", space), normalizers.Replace("<", less)]
    unknown = f"[^{_escaped(c.replace('<', less) for c in sorted(known))}]"
    alike = "|".join(_escaped(name.replace("<", less)) for name in runs)
    steps.append(normalizers.Replace(Regex(f"(?<!{unknown})(?!(?:{alike})(?!{unknown})){unknown}{{2,}}"), strange))
    inner.normalizer = normalizers.Sequence(steps)
    inner.decoder = decoders.Sequence(
        [decoders.Replace(less, "<"), decoders.Replace(foreign, ""), decoders.Metaspace(prepend_scheme="always")]
    )
    # The language to translate to, written before the text. No special token: it is understood in any text.
    inner.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return inner


def _escaped(text: Iterable[str]) -> str:
    """Characters in the spelling of a regular expression."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _unused(characters: Collection[str]) -> Iterator[str]:
    """Characters for private use that are not among these."""
    return (character for character in map(chr, range(0xF0000, 0xFFFFE)) if character not in characters)
