"""Throughput and time to the first token of `lmtool serve`, beside `lmtool generate` and `transformers serve`.

    python benchmarks/serving.py RUN [--clients 1 4 16 64] [--precision float32] [--beside DIRECTORY]
    python benchmarks/serving.py RUN --clients --prefix 1000 [--precision float32]
    python benchmarks/serving.py RUN --clients 1 4 --draft ngram

Each client asks for a chat answer, greedy and streamed, waits for its end, and asks for the next one. Questions and
answers have mixed lengths, the same for all contenders. A token is an event with text; the first one counts from the
request on. DIRECTORY holds the same model for Transformers, as `lmtool export` writes it: `transformers serve` then
answers the same questions afterwards. `--prefix N` measures the first token after N tokens that were asked before, too.
Needs `pip install 'lmtool[dev]'`.
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from bench import describe_machine, options_of, print_head, print_row

WORDS = ["the", "a", "cat", "dog", "river", "house", "old", "young", "saw", "found", "under", "over", "quickly", "moon"]
PORT = 8765
PATIENCE = 120
"""Seconds in which a server must start."""


@dataclass(frozen=True)
class Question:
    """A chat of one message, and the maximum tokens of its answer."""

    text: str
    max_tokens: int


def questions(n: int, seed: int) -> list[Question]:
    rng = random.Random(seed)
    lengths = [(rng.choice((8, 30, 120)), rng.choice((16, 32, 64))) for _ in range(n)]
    return [Question("Continue: " + " ".join(rng.choices(WORDS, k=read)), written) for read, written in lengths]


@dataclass
class Measured:
    """tokens: in all. seconds: in which. firsts: seconds to the first token of each answer."""

    tokens: int
    seconds: float
    firsts: list[float]

    def print_row(self, name: str, n_clients: int) -> None:
        firsts = sorted(self.firsts)
        late = firsts[int(0.95 * (len(firsts) - 1))]
        median = statistics.median(firsts)
        print_row(name, f"{n_clients}", f"{self.tokens / self.seconds:.1f}", f"{median:.2f}", f"{late:.2f}")


async def answer(client: httpx.AsyncClient, model: str, asked: Question) -> tuple[int, float]:
    """The tokens of an answer, and the seconds to its first."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": asked.text}],
        "max_tokens": asked.max_tokens,
        "temperature": 0,
        "stream": True,
    }
    began, first, n = time.perf_counter(), 0.0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            choices: list[dict[str, Any]] = json.loads(line[6:]).get("choices") or []
            if choices and choices[0]["delta"].get("content"):
                first = first or time.perf_counter() - began
                n += 1
    return n, first


async def load(address: str, model: str, n_clients: int, each: int) -> Measured:
    """All answers of so many clients at once."""
    limits = httpx.Limits(max_connections=n_clients)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:

        async def ask(number: int) -> list[tuple[int, float]]:
            return [await answer(client, model, one) for one in questions(each, number)]

        began = time.perf_counter()
        found = [one for own in await asyncio.gather(*map(ask, range(n_clients))) for one in own]
        seconds = time.perf_counter() - began
    return Measured(sum(n for n, _ in found), seconds, [first for _, first in found if first])


def prefixed(address: str, model: str, n_tokens: int) -> None:
    """Print the seconds to the first token after prefixes of so many tokens, each of which is asked three times."""
    rng, firsts = random.Random(1), list[list[float]]()
    with httpx.Client(base_url=address, timeout=600) as client:
        for number in range(5):
            prefix, own = [rng.randrange(1000, 2000) for _ in range(n_tokens)], list[float]()
            for _ in range(3):
                prompt = [*prefix, *(rng.randrange(1000, 2000) for _ in range(20))]
                body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
                began = time.perf_counter()
                client.post("/v1/completions", json=body).raise_for_status()
                own.append(time.perf_counter() - began)
            if number:  # the first one warms up
                firsts.append(own)
        for name, seconds in zip(("first", "second", "third"), zip(*firsts, strict=True), strict=True):
            print(f"prefix of {n_tokens} tokens, {name} time: {statistics.median(seconds):.3f} s")
        gain = statistics.median(new / again for new, again, _ in firsts)
        counters = client.get("/metrics").text.splitlines()
        print(f"the second {gain:.1f} times sooner")
        print(*(line for line in counters if line.startswith(("lmtool_prompt_tokens", "lmtool_reused"))), sep="\n")


@contextmanager
def running(command: list[str], health: str) -> Iterator[None]:
    """A server, once it answers."""
    with Path("serving.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            wait_until_ready(process, health)
            yield
        finally:
            process.terminate()
            process.wait()


def wait_until_ready(process: "subprocess.Popen[bytes]", health: str) -> None:
    for _ in range(PATIENCE * 4):
        try:
            if httpx.get(f"http://127.0.0.1:{PORT}{health}", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            if process.poll() is not None:
                break
        time.sleep(0.25)
    sys.exit("the server does not answer; see serving.log")


def generated(run: str, precision: Any, each: int) -> Measured:
    """The answers to the first client's questions by `lmtool chat`, one after the other, without a server."""
    from lmtool.generation.chat import Conversation
    from lmtool.generation.generate import TextGenerator
    from lmtool.generation.params import SamplingParams

    generator = TextGenerator.open(run, precision=precision)
    warm = Conversation(generator, SamplingParams(temperature=0, max_new_tokens=4))
    list(warm.stream_reply([{"role": "user", "content": "Hello"}]))
    tokens, firsts, began = 0, [], time.perf_counter()
    for one in questions(each, 0):
        conversation = Conversation(generator, SamplingParams(temperature=0, max_new_tokens=one.max_tokens))
        asked, first = time.perf_counter(), 0.0
        for text in conversation.stream_reply([{"role": "user", "content": one.text}]):
            if text:
                first = first or time.perf_counter() - asked
                tokens += 1
        firsts.append(first)
    return Measured(tokens, time.perf_counter() - began, firsts)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--prefix", type=int, help="tokens of prefixes that are asked again")
    parser.add_argument(
        "--each", type=int, default=2, help="answers of each client, of the only one three times as many"
    )
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--draft", help="of a second `lmtool serve`, which answers the same questions afterwards")
    parser.add_argument("--beside", type=Path, help="the model for `transformers serve`")
    parser.add_argument("--beside-clients", type=int, nargs="+", default=[1, 16])
    asked = parser.parse_args()
    address = f"http://127.0.0.1:{PORT}"

    def measure(name: str, model: str, clients: list[int]) -> None:
        asyncio.run(load(address, model, 1, 1))  # compiles and allocates
        for n in clients:
            each = asked.each * 3 if n == 1 else asked.each
            asyncio.run(load(address, model, n, each)).print_row(name, n)

    print(describe_machine())
    print_head("contender", "clients", "tokens/s", "first token, median s", "95th percentile")
    if asked.clients:
        generated(asked.run, asked.precision, asked.each * 3).print_row("lmtool chat", 1)
    serve = [sys.executable, "-m", "lmtool", "serve", asked.run, "--port", str(PORT), "--precision", asked.precision]
    with running(serve, "/health"):
        model = httpx.get(f"{address}/v1/models").json()["data"][0]["id"]
        measure("lmtool serve", model, asked.clients)
        if asked.prefix:
            prefixed(address, model, asked.prefix)
    if asked.draft:
        with running([*serve, "--draft", asked.draft], "/health"):
            measure(f"lmtool serve --draft {asked.draft}", model, asked.clients)
    if asked.beside is not None:
        command = str(Path(sys.executable).with_name("transformers"))
        folder, options = str(asked.beside.resolve()), ["--dtype", asked.precision, "--device", "cpu"]
        for name, more in (("", []), (", batched", ["--continuous-batching"])):
            with running([command, "serve", folder, "--port", str(PORT), *options, *more], "/health"):
                measure(f"transformers serve{name}", folder, asked.beside_clients)


if __name__ == "__main__":
    main()
