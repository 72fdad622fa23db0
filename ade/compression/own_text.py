"""Text that a decoder writes itself: what it expects to read is what its rows are used for.

Each text goes on from the start token, or from a usual word of a language, by sampling from the model's own
distribution. It serves where there is no other text to count rows in and to tune a packed table with, or too little.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ade.compression.source import is_decoder
from ade.devices import tf32
from ade.errors import InputError
from ade.files import cache_folder, new_file
from ade.progress import Report, quiet, silent

NAME = "own text"  # among the files of a corpus
TOKENS = 64  # of a text, at most
BATCH = {"cpu": 64, "cuda": 4096}  # texts written at a time, fewer where memory does not suffice
EXPONENT = 0.5  # of a word's frequency: rare words begin texts too
LONGEST = 8  # tokens of a word that begins a text


def own_texts(
    model: Any,
    tokenizer: Any,
    count: int,
    words: Mapping[str, Mapping[str, float]] | None = None,
    seed: int = 0,
    report: Report = silent,
) -> list[str]:
    """Return the texts that a decoder writes in so many tries.

    With `words`, the frequencies of words by language, half of the texts begin with one, as many for each language.
    """
    return continued(model, tokenizer, beginnings(tokenizer, count, words or {}, seed), seed, report)


def continued(
    model: Any, tokenizer: Any, begun: Sequence[Sequence[int]], seed: int = 0, report: Report = silent
) -> list[str]:
    """Return how a decoder goes on after what texts begin with, ids or none, less empty texts; kept in the cache."""
    if not is_decoder(model):
        raise InputError("--own-texts is for models that predict the next token; give --tune FILE")
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise InputError("--own-texts: the tokenizer has no token that begins a text; give --tune FILE")
    rows = [[start, *ids] for ids in begun]
    path = cache_folder() / "own_texts" / f"{_key(model, rows, seed)}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_text("utf8"))
    found = [text for text in _written(model, tokenizer, rows, seed, report) if text.strip()]
    if not found:
        raise InputError("--own-texts: the model wrote nothing; give --tune FILE")
    with suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as draft:
            draft.write_text(json.dumps(found), "utf8")
    return found


def _written(model: Any, tokenizer: Any, begun: Sequence[list[int]], seed: int, report: Report) -> list[str]:
    """Return how the model goes on after what texts begin with, in the same order."""
    device = next(model.parameters()).device
    most, found, done = BATCH.get(device.type, BATCH["cpu"]), [""] * len(begun), 0
    torch.manual_seed(seed)
    todo = list(_alike(begun, most))
    while todo:
        places = todo.pop(0)
        try:
            made = _sampled(model, torch.tensor([begun[place] for place in places], device=device))
        except torch.cuda.OutOfMemoryError:
            if len(places) == 1:
                raise InputError("--own-texts: this GPU has too little memory for a single text") from None
            todo = [part for each in (places, *todo) for part in _halves(each, len(places))]
            continue
        for place, text in zip(places, tokenizer.batch_decode(made, skip_special_tokens=True), strict=True):
            found[place] = text
        done += len(places)
        report("write", done, len(begun), {})
    return found


@torch.inference_mode()
def _sampled(model: Any, ids: Tensor) -> Tensor:
    """Return how the model goes on after token ids (B, L), by sampling: (B, at most TOKENS)."""
    with quiet(), tf32(ids.device):
        return model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS - ids.shape[1],
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, num_beams=1,
            repetition_penalty=1.0, no_repeat_ngram_size=0, num_return_sequences=1, pad_token_id=int(ids[0, 0]),
        ).cpu()  # fmt: skip


def _halves(places: list[int], most: int) -> list[list[int]]:
    """Return places as they are, or in two parts where there are as many as were too many."""
    middle = len(places) // 2
    return [places] if len(places) < most else [places[:middle], places[middle:]]


def beginnings(tokenizer: Any, count: int, words: Mapping[str, Mapping[str, float]], seed: int) -> list[list[int]]:
    """Return the ids of what so many texts begin with: nothing, or half with nothing, half with words of languages."""
    chooser = random.Random(seed)
    found: list[list[int]] = [[] for _ in range(count)]
    for number, known in enumerate(words.values()):
        places = range(2 * number + 1, count, 2 * len(words))
        drawn = chooser.choices(list(known), [share**EXPONENT for share in known.values()], k=len(places))
        ids = tokenizer([word.capitalize() for word in drawn], add_special_tokens=False)["input_ids"] if drawn else []
        for place, row in zip(places, ids, strict=True):
            found[place] = row[:LONGEST]
    chooser.shuffle(found)  # every part of them has words of all languages
    return found


def _alike(rows: Sequence[Sequence[int]], most: int) -> Iterator[list[int]]:
    """Yield the places of equally long rows, so many at a time."""
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    batch: list[int] = []
    for place in order:
        if batch and (len(batch) == most or len(rows[batch[0]]) != len(rows[place])):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _key(model: Any, begun: Sequence[Sequence[int]], seed: int) -> str:
    """Return what the texts are found by again: the model's weights, what texts begin with, and the seed."""
    digest = hashlib.sha256(json.dumps([begun, seed, TOKENS]).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
