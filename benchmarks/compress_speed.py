"""What a packed table costs or saves while a model runs: its speed beside the original's, in turn, and peak memory.

Encoders: texts a second. Decoders: tokens a second of greedy decoding. Memory is that of a process of its own that
loads the folder and runs it once, less what a process needs that only imports the libraries and loads the tokenizer.
All is computed in float32, as half precision is slow on a CPU.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ade.compression.compress import compress
from ade.compression.source import is_decoder, load_model, source_folder
from ade.progress import Report
from ade.settings import CompressionSettings
from benchmarks.accuracy import Places
from benchmarks.compress import PREFIX, embedded
from benchmarks.records import Run

REPEATS = 5
TEXTS, NEW_TOKENS = 256, 32
PROMPT = "The history of the city begins with"
MEMORY = """
import re, sys
import ade, torch
from pathlib import Path
from ade.compression.source import load_model
from transformers import AutoTokenizer
folder, run = Path(sys.argv[1]), sys.argv[2]
if run:
    model, tokenizer = load_model(folder)
    with torch.inference_mode():
        torch.nn.Module.float(model)(**tokenizer(run, return_tensors="pt", return_token_type_ids=False))
else:
    AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
"""  # not getrusage, whose maximum a process takes over from the one that has started it


def run_compress_speed(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compress a model, then time it and the original in turn, and measure the memory of each."""
    settings = run.settings
    with tempfile.TemporaryDirectory() as work, source_folder(places.teachers / settings["model"]) as source:
        packed = Path(work) / "model"
        compress(source, packed, CompressionSettings(**settings["compression"]), report=report)
        folders = {"original": source, "packed": packed}
        rates = rates_of(folders, settings["model"], places, report)
        base = memory_of(source, "")
        memory = {name: memory_of(folder) - base for name, folder in folders.items()}
    return {"per_second": rates, "peak_bytes": memory}, {}


def rates_of(folders: dict[str, Path], name: str, places: Places, report: Report) -> dict[str, float]:
    """Texts or tokens a second of models: medians, all in turn."""
    work = {which: _work(folder, name, places) for which, folder in folders.items()}
    taken: dict[str, list[float]] = {which: [] for which in work}
    for repeat in range(REPEATS + 1):  # the first is a warm-up
        for which, (once, _) in work.items():
            began = time.perf_counter()
            once()
            if repeat:
                taken[which].append(time.perf_counter() - began)
        report("rates", repeat + 1, REPEATS + 1, {})
    return {which: count / statistics.median(taken[which]) for which, (_, count) in work.items()}


def _work(folder: Path, name: str, places: Places) -> tuple[Callable[[], Any], int]:
    """What is timed, and how many texts or tokens that is."""
    model, tokenizer = load_model(folder)
    torch.nn.Module.float(model).eval()  # half precision is slow on a CPU
    if not is_decoder(model):
        texts = (places.data / "tatoeba" / "deu-eng.deu").read_text("utf8").splitlines()[:TEXTS]
        return lambda: embedded(model, tokenizer, texts, PREFIX.get(name, "")), len(texts)

    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    new = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    return lambda: model.generate(**inputs, **new, pad_token_id=0), NEW_TOKENS


def memory_of(folder: Path, text: str = PROMPT) -> int:
    """The peak memory of a process that loads a model and runs it on a text; with no text, the tokenizer alone."""
    done = subprocess.run([sys.executable, "-c", MEMORY, str(folder), text], check=True, capture_output=True, text=True)
    return int(done.stdout.splitlines()[-1])
