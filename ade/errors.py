"""InputError: wrong input, with a message of one line that says what was given and what would fit."""

PACKAGE = "ade-embeddings"
EXTRAS = {  # package -> the extra that installs it
    **dict.fromkeys(("torch", "transformers", "accelerate", "datasets", "pyarrow", "wordllama"), "train"),
    **dict.fromkeys(("starlette", "uvicorn", "prometheus_client"), "serve"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    **dict.fromkeys(("sklearn", "pattern"), "demo"),
    "sentence_transformers": "sentence",
}


class InputError(ValueError):
    """A file, setting or folder cannot be used. The command line shows the message and exits with status 2."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class where the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def missing_package(what: str, error: ImportError) -> str | None:
    """Return what to install where a package of an extra is missing: `what` needs it; None for another error."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None or not isinstance(error, ModuleNotFoundError):
        return None
    return f"{what} needs {package}: pip install '{PACKAGE}[{extra}]'"
