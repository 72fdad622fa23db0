"""The verbs that deploy a model: `ade export` (ONNX) and `ade serve` (HTTP)."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ade.cli import display
from ade.cli.options import Json, Model, Overwrite, Seed, flags_of, pick, show
from ade.settings import ServiceSettings


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="Output folder.", show_default=False)],
    overwrite: Overwrite = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Export a classifier or an encoder to ONNX in float32 and int8, or a compressed encoder with its packed table.

    The folder gets the tokenizer and the labels, too. The outputs of each file are compared with PyTorch's on random
    batches.
    """
    from ade.classifier import Classifier
    from ade.data.problems import ENCODER
    from ade.files import kind_of, new_folder
    from ade.integrations.onnx_compressed import is_compressed, write_encoder
    from ade.integrations.onnx_export import FP32, INT8, write_export
    from ade.sentence_encoder import SentenceEncoder

    packed, encoder = is_compressed(model), kind_of(model) == ENCODER
    with new_folder(out, {FP32 if packed else INT8}, overwrite) as draft:
        if packed:
            files = write_encoder(model, draft, seed)
        else:
            files = write_export((SentenceEncoder if encoder else Classifier).load(model, "cpu"), draft, seed)
    result = {"folder": str(out), "files": [each.as_dict() for each in files]}
    show(result, as_json, lambda to: display.print_export(to, files, labels=not (packed or encoder)))


@flags_of(ServiceSettings)
def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to bind to; 0.0.0.0 for all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind to; 0 for any free port.", min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="Number of processes.", min=1, max=256)] = 1,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with API keys, one a line; all routes but /health then need one.", show_default=False),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name to answer for; on a loopback address, in addition to localhost. Repeatable."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of web pages that may send requests, as https://example.org. Repeatable."),
    ] = None,
    no_inspect: Annotated[bool, typer.Option("--no-inspect", help="No inspector: neither page nor torch.")] = False,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log each request on stderr.")] = False,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Format of the log.")] = "text",
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Serve a model over HTTP until Ctrl-C or SIGTERM.

    Routes for predictions, vectors and inspection. SIGHUP loads the model again. With --json, the address is printed
    as an object once the server is ready.
    """
    from ade.service.run import ServeOptions, run
    from ade.service.server import bind_socket, url_of

    options = ServeOptions(
        model=model,
        settings=ServiceSettings(**pick(ServiceSettings, settings)),
        api_key_file=api_key_file,
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        inspect=not no_inspect,
        workers=workers,
        log_format=log_format,
        access_log=access_log,
    )

    def ready() -> None:
        print(f"ade: {model} is served at {address}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"model": str(model), "address": address}), flush=True)

    with bind_socket(host, port) as bound:
        address = url_of(bound)
        run(options, bound, ready)
