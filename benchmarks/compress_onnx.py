"""A compressed encoder as ONNX, its linear layers in 4 bits: bytes of the file, and its tasks in ONNX Runtime."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ade.compression.compress import compress
from ade.integrations.onnx_compressed import INPUTS, POOLED, Q4, export_encoder
from ade.integrations.onnx_export import session_of
from ade.progress import Report
from ade.settings import CompressionSettings
from benchmarks.accuracy import Places
from benchmarks.compress import BATCH, MAX_TOKENS, PREFIX, source_measured, tasks
from benchmarks.records import Run
from benchmarks.vectors import Encode, by_length


def run_compress_onnx(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compress an encoder, export it, and measure the file and the model as it came."""
    settings = run.settings
    source = places.teachers / settings["model"]
    with tempfile.TemporaryDirectory() as work:
        packed, out = Path(work) / "packed", Path(work) / "onnx"
        made = compress(source, packed, CompressionSettings(**settings["compression"]), report=report)
        export_encoder(packed, out)
        before = source_measured(source, places, settings, report)
        after = tasks(encoder_of(out, PREFIX.get(settings["model"], "")), places, settings)
        nbytes = (out / Q4).stat().st_size
    weights = {"before": made.weights["before"], "after": nbytes}
    return {"table": made.table, "weights": weights, "before": before, "after": after}, {}


def encoder_of(folder: Path, prefix: str) -> Encode:
    """Return the function that makes the vectors of texts by the exported file."""
    session = session_of((folder / Q4).read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()

    def vectors_of(texts: list[str]) -> np.ndarray:
        rows = tokenizer.encode_batch([prefix + text for text in texts])
        arrays = (np.array([row.ids for row in rows]), np.array([row.attention_mask for row in rows]))
        return session.run([POOLED], dict(zip(INPUTS, arrays, strict=True)))[0]

    return lambda texts: by_length(texts, BATCH, vectors_of)
