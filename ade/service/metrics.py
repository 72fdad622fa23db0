"""Prometheus metrics of the service, in a registry of their own."""

from collections.abc import Callable, Collection
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZE_BUCKETS = [2**i for i in range(11)]


class Metrics:
    """Prometheus metrics of one application; requests for other paths than its own are counted as "other"."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.paths: Collection[str] = ()
        self._children: dict[tuple[str, int], tuple[Any, Any]] = {}  # `labels()` takes longer than counting
        ProcessCollector(registry=self.registry)
        self._requests = Counter("ade_requests", "Requests answered.", ["path", "status"], registry=self.registry)
        self._seconds = Histogram(
            "ade_request_seconds", "From the head of a request to the end of its answer.", ["path"],
            buckets=LATENCY_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._batch_texts, self._batch_requests = (
            Histogram(f"ade_batch_{name}", f"{name.title()} of a batch.", buckets=SIZE_BUCKETS, registry=self.registry)
            for name in ("texts", "requests")
        )

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        path = path if path in self.paths else "other"
        if (path, status) not in self._children:
            self._children[path, status] = self._requests.labels(path, status), self._seconds.labels(path)
        requests, latency = self._children[path, status]
        requests.inc()
        latency.observe(seconds)

    def batch(self, requests: int, texts: int) -> None:
        """Count one batch."""
        self._batch_texts.observe(texts)
        self._batch_requests.observe(requests)

    def watch(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Show what `value` returns when the metrics are read."""
        Gauge(name, description, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
