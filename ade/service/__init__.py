"""The HTTP service: batching concurrent requests, limits, metrics, graceful shutdown."""
