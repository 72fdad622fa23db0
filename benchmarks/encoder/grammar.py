"""Texts of templates: (this|that), [optional], <rule> or {list}, as Home Assistant and voice assistants write them."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.corpora import place

FILE = Path(__file__).with_name("grammar.txt")
DRAWS = 260  # texts drawn from a template of our own
MAX_STEPS = 300  # replacements in a template: a rule that names itself ends there
INNERMOST = re.compile(r"\(([^()\[\]<>{}]*)\)|\[([^()\[\]<>{}]*)\]|[<{](\w+)(?::\w+)?[>}]")
Rules = dict[str, list[str]]  # name -> choices


def drawn(template: str, rules: Rules, draw: random.Random) -> str | None:
    """A text of a template; None where it names a rule that is not there."""
    text = template
    for _ in range(MAX_STEPS):
        match = INNERMOST.search(text)
        if match is None:
            text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", " ".join(text.split()))
            return re.sub(r" (?=[,.?!;:'])", "", text)
        choice, optional, rule = match.groups()
        if rule is not None and rule not in rules:
            return None
        choices = rules[rule] if rule is not None else (choice if optional is None else optional).split("|")
        left_out = optional is not None and draw.random() < 0.5
        text = text[: match.start()] + ("" if left_out else draw.choice(choices)) + text[match.end() :]
    return None


def draws(template: str, rules: Rules, count: int) -> list[str]:
    """Texts of a template: as many as asked for, or fewer where some are the same."""
    draw = random.Random(place(template))
    return sorted({text for text in (drawn(template, rules, draw) for _ in range(count)) if text})


def rules() -> Rules:
    """The rules of our own grammar: a name, an equals sign, and choices between bars with spaces around them."""
    lines = (line for line in FILE.read_text("utf8").splitlines() if line and not line.startswith("#"))
    named = (line.split(" = ", 1) for line in lines)
    return {name: choices.split(" | ") for name, choices in named}


def texts(rules: Rules) -> Iterator[str]:
    """Texts of the rules whose name begins with an upper-case letter, each choice a template; some as people type."""
    for name in sorted(rule for rule in rules if rule[0].isupper()):
        for template in rules[name]:
            for text in draws(template, rules, DRAWS):
                as_typed = place(text) % 4 == 0
                sentence = re.sub(r"(^|[.!?] )([a-z])", lambda match: match[0].upper(), text)
                yield text.lower().rstrip(".?") if as_typed else sentence
