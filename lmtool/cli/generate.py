"""`lmtool generate`: continue prompts with a trained model."""

from typing import Annotated

import typer

from lmtool.cli.arguments import Device, Json, Precision, Quiet
from lmtool.decoding.settings import Limits, Sample

INPUT, CHOICE = "Prompts and model", "Choice of tokens"


def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="Text to continue; several for several texts. None starts from nothing.",
            show_default=False,
        ),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="One prompt a line; - reads standard input.", rich_help_panel=INPUT),
    ] = None,
    run: Annotated[
        str,
        typer.Option(
            metavar="RUN", help="A run's name or directory, a checkpoint directory, or last.", rich_help_panel=INPUT
        ),
    ] = "last",
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate", metavar="", help="Cut prompts longer than the context from the left.", rich_help_panel=INPUT
        ),
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens written for each text.", rich_help_panel=CHOICE)
    ] = Limits.max_new_tokens,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Divides the logits: below 1 is surer, above 1 wilder, 0 is greedy.",
            show_default=str(Sample.temperature),
            rich_help_panel=CHOICE,
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Choose among the K most probable tokens.", rich_help_panel=CHOICE)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Choose among the fewest tokens whose probability reaches P.", rich_help_panel=CHOICE
        ),
    ] = None,
    greedy: Annotated[
        bool,
        typer.Option("--greedy", metavar="", help="Take the most probable token each time.", rich_help_panel=CHOICE),
    ] = False,
    n: Annotated[
        int, typer.Option("-n", metavar="N", min=1, help="Samples of each prompt.", rich_help_panel=CHOICE)
    ] = 1,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Makes the result repeatable; a random one when left out.", rich_help_panel=CHOICE
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this text; may be repeated.", rich_help_panel=CHOICE),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue text with a trained model.

    A single text streams to a terminal. Several are parted by a line of ---; programs take --json.
    """
    import json
    import sys
    import time
    from dataclasses import asdict

    from lmtool.decoding.prompts import gather_prompts
    from lmtool.decoding.settings import choose
    from lmtool.decoding.text import complete, visible, write
    from lmtool.engine.build import load_run

    prompts = gather_prompts(prompt or [], prompt_file)
    settings = choose(
        greedy=greedy,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        seed=seed,
        n=n,
    )
    loaded = load_run(run, device=device, precision=precision)
    pieces = write(
        loaded.model,
        loaded.tokenizer,
        prompts,
        settings,
        documents=loaded.recipe.data.split == "document",
        n=n,
        stop=stop or [],
        truncate=truncate,
    )
    for warning in loaded.warnings:
        print(visible(f"warning: {warning}"), file=sys.stderr)
    if not quiet:
        where = f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}, seed {settings.seed}"
        print(visible(where), file=sys.stderr)
    source = {"run": str(loaded.run_path), "step": loaded.step, "checkpoint": loaded.checkpoint_hash}
    shown = visible if sys.stdout.isatty() else str
    n_tokens = 0
    began = time.perf_counter()
    with loaded.compute.autocast():
        if len(prompts) * n == 1 and sys.stdout.isatty() and not as_json:
            print(shown(prompts[0]), end="", flush=True)
            for piece in pieces:
                print(shown(piece.text), end="" if piece.completion is None else "\n", flush=True)
                n_tokens += 1
        else:
            for i, completion in enumerate(complete(pieces)):
                n_tokens += len(completion.tokens)
                if as_json:
                    print(json.dumps(asdict(completion) | source), flush=True)
                else:
                    print(("---\n" if i else "") + shown(completion.prompt + completion.text), flush=True)
    if not quiet:
        seconds = time.perf_counter() - began
        print(f"{n_tokens} tokens in {seconds:.1f} s, {n_tokens / seconds:.0f} tokens/s", file=sys.stderr)
