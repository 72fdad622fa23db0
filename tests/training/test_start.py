"""Starting a classifier from an encoder: the same contextual vectors at first, packed or not, then trained."""

from dataclasses import replace

import pytest
import torch

from ade.codebook import Codebook
from ade.compression.coded_table import CodedTable
from ade.compression.distill_codes import distill_codes
from ade.distillation import distill
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.sentence_encoder import SentenceEncoder
from ade.sentence_model import AdeForSentenceEmbedding
from ade.settings import STRONG, Architecture, DistillationSettings
from ade.training.start import start_from
from ade.training.train import train


def saved(codebook: Codebook | CodedTable, out, layers: int = 1):
    """The folder of an encoder none of whose parameters is at its starting value."""
    shape = Architecture(attend="tokens", layers=layers, heads=2)
    model = AdeForSentenceEmbedding.from_codebook(codebook, (), shape, output_size=8, position_scale=0.3)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    SentenceEncoder(model, codebook.tokenizer).save(out)
    return out


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["", "30kB", "codes"])
def test_the_classifier_begins_with_the_vectors_of_the_encoder(layers, kind, teacher, tmp_path):
    if kind == "codes":
        codebook = distill_codes(teacher, 100_000)
    else:
        codebook = distill(teacher, DistillationSettings(anchors=10, pairs=3, size=kind))
    folder = saved(codebook, tmp_path / "encoder", layers)
    start = start_from(folder)
    training, shape = start.fitted(STRONG, Architecture())
    model = AdeForSequenceClassification.from_codebook(
        start.codebook, ["a", "b"], shape, position_scale=training.position_scale
    )
    missing, unknown = model.load_state_dict(start.weights, strict=False)
    assert not unknown
    assert {name for name in missing if not name.startswith(("ade.embedding.", "classifier."))} == set()

    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    with torch.inference_mode():
        found = model.eval().ade.states(ids, mask)[0]
        expected = SentenceEncoder.load(folder, "cpu").model.ade.states(ids, mask)[0]
    assert torch.allclose(found[mask], expected[mask], atol=1e-4)


def test_training_goes_on_from_there(codebook, topics, tmp_path):
    folder = saved(codebook, tmp_path / "encoder")
    made = train(topics, start=folder, steps=150, batch_size=16, learning_rate=5e-3, device="cpu", lexicon=False)
    assert made.model.config.attend == "tokens"
    assert made.model.config.position_scale == pytest.approx(0.3)
    assert made.model.config.about["dev"]["accuracy"] > 0.6


def test_one_source_of_the_codebook(codebook, topics, tmp_path):
    folder = saved(codebook, tmp_path / "encoder")
    for given in ({"teacher": "wordllama"}, {"codebook": codebook}, {"size": "2MB"}):
        with pytest.raises(InputError, match="--from takes"):
            train(topics, start=folder, **given)
    assert replace(STRONG, position_scale=0.3) == start_from(folder).fitted(STRONG, Architecture())[0]
