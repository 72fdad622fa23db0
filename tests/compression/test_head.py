"""The modules in place of an embedding and of an output layer, without a model around them."""

import copy

import pytest
import torch
from torch import nn

from ade.compression.head import PackedEmbedding, PackedHead, packed_module
from ade.errors import InputError
from tests.compression.conftest import DIM, ROWS

LINEAR = nn.Linear(DIM, ROWS)
IDS = torch.tensor([[0, 5, 300], [17, 2, 5]])


@pytest.fixture
def table(tables):
    return copy.deepcopy(tables[0])


@pytest.fixture
def rows(table):
    return table(torch.arange(ROWS))


def test_an_embedding_looks_rows_up_in_the_dtype_of_the_replaced_one(table, rows):
    assert torch.equal(PackedEmbedding(table, nn.Embedding(ROWS, DIM))(IDS), rows[IDS])
    half = PackedEmbedding(table, nn.Embedding(ROWS, DIM, dtype=torch.float16))
    assert torch.equal(half(IDS), rows[IDS].half())
    assert torch.equal(half.to(torch.bfloat16)(IDS), rows[IDS].bfloat16())
    assert half(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, DIM)


@pytest.mark.parametrize("shape", [(DIM,), (3, DIM), (2, 7, DIM), (0, DIM)])  # some by code, some by blocks
@pytest.mark.parametrize("bias", [True, False])
def test_a_head_multiplies_by_every_row(table, rows, shape, bias):
    replaced = nn.Linear(DIM, ROWS, bias)
    hidden = torch.randn(shape)
    logits = PackedHead(table, replaced)(hidden)
    expected = nn.functional.linear(hidden, rows, replaced.bias)
    assert logits.shape == (*shape[:-1], ROWS)
    assert torch.allclose(logits, expected, atol=1e-5)


def test_a_head_answers_in_the_dtype_of_its_input(table, rows):
    head = PackedHead(table, nn.Linear(DIM, ROWS)).to(torch.bfloat16)
    hidden = torch.randn(2, DIM).bfloat16()
    expected = (hidden.float() @ rows.T + head.bias.float()).bfloat16()
    assert head(hidden).dtype == torch.bfloat16
    assert torch.allclose(head(hidden).float(), expected.float(), atol=1e-2)


def test_gradients_reach_the_input_and_the_bias(table, rows):
    for count in (3, 20):
        head = PackedHead(table, nn.Linear(DIM, ROWS))
        hidden = torch.randn(count, DIM, requires_grad=True)
        wanted = torch.randn(count, ROWS)
        (head(hidden) * wanted).sum().backward()
        assert torch.allclose(hidden.grad, wanted @ rows, atol=1e-4)
        assert torch.allclose(head.bias.grad, wanted.sum(0), atol=1e-5)
        assert [name for name, _ in head.named_parameters()] == ["bias"]


def test_a_shared_table_is_saved_once_and_moved_with_its_owner(table):
    pair = nn.ModuleDict({"input": PackedEmbedding(table, nn.Embedding(ROWS, DIM))})
    pair["head"] = PackedHead(table, nn.Linear(DIM, ROWS), owned=False)
    assert {name.partition(".")[0] for name in pair.state_dict()} == {"input", "head"}
    assert [name for name in pair.state_dict() if name.startswith("head")] == ["head.bias"]
    pair.to("meta")
    assert pair["head"].packed.mean.is_meta


def test_rows_can_be_read_but_there_is_no_weight_and_it_says_what_to_do(table, rows):
    module = PackedEmbedding(table, nn.Embedding(ROWS, DIM))
    assert torch.allclose(module.weight[5, :], rows[5])  # what some models read of it
    for read in (lambda: module.weight.data, lambda: module.weight[2:], lambda: PackedHead(table, LINEAR).weight):
        with pytest.raises(AttributeError, match="change the original model"):
            read()
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = module.nothing_like_it


class Scaled(nn.Embedding):
    embed_scale = 3.0

    def forward(self, ids):
        return super().forward(ids) * self.embed_scale


class Normed(nn.Embedding):
    def forward(self, ids):
        return nn.functional.normalize(super().forward(ids), dim=-1)


def test_what_the_replaced_embedding_does_besides_is_done_or_refused(table, rows):
    assert torch.equal(PackedEmbedding(table, Scaled(ROWS, DIM))(IDS), rows[IDS] * 3)
    with pytest.raises(InputError, match="Normed does more than looking rows up"):
        PackedEmbedding(table, Normed(ROWS, DIM))
    with pytest.raises(InputError, match="max_norm"):
        PackedEmbedding(table, nn.Embedding(ROWS, DIM, max_norm=1.0))


def test_modules_that_cannot_be_replaced_are_named(table):
    with pytest.raises(InputError, match=r"here is Conv1d: only nn\.Embedding and nn\.Linear"):
        packed_module(table, nn.Conv1d(1, 1, 1), "here")
    with pytest.raises(InputError, match=f"here is 9 x {DIM}, the packed table {ROWS} x {DIM}"):
        packed_module(table, nn.Linear(DIM, 9), "here")
