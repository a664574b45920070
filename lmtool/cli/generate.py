"""`lmtool generate`: generate text with a trained model."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lmtool.cli.arguments import RUN_HELP, Device, Json, Precision, Quiet
from lmtool.cli.strategies import with_settings
from lmtool.decoding.settings import DRAFT_TOKENS, STRATEGIES, Common, MaskPredict, StrategyName
from lmtool.errors import UsageError
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.decoding.text import Completion
    from lmtool.inference.writing import Writer

_input, _choice, _draft, _masks, _output = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Prompts and model", Common.panel, "Speculative decoding", MaskPredict.panel, "Output")
)
DIFFERENT = 1
"""Exit code of a replay whose output differs."""


@with_settings(*STRATEGIES.values())
def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="Text to continue; may be several. Without any, generation starts from scratch.",
            show_default=False,
        ),
    ] = None,
    prompt_file: Annotated[
        str | None, _input(metavar="FILE", help="One prompt per line; - reads standard input.")
    ] = None,
    run: Annotated[
        str | None,
        _input(metavar="RUN", help=RUN_HELP, show_default="last"),
    ] = None,
    overflow: Annotated[
        Literal["refuse", "cut", "slide"], _input(help="How to handle prompts longer than the context.")
    ] = "refuse",
    prefix: Annotated[str, _input(metavar="TEXT", help="Forced beginning of every generated text.")] = "",
    replay: Annotated[
        str | None, _input(metavar="FILE", help="Reproduce the records that --json wrote, and compare.")
    ] = None,
    strategy: Annotated[
        StrategyName | None, _choice(help="The decoding strategy.", show_default="implied by the options")
    ] = None,
    greedy: Annotated[bool, _choice("--greedy", metavar="", help="Short for --strategy greedy.")] = False,
    *,
    stop: Annotated[list[str] | None, _choice(metavar="TEXT", help="Stop before this text; may be repeated.")] = None,
    n: Annotated[int, _choice("-n", metavar="N", min=1, help="Samples per prompt.")] = 1,
    logit_bias: Annotated[
        list[str] | None, _choice(metavar="TEXT=X", help="Add X to the logit of this text; may be repeated.")
    ] = None,
    draft: Annotated[
        str | None,
        _draft(metavar="RUN|ngram", help="Proposes tokens that the model verifies at once; ngram looks them up."),
    ] = None,
    draft_tokens: Annotated[
        int | None, _draft(metavar="N", min=1, help="Tokens proposed at once.", show_default=str(DRAFT_TOKENS))
    ] = None,
    mask: Annotated[
        str | None, _masks(metavar="TEXT", help="This text in a prompt is one masked token to predict.")
    ] = None,
    length: Annotated[int | None, _masks(metavar="N", help="Generate N tokens after the prompt.")] = None,
    echo: Annotated[
        bool | None,
        _output(
            "--echo/--no-echo", metavar="", help="Print the prompt too.", show_default="not for sequence to sequence"
        ),
    ] = None,
    novel: Annotated[
        bool | None,
        _output(
            "--novel/--no-novel",
            metavar="",
            help="Draw a text again that is a line of the training data.",
            show_default="for lists of short lines",
        ),
    ] = None,
    show_probs: Annotated[
        bool,
        _output(
            "--show-probs", metavar="", help="Print each token with its probability and rank, and what filters removed."
        ),
    ] = False,
    html: Annotated[
        Path | None,
        _output(metavar="FILE", help="Write a page too: what --show-probs prints, and the tree of a beam search."),
    ] = None,
    deterministic: Annotated[
        bool,
        _output(
            "--deterministic", metavar="", help="Compute each text alone, so that results do not depend on batching."
        ),
    ] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
    **asked: Any,
) -> None:
    """Generate text with a trained model: continue a prompt, map a source to a target, or fill in masks.

    A single text streams to a terminal. Several are separated by lines of ---; programs use --json.
    """
    import json
    import sys
    import time
    from functools import partial

    from lmtool.cli.output import check_new, newer_weights
    from lmtool.decoding.prompts import gather_prompts
    from lmtool.decoding.settings import Options, to_record
    from lmtool.inference.replay import record
    from lmtool.inference.writing import NGRAM, load_for
    from lmtool.interop.reference import run_of

    if greedy and strategy not in (None, "greedy"):
        raise UsageError(f"greedy contradicts strategy {strategy}", fix="give only one of them")
    strategy = "greedy" if greedy else strategy
    if replay is not None:
        beside = [prompt, prompt_file, run, strategy, stop, logit_bias, mask, length, html, draft, draft_tokens]
        beside += asked.values()
        if prefix or n > 1 or novel is not None or any(value is not None for value in beside):
            raise UsageError("a replay repeats records as they are", fix="omit prompts, runs and settings")
        _replay(replay, as_json)
        return
    check_new(html)
    prompts = gather_prompts(prompt or [], prompt_file)
    options = Options(
        n=n,
        stop=tuple(stop or ()),
        prefix=prefix,
        overflow=overflow,
        mask=mask,
        length=length or 0,
        details=show_probs or html is not None,
        max_rows=1 if deterministic else Options.max_rows,
        novel=novel,
    )
    writer, settings = load_for(
        run_of(run or "last"),
        strategy,
        masked=mask is not None or length is not None,
        biases=[_parse_bias(bias) for bias in logit_bias or []],
        n=n,
        device=device,
        precision=precision,
        draft=draft if draft in (None, NGRAM) else run_of(draft),
        draft_tokens=draft_tokens,
        **asked,
    )
    is_novel = writer.known_lines(settings, options) is not None
    comes_in_pieces = len(prompts) * n == 1 and not is_novel and settings.name in ("greedy", "sample")
    streams = sys.stdout.isatty() and comes_in_pieces and not (as_json or options.details)
    pieces = writer.generate(prompts, settings, options) if streams else ()
    completions = () if streams else writer.completions(prompts, settings, options)
    for warning in writer.warnings:
        print(plain(f"warning: {warning}", lines=True), file=sys.stderr)
    drafting = [] if writer.drafter is None else [writer.drafter.describe()]
    if not quiet:
        loaded = writer.loaded
        where = f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}, seed {settings.seed}"
        novelty = ["texts of the training data are drawn again (--no-novel)"] if is_novel else []
        for line in (where, *newer_weights(loaded), *drafting, *novelty):
            print(plain(line, lines=True), file=sys.stderr)
    shown = partial(plain, lines=True) if sys.stdout.isatty() else str
    n_tokens = n_proposed = n_accepted = n_known = 0
    drawn: list[tuple[str, Completion]] = []
    began = time.perf_counter()
    if streams:
        print(shown(writer.echoed(prompts[0], settings, echo)), end="", flush=True)
        for piece in pieces:
            print(shown(piece.text), end="" if piece.completion is None else "\n", flush=True)
            n_tokens += 1
            if piece.completion is not None:
                n_proposed, n_accepted = piece.completion.proposed, piece.completion.accepted
    else:
        for i, completion in enumerate(completions):
            n_tokens += len(completion.tokens)
            n_known += completion.is_known
            n_proposed, n_accepted = n_proposed + completion.proposed, n_accepted + completion.accepted
            if html is not None:
                filled = completion.finish_reason == "filled"
                before = f"{completion.text}\n" if filled else writer.echoed(completion.prompt, settings, True)
                drawn.append((before, completion))
            if as_json:
                print(json.dumps(record(writer, completion, settings, options)), flush=True)
                continue
            text = writer.echoed(completion.prompt, settings, echo) + completion.text
            print(("---\n" if i else "") + shown(text), flush=True)
            if show_probs:
                _print_probabilities(writer, completion)
            if completion.score is not None and not quiet:
                print(f"score {completion.score:.4f}", file=sys.stderr)
    if html is not None:
        from lmtool.report.generated import as_page
        from lmtool.report.page import write_page

        loaded = writer.loaded
        chosen = [f"{name} {value}" for name, value in to_record(settings).items() if value not in (None, ())]
        facts = ", ".join((str(loaded.run_path), f"step {loaded.step}", *drafting, *chosen))
        write_page(html, as_page(drawn, loaded.tokenizer, facts))
        if not quiet:
            print(plain(f"page {html}"), file=sys.stderr)
    if not quiet:
        seconds = time.perf_counter() - began
        accepted = f", {n_accepted} of {n_proposed} proposed tokens accepted" if drafting else ""
        if n_known:
            print(f"{n_known} of the texts are in the training data: other draws gave no new ones", file=sys.stderr)
        print(f"{n_tokens} tokens in {seconds:.1f} s, {n_tokens / seconds:.0f} tokens/s{accepted}", file=sys.stderr)


def _parse_bias(given: str) -> tuple[str, float]:
    text, _, number = given.rpartition("=")
    try:
        bias = float(number)
    except ValueError:
        text = ""
    if not text:
        raise UsageError(f"no bias: {given!r:.40}", fix='write a text, = and a number, such as " moon=-2"')
    return text, bias


def _print_probabilities(writer: "Writer", completion: "Completion") -> None:
    """A table of the tokens; on a terminal, more probable ones are greener."""
    from math import exp

    from rich.console import Console
    from rich.text import Text

    assert completion.ranks is not None and completion.removed is not None  # noqa: PT018 - they come together
    console = Console(highlight=False, soft_wrap=True)
    pieces = [repr(writer.loaded.tokenizer.piece(token)) for token in completion.tokens]
    width = max(map(len, ["token", *pieces]))
    console.print(Text(f"{'token':{width}}  {'p':>8}  {'rank':>6}  {'removed':>8}", style="green"))
    for piece, logprob, rank, removed in zip(
        pieces, completion.logprobs, completion.ranks, completion.removed, strict=True
    ):
        p = exp(logprob)
        style = "green" if p >= 0.5 else "yellow" if p >= 0.1 else "red"
        console.print(Text(f"{piece:{width}}  {p:8.4f}  {rank:6}  {removed:8.4f}", style=style))


def _replay(path: str, as_json: bool) -> None:
    import json

    from lmtool.inference.replay import read_records, replay
    from lmtool.printable import plain

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
