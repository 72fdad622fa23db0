"""The verb inspect: words and their anchors as tables, or a text as a page of its own."""

from pathlib import Path
from typing import Annotated

import typer

from ade.cli import display
from ade.cli.options import Json, Seed, show
from ade.errors import InputError


def inspect_verb(
    source: Annotated[Path, typer.Argument(help="A model or codebook folder.", show_default=False)],
    words: Annotated[
        list[str] | None, typer.Argument(help="Words to look up; with --html, the one to open.", show_default=False)
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A sentence with the words in it: also show the weights they have there. Several may go on a page."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page that shows everything about the sentences to this file.")
    ] = None,
    nearest: Annotated[int, typer.Option(help="Words shown for each anchor.", min=1)] = 6,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier file of --html.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The anchors of words, their weights, and each anchor's nearest words; or all of it as a page, with --html."""
    from ade.codebook import MARKER

    texts, codebook = text or [], (source / MARKER).exists()
    if codebook and (texts or html is not None):
        raise InputError(f"{source}: a codebook knows no context; --text and --html need a trained model")
    if html is not None:
        _write_page(source, html, words or [], texts, nearest, overwrite, as_json)
        return
    if not words:
        raise InputError("name the words to look up, or give --html FILE for a page about whole sentences")
    if len(texts) > 1:
        raise InputError("several sentences go on a page: give --html FILE too, or one --text")
    _show_words(source, codebook, words, texts, nearest, as_json)


def _show_words(source: Path, codebook: bool, words: list[str], texts: list[str], nearest: int, as_json: bool) -> None:
    from ade.classifier import Classifier
    from ade.codebook import Codebook
    from ade.inspector.reading import inspect_in_context
    from ade.inspector.words import codebook_of, inspect_words

    if codebook:
        found = inspect_words(Codebook.load(source), words, nearest)
    elif texts:
        found = inspect_in_context(Classifier.load(source, "cpu"), words, texts[0], nearest)
    else:
        found = inspect_words(codebook_of(Classifier.load(source, "cpu")), words, nearest)
    show({"words": [token.as_dict() for token in found]}, as_json, lambda to: display.words(to, found))


def _write_page(
    source: Path, file: Path, words: list[str], texts: list[str], nearest: int, overwrite: bool, as_json: bool
) -> None:
    from ade.classifier import Classifier
    from ade.files import new_file
    from ade.inspector.page import EXAMPLES, page
    from ade.inspector.reading import Inspector

    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"{file}: not a file in a folder that exists")
    if file.exists() and not overwrite:
        raise InputError(f"{file}: already exists; choose another name or pass --overwrite")
    inspector = Inspector(Classifier.load(source, "cpu"), nearest)
    readings = [inspector.read(each) for each in texts or EXAMPLES]
    with new_file(file) as draft:
        draft.write_text(page({"about": inspector.about(), "readings": readings, "words": words}), "utf8")
    result = {"html": str(file), "bytes": file.stat().st_size, "texts": len(readings)}
    show(result, as_json, lambda to: display.page(to, result))
