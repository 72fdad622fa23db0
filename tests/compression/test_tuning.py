"""Tuning: outputs come closer to the original's, codes and whole rows stay, and the model is left as it was."""

import pytest
import torch
import transformers

from ade.compression.coder import CoderSettings, encode_table
from ade.compression.source import body_of, padded
from ade.compression.trainable import TrainableTable
from ade.compression.tuning import Candidates, Swap, TuningSettings, distance, tune
from ade.compression.tuning_checkpoint import TuningCheckpoint
from ade.errors import InputError

SHAPE = {
    "vocab_size": 400,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
CPU = torch.device("cpu")


@pytest.fixture(params=["bert", "llama", "bart"])
def model(request):
    if request.param == "bert":
        return transformers.BertModel(transformers.BertConfig(**SHAPE)).eval()
    if request.param == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True)).eval()
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.BartConfig(
        vocab_size=400, d_model=32, encoder_ffn_dim=32, decoder_ffn_dim=32, scale_embedding=True, **layers
    )
    return transformers.BartModel(config).eval()


@pytest.fixture
def texts():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 12, (64,), generator=generator).tolist()
    return [torch.randint(4, 400, (length,), generator=generator).tolist() for length in lengths]


def packed_table(model):
    weight = model.get_input_embeddings().weight.detach()
    return encode_table(weight, torch.ones(len(weight)), [0, 1, 2], CoderSettings(18_000))


def layers_of(model):
    body = body_of(model)
    return [module for module in body.modules() if isinstance(module, torch.nn.Embedding) and len(module.weight) == 400]


@torch.no_grad()
def distance_of(model, table, texts):
    """How far hidden states with a packed table are from those with the original one."""
    body, (ids, mask) = body_of(model), padded(texts, CPU)
    swap = Swap(layers_of(model), table)
    target = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    swap.active = True
    found = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    swap.remove()
    return float(distance(found, target, mask))


def test_hidden_states_come_closer_and_the_model_is_as_before(model, texts):
    packed = packed_table(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learning = [parameter.requires_grad for parameter in model.parameters()]
    tuned = tune(body_of(model), layers_of(model), packed, texts, None, TuningSettings(steps=60, batch=16))
    assert distance_of(model, tuned, texts) < 0.9 * distance_of(model, packed, texts)

    assert [parameter.requires_grad for parameter in model.parameters()] == learning
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    kept = [name for name in packed.state_dict() if name.startswith(("codes", "depths", "exact"))]
    assert all(torch.equal(packed.state_dict()[name], tuned.state_dict()[name]) for name in kept)
    assert tuned.shape == packed.shape


def test_next_token_distributions_come_closer(texts):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True)).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)  # so that scores differ
    packed, weight = packed_table(model), model.get_input_embeddings().weight.detach()
    tuned = tune(body_of(model), layers_of(model), packed, texts, weight, TuningSettings(steps=80, batch=16))

    def divergence(table):
        body, (ids, mask) = body_of(model), padded(texts, CPU)
        swap = Swap(layers_of(model), table)
        with torch.no_grad():
            wanted = (body(input_ids=ids, attention_mask=mask.long()).last_hidden_state[mask] @ weight.T).log_softmax(1)
            swap.active = True
            found = table.scores(body(input_ids=ids, attention_mask=mask.long()).last_hidden_state[mask])
        swap.remove()
        return float((wanted.exp() * (wanted - found.log_softmax(1))).sum(1).mean())

    assert divergence(tuned) < 0.9 * divergence(packed)


def test_a_table_that_was_not_trained_comes_back_as_it_was(model):
    packed = packed_table(model)
    again = TrainableTable.of(packed).packed()
    rows = torch.arange(400)
    assert torch.allclose(again(rows), packed(rows), atol=1e-6)


def test_without_text_there_is_nothing_to_tune_with(model):
    with pytest.raises(InputError, match="no text to tune with"):
        tune(body_of(model), layers_of(model), packed_table(model), [], None, TuningSettings())


class Stopped(Exception):
    """What stops tuning in a test."""


@pytest.mark.parametrize("damaged", [False, True])
def test_tuning_that_was_stopped_goes_on_where_it_was(model, texts, monkeypatch, tmp_path, damaged):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path))
    monkeypatch.setattr("ade.compression.tuning.SAVED_EVERY", 0.0)
    packed, steps = packed_table(model), TuningSettings(steps=30, batch=8)
    seen: list[int] = []

    def run(stop_at=None):
        def report(what, done, total, metrics):
            seen.append(done)
            if done == stop_at:
                raise Stopped

        return tune(body_of(model), layers_of(model), packed, texts, None, steps, report)

    whole = run()
    assert list(tmp_path.rglob("*.safetensors")) == []
    with pytest.raises(Stopped):
        run(stop_at=12)
    (kept,) = tmp_path.rglob("*.safetensors")
    if damaged:
        kept.write_bytes(kept.read_bytes()[:100])
    seen.clear()
    again = run()
    assert seen[0] == (1 if damaged else 13)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in whole.state_dict().items())
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_what_was_tuned_with_other_text_or_settings_is_not_gone_on_with(model, texts):
    packed = packed_table(model)
    paths = {
        TuningCheckpoint.of(body_of(model), packed, rows, steps=steps).path
        for rows in (texts, texts[1:])
        for steps in (1, 2)
    }
    assert len(paths) == 4
    with torch.no_grad():
        next(body_of(model).parameters())[0] += 1
    assert TuningCheckpoint.of(body_of(model), packed, texts, steps=1).path not in paths


def test_a_sample_stands_for_all_rows(texts, monkeypatch):
    """The logarithm of the sum over all tokens is that over the drawn ones, on average."""
    monkeypatch.setattr("ade.compression.tuning.CANDIDATES", 64)
    scores = torch.randn(400, generator=torch.Generator().manual_seed(1))
    candidates = Candidates(texts, 400, 0, CPU)
    assert len(candidates.always) == 32
    sums = []
    for step in range(200):
        tokens, added = candidates.draw(step)
        assert len(tokens) == len(set(tokens.tolist())) == 64
        sums.append((scores[tokens] + added).exp().sum())
    assert torch.isclose(torch.stack(sums).mean(), scores.exp().sum(), rtol=0.03)
    assert torch.equal(candidates.draw(7)[0], candidates.draw(7)[0])  # the same after a stop
    assert not torch.equal(candidates.draw(7)[0], candidates.draw(8)[0])


def test_a_small_vocabulary_is_compared_whole(texts):
    tokens, added = Candidates(texts, 400, 0, CPU).draw(3)
    assert tokens.tolist() == list(range(400))
    assert not added.any()
