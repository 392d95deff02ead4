"""The server's metrics for Prometheus."""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(eq=False)
class Metrics:
    """Counters, gauges and histograms of one server, in a registry of their own."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        r = self.registry
        self._requests = Counter("firth_requests", "Requests answered", ["route", "model", "code"], registry=r)
        self._rejected = Counter("firth_rejected", "Requests refused", ["reason"], registry=r)
        self._dropped = Counter("firth_dropped", "Queued requests that were not computed", ["reason"], registry=r)
        self._truncated = Counter("firth_truncated_inputs", "Requests with a text that was cut", registry=r)
        self._request = Histogram("firth_request_seconds", "From body to answer", buckets=_SECONDS, registry=r)
        self._tokenize = Histogram("firth_tokenize_seconds", "Tokenizing", buckets=_SECONDS, registry=r)
        self._queue = Histogram("firth_queue_seconds", "Waiting for the engine", buckets=_SECONDS, registry=r)
        self._inference = Histogram("firth_inference_seconds", "Computing a batch", buckets=_SECONDS, registry=r)
        self._batch_tokens = Histogram("firth_batch_tokens", "Tokens of a batch", buckets=_COUNTS, registry=r)
        self._batch_rows = Histogram("firth_batch_rows", "Sequences of a batch", buckets=_COUNTS, registry=r)
        self._tokens = Counter("firth_model_tokens", "Tokens that a model was given", ["model"], registry=r)
        self._unknown = Counter("firth_unknown_tokens", "Those that its vocabulary lacks", ["model"], registry=r)
        self._entropy = Histogram(
            "firth_answer_entropy_ratio",
            "Entropy of the probabilities of an answer, as a share of the highest possible",
            ["model"],
            buckets=_SHARES,
            registry=r,
        )
        self._input = Histogram("firth_input_tokens", "Tokens of a request", buckets=_COUNTS, registry=r)
        self.queued_tokens = Gauge("firth_queued_tokens", "Tokens that wait", registry=r)
        self.queued_requests = Gauge("firth_queued_requests", "Requests that wait", registry=r)
        self.in_flight = Gauge("firth_requests_in_flight", "Requests accepted and not answered yet", registry=r)
        self.ready = Gauge("firth_ready", "1 while new requests are taken", registry=r)
        self.resident = Gauge("firth_resident_bytes", "Memory of the process", registry=r)
        self.models = Gauge("firth_model_info", "1 for each model", ["model", "system", "task", "path"], registry=r)

    def request(self, route: str, model: str, code: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, model, str(code)).inc()
        self._request.observe(seconds)

    def work(self, model: str, tokenize_s: float, queue_s: float, tokens: int, unknown: int, cut: bool) -> None:
        """Record a request's tokens, and the time it took before it was computed."""
        self._tokens.labels(model).inc(tokens)
        self._unknown.labels(model).inc(unknown)
        self._tokenize.observe(tokenize_s)
        self._queue.observe(queue_s)
        self._input.observe(tokens)
        if cut:
            self._truncated.inc()

    def answer(self, model: str, entropy: float) -> None:
        """Record how certain an answer is."""
        self._entropy.labels(model).observe(entropy)

    def batch(self, tokens: int, rows: int, seconds: float) -> None:
        """Record a batch."""
        self._batch_tokens.observe(tokens)
        self._batch_rows.observe(rows)
        self._inference.observe(seconds)

    def rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def dropped(self, reason: str) -> None:
        self._dropped.labels(reason).inc()

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        self.resident.set(resident_bytes())
        return generate_latest(self.registry)


def resident_bytes() -> int:
    """Bytes of the process's memory that are in RAM; 0 if the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import os

    return pages * os.sysconf("SC_PAGE_SIZE")
