"""Token ids of words that were met before: most of a text costs a look-up instead of a tokenization.

WordPiece, as BERT has it, splits a text at spaces and around punctuation, then each word by itself. So the ids of a
text are those of its words, one after the other. That is used for texts of printable ASCII alone; of other texts, and
of other tokenizers, nothing is known here.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

WORD = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9\s]")
MAX_CHARS = 32  # of a word that is remembered: longer ones are rare, and could be of any length
MAX_WORDS = 1 << 17  # remembered, about 25 MB; then all are forgotten


class KnownWords:
    """The ids of the words that texts had so far. Threads may share it: a dictionary is replaced, never emptied."""

    def __init__(self, tokenizer: Tokenizer, specials: Callable[[], tuple[list[int], list[int]]]) -> None:
        """`specials` gives the ids of the special tokens before and after every text."""
        self.tokenizer, self.lower = tokenizer, tokenizer.normalizer.lowercase
        self.before, self.after = specials()
        self.added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self.known: dict[str, list[int]] = {}

    @classmethod
    def of(cls, tokenizer: Tokenizer, specials: Callable[[], tuple[list[int], list[int]]]) -> "KnownWords | None":
        """Return an empty dictionary of words, or None where a tokenizer is of another kind."""
        normalizer, added = tokenizer.normalizer, tokenizer.get_added_tokens_decoder().values()
        by_words = (
            isinstance(normalizer, normalizers.BertNormalizer)
            and normalizer.clean_text
            and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and isinstance(tokenizer.model, models.WordPiece)
            and not any(token.normalized for token in added)
        )
        return cls(tokenizer, specials) if by_words else None

    def ids(self, texts: Sequence[str], max_length: int, max_chars: int) -> list[list[int] | None]:
        """Return the token ids of each text, truncated to `max_length`; None for those left to the tokenizer.

        So are texts of more than `max_chars`, of which it reads a part.
        """
        words = [self._words(text) if len(text) <= max_chars else None for text in texts]
        found = [self._joined(each, max_length) for each in words]
        unknown = [i for i, ids in enumerate(found) if ids is None and words[i] is not None]
        if unknown:
            self._learn({word for i in unknown for word in words[i] or ()})
            for i in unknown:
                found[i] = self._joined(words[i], max_length)
        return found

    def _joined(self, words: list[str] | None, max_length: int) -> list[int] | None:
        """Return the ids of a text's words with the special tokens around them; None where one is not known."""
        if words is None:
            return None
        try:
            ids = list(chain.from_iterable(map(self.known.__getitem__, words)))
        except KeyError:
            return None
        room = max_length - len(self.before) - len(self.after)
        return [*self.before, *ids[:room], *self.after]

    def _learn(self, words: set[str]) -> None:
        """Tokenize those of the words that are not known."""
        known, missing = self.known, [word for word in words if word not in self.known and len(word) <= MAX_CHARS]
        if len(known) + len(missing) > MAX_WORDS:
            known, missing = {}, [word for word in words if len(word) <= MAX_CHARS]
        encodings = self.tokenizer.encode_batch_fast(missing, add_special_tokens=False)
        known.update(zip(missing, (encoding.ids for encoding in encodings), strict=True))
        self.known = known

    def _words(self, text: str) -> list[str] | None:
        """Return the words of a text and its punctuation; None for a text that may be tokenized in another way."""
        if not text.isascii() or (not text.isprintable() and not text.translate(SPACES).isprintable()):
            return None
        if any(token in text for token in self.added):
            return None
        return WORD.findall(text.lower() if self.lower else text)


SPACES = str.maketrans("\t\n\r", "   ")
