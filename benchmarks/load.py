"""What a server keeps of 10,000 requests of all kinds: its memory, and whether anything of them is left in it.

    python benchmarks/load.py RUN [--requests 10000] [--clients 64] [--no-prefix-cache]

RUN is best a tiny model. Completions, chats, streams, clients that go away, schemas, choices, expressions, tools,
probabilities, samples, vectors and errors come in turn, each with a text of its own. Ten times the memory of the
server's process is told, in MB, and at the end how much it grew over the second half, and what is left in it. Other
options are those of `lmtool serve`.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from serving import PORT, running

CHAT, TEXTS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def request(i: int, rng: random.Random) -> tuple[str, dict[str, Any], bool]:
    """The path and body of request i, and whether its client goes away."""
    words = " ".join(rng.choices(("who", "saw", "the", "ball", "Tom", "Anna", "yes"), k=rng.randrange(1, 12)))
    text: dict[str, Any] = {"prompt": f"{i} {words}", "max_tokens": rng.randrange(1, 12), "seed": i}
    chat = {"messages": [{"role": "user", "content": f"{i} {words}"}], "max_tokens": rng.randrange(1, 12), "seed": i}
    schema = {"type": "object", "properties": {f"name_{i}": {"type": "integer"}}, "required": [f"name_{i}"]}
    named = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    function = {"name": f"call_{i}", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    every: list[tuple[str, dict[str, Any], bool]] = [
        (TEXTS, text, False),
        (CHAT, chat, False),
        (TEXTS, {**text, "stream": True}, False),
        (CHAT, {**chat, "stream": True, "stream_options": {"include_usage": True}}, False),
        (TEXTS, {**text, "stream": True, "max_tokens": 100}, True),
        (CHAT, {**chat, "max_tokens": 100}, True),
        (CHAT, {**chat, "response_format": named, "max_tokens": 60}, False),
        (TEXTS, {**text, "guided_choice": [f"yes {i}", "no"]}, False),
        (TEXTS, {**text, "guided_regex": f"[ab]{{{1 + i % 40}}}{i}", "stream": True}, False),
        (TEXTS, {**text, "guided_json": schema, "guided_complete": True, "max_tokens": 60}, False),
        (CHAT, {**chat, "tools": tools}, False),
        (CHAT, {**chat, "tools": tools, "tool_choice": "required"}, False),
        (TEXTS, {**text, "logprobs": 5, "echo": True}, False),
        (CHAT, {**chat, "logprobs": True, "top_logprobs": 5}, False),
        (TEXTS, {**text, "n": 4, "temperature": 0.5 + i / 1e4}, False),
        (TEXTS, {**text, "logit_bias": {str(5 + i % 200): -1.0}, "stop": [f"a{i}"]}, False),
        (EMBEDDINGS, {"input": [f"{i} {words}", words]}, False),
        (TEXTS, {**text, "guided_regex": f"(a{i}"}, False),
        (TEXTS, {**text, "max_tokens": -1}, False),
        (CHAT, {**chat, "field": i}, False),
    ]
    return every[i % len(every)]


async def ask(client: httpx.AsyncClient, i: int) -> int:
    """The status of request i, 0 for a client that went away."""
    path, body, leaves = request(i, random.Random(i))
    async with client.stream("POST", path, json=body, timeout=0.05 if leaves and not body.get("stream") else 60) as got:
        async for _ in got.aiter_raw():
            if leaves:
                return 0
    return got.status_code


def resident(pid: int) -> float:
    """MB of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def load(address: str, pid: int, n_requests: int, n_clients: int) -> None:
    statuses: Counter[int] = Counter()
    sizes, numbers = list[float](), iter(range(n_requests))
    async with httpx.AsyncClient(base_url=address, limits=httpx.Limits(max_connections=None)) as client:

        async def one_client() -> None:
            for i in numbers:
                try:
                    statuses[await ask(client, i)] += 1
                except httpx.TimeoutException:
                    statuses[0] += 1
                if (i + 1) % (n_requests // 10) == 0:
                    sizes.append(resident(pid))
                    print(f"{i + 1:6} requests: {sizes[-1]:.1f} MB", flush=True)

        await asyncio.gather(*(one_client() for _ in range(n_clients)))
        await asyncio.sleep(2)
        print(f"second half: {100 * (sizes[-1] / sizes[len(sizes) // 2 - 1] - 1):+.2f} %")
        print(", ".join(f"{n} x {status or 'gone'}" for status, n in sorted(statuses.items())))
        print((await client.get("/health")).text)
        lines = (await client.get("/metrics")).text.splitlines()
        print(*(line for line in lines if line.startswith(("lmtool_running", "lmtool_waiting"))), sep="\n")


def child_of(pid: int) -> int:
    """The process that listens."""
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "lmtool serve"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    given, options = parser.parse_known_args()
    command = [sys.executable, "-m", "lmtool", "serve", given.run, "--port", str(PORT), *options]
    with running(command, "/health"):
        pid = child_of(os.getpid())
        asyncio.run(load(f"http://127.0.0.1:{PORT}", pid, given.requests, given.clients))


if __name__ == "__main__":
    main()
