"""The runs of whole models with their embedding table packed, as `tables.py` has the others."""

from typing import Any

from benchmarks.records import Run

REVISION = 1  # raise when the measurement changes
DECODER_REVISION = 2  # the same for the losses of decoders
TOGETHER_REVISION = 3  # since codes of several stages are found together
TOGETHER = {("multilingual-e5-small", "12MB"), ("minilm-l6", "2.34MB")}
TATOEBA = ("ara", "cmn", "deu", "fin", "fra", "hin", "jpn", "rus", "spa", "swh", "tur", "vie")
ROWS = 400  # sentences and pairs of each language, where there are several
TUNED, GEMMA_TUNED = "smollm2-135m, tuned", "gemma3-270m, tuned"
OWN, GEMMA_OWN = "smollm2-135m, tuned on its own text, too", "gemma3-270m, tuned on its own text, too"
ONNX = "multilingual-e5-small as ONNX, layers in 4 bits"
SOURCE, OURS = "as it came", "ade compress"  # rows of the frontier
COUNTED = ("ag_news", "dbpedia_14", "sst2")  # text of other kinds than WikiText
SPOKEN = (
    "en",
    "ar",
    "zh",
    "de",
    "fi",
    "fr",
    "hi",
    "ja",
    "ru",
)  # of `multilingual_texts.py`: English, and as in TATOEBA
STSB = ("de", "en", "es", "fr", "ru", "zh")


def compress() -> dict[str, dict[str, list[Run]]]:
    """Whole models with their embedding table packed; what SmolLM2 uses is counted in text."""
    sizes: dict[str, tuple[str, ...]] = {
        "multilingual-e5-small": ("12MB", "16MB", "24MB"),
        "minilm-l6": ("2.34MB",),
        "mpnet-base": ("4.68MB",),
        "smollm2-135m": ("5MB", "10MB"),
        "gemma3-270m": ("31MB",),
    }
    counted: dict[str, dict[str, Any]] = {
        "smollm2-135m": {"corpus": list(COUNTED)},
        "gemma3-270m": {"languages": list(TATOEBA[:8]), "rows": 100},
    }
    for settings in counted.values():
        settings["revision"] = DECODER_REVISION
    found = {
        model: {size: [compress_run(model, size, **counted.get(model, {}), **_again(model, size))] for size in asked}
        for model, asked in sizes.items()
    }
    text = {"corpus": list(COUNTED), "tune": list(COUNTED), "revision": DECODER_REVISION}
    found[TUNED] = {
        size: [compress_run("smollm2-135m", size, **text, compression={"size": size, "tune_rate": rate})]
        for size, rate in (("5MB", 0.003), ("10MB", 0.0015))  # the rates that there are records of
    }
    several = [*COUNTED, *(f"multilingual/{language}.txt" for language in SPOKEN)]
    text |= counted["gemma3-270m"] | {"corpus": several, "tune": several}
    text["compression"] = {"size": "31MB", "tune_steps": 800, "tune_rate": 0.0015}
    found[GEMMA_TUNED] = {"31MB": [compress_run("gemma3-270m", "31MB", **text)]}
    found |= own()
    exported = compress_run("multilingual-e5-small", "11.7MB")
    return {**found, ONNX: {"11.7MB": [Run("compress", "compress_onnx", exported.settings)]}}


def _again(model: str, size: str) -> dict[str, Any]:
    """What was measured again since codes of several stages are found together."""
    return {"revision": TOGETHER_REVISION} if (model, size) in TOGETHER else {}


def own() -> dict[str, dict[str, list[Run]]]:
    """Decoders tuned longer, on text that they wrote themselves and on that of files."""
    several = [*COUNTED, *(f"multilingual/{language}.txt" for language in SPOKEN)]
    text: dict[str, Any] = {"corpus": list(COUNTED), "tune": list(COUNTED), "revision": DECODER_REVISION}
    tuned = {"size": "5MB", "tune_steps": 1000, "tune_rate": 0.003, "own_texts": 20_000}
    small = compress_run("smollm2-135m", "5MB", **text, compression=tuned)
    text |= {"corpus": several, "tune": several, "spoken": list(SPOKEN), "languages": list(TATOEBA[:8]), "rows": 100}
    tuned = {"size": "31MB", "tune_steps": 800, "tune_rate": 0.003, "own_texts": 16_000}
    large = compress_run("gemma3-270m", "31MB", **text, compression=tuned)
    return {OWN: {"5MB": [small]}, GEMMA_OWN: {"31MB": [large]}}


def compress_run(model: str, size: str, **changes: Any) -> Run:
    """One model in so many bytes, measured before and after."""
    several = model == "multilingual-e5-small"
    settings = {
        "revision": REVISION, "model": model, "compression": {"size": size}, "corpus": [], "tune": [],
        "rows": ROWS if several else 0,
        "tokens": 20_000, "languages": list(TATOEBA) if several else [],
        "similarity": list(STSB) if several else ["en"], **changes,
    }  # fmt: skip
    return Run("compress", "compress", settings)


def compress_speed() -> dict[str, dict[str, list[Run]]]:
    """Speed and memory of models with their table packed, beside the original."""
    sizes = {"multilingual-e5-small": "12MB", "smollm2-135m": "5MB", "gemma3-270m": "31MB"}
    return {model: {size: [speed_run(model, size)]} for model, size in sizes.items()}


def speed_run(model: str, size: str) -> Run:
    """One model in so many bytes, timed beside the original."""
    return Run(
        "compress_speed", "compress_speed", {"revision": REVISION, "model": model, "compression": {"size": size}}
    )


def frontier() -> dict[str, dict[str, list[Run]]]:
    """The table of multilingual-e5-small in many sizes, and what its tasks make of it."""
    sizes: dict[str, tuple[str, ...]] = {
        SOURCE: ("",),
        OURS: ("12MB", "8MB", "24MB", "4MB", "16MB", "6MB", "32MB"),
        "int2": ("",),
        "int3": ("",),
        "int4": ("",),
        "int8": ("",),
        "PQ (faiss)": ("12.3MB", "6.3MB", "24.3MB", "4.3MB"),
        "RQ (faiss)": ("12MB", "6MB"),
        "trimmed vocabulary": ("12MB", "24MB", "48MB"),
    }
    return {
        method: {size: [frontier_run("multilingual-e5-small", method, size)] for size in asked}
        for method, asked in sizes.items()
    }


def frontier_decoder() -> dict[str, dict[str, list[Run]]]:
    """The table of Gemma-3-270M, its head tied, in many sizes, and what is left of its perplexity."""
    sizes: dict[str, tuple[str, ...]] = {
        SOURCE: ("",),
        OURS: ("31MB", "64MB", "16MB", "47MB", "94MB"),
        "int4": ("",),
        "int3": ("",),
        "int2": ("",),
        "int8": ("",),
        "int4, offsets": ("",),
        "int3, offsets": ("",),
        "int2, offsets": ("",),
        "PQ (faiss)": ("22MB", "43MB"),
        "trimmed vocabulary": ("31MB", "94MB"),
        "RQ (faiss)": ("24MB",),
    }
    return {
        method: {size: [decoder_frontier_run("gemma3-270m", method, size)] for size in asked}
        for method, asked in sizes.items()
    }


def frontier_run(model: str, method: str, size: str, **changes: Any) -> Run:
    """One way to keep a model's table in so many bytes; with no size, in those that it takes."""
    settings = {
        "revision": REVISION, "model": model, "method": method, "size": size, "languages": list(TATOEBA),
        "rows": 200, "similarity": ["en"], "pairs": 500, **changes,
    }  # fmt: skip
    return Run("frontier", "frontier", settings)


def decoder_frontier_run(model: str, method: str, size: str, **changes: Any) -> Run:
    """The same for a decoder."""
    settings = {
        "revision": REVISION, "model": model, "method": method, "size": size, "languages": list(TATOEBA[:8]),
        "rows": 25, "tokens": 5_000, **changes,
    }  # fmt: skip
    return Run("frontier_decoder", "frontier", settings)
