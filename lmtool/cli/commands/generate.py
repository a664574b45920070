"""`lmtool generate`: generate text with a trained model."""

import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from lmtool.cli.arguments import RUN_HELP, Device, Json, Precision, Quiet
from lmtool.cli.help import argument, file_to_write, flag, option
from lmtool.cli.output import (
    attach_draft,
    check_new,
    describe,
    eprint,
    print_json,
    print_lines,
    print_text,
    warn_of_cut_forms,
    warn_of_unknown_tokens,
)
from lmtool.cli.settings import pop_form, with_sampling_options
from lmtool.errors import UsageError
from lmtool.generation.params import COMMON, DEFAULT_DRAFT_TOKENS, MASKS, STRATEGIES, StrategyName
from lmtool.printable import format_count, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmtool.generation.generate import TextGenerator
    from lmtool.generation.request import Completion, Token

OUTPUT = "Output"
_input, _choice, _draft, _masks, _output = (
    partial(option, panel=panel) for panel in ("Prompts and model", COMMON, "Speculative decoding", MASKS, OUTPUT)
)
DIFFERENT = 1
"""Exit code of a replay whose output differs."""


@with_sampling_options(*STRATEGIES)
def generate(
    prompt: list[str] | None = argument(
        "PROMPT", "Text to continue; may be several. By default the lines of piped input, or an empty prompt."
    ),
    prompt_file: str | None = _input("FILE", "One prompt per line; - is standard input."),
    run: str | None = _input("RUN", RUN_HELP, shown="last"),
    overflow: Literal["refuse", "cut", "slide"] = _input(
        "", "How to handle prompts longer than the context.", default="refuse"
    ),
    prefix: str = _input("TEXT", "Forced beginning of every generated text.", default=""),
    replay: str | None = _input("FILE", "Reproduce the records that --json wrote, and compare."),
    strategy: StrategyName | None = _choice("", "The decoding strategy.", shown="implied by the options"),
    greedy: bool = flag("Short for --strategy greedy.", "--greedy", panel=COMMON),
    *,
    stop: list[str] | None = _choice("TEXT", "Stop before this text; may be repeated."),
    n: int = _choice("N", "Samples per prompt.", "-n", default=1, min=1),
    logit_bias: list[str] | None = _choice("TEXT=X", "Add X to the logit of this text; may be repeated."),
    draft: str | None = _draft("RUN|ngram", "A draft that proposes tokens for the model to verify; ngram is look-up."),
    draft_tokens: int | None = _draft("N", "Tokens proposed at once.", shown=str(DEFAULT_DRAFT_TOKENS), min=1),
    mask: str | None = _masks("TEXT", "This text in a prompt is one masked token to predict."),
    length: int | None = _masks("N", "Generate N tokens after the prompt."),
    echo: bool | None = _output("", "Print the prompt too.", "--echo/--no-echo", shown="not for sequence to sequence"),
    show_probs: bool = flag(
        "Print each token with its probability and rank, and what filters removed.", "--show-probs", panel=OUTPUT
    ),
    html: Path | None = _output(
        "FILE", "Write a page too: what --show-probs prints, and the tree of a beam search.", parser=file_to_write
    ),
    deterministic: bool = flag(
        "Compute each text alone, so that results do not depend on batching.", "--deterministic", panel=OUTPUT
    ),
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
    **choices: Any,
) -> None:
    """Generate text with a trained model: continue a prompt, map a source to a target, or fill in masks.

    A single text streams to a terminal. Several are separated by lines of ---; programs use --json.

    Examples:
    lmtool generate "One day"
    lmtool generate "One day" --run last@500 --temperature 0.7 --top-k 40 --seed 1
    lmtool generate "ROMEO:" "JULIET:" -n 3 --max-new-tokens 100
    lmtool generate --prompt-file prompts.txt --strategy beam --num-beams 4 --json
    lmtool generate < prompts.txt
    """
    from lmtool.generation.generate import MAX_ROWS, TextGenerator
    from lmtool.generation.params import check_strategy_takes_draft, choose_params, params_to_record
    from lmtool.generation.prompts import gather_prompts
    from lmtool.generation.replay import completion_record

    if greedy and strategy not in (None, "greedy"):
        raise UsageError(f"--greedy contradicts --strategy {strategy}", fix="give only one of them")
    strategy = "greedy" if greedy else strategy
    if replay is not None:
        beside = [prompt, prompt_file, run, strategy, stop, logit_bias, mask, length, html, draft, draft_tokens]
        choices["complete"] = choices["complete"] or None
        beside += choices.values()
        if prefix or n > 1 or any(value is not None for value in beside):
            raise UsageError(
                "--replay takes prompts, run and settings from the records", fix="omit prompts, runs and settings"
            )
        _print_replay(replay, as_json)
        return
    check_new(html)
    prompts = gather_prompts(prompt or [], prompt_file)
    if "" in (stop or ()):
        raise UsageError("a stop string is empty", fix="give it at least one character")
    options: dict[str, Any] = {
        "n": n,
        "stop": tuple(stop or ()),
        "prefix": prefix,
        "overflow": overflow,
        "mask": mask,
        "length": length or 0,
        "details": show_probs or html is not None,
        "max_rows": 1 if deterministic else MAX_ROWS,
    }
    choices["form"] = pop_form(choices, stop=stop, prefix=prefix)
    choices |= {"masked": mask is not None or length is not None, "n": n}
    if greedy:
        choices["strategy_flag"] = "--greedy"
    elif strategy is None and choices["masked"]:
        choices["strategy_flag"] = "--length" if mask is None else "--mask"
    params = choose_params(strategy, **choices)
    if draft is not None:
        check_strategy_takes_draft(params, option="--draft")
    elif draft_tokens is not None:
        raise UsageError("--draft-tokens needs a draft", fix="add --draft RUN or --draft ngram")
    biases = [_parse_bias(bias) for bias in logit_bias or []]
    generator = TextGenerator.open(run or "last", device=device, precision=precision)
    if generator.loaded.model.reads == "both":
        params = choose_params(strategy, is_bidirectional=True, **{**choices, "seed": params.seed})
    if draft is not None:
        check_strategy_takes_draft(params, option="--draft")
    drafting = attach_draft(generator, draft, draft_tokens)
    if biases:
        encode = generator.loaded.tokenizer.encode
        params = replace(params, logit_bias=tuple((tuple(encode(text)), bias) for text, bias in biases))
    comes_in_pieces = len(prompts) * n == 1 and params.strategy in ("greedy", "sample")
    streams = sys.stdout.isatty() and comes_in_pieces and not (as_json or options["details"])
    completions = generator.completions(prompts, params, **options)
    if streams:
        echoed = generator.echoed(prompts[0], params, echo)
        completions = _print_while_generating(echoed, generator.generate(prompts, params, **options))
    describe(generator.loaded, quiet, f"seed {params.seed}")
    warn_of_unknown_tokens(generator.loaded, [text for prompt in prompts for text in prompt.split(mask or "\0")])
    if not quiet:
        eprint(*drafting)
    reasons = Counter[str]()
    n_tokens = n_proposed = n_accepted = 0
    total_logprob = 0.0
    drawn: list[tuple[str, Completion]] = []
    began = time.perf_counter()
    for i, completion in enumerate(completions):
        n_tokens += len(completion.tokens)
        total_logprob += sum(completion.logprobs)
        reasons[completion.finish_reason] += 1
        n_proposed, n_accepted = n_proposed + completion.proposed, n_accepted + completion.accepted
        if html is not None:
            filled = completion.finish_reason == "filled"
            before = f"{completion.text}\n" if filled else generator.echoed(completion.prompt, params, True)
            drawn.append((before, completion))
        if as_json:
            print_json(completion_record(generator, completion, params, options))
        elif not streams:
            text = generator.echoed(completion.prompt, params, echo) + completion.text
            print_text(("---\n" if i else "") + text)
            if show_probs:
                _print_probabilities(generator, completion)
            if completion.score is not None and not quiet:
                eprint(f"score {completion.score:.4f}")
    warn_of_cut_forms(params, reasons)
    if html is not None:
        from lmtool.report.generated import render_completions_page
        from lmtool.report.page import write_page

        loaded = generator.loaded
        chosen = [f"{name} {value}" for name, value in params_to_record(params).items() if value not in (None, ())]
        facts = ", ".join((str(loaded.run_path), f"step {loaded.step}", *drafting, *chosen))
        write_page(html, render_completions_page(drawn, loaded.tokenizer, facts))
        if not quiet:
            eprint(f"page {html}")
    if not quiet:
        seconds = time.perf_counter() - began
        if n_tokens:
            eprint(f"mean log-probability {total_logprob / n_tokens:.4f} per token")
        accepted = f", {n_accepted} of {n_proposed} proposed tokens accepted" if drafting else ""
        eprint(f"{format_count(n_tokens, 'token')} in {seconds:.1f} s, {n_tokens / seconds:.0f} tokens/s{accepted}")


def _print_while_generating(echoed: str, tokens: "Iterable[Token]") -> "Iterator[Completion]":
    """Prints a text to a terminal as it is generated, and yields it then."""
    print_text(echoed, end="")
    for token in tokens:
        print_text(token.text, end="" if token.completion is None else "\n")
        if token.completion is not None:
            yield token.completion


def _parse_bias(argument: str) -> tuple[str, float]:
    text, _, number = argument.rpartition("=")
    try:
        bias = float(number)
    except ValueError:
        text = ""
    if not text:
        raise UsageError(f"not a bias: {argument!r:.40}", fix='write a text, = and a number, such as " moon=-2"')
    return text, bias


def _print_probabilities(generator: "TextGenerator", completion: "Completion") -> None:
    """Prints a table of the tokens; on a terminal, more probable ones are greener."""
    from math import exp

    from rich.console import Console
    from rich.text import Text

    assert completion.ranks is not None and completion.removed is not None  # noqa: PT018 - they come together
    console = Console(highlight=False, soft_wrap=True)
    pieces = [repr(generator.loaded.tokenizer.display_token(token)) for token in completion.tokens]
    width = max(map(len, ["token", *pieces]))
    console.print(Text(f"{'token':{width}}  {'p':>8}  {'rank':>6}  {'removed':>8}", style="green"))
    details = zip(pieces, completion.logprobs, completion.ranks, completion.removed, strict=True)
    for piece, logprob, rank, removed in details:
        p = exp(logprob)
        style = "green" if p >= 0.5 else "yellow" if p >= 0.1 else "red"
        console.print(Text(f"{piece:{width}}  {p:8.4f}  {rank:6}  {removed:8.4f}", style=style))


def _print_replay(path: str, as_json: bool) -> None:
    from lmtool.generation.replay import read_generation_records, replay

    all_same = True
    for replayed in replay(read_generation_records(path)):
        all_same &= replayed.is_same
        if as_json:
            answer = {
                "prompt": replayed.record["prompt"],
                "sample": replayed.record["sample"],
                "same": replayed.is_same,
            }
            print_json({**answer, "differs_at": replayed.differs_at, "changed": replayed.changed})
            continue
        outcome = "same" if replayed.is_same else f"differs from token {replayed.differs_at} on"
        changed = f" ({', '.join(replayed.changed)})" if replayed.changed else ""
        print_lines(printable(f"{outcome}{changed}: {replayed.record['prompt']}")[:200])
    if not all_same:
        raise typer.Exit(DIFFERENT)
