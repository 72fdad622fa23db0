"""A whole encoder as a teacher: its output for each entry of its vocabulary, in place of the table at its input.

What an encoder makes of a token by itself is closer to the token's meaning than the input table, which the layers
above have yet to read, and compresses better. What it is worth: the table `few` of the benchmarks.
"""

from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from ade.errors import InputError
from ade.inference import quiet
from ade.predictor import around
from ade.progress import Report, silent
from ade.pursuit import resolve_device
from ade.teachers import CONTEXTUAL, Teacher, check_table, fit_rows, licence_of

BATCH = 1024


@torch.inference_mode()
def contextual_teacher(source: str | Path, device: str = "auto", report: Report = silent) -> Teacher:
    """The encoder in a folder or under a hub name (safetensors only, no remote code), asked about its vocabulary."""
    try:
        with quiet():
            model = AutoModel.from_pretrained(source, use_safetensors=True).eval().to(resolve_device(device))
            wrapped = AutoTokenizer.from_pretrained(source)
    except InputError:
        raise
    except Exception as error:  # whatever transformers and safetensors make of a foreign or broken folder
        raise InputError(f"{source}: not a readable encoder ({str(error).splitlines()[0]})") from None
    if not hasattr(wrapped, "backend_tokenizer") or not hasattr(model.config, "hidden_size"):
        raise InputError(f"{source}: not a text encoder with a fast tokenizer")
    tokenizer = wrapped.backend_tokenizer
    tokenizer.no_padding()
    tokenizer.no_truncation()
    before, after = (torch.tensor(ids, dtype=torch.long) for ids in around(tokenizer))
    count = len(model.get_input_embeddings().weight)
    table = torch.empty(count, model.config.hidden_size)  # (N, d)
    for start in range(0, count, BATCH):
        own = torch.arange(start, min(start + BATCH, count)).unsqueeze(1)
        ids = torch.cat([before.expand(len(own), -1), own, after.expand(len(own), -1)], 1).to(model.device)
        try:
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state  # (n, T, d)
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{source}: not a text encoder ({str(error).splitlines()[0]})") from None
        table[start : start + len(own)] = states.float().mean(1).cpu()
        report("vocabulary", start + len(own), count, {})
    check_table(table, source)
    table -= table.mean(0)  # what all outputs share says nothing about any of them
    path = Path(source)
    name = path.resolve().name if path.exists() else source
    return Teacher(f"{name}{CONTEXTUAL}", fit_rows(table, tokenizer), tokenizer, licence_of(path))
