"""The verbs export and serve: a model for other runtimes, and over HTTP."""

import json
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ade.options import Json, Model, Seed, flags_of, pick
from ade.settings import ServiceSettings

if TYPE_CHECKING:
    from ade.inspector import Inspector


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
    if access_log:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with bound(host, port) as listening:
        address = address_of(listening)
        answer(service(Runtime.load(model), chosen, inspector), listening, ready, chosen.max_bytes, access_log)
