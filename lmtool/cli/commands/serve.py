"""`lmtool serve`: serve a model over HTTP; `lmtool label`: label a table on a page with one key per row."""

from pathlib import Path
from typing import Any

import typer

from lmtool.cli.arguments import Device, Json, Precision, Quiet, RunName
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import (
    attach_draft,
    check_new,
    describe,
    eprint,
    load_model,
    print_json,
    print_result,
    warn_of_skipped,
)
from lmtool.cli.settings import READ_OPTIONS, TEXTS_OPTIONS, key_options, to_data, to_settings, with_stdin
from lmtool.errors import ResourceError, UsageError
from lmtool.generation.params import DEFAULT_DRAFT_TOKENS
from lmtool.printable import format_count


def serve(
    run: RunName = "last",
    host: str = option("ADDRESS", "The address to listen on.", default="127.0.0.1"),
    port: int = option("N", "The port; 0 for any that is free.", default=8000, min=0, max=65535),
    api_key_file: Path | None = option("FILE", "A file with the key that clients must send."),
    no_auth: bool = flag("Serve without a key on an address that others can reach.", "--no-auth"),
    allow_host: list[str] | None = option("NAME", "A name of this machine in URLs; may be repeated."),
    index: Path | None = option("INDEX", "An index of lmtool search index, made by this model, to search at /search."),
    max_tokens: int = option("N", "Maximum new tokens of a text.", default=4096, min=1),
    max_rows: int = option("N", "Maximum texts generated at once.", default=64, min=1),
    max_in_flight: int | None = option("N", "Maximum tokens of these texts.", shown="a quarter of the memory", min=1),
    max_queue: int = option("N", "Maximum waiting requests.", default=256, min=1),
    draft: str | None = option("RUN|ngram", "A draft that proposes tokens of a single text; ngram is look-up."),
    draft_tokens: int | None = option("N", "Tokens proposed at once.", shown=str(DEFAULT_DRAFT_TOKENS), min=1),
    no_prefix_cache: bool = flag("Do not cache keys and values of prefixes.", "--no-prefix-cache"),
    grace: float = option("SECONDS", "Time to finish requests after a signal.", default=30.0, min=0, max=86400),
    log_prompts: bool = flag("Write prompts to the log.", "--log-prompts"),
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Serve a model over HTTP with the OpenAI API, for many clients at once, and a page for prompts.

    Examples:
    lmtool serve last --port 8000
    lmtool serve hf:HuggingFaceTB/SmolLM2-135M-Instruct --precision int8
    lmtool serve last --host 0.0.0.0 --api-key-file key.txt
    """
    _check_installed("serve")

    from lmtool.apps.search.index import Index
    from lmtool.generation.generate import TextGenerator
    from lmtool.serving.guard import AccessPolicy, is_loopback, read_api_key
    from lmtool.serving.server import ServerConfig, build_server, serve_until_signal

    if api_key_file is not None and no_auth:
        raise UsageError("--no-auth contradicts --api-key-file", fix="give only one of them")
    if not (is_loopback(host) or api_key_file is not None or no_auth):
        fix = "add --api-key-file FILE, or --no-auth for everyone"
        raise UsageError("other machines can reach this address", where=f"--host {host}", fix=fix)
    if draft is None and draft_tokens is not None:
        raise UsageError("--draft-tokens needs a draft", fix="add --draft RUN or --draft ngram")
    access = AccessPolicy(host, None if api_key_file is None else read_api_key(api_key_file), allow_host or ())

    generator = TextGenerator.open(run, device=device, precision=precision)
    describe(generator.loaded, quiet, *attach_draft(generator, draft, draft_tokens))
    config = ServerConfig(
        host,
        port,
        access,
        grace=grace,
        max_tokens=max_tokens,
        n_rows=max_rows,
        n_slots=max_in_flight,
        n_queued=max_queue,
        keeps_prefixes=not no_prefix_cache,
        logs_prompts=log_prompts,
        index=None if index is None else Index(index, generator.loaded),
    )
    app, scheduler = build_server(generator, config)
    raise typer.Exit(128 + serve_until_signal(app, scheduler, config, (lambda *_: None) if quiet else eprint))


@key_options(TEXTS_OPTIONS | {"data.label_column": READ_OPTIONS["data.label_column"]})
def label(
    table: str = argument(
        "TABLE", "The table: .csv, .tsv, .jsonl, .json, .parquet, or - for standard input. It stays as it is.", ...
    ),
    labels: str = option("A,B,C", "Names of the classes. The page takes more.", default="", shown="those of the table"),
    multi: bool = flag("Any number of labels a row.", "--multi"),
    run: str | None = option("RUN", "Choose rows by the vectors of this model, best one trained to embed texts."),
    output: Path | None = option(
        "FILE", "The CSV with all labels.", "--output", "-o", shown="TABLE.labelled.csv", parser=file_to_write
    ),
    port: int = option("N", "The port of the page; 0 for any that is free.", default=8001, min=0, max=65535),
    *,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """Label the rows of a table on a page with one key per row. A model of the answers chooses the next row.

    Each answer is saved before the next row appears. The same command continues where it ended.

    Examples:
    lmtool label reviews.csv --labels good,bad
    lmtool label news.jsonl --text-column headline --multi --run hf:sentence-transformers/all-MiniLM-L6-v2
    """
    _check_installed("label")

    from lmtool.apps.labelling.journal import LockedAnswerJournal
    from lmtool.apps.labelling.labelling import ActiveLearningSession
    from lmtool.apps.labelling.learning import compute_embeddings_or_tfidf
    from lmtool.apps.labelling.page import serve_labelling_until_signal
    from lmtool.apps.labelling.table import TableToLabel
    from lmtool.data.files import quote
    from lmtool.data.table import SkippedRowCounts
    from lmtool.storage.checksum import sha256_of_file

    data = to_data(to_settings(reading))
    names = [name for part in labels.split(",") if (name := part.strip())]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"the class {quote(twice)} is named twice", where=f"--labels {labels}", fix="name it once")
    (table,) = with_stdin("table", table)
    skipped = SkippedRowCounts() if data.skip_bad_rows else None
    rows = TableToLabel.read(table, data, multi, skipped, output)
    warn_of_skipped(skipped)
    n_labelled = sum(labels is not None for labels in rows.labels)
    if n_labelled and data.label_column is None and not quiet:
        eprint(
            f"column {quote(rows.label)} has {format_count(n_labelled, 'label')}; "
            "--label-column NAME begins another one"
        )
    journal = rows.output.with_suffix(".answers.jsonl")
    if not journal.exists():
        check_new(rows.output, ".csv")
    head = {"table": sha256_of_file(rows.table.path), "column": rows.label, "multi": multi}
    loaded = None if run is None else load_model(run, device, "float32")
    if loaded is not None:
        describe(loaded, quiet)
    features = compute_embeddings_or_tfidf([" ".join(texts) for _, texts in rows.rows], loaded)
    labelling = ActiveLearningSession(rows, LockedAnswerJournal(journal, head), features, names)

    def print_address_or_progress(line: str) -> None:
        is_address = line.startswith("http://")
        if is_address and as_json:
            print_json({"address": line, **labelling.to_record()})
        elif is_address or not quiet:
            eprint(line)

    signal_number = serve_labelling_until_signal(labelling, port, print_address_or_progress)
    print_result(labelling, as_json)
    raise typer.Exit(128 + signal_number)


def _check_installed(command: str) -> None:
    """Raises ResourceError where libraries of the server are missing."""
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn", "h11", "prometheus_client") if find_spec(name) is None]
    if missing:
        what = f"the server needs {', '.join(missing)}"
        raise ResourceError(what, where=f"lmtool {command}", fix="pip install 'lmtool[serve]'")
