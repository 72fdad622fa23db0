"""Make the frozen models with the code as it is now, and observe them: scores, contributions, vectors, sizes, output.

python -m tests.frozen.models     writes frozen.npz and frozen.json again, where a change is meant
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch

from ade.cli import main as cli
from ade.codebook import Codebook, CodedTable, Stage, Table, TableShape
from ade.coded_layer import PackedTable
from ade.compression.checkpoint import write_folder
from ade.compression.quantizer import replace_tables
from ade.compression.replacement import find_tables
from ade.configuration import CLASSIFIER, ENCODER, TAGGER, Config
from ade.data.tokens import tokenize
from ade.folder import Saved
from ade.lexicon import Lexicon
from ade.packing.format import Packing
from ade.trained_model import load
from tests.conftest import word_tokenizer
from tests.frozen import cases
from tests.frozen.cases import CASES, COMPRESSED, IDS, SENTENCES, TEXTS, WORDS, Case, Compressed

FOLDER = Path(__file__).parent
ARRAYS, OTHERS = FOLDER / "frozen.npz", FOLDER / "frozen.json"
KINDS = {"tags": TAGGER, "vectors": ENCODER}
PROBLEMS = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
    "tags": None,
    "vectors": None,
}
EXPLAINED = (0, 4)  # texts whose contributions are kept
Observed = tuple[dict[str, np.ndarray], dict[str, Any]]  # arrays, and what is no array


def shape_of(arrays: dict[str, np.ndarray], rows: int, dim: int) -> TableShape:
    """The shape of a coded table, from its plain arrays."""
    stages = []
    while f"codes_{len(stages)}" in arrays:
        codes, book = (arrays[f"{kind}_{len(stages)}"] for kind in ("codes", "book"))
        stages.append(Stage(book.shape[2], codes.shape[1], shared=len(book) == 1))
    return TableShape(rows, dim, len(arrays["exact"]), tuple(stages))


def packed_table(arrays: dict[str, np.ndarray], rows: int, dim: int) -> PackedTable:
    """A coded table as a layer."""
    table = PackedTable(shape_of(arrays, rows, dim))
    depths = torch.from_numpy(arrays["depths"])
    table.set_depths(depths, depths == 15)
    table.fill({name: torch.from_numpy(array) for name, array in arrays.items() if name != "depths"})
    return table


def table_of(case: Case) -> Table:
    """The table of a frozen model."""
    if not case.coded:
        packing = Packing(shared=cases.ANCHORS, fine=1) if case.packed else None
        return Codebook(**cases.pairs(case.name), packing=packing)
    layer = packed_table(cases.codes(case.name), len(WORDS), cases.DIM)
    return CodedTable(layer.shape, {name: array.numpy() for name, array in layer.state_dict().items()})


def write(case: Case, folder: Path) -> None:
    """Write the folder of a frozen model."""
    table = table_of(case)
    mean, deviation = cases.SCALE if case.task == "regression" else (0.0, 1.0)
    config = Config(
        kind=KINDS.get(case.task, CLASSIFIER),
        labels=() if case.task == "vectors" else case.labels,
        problem=PROBLEMS[case.task],
        attend=case.attend,
        sat=case.sat,
        layers=case.layers,
        positions=case.positions,
        position_scale=cases.POSITION_SCALE,
        pooling=case.pooling,
        heads=cases.HEADS,
        max_tokens=cases.MAX_TOKENS,
        output_size=case.outputs if case.task == "vectors" else 0,
        layer_bits=8 if case.packed or case.coded else 0,
        mean=mean,
        deviation=deviation,
    )
    lexicon = _lexicon(cases.lexicon(case.name)) if case.lexicon else None
    Saved(config, word_tokenizer(WORDS[2:]), table, cases.layers(case.name), lexicon).save(folder)  # type: ignore[arg-type]


def _lexicon(arrays: dict[str, np.ndarray]) -> Lexicon:
    scores = arrays["weights"][:, None] * arrays["anchors"][arrays["indices"]]
    return Lexicon(len(WORDS), arrays["keys"], arrays["idf"], scores, arrays["bias"]).rounded()


def observe(case: Case, folder: Path) -> Observed:
    """What a model folder gives: without torch where it can, with the files' sizes and what the commands print."""
    others: dict[str, Any] = {
        "bytes": {path.name: path.stat().st_size for path in sorted(folder.glob("*.safetensors"))},
        "printed": _printed(case, folder),
    }
    model = load(folder)
    if case.task == "vectors":
        return {"vectors": model.encode(TEXTS)}, others
    if case.task == "tags":
        others["tags"] = model.predict(SENTENCES)
        texts = tokenize(model.tokenizer, [TEXTS[0]], cases.MAX_TOKENS)
        return {"token_scores": model.backend.token_scores(texts)[1]}, others

    others["predictions"] = [prediction.label for prediction in model.predict(TEXTS)]
    arrays = {"scores": model.scores(TEXTS), "pooled": model.encode(TEXTS)}
    for i in EXPLAINED:
        explanation = model.explain(TEXTS[i])
        arrays[f"pooling_weights_{i}"] = np.array([word.pooling_weight for word in explanation.words])
        arrays[f"word_scores_{i}"] = np.array([word.pooled for word in explanation.words])
        arrays[f"lexicon_scores_{i}"] = np.array([word.lexicon for word in explanation.words])
    return arrays, others


def _printed(case: Case, folder: Path) -> dict[str, str]:
    """What a person reads; paths of this run are left out."""
    name = str(folder)
    lines = folder.parent / "texts.txt"
    lines.write_text("".join(f"{text}\n" for text in TEXTS), "utf8")
    commands = {"inspect": ["inspect", name, "bank"]} if not case.coded and case.task != "tags" else {}
    if case.task != "vectors":
        commands["predict"] = ["predict", name, str(lines)]
    if case.task in ("single", "multi", "regression"):
        commands["explain"] = ["predict", name, str(lines), "--explain"]
    return {verb: _run(words).replace(name, "MODEL") for verb, words in commands.items()}


def _run(words: list[str]) -> str:
    out, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["ade", *words]),
        mock.patch.dict("os.environ", {"COLUMNS": "100", "NO_COLOR": "1"}),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        status = 0
        try:
            cli.main()
        except SystemExit as stopped:
            status = int(stopped.code or 0)
    if status:
        raise RuntimeError(errors.getvalue())
    return out.getvalue()


def write_compressed(case: Compressed, folder: Path) -> None:
    """Write the folder of a language model whose table is coded; its source is beside it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {"vocab_size": case.rows, "hidden_size": case.dim, "tie_word_embeddings": case.tied, **case.settings}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.from_numpy(cases.normal(case.name, name, *parameter.shape, scale=0.2))
            parameter.copy_(drawn + ("norm" in name))
    source = folder.with_name("source")
    model.save_pretrained(source)

    found = find_tables(model)
    tables = {found.input: packed_table(cases.codes(case.name, case.rows, case.dim, 0.5), case.rows, case.dim)}
    if not case.tied:
        other = cases.codes(f"{case.name} head", case.rows, case.dim, 0.5)
        tables[str(found.head)] = packed_table(other, case.rows, case.dim)
    replace_tables(model, tables)
    write_folder(model, source, folder)


@torch.inference_mode()
def observe_compressed(folder: Path) -> Observed:
    """Scores of the next token, by transformers, of a few tokens and of many."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.from_numpy(IDS)
    arrays = {
        "rows": model.get_input_embeddings()(ids).numpy(),
        "scores": model(ids).logits.numpy(),
        "last_scores": model(ids[:, -1:]).logits.numpy(),
    }
    return arrays, {"bytes": {path.name: path.stat().st_size for path in sorted(folder.glob("*.safetensors"))}}


def observe_all() -> Observed:
    """Make every frozen model and observe it; names of arrays are `model/array`."""
    arrays: dict[str, np.ndarray] = {}
    others: dict[str, Any] = {}
    for name in (*CASES, *COMPRESSED):
        with TemporaryDirectory() as made:
            folder = Path(made) / "model"
            if name in CASES:
                write(CASES[name], folder)
                found, others[name] = observe(CASES[name], folder)
            else:
                write_compressed(COMPRESSED[name], folder)
                found, others[name] = observe_compressed(folder)
        arrays |= {f"{name}/{array}": values for array, values in found.items()}
    return arrays, others


def main() -> None:
    """Write what is frozen."""
    arrays, others = observe_all()
    np.savez_compressed(ARRAYS, **arrays)
    OTHERS.write_text(json.dumps(others, indent=1, ensure_ascii=False) + "\n", "utf8")


if __name__ == "__main__":
    main()
