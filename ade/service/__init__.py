"""The HTTP service: routes of one model, fair batching, limits, metrics, graceful shutdown."""
