"""Metrics of the server, in the text format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

BUCKET_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of histograms."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # omits the creation time of each counter


class Metrics:
    """The counters of the server; thread-safe."""

    def __init__(self) -> None:
        self._all = all_ = CollectorRegistry()
        self.requests = Counter("lmtool_requests_total", "Requests that were answered.", ["status"], registry=all_)
        self.prompt_tokens = Counter("lmtool_prompt_tokens_total", "Tokens of prompts.", registry=all_)
        what = "Tokens of prompts whose keys and values were kept."
        self.reused_tokens = Counter("lmtool_reused_prompt_tokens_total", what, registry=all_)
        self.generated_tokens = Counter("lmtool_generated_tokens_total", "Generated tokens.", registry=all_)
        what = "Tokens that the draft proposed."
        self.proposed_tokens = Counter("lmtool_proposed_tokens_total", what, registry=all_)
        what = "Tokens that the draft proposed and the model accepted."
        self.accepted_tokens = Counter("lmtool_accepted_tokens_total", what, registry=all_)
        self.running = Gauge("lmtool_running_texts", "Texts that are generated at the moment.", registry=all_)
        self.waiting = Gauge("lmtool_waiting_requests", "Requests in the queue.", registry=all_)
        what = "From a request to the first token of a text."
        self.first_token = Histogram("lmtool_first_token_seconds", what, buckets=BUCKET_SECONDS, registry=all_)

    def to_prometheus(self) -> str:
        """Returns all metrics in the text format."""
        return generate_latest(self._all).decode()
