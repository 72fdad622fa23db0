"""From result files to pages: `benchmarks/README.md`, the marked parts of the README, and the plots.

    python -m benchmarks.report [--check]

Every figure in those pages comes through here. `--check` writes nothing and fails where a page is stale.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ade.evaluation import spread
from benchmarks import paper, readings, records
from benchmarks.records import FP32, INT8, LIMIT, Run
from benchmarks.tables import (
    ANCHORS,
    ATTEND,
    CONTEXTUAL,
    DATA,
    ENCODER,
    EVERY,
    FEW,
    LEFT_OUT,
    PEERS,
    SEEDS,
    TABLES,
    TEACHER,
    ade_run,
    changed,
    peer_run,
    taught_run,
)

ROOT = Path(__file__).parent.parent
Record = dict[str, Any]
NAMES = {
    "ag_news": "AG News",
    "dbpedia_14": "DBpedia-14",
    "wordnet": "WordNet glosses",
    "sst2": "SST-2",
    "trec": "TREC",
    "banking77": "Banking77",
    "tfidf": "TF-IDF (1,2) + linear SVM",
    "fasttext": "fastText, bigrams",
    "fasttext-ftz": "fastText quantised (.ftz)",
    "model2vec": "model2vec (MiniLM) + classifier",
    "minilm-l6": "MiniLM-L6, fine-tuned whole",
}

SHORT = {
    "tfidf": "TF-IDF + SVM",
    "fasttext": "fastText",
    "fasttext-ftz": ".ftz",
    "model2vec": "model2vec",
    "minilm-l6": "MiniLM-L6 whole",
}


class Book:
    """All records, found by the run that asks for them."""

    def __init__(self, found: list[Record]) -> None:
        self.by_key = {record["key"]: record for record in found}
        self.all = found

    def rate_of(self, record: Record) -> float | None:
        """Texts a second on a CPU: the record's own, or from the table `throughput`; training does not change it."""
        if record["device"]["kind"] == "cpu" and "texts_per_second" in record["figures"]:
            return record["figures"]["texts_per_second"]
        shape = record["settings"].get("architecture", {})
        system = f"ADE {shape['attend']}" if shape.get("sat") else ""
        system = FP32 if record["settings"].get("peer") == "minilm-l6" else system
        found = self.of(*TABLES["throughput"]())
        known = found and system in found[0]["figures"] and record["data"]["name"] == "ag_news"
        return found[0]["figures"][system]["texts_per_second"] if known else None

    def of(self, *runs: Run) -> list[Record]:
        """The records of these runs, those that exist."""
        return [self.by_key[run.key] for run in runs if run.key in self.by_key]


def _percent(found: list[Record], name: str) -> str:
    if not found:
        return "-"
    mean, deviation = spread([record["figures"][name] for record in found])
    return f"{100 * mean:.2f}" + (f" ± {100 * deviation:.2f}" if len(found) > 1 else "")


def _bytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


def _seconds(found: list[Record]) -> str:
    return "-" if not found else f"{sum(record['figures']['train_seconds'] for record in found) / len(found):.0f} s"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def classification(book: Book) -> str:
    """Table 1, ours and the peers, with the paper's rows below."""
    parts = []
    for data in DATA:
        rows = []
        ours = [
            ("ADE, preset strong, gated (default)", [ade_run("", data, seed=seed, attend="gated") for seed in SEEDS]),
            ("ADE, preset strong, tokens", [ade_run("", data, seed=seed) for seed in SEEDS]),
            ("ADE, preset paper", [ade_run("", data, "paper", 500, seed) for seed in SEEDS]),
            ("Anchor & Transform (no SAT, mean pooling)", [ade_run("", data, sat=False, pooling="mean")]),
        ]
        everyone = ours + [(NAMES[peer], [peer_run("", data, peer)]) for peer in PEERS]
        for name, runs in everyone:
            found = book.of(*runs)
            if found:
                figures = found[0]["figures"]
                rate = _rate(book.rate_of(found[0]))
                cells = [_percent(found, figure) for figure in ("accuracy", "macro_f1", "precision", "recall")]
                count = f"{found[0]['data']['train_rows']:,}"
                rows.append([name, count, *cells, _bytes(figures["bytes"]), _seconds(found), rate])
        for name, (accuracy, f1) in paper.CLASSIFICATION[data].items():
            figures = [f"{accuracy:.2f}", "-" if f1 is None else f"{f1:.2f}"]
            rows.append([f"paper: {name}", f"{paper.ROWS[data]:,}", *figures, "-", "-", "-", "-", "-"])
        header = [NAMES[data], "rows", "accuracy", "macro F1", "precision", "recall", "size", "training", "texts/s"]
        parts.append(_table(header, rows))
    return "\n\n".join(parts)


def accuracy(book: Book) -> str:
    """Every data set, one preset; then bytes and training time in the same order."""
    header = ["", "rows", "ADE", "ADE, taught", *(SHORT[peer] for peer in PEERS)]
    figures, costs = [], []
    for data, teacher in (*((data, TEACHER) for data in EVERY), ("wordnet", "wordllama")):
        plain = [ade_run("", data, seed=seed, attend=ATTEND, teacher=teacher) for seed in SEEDS]
        cells = [book.of(*plain), book.of(*map(taught_run, plain)), *(book.of(peer_run("", data, p)) for p in PEERS)]
        present = [found for found in cells if found]
        if present:
            name = NAMES[data] + (f" ({teacher})" if teacher != TEACHER else "")
            count = f"{present[0][0]['data']['train_rows']:,}"
            figures.append([name, count, *(_percent(found, "accuracy") for found in cells)])
            costs.append([name, count, *(_cost(found) for found in cells)])
    return f"{_table(header, figures)}\n\n{_table(header, costs)}" if figures else ""


def _cost(found: list[Record]) -> str:
    return "-" if not found else f"{_bytes(found[0]['figures']['bytes'])}, {_seconds(found)}"


def few(book: Book) -> str:
    """A handful of rows a class."""
    rows = []
    for count in FEW:
        runs = [
            *(
                [changed(ade_run("", "ag_news", seed=s, attend=ATTEND, teacher=t), per_class=count) for s in SEEDS]
                for t in (TEACHER, ENCODER + CONTEXTUAL)
            ),
            *([changed(peer_run("", "ag_news", p, s), per_class=count) for s in SEEDS] for p in ("tfidf", "model2vec")),
        ]
        rows.append([str(count), *(_percent(book.of(*some), "accuracy") for some in runs)])
    header = ["ADE (DeBERTa's table)", "ADE (MiniLM, contextual)", SHORT["tfidf"], SHORT["model2vec"]]
    return _table(["AG News, rows a class", *header], rows)


def ablation(book: Book) -> str:
    """One ingredient left out at a time."""
    rows = []
    for name, (training, shape) in LEFT_OUT.items():
        cells = []
        for data in ("ag_news", "wordnet"):
            run = changed(ade_run("", data, **{"attend": ATTEND, **shape}), training)
            cells.append(_percent(book.of(run), "accuracy"))
        rows.append([name, *cells])
    for name, teaching in (("taught", {}), ("taught, no variants of the texts", {"variants": 0})):
        plain = [ade_run("", data, attend=ATTEND) for data in ("ag_news", "wordnet")]
        rows.append([name, *(_percent(book.of(taught_run(run, **teaching)), "accuracy") for run in plain)])
    return _table(["preset strong, seed 0", NAMES["ag_news"], NAMES["wordnet"]], rows)


def context(book: Book) -> str:
    """Words in context."""
    found = book.of(*TABLES["context"]())
    if not found:
        return ""
    rows = []
    for way in found[0]["figures"]:
        cells = [spread([record["figures"][way][name] for record in found]) for name in ("scws", "wic")]
        shown = [f"{100 * mean:.1f}" + (f" ± {100 * off:.1f}" if len(found) > 1 else "") for mean, off in cells]
        rows.append([way, *shown])
    return _table(["gated, trained on glosses", "SCWS, Spearman x 100", "WiC dev, accuracy"], rows)


def sat(book: Book) -> str:
    """With and without SAT over K."""
    rows = []
    for preset in ("strong", "paper"):
        for on in (True, False):
            runs = [[ade_run("", "ag_news", preset, k, seed, sat=on) for seed in SEEDS] for k in ANCHORS]
            cells = [_percent(book.of(*some), "accuracy") for some in runs]
            rows.append([f"{preset}, {'with' if on else 'without'} SAT", *cells])
    for on in (True, False):
        rows.append(
            [f"paper's figures, {'with' if on else 'without'} SAT", *(f"{paper.SAT[on][k]:.2f}" for k in ANCHORS)]
        )
    return _table(["AG News, accuracy at K", *map(str, ANCHORS)], rows)


def anchors(book: Book) -> str:
    """K on DBpedia-14."""
    rows = [
        [
            "strong",
            *(
                _percent(book.of(*(ade_run("", "dbpedia_14", "strong", k, seed) for seed in SEEDS)), "accuracy")
                for k in ANCHORS
            ),
        ],
        ["paper's figures", *(f"{paper.ANCHORS[k]:.2f}" for k in ANCHORS)],
    ]
    return _table(["DBpedia-14, accuracy at K", *map(str, ANCHORS)], rows)


def attend(book: Book) -> str:
    """The three readings."""
    rows = []
    for mode in ("tokens", "gated", "anchors"):
        found = book.of(*(ade_run("", "ag_news", seed=seed, attend=mode) for seed in SEEDS))
        rows.append([mode, _percent(found, "accuracy"), _percent(found, "macro_f1"), _seconds(found)])
    return _table(["AG News, preset strong", "accuracy", "macro F1", "training"], rows)


def gpe(book: Book) -> str:
    """Positions."""
    rows = []
    for mode in ("anchors", "tokens", "gated"):
        cells = [
            _percent(
                book.of(*(ade_run("", "ag_news", seed=s, attend=mode, positions=positions) for s in SEEDS)), "accuracy"
            )
            if mode == "anchors" or positions != "each" else "as grouped"
            for positions in ("grouped", "each", "none")
        ]  # fmt: skip
        rows.append([mode, *cells])
    return _table(["AG News, preset strong", "grouped", "one each", "none"], rows)


def compression(book: Book) -> str:
    """Bytes and cosine over K."""
    rows = []
    for record in book.of(*TABLES["compression"]()):
        figures, k = record["figures"], record["settings"]["anchors"]
        theirs = f"{paper.STORAGE[k]:.2f}" if k in paper.STORAGE else "-"
        mib = figures["paper_width_bytes"] / 2**20
        cells = [
            _bytes(figures["bytes"]),
            f"{figures['ratio']:.1f}x",
            f"{figures['cosine']:.3f}",
            f"{figures['cosine_p5']:.3f}",
        ]
        rows.append([str(k), *cells, f"{mib:.2f}", f"{figures['paper_width_ratio']:.1f}x", theirs])
    header = ["K", "on disk, d=384", "ratio", "cosine", "cosine 5%", "MiB at d=768", "ratio at d=768", "paper's MiB"]
    return _table(header, rows)


def parameters(book: Book) -> str:
    """Component by component."""
    found = book.of(*TABLES["parameters"]())
    if not found:
        return ""
    rows = [
        [name.replace("_", " "), f"{found[0]['figures'][name]:,}", f"{count:,}"]
        for name, count in paper.PARAMETERS.items()
    ]
    return _table(["component", "ours", "paper"], rows)


def latency(book: Book) -> str:
    """Forward passes, every device there is."""
    parts = []
    runs = {run.key for run in TABLES["latency"]()}
    for record in book.all:
        if record["key"] in runs:
            base = record["figures"]["DeBERTa-v3-base"]["eager_fp32"]["ms"]
            rows = []
            for name, figures in record["figures"].items():
                compiled = figures.get("compiled_bf16")
                eager = figures["eager_fp32"]["ms"]
                cells = [f"{eager:.2f}", "-" if compiled is None else f"{compiled['ms']:.2f}", f"{base / eager:.1f}x"]
                rows.append([name, f"{figures['parameters'] / 1e6:.1f} M", *cells])
            header = [record["device"]["name"], "parameters", "eager fp32, ms", "compiled bf16, ms", "speed-up, eager"]
            parts.append(_table(header, rows))
    return "\n\n".join(parts)


def throughput(book: Book) -> str:
    """Raw text to label."""
    found = book.of(*TABLES["throughput"]())
    return "" if not found else speeds(found[0]["figures"], found[0]["device"])


def speeds(figures: Record, device: Record) -> str:
    """One run of `run_throughput` as a table."""
    plain, quantised, limit = (figures[name]["texts_per_second"] for name in (FP32, INT8, LIMIT))
    rows = []
    for name, figure in figures.items():
        rate = figure["texts_per_second"]
        ratios = [f"{rate / plain:.1f}x", f"{rate / quantised:.1f}x", f"{100 * rate / limit:.0f}%"]
        rows.append([name, f"{rate:,.0f}", *ratios, f"{figure['one_ms']:.2f} ms"])
    header = ["against MiniLM-L6 fp32", "against int8", "of the tokenizer's rate", "one text"]
    return _table([f"{device['name']}, {device['threads']} cores", "texts/s", *header], rows)


def growth(book: Book) -> str:
    """Texts, and the stages of one pass."""
    found, parts = book.of(*TABLES["growth"]()), []
    grown = [record for record in found if record["kind"] == "growth"]
    if grown:
        rows = []
        for place, first in enumerate(grown[0]["figures"]["texts"]):
            cells = []
            for record in grown:
                figure = record["figures"]["texts"][place]
                cells += [f"{1e6 * figure['seconds'] / figure['at']:.0f}", _bytes(figure["resident_bytes"])]
            rows.append([f"{first['at']:,} texts", *cells])
        modes = [cell for record in grown for cell in (f"ADE {record['settings']['attend']}", "")]
        parts.append(_table(["microseconds a text, memory held", *modes], rows))
    staged = [record for record in found if record["kind"] == "stages"]
    if staged:
        rows = [[name, *(f"{r['figures'][name]:.1f}" for r in staged)] for name in staged[0]["figures"]]
        modes = [f"ADE {record['settings']['attend']}" for record in staged]
        parts.append(_table(["one core, microseconds a text", *modes], rows))
    return "\n\n".join(parts)


def lookup(book: Book) -> str:
    """Time and memory of the four look-ups."""
    rows = []
    for record in book.of(*TABLES["lookup"]()):
        shape, figures = record["settings"], record["figures"]
        cells = [f"{figures[way]['ms']:.2f} ms, {_bytes(figures[way]['bytes'])}" for way in figures]
        rows.append([f"{shape['vocabulary']:,} / {shape['anchors']:,} / {shape['pairs']}", *cells])
    return _table(["N / K / k", "projection", "two-stage", "flat table", "nn.Embedding"], rows)


def demo(book: Book) -> str:
    """The main job, as the terminal shows it."""
    found = book.of(*TABLES["demo"]())
    if not found:
        return ""
    figures = found[0]["figures"]
    lines = [f"{'WordNet glosses, 25 classes':<28}{'accuracy':>9}{'macro F1':>10}{'training':>10}{'size':>10}"]
    for row in figures["results"]:
        accuracy, f1, seconds = 100 * row["accuracy"], 100 * row["macro_f1"], row["seconds"]
        cells = f"{accuracy:>9.2f}{f1:>10.2f}{seconds:>8.0f} s{_bytes(row['bytes']):>10}"
        lines.append(f"{row['name']:<28}{cells}")
    table, codebook = figures["table_bytes"], figures["codebook_bytes"]
    lines += ["", f"Embedding table {_bytes(table)}, codebook {_bytes(codebook)}: {table / codebook:.1f}x smaller, "
        f"mean cosine {figures['cosine']:.3f}.", "", "bank", "anchor  weight  nearest words"]  # fmt: skip
    bank = next(word for word in figures["words"] if word["word"] == "bank")
    lines += [f"{use['anchor']:>6}  {use['weight']:+.3f}  {', '.join(use['nearest'])}" for use in bank["anchors"][:4]]
    return "```\n" + "\n".join(lines) + "\n```"


PLOTS = {
    "classification": "plots/bytes.png",
    "sat": "plots/anchors.png",
    "compression": "plots/cosine.png",
    "throughput": "plots/speed.png",
    "growth": "plots/growth.png",
}
SECTIONS: dict[str, Callable[[Book], str]] = {
    "demo": demo,
    "classification": classification,
    "accuracy": accuracy,
    "few": few,
    "ablation": ablation,
    "context": context,
    "sat": sat,
    "anchors": anchors,
    "attend": attend,
    "gpe": gpe,
    "compression": compression,
    "parameters": parameters,
    "latency": latency,
    "throughput": throughput,
    "growth": growth,
    "lookup": lookup,
}


def pages(found: list[Record]) -> dict[Path, str]:
    """Every generated page and what it should say."""
    book = Book(found)
    recorded = {name for name, make in TABLES.items() if book.of(*make())}
    body = [readings.OPENING]
    for name, section in SECTIONS.items():
        text = section(book)
        if text and name in recorded:
            plot = f"\n\n![]({PLOTS[name]})" if name in PLOTS else ""
            body.append(f"## {name}\n\n{text}{plot}\n\n{readings.READINGS.get(name, '')}".rstrip())
    written = {ROOT / "benchmarks" / "README.md": "\n\n".join(body) + "\n"}
    front = (ROOT / "README.md").read_text("utf8")
    for name, section in SECTIONS.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        if begin in front:
            before, rest = front.split(begin, 1)
            front = before + begin + section(book) + end + rest.split(end, 1)[1]
    written[ROOT / "README.md"] = front
    return written


def main() -> None:
    """Write the pages, or only check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a page is stale")
    check = parser.parse_args().check
    found = records.load()
    stale = {path: text for path, text in pages(found).items() if not path.exists() or path.read_text("utf8") != text}
    if check:
        sys.exit(f"stale: {', '.join(path.name for path in stale)}; run 'make report'" if stale else 0)
    for path, text in stale.items():
        path.write_text(text, "utf8")
    from benchmarks import plots

    plots.draw(found)


if __name__ == "__main__":
    main()
