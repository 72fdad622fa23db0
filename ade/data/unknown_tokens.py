"""How well a tokenizer fits texts: the fraction of their tokens that are unknown, or a single byte of a character.

Such tokens have embeddings that say nothing about the text. Imports only numpy and tokenizers, so that the light
runtime can use it.
"""

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from ade.data.tokenize import encode_chunks

MAX_SHARE = 0.2  # from here on, another teacher is worth trying
MAX_TOKENS = 512  # of each text, where the tokenizer does not truncate
UNSEEN = "\U0010fffd"  # the last character for private use, which no vocabulary has


def unknown_share(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Fraction of the tokens of texts, special tokens apart, that are unknown or single bytes; 0 where there are none.

    Bytes of ASCII are characters and do not count.
    """
    unknown, tokens = count_unknown(tokenizer, texts, unknown_ids(tokenizer))
    return unknown / tokens if tokens else 0.0


def count_unknown(tokenizer: Tokenizer, texts: Sequence[str], unknown: np.ndarray) -> tuple[int, int]:
    """Number of the tokens of texts that are among the ids `unknown`, and of all tokens; special tokens apart."""
    truncation = tokenizer.truncation
    longest = MAX_TOKENS if truncation is None else truncation["max_length"]  # another length would copy the tokenizer
    chunks = encode_chunks(tokenizer, texts, longest, special=False)
    ids = np.fromiter((token for chunk in chunks for encoding in chunk for token in encoding.ids), np.int64)
    return int(np.isin(ids, unknown).sum()), len(ids)


def unknown_ids(tokenizer: Tokenizer) -> np.ndarray:
    """Ids of the unknown token and of the tokens that are one byte of a character outside ASCII."""
    try:
        found = {token.id for token in tokenizer.model.tokenize(UNSEEN)}
    except Exception:  # a model without an unknown token; tokenizers raises nothing more precise
        found = set()

    spelled = [f"<0x{byte:02X}>" for byte in range(0x80, 0x100)]  # as sentencepiece spells bytes
    if _is_byte_level(tokenizer):
        spelled += _byte_characters()
    known = (tokenizer.token_to_id(token) for token in spelled)
    return np.array(sorted(found.union(id for id in known if id is not None)), np.int64)


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether texts are turned into the characters that stand for bytes, as by GPT-2."""
    steps = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    return any(b'"ByteLevel"' in step.__getstate__() for step in steps if step is not None)


def _byte_characters() -> list[str]:
    """The characters that stand for the bytes from 0x80 on; U+0100 to U+0121 stand for those of ASCII not printed."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return sorted(each for each in alphabet if ord(each) >= 0x80 and not 0x100 <= ord(each) <= 0x121)
