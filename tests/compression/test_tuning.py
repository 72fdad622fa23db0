"""Tuning: outputs come closer to the original's, codes and exact rows stay."""

import pytest
import torch
import transformers

from ade.compression.coder import encode_table
from ade.compression.outputs import body_of, distance, padded
from ade.compression.tuning import Candidates, rows_from, tune
from ade.errors import InputError
from tests.compression.conftest import SHAPE as SMALL

SHAPE = SMALL | {"vocab_size": 400}
BART = {"vocab_size": 400, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32}
BART |= {"decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "scale_embedding": True}
CPU = torch.device("cpu")


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True)).eval()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("ade.compression.tuning.BATCH", 16)


@pytest.fixture
def texts():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 12, (64,), generator=generator).tolist()
    return [torch.randint(4, 400, (length,), generator=generator).tolist() for length in lengths]


def packed_table(model):
    weight = model.get_input_embeddings().weight.detach()
    return encode_table(weight, torch.ones(len(weight)), [0, 1, 2], 18_000)


def layers_of(model):
    body = body_of(model)
    return [module for module in body.modules() if isinstance(module, torch.nn.Embedding) and len(module.weight) == 400]


@torch.no_grad()
def states_of(model, table, texts):
    """Hidden states with the original table and with another one, and which tokens are real."""
    body, (ids, mask) = body_of(model), padded(texts, CPU)
    target = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    with rows_from(table, layers_of(model)):
        return body(input_ids=ids, attention_mask=mask.long()).last_hidden_state, target, mask


@pytest.mark.parametrize("kind", ["bert", "bart"])
def test_hidden_states_come_closer_and_the_model_is_as_before(kind, texts):
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SHAPE)) if kind == "bert" else None
    model = (model or transformers.BartModel(transformers.BartConfig(**BART))).eval()
    packed = packed_table(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tuned = tune(body_of(model), layers_of(model), packed, texts, None, 60)
    assert distance(*states_of(model, tuned, texts)) < 0.9 * distance(*states_of(model, packed, texts))

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    kept = [name for name in packed.state_dict() if name.startswith(("codes", "depths", "exact"))]
    assert all(torch.equal(packed.state_dict()[name], tuned.state_dict()[name]) for name in kept)


def test_next_token_distributions_come_closer(texts):
    model = llama()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)  # so that scores differ
    packed, weight = packed_table(model), model.get_input_embeddings().weight.detach()
    tuned = tune(body_of(model), layers_of(model), packed, texts, weight, 80)

    def divergence(table):
        states, target, mask = states_of(model, table, texts)
        wanted, scores = (target[mask] @ weight.T).log_softmax(1), table.scores(states[mask]).log_softmax(1)
        return float((wanted.exp() * (wanted - scores)).sum(1).mean())

    assert divergence(tuned) < 0.9 * divergence(packed)


def test_without_text_there_is_nothing_to_tune_with():
    model = llama()
    with pytest.raises(InputError, match="no text to tune with"):
        tune(body_of(model), layers_of(model), packed_table(model), [], None, 10)


def test_a_sample_stands_for_all_rows(texts, monkeypatch):
    """The logarithm of the sum over all tokens is that over the sample, on average."""
    every, added = Candidates(texts, 400, CPU).draw(3)  # a small vocabulary is compared as a whole
    assert every.tolist() == list(range(400))
    assert not added.any()

    monkeypatch.setattr("ade.compression.tuning.CANDIDATES", 64)
    scores = torch.randn(400, generator=torch.Generator().manual_seed(1))
    candidates = Candidates(texts, 400, CPU)
    assert len(candidates.always) == 32
    sums = []
    for step in range(200):
        tokens, added = candidates.draw(step)
        assert len(tokens) == len(set(tokens.tolist())) == 64
        sums.append((scores[tokens] + added).exp().sum())
    assert torch.isclose(torch.stack(sums).mean(), scores.exp().sum(), rtol=0.03)
    assert torch.equal(candidates.draw(7)[0], candidates.draw(7)[0])
    assert not torch.equal(candidates.draw(7)[0], candidates.draw(8)[0])
