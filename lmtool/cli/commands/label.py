"""`lmtool label`: label a table on a page, by one key a row."""

from pathlib import Path
from typing import Any

import typer

from lmtool.cli.arguments import Device, Json, Quiet
from lmtool.cli.help import argument, flag, option
from lmtool.cli.output import check_new, describe, describe_skipped, open_model, put, put_json, tell
from lmtool.cli.settings import READING, as_data, sets, settings_in
from lmtool.errors import ResourceError

OF_ROWS = ("text_columns", "label_column", "encoding", "delimiter", "skip_bad_rows")


@sets({f"data.{key}": READING[f"data.{key}"] for key in OF_ROWS})
def label(
    table: str = argument("TABLE", "The table: .csv, .tsv, .jsonl or .parquet. It stays as it is.", ...),
    labels: str = option("A,B,C", "Names of the classes. The page takes more.", default="", shown="those of the table"),
    multi: bool = flag("Any number of labels a row.", "--multi"),
    run: str | None = option("RUN", "Choose rows by this model's vectors, which were best trained to embed texts."),
    output: Path | None = option("FILE", "The CSV with all labels.", "--output", "-o", shown="TABLE.labelled.csv"),
    port: int = option("N", "The port of the page; 0 for any that is free.", default=8001, min=0, max=65535),
    *,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
    **reading: Any,
) -> None:
    """Label the rows of a table on a page, by one key a row; which row is next, a model of the answers chooses.

    Every answer is on the disk before the next row appears. The same command goes on where it has ended.

    Examples:
    lmtool label reviews.csv --labels good,bad
    lmtool label news.jsonl --text-column headline --multi --run hf:sentence-transformers/all-MiniLM-L6-v2
    """
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "h11", "prometheus_client")):
        raise ResourceError("the page needs a server", where="lmtool label", fix="pip install 'lmtool[serve]'")

    from lmtool.checksum import sha256_of_file
    from lmtool.data.table import Skipped
    from lmtool.labelling.journal import Journal
    from lmtool.labelling.labelling import Labelling
    from lmtool.labelling.learning import features_of
    from lmtool.labelling.page import ask
    from lmtool.labelling.table import TableToLabel

    data = as_data(settings_in(reading))
    skipped = Skipped() if data.skip_bad_rows else None
    found = TableToLabel.read(table, data, multi, skipped, output)
    describe_skipped(skipped)
    journal = found.output.with_suffix(".answers.jsonl")
    if not journal.exists():
        check_new(found.output, ".csv")
    head = {"table": sha256_of_file(found.table.path), "column": found.label, "multi": multi}
    loaded = None if run is None else open_model(run, device, "float32")
    if loaded is not None:
        describe(loaded, quiet)
    features = features_of([" ".join(texts) for _, texts in found.rows], loaded)
    names = [name for part in labels.split(",") if (name := part.strip())]
    labelling = Labelling(found, Journal(journal, head), features, names)

    def told(line: str) -> None:
        if as_json and line.startswith("http://"):
            put_json({"address": line, "output": str(found.output), **labelling.summary()})
        elif not quiet or line.startswith("http://"):
            tell(line)

    signal_number = ask(labelling, port, told)
    if as_json:
        put_json({"output": str(found.output), **labelling.summary()})
    else:
        put(f"{found.output}: {labelling.describe()}")
    raise typer.Exit(128 + signal_number)
