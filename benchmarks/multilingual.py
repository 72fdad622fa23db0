"""Encoders of many languages: distilled from multilingual-e5-small, beside it and beside the mean of its table.

Tasks: the translation of a sentence (Tatoeba, by language) and similarity (STS-B, by language). The texts come from
`multilingual_texts.py` and `drawn_texts.py`, some runs have those of `written_texts.py` or `translated_texts.py` too:
none of the tasks' own.
"""

import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

from ade.cli.sizes import folder_sizes
from ade.errors import InputError
from ade.progress import Report
from ade.settings import EncoderSettings
from ade.training.distill_encoder import distill_encoder
from ade.training.sentence_teacher import SentenceTeacher
from benchmarks.accuracy import Places
from benchmarks.compress import PREFIX, tasks
from benchmarks.records import Run
from benchmarks.sentence import mean_of, teacher_of

FOLDER = "multilingual"  # of the texts, in the data folder: files of lines for each language
DRAWN = ".drawn.txt"  # ending of the files of texts that nobody wrote
WRITTEN = ".written.txt"  # ending of the files of sentences that a decoder wrote
TRANSLATIONS = "translations.tsv"  # lines of texts that mean the same
_PEERS: dict[str, dict[str, Any]] = {}  # what does not depend on the run, by what was asked for


def run_multilingual(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Distil an encoder on text of many languages and measure it, its teacher, and the mean of the teacher's table."""
    settings = run.settings
    folder = places.teachers / settings["teacher"]
    texts = texts_of(places, settings["texts"], settings.get("written", False))
    teacher = teacher_of(folder, places.device, PREFIX.get(settings["teacher"], ""))
    chosen = EncoderSettings(**settings["encoder"], device=places.device)
    with tempfile.TemporaryDirectory() as work:
        out, lines = Path(work) / "encoder", settings.get("translations", 0)
        translations = [first_lines(places.data / FOLDER / TRANSLATIONS, lines, Path(work))] if lines else []
        if not settings.get("told", True):  # the same texts, in the same order
            lines_read = [line for file in translations for line in file.read_text("utf8").splitlines()]
            texts += [text for line in lines_read for text in line.split("\t")]
            translations = []
        encoder = distill_encoder(
            teacher, [], chosen, table=folder, texts=texts, translations=translations, out=out, progress=report
        )
        nbytes = folder_sizes(out)["bytes"]
    figures = {"encoder": tasks(encoder.encode, places, settings), **peers(teacher, folder, places, settings)}
    about = encoder.model.config.about
    data = {"texts": len(texts), "different": about["rows"]}
    return {**figures, "validation": about["dev"], "bytes": nbytes}, {"data": data}


def peers(teacher: SentenceTeacher, folder: Path, places: Places, settings: Any) -> dict[str, Any]:
    """The tasks of the teacher and of the mean of its table, measured once for all runs."""
    asked = json.dumps([str(folder), *(settings[name] for name in ("languages", "similarity", "rows"))])
    if asked not in _PEERS:
        encoders = {"teacher": teacher.encode, "mean": mean_of(folder)[0]}
        _PEERS[asked] = {name: tasks(encode, places, settings) for name, encode in encoders.items()}
    return _PEERS[asked]


def first_lines(file: Path, count: int, work: Path) -> Path:
    """A file with so many of the first lines of another."""
    if not file.is_file():
        raise InputError(f"{file}: missing; python -m benchmarks.translated_texts makes it")
    with open(file, encoding="utf8") as lines:
        (work / file.name).write_text("".join(islice(lines, count)), "utf8")
    return work / file.name


def texts_of(places: Places, count: int, written: bool = False) -> list[str]:
    """So many texts of each language, as many drawn ones and, if asked for, as many written ones; or all with 0."""
    files = sorted((places.data / FOLDER).glob("*.txt"))
    languages = {file.stem for file in files if not file.name.endswith((DRAWN, WRITTEN))}
    if not languages:
        raise InputError(
            f"{places.data / FOLDER}: texts are missing; python -m benchmarks.multilingual_texts makes them"
        )
    endings = [".txt", DRAWN, *([WRITTEN] if written else [])]
    wanted = sorted(places.data / FOLDER / f"{name}{ending}" for name in languages for ending in endings)
    if missing := set(wanted) - set(files):
        script = "written_texts" if min(missing).name.endswith(WRITTEN) else "drawn_texts"
        raise InputError(f"{min(missing)}: texts are missing; python -m benchmarks.{script} makes them")
    return [line for file in wanted for line in file.read_text("utf8").splitlines()[: count or None]]
