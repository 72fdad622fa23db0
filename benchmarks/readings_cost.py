"""What the tables of bytes and time say, in words: each sentence with the checks it rests on."""

from collections.abc import Callable

from ade.settings import parse_size
from benchmarks import paper
from benchmarks.book import Book, Record
from benchmarks.claims import (
    Check,
    Claim,
    MissingError,
    ahead,
    every,
    flat,
    mean,
    records,
    rising,
    says,
    whole,
    within,
)
from benchmarks.records import FP32, LIMIT
from benchmarks.tables import BUDGETS, CODED, CODED_ALIKE, DATA, PACKED

SWEPT = ("paper's plain pairs", "PQ (faiss)", "RQ (faiss)", "SVD, int8", "k-means")


def _rows(book: Book, count: int) -> Record:
    """The figures of `ade train` and `ade predict` on so many rows."""
    found = [r for r in book.table("scale") if r["kind"] == "scale" and r["settings"]["rows"] == count]
    if not found:
        raise MissingError(("scale", "", ""))
    figures: Record = found[-1]["figures"]
    return figures


def _predicted(book: Book, count: int) -> float:
    rate: float = _rows(book, count)["predict"]["rows_per_second"]
    return rate


def _peak(book: Book, count: int, command: str) -> float:
    peak: float = _rows(book, count)[command]["peak_bytes"]
    return peak


def sizes_ahead(method: str, others: tuple[str, ...], budgets: tuple[float, ...], metric: str = "cosine") -> Check:
    """A method of the table `size` is ahead of the others at these budgets."""

    def check(book: Book) -> bool:
        return all(
            mean(book, ("size", method, f"{mib} MiB"), metric) > mean(book, ("size", other, f"{mib} MiB"), metric)
            for mib in budgets
            for other in others
        )

    return check


def growth(test: str, mode: str, share: float) -> Check:
    """Microseconds a text over K or k differ by at most this share."""
    return lambda book: flat(_microseconds(book, test, mode), share)


def _microseconds(book: Book, test: str, mode: str) -> list[float]:
    found = records(book, ("growth", "growth", mode))[0]["figures"][test]
    return [point["microseconds"] for point in found]


def _lookup(book: Book, way: str, what: str, **shape: int) -> list[float]:
    found = [record for record in book.table("lookup") if shape.items() <= record["settings"].items()]
    if not found:
        raise MissingError("lookup")
    return [record["figures"][way][what] for record in sorted(found, key=lambda each: list(each["settings"].values()))]


def _smallest(record: Record) -> bool:
    figures = record["figures"]
    return all(figures["projection"]["bytes"] < figures[way]["bytes"] for way in figures if way != "projection")


def _paper_storage(record: Record) -> bool:
    stated = paper.STORAGE.get(record["settings"]["anchors"])
    return stated is None or abs(record["figures"]["paper_width_bytes"] / 2**20 / stated - 1) < 0.05


def _batched(record: Record) -> bool:
    together, singly = record["figures"]["together"], record["figures"]["one at a time"]
    gains = {n: together[n]["requests_per_second"] / singly[n]["requests_per_second"] for n in together}
    return all(gain > 2 for n, gain in gains.items() if n != "1") and all(
        together[n]["p50_ms"] < singly[n]["p50_ms"] for n in together if n != "1"
    )


def _fair(record: Record) -> bool:
    figures = record["figures"]
    return figures["40"]["p99_ms"] < 100 and not any(each["refused"] for each in figures.values())


def _floor(record: Record) -> list[float]:
    limits = record["figures"]["limits"]
    return [
        1000 * max(large["bytes"] / limits["copy_bytes"], large["flops"] / limits["matmul_flops"]) / large["ms"]
        for large in record["figures"]["large"].values()
    ]


def _rate(record: Record, name: str, metric: str = "texts_per_second") -> float:
    return float(record["figures"][name][metric])


def lexicon_costs(kind: str, device: str, test: Callable[[Record], bool]) -> Check:
    """A test of the metrics of both modes in the table `lexicon`, on one kind of device; neither may be missing."""

    def check(book: Book) -> bool:
        found = [
            each for each in book.everywhere("lexicon") if (each["kind"], each["device"]["kind"]) == (kind, device)
        ]
        if len(found) < 2:
            raise MissingError("lexicon")
        return all(test(record["figures"]) for record in found)

    return check


READINGS: dict[str, list[Claim]] = {
    "compression": [
        says("The codebook alone; the tokenizer comes to it, the same at every K and for the table."),
        says(
            "At the paper's width the same accounting gives the paper's storage to within five percent (it has about 8.4 "
            "pairs a token on average below K=500, ours exactly 8). On disk an index takes two bytes, not four.",
            every("compression", _paper_storage),
        ),
        says(
            "The cosine grows slowly with K: seven times the anchors add less than 0.1.",
            whole("compression", lambda found: rising([each["figures"]["cosine"] for each in found])),
            whole("compression", lambda found: found[-1]["figures"]["cosine"] < found[0]["figures"]["cosine"] + 0.1),
        ),
    ],
    "size": [
        says(
            "All bytes of the table counted, codebooks among them; the tokenizer is the same for all. The paper's plain "
            "pairs choose pairs and anchors together and get as many rounds as ours; PQ and RQ are trained on all rows. "
            "Only ADE, packed and coded, knows frequencies, those of Zipf's law by the order of the tokens."
        ),
        says(
            "By frequency ADE is ahead of the others at every budget, as bytes go to the tokens that occur: the codes of "
            "`ade compress`, in which `ade distill --codes` stores rows, by far, then pairs of anchors.",
            sizes_ahead(CODED, ("ADE, packed",), BUDGETS, "weighted_cosine"),
            sizes_ahead("ADE, packed", SWEPT, BUDGETS, "weighted_cosine"),
        ),
        says(
            "On the average of all rows pairs are ahead up to 2 MiB, at 1 MiB also in the worst rows and in neighbours. From 4 MiB on "
            "product quantisation keeps rows closer than pairs do: sparse sums of whole anchors are not the best way to "
            "spend hundreds of bits a row. Codes for which all rows count alike are ahead of both at 4 MiB and about even with "
            "it at 8 MiB.",
            sizes_ahead("ADE, packed", SWEPT, (1, 1.85, 2)),
            *(sizes_ahead("ADE, packed", SWEPT, (1,), metric) for metric in ("cosine_p5", "recall_at_10")),
            sizes_ahead("PQ (faiss)", ("ADE, packed",), (4, 8)),
            sizes_ahead(CODED_ALIKE, ("PQ (faiss)", "ADE, packed"), (4,)),
            lambda book: (
                abs(
                    mean(book, ("size", CODED_ALIKE, "8 MiB"), "cosine")
                    - mean(book, ("size", "PQ (faiss)", "8 MiB"), "cosine")
                )
                < 0.5
            ),
        ),
        says(
            "SVD and k-means are behind ADE at every budget: the table has hardly any low-dimensional structure.",
            sizes_ahead("ADE, packed", ("SVD, int8", "k-means"), BUDGETS),
        ),
    ],
    "packed": [
        says(
            "Sizes are those of whole folders: weights, tokenizer (its part in brackets) and configuration. No folder is "
            "larger than was asked for.",
            *(
                lambda book, cell=("packed", data, f"{size} in all"), most=parse_size(size): all(
                    record["figures"]["bytes"] <= most for record in records(book, cell)
                )
                for data in (*DATA, "wordnet", "banking77")
                for size in PACKED
            ),
        ),
        says(
            "The vocabulary is pruned to the words of the training rows, and the bytes go to the most frequent of them."
        ),
        says(
            "At 2.5 MB AG News stays within 0.3 points of the model that is not packed.",
            within(("packed", "ag_news", "2.5 MB in all"), ("packed", "ag_news", "unpacked"), points=0.3),
        ),
        says(
            "At 1.5 MB it stays within 0.8 points, and 2 points above fastText's quantised model.",
            within(("packed", "ag_news", "1.5 MB in all"), ("packed", "ag_news", "unpacked"), points=0.8),
            ahead(("packed", "ag_news", "1.5 MB in all"), ("accuracy", "ag_news", "fasttext-ftz"), by=2),
        ),
    ],
    "parameters": [
        says(
            "Component by component the paper's count.",
            every("parameters", lambda r: all(r["figures"][it] == count for it, count in paper.PARAMETERS.items())),
        ),
    ],
    "latency": [
        says(
            "The paper's ADE was several times slower than DeBERTa because it attends over expanded anchors; here too "
            "that mode is the slowest of the three.",
            every(
                "latency",
                lambda r: all(
                    r["figures"]["models"]["ADE anchors"][kind]["ms"]
                    > r["figures"]["models"][f"ADE {mode}"][kind]["ms"]
                    for mode in ("tokens", "gated")
                    for kind in ("eager_fp32", "projected")
                ),
            ),
        ),
        says(
            "`projected` is what `Classifier` and `Runtime` run: the model folded into tables, on a GPU by Triton "
            "kernels in bfloat16, replayed as a CUDA graph. On a CPU it keeps the rows of tokens it has seen: `warm` "
            "repeats one batch, so every row is there; `cold` begins with none. Random weights, full batches. The floor "
            "of a large batch is the larger of two times: each token's row read once at the rate of a device copy, and "
            "the products of attention at the rate of a large matrix product."
        ),
        says(
            "A third of it or more is reached: nearly all the time is one kernel's, whose exponentials and sums of the "
            "softmax the floor does not count.",
            every("latency", lambda r: not r["figures"]["large"] or all(0.3 < share < 0.6 for share in _floor(r))),
        ),
    ],
    "costs": [
        says(
            "From rows to a trained model: tokenizing, steps and validation, after a short run to warm up. Training is "
            "the median of three runs in a process; distillation is one run."
        ),
        says(
            "A run that stops getting better ends before its last step; these took them all.",
            every("costs", lambda r: r["figures"]["steps"] == r["settings"]["training"]["steps"], "training"),
        ),
    ],
    "lexicon": [
        says(
            "AG News, preset strong. Fits with and without take turns in one process, after a short one to warm up; "
            "three of each on a GPU, one on a CPU. Rates are those of one model with its lexicon and with it left out, "
            "trained for 300 steps; raw text to label on a CPU (cold and warm as in `throughput`), full batches of 128 "
            "tokens a text on a GPU, by the projected path in bfloat16."
        ),
        says(
            "On a GPU a fit with the lexicon takes 1.3 to 1.6 times as long as one without, more than the 1.2 times "
            "aimed for: four to five seconds are added to about ten.",
            lexicon_costs("lexicon_fit", "cuda", lambda figures: 1.3 <= figures["ratio"] <= 1.6),
            lexicon_costs("lexicon_fit", "cuda", lambda figures: 8 < figures["without"]["seconds"] < 12),
            lexicon_costs(
                "lexicon_fit",
                "cuda",
                lambda figures: 4 < figures["with"]["seconds"] - figures["without"]["seconds"] < 5,
            ),
        ),
        says(
            "On a CPU at least 75% of the rate is left, warm and cold.",
            lexicon_costs("lexicon_rates", "cpu", lambda figures: min(figures["ratios"].values()) >= 0.75),
        ),
        says(
            "On a GPU a batch takes at most 1.5 times as long.",
            lexicon_costs("lexicon_rates", "cuda", lambda figures: max(figures["ratios"].values()) <= 1.5),
        ),
    ],
    "throughput": [
        says(
            "Raw text to label, everything in one process. The trained model is folded into tables (`projection.py`). "
            "Warm: the same texts again, so the row of every token is kept; cold: none is kept when the texts begin, as "
            "for texts never seen before."
        ),
        says(
            "The tokenizer is the ceiling, and `tokens` reaches more than a third of it; `gated` needs the attention "
            "output of each token as a vector, for its gates, and pays for it; `anchors` attends over eight times as "
            "many elements and is the slowest.",
            every("throughput", lambda r: _rate(r, "ADE tokens") > _rate(r, LIMIT) / 3),
            every("throughput", lambda r: _rate(r, "ADE tokens") > _rate(r, "ADE gated") > _rate(r, "ADE anchors")),
        ),
        says(
            "Even cold, `gated` does more than 30 times the texts of MiniLM-L6 in float32.",
            every("throughput", lambda r: _rate(r, "ADE gated", "cold_texts_per_second") > 30 * _rate(r, FP32)),
        ),
    ],
    "service": [
        says(
            "`ade serve` with an untrained model of the demo's shape, one gloss a request, each client asking again as "
            "soon as it is answered; the client runs on the same cores and takes its share of them."
        ),
        says(
            "One client alone gets at most a fifth fewer answers with batching than without.",
            every(
                "service",
                lambda r: (
                    r["figures"]["together"]["1"]["requests_per_second"]
                    > 0.8 * r["figures"]["one at a time"]["1"]["requests_per_second"]
                ),
                "service",
            ),
        ),
        says(
            "With several, one call for all that wait saves most of what a call costs by itself; the wait for it is "
            "shorter than the wait in a queue would be.",
            every("service", _batched, "service"),
        ),
        says(
            "A one-word request is never refused, and among 40 greedy clients, which send the largest requests that are "
            "allowed (256 texts, or texts of 20,000 characters) as fast as they are answered or `Retry-After` says, it "
            "takes less than 100 ms at p99.",
            every("service", _fair, "fairness"),
        ),
    ],
    "growth": [
        says(
            "Time is linear in the texts and memory flat (most of it is torch, loaded to make the model).",
            every(
                "growth",
                lambda r: (
                    flat([each["seconds"] / each["at"] for each in r["figures"]["texts"][1:]], 0.15)
                    and flat([each["resident_bytes"] for each in r["figures"]["texts"]], 0.05)
                ),
                "growth",
            ),
        ),
        says(
            "Where the rows of the tokens are kept, `tokens` does not depend on K or k; `gated` takes a fifth longer "
            "with 8,000 anchors than with 100, and its gates cost by the pair.",
            growth("anchors", "tokens", 0.1),
            growth("pairs", "tokens", 0.1),
            lambda book: _microseconds(book, "anchors", "gated")[-1] / _microseconds(book, "anchors", "gated")[0] > 1.1,
            lambda book: _microseconds(book, "anchors", "gated")[-1] / _microseconds(book, "anchors", "gated")[0] < 1.3,
            lambda book: rising(_microseconds(book, "pairs", "gated")),
        ),
        says(
            "Time grows faster than the length, as attention does.",
            *(
                lambda book, mode=mode: (
                    _microseconds(book, "length", mode)[-1] > 2 * 64 * _microseconds(book, "length", mode)[0]
                )
                for mode in ("tokens", "gated")
            ),
        ),
        says(
            "By stage, attention takes longest in both modes; in `tokens` the tokenizer, which uses every core, comes "
            "second.",
            every("growth", lambda r: max(r["figures"], key=r["figures"].get) == "attention", "stages"),
            lambda book: (
                sorted(found := records(book, ("growth", "stages", "tokens"))[0]["figures"], key=found.get)[-2]
                == "tokenizer (every core)"
            ),
        ),
    ],
    "scale": [
        says(
            "Training on ten million rows, a file of 2.5 GB, takes no more memory than on one million, and neither does "
            "predicting them, which is done in less than 400 MB; the time of both grows with the rows.",
            lambda book: _peak(book, 10_000_000, "train") <= _peak(book, 1_000_000, "train"),
            lambda book: _peak(book, 10_000_000, "predict") <= _peak(book, 1_000_000, "predict"),
            lambda book: _peak(book, 10_000_000, "predict") < 400e6,
            lambda book: 2.4e9 < _rows(book, 10_000_000)["file_bytes"] < 2.6e9,
            lambda book: _rows(book, 10_000_000)["train"]["seconds"] > _rows(book, 1_000_000)["train"]["seconds"],
            lambda book: 0.5 < _predicted(book, 10_000_000) / _predicted(book, 1_000_000) < 2,
        ),
    ],
    "lookup": [
        says(
            "The projection needs less memory than every other way, and its time does not depend on K.",
            every("lookup", _smallest),
            lambda book: flat(_lookup(book, "projection", "ms", vocabulary=8_000, pairs=8), 0.15),
        ),
        says(
            "The two-stage look-up through a dense transform grows with K, which is the paper's claim; the flat table "
            "trades that for memory and time that grow with the pairs.",
            lambda book: rising(_lookup(book, "two_stage", "ms", vocabulary=8_000, pairs=8)),
            lambda book: rising(_lookup(book, "flat_table", "ms", vocabulary=8_000, anchors=500)),
            lambda book: rising(_lookup(book, "flat_table", "bytes", vocabulary=8_000, anchors=500)),
        ),
        says(
            "A plain table is fastest, as it must be: it does no arithmetic.",
            every("lookup", lambda r: min(r["figures"], key=lambda way: r["figures"][way]["ms"]) == "nn_embedding"),
        ),
    ],
}
