"""Lines on stderr about texts that a model fits badly: said once, and no error."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLE = 1000  # texts that are examined
AFTER = (100, SAMPLE)  # texts of a stream after which those that passed are examined


def say_unknown_tokens(tokenizer: "Tokenizer", texts: Sequence[str], training: bool = False) -> bool:
    """Say where more than a fifth of the tokens of texts are unknown or single bytes; returns whether it was said."""
    from ade.data.unknown_tokens import MAX_SHARE, unknown_share

    step = max(1, len(texts) // SAMPLE)  # not the first ones alone: rows may be sorted
    share = unknown_share(tokenizer, texts[::step])
    if share <= MAX_SHARE:
        return False
    found = f"{100 * share:.0f}% of the tokens of these texts are unknown or single bytes"
    advice = "another --teacher may know their language" if training else "the model was made for other texts"
    print(f"ade: {found}: {advice} (see the page 'Languages' of the documentation)", file=sys.stderr)
    return True


def saying_unknown_tokens(tokenizer: "Tokenizer", texts: Iterable[str]) -> Iterator[str]:
    """The texts of a stream as they are; the first ones are examined as they pass, or at its end."""
    seen: list[str] = []
    said = False
    for text in texts:
        yield text
        if not said and len(seen) < SAMPLE:
            seen.append(text)
            said = len(seen) in AFTER and say_unknown_tokens(tokenizer, seen)
    if not said and len(seen) not in AFTER:
        say_unknown_tokens(tokenizer, seen)
