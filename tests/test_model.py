import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from ade.classifier import Classifier
from ade.configuration import AdeConfig
from ade.errors import InputError
from ade.model import AdeForSequenceClassification, AdeForTokenClassification, AdeModel
from ade.settings import Architecture
from tests.conftest import ragged_codebook
from tests.test_paper import lively, small_model

IDS = torch.tensor([[3, 1, 5, 2], [4, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_a_reloaded_model_gives_the_same_answers(attend, tmp_path):
    model = small_model(attend)
    model.save_pretrained(tmp_path)
    for loaded in (
        AdeForSequenceClassification.from_pretrained(tmp_path),
        AutoModelForSequenceClassification.from_pretrained(tmp_path),
    ):
        assert torch.equal(loaded.eval()(IDS, MASK).logits, model(IDS, MASK).logits)
        assert loaded.config.id2label == {0: "a", 1: "b", 2: "c"}
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, AdeConfig)
    assert config.attend == attend


@pytest.mark.parametrize(
    "imports",
    [
        "import ade\nfrom transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline\nimport ade",
        "from transformers import AutoConfig\nimport ade\n"
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline",
        "import ade\nfrom transformers import pipeline, AutoTokenizer, AutoModelForSequenceClassification",
    ],
)
def test_auto_classes_know_us_whoever_is_imported_first(imports, tmp_path):
    """In a fresh process: a saved folder through the Auto classes and a pipeline."""
    Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer).save(tmp_path / "model")
    use = f"""
model = AutoModelForSequenceClassification.from_pretrained({str(tmp_path / "model")!r})
tokenizer = AutoTokenizer.from_pretrained({str(tmp_path / "model")!r})
found = pipeline("text-classification", model=model, tokenizer=tokenizer)("w0 w1")
print(type(model).__name__, found[0]["label"])
"""
    done = subprocess.run([sys.executable, "-c", imports + use], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    assert done.stdout.split()[0] == "AdeForSequenceClassification"
    assert done.stdout.split()[1] in "abc"


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_a_row_without_tokens_is_one_token_of_id_0(attend):
    """Whatever stands in the padding, and in training too: one such row must not spoil a batch."""
    model = small_model(attend)
    ids, mask = torch.tensor([[3, 1, 5, 2], [4, 4, 4, 4]]), torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    found = model(ids, mask).logits
    torch.testing.assert_close(found[1:], model(torch.tensor([[0]])).logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:1], model(ids[:1]).logits, rtol=1e-5, atol=1e-5)
    model.train()(ids, mask, labels=torch.tensor([0, 1])).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_token_dropout_never_takes_all_tokens_of_a_text_padded_on_the_left(attend):
    model = small_model(attend).train()
    model.config.token_dropout = 0.99
    ids, mask = torch.tensor([[0, 0, 3, 1]] * 64), torch.tensor([[0, 0, 1, 1]] * 64)
    for seed in range(5):
        torch.manual_seed(seed)
        visible = model.ade._drop_tokens(mask.bool())
        assert visible[:, 2].all()
        assert not visible[:, :2].any()
        assert not visible[:, 3].all()
    assert torch.isfinite(model(ids, mask).logits).all()


def test_tokens_of_a_row_without_any(tmp_path):
    """A vector a token asked for, none where there is none."""
    model = AdeForTokenClassification.from_codebook(ragged_codebook([1, 3, 2, 4, 1, 5]), "abc", Architecture(heads=2))
    assert model(torch.zeros(2, 0), torch.zeros(2, 0)).logits.shape == (2, 0, 3)
    found = model.eval()(IDS, torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]), labels=torch.full((2, 4), -100))
    assert torch.isfinite(found.logits).all()
    assert found.loss == 0


def test_auto_model_gives_token_vectors(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(base, AdeModel)
    states = base(IDS, MASK).last_hidden_state
    assert states.shape == (2, 4, 8)
    assert torch.equal(states, model.ade.states(IDS, MASK.bool())[0])


def test_a_model_folder_is_complete(tmp_path):
    model = small_model()
    Classifier(model, ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer).save(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer("w0 w3 zzz")["input_ids"] == [2, 5, 1]
    assert tokenizer.pad_token == "[PAD]"
    batch = tokenizer(["w0 w1", "w2"], padding=True, return_tensors="pt")
    logits = model(batch["input_ids"], batch["attention_mask"]).logits
    again = model(torch.tensor([[4]])).logits
    torch.testing.assert_close(logits[1:], again, rtol=1e-5, atol=1e-5)


@given(
    counts=st.lists(st.integers(1, 12), min_size=3, max_size=10),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    attend=st.sampled_from(["tokens", "anchors", "gated"]),
)
def test_ragged_codebooks_and_texts_one_by_one(counts, lengths, attend):
    model = lively(
        AdeForSequenceClassification.from_codebook(ragged_codebook(counts), "ab", Architecture(attend=attend, heads=2))
    ).double()
    ids = torch.randint(len(counts), (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(sum(counts)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    together = model(ids, mask).logits
    alone = torch.cat([model(row[:length].unsqueeze(0)).logits for row, length in zip(ids, lengths, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-8)


def test_sat_off_has_no_context():
    """Without SAT a token's vector does not depend on its neighbours; with SAT it does."""
    for sat in (True, False):
        model = small_model(sat=sat)
        first = model.ade(torch.tensor([[3, 1]])).last_hidden_state[0, 0]
        second = model.ade(torch.tensor([[3, 5]])).last_hidden_state[0, 0]
        assert torch.equal(first, second) is not sat


def test_gating_all_anchors_or_only_a_tokens_own_is_the_same(monkeypatch):
    model = small_model("gated").double()
    pull = torch.randn(2, 3, dtype=torch.float64)
    results = []
    for limit in (10_000, 0):
        monkeypatch.setattr("ade.model.DENSE_ANCHORS", limit)
        logits = model(IDS, MASK).logits
        results.append((logits, *torch.autograd.grad((logits * pull).sum(), list(model.ade.embedding.parameters()))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_a_model_in_bfloat16_gives_nearly_the_same(attend):
    model = small_model(attend)
    expected = model(IDS, MASK).logits
    found = model.to(torch.bfloat16)(IDS, MASK).logits
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()


def test_mean_pooling_listens_to_all_alike():
    architecture = Architecture(sat=False, positions="none", pooling="mean", heads=2)
    model = lively(AdeForSequenceClassification.from_codebook(ragged_codebook([1, 3, 2]), "ab", architecture))
    rows = model.ade.norm(model.ade.embedding.compose(torch.tensor([2, 0, 2])))
    expected = model.classifier(rows.mean(0))
    found = model(torch.tensor([[2, 0, 2, 1]]), torch.tensor([[1, 1, 1, 0]])).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_positions_tell_order():
    for positions, differs in (("grouped", True), ("none", False)):
        model = small_model(positions=positions)
        first, second = model(torch.tensor([[3, 1, 5]])).logits, model(torch.tensor([[5, 1, 3]])).logits
        assert (not torch.allclose(first, second, atol=1e-5)) is differs


def test_grouped_positions_are_not_the_same_as_one_each():
    grouped, each = small_model("anchors"), small_model("anchors", positions="each")
    each.load_state_dict(grouped.state_dict())
    assert not torch.allclose(grouped(IDS, MASK).logits, each(IDS, MASK).logits, atol=1e-3)


def test_token_dropout_hides_tokens_only_while_training():
    model = small_model()
    model.config.token_dropout, model.ade.dropout.p, model.dropout.p = 0.9, 0.0, 0.0
    torch.manual_seed(0)
    draws = [model.train()(IDS, MASK).logits for _ in range(20)]
    assert len({tuple(draw[0].tolist()) for draw in draws}) > 3
    assert len({tuple(draw[1].tolist()) for draw in draws}) == 1  # a text of one token keeps it
    model.eval()
    assert torch.equal(model(IDS, MASK).logits, model(IDS, MASK).logits)


def test_the_loss_is_cross_entropy():
    model = small_model()
    labels = torch.tensor([2, 0])
    output = model(IDS, MASK, labels)
    assert output.loss.item() == pytest.approx(-output.logits.log_softmax(1)[[0, 1], labels].mean().item(), rel=1e-5)


def test_impossible_shapes_are_refused():
    with pytest.raises(InputError, match="dimension 8 is not divisible by 3 heads"):
        AdeForSequenceClassification.from_codebook(ragged_codebook([1, 1]), "ab", Architecture(heads=3))
    with pytest.raises(InputError, match="attend must be one of"):
        AdeConfig(attend="letters")
    with pytest.raises(InputError, match="positions must be one of"):
        AdeConfig(positions="some")


def test_weights_on_disk_are_the_sparse_record(tmp_path):
    """No dense table hides in the file: indices in two bytes, counts in one."""
    model = AdeForSequenceClassification.from_codebook(ragged_codebook([4] * 3000, anchors=50, dim=16), "ab")
    model.save_pretrained(tmp_path)
    sparse = 3000 * 4 * (2 + 4) + 3000 + 50 * 16 * 4
    dense_parts = 4 * (4 * (16 * 16 + 16) + 2 * 16 + 17 + 34)
    assert (tmp_path / "model.safetensors").stat().st_size < 1.05 * (sparse + dense_parts)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "ade"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_the_gpu_agrees_with_the_cpu(attend):
    model = small_model(attend)
    expected = model(IDS, MASK).logits
    found = model.cuda()(IDS.cuda(), MASK.cuda()).logits.cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def noisy(attend: str) -> AdeForSequenceClassification:
    """A wide model whose SAT adds nothing, so that states are the elements themselves; all dropout is 1/2."""
    shape = Architecture(attend=attend, heads=2)
    model = lively(
        AdeForSequenceClassification.from_codebook(ragged_codebook([1, 3, 2, 4] * 4, dim=64), "ab", shape, dropout=0.5)
    )
    torch.nn.init.zeros_(model.ade.sat.output.weight)
    torch.nn.init.zeros_(model.ade.sat.output.bias)
    return model


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_dropout_zeroes_half_of_the_features_and_doubles_the_rest_only_while_training(attend):
    model, ids = noisy(attend), torch.arange(16).view(2, 8)
    mask = torch.ones_like(ids, dtype=torch.bool)
    whole, real = model.ade.eval().states(ids, mask)
    assert (whole[real] != 0).all()
    dropped = model.ade.train().states(ids, mask)[0][real]
    gone = dropped == 0
    assert 0.4 < float(gone.float().mean()) < 0.6
    torch.testing.assert_close(dropped[~gone], 2 * whole[real][~gone])


@pytest.mark.parametrize("head", [AdeForSequenceClassification, AdeForTokenClassification])
def test_dropout_before_the_classifier_zeroes_half_of_its_input_only_while_training(head):
    model = lively(head.from_codebook(ragged_codebook([1, 3, 2, 4] * 4, dim=64), "ab", dropout=0.5))
    seen = []
    model.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    ids = torch.arange(16).view(16, 1)
    model(ids)
    model.dropout.train()  # this one alone
    model(ids)
    gone = seen[1] == 0
    assert (seen[0] != 0).all()
    assert 0.4 < float(gone.float().mean()) < 0.6
    torch.testing.assert_close(seen[1][~gone], 2 * seen[0][~gone])


def test_a_token_of_the_expanded_sequence_is_the_mean_of_its_anchors():
    """Tokens 3 and 0 have four anchors and one; a token that is hidden has none, and a vector of zeros."""
    model = small_model("anchors").ade
    ids, mask = torch.tensor([[3, 0, 5]]), torch.tensor([[True, True, False]])
    states, there = model.states(ids, mask)
    assert there.tolist() == [[True] * 5]
    expected = torch.stack([states[0, :4].mean(0), states[0, 4], torch.zeros(8)])
    torch.testing.assert_close(model.token_states(ids, mask)[0], expected)


def test_the_attention_that_is_shown_is_the_one_the_forward_pass_uses():
    sat = small_model().ade.sat
    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(2))
    shown, value = sat.attention(x, MASK.bool()), sat._split(x)[2]
    made = sat.output((shown @ value).transpose(1, 2).reshape(x.shape))
    torch.testing.assert_close(made, sat(x, MASK.bool()), rtol=1e-5, atol=1e-5)
