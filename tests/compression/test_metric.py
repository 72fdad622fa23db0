"""What counts of a row's error: directions that the model does not see count nothing."""

import torch
import transformers

from ade.compression.metric import input_metric
from tests.compression.test_compress import SHAPE


def test_an_error_that_the_first_norm_takes_away_counts_nothing() -> None:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SHAPE)).eval()
    layer = model.embeddings.word_embeddings
    before = layer.weight.detach().clone()
    texts = [torch.randint(4, 404, (length,)).tolist() for length in (3, 9, 5, 12) * 6]
    metric = input_metric(model, layer, texts)
    assert metric is not None
    values = torch.linalg.eigvalsh(metric)
    assert values.min() > -1e-3 * values.max()
    constant = torch.ones(32) / 32**0.5  # LayerNorm takes the mean off
    assert constant @ metric @ constant < 1e-4 * metric.trace() / 32
    assert torch.equal(layer.weight, before)
    assert not layer._forward_hooks
    assert input_metric(model, layer, []) is None
