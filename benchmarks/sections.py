"""One function a table of `tables.py`, of the same name: its records as text, empty where there are none."""

from benchmarks import paper
from benchmarks.book import NAMES, SHORT, Book, Record, markdown, mean, percent, size_of
from benchmarks.records import FP32, INT8, LIMIT
from benchmarks.sections_compress import compress as compress
from benchmarks.sections_compress import compress_speed as compress_speed
from benchmarks.sections_compress import frontier as frontier
from benchmarks.sections_compress import frontier_decoder as frontier_decoder
from benchmarks.sections_lexicon import lexicon as lexicon
from benchmarks.sections_lexicon import windows as windows
from benchmarks.sections_scale import scale as scale
from benchmarks.sections_sentence import multilingual as multilingual
from benchmarks.sections_sentence import sentence as sentence
from benchmarks.tables import ANCHORS, AS_IT_COMES, BUDGETS, EVERY, TABLES

OVERVIEW = ("ADE", "ADE, taught", "tfidf", "fasttext", "model2vec", "minilm-l6")  # columns of the overview
CLOSENESS = {
    "cosine": "mean cosine",
    "weighted_cosine": "cosine by frequency",
    "cosine_p5": "cosine, 5th percentile",
    "recall_at_10": "neighbours kept, of 10",
}
WAYS = {
    "eager_fp32": "eager fp32",
    "compiled_bf16": "compiled bf16",
    "projected": "projected (CPU: warm)",
    "projected_cold": "projected, cold",
}


def made(found: list[Record]) -> str:
    """Where and when the records of a table were made: device, runs at once, commits; and what is noted of them."""
    where: dict[str, None] = {}
    for record in found:
        jobs = record.get("jobs", 1)
        shared = "alone" if jobs == 1 else f"{jobs} runs at once"
        where[f"{record['device'].get('name', record['device']['kind'])} ({shared})"] = None
    commits = dict.fromkeys(record.get("commit", "unknown")[:8] for record in found)
    notes = dict.fromkeys(f" {record['commit'][:8]}: {record['note']}." for record in found if "note" in record)
    return f"Made on {', '.join(where)}; commits {', '.join(commits)}.{''.join(notes)}"


def grid(book: Book, table: str, corner: str, more: list[list[str]] | None = None) -> str:
    """A table of accuracies as `tables.py` lays it out; cells that are not asked for stay empty."""
    asked = TABLES[table]()
    columns = list(dict.fromkeys(column for row in asked.values() for column in row))
    rows = [
        [NAMES.get(name, name), *(percent(book.of(row[column])) if column in row else "" for column in columns)]
        for name, row in asked.items()
    ]
    return markdown(
        [corner, *(SHORT.get(column) or NAMES.get(column, column) for column in columns)], rows + (more or [])
    )


def classification(book: Book) -> str:
    """Table 1, ours and the peers, with the paper's rows below."""
    asked, parts = TABLES["classification"](), []
    for data in paper.CLASSIFICATION:
        rows = []
        for name, row in asked.items():
            found = book.of(row[data])
            if found:
                rate = book.rate_of(found[0])
                cells = [percent(found, figure) for figure in ("accuracy", "macro_f1", "precision", "recall")]
                cost = [size_of(found[0]["figures"]["bytes"]), "-" if rate is None else f"{rate:,.0f}"]
                rows.append([NAMES.get(name, name), f"{found[0]['data']['train_rows']:,}", *cells, *cost])
        for name, (accuracy, f1) in paper.CLASSIFICATION[data].items():
            figures = [f"{accuracy:.2f}", "-" if f1 is None else f"{f1:.2f}"]
            rows.append([f"paper: {name}", f"{paper.ROWS[data]:,}", *figures, "-", "-", "-", "-"])
        header = [NAMES[data], "rows", "accuracy", "macro F1", "precision", "recall", "size", "texts/s, 2 CPU cores"]
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)


def accuracy(book: Book) -> str:
    """Every data set, one preset; then bytes in the same order."""
    figures, costs = [], []
    for data, row in TABLES["accuracy"]().items():
        cells = [book.of(runs) for runs in row.values()]
        header = ["", "rows", *(SHORT.get(name, name) for name in row)]
        count = next((f"{found[0]['data']['train_rows']:,}" for found in cells if found), "-")
        figures.append([NAMES[data], count, *(percent(found) for found in cells)])
        costs.append([NAMES[data], count, *(_size(found) for found in cells)])
    header[0] = "accuracy"
    return f"{markdown(header, figures)}\n\n{markdown(['size, tokenizer included', *header[1:]], costs)}"


def overview(book: Book) -> str:
    """The overview in docs: accuracy and size of the models that most readers choose between, with one teacher."""
    asked = TABLES["accuracy"]()
    header = ["accuracy, size", *(SHORT.get(name, name) for name in OVERVIEW)]
    rows = []
    for data in EVERY:
        cells = [book.of(asked[data][name]) for name in OVERVIEW]
        rows.append([NAMES[data], *(f"{percent(found)}, {_size(found)}" if found else "-" for found in cells)])
    return markdown(header, rows)


def _size(found: list[Record]) -> str:
    """Bytes of a model; `-` where nothing was measured, or a part of a model that is not stored by itself."""
    return size_of(found[0]["figures"]["bytes"]) if found and "bytes" in found[0]["figures"] else "-"


def few(book: Book) -> str:
    """A handful of rows a class."""
    return grid(book, "few", "AG News, rows a class")


def ablation(book: Book) -> str:
    """One ingredient left out at a time."""
    return grid(book, "ablation", "preset strong, seed 0")


def context(book: Book) -> str:
    """Words in context."""
    found = book.table("context")
    rows = [
        [way, *(mean([100 * record["figures"][way][name] for record in found], 1) for name in ("scws", "wic"))]
        for way in (found[0]["figures"] if found else ())
    ]
    return markdown(["gated, trained on glosses", "SCWS, Spearman x 100", "WiC dev, accuracy"], rows)


def explain(book: Book) -> str:
    """Deleted words."""
    found = book.table("explain")
    ways = {"contribution": "the largest contribution", "pooling weight": "the largest pooling weight"}
    rows = [
        [f"the word with {ways[way]}" if way in ways else "any word", mean([r["figures"][way] for r in found], 3)]
        for way in ("contribution", "pooling weight", "at random")
    ]
    count = f"{found[0]['figures']['texts']:,}" if found else "0"
    return markdown([f"deleted from each of {count} glosses", "mean loss of the label's probability"], rows)


def sat(book: Book) -> str:
    """With and without SAT over K."""
    theirs = [
        [f"paper's figures, {'with' if on else 'without'} SAT", *(f"{paper.SAT[on][k]:.2f}" for k in ANCHORS)]
        for on in (True, False)
    ]
    return grid(book, "sat", "AG News, accuracy at K", theirs)


def anchors(book: Book) -> str:
    """K on DBpedia-14."""
    theirs = ["paper's figures", *(f"{paper.ANCHORS[k]:.2f}" for k in ANCHORS)]
    return grid(book, "anchors", "DBpedia-14, accuracy at K", [theirs])


def attend(book: Book) -> str:
    """The three readings."""
    rows = []
    for mode, row in TABLES["attend"]().items():
        found = book.of(row[""])
        rows.append([mode, percent(found), percent(found, "macro_f1")])
    return markdown(["AG News, preset strong", "accuracy", "macro F1"], rows)


def gpe(book: Book) -> str:
    """Positions."""
    return grid(book, "gpe", "AG News, preset strong")


def compression(book: Book) -> str:
    """Bytes and cosine over K."""
    rows = []
    for record in book.table("compression"):
        figures, k = record["figures"], record["settings"]["anchors"]
        theirs = f"{paper.STORAGE[k]:.2f}" if k in paper.STORAGE else "-"
        mib = figures["paper_width_bytes"] / 2**20
        cells = [
            size_of(figures["bytes"]),
            f"{figures['ratio']:.1f}x",
            f"{figures['cosine']:.3f}",
            f"{figures['cosine_p5']:.3f}",
        ]
        rows.append([str(k), *cells, f"{mib:.2f}", f"{figures['paper_width_ratio']:.1f}x", theirs])
    header = [
        "K",
        "codebook, d=384",
        "ratio",
        "cosine",
        "cosine 5%",
        "MiB at d=768",
        "ratio at d=768",
        "paper's MiB",
    ]
    return markdown(header, rows)


def size(book: Book) -> str:
    """Closeness at a budget, and what it takes."""
    parts = []
    for figure, name in CLOSENESS.items():
        rows = []
        for method, row in TABLES["size"]().items():
            cells = dict.fromkeys([*(f"{mib} MiB" for mib in BUDGETS), AS_IT_COMES], "")
            for column, runs in row.items():
                for record in book.of(runs):
                    each = record["figures"]
                    shown = f"{each[figure]:.3f}" if each["bytes"] else "-"
                    cells[column] = f"{shown} at {size_of(each['bytes'])}" if column == AS_IT_COMES else shown
            rows.append([method, *cells.values()])
        parts.append(markdown([name, *cells], rows))
    return "\n\n".join(parts)


def packed(book: Book) -> str:
    """Accuracy and the whole file."""
    rows = []
    for data, row in TABLES["packed"]().items():
        found = [book.of(runs) for runs in row.values()]
        rows.append([NAMES[data], *(_with_size(each) for each in found)])
    return markdown(["accuracy, size (of it tokenizer)", *row], rows)


def _with_size(found: list[Record]) -> str:
    if not found:
        return "-"
    whole, tokenizer = (size_of(found[0]["figures"][name]) for name in ("bytes", "tokenizer_bytes"))
    return f"{percent(found)}, {whole} ({tokenizer})"


def parameters(book: Book) -> str:
    """Component by component."""
    rows = [
        [name.replace("_", " "), f"{record['figures'][name]:,}", f"{count:,}"]
        for record in book.table("parameters")
        for name, count in paper.PARAMETERS.items()
    ]
    return markdown(["component", "ours", "paper"], rows)


def latency(book: Book) -> str:
    """One batch, every device there is; then a batch that fills a GPU against what the GPU can do at best."""
    parts = []
    for record in book.everywhere("latency"):
        figures = record["figures"]
        kinds = [kind for kind in WAYS if any(kind in model for model in figures["models"].values())]
        base = figures["models"]["DeBERTa-v3-base"]
        rows = []
        for name, model in figures["models"].items():
            cells = [f"{model[kind]['ms']:.3f}" if kind in model else "-" for kind in kinds]
            best = min(model[kind]["ms"] for kind in kinds if kind in model)
            ratios = [f"{base[kind]['ms'] / best:.1f}x" for kind in kinds if kind in base]
            rows.append([name, f"{model['parameters'] / 1e6:.1f} M", *cells, *ratios])
        against = [f"best against DeBERTa {WAYS[kind]}" for kind in kinds if kind in base]
        header = [f"{record['device']['name']}, ms a batch", "parameters", *(WAYS[kind] for kind in kinds), *against]
        parts.append(markdown(header, rows))
        limits = figures["limits"]
        if limits:
            copy, product = limits["copy_bytes"], limits["matmul_flops"]
            rows = []
            for name, large in figures["large"].items():
                read, multiplied = 1000 * large["bytes"] / copy, 1000 * large["flops"] / product
                share = max(read, multiplied) / large["ms"]
                cells = [f"{1000 * large['texts'] / large['ms'] / 1e6:.1f} M", f"{large['ms']:.2f}"]
                rows.append([name, *cells, f"{read:.2f}", f"{multiplied:.2f}", f"{100 * share:.0f}%"])
            top = f"4,096 texts of 128 tokens (copy {copy / 1e12:.1f} TB/s, product {product / 1e12:.0f} TFLOP/s)"
            header = [top, "texts/s", "ms", "reading alone, ms", "products alone, ms", "of the floor"]
            parts.append(markdown(header, rows))
    return "\n\n".join(parts)


def costs(book: Book) -> str:
    """Seconds, every device there is."""
    rows = []
    for record in book.everywhere("costs"):
        what = "distillation, 128,100 x 768, K=700, 8 pairs"
        if record["kind"] == "training":
            what = f"training, AG News, at most 6,000 steps of 64, {record['settings']['attend']}"
        shared = "alone" if record["jobs"] == 1 else f"{record['jobs']} runs at once"
        rows.append([what, record["device"]["name"], shared, f"{record['figures']['seconds']:.1f} s"])
    return markdown(["", "device", "with", "seconds"], rows)


def throughput(book: Book) -> str:
    """Raw text to label."""
    return "\n\n".join(speeds(record["figures"], record["device"]) for record in book.table("throughput"))


def speeds(figures: Record, device: Record) -> str:
    """One run of `run_throughput` as a table."""
    plain, quantised, limit = (figures[name]["texts_per_second"] for name in (FP32, INT8, LIMIT))
    rows = []
    for name, figure in figures.items():
        rate = figure["texts_per_second"]
        ratios = [f"{rate / plain:.1f}x", f"{rate / quantised:.1f}x", f"{100 * rate / limit:.0f}%"]
        cold = ["-", "-"]
        if "cold_one_ms" in figure:
            cold = [f"{figure['cold_texts_per_second']:,.0f}", f"{figure['cold_one_ms']:.2f} ms"]
        rows.append([name, f"{rate:,.0f}", cold[0], *ratios, f"{figure['one_ms']:.2f} ms", cold[1]])
    header = ["against MiniLM-L6 fp32", "against int8", "of the tokenizer's rate", "one text, warm", "one text, cold"]
    first = [f"{device['name']}, {device['threads']} cores", "texts/s, warm", "texts/s, cold"]
    return markdown([*first, *header], rows)


def service(book: Book) -> str:
    """Requests a second, gathered and one at a time; a word among greedy clients."""
    parts = []
    for record in book.table("service"):
        if record["kind"] == "fairness":
            parts.append(_fairness(record))
            continue
        rows = []
        for clients, gathered in record["figures"]["together"].items():
            singly = record["figures"]["one at a time"][clients]
            cells = [
                [f"{each['requests_per_second']:,.0f}", f"{each['p50_ms']:.1f}", f"{each['p99_ms']:.1f}"]
                for each in (gathered, singly)
            ]
            gain = gathered["requests_per_second"] / singly["requests_per_second"]
            rows.append([clients, *cells[0], f"{gathered['batch']:.1f}", *cells[1], f"{gain:.1f}x"])
        device = record["device"]
        header = [
            "requests/s",
            "p50, ms",
            "p99, ms",
            "requests a batch",
            "one at a time: requests/s",
            "p50, ms",
            "p99, ms",
        ]
        parts.append(markdown([f"clients ({device['name']}, {device['threads']} cores)", *header, "gain"], rows))
    return "\n\n".join(parts)


def _fairness(record: Record) -> str:
    rows = [
        [clients, f"{each['requests']:,}", f"{each['refused']}"]
        + [f"{each[name]:.1f}" for name in ("p50_ms", "p99_ms", "longest_ms")]
        for clients, each in record["figures"].items()
    ]
    device = record["device"]
    first = f"greedy clients ({device['name']}, {device['threads']} cores)"
    return markdown([first, "one-word requests", "refused", "p50, ms", "p99, ms", "longest, ms"], rows)


def growth(book: Book) -> str:
    """Texts, and the stages of one pass."""
    asked, parts = TABLES["growth"](), []
    grown = [record for runs in asked["growth"].values() for record in book.of(runs)]
    if grown:
        rows = []
        for place, first in enumerate(grown[0]["figures"]["texts"]):
            cells = []
            for record in grown:
                figure = record["figures"]["texts"][place]
                cells += [f"{1e6 * figure['seconds'] / figure['at']:.0f}", size_of(figure["resident_bytes"])]
            rows.append([f"{first['at']:,} texts", *cells])
        modes = [cell for record in grown for cell in (f"ADE {record['settings']['attend']}", "")]
        parts.append(markdown(["microseconds a text, memory held", *modes], rows))
    staged = [record for runs in asked["stages"].values() for record in book.of(runs)]
    if staged:
        rows = [[name, *(f"{r['figures'][name]:.1f}" for r in staged)] for name in staged[0]["figures"]]
        modes = [f"ADE {record['settings']['attend']}" for record in staged]
        parts.append(markdown(["one core, microseconds a text", *modes], rows))
    return "\n\n".join(parts)


def lookup(book: Book) -> str:
    """Time and memory of the four look-ups."""
    rows = []
    for record in book.table("lookup"):
        shape, figures = record["settings"], record["figures"]
        cells = [f"{figures[way]['ms']:.2f} ms, {size_of(figures[way]['bytes'])}" for way in figures]
        rows.append([f"{shape['vocabulary']:,} / {shape['anchors']:,} / {shape['pairs']}", *cells])
    return markdown(["N / K / k", "projection", "two-stage", "flat table", "nn.Embedding"], rows)


def install(book: Book) -> str:
    """The bytes of the two installs."""
    found = {record["settings"]["extra"]: record["figures"] for record in book.table("install")}
    if len(found) < 2:
        return ""
    base, train = (size_of(found[extra]["bytes"]) for extra in ("", "train"))
    return f"Packages in all: {base} without extras, {train} with `train` and torch {found['train']['torch']}."


def demo(book: Book) -> str:
    """The main job, as the terminal shows it; seconds are those of the machine named under the table."""
    return "\n\n".join(_main_job(record["figures"]) for record in book.table("demo"))


def _main_job(figures: Record) -> str:
    lines = [f"{'WordNet glosses, 25 classes':<28}{'accuracy':>9}{'macro F1':>10}{'training':>10}{'size':>10}"]
    for row in figures["results"]:
        cells = f"{100 * row['accuracy']:>9.2f}{100 * row['macro_f1']:>10.2f}{row['seconds']:>8.0f} s"
        lines.append(f"{row['name']:<28}{cells}{size_of(row['bytes']):>10}")
    table, codebook = figures["table_bytes"], figures["codebook_bytes"]
    lines += ["", f"Embedding table {size_of(table)}, codebook {size_of(codebook)}: {table / codebook:.1f}x smaller, "
        f"mean cosine {figures['cosine']:.3f}.", "", "bank", "anchor  weight  nearest words"]  # fmt: skip
    bank = next(word for word in figures["words"] if word["word"] == "bank")
    lines += [f"{use['anchor']:>6}  {use['weight']:+.3f}  {', '.join(use['nearest'])}" for use in bank["anchors"][:4]]
    return "```\n" + "\n".join(lines) + "\n```"
