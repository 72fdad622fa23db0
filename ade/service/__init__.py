"""The HTTP service: request batching, limits, metrics, graceful shutdown. Needs the extra `serve`."""

from ade.errors import InputError

try:
    import prometheus_client  # noqa: F401 - the three are used by the modules beside this one
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as missing:
    raise InputError(f"the service needs its extra: pip install 'ade-embeddings[serve]' ({missing})") from None
