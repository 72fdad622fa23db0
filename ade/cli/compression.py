"""`ade compress`: another model with its embedding table packed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ade.cli import display
from ade.cli.options import Json, Overwrite, flags_of, pick, show
from ade.settings import CompressionSettings

if TYPE_CHECKING:
    from ade.compression.report import CompressionReport


@flags_of(CompressionSettings, common=("size", "ratio", "head", "max_loss", "seed", "device"))
def compress(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model: a Hugging Face folder, one with a GGUF file, or a hub name.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder.", show_default=False)],
    corpus: Annotated[
        list[Path] | None,
        typer.Option(help="Text like that the model will read: says which rows are used. Give it once per file."),
    ] = None,
    tune: Annotated[
        list[Path] | None, typer.Option(help="Unlabelled text to tune the packed table with. Give it once per file.")
    ] = None,
    languages: Annotated[
        str,
        typer.Option(
            help="Without a corpus, languages to expect, as en,de,fi; by default those the tokenizer knows. "
            "With --own-texts, those whose words texts begin with."
        ),
    ] = "",
    as_json: Json = False,
    overwrite: Overwrite = False,
    **settings: Any,
) -> None:
    """Pack the embedding table of any Hugging Face model; everything else stays as it is.

    After 'import ade' the result loads like the original, with AutoModel, pipeline or SentenceTransformer.
    """
    from ade.compression.compress import compress as pack

    chosen = CompressionSettings(**pick(CompressionSettings, settings))
    named = [name.strip() for name in languages.split(",") if name.strip()]
    with display.progress() as report:
        result = pack(model, out, chosen, corpus or (), tune or (), named, overwrite, report)
    show({"model": str(out), **result.to_dict()}, as_json, lambda to: _print(to, out, result))


def _print(to: Console, out: Path, result: "CompressionReport") -> None:
    from ade.compression.report import MADE_UP, ROUGH

    sizes = display.plain_table(str(out), "before", "after", "")
    for name, pair in (("table", result.table), ("weights", result.weights), ("folder", result.folder)):
        before, after = pair["before"], pair["after"]
        sizes.add_row(name, display.size(before), display.size(after), f"{before / after:.1f}x")
    to.print(sizes)
    if not result.loss:
        return

    losses = display.plain_table(result.measured_on, f"{result.measure}, %")
    for name, loss in result.loss.items():
        losses.add_row(name, f"{loss:.2f}")
    if len(result.loss) > 1:
        losses.add_row("mean", f"{result.mean_loss:.2f}")
    to.print(losses)
    if result.measured_on == MADE_UP:
        to.print(f"{ROUGH} '--corpus FILE' measures on yours.", style="dim")
