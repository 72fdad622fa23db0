"""What the table of encoders says, in words: each sentence with the checks it rests on."""

from collections.abc import Callable

from benchmarks.book import Book, Record
from benchmarks.claims import Check, Claim, MissingError, records, says
from benchmarks.tables_sentence import (
    ALL_TEXTS,
    LANGUAGES,
    MULTILINGUAL,
    ONE,
    RATES,
    SMALL,
    SOME,
    SOME_TEXTS,
    STATIC,
    TOLD,
    TWO,
    UNTOLD,
    WRITTEN,
)

TEACHER, *OTHERS = STATIC
MULTI_ONE, MULTI_LARGE, MULTI_TWO = MULTILINGUAL
MINUTES = 30  # for SOME texts on two cores
Value = Callable[[Record], float]


def stsb(record: Record) -> float:
    """Spearman's correlation on the test pairs of STS-B (English)."""
    return record["figures"]["tasks"]["stsb"]["test"]


def nearest(data: str) -> Value:
    """The share of texts whose nearest neighbour has their label."""
    return lambda record: record["figures"]["tasks"]["nearest"][data]


def titles(count: str) -> Value:
    """The share of titles that find their description."""
    return lambda record: record["figures"]["tasks"]["titles"][count]


def average(book: Book, name: str, column: str, value: Value) -> float:
    """The mean over the runs of an encoder."""
    found = records(book, ("sentence", name, column))
    return sum(map(value, found)) / len(found)


def ahead_of_others(name: str, column: str, *values: Value) -> Check:
    """An encoder of ours is ahead of every other but the teacher, by each of these."""
    return lambda book: all(
        average(book, name, column, value) > average(book, other, "", value) for value in values for other in OTHERS
    )


def reaches(name: str, column: str, least: float) -> Check:
    """An encoder has at least so much on STS-B."""
    return lambda book: average(book, name, column, stsb) >= least


def rates_of(book: Book) -> Record:
    """Texts a second of all encoders, measured in turn."""
    return records(book, ("sentence", RATES, ""))[0]["figures"]


def faster(name: str, least: float) -> Check:
    """An encoder makes at least so many vectors a second."""
    return lambda book: rates_of(book)[name]["texts_per_second"] >= least


def times_the_teacher(name: str, factor: float) -> Check:
    """An encoder is so many times as fast as the teacher, in float32 and in 8 bits."""

    def check(book: Book) -> bool:
        found = rates_of(book)
        slow = max(found[each]["texts_per_second"] for each in (TEACHER, f"{TEACHER}, int8"))
        return found[name]["texts_per_second"] >= factor * slow

    return check


def minutes_at_most(name: str, minutes: float) -> Check:
    """A run on a CPU took no longer."""

    def check(book: Book) -> bool:
        found = records(book, ("sentence", name, SOME_TEXTS))
        if any(record["device"]["kind"] != "cpu" for record in found):
            raise MissingError(name)
        return all(record["figures"]["seconds"] <= 60 * minutes for record in found)

    return check


def translations(record: Record, name: str) -> float:
    """The mean over languages of the share of translations found."""
    found: dict[str, float] = record["figures"][name]["tatoeba"]
    return sum(found.values()) / len(found)


def similar(record: Record) -> float:
    """The mean over languages of an encoder's correlation on STS-B."""
    found: dict[str, float] = record["figures"]["encoder"]["stsb"]
    return sum(found.values()) / len(found)


def only(book: Book, name: str, texts: str = "") -> Record:
    """The run of an encoder of many languages."""
    return records(book, ("multilingual", name, texts))[-1]


def gains_of_telling(book: Book) -> list[float]:
    """What an encoder has more, in points, of translations by language, if it is told which texts mean the same."""
    told, untold = (only(book, MULTI_ONE, texts)["figures"]["encoder"]["tatoeba"] for texts in (TOLD, UNTOLD))
    return [told[language] - untold[language] for language in told]


def share_of_teacher(book: Book, name: str, texts: str = "") -> float:
    """The share of its teacher's translations that an encoder of many languages finds, by their means."""
    record = only(book, name, texts)
    return translations(record, "encoder") / translations(record, "teacher")


def _texts(book: Book, name: str, texts: str = "") -> int:
    count: int = only(book, name, texts)["data"]["texts"]
    return count


def _different(book: Book, texts: str) -> int:
    count: int = only(book, MULTI_ONE, texts)["data"]["different"]
    return count


READINGS: dict[str, list[Claim]] = {
    "sentence": [
        says(
            "Encoders are distilled from MiniLM-L6 on news, an encyclopedia, questions, reviews and glosses, training rows alone "
            "and nothing of STS-B. STS-B is Spearman's correlation on the English test pairs; nearest is the share of test "
            "texts whose nearest training text has their label; titles of AG News's test rows look for their description "
            "among all. Rates are those of one run, all in turn, raw text to vector. model2vec and wordllama are used as they "
            "come: with their defaults, neither tuned nor trained on these texts."
        ),
        says(
            f"On two cores an encoder of 8 MB from {SOME:,} texts is made in less than half an hour, the teacher's "
            "answers and the codebook included.",
            minutes_at_most(ONE, MINUTES),
        ),
        says(
            f"Of {SOME:,} texts, in four epochs, it is ahead of model2vec's distillation of the same teacher, of wordllama "
            "and of the averaged table on STS-B.",
            ahead_of_others(ONE, SOME_TEXTS, stsb),
        ),
        says(
            "So it is on Banking77 and where the nearest description must be the right one. Among the ten nearest wordllama "
            "finds more, and on TREC, whose kinds of questions single words tell, the averaged table is ahead even of the "
            "teacher, and model2vec of this encoder.",
            ahead_of_others(ONE, SOME_TEXTS, nearest("banking77"), titles("1")),
            lambda book: (
                average(book, "wordllama, 256", "", titles("10")) > average(book, ONE, SOME_TEXTS, titles("10"))
            ),
            lambda book: (
                average(book, "mean of MiniLM-L6's table", "", nearest("trec"))
                > average(book, TEACHER, "", nearest("trec"))
                > average(book, "model2vec of MiniLM-L6, 256", "", nearest("trec"))
                > average(book, ONE, SOME_TEXTS, nearest("trec"))
            ),
        ),
        says(
            "From all texts, in eight epochs (sixteen for two layers; three seeds of one layer, two of two), one layer is ahead of them on STS-B, "
            "Banking77 and the nearest description at both sizes, two layers among the ten nearest too. On TREC all are "
            "behind the averaged table.",
            *(ahead_of_others(name, ALL_TEXTS, stsb, nearest("banking77"), titles("1")) for name in (ONE, SMALL, TWO)),
            ahead_of_others(TWO, ALL_TEXTS, titles("10")),
            lambda book: all(
                average(book, name, ALL_TEXTS, nearest("trec"))
                < average(book, "mean of MiniLM-L6's table", "", nearest("trec"))
                for name in (ONE, SMALL, TWO)
            ),
        ),
        says(
            "One layer reaches 0.76 at 8 MB and 0.74 at 2 MB, two layers 0.79.",
            reaches(ONE, ALL_TEXTS, 0.76),
            reaches(SMALL, ALL_TEXTS, 0.74),
            reaches(TWO, ALL_TEXTS, 0.79),
        ),
        says("One layer makes more than 5,000 vectors a second.", faster(ONE, 5000), faster(SMALL, 5000)),
        says("It is more than ten times as fast as its teacher, in 8 bits too.", times_the_teacher(ONE, 10)),
    ],
    "multilingual": [
        says(
            "Encoders are distilled from multilingual-e5-small, its table coded, on messages and manuals of programs, "
            "dialogues of games, quotations and dictionary entries in thirteen languages, and on words drawn at random and "
            "parts of texts (`drawn_texts.py`). Tatoeba is the share of "
            "sentences whose English translation is the nearest, both ways, without the first 200 pairs of each language, "
            "on which settings are chosen; STS-B is Spearman's correlation on the test pairs. "
            "One seed each. The mean of the table is as it is, not centred as what the encoders learn from."
        ),
        says(
            "One layer finds more than eight tenths of the translations that its teacher finds, where nine tenths were the "
            "target, two layers nearly nine tenths. On STS-B two layers reach the target of 0.70, one layer misses it by one "
            "or two hundredths. A larger table helps little.",
            lambda book: all(0.8 < share_of_teacher(book, name) < 0.87 for name in (MULTI_ONE, MULTI_LARGE)),
            lambda book: 0.88 < share_of_teacher(book, MULTI_TWO) < 0.9,
            lambda book: similar(only(book, MULTI_TWO)) > 70,
            lambda book: all(68 < similar(only(book, name)) < 70 for name in (MULTI_ONE, MULTI_LARGE)),
            lambda book: 0 < share_of_teacher(book, MULTI_LARGE) - share_of_teacher(book, MULTI_ONE) < 0.03,
        ),
        says(
            "Sentences that Gemma-3-270M wrote (`written_texts.py`) were tried beside fewer of the other texts, three quarters "
            "as many in all: one layer finds as many translations, to a hundredth, two layers find fewer by one or two "
            "hundredths.",
            lambda book: 0.7 < _texts(book, MULTI_ONE, WRITTEN) / _texts(book, MULTI_ONE) < 0.8,
            lambda book: abs(share_of_teacher(book, MULTI_ONE, WRITTEN) - share_of_teacher(book, MULTI_ONE)) < 0.01,
            lambda book: 0.01 < share_of_teacher(book, MULTI_TWO) - share_of_teacher(book, MULTI_TWO, WRITTEN) < 0.02,
        ),
        says(
            "Where an encoder is told which texts are translations of each other (`translated_texts.py`), it finds ten points "
            "more of them in the mean, and more in each language, than from the same texts in the same order untold, in as "
            "many epochs; on STS-B it has a point or two more. These two encoders learned from a twentieth of the texts, on "
            "two cores, so they are behind those above; what telling brings with all texts has not been measured.",
            lambda book: 9 < sum(gains_of_telling(book)) / len(LANGUAGES) < 11,
            lambda book: min(gains_of_telling(book)) > 0,
            lambda book: 1 < similar(only(book, MULTI_ONE, TOLD)) - similar(only(book, MULTI_ONE, UNTOLD)) < 2,
            lambda book: _different(book, TOLD) == _different(book, UNTOLD),
            lambda book: 0.04 < _texts(book, MULTI_ONE, UNTOLD) / _texts(book, MULTI_ONE) < 0.06,
        ),
    ],
}
