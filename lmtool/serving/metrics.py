"""Counters of the server, in the text format of Prometheus."""

import threading
from bisect import bisect_left

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of histograms."""


class Counter:
    """A number that grows, one for each value of a label; safe in several threads."""

    def __init__(self, name: str, help: str, label: str = "") -> None:
        self._head = f"# HELP {name} {help}\n# TYPE {name} counter\n"
        self._name, self._label = name, label
        self._values: dict[str, int] = {} if label else {"": 0}
        self._lock = threading.Lock()

    def add(self, n: int = 1, value: str = "") -> None:
        with self._lock:
            self._values[value] = self._values.get(value, 0) + n

    def lines(self) -> str:
        with self._lock:
            found = sorted(self._values.items())
        marks = (f'{{{self._label}="{value}"}}' if self._label else "" for value, _ in found)
        return self._head + "".join(f"{self._name}{mark} {n}\n" for mark, (_, n) in zip(marks, found, strict=True))


class Gauge:
    """A number at this moment."""

    def __init__(self, name: str, help: str) -> None:
        self._head, self._name = f"# HELP {name} {help}\n# TYPE {name} gauge\n", name
        self._value = 0

    def set(self, value: int) -> None:
        self._value = value

    def lines(self) -> str:
        return f"{self._head}{self._name} {self._value}\n"


class Histogram:
    """Seconds, counted in the buckets of SECONDS; written by one thread."""

    def __init__(self, name: str, help: str) -> None:
        self._head, self._name = f"# HELP {name} {help}\n# TYPE {name} histogram\n", name
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self) -> str:
        text, total = self._head, 0
        for bound, n in zip((*map(str, SECONDS), "+Inf"), list(self._counts), strict=True):
            total += n
            text += f'{self._name}_bucket{{le="{bound}"}} {total}\n'
        return f"{text}{self._name}_sum {self._sum:.6f}\n{self._name}_count {total}\n"


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.requests = Counter("lmtool_requests_total", "Requests that were answered.", "status")
        self.prompt_tokens = Counter("lmtool_prompt_tokens_total", "Tokens of prompts.")
        self.generated_tokens = Counter("lmtool_generated_tokens_total", "Generated tokens.")
        self.running = Gauge("lmtool_running_texts", "Texts that are generated at the moment.")
        self.waiting = Gauge("lmtool_waiting_requests", "Requests in the queue.")
        self.first_token = Histogram("lmtool_first_token_seconds", "From a request to the first token of a text.")

    def text(self) -> str:
        """All of them."""
        every = (self.requests, self.prompt_tokens, self.generated_tokens, self.running, self.waiting)
        return "".join(one.lines() for one in every) + self.first_token.lines()
