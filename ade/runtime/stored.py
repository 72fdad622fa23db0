"""Read the config and the arrays of a model folder without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import deserialize

from ade.errors import InputError
from ade.files import MARKER
from ade.packing.format import check_finite

DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8,
}  # fmt: skip


def read_stored(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and arrays of a model folder; raises `InputError` for other models and for values that are not finite."""
    config = json.loads((folder / MARKER).read_text("utf8"))
    if config.get("model_type") != "ade":
        raise InputError(f"{folder}: not an ADE model (its model_type is {config.get('model_type')})")
    state = read_state(folder / "model.safetensors")
    check_finite(state)
    return config, state


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Every array of a safetensors file, bfloat16 as float32."""
    state = {}
    for name, entry in deserialize(path.read_bytes()):
        dtype, data = entry["dtype"], bytes(entry["data"])
        if dtype == "BF16":  # numpy has no such type; it is the upper half of a float32
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, DTYPES[dtype])
        state[name] = array.reshape(entry["shape"])
    return state
