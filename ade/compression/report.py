"""What compression costs: outputs of the model before and after, on text that was held back, by file or language."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ade.compression.source import body_of, is_decoder, mean_states, padded
from ade.compression.use import WITHOUT_SPACES
from ade.progress import Report, silent

TEXTS = 50  # held-back texts of a file or language
MAX_TOKENS = 128
BATCH = 16
SCORED = {"cpu": 128, "cuda": 4096}  # tokens of a decoder whose logits are computed at a time
SAMPLED = 8  # languages sampled where there is no text
WORDS = 12  # of a sampled text
HELD_BACK, MADE_UP, TABLE = "held-back text", "made-up text", "the table itself"  # what a loss is measured on
ROUGH = "Made-up text is words drawn by their frequencies, on which models often lose less than on real text."


@dataclass(frozen=True)
class CompressionReport:
    """Bytes and losses, before and after."""

    source: str
    table: dict[str, int]  # bytes: before, after
    weights: dict[str, int]
    folder: dict[str, int]
    measure: str  # what `loss` is
    loss: dict[str, float]  # percent, by file or language
    measured_on: str = HELD_BACK
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def mean_loss(self) -> float:
        """Mean loss over files or languages, in percent; NaN where there was no text."""
        return sum(self.loss.values()) / len(self.loss) if self.loss else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    def card(self) -> str:
        """Return the section of the model card."""
        rows = "\n".join(
            f"| {name} | {_size(pair['before'])} | {_size(pair['after'])} | {pair['before'] / pair['after']:.1f}x |"
            for name, pair in (("table", self.table), ("weights", self.weights), ("folder", self.folder))
        )
        losses = "\n".join(f"| {name} | {loss:.2f} |" for name, loss in self.loss.items())
        return (
            f"\n## Compressed table\n\nThe embedding table of {self.source}, packed by `ade compress`; everything else "
            "is unchanged. `import ade` before loading it.\n\n| | before | after | |\n| --- | ---: | ---: | ---: |\n"
            f"{rows}\n\n| {self.measured_on} | {self.measure}, percent |\n| --- | ---: |\n{losses}\n"
            + (f"\n{ROUGH}\n" if self.measured_on == MADE_UP else "")
        )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def measure_of(model: Any) -> str:
    """The name of what `losses` returns."""
    return "perplexity, increase" if is_decoder(model) else "1 - cosine of the mean hidden state"


@torch.inference_mode()
def outputs_of(
    model: Any, tokenizer: Any, domains: Mapping[str, Sequence[str]], report: Report = silent
) -> dict[str, Tensor]:
    """Return for each file or language what is compared: log-likelihoods of tokens, or mean hidden states."""
    found, device = {}, next(model.parameters()).device
    total, done = sum(len(texts) for texts in domains.values()), 0
    for name, texts in domains.items():
        parts = []
        for start in range(0, len(texts), BATCH):
            rows = [ids[:MAX_TOKENS] or [0] for ids in token_ids(tokenizer, texts[start : start + BATCH])]
            batch = padded(rows, device)
            parts.append(_likelihoods(model, *batch) if is_decoder(model) else mean_states(body_of(model), *batch))
            done += len(batch[0])
            report("measure", done, total, {})
        found[name] = torch.cat(parts).cpu()
    return found


def losses(model: Any, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the loss of each file or language in percent."""
    if is_decoder(model):
        return {name: 100 * math.expm1(float(before[name].mean() - after[name].mean())) for name in before}
    return {
        name: 100 * float(1 - torch.nn.functional.cosine_similarity(before[name], after[name]).mean())
        for name in before
    }


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts with the special tokens the model is used with, a decoder's start token among them."""
    rows = tokenizer(list(texts))["input_ids"]
    start = tokenizer.bos_token_id
    if start is None or tokenizer.cls_token_id is not None:
        return rows
    return [row if row[:1] == [start] else [start, *row] for row in rows]


def _likelihoods(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Log-likelihoods of all tokens but the first of each text: (n,)."""
    lengths = mask.sum(1).tolist()
    found: list[Tensor] = [torch.empty(0)] * len(lengths)
    for some in _groups(lengths, SCORED.get(ids.device.type, 128)):
        length = max(lengths[row] for row in some)
        tokens, real = ids[some, :length], mask[some, :length]
        scores = model(input_ids=tokens, attention_mask=real.long()).logits[:, :-1].float().log_softmax(2)
        likely = scores.gather(2, tokens[:, 1:, None])[..., 0]  # (B, L - 1)
        for row, own in zip(some, likely, strict=True):
            found[row] = own[: lengths[row] - 1]
    return torch.cat(found)


def _groups(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield rows of alike length, as many at a time as the logits of a large vocabulary have room for."""
    group: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if group and (len(group) + 1) * lengths[row] > most:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def sampled_texts(languages: Mapping[str, Mapping[str, float]], seed: int = 0) -> dict[str, list[str]]:
    """Return made-up texts of words drawn by frequency, for each language: what is measured where no text is given."""
    chooser = random.Random(seed)
    made = {}
    for language, words in languages.items():
        drawn = chooser.choices(list(words), list(words.values()), k=TEXTS * WORDS)
        space = "" if language in WITHOUT_SPACES else " "
        made[language] = [space.join(drawn[at : at + WORDS]) for at in range(0, len(drawn), WORDS)]
    return made
