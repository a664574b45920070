"""`lmtool generate`: continue, answer or fill texts with a trained model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.arguments import Device, Json, Precision, Quiet
from lmtool.decoding.settings import Beam, EarlyStopping, Limits, MaskPredict, Order, Sample, StrategyName
from lmtool.errors import UsageError
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.decoding.text import Completion
    from lmtool.engine.writing import Writer

INPUT, CHOICE, SAMPLING = "Prompts and model", "All strategies", "Sampling"
BEAM, MASKS, OUTPUT = "Beam search", "Mask-predict", "Output"
DIFFERENT = 1
"""Exit code of a replay that came out differently."""


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
        str | None,
        typer.Option(
            metavar="RUN",
            help="A run's name or directory, a checkpoint directory, or last.",
            show_default="last",
            rich_help_panel=INPUT,
        ),
    ] = None,
    overflow: Annotated[
        Literal["refuse", "cut", "slide"],
        typer.Option(help="What becomes of prompts longer than the context.", rich_help_panel=INPUT),
    ] = "refuse",
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="How every text has to begin.", rich_help_panel=INPUT)
    ] = "",
    replay: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Repeat the records that --json wrote, and compare.", rich_help_panel=INPUT),
    ] = None,
    strategy: Annotated[
        StrategyName | None,
        typer.Option(help="How tokens are chosen.", show_default="what the options imply", rich_help_panel=CHOICE),
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", metavar="", help="Short for --strategy greedy.", rich_help_panel=CHOICE)
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Most tokens written for each text.",
            show_default=str(Limits.max_new_tokens),
            rich_help_panel=CHOICE,
        ),
    ] = None,
    min_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="No end token before so many tokens.", rich_help_panel=CHOICE),
    ] = None,
    max_time: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End each text after this time.", rich_help_panel=CHOICE)
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this text; may be repeated.", rich_help_panel=CHOICE),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Makes the result repeatable; a random one when left out.", rich_help_panel=CHOICE
        ),
    ] = None,
    n: Annotated[
        int, typer.Option("-n", metavar="N", min=1, help="Samples of each prompt.", rich_help_panel=CHOICE)
    ] = 1,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Above 1 avoids tokens that the text holds.", rich_help_panel=CHOICE),
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(metavar="N", help="No N tokens in a row come twice.", rich_help_panel=CHOICE)
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT=X", help="Add X to the logit of this text; may be repeated.", rich_help_panel=CHOICE
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Divides the logits: below 1 is surer, above 1 wilder, 0 is greedy.",
            show_default=str(Sample.temperature),
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Choose among the K most probable tokens.", rich_help_panel=SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Choose among the fewest tokens whose probability reaches P.", rich_help_panel=SAMPLING
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Choose among tokens P times as probable as the first.", rich_help_panel=SAMPLING
        ),
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Choose among the most typical tokens that reach P.", rich_help_panel=SAMPLING),
    ] = None,
    num_beams: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Texts that are gone on with.",
            show_default=str(Beam.num_beams),
            rich_help_panel=BEAM,
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Rank by log p / length^X; 1 is the mean, 0 the sum.",
            show_default=str(Beam.length_penalty),
            rich_help_panel=BEAM,
        ),
    ] = None,
    early_stopping: Annotated[
        EarlyStopping | None,
        typer.Option(
            help="End with K finished texts; when none seems better; or is.",
            show_default=Beam.early_stopping,
            rich_help_panel=BEAM,
        ),
    ] = None,
    num_return: Annotated[
        int | None,
        typer.Option(metavar="N", help="Texts that come out, best first.", show_default="1", rich_help_panel=BEAM),
    ] = None,
    beam_groups: Annotated[
        int | None,
        typer.Option(
            metavar="G",
            help="Groups of beams that differ from one another.",
            show_default="one a beam with --diversity",
            rich_help_panel=BEAM,
        ),
    ] = None,
    diversity: Annotated[
        float | None,
        typer.Option(metavar="X", help="How strongly groups avoid each other's tokens.", rich_help_panel=BEAM),
    ] = None,
    mask: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="This text in a prompt is one token to fill in.", rich_help_panel=MASKS),
    ] = None,
    length: Annotated[
        int | None, typer.Option(metavar="N", help="Write N tokens behind the prompt.", rich_help_panel=MASKS)
    ] = None,
    by: Annotated[
        Order | None,
        typer.Option(
            help="Fill the surest first, or draw one at a time.", show_default="confidence", rich_help_panel=MASKS
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="How often masks are filled.", show_default=str(MaskPredict.rounds), rich_help_panel=MASKS
        ),
    ] = None,
    echo: Annotated[
        bool | None,
        typer.Option(
            "--echo/--no-echo",
            metavar="",
            help="Print the prompt too.",
            show_default="unless the model answers it",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    show_probs: Annotated[
        bool,
        typer.Option(
            "--show-probs",
            metavar="",
            help="Print each token with its probability and rank, and what filters removed.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            metavar="",
            help="Compute each text alone, so that others change not even its last bit.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue, answer or fill text with a trained model.

    A single text streams to a terminal. Several are parted by a line of ---; programs take --json.
    """
    import json
    import sys
    import time
    from dataclasses import replace
    from functools import partial

    from lmtool.decoding.prompts import gather_prompts
    from lmtool.decoding.settings import choose
    from lmtool.decoding.text import Options, complete
    from lmtool.engine.writing import load

    name: StrategyName | None = strategy or ("greedy" if greedy else None)
    if greedy and name != "greedy":
        raise UsageError(f"greedy contradicts strategy {name}", fix="leave out one or the other")
    if name is None and (mask is not None or length is not None):
        name = "mask-predict"
    asked = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "max_time": max_time,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "num_return": num_return,
        "groups": beam_groups,
        "diversity": diversity,
        "by": by,
        "rounds": rounds,
    }
    if replay is not None:
        beside = [prompt, prompt_file, run, name, seed, stop, logit_bias, mask, length, *asked.values()]
        if prefix or n > 1 or any(value is not None for value in beside):
            raise UsageError("a replay repeats records as they are", fix="leave out prompts, runs and settings")
        _replay(replay, as_json)
        return
    prompts = gather_prompts(prompt or [], prompt_file)
    biases = [_parse_bias(bias) for bias in logit_bias or []]
    settings = choose(name, n=n, seed=seed, **asked)
    options = Options(
        n=n,
        stop=tuple(stop or ()),
        prefix=prefix,
        overflow=overflow,
        mask=mask,
        length=length or 0,
        details=show_probs,
        max_rows=1 if deterministic else Options.max_rows,
    )
    writer = load(run or "last", device=device, precision=precision)
    loaded = writer.loaded
    if loaded.model.reads == "both" and name is None and settings.name == "sample":
        settings = choose("mask-predict", n=n, seed=settings.seed, **asked)
    if biases:
        encoded = tuple((tuple(loaded.tokenizer.encode(text)), bias) for text, bias in biases)
        settings = replace(settings, logit_bias=encoded)
    pieces = writer.generate(prompts, settings, options)
    for warning in loaded.warnings:
        print(plain(f"warning: {warning}", lines=True), file=sys.stderr)
    if not quiet:
        where = f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}, seed {settings.seed}"
        print(plain(where, lines=True), file=sys.stderr)
    shown = partial(plain, lines=True) if sys.stdout.isatty() else str
    whole = settings.name == "mask-predict"
    echoes = not whole and (echo if echo is not None else not writer.form.answers)
    parting = "\n" if writer.form.answers else ""
    several = len(prompts) * n > 1 or settings.name in ("beam", "mask-predict")
    n_tokens = 0
    began = time.perf_counter()
    with loaded.compute.autocast():
        if sys.stdout.isatty() and not (several or as_json or show_probs):
            print(shown(prompts[0] + parting) if echoes else "", end="", flush=True)
            for piece in pieces:
                print(shown(piece.text), end="" if piece.completion is None else "\n", flush=True)
                n_tokens += 1
        else:
            for i, completion in enumerate(complete(pieces)):
                n_tokens += len(completion.tokens)
                if as_json:
                    print(json.dumps(writer.record(completion, settings, options)), flush=True)
                    continue
                text = (completion.prompt + parting if echoes else "") + completion.text
                print(("---\n" if i else "") + shown(text), flush=True)
                if show_probs:
                    _print_probabilities(writer, completion)
                if completion.score is not None and not quiet:
                    print(f"score {completion.score:.4f}", file=sys.stderr)
    if not quiet:
        seconds = time.perf_counter() - began
        print(f"{n_tokens} tokens in {seconds:.1f} s, {n_tokens / seconds:.0f} tokens/s", file=sys.stderr)


def _parse_bias(given: str) -> tuple[str, float]:
    text, _, number = given.rpartition("=")
    try:
        bias = float(number)
    except ValueError:
        text = ""
    if not text:
        raise UsageError(f"no bias: {given!r:.40}", fix='write a text, = and a number, such as " moon=-2"')
    return text, bias


def _probabilities(writer: "Writer", completion: "Completion") -> Iterator[tuple[str, float]]:
    """The lines of a table, with the probability of each line's token."""
    from math import exp

    assert completion.ranks is not None and completion.removed is not None  # noqa: PT018 - they come together
    pieces = [repr(writer.loaded.tokenizer.piece(token)) for token in completion.tokens]
    width = max(map(len, ["token", *pieces]))
    yield f"{'token':{width}}  {'p':>8}  {'rank':>6}  {'removed':>8}", 1.0
    for piece, logprob, rank, removed in zip(
        pieces, completion.logprobs, completion.ranks, completion.removed, strict=True
    ):
        p = exp(logprob)
        yield f"{piece:{width}}  {p:8.4f}  {rank:6}  {removed:8.4f}", p


def _print_probabilities(writer: "Writer", completion: "Completion") -> None:
    """A table of the tokens; on a terminal the surer ones greener."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line, p in _probabilities(writer, completion):
        console.print(Text(line, style="green" if p >= 0.5 else "yellow" if p >= 0.1 else "red"))


def _replay(path: str, as_json: bool) -> None:
    import json

    from lmtool.engine.writing import read_records, replay

    all_same = True
    for replayed in replay(read_records(path)):
        all_same &= replayed.same
        if as_json:
            answer = {"prompt": replayed.record["prompt"], "sample": replayed.record["sample"], "same": replayed.same}
            print(json.dumps({**answer, "differs_at": replayed.differs_at, "changed": replayed.changed}), flush=True)
            continue
        outcome = "same" if replayed.same else f"differs from token {replayed.differs_at} on"
        changed = f" ({', '.join(replayed.changed)})" if replayed.changed else ""
        print(plain(f"{outcome}{changed}: {replayed.record['prompt']}")[:200], flush=True)
    if not all_same:
        raise typer.Exit(DIFFERENT)
