"""`lmtool tokenize`: train a tokenizer, and write text as a token store."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lmtool.cli.arguments import TEXT_HELP, Json, Quiet
from lmtool.cli.help import argument, file_to_write, folder_to_write, option
from lmtool.cli.output import check_new, print_json, print_lines, print_text, warn_of_file_names
from lmtool.cli.progress import Display, describe_tokenizer
from lmtool.cli.settings import (
    DEFAULT_RECIPE,
    TEXT_OPTIONS,
    KeyOptions,
    Overrides,
    key_options,
    recipe_option,
    to_settings,
    with_stdin,
)
from lmtool.errors import UsageError
from lmtool.printable import format_count

if TYPE_CHECKING:
    from lmtool.data.prepare import TokenizedData
    from lmtool.recipe.spec.text import TokenizerFile, TrainedTokenizerSpecBase
    from lmtool.tokenization.tokenizer import Tokenizer


_TOKENIZER_HELP = "Use this tokenizer.json, or that of a folder, a run, a model or last."
_Kind = Literal["bpe", "wordpiece", "char", "word"]
OPTIONS: KeyOptions = {
    "data.column": TEXT_OPTIONS["data.column"],
    "tokenizer.kind": (_Kind, option("", "Kind of tokenizer to train.")),
    "tokenizer.vocab_size": (int, option("N", "Vocabulary size of the tokenizer to train.")),
    "tokenizer.path": (str, option("RUN", _TOKENIZER_HELP, "--tokenizer")),
}
"""The options that set keys of the recipe."""


@key_options(OPTIONS)
def tokenize(
    text: list[str] | None = argument("TEXT", TEXT_HELP),
    output: Path | None = option(
        "DIR", "Folder for tokenizer.json, train/ and valid/.", "--output", "-o", parser=folder_to_write
    ),
    recipe: str = recipe_option(DEFAULT_RECIPE),
    overrides: Overrides = None,
    *,
    show: str | None = option("TEXT", "Show the pieces and ids of this text; - is standard input."),
    html: Path | None = option(
        "FILE", "With --show: write a page of the pieces in colours, and of the merges of BPE.", parser=file_to_write
    ),
    as_json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Train a tokenizer on text, or load one, and tokenize the text.

    With --show and --tokenizer no other text is needed.

    Examples:
    lmtool tokenize book.txt --kind bpe --vocab-size 2048 -o tokens
    lmtool tokenize --tokenizer last --show "One day"
    """
    from lmtool.recipe.resolve import resolve

    if html is not None and show is None:
        raise UsageError("--html needs --show", fix="add --show TEXT")
    check_new(html)
    if show is not None:
        from lmtool.generation.prompts import resolve_stdin_text

        show = resolve_stdin_text(show)
    (text,) = with_stdin("text", text)
    loaded = ("tokenizer.kind", None if options["tokenizer"] is None else "file", "--tokenizer")
    settings = to_settings(options, OPTIONS, ("data.train", text, "TEXT"), loaded, overrides=overrides)
    sources = resolve(recipe, settings).recipe.data.sources  # mistakes are told before anything heavy is imported

    from lmtool.data.prepare import tokenize_data
    from lmtool.interop.resolve import resolve_recipe_for_text
    from lmtool.recipe.spec.text import TokenizerFile
    from lmtool.tokenization.tokenizer import Tokenizer

    if not sources:
        spec = resolve_recipe_for_text(recipe, settings)[0].recipe.tokenizer
        if not isinstance(spec, TokenizerFile) or show is None:
            raise UsageError("no text to tokenize", fix="name a file, or use --tokenizer FILE --show TEXT")
        _print_tokens(Tokenizer.load(spec.path), show, as_json, html)
        return
    with Display(shown=True, quiet=quiet) as display:
        resolved, _ = resolve_recipe_for_text(recipe, settings, display.report)
        spec, data = resolved.recipe.tokenizer, resolved.recipe.data.with_unvalidated_values({"stream": False})
        seed, report = resolved.recipe.seed, display.report
        prepared = tokenize_data(data, spec, seed=seed, report=report, out=output)
    if show is not None:
        _print_tokens(prepared.tokenizer, show, as_json, html)
        return
    _print_summary(prepared, spec, output, as_json)


def _print_tokens(tokenizer: "Tokenizer", text: str, as_json: bool, html: Path | None) -> None:
    """Prints the pieces and ids of a text, and writes them as a page if a file is named."""
    warn_of_file_names([text])
    if html is not None:
        from lmtool.report.page import write_page
        from lmtool.report.tokenized import render_tokenized_page

        write_page(html, render_tokenized_page(tokenizer, text))
    ids = tokenizer.encode(text)
    pieces = [tokenizer.display_token(token) for token in ids]
    if as_json:
        print_json({"text": text, "pieces": pieces, "ids": ids})
    else:
        for token, piece in zip(ids, pieces, strict=True):
            print_text(f"{token}\t{piece}")


def _print_summary(
    prepared: "TokenizedData", requested: "TrainedTokenizerSpecBase | TokenizerFile", output: Path | None, as_json: bool
) -> None:
    """Prints sizes and speed; no speed when everything was cached."""
    from lmtool.storage.durable import cache_folder, is_cache_temporary

    stores = {"train": prepared.train, "valid": prepared.valid}
    n_bytes = sum(int(store.n_bytes.sum()) for store in stores.values())
    tokens = sum(len(store) for store in stores.values())
    is_stream = prepared.data.split == "slice"
    documents = 1 if is_stream else sum(store.n_documents for store in stores.values())
    record = {
        "tokenizer": prepared.tokenizer.kind,
        "vocab_size": prepared.tokenizer.vocab_size,
        "bytes": n_bytes,
        "tokens": tokens,
        "bytes_per_token": n_bytes / tokens,
        "megabytes_per_second": n_bytes / 1e6 / prepared.seconds if prepared.seconds else None,
        "train_tokens": len(prepared.train),
        "valid_tokens": len(prepared.valid),
        "documents": documents,
        "split": prepared.data.split,
    }
    if as_json:
        print_json(record)
        return
    speed = f"{record['megabytes_per_second']:.1f} MB/s" if prepared.seconds else "cached"
    place = "nowhere, as the cache may not be written" if is_cache_temporary() else f"in the cache, {cache_folder()}"
    in_cache = f"{place}; -o DIR writes tokenizer.json and the tokens to a folder"
    saved = in_cache if output is None else f"{output}: tokenizer.json, train/, valid/"
    print_lines(f"tokenizer  {describe_tokenizer(prepared.tokenizer, requested)}")
    print_lines(f"text       {n_bytes:,} bytes in {'one text' if is_stream else format_count(documents, 'document')}")
    print_lines(f"tokens     {tokens:,}, {n_bytes / tokens:.2f} bytes each; {speed}")
    print_lines(f"split      by {prepared.data.split}: {len(prepared.train):,} train, {len(prepared.valid):,} valid")
    print_lines(f"saved      {saved}")
