"""The verbs that deploy a model: `ade export` (ONNX) and `ade serve` (HTTP)."""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ade.cli import display
from ade.cli.options import Json, Model, Overwrite, Seed, flags_of, pick, show
from ade.data.problems import TAGGER
from ade.errors import InputError, missing_package
from ade.settings import ServiceSettings

if TYPE_CHECKING:
    from ade.inspector.reading import Inspector


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="Output folder.", show_default=False)],
    overwrite: Overwrite = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX in float32 and int8.

    The folder gets the tokenizer and the labels, too. The scores of both files are compared with PyTorch's on random
    batches.
    """
    from ade.classifier import Classifier
    from ade.files import new_folder
    from ade.integrations.onnx_export import INT8, write_export

    with new_folder(out, {INT8}, overwrite) as draft:
        files = write_export(Classifier.load(model, "cpu"), draft, seed)
    result = {"folder": str(out), "files": [each.as_dict() for each in files]}
    show(result, as_json, lambda to: display.print_export(to, files))


@flags_of(ServiceSettings)
def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to bind to; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind to; 0 for any free port.", min=0, max=65535)] = 8000,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request on stderr.")] = False,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Serve a model over HTTP until Ctrl-C.

    Routes for predictions and inspection. With --json, the address is printed as an object once the server is ready.
    """
    from ade.files import kind_of
    from ade.runtime.runtime import Runtime
    from ade.service.app import create_app
    from ade.service.server import bind_socket, url_of
    from ade.service.server import serve as run_server

    def inspector() -> "Inspector":
        try:
            from ade.classifier import Classifier
            from ade.inspector.reading import Inspector
        except ImportError as error:
            raise InputError(missing_package("the inspector", error) or str(error)) from None

        return Inspector(Classifier.load(model, "cpu"))

    def ready() -> None:
        print(f"ade: {model} is served at {address}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"model": str(model), "address": address}), flush=True)

    service_settings = ServiceSettings(**pick(ServiceSettings, settings))
    if kind_of(model) == TAGGER:
        raise InputError(f"{model}: a tagger, and only classifiers and regression models are served")
    if access_log:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with bind_socket(host, port) as bound:
        address = url_of(bound)
        app = create_app(Runtime.load(model), service_settings, inspector)
        run_server(app, bound, ready, service_settings.max_bytes, access_log)
