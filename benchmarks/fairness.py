"""What the heaviest requests cost another client of `lmtool serve`: its first token, and its longest gap between two.

    python benchmarks/fairness.py RUN [--rounds 3] [--only NAME ...]

The victim asks for 20 tokens, streamed, alone and then beside each kind of request, which four clients send again and
again from one second before; the longest of its rounds counts. A step is what the thread of the model does between two
looks at its queue, on which the longest step of that time is told too. The server is in this process, as its clients
are, so their own work is part of what is measured.
"""

import asyncio
import contextlib
import statistics
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
from bench import describe_machine, options_of, print_head, print_row

from lmtool.generation.generate import TextGenerator
from lmtool.serving.scheduler import Scheduler
from lmtool.serving.server import ServerConfig, build_server, open_listener, running_server

HEAVY_CLIENTS = 4
VICTIM = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "stream": True}
CHAT = "/v1/chat/completions"
TEXTS = "/v1/completions"
WORDS = "the old keeper climbed the stairs of the lighthouse and lit the lamp "


def record(n: int) -> dict[str, Any]:
    """A schema with so many properties."""
    names = [f"property_{i}" for i in range(n)]
    of_each = {"type": "string", "maxLength": 40}
    properties = dict.fromkeys(names, of_each)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def circle(n: int) -> dict[str, Any]:
    """A schema of so many definitions, each of which refers to two others."""
    defs = {
        f"d{i}": {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/d{j % n}"} for j in (i + 1, 7 * i + 3)]}}
        for i in range(n)
    }
    return {"$ref": "#/$defs/d0", "$defs": defs}


def kinds(context: int) -> dict[str, Callable[[int], tuple[str, dict[str, Any]]]]:
    """Requests by what is heavy in them, of the number of each, which makes it another one."""

    def text(**fields: Any) -> Callable[[int], tuple[str, dict[str, Any]]]:
        return lambda i: (TEXTS, {"prompt": f"{i} {WORDS}", "max_tokens": 40, "seed": i, **fields})

    def chat(i: int, **fields: Any) -> tuple[str, dict[str, Any]]:
        return CHAT, {"messages": [{"role": "user", "content": f"{i} {WORDS}"}], "max_tokens": 40, "seed": i, **fields}

    def schema(i: int, value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        named = {"name": "a", "schema": {**value, "title": str(i)}}
        return chat(i, response_format={"type": "json_schema", "json_schema": named})

    function = {"name": "call", "description": "It calls.", "parameters": record(100)}
    tools = [{"type": "function", "function": function}]
    long = min(context - 50, 4000)

    def regex(pattern: str) -> Callable[[int], tuple[str, dict[str, Any]]]:
        return lambda i: text(guided_regex=f"{i}{pattern}")(i)

    return {
        "a short text": text(),
        "a schema of 500 properties": lambda i: schema(i, record(500)),
        "a schema of 300 definitions": lambda i: schema(i, circle(300)),
        "1,000 choices": lambda i: text(guided_choice=[f"{i} {n} {WORDS}" for n in range(1000)])(i),
        "(a{1000}){1000}": regex("(a{1000}){1000}"),
        "(.*a.{30}){1,20}": regex("(.*a.{30}){1,20}"),
        "60,000 certain characters": lambda i: text(guided_regex=f"{i}{'a' * 60_000}")(i),
        "a grammar of ambiguities": lambda i: text(guided_grammar=f'start: "{i}" e\ne: e e e | "a" | ""')(i),
        "a multiple of 99,991": lambda i: text(guided_json={"multipleOf": 99991, "type": "integer", "title": str(i)})(
            i
        ),
        "an end of 900 tokens": lambda i: text(
            guided_json={"type": "string", "minLength": 900, "title": str(i)}, guided_complete=True, max_tokens=1000
        )(i),
        "64 samples": text(n=64),
        "64 samples, logprobs and echo": text(n=64, echo=True, logprobs=20, prompt=WORDS * 20),
        f"a prompt of {long} tokens": lambda i: (
            TEXTS,
            {"prompt": [1000 + i, *range(1000, 999 + long)], "max_tokens": 4},
        ),
        "the same, with logprobs": lambda i: (
            TEXTS,
            {"prompt": [2000 + i, *range(1000, 999 + long)], "max_tokens": 4, "echo": True, "logprobs": 20},
        ),
        "1,024 biases": lambda i: text(logit_bias={str(n + i): -1 for n in range(1024)})(i),
        "16 stop strings": text(n=16, stop=[letter * 1000 for letter in string.ascii_letters[:16]]),
        "64 texts to embed": lambda i: ("/v1/embeddings", {"input": [f"{i} {n} {WORDS * 10}" for n in range(64)]}),
        "a tool of 100 properties": lambda i: chat(i, tools=tools, tool_choice="required"),
        "clients that go away": lambda i: (
            TEXTS,
            {"prompt": f"{i} {WORDS}", "n": 64, "max_tokens": 500, "timeout": 0.3},
        ),
    }


@dataclass
class Steps:
    """The longest step since it was reset."""

    longest: float = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """A context in which steps are measured."""
        turn = Scheduler._run_iteration

        def timed(scheduler: Scheduler, call: Any) -> None:
            began = time.perf_counter()
            turn(scheduler, call)
            self.longest = max(self.longest, time.perf_counter() - began)

        Scheduler._run_iteration = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Scheduler._run_iteration = turn  # type: ignore[method-assign]


async def victim(client: httpx.AsyncClient) -> tuple[float, float, float]:
    """Seconds to the first token, the longest gap, and the median gap."""
    times = [time.perf_counter()]
    async with client.stream("POST", TEXTS, json=VICTIM) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
    first, *gaps = (b - a for a, b in pairwise(times))
    return first, max(gaps), statistics.median(gaps)


async def compare(address: str, steps: Steps, context: int, rounds: int, only: list[str]) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
        await victim(client)

        async def beside(name: str, ask: Callable[[int], tuple[str, dict[str, Any]]] | None) -> None:
            numbers, statuses = iter(range(100_000)), list[int]()

            async def heavy() -> None:
                while ask is not None:
                    path, body = ask(next(numbers))
                    timeout = body.pop("timeout", 600)
                    try:
                        response = await client.post(path, json=body, timeout=timeout)
                        statuses.append(response.status_code)
                    except httpx.TimeoutException:
                        statuses.append(0)

            tasks = [asyncio.create_task(heavy()) for _ in range(HEAVY_CLIENTS)]
            await asyncio.sleep(1)
            steps.longest, found = 0.0, []
            for _ in range(rounds):
                found.append(await victim(client))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            firsts, gaps, medians = zip(*found, strict=True)
            answered = ", ".join(f"{statuses.count(one)} x {one or 'gone'}" for one in sorted(set(statuses)))
            figures = (max(firsts), max(gaps), statistics.median(medians), steps.longest)
            print_row(name, *(f"{1e3 * one:.0f}" for one in figures), answered)
            await client.get("/health")
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(60):
                    while "lmtool_running_texts 0.0" not in (await client.get("/metrics")).text:
                        await asyncio.sleep(0.1)

        print(describe_machine())
        print_head("beside", "first token, ms", "longest gap", "median gap", "longest step", "answers meanwhile")
        await beside("nobody", None)
        for name, ask in kinds(context).items():
            if not only or name in only:
                await beside(name, ask)


async def served(run: str, rounds: int, only: list[str]) -> None:
    generator, steps = TextGenerator.open(run, device="cpu"), Steps()
    guard, scheduler = build_server(generator, ServerConfig())
    listener = open_listener("127.0.0.1", 0)
    with steps.measured():
        async with running_server(guard, scheduler, listener):
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            context = generator.loaded.model.context or 4000
            # clients in a loop of their own, which does not wait for that of the server
            await asyncio.to_thread(lambda: asyncio.run(compare(address, steps, context, rounds, only)))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    asyncio.run(served(given.run, given.rounds, given.only))


if __name__ == "__main__":
    main()
