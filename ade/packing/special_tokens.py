"""The special tokens of a tokenizer, as transformers asks for them."""

from tokenizers import AddedToken, Tokenizer

USUAL = {
    "pad_token": ("[PAD]", "<pad>", "<unk>", "[UNK]"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]",),
    "sep_token": ("[SEP]",),
    "mask_token": ("[MASK]", "<mask>"),
    "bos_token": ("<s>",),
    "eos_token": ("</s>",),
}


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens that transformers asks for, found by their usual spellings; always one for padding.

    Where no token is there for padding, one is added to the tokenizer's special tokens.
    """
    known = tokenizer.get_vocab(with_added_tokens=True)
    chosen = {kind: next((token for token in tokens if token in known), None) for kind, tokens in USUAL.items()}
    special = {kind: token for kind, token in chosen.items() if token is not None}
    if "pad_token" not in special:
        special["pad_token"] = _pad_token(tokenizer)
    return special


def _pad_token(tokenizer: Tokenizer) -> str:
    """Choose a token for padding in a tokenizer that names none: a special token, or one that occurs in no text.

    Padding is masked, so any token does for the model. But transformers splits texts at special tokens before it
    tokenizes the rest, so the spelling should be one that texts do not contain: the longest token whose spelling is not
    tokenized to itself, like '##ing'; where there is none, any token, matched as a whole word only.
    """
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]
    if special:
        return special[0]

    ids = tokenizer.get_vocab()
    longest_first = sorted(ids, key=lambda token: (-len(token), ids[token]))
    unspelled = (
        token for token in longest_first if tokenizer.encode(token, add_special_tokens=False).ids != [ids[token]]
    )
    chosen = next(unspelled, min(ids, key=ids.__getitem__))
    tokenizer.add_special_tokens([AddedToken(chosen, single_word=True, normalized=False, special=True)])
    return chosen
