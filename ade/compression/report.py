"""What compression cost: bytes and losses, before and after, for Python, as JSON and for the model card."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

HELD_OUT, GENERATED = "held-out text", "generated text"  # what a loss is measured on
ROUGH = "Generated text is words drawn by their frequencies, on which models often lose less than on real text."


@dataclass(frozen=True)
class CompressionReport:
    """Bytes and losses, before and after."""

    source: str
    table: Mapping[str, int]  # bytes: before, after
    weights: Mapping[str, int]
    folder: Mapping[str, int]
    measure: str  # what `loss` is
    loss: Mapping[str, float]  # percent, by file or language
    measured_on: str = HELD_OUT
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mean_loss(self) -> float:
        """Mean loss over files or languages, in percent; NaN where there was no text."""
        return sum(self.loss.values()) / len(self.loss) if self.loss else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    def card(self) -> str:
        """Return the section of the model card."""
        lines = [
            "\n## Compressed table\n",
            f"The embedding table of {self.source}, packed by `ade compress`; everything else is unchanged. "
            "`import ade` before loading it.\n",
            "| | before | after | |\n| --- | ---: | ---: | ---: |",
        ]
        for name, size in (("table", self.table), ("weights", self.weights), ("folder", self.folder)):
            before, after = size["before"], size["after"]
            lines.append(f"| {name} | {before / 1e6:.1f} MB | {after / 1e6:.1f} MB | {before / after:.1f}x |")
        lines.append(f"\n| {self.measured_on} | {self.measure}, percent |\n| --- | ---: |")
        lines += [f"| {name} | {loss:.2f} |" for name, loss in self.loss.items()]
        lines += [f"\n{ROUGH}"] if self.measured_on == GENERATED else []
        return "\n".join([*lines, ""])
