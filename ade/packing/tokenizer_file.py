"""Tokenizer files: the usual `tokenizer.json`, and `tokenizer.packed.xz`, which has about a tenth of its bytes.

The packed file is xz-compressed JSON: the contents of a tokenizer.json, with the long lists in columns that compress
well. Reading it gives the same tokenizer. Imports only the standard library and tokenizers, so that the light runtime
can use it. The columns of `model` are:

    tokens   in the order of their ids, front-coded: how many characters each shares with the one before, and the rest
    scores   (Unigram) whole numbers of a decimal step below the highest score, in two columns of 6 low and further bits
    merges   (BPE) the id of the token that a merge makes, as the difference to the merge before, and where it is split
"""

import json
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ade.errors import InputError, first_line

TOKENIZER, PACKED, CONFIG = "tokenizer.json", "tokenizer.packed.xz", "tokenizer_config.json"
MAX_BYTES = 1 << 26  # of the JSON in a packed file; that of 250,000 tokens has about 5 MB
MAX_MEMORY = 1 << 28  # of the decompressor
MAX_DIGITS = 6  # decimal digits of scores stored as whole numbers
MAX_PREFIX = 60  # characters a token shares with the one before; more are stored again
ZERO = ord("0")  # the character that stands for the number 0; higher ones follow
SPECIAL_TOKENS = {  # as transformers asks for them, and their usual spellings
    "pad_token": ("[PAD]", "<pad>", "<unk>", "[UNK]"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]", "<mask>"),
    "bos_token": ("<s>",),
    "eos_token": ("</s>",),
}
Json = dict[str, Any]


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a folder; an `InputError` if it is damaged."""
    path = tokenizer_path(folder)
    if path.name == PACKED:
        return read_packed(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more precise
        raise InputError(f"{path}: not a readable {TOKENIZER} ({first_line(error)})") from None


def tokenizer_path(folder: Path) -> Path:
    """The tokenizer file of a folder: the packed one, or tokenizer.json."""
    for name in (PACKED, TOKENIZER):
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{folder}: has no {TOKENIZER}")


def write_tokenizer(tokenizer: Tokenizer, folder: Path, packed: bool, max_tokens: int) -> None:
    """Write a tokenizer into a folder, as tokenizer.json or packed, and `tokenizer_config.json` for transformers."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    config = {
        "tokenizer_class": "AdeTokenizer" if packed else "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
        **special_tokens(plain),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf8")
    if packed:
        (folder / PACKED).write_bytes(packed_bytes(plain))
    else:
        plain.save(str(folder / TOKENIZER), pretty=False)


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens that transformers asks for, found by their usual spellings; always one for padding.

    Where no token is there for padding, one is added to the tokenizer's special tokens.
    """
    known = tokenizer.get_vocab(with_added_tokens=True)
    special: dict[str, str] = {}
    for kind, spellings in SPECIAL_TOKENS.items():
        for token in spellings:
            if token in known:
                special.setdefault(kind, token)
    if "pad_token" not in special:
        special["pad_token"] = _pad_token(tokenizer)
    return special


def _pad_token(tokenizer: Tokenizer) -> str:
    """Choose a token for padding in a tokenizer that names none: a special token, or the longest of the others.

    Padding is masked, so any token does for the model. But transformers splits texts at special tokens before it
    tokenizes the rest, so it should be one that few texts contain, and only as a whole word.
    """
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]
    if special:
        return special[0]
    ids = tokenizer.get_vocab()
    longest = max(ids, key=lambda token: (len(token), -ids[token]))
    tokenizer.add_special_tokens([AddedToken(longest, single_word=True, normalized=False, special=True)])
    return longest


def packed_bytes(tokenizer: Tokenizer) -> bytes:
    """The contents of the packed file of a tokenizer."""
    data = _compact_json(_pack(json.loads(tokenizer.to_str()))).encode("utf8")
    window = max(1 << 12, 1 << (len(data) - 1).bit_length())  # no larger than the data: readers reserve as much
    options = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": window, "lc": 4, "pb": 0}
    return lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=[options])


def read_packed(path: Path) -> Tokenizer:
    """Read a packed tokenizer file; an `InputError` if it is damaged or too large."""
    try:
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY)
        data = decompressor.decompress(path.read_bytes(), MAX_BYTES)
        if not decompressor.eof:
            raise ValueError(f"it is cut short, or has more than {MAX_BYTES:,} bytes when it is decompressed")
        return Tokenizer.from_str(_compact_json(_unpack(json.loads(data))))
    except Exception as error:  # of lzma, of json, of missing columns, of tokenizers, which raises nothing more precise
        raise InputError(f"{path}: not a readable packed tokenizer ({first_line(error)})") from None


def _compact_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pack(spec: Json) -> Json:
    """The tokenizer.json with its vocabulary and merges in columns; parts that do not fit them stay as they are."""
    model = dict(spec["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        tokens, scores = [token for token, _ in vocabulary], [score for _, score in vocabulary]
        model["vocab"] = {"tokens": _front_coded(tokens), "scores": _packed_scores(scores)}
    elif sorted(vocabulary.values()) == list(range(len(vocabulary))):
        tokens = sorted(vocabulary, key=vocabulary.__getitem__)
        model["vocab"] = {"tokens": _front_coded(tokens)}
        if "merges" in model:
            model["merges"] = _packed_merges(model, vocabulary)
    else:  # ids with gaps
        return {"packed": False, **spec}
    return {"packed": True, **spec, "model": model}


def _unpack(stored: Json) -> Json:
    """The inverse of `_pack`."""
    spec = dict(stored)
    if not spec.pop("packed"):
        return spec
    model = dict(spec["model"])
    tokens = _from_front_coded(model["vocab"]["tokens"])
    if "scores" in model["vocab"]:
        scores = _unpacked_scores(model["vocab"]["scores"])
        model["vocab"] = list(zip(tokens, scores, strict=True))
    else:
        model["vocab"] = {token: i for i, token in enumerate(tokens)}
        if isinstance(model.get("merges"), dict):
            model["merges"] = _unpacked_merges(model, tokens)
    return {**spec, "model": model}


def _characters(numbers: Iterable[int]) -> str:
    """Small numbers as a string, one character each."""
    return "".join(chr(ZERO + number) for number in numbers)


def _numbers(characters: str) -> list[int]:
    """The inverse of `_characters`."""
    return [ord(character) - ZERO for character in characters]


def _front_coded(tokens: Sequence[str]) -> Json:
    """Tokens by the number of characters shared with the token before, and the rest."""
    shared, rests, last = [], [], ""
    for token in tokens:
        count = 0
        for ours, theirs in zip(token[:MAX_PREFIX], last, strict=False):
            if ours != theirs:
                break
            count += 1
        shared.append(count)
        rests.append(token[count:])
        last = token

    # A character that no token has; one beyond the usual is always found.
    used = set().union(*rests)
    separator = next(c for c in (" ", "\n", *map(chr, range(0xE000, 0x10FFFF))) if c not in used)
    return {"shared": _characters(shared), "separator": separator, "rests": separator.join(rests)}


def _from_front_coded(stored: Json) -> list[str]:
    """The inverse of `_front_coded`."""
    rests = stored["rests"].split(stored["separator"]) if stored["shared"] else []
    tokens: list[str] = []
    last = ""
    for shared, rest in zip(_numbers(stored["shared"]), rests, strict=True):
        last = last[:shared] + rest
        tokens.append(last)
    return tokens


def _packed_scores(scores: Sequence[float]) -> Json | Sequence[float]:
    """Scores of few decimal digits as whole numbers; others as they are."""
    for digits in range(MAX_DIGITS + 1):
        steps = [round(score * 10**digits) for score in scores]
        if all(step / 10**digits == score for step, score in zip(steps, scores, strict=True)):
            highest = max(steps, default=0)
            below = [highest - step for step in steps]
            if max(below, default=0) >> 6 < 0xD000:  # characters up to the surrogates
                low, high = (_characters(each) for each in ((n & 63 for n in below), (n >> 6 for n in below)))
                return {"digits": digits, "highest": highest, "low": low, "high": high}
    return scores


def _unpacked_scores(stored: Json | list[float]) -> list[float]:
    """The inverse of `_packed_scores`."""
    if isinstance(stored, list):
        return stored
    pairs = zip(_numbers(stored["low"]), _numbers(stored["high"]), strict=True)
    return [(stored["highest"] - (low + 64 * high)) / 10 ** stored["digits"] for low, high in pairs]


def _packed_merges(model: Json, vocabulary: dict[str, int]) -> Json | list[Any]:
    """Merges by the token they make and the length of its left part; as they are where a token is not there."""
    prefix = model.get("continuing_subword_prefix") or ""
    made, split = [], []
    for left, right in model["merges"]:
        token = left + right.removeprefix(prefix)
        if token not in vocabulary or not right.startswith(prefix) or len(left) > 0xD000:
            return list(model["merges"])
        made.append(vocabulary[token])
        split.append(len(left))
    steps = [number - last for number, last in zip(made, [0, *made], strict=False)]
    return {"made": steps, "split": _characters(split)}


def _unpacked_merges(model: Json, tokens: Sequence[str]) -> list[list[str]]:
    """The inverse of `_packed_merges`."""
    prefix = model.get("continuing_subword_prefix") or ""
    merges, made = [], 0
    for step, split in zip(model["merges"]["made"], _numbers(model["merges"]["split"]), strict=True):
        made += step
        merges.append([tokens[made][:split], prefix + tokens[made][split:]])
    return merges
