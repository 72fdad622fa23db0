"""The device to run on, and in which types it is fast."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ade.errors import InputError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str) -> "torch.device":
    """Return the device of a name; `auto` is the GPU where there is one, else the CPU."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but no GPU is available; use 'auto' or 'cpu'")
    try:
        return torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device '{name}'; use auto, cpu or cuda") from None


def quickest_dtype(device: "torch.device") -> "torch.dtype":
    """Return bfloat16 where a device computes faster in it than in float32, for models that are only read."""
    import torch

    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    known = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return torch.bfloat16 if any(check is not None and check() for check in known) else torch.float32


@contextmanager
def tf32(device: "torch.device") -> Iterator[None]:
    """Multiply float32 matrices in TF32 meanwhile, on GPUs: several times as fast, 10 bits of each factor."""
    import torch

    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
