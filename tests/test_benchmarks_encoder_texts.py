"""The corpus of the English encoder, from packages made for the purpose: nothing is downloaded."""

import csv
import io
import json
import subprocess
import tarfile
import zipfile
import zlib

import pytest

from ade.errors import InputError
from benchmarks.encoder import grammar, sources, texts
from benchmarks.encoder.sources import Source, files_of, gloss_parts

DIALOGUE = b"conversations:\n- - Good morning, how are you?\n  - I am doing very well.\n"
INTENTS = {
    "expansion_rules": {"turn": "(turn|switch)"},
    "lists": {"percent": {"range": {"from": 0, "to": 100}}, "message": {"wildcard": True}},
    "intents": {"Light": {"data": [{"sentences": ["<turn> on [the] {area} light", "say {message}"]}]}},
}


@pytest.fixture
def packages(tmp_path):
    """A folder of packages as the clients would have left it: a wheel and an npm package; no Debian package."""
    for client, package in (("pip", "talk"), ("npm", "film")):
        (tmp_path / f"{client}-{package}-1.0").mkdir()
    with zipfile.ZipFile(tmp_path / "pip-talk-1.0" / "talk.whl", "w") as wheel:
        wheel.writestr("talk/english/a.yml", DIALOGUE)
        wheel.writestr("talk/german/a.yml", "- Guten Morgen, wie geht es?")
        wheel.writestr("talk/english/b.yml", "- - The film was dull.\n  - See https://example.org\n")
    with tarfile.open(tmp_path / "npm-film-1.0" / "film.tgz", "w:gz") as archive:
        data = json.dumps(
            {"a": "The film was <b>dull</b>!", "b": ["Where is Lima?", "x"], "c": "It ends well."}
        ).encode()
        member = tarfile.TarInfo("package/film.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return tmp_path


@pytest.fixture
def made(packages, tmp_path, monkeypatch):
    """The texts and sources that the command writes; the evaluation set has one text of theirs as a sentence."""
    talk = Source("pip", "talk", "1.0", "MIT", r"english/\w+\.yml$", sources.dialogues, 10)
    film = Source("npm", "film", "1.0", "CC0", r"film\.json$", sources.strings, 10)
    monkeypatch.setattr(texts, "SOURCES", [talk, film])
    monkeypatch.setattr(texts, "lemmas", lambda package: {"a_food": ["soup", "bread"]})
    monkeypatch.setattr(texts, "WORDNET", talk)
    (packages / "grammar.txt").write_text("# ours\nQuestion = is {a_food} <how>?\nhow = good | bad\n", "utf8")
    monkeypatch.setattr(grammar, "FILE", packages / "grammar.txt")
    evaluation = packages / "evaluation"
    evaluation.mkdir()
    with open(evaluation / "train.csv", "w", encoding="utf8", newline="") as opened:
        csv.writer(opened).writerows([("text", "label"), ("An old one. it ends, well", "positive")])
    (evaluation / "lines.txt").write_text("T\twhere is lima ?\n", "utf8")
    texts.texts(packages, [evaluation], packages)
    return (packages / "texts.txt").read_text("utf8").splitlines(), json.loads((packages / "sources.json").read_text())


def test_texts_are_extracted_once_each_without_code(made):
    lines, rows = made
    packaged = [line for line in lines if "soup" not in line.lower() and "bread" not in line.lower()]
    assert sorted(packaged) == ["Good morning, how are you?", "I am doing very well.", "The film was dull."]
    assert [(row["package"], row["licence"], row["texts"]) for row in rows[:2]] == [
        ("pip: talk", "MIT", 3),
        ("npm: film", "CC0", 0),  # one is in the other package already, two are evaluated on
    ]
    assert all(len(row["sha256"]) == 64 for row in rows)


def test_own_texts_come_from_the_grammar(made):
    lines, rows = made
    own = {line.lower().rstrip("?") for line in lines if "soup" in line.lower() or "bread" in line.lower()}
    assert own == {"is soup good", "is soup bad", "is bread good", "is bread bad"}
    assert rows[-1]["texts"] == 4


def test_the_same_packages_give_the_same_file(made, packages):
    before = (packages / "texts.txt").read_bytes()
    texts.texts(packages, [packages / "evaluation"], packages)
    assert (packages / "texts.txt").read_bytes() == before


def test_texts_of_the_embedded_test_set_are_left_out():
    gloss = 'a sweet cake (usually round); "she baked a cake"; "he ate it"'
    assert gloss_parts(gloss) == ["a sweet cake", "she baked a cake", "he ate it"]
    taken = {texts.normalised(part) for part in gloss_parts(gloss)}
    assert texts.fresh(["A sweet cake!", "another cake"], taken) == ["another cake"]


def test_an_empty_folder_of_evaluation_sets_is_refused(tmp_path):
    with pytest.raises(InputError, match="no files of evaluation sets"):
        texts.evaluation_texts(tmp_path)


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    def fail(command, **_):
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail)
    source = Source("npm", "@a/b", "2.0", "MIT", "", sources.lines, 1)
    with pytest.raises(InputError, match=r"'npm pack --silent @a/b@2\.0' failed"):
        sources.fetched(source, tmp_path)


def test_templates_are_expanded():
    found = set(sources.intents("", json.dumps(INTENTS).encode()))
    assert "turn on the garage light" in found or "turn on garage light" in found
    assert all(text.startswith(("turn on", "switch on")) for text in found)  # nobody says what {message} is
    assert grammar.draws("a (apple|owl)[, please]", {}, 50) == [
        "an apple",
        "an apple, please",
        "an owl",
        "an owl, please",
    ]
    assert grammar.draws("<endless>", {"endless": ["<endless>"]}, 2) == []


def test_every_rule_of_the_grammar_is_there():
    rules = grammar.rules() | {
        each: ["word"] for name in sources.NOUN_FILES.values() for each in (name, f"{name}_named")
    }
    for name, choices in rules.items():
        assert all(grammar.draws(choice, rules, 5) for choice in choices), name
    drawn = [
        text for name in ("Review", "BankRequest") for choice in rules[name] for text in grammar.draws(choice, rules, 5)
    ]
    assert not any(set("()[]<>{}|") & set(text) for text in drawn)


@pytest.mark.parametrize(
    ("texts_of", "data", "expected"),
    [
        (
            sources.prose,
            b"Mr. Smith and\nA. Jones left. It rained.\n\nEnd.",
            ["Mr. Smith and A. Jones left.", "It rained.", "End."],
        ),
        (sources.fortunes, b"All is well.\n\t\t-- Nobody\n%\nHope\nhelps.\n", ["All is well.", "Hope helps."]),
        (sources.quoted, b'say("It\\"s a fine day"); x = "one"', ['It"s a fine day']),
        (
            sources.comments,
            b"/**\n * Sends the money back\n * at once.\n * @param no\n */",
            ["Sends the money back at once."],
        ),
        (sources.docstrings, b'"""Reads a whole file."""\ndef f():\n    """Short."""\n', ["Reads a whole file."]),
        (sources.skill, b"# none\nplay (jazz|rock)\nplay {song}\n", ["play jazz", "play rock"]),
        (
            sources.glosses,
            b'00001740 03 n 01 entity 0 000 | that which is; "it is"  \n  1 licence\n',
            ["that which is", "it is"],
        ),
    ],
)
def test_texts_of_files(texts_of, data, expected):
    assert [text for text in texts_of("", data) if text] == expected


def test_novels_are_read_from_data_of_r():
    lines = [b"It was late, and", b"nobody came.", b"", b"She left."]
    content = b"X\n" + b"".join(b"\x00\x04\x00\x09" + len(line).to_bytes(4) + line for line in lines)
    block = len(content).to_bytes(4) + zlib.compress(content)
    assert list(sources.r_novels("", block + block)) == ["It was late, and nobody came.", "She left."] * 2


def test_a_debian_package_is_unpacked(tmp_path, monkeypatch):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("./usr/share/a.txt")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"hello"))
    unpacked = subprocess.CompletedProcess([], 0, packed.getvalue())
    monkeypatch.setattr(subprocess, "run", lambda command, **_: unpacked)
    assert list(files_of(tmp_path / "a.deb", r"\.txt$")) == [("./usr/share/a.txt", b"hello")]
