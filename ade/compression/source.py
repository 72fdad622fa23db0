"""The model to compress: a Hugging Face folder, a hub name, or a folder with a GGUF file, which is converted first."""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ade.compression.folder import transformer_folder
from ade.errors import InputError, first_line
from ade.files import OWN_MODELS, kind_of, looks_like_hub_name
from ade.progress import quiet

WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "README.md", "LICENSE*", "*/config.json"]
DECODERS = ("ForCausalLM", "LMHeadModel")


@contextmanager
def source_folder(source: str | Path) -> Iterator[Path]:
    """Yield the folder of a model in Hugging Face's layout: downloaded or converted where it has to be."""
    path = Path(source)
    if path.is_dir() and kind_of(path).startswith(OWN_MODELS):
        raise InputError(f"{path}: an ADE model, whose table is small already; choose its size when you train it")
    if not path.is_dir():
        yield _download(str(source))
    elif (path / "config.json").exists() or (path / "modules.json").exists():
        yield path
    elif found := sorted(path.glob("*.gguf")):
        with TemporaryDirectory() as converted:
            _convert(path, found[0].name, Path(converted))
            yield Path(converted)
    else:
        raise InputError(f"{path}: holds neither a Hugging Face config.json nor a .gguf file")


def load_model(folder: Path) -> tuple[Any, Any]:
    """Load a model with the class its config names, and its tokenizer; safetensors only, never remote code."""
    import transformers

    folder = folder / transformer_folder(folder)
    try:
        named = json.loads((folder / "config.json").read_text("utf8")).get("architectures") or []
        kind = getattr(transformers, str(named[0]), None) if named else None
        kind = kind or transformers.AutoModel
        with quiet():
            model = kind.from_pretrained(folder, use_safetensors=True, trust_remote_code=False)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except InputError:
        raise
    except Exception as error:  # of any library: the folder is damaged or of another kind
        raise InputError(f"{folder}: not a model transformers can load ({first_line(error)})") from None
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise InputError(f"{folder}: needs a tokenizer with a tokenizer.json")
    return model.eval(), tokenizer


def is_decoder(model: Any) -> bool:
    """Whether the model predicts the next token."""
    return type(model).__name__.endswith(DECODERS)


def body_of(model: Any) -> Any:
    """Return the part of a model that gives hidden states."""
    if getattr(model.config, "is_encoder_decoder", False):
        return model.get_encoder()
    return model.base_model


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids and mask (B, L) of rows of ids."""
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    return ids.to(device), (torch.arange(longest) < lengths[:, None]).to(device)


def mean_states(body: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the mean hidden state of each text: (B, d), float32."""
    states = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    if not looks_like_hub_name(name):
        raise InputError(f"{name}: no such folder")
    try:
        return Path(snapshot_download(name, allow_patterns=WANTED))
    except Exception as error:
        raise InputError(f"{name}: neither a folder nor a reachable hub name ({first_line(error)})") from None


def _convert(folder: Path, file: str, out: Path) -> None:
    """Write a GGUF model as a Hugging Face folder in float16."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet(), redirect_stderr(io.StringIO()):  # its progress bar cannot be turned off
            model = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=file, dtype=torch.float16, trust_remote_code=False
            )
            AutoTokenizer.from_pretrained(folder, gguf_file=file, trust_remote_code=False).save_pretrained(out)
            model.hf_quantizer = None  # the weights are plain numbers now
            model.config.__dict__.pop("quantization_config", None)
            model.save_pretrained(out)
    except ImportError as error:
        raise InputError(f"{file}: reading GGUF needs: pip install gguf ({first_line(error)})") from None
    except Exception as error:
        raise InputError(f"{folder / file}: not a model transformers can convert ({first_line(error)})") from None
