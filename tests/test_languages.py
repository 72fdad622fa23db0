"""German, Chinese, Arabic and emoji: trained on and predicted, and the page about them says what is so."""

import re
from pathlib import Path

import pytest

import ade
from ade.data.tokens import unknown_share
from ade.teachers import DEFAULT_TEACHER, load_teacher

PAGE = (Path(__file__).parent.parent / "docs" / "languages.md").read_text("utf8")
TABLE = re.findall(r"^\| (\w+) \| (.+) \| (\d+) \| (\d+)% \|$", PAGE, re.MULTILINE)
REVIEWS = {
    "German": (["Der Akku ist großartig", "Die Kamera ist schön"], ["Der Akku ist schwach", "Die Kamera ist mäßig"]),
    "Chinese": (["电池非常好", "相机很好"], ["电池很差", "相机太差"]),
    "Arabic": (["البطارية رائعة", "الكاميرا جميلة"], ["البطارية ضعيفة", "الكاميرا سيئة"]),
    "emoji": (["😀 🎉", "👍🏽 ❤️"], ["😡 👎", "💔 🤮"]),
}


@pytest.fixture(scope="module")
def embedded():
    return load_teacher(DEFAULT_TEACHER)


@pytest.fixture(scope="module")
def small(embedded):
    return ade.distill(embedded, ade.DistillationSettings(anchors=20, pairs=2))


def test_the_page_shows_every_language_it_speaks_of():
    assert {*REVIEWS, "English"} <= {language for language, *_ in TABLE}


@pytest.mark.parametrize(("language", "text", "tokens", "share"), TABLE)
def test_what_the_page_says_of_a_language(language, text, tokens, share):
    tokenizer = ade.load("english").tokenizer
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) == int(tokens)
    assert round(100 * unknown_share(tokenizer, [text])) == int(share)


@pytest.mark.parametrize("language", REVIEWS)
def test_a_model_of_a_language_predicts_and_explains(language, embedded, small, tmp_path):
    good, bad = REVIEWS[language]
    texts, labels = [*good, *bad] * 20, ["gut 👍", "schlecht"]
    chosen = {"steps": 60, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "progress": False}
    model = ade.train(texts, [labels[text in bad] for text in texts], start=small, **chosen)
    model.save(tmp_path / "model")

    loaded = ade.load(tmp_path / "model")
    assert [each.label for each in loaded.predict([*good, *bad])] == [labels[0]] * 2 + [labels[1]] * 2
    assert loaded.explain(bad[0]).label == "schlecht"
    assert (unknown_share(loaded.tokenizer, texts) > 0.2) is (language in ("Chinese", "emoji"))
    assert unknown_share(loaded.tokenizer, [good[0]]) == unknown_share(embedded.tokenizer, [good[0]])
