"""The verbs export and serve: a model for other runtimes, and over HTTP."""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ade import display
from ade.answers import TAGGER
from ade.errors import InputError
from ade.options import Json, Model, Overwrite, Seed, flags_of, pick, show
from ade.settings import ServiceSettings

if TYPE_CHECKING:
    from ade.inspector import Inspector


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for the ONNX files.", show_default=False)],
    overwrite: Overwrite = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """ONNX in float32 and int8, checked against PyTorch, with tokenizer and labels."""
    from ade.exporting import INT8
    from ade.exporting import export as exported
    from ade.folders import check_free
    from ade.inference import Classifier

    check_free(out, {INT8}, overwrite)
    files = exported(Classifier.load(model, "cpu"), out, overwrite, seed)
    result = {"folder": str(out), "files": [each.as_dict() for each in files]}
    show(result, as_json, lambda to: display.exported(to, files))


@flags_of(ServiceSettings)
def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 for any that is free.", min=0, max=65535)] = 8000,
    access_log: Annotated[bool, typer.Option("--access-log", help="A line on stderr for each request.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Predict and look inside over HTTP, until Ctrl-C; --json prints the address as an object once it is ready."""
    from ade.folders import kind_of
    from ade.listening import address_of, bound
    from ade.listening import serve as answer
    from ade.runtime import Runtime
    from ade.serving import service

    def inspector() -> "Inspector":
        from ade.inference import Classifier
        from ade.inspector import Inspector

        return Inspector(Classifier.load(model, "cpu"))

    def ready() -> None:
        print(f"ade: {model} is served at {address}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"model": str(model), "address": address}), flush=True)

    chosen = ServiceSettings(**pick(ServiceSettings, settings))
    if kind_of(model) == TAGGER:
        raise InputError(f"{model}: a tagger, and only models that answer for a whole text are served")
    if access_log:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with bound(host, port) as listening:
        address = address_of(listening)
        answer(service(Runtime.load(model), chosen, inspector), listening, ready, chosen.max_bytes, access_log)
