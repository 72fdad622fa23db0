"""Records found by the runs that ask for them, and how numbers are written."""

from typing import Any

from ade.evaluation import spread
from benchmarks.records import FP32, Run
from benchmarks.tables import EVERY, runs_of

Record = dict[str, Any]
NAMES = {
    "ag_news": "AG News",
    "dbpedia_14": "DBpedia-14",
    "wordnet": "WordNet glosses",
    "sst2": "SST-2",
    "trec": "TREC",
    "banking77": "Banking77",
    "man_pages": "manual pages",
    "tfidf": "TF-IDF + linear SVM, tuned",
    "nbsvm": "NB-SVM, tuned",
    "fasttext": "fastText, tuned",
    "fasttext-ftz": "fastText, tuned, quantised (.ftz)",
    "model2vec": "model2vec (MiniLM) + classifier",
    "minilm-l6": "MiniLM-L6, fine-tuned whole",
}
NAMES |= {f"{data} (wordllama)": f"{NAMES[data]} (wordllama)" for data in EVERY}
SHORT = {
    "tfidf": "TF-IDF + SVM",
    "nbsvm": "NB-SVM",
    "fasttext": "fastText",
    "fasttext-ftz": "fastText .ftz",
    "model2vec": "model2vec",
    "minilm-l6": "MiniLM-L6 whole",
}


class Book:
    """All records."""

    def __init__(self, found: list[Record]) -> None:
        self.by_key = {record["key"]: record for record in found}
        self.all = found

    def of(self, runs: list[Run]) -> list[Record]:
        """The records of these runs, those that exist."""
        return [self.by_key[run.key] for run in runs if run.key in self.by_key]

    def table(self, name: str) -> list[Record]:
        """The records of a table, those that exist."""
        return self.of(runs_of(name))

    def everywhere(self, name: str) -> list[Record]:
        """The records of a table on every device."""
        order = [run.key for run in runs_of(name)]
        return sorted((each for each in self.all if each["key"] in order), key=lambda each: order.index(each["key"]))

    def rate_of(self, record: Record) -> float | None:
        """Texts a second on a CPU with nothing else on it: the record's own, or from the table `throughput`."""
        if record["device"]["kind"] == "cpu" and "texts_per_second" in record["figures"]:
            return record["figures"]["texts_per_second"] if record["jobs"] == 1 else None
        shape = record["settings"].get("architecture", {})
        system = f"ADE {shape['attend']}" if shape.get("sat") else ""
        system = FP32 if record["settings"].get("peer") == "minilm-l6" else system
        found = self.table("throughput")
        known = found and system in found[0]["figures"] and record["data"]["name"] == "ag_news"
        return found[0]["figures"][system]["texts_per_second"] if known else None


def percent(found: list[Record], name: str = "accuracy") -> str:
    """Mean and spread over seeds of a share, in percent."""
    return mean([100 * record["figures"][name] for record in found])


def mean(values: list[float], digits: int = 2) -> str:
    """Mean and spread."""
    if not values:
        return "-"
    middle, deviation = spread(values)
    return f"{middle:.{digits}f}" + (f" ± {deviation:.{digits}f}" if len(values) > 1 else "")


def size_of(count: float) -> str:
    """Bytes."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table; the first column to the left, the others to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
