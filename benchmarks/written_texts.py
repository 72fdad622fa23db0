"""Sentences that a decoder writes, for an encoder of many languages to learn from beside the other texts.

    python -m benchmarks.written_texts teachers/gemma3-270m data/multilingual [--count 10000] [--device cuda]

A text begins with a usual word of a language and goes on as the decoder samples it. Beside each file of texts, as
de.txt, one of written sentences is made, as de.written.txt. Sampling differs between machines, and so do the files.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ade.compression.own_text import LONGEST, continued
from ade.compression.source import load_model, source_folder
from ade.devices import quickest_dtype, resolve_device
from benchmarks.drawn_texts import words_of
from benchmarks.multilingual import DRAWN, WRITTEN
from benchmarks.multilingual_texts import sentences

COUNT = 10_000  # texts of a language, of some sentences each


def begun(tokenizer: Any, language: str, texts: list[str], count: int) -> list[list[int]]:
    """So many ids of words that texts of a language begin with."""
    words, weights = words_of(language, texts)
    drawn = np.random.default_rng(0).choice(len(words), count, p=weights)
    first = [words[place].capitalize() for place in drawn]
    return [ids[:LONGEST] for ids in tokenizer(first, add_special_tokens=False)["input_ids"]]


def whole_sentences(texts: list[str]) -> list[str]:
    """The different sentences of texts; the last of each is left out where it was not ended."""
    found: dict[str, None] = {}
    for text in texts:
        ended = text.rstrip().endswith((".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u0964"))
        parts = list(sentences(text))
        found.update(dict.fromkeys(parts if ended else parts[:-1]))
    return list(found)


def main(
    model: Annotated[Path, typer.Argument(help="Folder of a decoder.", show_default=False)],
    folder: Annotated[Path, typer.Argument(help="Folder with a file of texts for each language.", show_default=False)],
    count: Annotated[int, typer.Option(help="Texts of each language.", min=1)] = COUNT,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Write texts of a decoder beside texts of many languages."""
    with source_folder(model) as source:
        decoder, tokenizer = load_model(source)
    place = resolve_device(device)
    decoder.to(place, quickest_dtype(place))
    for file in sorted(folder.glob("*.txt")):
        if file.name.endswith((DRAWN, WRITTEN)):
            continue
        starts = begun(tokenizer, file.stem, file.read_text("utf8").splitlines(), count)
        found = whole_sentences(continued(decoder, tokenizer, starts))
        (folder / f"{file.stem}{WRITTEN}").write_text("".join(f"{text}\n" for text in found), "utf8")
        print(f"{file.stem}: {len(found):,} written sentences")


if __name__ == "__main__":
    typer.run(main)
