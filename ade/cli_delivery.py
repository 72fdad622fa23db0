"""The verbs export and serve: a model for other runtimes, and over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from ade import display
from ade.options import Json, Model, Overwrite, Seed, show


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
