"""What processes tell each other: simulated by threads, and once by two real ones."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmtool.compute.device import CPU
from lmtool.compute.processes import World, is_main_process
from lmtool.errors import ResourceError
from tests.compute.forked import forked
from tests.compute.together import together
from tests.support import forks
from tests.support.errors import refuses


def rank_0_of_2(port: str) -> dict[str, str]:
    """What torchrun tells a process."""
    return {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def test_processes_that_cannot_meet_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:28570")

    for name, value in rank_0_of_2("1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.distributed, "init_process_group", gone)
    with pytest.raises(ResourceError, match="closed by peer"), CPU.join_process_group_once():
        pass


def test_a_share_is_each_item_once() -> None:
    for n in (0, 1, 7, 20):
        for size in (1, 2, 3, 30):
            shares = [list(World(rank, size).own_items(n)) for rank in range(size)]
            assert sorted(i for share in shares for i in share) == list(range(n))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


ARRAYS: dict[str, list[NDArray[Any]]] = {
    "floats": [np.array([0.5, -1e300]), np.array([]), np.array([np.pi])],
    "small floats": [np.array([[1.5, 2.5]], dtype=np.float32), np.zeros((0, 2), dtype=np.float32)],
    "matrices of other sizes": [np.arange(6.0).reshape(2, 3), np.arange(4.0).reshape(4, 1)],
    "bytes": [np.frombuffer(text, dtype=np.uint8) for text in (b"\xff\xfe\x00", b"", "é".encode())],
    "whole numbers": [np.array([2**60, -1])],
    "what is not finite": [np.array([np.nan, np.inf, -np.inf])],
    "none": [],
}


def gathered(arrays: list[NDArray[Any]], world: World) -> list[NDArray[Any]]:
    dtype = arrays[0].dtype if arrays else np.float64
    return world.gather_arrays({i: arrays[i] for i in world.own_items(len(arrays))}, len(arrays), dtype)


def same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("kind", ARRAYS)
def test_all_get_what_each_has_found(monkeypatch: pytest.MonkeyPatch, kind: str, size: int) -> None:
    for found in together(monkeypatch, size, lambda world: gathered(ARRAYS[kind], world)):
        assert same(found, ARRAYS[kind])


@pytest.mark.parametrize("size", [1, 5])
def test_sums_and_a_text_of_the_main_process(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    assert together(monkeypatch, size, lambda world: world.all_reduce_sum([world.rank, 0.5])) == (
        [[sum(range(size)), size / 2]] * size
    )
    told = together(monkeypatch, size, lambda world: world.broadcast_text("runs/naïve" * world.is_main))
    assert told == ["runs/naïve"] * size


@pytest.mark.parametrize("environment", [{"RANK": "5"}, {"RANK": "x"}, {"WORLD_SIZE": "1", "RANK": "5"}])
def test_a_process_alone_is_the_main_one(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Else a rank that was left in the environment would suppress all results."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_main_process()
    with CPU.join_process_group_once() as compute:
        assert compute.world.is_main


def test_of_several_processes_that_of_rank_0_is_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert is_main_process() is (rank == "0")
    monkeypatch.setenv("RANK", "x")
    with refuses("usage"):
        is_main_process()


@pytest.mark.system
def test_two_real_processes(tmp_path: Path) -> None:
    """By gloo, which knows the types of all that is told."""
    done = forks.run(["-m", "tests.compute.test_processes", str(tmp_path / "order")])
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["rank"] for one in told) == [0, 1]
    for one in told:
        assert one["same"] == dict.fromkeys(ARRAYS, True)
        assert one["sum"] == [1, 2]
        assert one["text"] == "naïve"
        assert one["order"] == [0, 1], "the main process is first"
        assert one["again"] == [2]


_WAITING = """
from lmtool.cli.signals import exit_on_signals
from lmtool.compute.processes import join_process_group_once
from tests.compute.test_processes import CPU

exit_on_signals()
print("begins", flush=True)
with CPU.join_process_group_once():
    pass
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_waits_for_others_can_be_interrupted(number: signal.Signals) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = os.environ | rank_0_of_2(str(port))
    with forks.begin(["-c", _WAITING], env=ranks, files=(None, subprocess.PIPE, None)) as begun:
        try:
            assert begun.stdout is not None
            begun.stdout.readline()
            while True:
                with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.02)
            begun.send_signal(number)
            assert begun.wait(timeout=300) == 128 + number
        finally:
            begun.kill()


@pytest.mark.system
@pytest.mark.parametrize("ended", ["rank", "parent"])
def test_a_process_in_a_collective_leaves_at_the_second_signal_and_is_no_orphan(ended: str) -> None:
    """It waits in compiled code, where Python calls no handler. When what has started it ends, that is a signal."""
    with forks.begin(["-m", "tests.compute.waiting"], files=(None, subprocess.PIPE, None)) as begun:
        assert begun.stdout is not None
        pids = dict(begun.stdout.readline().split() for _ in range(2))
        if ended == "rank":
            os.kill(int(pids["0"]), signal.SIGTERM)
            time.sleep(0.3)
            assert begun.poll() is None, "the first signal waits for the step"
            os.kill(int(pids["0"]), signal.SIGTERM)
            assert begun.wait() == 1
        else:
            begun.kill()
        assert begun.stdout.read() == "", "the end of what both can write to: both are gone"


def _tell(order: Path) -> None:
    """What one of two real processes finds, as JSON."""
    with CPU.join_process_group_once() as compute:
        world = compute.world

        def make() -> None:
            with order.open("a") as file:
                file.write(str(world.rank))

        world.call_main_first(make)
        world.barrier()
        told = {
            "rank": world.rank,
            "same": {kind: same(gathered(arrays, world), arrays) for kind, arrays in ARRAYS.items()},
            "sum": world.all_reduce_sum([world.rank, 1.0]),
            "text": world.broadcast_text("naïve" * world.is_main),
            "order": [int(rank) for rank in order.read_text()],
        }
    with CPU.join_process_group_once() as compute:  # as a command does that evaluates several tables
        told["again"] = compute.world.all_reduce_sum([1.0])
    os.write(1, f"{json.dumps(told)}\n".encode())  # at once, so that lines do not mix


if __name__ == "__main__":
    sys.exit(forked(2, lambda: _tell(Path(sys.argv[1]))))
