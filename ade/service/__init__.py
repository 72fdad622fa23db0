"""The HTTP service: request batching, limits, metrics, graceful shutdown."""
