"""`lmtool serve`: answer over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.arguments import Device, Precision, Quiet, RunName
from lmtool.errors import ResourceError, UsageError


def serve(
    run: RunName = "last",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the key that clients must send.", show_default=False),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", metavar="", help="Answer everyone on an address that others reach.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name of this machine in URLs; may be repeated.", show_default=False),
    ] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum new tokens of a text.")] = 4096,
    max_rows: Annotated[int, typer.Option(metavar="N", min=1, help="Texts that are generated at once.")] = 64,
    max_in_flight: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of all these texts.", show_default="a quarter of the memory"),
    ] = None,
    max_queue: Annotated[int, typer.Option(metavar="N", min=1, help="Requests that wait.")] = 256,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=86400, help="Time to finish requests after a signal.")
    ] = 30.0,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", metavar="", help="Write prompts to the log.")] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Answer over HTTP, many at once, through the interface of the OpenAI API; and a page to write prompts in."""
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn", "h11") if find_spec(name) is None]
    if missing:
        raise ResourceError(
            f"the server needs {' and '.join(missing)}", where="lmtool serve", fix="pip install 'lmtool[serve]'"
        )

    from lmtool.cli.output import describe
    from lmtool.inference.writing import writer_of
    from lmtool.interop.reference import run_of
    from lmtool.printable import plain
    from lmtool.serving.guard import Access, is_loopback, read_key
    from lmtool.serving.server import Serving
    from lmtool.serving.server import serve as answer

    if api_key_file is not None and no_auth:
        raise UsageError("--no-auth contradicts --api-key-file", fix="give only one of them")
    if not (is_loopback(host) or api_key_file is not None or no_auth):
        raise UsageError(
            "others reach this address",
            where=f"--host {host}",
            fix="add --api-key-file FILE, or --no-auth for everyone",
        )
    access = Access(host, None if api_key_file is None else read_key(api_key_file), allow_host or ())

    def tell(line: str) -> None:
        if not quiet:
            typer.echo(plain(line), err=True)

    writer = writer_of(run_of(run), device=device, precision=precision)
    describe(writer.loaded, quiet)
    serving = Serving(
        host, port, access, grace, max_tokens, max_rows, max_in_flight, max_queue, logs_prompts=log_prompts
    )
    raise typer.Exit(128 + answer(writer, serving, tell))
