"""`lmtool serve`: answer over HTTP."""

from pathlib import Path

import typer

from lmtool.cli.arguments import Device, Precision, Quiet, RunName
from lmtool.cli.help import flag, option
from lmtool.errors import ResourceError, UsageError


def serve(
    run: RunName = "last",
    host: str = option("ADDRESS", "The address to listen on.", default="127.0.0.1"),
    port: int = option("N", "The port; 0 for any that is free.", default=8000, min=0, max=65535),
    api_key_file: Path | None = option("FILE", "A file with the key that clients must send."),
    no_auth: bool = flag("Answer everyone on an address that others reach.", "--no-auth"),
    allow_host: list[str] | None = option("NAME", "A name of this machine in URLs; may be repeated."),
    index: Path | None = option("INDEX", "An index of lmtool search index, made by this model, to search at /search."),
    max_tokens: int = option("N", "Maximum new tokens of a text.", default=4096, min=1),
    max_rows: int = option("N", "Texts that are generated at once.", default=64, min=1),
    max_in_flight: int | None = option("N", "Tokens of all these texts.", shown="a quarter of the memory", min=1),
    max_queue: int = option("N", "Requests that wait.", default=256, min=1),
    grace: float = option("SECONDS", "Time to finish requests after a signal.", default=30.0, min=0, max=86400),
    log_prompts: bool = flag("Write prompts to the log.", "--log-prompts"),
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Answer over HTTP, many at once, through the interface of the OpenAI API; and a page to write prompts in.

    Examples:
    lmtool serve last --port 8000
    lmtool serve hf:HuggingFaceTB/SmolLM2-135M-Instruct --precision int8
    lmtool serve last --host 0.0.0.0 --api-key-file key.txt
    """
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn", "h11", "prometheus_client") if find_spec(name) is None]
    if missing:
        what = f"the server needs {' and '.join(missing)}"
        raise ResourceError(what, where="lmtool serve", fix="pip install 'lmtool[serve]'")

    from lmtool.cli.output import describe, tell
    from lmtool.inference.generator import TextGenerator
    from lmtool.search.index import Index
    from lmtool.serving.guard import Access, is_loopback, read_key
    from lmtool.serving.server import Serving
    from lmtool.serving.server import serve as answer

    if api_key_file is not None and no_auth:
        raise UsageError("--no-auth contradicts --api-key-file", fix="give only one of them")
    if not (is_loopback(host) or api_key_file is not None or no_auth):
        fix = "add --api-key-file FILE, or --no-auth for everyone"
        raise UsageError("others reach this address", where=f"--host {host}", fix=fix)
    access = Access(host, None if api_key_file is None else read_key(api_key_file), allow_host or ())

    generator = TextGenerator.open(run, device=device, precision=precision)
    describe(generator.loaded, quiet)
    limits = grace, max_tokens, max_rows, max_in_flight, max_queue
    texts = None if index is None else Index(index, generator.loaded)
    serving = Serving(host, port, access, *limits, log_prompts, texts)
    raise typer.Exit(128 + answer(generator, serving, (lambda *_: None) if quiet else tell))
