"""Prometheus metrics of the service, in a registry of their own; of all workers together where there are several."""

import os
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZE_BUCKETS = [2**i for i in range(11)]
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # environment variable: where workers write their metrics to


class Metrics:
    """Prometheus metrics of one application."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.registry = own = CollectorRegistry()
        if SHARED_FOLDER in os.environ:
            MultiProcessCollector(own)
            registry = None
        else:
            ProcessCollector(registry=own)
            registry = own

        self._paths = {*paths}  # any other path is counted as "other"
        self._counts = Counter("ade_requests", "Requests answered.", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "ade_request_seconds", "From the head of a request to the end of its answer.", ["path"],
            buckets=LATENCY_BUCKETS, registry=registry,
        )  # fmt: skip
        self._children: dict[tuple[str, int], tuple[Any, Any]] = {}  # `labels()` takes longer than counting
        self._refused = Counter("ade_refused", "Connections closed or answered unread.", ["reason"], registry=registry)
        self.texts = Counter("ade_texts", "Texts predicted.", registry=registry)
        self.batch_texts = Histogram("ade_batch_texts", "Texts of a batch.", buckets=SIZE_BUCKETS, registry=registry)
        self.batch_requests = Histogram(
            "ade_batch_requests", "Requests of a batch.", buckets=SIZE_BUCKETS, registry=registry
        )
        self.reloads = Counter("ade_reloads", "Models loaded while serving.", ["result"], registry=registry)
        self.queued_texts = _gauge("ade_waiting_texts", "Texts that wait for a batch.", registry)
        self.queued_tokens = _gauge("ade_waiting_tokens", "Their tokens, as estimated.", registry)
        self.connections = _gauge("ade_connections", "Open connections.", registry)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        path = path if path in self._paths else "other"
        if (path, status) not in self._children:
            self._children[path, status] = self._counts.labels(path, status), self._seconds.labels(path)
        count, latency = self._children[path, status]
        count.inc()
        latency.observe(seconds)

    def refuse(self, reason: str) -> None:
        """Count a request that was refused before it was read, or a connection that was closed."""
        self._refused.labels(reason).inc()

    def batch(self, requests: int, texts: int) -> None:
        """Count one batch."""
        self.texts.inc(texts)
        self.batch_texts.observe(texts)
        self.batch_requests.observe(requests)

    def queue(self, texts: int, tokens: int) -> None:
        """Count texts and their tokens that are queued, or negative numbers of those that no longer are."""
        self.queued_texts.inc(texts)
        self.queued_tokens.inc(tokens)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _gauge(name: str, text: str, registry: CollectorRegistry | None) -> Gauge:
    return Gauge(name, text, registry=registry, multiprocess_mode="livesum")
