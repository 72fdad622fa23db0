"""The verbs about vectors of texts: `ade distill-encoder`, `ade encode` and `ade search`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ade.cli import display
from ade.cli.files import check_output, open_texts, stopping_early
from ade.cli.options import (
    Json,
    Overwrite,
    RuntimeDevice,
    TextColumn,
    TextFile,
    TextFormat,
    flags_of,
    model_path,
    pick,
    show,
)
from ade.data.loading import EMBEDDED
from ade.data.streams import chunks
from ade.data.tokenize import CHUNK
from ade.errors import InputError
from ade.settings import EncoderSettings

if TYPE_CHECKING:
    from ade.search import Hit

EncoderFolder = Annotated[
    Path,
    typer.Argument(
        metavar="ENCODER", help="Encoder folder, or a name on the hub.", show_default=False, parser=model_path
    ),
]
Dim = Annotated[
    int | None, typer.Option(help="Truncate vectors to so many dimensions; by default all of them.", min=1)
]  # fmt: skip


@flags_of(EncoderSettings, common=("size", "layers", "epochs", "seed", "device"))
def distill_encoder(
    out: Annotated[Path, typer.Option(help="Output folder.", show_default=False)],
    teacher: Annotated[
        str, typer.Option(help="Sentence encoder: a sentence-transformers folder or hub name.")
    ] = "sentence-transformers/all-MiniLM-L6-v2",
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="Texts to learn from (lines, CSV, JSON, Parquet). Give it once per file. By default WordNet glosses."
        ),
    ] = None,
    translations: Annotated[
        list[Path] | None,
        typer.Option(
            help="Texts that mean the same, two or more a line, separated by tabs: learned to have one vector. Give it "
            "once per file."
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(help="What the teacher wants before every text, as 'query: '.")] = "",
    text_column: TextColumn = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in the output folder.")] = False,
    as_json: Json = False,
    overwrite: Overwrite = False,
    **settings: Any,
) -> None:
    """Distil a sentence encoder into one of a few megabytes.

    Its vectors are where the teacher's are. What the teacher answers is kept in the cache.
    """
    if resume and overwrite:
        raise InputError("--resume continues a run, --overwrite starts over: give one of them")
    from ade.cli.sizes import folder_sizes
    from ade.training.distill_encoder import distill_encoder as distil

    chosen = EncoderSettings(**pick(EncoderSettings, settings))
    existing: Any = "resume" if resume else "overwrite" if overwrite else "refuse"
    files = corpus or ([] if translations else [Path(EMBEDDED)])
    encoder = distil(
        teacher, files, chosen, translations=translations or [], prefix=prefix, text_column=text_column, out=out,
        existing=existing,
    )  # fmt: skip
    about = encoder.model.config.about
    result = {"encoder": str(out), "teacher": about["teacher"], "texts": about["rows"], "dim": encoder.dim}
    result |= {"cosine": about["dev"]["cosine"], **folder_sizes(out)}
    show(result, as_json, lambda to: _print_encoder(to, result))


def _print_encoder(to: Console, result: dict[str, Any]) -> None:
    table = display.plain_table("encoder", "texts", "cosine with the teacher", "dimensions", "size")
    cosine, size = f"{result['cosine']:.3f}", display.size(result["bytes"])
    table.add_row(result["encoder"], f"{result['texts']:,}", cosine, str(result["dim"]), size)
    to.print(table)


def encode(
    encoder: EncoderFolder,
    file: TextFile = "-",
    out: Annotated[
        Path | None,
        typer.Option(help="File of the vectors: .npy, .jsonl or .parquet; by default JSON lines on standard output."),
    ] = None,
    dim: Dim = None,
    format: TextFormat = None,
    text_column: TextColumn = None,
    device: RuntimeDevice = "cpu",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the file of --out.")] = False,
) -> None:
    """Write the vector of each text: unit vectors, so that products are cosines.

    Texts are read as a stream, so files may have any length. JSON lines and Parquet keep all columns of the rows.
    """
    from ade.data.vector_files import JsonLines, VectorWriter, vector_file
    from ade.encoder import Encoder, truncated

    check_output(out, overwrite)
    loaded = Encoder.load(encoder, device)
    if dim is not None:
        truncated(loaded.encode([""]), dim)  # raises for more dimensions than there are

    def write(writer: VectorWriter) -> None:
        first = 0
        for batch in chunks(rows, CHUNK, stream):
            texts = [row[rows.text] for row in batch]
            writer.write(batch, loaded.encode_chunk(texts, dim, first))
            first += len(batch)

    with open_texts(file, format, text_column) as (rows, stream):
        if out is None:
            stopping_early(lambda: write(JsonLines(sys.stdout.buffer)))
            return
        with vector_file(out, dim or loaded.dim) as writer:
            write(writer)


def search(
    encoder: EncoderFolder,
    file: Annotated[Path, typer.Argument(help="Texts to search: lines, CSV, JSON or Parquet.", show_default=False)],
    query: Annotated[list[str], typer.Argument(help="What to look for; several are answered one by one.")],
    top: Annotated[int, typer.Option(help="Texts to show for each query.", min=1)] = 10,
    text_column: TextColumn = None,
    as_json: Json = False,
) -> None:
    """Find the texts of a file that are nearest in meaning to a query.

    The vectors of the file are kept in the cache: the next search of it answers at once.
    """
    from ade.encoder import Encoder
    from ade.search import index_file

    loaded = Encoder.load(encoder)
    with display.progress() as report:
        index = index_file(loaded, encoder, file, text_column, report)
    found = {text: index.search(loaded.encode(text), top) for text in query}
    answer = {
        "texts": len(index.texts),
        "results": {text: [hit._asdict() for hit in hits] for text, hits in found.items()},
    }
    show(answer, as_json, lambda to: _print_hits(to, found))


def _print_hits(to: Console, found: "dict[str, list[Hit]]") -> None:
    for query, hits in found.items():
        table = display.plain_table("text", "row", "cosine", title=query if len(found) > 1 else None)
        for hit in hits:
            table.add_row(display.one_line(hit.text), f"{hit.row + 1:,}", f"{hit.score:.3f}")
        to.print(table)
