"""The verbs export and serve: a model for other runtimes, and over HTTP."""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ade.cli import display
from ade.cli.options import Json, Model, Overwrite, Seed, flags_of, pick, show
from ade.data.problems import TAGGER
from ade.errors import InputError
from ade.settings import ServiceSettings

if TYPE_CHECKING:
    from ade.inspector.reading import Inspector


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for the ONNX files.", show_default=False)],
    overwrite: Overwrite = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """ONNX in float32 and int8, checked against PyTorch, with tokenizer and labels."""
    from ade.classifier import Classifier
    from ade.files import new_folder
    from ade.integrations.onnx_export import INT8, write_export

    with new_folder(out, {INT8}, overwrite) as draft:
        files = write_export(Classifier.load(model, "cpu"), draft, seed)
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
    from ade.files import kind_of
    from ade.runtime.runtime import Runtime
    from ade.service.app import create_app
    from ade.service.server import bind_socket, url_of
    from ade.service.server import serve as run_server

    def inspector() -> "Inspector":
        from ade.classifier import Classifier
        from ade.inspector.reading import Inspector

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
    with bind_socket(host, port) as bound:
        address = url_of(bound)
        run_server(create_app(Runtime.load(model), chosen, inspector), bound, ready, chosen.max_bytes, access_log)
