"""Text that a decoder writes itself: what it begins with, what it is found by again, and what is refused."""

import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import ade
from ade.compression.own_text import NAME, TOKENS, beginnings, continued, own_texts
from ade.compression.source import load_model
from ade.devices import tf32
from ade.errors import InputError
from ade.files import cache_folder

WORDS = [f"word{number}" for number in range(100)]
SHAPE = {
    "vocab_size": 104,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
ENGLISH, GERMAN = {"word1": 0.5, "word2": 0.1}, {"word9": 1.0}


def tokenizer_of(**names):
    ids = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    ids |= {word.capitalize(): ids.pop(word) for word in ("word1", "word2", "word9")}
    tokenizer = Tokenizer(models.WordLevel(ids, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", **names)


@pytest.fixture
def decoder(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True, bos_token_id=2, eos_token_id=3)
    model = transformers.LlamaForCausalLM(config).eval()
    tokenizer = tokenizer_of(pad_token="[PAD]", bos_token="[CLS]", eos_token="[SEP]")
    folder = tmp_path / "decoder"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_half_of_the_texts_begin_with_a_word_as_many_in_each_language():
    tokenizer = tokenizer_of(eos_token="[SEP]")
    found = [tuple(ids) for ids in beginnings(tokenizer, 90, {"en": ENGLISH, "de": GERMAN}, seed=0)]
    english = [tuple(tokenizer(word.capitalize())["input_ids"]) for word in ENGLISH]
    german = tuple(tokenizer("Word9")["input_ids"])
    assert found.count(()) == 45
    assert sum(ids in english for ids in found) == 23
    assert found.count(german) == 22
    assert {bool(ids) for ids in found[::2]} == {True, False}  # whatever part is held back has some of each


def test_texts_are_as_the_model_would_write_them(decoder):
    model, tokenizer = load_model(decoder)
    with torch.no_grad():
        model.model.norm.weight.zero_()  # all scores are 0
    few = own_texts(model, tokenizer, 200)
    tokens = [token for text in few for token in text.split()]
    shares = torch.bincount(torch.tensor(tokenizer.convert_tokens_to_ids(tokens)), minlength=104) / len(tokens)
    assert len(tokens) > 2_000
    assert shares[4:].min() > 0  # nothing is cut off
    assert shares[4:].max() < 0.03  # nor preferred


def test_texts_end_where_the_model_ends_them_or_after_so_many_tokens(decoder):
    model, tokenizer = load_model(decoder)
    found = own_texts(model, tokenizer, 100, {"en": ENGLISH})
    assert max(len(text.split()) for text in found) <= TOKENS
    assert not any("[SEP]" in text or "[CLS]" in text for text in found)
    assert sum(text.startswith("Word") for text in found) >= 50


def test_what_a_model_prefers_when_it_is_asked_changes_nothing(decoder):
    model, tokenizer = load_model(decoder)
    first = continued(model, tokenizer, [[5]] * 30, seed=3)
    for file in (cache_folder() / "own_texts").iterdir():
        file.unlink()
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.no_repeat_ngram_size = 1
    assert continued(model, tokenizer, [[5]] * 30, seed=3) == first


def test_texts_are_found_again_by_weights_words_and_seed(decoder, monkeypatch):
    model, tokenizer = load_model(decoder)
    first = own_texts(model, tokenizer, 20)
    assert own_texts(model, tokenizer, 20, seed=1) != first
    assert len(own_texts(model, tokenizer, 20, {"de": GERMAN})) > 0
    assert len(list((cache_folder() / "own_texts").iterdir())) == 3

    monkeypatch.setattr(model, "generate", None)  # written before
    assert own_texts(model, tokenizer, 20) == first
    monkeypatch.undo()
    monkeypatch.setenv("ADE_CACHE", str(decoder.parent / "cache"))
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    assert own_texts(model, tokenizer, 20) != first


def test_a_damaged_file_of_the_cache_is_written_again(decoder):
    model, tokenizer = load_model(decoder)
    first = own_texts(model, tokenizer, 20)
    (file,) = (cache_folder() / "own_texts").iterdir()
    file.write_bytes(file.read_bytes()[:20])
    assert own_texts(model, tokenizer, 20) == first
    assert json.loads(file.read_text("utf8")) == first


def test_what_cannot_write_is_refused(decoder):
    model, tokenizer = load_model(decoder)
    with pytest.raises(InputError, match="the tokenizer has no token that begins a text; give --tune FILE"):
        own_texts(model, tokenizer_of(), 4)
    encoder = transformers.BertModel(transformers.BertConfig(**SHAPE))
    with pytest.raises(InputError, match="models that predict the next token"):
        own_texts(encoder, tokenizer, 4)


def test_a_model_that_ends_every_text_at_once_is_refused(decoder):
    model, tokenizer = load_model(decoder)
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(104, 32))  # no longer tied
    with torch.no_grad():  # all states are the same, and the last token's score is far above the others'
        model.model.embed_tokens.weight.fill_(1.0)
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight[3] = 10.0
    with pytest.raises(InputError, match="the model wrote nothing"):
        own_texts(model, tokenizer, 8)


def test_compressed_and_tuned_with_its_own_text_alone(decoder, tmp_path):
    settings = ade.CompressionSettings(size="10KB", own_texts=200, tune_steps=20)
    stages: list[str] = []
    tuned = ade.compress(decoder, tmp_path / "tuned", settings, report=lambda stage, *_: stages.append(stage))
    assert list(tuned.loss) == [NAME]
    assert stages.count("tune") == 20
    assert stages.index("write") < stages.index("tune")
    assert (tmp_path / "tuned" / "model.safetensors").is_file()


def test_own_text_is_one_more_file_of_the_corpus(decoder, tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("\n".join(" ".join(WORDS[start : start + 8]) for start in range(10, 90)) + "\n", "utf8")
    found = ade.compress(decoder, tmp_path / "packed", ade.CompressionSettings(size="10KB", own_texts=50), [file])
    assert list(found.loss) == ["corpus.txt", NAME]


def test_a_table_alone_writes_no_text(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("one 1 2\ntwo 3 4\n", "utf8")
    with pytest.raises(InputError, match="--own-texts"):
        ade.compress(file, tmp_path / "packed", ade.CompressionSettings(own_texts=5))


def test_negative_counts_are_refused():
    with pytest.raises(InputError, match="own_texts"):
        ade.CompressionSettings(own_texts=-1)


def test_the_precision_of_products_is_put_back():
    before, found = torch.get_float32_matmul_precision(), []

    def stop():
        with tf32(torch.device("cuda")):
            found.append(torch.get_float32_matmul_precision())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stop()
    with tf32(torch.device("cpu")):
        found.append(torch.get_float32_matmul_precision())
    assert found == ["high", before]
    assert torch.get_float32_matmul_precision() == before


def test_where_memory_does_not_suffice_fewer_texts_are_written_at_a_time(decoder, monkeypatch):
    model, tokenizer = load_model(decoder)
    generate, sizes = model.generate, []

    def limited(input_ids, **rest):
        sizes.append(len(input_ids))
        if len(input_ids) > 5:
            raise torch.cuda.OutOfMemoryError
        return generate(input_ids=input_ids, **rest)

    monkeypatch.setattr(model, "generate", limited)
    assert len(continued(model, tokenizer, [[5]] * 20 + [[5, 6]] * 3)) == 23
    assert sizes == [20, 10, 5, 5, 5, 5, 3]
    monkeypatch.setattr(model, "generate", lambda **rest: limited(torch.zeros(9, 1)))
    with pytest.raises(InputError, match="too little memory"):
        continued(model, tokenizer, [[5, 7]] * 4)
