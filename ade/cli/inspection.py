"""The verbs that look inside: `ade inspect` (words and their anchors, or an HTML page) and `ade params`."""

from pathlib import Path
from typing import Annotated

import typer

from ade.cli import display
from ade.cli.options import Json, show
from ade.errors import InputError


def inspect_verb(
    source: Annotated[Path, typer.Argument(help="Folder of a model, an encoder or a codebook.", show_default=False)],
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Words to look up; with --html, the one opened first.", show_default=False),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Text that contains the words: also show their weights in this context. Repeatable with --html."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write an interactive HTML page about the texts to this file.")
    ] = None,
    nearest: Annotated[int, typer.Option(help="Number of nearest words shown per anchor.", min=1)] = 6,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the file of --html.")] = False,
    as_json: Json = False,
) -> None:
    """Show words' anchors, weights and nearest words.

    With --text, also their weights in that context. With --html, write an interactive page about whole texts.
    """
    from ade.inspector.words import CODEBOOK

    texts, codebook = text or [], (source / CODEBOOK).exists()
    if codebook and (texts or html is not None):
        raise InputError(f"{source}: a codebook knows no context; --text and --html need a trained model")
    if html is not None:
        _write_page(source, html, words or [], texts, nearest, overwrite, as_json)
        return
    if not words:
        raise InputError("name the words to look up, or give --html FILE for a page about whole sentences")
    if len(texts) > 1:
        raise InputError("several sentences go on a page: give --html FILE too, or one --text")
    _show_words(source, words, texts, nearest, as_json)


def _show_words(source: Path, words: list[str], texts: list[str], nearest: int, as_json: bool) -> None:
    from ade.inspector.words import Dictionary, inspect_words

    if texts:
        from ade.classifier import Classifier
        from ade.inspector.reading import inspect_in_context

        found = inspect_in_context(Classifier.load(source, "cpu"), words, texts[0], nearest)
    else:
        found = inspect_words(Dictionary.load(source), words, nearest)
    show({"words": [token.as_dict() for token in found]}, as_json, lambda to: display.print_words(to, found))


def _write_page(
    source: Path, file: Path, words: list[str], texts: list[str], nearest: int, overwrite: bool, as_json: bool
) -> None:
    from ade.classifier import Classifier
    from ade.files import new_file
    from ade.inspector.page import page
    from ade.inspector.reading import Inspector

    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"{file}: not a file in a folder that exists")
    if file.exists() and not overwrite:
        raise InputError(f"{file}: already exists; choose another name or pass --overwrite")
    inspector = Inspector(Classifier.load(source, "cpu"), nearest)
    if not texts:  # the example of the word that was named, or the one that this model tells apart best
        examples = inspector.about()["examples"]
        example = next((each for each in examples if each["word"] in words), examples[0])
        texts, words = example["texts"], words or [example["word"]]
    readings = [inspector.read(each) for each in texts]
    with new_file(file) as draft:
        draft.write_text(page({"about": inspector.about(), "readings": readings, "words": words}), "utf8")
    result = {"html": str(file), "bytes": file.stat().st_size, "texts": len(readings)}
    show(result, as_json, lambda to: display.print_page(to, result))


def params(
    dim: Annotated[int, typer.Option(help="Model width.", min=1)] = 768,
    labels: Annotated[int, typer.Option(help="Number of classes.", min=1)] = 4,
    anchors: Annotated[int, typer.Option(help="Number of anchors (K).", min=1)] = 100,
    as_json: Json = False,
) -> None:
    """Count the parameters of each component.

    The table of the paper's appendix, counted on a real model.
    """
    from ade.cli.sizes import count_parameters

    counts = count_parameters(dim, labels, anchors)
    show(counts, as_json, lambda to: display.print_parameters(to, counts))
