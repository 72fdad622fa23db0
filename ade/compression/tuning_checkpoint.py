"""Where tuning has come to, in the cache: the same command goes on there after it was stopped or killed."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ade.errors import InputError
from ade.files import cache_folder, new_file

MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam


class TuningCheckpoint:
    """Parameters, the optimizer's moments and the number of steps made, in one file named by what is tuned."""

    def __init__(self, key: str) -> None:
        self.path = cache_folder() / "tuning" / f"{key}.safetensors"

    @classmethod
    def of(
        cls, body: nn.Module, table: nn.Module, texts: Sequence[Sequence[int]], **settings: Any
    ) -> "TuningCheckpoint":
        """The checkpoint of a model, a packed table, texts and settings: found again by their content."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for module in (body, table):
            for name, value in sorted(module.state_dict().items()):
                digest.update(name.encode())
                digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        for ids in texts:
            digest.update(np.array([*ids, -1], np.int64).tobytes())
        return cls(digest.hexdigest()[:32])

    def save(self, step: int, average: float, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Adam) -> None:
        """Keep what the first `step` steps have led to; where the cache cannot be written, tuning goes on without."""
        arrays: dict[str, Tensor] = {"at": torch.tensor([step, average], dtype=torch.float64)}
        for number, parameter in enumerate(parameters):
            arrays[f"{number}.value"] = parameter.detach().contiguous()
            arrays |= {f"{number}.{name}": optimizer.state[parameter][name].contiguous() for name in MOMENTS}
        with suppress(OSError, InputError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(self.path) as draft:
                save_file(arrays, draft)

    @torch.no_grad()
    def restore(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Adam) -> tuple[int, float]:
        """Set parameters and moments to those kept; returns the steps made and the average loss, (0, 0.0) if none."""
        try:
            with safe_open(self.path, "pt") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step, average = arrays["at"].tolist()
            values = [arrays[f"{number}.value"] for number in range(len(parameters))]
            kept = [{name: arrays[f"{number}.{name}"] for name in MOMENTS} for number in range(len(parameters))]
        except (OSError, SafetensorError, KeyError, ValueError):  # none, or a damaged one: start anew
            return 0, 0.0
        for parameter, value, moments in zip(parameters, values, kept, strict=True):
            parameter.copy_(value)
            on_device = {name: array.to(parameter.device) for name, array in moments.items()}
            optimizer.state[parameter] = {"step": torch.tensor(float(step)), **on_device}
        return int(step), average

    def remove(self) -> None:
        """Forget it: tuning has ended."""
        with suppress(OSError):
            Path(self.path).unlink(missing_ok=True)
