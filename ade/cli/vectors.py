"""The verbs about vectors of texts: `ade distill-encoder`, `ade encode` and `ade search`."""

import sys
from pathlib import Path
from typing import Annotated

from ade.cli import display, options
from ade.cli.options import argument, option
from ade.cli.prediction import open_texts, stopping_early
from ade.cli.writing import one_line
from ade.data.sources import EMBEDDED
from ade.data.tokens import CHUNK
from ade.encoders.vector_files import write_json_lines, write_vectors
from ade.files import ENGLISH
from ade.progress import shown
from ade.settings import EncoderSettings

Encoder = Annotated[
    str, option("Encoder folder or hub name; by default the one included.", "--encoder", metavar="NAME")
]
ENCODER = options.MoreSettings((EncoderSettings,), ("size", "layers", "dim", "epochs", "device"))


def distill_encoder(
    out: options.Out,
    teacher: Annotated[
        str, option("Sentence-transformers folder or hub name.", metavar="NAME")
    ] = "sentence-transformers/all-MiniLM-L6-v2",
    corpus: options.Corpus = None,
    translations: Annotated[
        list[Path] | None, option("Lines of texts with one meaning, split by tabs; repeatable.", metavar="FILE")
    ] = None,
    prefix: Annotated[str | None, option("Prefix the teacher expects before each text.", metavar="TEXT")] = None,
    text_column: options.TextColumn = None,
    size: options.Size = "8MB",
    layers: Annotated[int, option("Attention layers; 2 are more accurate, slower.", metavar="N")] = 1,
    dim: Annotated[int, option("Dimensions of the vectors; 0: the teacher's.", metavar="N")] = 0,
    epochs: Annotated[float, option("Passes over the texts.", metavar="N")] = EncoderSettings().epochs,
    device: options.Device = "auto",
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    more: Annotated[list[str] | None, ENCODER.option()] = None,
) -> None:
    """Distil a sentence encoder into one of a few megabytes.

    Its vectors are where the teacher's are. What the teacher answers is kept in the cache. Without a corpus it learns
    from WordNet glosses.
    """
    existing = options.existing_run(resume, overwrite)
    settings = EncoderSettings(
        size=size or "8MB", layers=layers, dim=dim, epochs=epochs, device=device, **ENCODER.parse(more)
    )
    from ade.encoders.distil import distill_encoder as distil
    from ade.folder import nbytes_of

    files = corpus or ([] if translations else [Path(EMBEDDED)])
    encoder = distil(
        teacher, files, settings, translations=translations or [], prefix=prefix or "", text_column=text_column,
        out=out, existing=existing,
    )  # fmt: skip
    about = encoder.metadata
    result = {"encoder": str(out), "teacher": about["teacher"], "texts": about["rows"], "dim": encoder.dim}
    result |= {"cosine": about["dev"]["cosine"], "bytes": nbytes_of(out)}
    columns = ("encoder", "texts", "cosine with the teacher", "dimensions", "size")
    row = (str(out), f"{about['rows']:,}", f"{result['cosine']:.3f}", str(encoder.dim), display.size(result["bytes"]))
    display.show(result, as_json, display.table(columns, [row]))


def encode(
    file: options.TextFile = "-",
    encoder: Encoder = ENGLISH,
    out: Annotated[Path | None, option("File to write: .npy or .jsonl; by default JSON lines.", metavar="FILE")] = None,
    dim: Annotated[int | None, option("Truncate vectors to N dimensions.", metavar="N", min=1)] = None,
    format: options.TextFormat = None,
    text_column: options.TextColumn = None,
    device: options.RuntimeDevice = "cpu",
    overwrite: options.Overwrite = False,
) -> None:
    """Write the vector of each text.

    Vectors have length one, so products are cosines. Texts are read as a stream, so files may have any length. JSON
    lines keep all columns of the rows.
    """
    from ade.trained_model import Encoder

    options.check_output(out, overwrite)
    loaded = Encoder.load(options.model_path(encoder), device)
    if dim is not None:
        loaded.encode([""], dim)  # raises for more dimensions than there are

    with open_texts(file, format, text_column) as rows, stopping_early():
        encoded = ((chunk, loaded.encode([row[rows.text] for row in chunk], dim)) for chunk in rows.chunks(CHUNK))
        if out is None:
            write_json_lines(sys.stdout.buffer, encoded)
        else:
            write_vectors(out, encoded, dim or loaded.dim)


def search(
    file: Annotated[Path, argument("Texts to search: lines, CSV, JSON or Parquet.", "FILE")],
    query: Annotated[list[str], argument("What to look for; several are answered one by one.", "QUERY...")],
    encoder: Encoder = ENGLISH,
    top: Annotated[int, option("Texts to show for each query.", metavar="N", min=1)] = 10,
    text_column: options.TextColumn = None,
    as_json: options.Json = False,
) -> None:
    """Find the texts of a file that are nearest in meaning.

    The vectors of the file are kept in the cache: the next search of it answers at once.
    """
    from ade.encoders.search import index_file
    from ade.trained_model import Encoder

    loaded = Encoder.load(options.model_path(encoder))
    with shown() as report:
        index = index_file(loaded, options.model_path(encoder), file, text_column, report)
    hits = {text: index.search(loaded.encode(text), top) for text in query}
    results = {text: [hit._asdict() for hit in each] for text, each in hits.items()}
    tables = []
    for text, each in hits.items():
        rows = [(one_line(hit.text), f"{hit.row + 1:,}", f"{hit.score:.3f}") for hit in each]
        tables.append(display.table(("text", "row", "cosine"), rows, title=text if len(hits) > 1 else None))
    display.show({"texts": len(index.texts), "results": results}, as_json, *tables)
