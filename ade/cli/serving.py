"""The verbs that deploy a model: `ade export` (ONNX) and `ade serve` (HTTP)."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from ade.cli import display, options
from ade.cli.options import option
from ade.settings import ServiceSettings

SERVICE = options.MoreSettings((ServiceSettings,))


def serve(
    model: options.Model,
    host: Annotated[str, option("Address; 0.0.0.0 for all interfaces.", metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 for any free one.", metavar="N", min=0, max=65535)] = 8000,
    api_key_file: Annotated[Path | None, option("Keys, one a line; all but /health needs one.", metavar="FILE")] = None,
    allowed_host: Annotated[
        list[str] | None, option("Name to answer for beside localhost; repeatable.", metavar="HOST")
    ] = None,
    no_inspect: Annotated[bool, option("No inspector, and no page.", "--no-inspect")] = False,
    as_json: options.Json = False,
    more: Annotated[list[str] | None, SERVICE.option()] = None,
) -> None:
    """Serve a model over HTTP until Ctrl-C or SIGTERM.

    Routes for predictions, vectors, explanations and inspection; /docs describes them. Limits, as max_texts, are given
    by --set.
    """
    settings = ServiceSettings(**SERVICE.parse(more))
    from ade.service.app import create_app
    from ade.service.middleware import hosts_of, read_keys
    from ade.service.model import ServedModel
    from ade.service.server import Server, bind_socket, url_of

    keys = read_keys(api_key_file) if api_key_file else ()

    def ready() -> None:
        print(f"ade: {model} is served at {address}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"model": str(model), "address": address}), flush=True)

    with bind_socket(host, port) as bound:
        address = url_of(bound)
        hosts = hosts_of(bound.getsockname()[0], allowed_host or ())
        app = create_app(ServedModel.load(model, inspect=not no_inspect), settings, keys, hosts)
        Server(app, ready, settings.grace).run([bound])


def export(
    model: options.Model,
    out: options.Out,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Export a model to ONNX, its numbers in whole bytes.

    A classifier, an encoder, or a sentence encoder that 'ade compress' has packed, which is also written in 4 bits. The
    folder gets the tokenizer and the labels, too. Each file is compared with the model on random texts.
    """
    from ade.integrations.onnx import export as write

    files = write(model, out, overwrite)
    result = {"folder": str(out), "files": [asdict(each) for each in files]}
    rows = [(each.file, display.size(each.bytes), f"{100 * each.error:.4f}%") for each in files]
    display.show(result, as_json, display.table(("file", "size", "error"), rows))
