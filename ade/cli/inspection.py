"""The verb `ade inspect`: the parameters of a model, words and their anchors, or an HTML page about whole texts."""

from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from ade.cli import display, options
from ade.cli.options import argument, option
from ade.cli.writing import one_line
from ade.configuration import CODEBOOK
from ade.errors import InputError
from ade.files import kind_of, new_file


def inspect(
    source: Annotated[Path, argument("Folder of a model, an encoder or a codebook.", "FOLDER")],
    words: Annotated[list[str] | None, argument("Words to look up; with --html, the one opened first.")] = None,
    text: Annotated[
        list[str] | None, option("Text with the words: what do their anchors add? Repeatable with --html.")
    ] = None,
    html: Annotated[Path | None, option("Interactive page about the texts to write.", metavar="FILE")] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Show a model's parameters, or the anchors of words.

    Without words, count the parameters of each component. With --text, also show what each anchor of the words adds to
    the predicted label. With --html, write an interactive page about whole texts.
    """
    texts, is_codebook = text or [], kind_of(source) == CODEBOOK
    if is_codebook and (texts or html is not None):
        raise InputError(f"{source}: a codebook knows no context; --text and --html need a trained model")
    if html is not None:
        options.check_output(html, overwrite)
        _write_page(source, html, words or [], texts, as_json)
    elif len(texts) > 1:
        raise InputError("several sentences go on a page: give --html FILE too, or one --text")
    elif words:
        _show_words(source, words, texts, as_json)
    elif texts or is_codebook:
        raise InputError("name the words to look up, or give --html FILE for a page about whole sentences")
    else:
        _show_parameters(source, as_json)


def _show_parameters(source: Path, as_json: bool) -> None:
    from ade.folder import Saved
    from ade.inspector.words import count_parameters

    counts = count_parameters(Saved.read(source))
    rows = [(name.replace("_", " "), f"{count:,}") for name, count in counts.items()]
    display.show({"parameters": counts}, as_json, display.table(("component", "parameters"), rows))


def _show_words(source: Path, words: list[str], texts: list[str], as_json: bool) -> None:
    from ade.inspector.words import inspect_words

    result: dict[str, Any] = {}
    if texts:
        from ade.inspector.reading import Inspector
        from ade.trained_model import Classifier

        result["adds_to"], tokens = Inspector(Classifier.load(source)).words_in(texts[0], words)
    else:
        tokens = inspect_words(source, words)
    result["words"] = tokens
    display.show(result, as_json, *tables(tokens, str(result.get("adds_to", ""))))


def tables(tokens: list[dict[str, Any]], adds_to: str = "") -> list[Table | str]:
    """A table per token: its anchors with their weights and nearest words, the largest weight first.

    Where the tokens stand in a text, also what each anchor adds to the margin of the predicted label.
    """
    parts: list[Table | str] = []
    if adds_to:
        parts.append(f"What each anchor adds to {one_line(adds_to)}:\n")
    for token in tokens:
        word, spelling = token["word"], token["token"]
        name = word if spelling.strip("▁Ġ") == word else f"{word}: {spelling}"
        adds = ["adds"] if any("adds" in use for use in token["anchors"]) else []
        rows = []
        for use in token["anchors"]:
            here = [f"{use['adds']:+.3f}"] if adds else []
            rows.append([str(use["anchor"]), f"{use['weight']:+.3f}", *here, ", ".join(use["nearest"])])
        columns = ["anchor", "weight", *adds, "nearest words"]
        parts += [display.table(columns, rows, title=name, texts=[len(columns) - 1]), ""]
    return parts


def _write_page(source: Path, file: Path, words: list[str], texts: list[str], as_json: bool) -> None:
    from ade.inspector.page import EXAMPLES, page
    from ade.inspector.reading import Inspector
    from ade.trained_model import Classifier

    inspector = Inspector(Classifier.load(source))
    if not texts:  # the example of the word that was named, or the first
        word = next((each for each in words if each in EXAMPLES), next(iter(EXAMPLES)))
        texts, words = list(EXAMPLES[word]), words or [word]
    readings = [inspector.read(each) for each in texts]
    with new_file(file) as draft:
        draft.write_text(page({"about": inspector.about(), "readings": readings, "words": words}), "utf8")
    result = {"html": str(file), "bytes": file.stat().st_size, "texts": len(readings)}
    line = f"{file}: {len(readings)} sentences, {display.size(file.stat().st_size)}; open it in a browser"
    display.show(result, as_json, line)
