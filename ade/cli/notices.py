"""Lines on stderr about texts that a model fits badly: said once, and no error."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ade.cli.options import say

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLE = 1000  # texts that are examined
CONCERN = "of the tokens of these texts are unknown or single bytes"
PAGE = "(see the page 'Languages' of the documentation)"


def say_unknown_tokens(tokenizer: "Tokenizer", texts: Sequence[str]) -> None:
    """Say of training texts where more than a fifth of their tokens are unknown or single bytes."""
    from ade.data.unknown_tokens import MAX_SHARE, unknown_share

    step = max(1, len(texts) // SAMPLE)  # not the first ones alone: rows may be sorted
    share = unknown_share(tokenizer, texts[::step])
    if share > MAX_SHARE:
        say(f"{100 * share:.0f}% {CONCERN}: another --teacher may know their language {PAGE}")


class UnknownTokenNotice:
    """Says once of the texts a model predicts, which come chunk by chunk, that it does not know their tokens."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from ade.data.unknown_tokens import unknown_ids

        self.tokenizer, self.unknown_ids = tokenizer, unknown_ids(tokenizer)
        self.texts = self.unknown = self.tokens = 0

    def see(self, texts: Sequence[str]) -> None:
        """Count the tokens of a chunk, until `SAMPLE` texts have been seen or the line has been printed."""
        if self.texts >= SAMPLE:
            return
        from ade.data.unknown_tokens import MAX_SHARE, count_unknown

        texts = texts[: SAMPLE - self.texts]
        unknown, tokens = count_unknown(self.tokenizer, texts, self.unknown_ids)
        self.texts, self.unknown, self.tokens = self.texts + len(texts), self.unknown + unknown, self.tokens + tokens
        if self.unknown > MAX_SHARE * self.tokens:
            self.texts = SAMPLE
            share = self.unknown / self.tokens
            say(f"{100 * share:.0f}% {CONCERN}: the model was made for other texts {PAGE}")
