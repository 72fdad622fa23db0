"""InputError: wrong input, with a message of one line that says what was given and what would fit."""

PACKAGE = "ade-embeddings"
EXTRAS = {  # package -> the extra that installs it
    **dict.fromkeys(("torch", "transformers", "datasets", "pyarrow", "wordllama"), "train"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    **dict.fromkeys(("sklearn", "pattern"), "demo"),
    **dict.fromkeys(("fastapi", "starlette", "pydantic", "uvicorn", "httptools", "prometheus_client"), "serve"),
    "ray": "ray",
    "sentence_transformers": "sentence",
}


class InputError(ValueError):
    """A file, setting or folder cannot be used. The command line shows the message and exits with status 2."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class where the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def missing_package(what: str, error: ImportError, extra: str | None = None) -> str | None:
    """Return what to install where a package of an extra is missing: `what` needs it; None for another error.

    `extra` is the one that has all that `what` needs, where that is not the first extra with the package.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS or not isinstance(error, ModuleNotFoundError):
        return None
    return f"{what} needs {package}: pip install '{PACKAGE}[{extra or EXTRAS[package]}]'"
