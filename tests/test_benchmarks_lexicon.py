"""The measurements around the lexicon: what it costs, training it with the model, and long texts."""

import csv
import gzip
import shutil

import numpy as np
import pytest

from ade.data.batches import encode
from ade.lexicon import Lexicon
from ade.settings import Architecture, TrainingSettings
from ade.training.loop import fit_model
from benchmarks import lexicon_costs, man_pages, readings, records, sections
from benchmarks.accuracy import codebook_for, load_rows
from benchmarks.book import Book
from benchmarks.joint import TrainedLexicon
from benchmarks.records import ALL, FIRST, Run
from benchmarks.reproduce import plan, reproduce
from benchmarks.tables import TABLES, distillation_of, runs_of
from benchmarks.windows import readings as scores_by_reading

SMALL = {**distillation_of(16), "rounds": 1}


def small(run, training=None, **settings):
    """The run with a small codebook and few steps."""
    short = {**run.settings["training"], "steps": 10, "batch_size": 16, **(training or {})}
    return Run(run.table, run.kind, {**run.settings, "training": short, "distillation": SMALL, **settings})


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(lexicon_costs, "PAUSE", 0.0)


def test_what_the_lexicon_costs_is_recorded(places, tmp_path, no_pause):
    asked = TABLES["lexicon"]()["gated"]
    runs = [small(asked["fit"][0], fits={"cpu": 2}), small(asked["rates"][0])]
    assert reproduce(runs, places, tmp_path / "results") == []
    fit, rates = (record["figures"] for record in records.load(tmp_path / "results"))

    for way in ("with", "without"):
        assert len(fit[way]["each"]) == 2
        assert fit[way]["steps"] == [10, 10]
        assert fit[way]["seconds"] == pytest.approx(np.mean(fit[way]["each"]))  # the median of two
    assert fit["ratio"] == pytest.approx(fit["with"]["seconds"] / fit["without"]["seconds"])
    assert rates["entries"] > 0
    assert rates["with"]["texts"] == 80
    for name, ratio in rates["ratios"].items():
        assert ratio == pytest.approx(rates["with"][name] / rates["without"][name])
    assert set(rates["ratios"]) == {"texts_per_second", "cold_texts_per_second"}


def record_of(run, figures, device="cpu"):
    return {"key": run.key, "kind": run.kind, "settings": run.settings, "jobs": 1, "figures": figures,
        "device": {"kind": device, "name": f"a {device}"}}  # fmt: skip


def test_costs_are_drawn_and_checked_by_device():
    asked = TABLES["lexicon"]()
    rate = {"texts_per_second": 100.0, "cold_texts_per_second": 50.0}
    on_cpu = {"with": {name: 0.8 * value for name, value in rate.items()}, "without": rate}
    on_cpu["ratios"] = dict.fromkeys(rate, 0.8)
    on_gpu = {"with": {"32": {"ms": 0.3}}, "without": {"32": {"ms": 0.15}}, "length": 128, "ratios": {"32": 2.0}}
    fit = {"with": {"seconds": 14.5}, "without": {"seconds": 10.0}, "ratio": 1.45}
    found = []
    for row in asked.values():
        found += [record_of(row["rates"][0], on_cpu), record_of(row["rates"][0], on_gpu, "cuda")]
        found.append(record_of(row["fit"][0], fit, "cuda"))
    drawn = sections.lexicon(Book(found))
    assert "| gated, fit | a cuda | 10.0 s | 14.5 s | 1.45 |" in drawn
    assert "| tokens, texts/s, cold | a cpu | 50 | 40 | 0.80 |" in drawn
    assert "| tokens, batch of 32 x 128 | a cuda | 0.150 ms | 0.300 ms | 2.00 |" in drawn

    assert [line for line in readings.untrue(Book(found))[0] if line.startswith("lexicon")] == [
        "lexicon: the records contradict 'On a GPU a batch takes at most 1.5 times as long.'"
    ]
    only_cpu = Book([record for record in found if record["device"]["kind"] == "cpu"])
    text = readings.text("lexicon", only_cpu)
    assert "75% of the rate" in text
    assert "1.5 times" not in text
    assert "1.2 times" not in text


def test_the_sentence_about_fits_follows_their_records():
    """It names the target that is missed, so records that reach it contradict it as much as slower ones do."""
    for seconds, wrong in ((14.5, 0), (11.0, 1), (17.0, 1)):
        fit = {"with": {"seconds": seconds}, "without": {"seconds": 10.0}, "ratio": seconds / 10}
        found = [record_of(row["fit"][0], fit, "cuda") for row in TABLES["lexicon"]().values()]
        assert sum(line.startswith("lexicon") for line in readings.untrue(Book(found))[0]) == wrong


def test_times_of_the_lexicon_belong_to_their_device(tmp_path):
    (run,) = TABLES["lexicon"]()["gated"]["rates"]
    records.append(run, {}, {"device": {"kind": "cpu"}, "seconds": 1.0}, tmp_path)
    assert run.key not in {each.key for each in plan("lexicon", "cpu", False, tmp_path)[0]}
    assert run.key in {each.key for each in plan("lexicon", "cuda", False, tmp_path)[0]}


def test_a_lexicon_is_trained_with_the_model(places, tmp_path):
    row = TABLES["accuracy"]()
    assert [data for data in row if row[data]["joint"]] == ["ag_news", "banking77"]
    run = small(row["ag_news"]["joint"][0], {"steps": 60, "learning_rate": 0.01})
    assert reproduce([run], places, tmp_path / "results") == []
    figures = records.load(tmp_path / "results")[0]["figures"]
    assert figures["accuracy"] > 0.6
    assert figures["entries"] > 10
    tried = figures["validation_accuracy"]
    assert set(tried) == {"1.0", "10.0"}
    assert tried[str(figures["rate"])] == max(tried.values())


def test_a_trained_lexicon_scores_as_a_fitted_one():
    """The layer with parameters gives what the lexicon of the same scores gives, and its gradient reaches them."""
    import torch

    generator = np.random.default_rng(0)
    keys = np.array([1, 2, 4, 5 * (1 + 1) + 2])  # three tokens and the bigram (1, 2), of five tokens in all
    idf, weight = generator.random(4, np.float32) + 1, generator.normal(size=(4, 3)).astype(np.float32)
    fitted = Lexicon(5, keys, idf, 10 * weight, np.zeros(3, np.float32))
    layer = TrainedLexicon(fitted, 10.0, torch.device("cpu"))
    ids = torch.tensor([[1, 2, 1, 3], [4, 4, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    assert (layer(ids, mask) == 0).all()

    layer.scores.data = torch.from_numpy(weight)
    expected = fitted.logits(np.array([1, 2, 1, 3, 4, 4], np.int32), np.array([0, 4, 6]))
    scores = layer(ids, mask)
    assert np.allclose(scores.detach().numpy(), expected, atol=1e-5)
    scores[0, 0].backward()
    assert (layer.scores.grad[:, 0] != 0).tolist() == [True, True, False, True]


def test_reading_windows_or_the_first_one(places):
    rows, test, _ = load_rows(places, {"data": "ag_news", "rows": 0})
    codebook = codebook_for(places, "deberta-v3-xsmall", SMALL, lambda *_: None)
    shape = Architecture(max_tokens=4)
    classifier = fit_model(codebook, rows, None, TrainingSettings(steps=5, batch_size=16, device="cpu"), shape)
    texts = list(test.texts)
    found = scores_by_reading(classifier, texts)
    lexicon = classifier.ngram_scores()
    assert lexicon is not None

    cut = encode(classifier.tokenizer, texts, 4)
    assert max(len(classifier.tokenizer.encode(text).ids) for text in texts) > 4
    assert np.allclose(found[ALL, ALL], classifier.predict_scores(texts), atol=1e-4)
    assert np.allclose(found[FIRST, FIRST], classifier.scores(cut.ids.numpy(), cut.offsets), atol=1e-4)
    assert np.allclose(found[FIRST, ALL] - found[FIRST, ""], found["", ALL], atol=1e-4)
    assert not np.allclose(found[FIRST, ""], found[ALL, ""])


def test_long_texts_are_recorded(places, tmp_path):
    shutil.copytree(places.data / "ag_news", places.data / "man_pages")
    run = runs_of("windows")[0]
    shape = {**run.settings["architecture"], "max_tokens": 4}
    assert run.settings["least"] == 600
    assert reproduce([small(run, architecture=shape, least=6)], places, tmp_path / "results") == []
    (record,) = records.load(tmp_path / "results")
    figures = record["figures"]
    assert 0 < figures["texts"] <= 80
    assert figures["median_tokens"] >= 6
    read = [(each["attention"], each["lexicon"]) for each in figures["readings"]]
    assert read == [(ALL, ""), (FIRST, ""), (FIRST, FIRST), (FIRST, ALL), (ALL, ALL), ("", ALL)]
    assert all(0 <= each["accuracy"] <= 1 for each in figures["readings"])

    book = Book([{**record, "key": each.key} for each in runs_of("windows")])
    assert sections.windows(book).count("\n") == 7
    assert "the average over all windows" not in readings.text("windows", Book([]))


# Accuracies of three seeds, by what attention and the lexicon read.
READ = {
    (ALL, ""): (0.80, 0.82, 0.83), (FIRST, ""): (0.84, 0.85, 0.84), (FIRST, FIRST): (0.880, 0.872, 0.876),
    (FIRST, ALL): (0.90, 0.90, 0.88), (ALL, ALL): (0.891, 0.879, 0.874), ("", ALL): (0.888, 0.886, 0.886),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "contradicted"),
    [
        ({}, None),
        ({(ALL, ""): (0.80, 0.82, 0.85)}, "Attention loses"),  # with one seed it gains
        ({(FIRST, ALL): (0.90, 0.90, 0.875)}, "The lexicon gains"),  # with one seed it loses
        ({("", ALL): (0.86, 0.86, 0.86)}, "So the default"),  # the lexicon alone is behind
    ],
)
def test_sentences_about_long_texts_follow_their_records(changed, contradicted):
    book = []
    for seed, run in enumerate(runs_of("windows")):
        names = [
            {"attention": attention, "lexicon": lexicon, "accuracy": by_seed[seed]}
            for (attention, lexicon), by_seed in {**READ, **changed}.items()
        ]
        book.append(record_of(run, {"readings": names}))
    wrong = [line for line in readings.untrue(Book(book))[0] if line.startswith("windows")]
    assert len(wrong) == (contradicted is not None)
    assert all(f"'{contradicted}" in line for line in wrong)


def test_the_sentence_about_joint_training_compares_the_same_seed():
    row = TABLES["accuracy"]()
    for joint, wrong in ((0.915, 0), (0.921, 1), (0.905, 1)):  # below both by less than a point; between; far below
        found = []
        for data in ("ag_news", "banking77"):
            found.append(record_of(row[data]["joint"][0], {"accuracy": joint}))
            for system, by_seed in (("ADE", (0.92, 0.99, 0.99)), ("ADE without lexicon", (0.922, 0.5, 0.5))):
                runs = zip(row[data][system], by_seed, strict=True)
                found += [record_of(run, {"accuracy": accuracy}) for run, accuracy in runs]
        lines = [line for line in readings.untrue(Book(found))[0] if "`joint`" in line]
        assert len(lines) == wrong


PAGE = """.TH {name} {section} 2020 "Linux" "Library Functions Manual"
.SH NAME
{name} \\- secret words
.SH SYNOPSIS
.B {name} file
.SH DESCRIPTION
See printf(3), section 3 and BIO_new(3ssl) in man3.
{words}
"""


def test_pages_without_what_names_their_section(tmp_path):
    if shutil.which("groff") is None:
        pytest.skip("groff renders manual pages")
    folder = tmp_path / "pages" / "some-package" / "usr" / "share" / "man"
    for section in ("1", "3ssl", "6"):
        (folder / f"man{section[0]}").mkdir(parents=True)
        for number in range(12):
            words = " ".join(f"word{number} {i}" for i in range(700 if number else 20))
            source = PAGE.format(name=f"page{number}", section=section, words=words)
            path = folder / f"man{section[0]}" / f"page{number}.{section}.gz"
            path.write_bytes(gzip.compress(source.encode()))
    (folder / "man1" / "link.1").write_text(".so man1/page1.1\n")
    for out in ("one", "two"):
        man_pages.build(tmp_path / "pages", tmp_path / out, per_label=10, chars=4000)
    splits = {}
    for name in ("train", "test"):
        assert (tmp_path / "one" / f"{name}.csv").read_bytes() == (tmp_path / "two" / f"{name}.csv").read_bytes()
        with open(tmp_path / "one" / f"{name}.csv", newline="") as file:
            splits[name] = list(csv.DictReader(file))
    rows = splits["train"] + splits["test"]
    assert {row["label"] for row in rows} <= {"user command", "library function"}
    assert len({row["text"] for row in rows}) == len(rows) <= 20
    for row in rows:
        assert "word0 " not in row["text"]  # too short
        assert "secret" not in row["text"]
        assert "Manual" not in row["text"]
        assert "See printf , and BIO_new in . word" in row["text"]
        assert 3000 < len(row["text"]) <= 4000


def test_what_is_left_of_a_page():
    rendered = (
        "ls(1)   User Commands   ls(1)\n\nNAME\n    ls - list\n\nDESCRIPTION\n    See\n    cp(1).\n\nGNU  ls(1)\n"
    )
    assert man_pages.body(rendered) == "DESCRIPTION See cp ."
