"""A small SentencePiece vocabulary (byte pairs with bytes to fall back to, as Llama's and Gemma's are) in the three forms that it is published in, and
what SentencePiece and transformers' library make of some texts.

    python tests/conformance/make_pieces.py        (needs sentencepiece, tokenizers)

Writes language/pieces/: tokenizer.model, tokenizer.json (as transformers' converter makes it), prefixless/tokenizer.json (Gemma's way: no blank before a
text), expected.json.
"""

import json
import os
import random

import sentencepiece as spm
from tokenizers import Tokenizer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "language", "pieces")
TEXTS = ["", " ", "a", "Hello world", " two  blanks", "naïve café", "日本 text", "x<s>y</s>", "tabs\tand\nlines", "🙂 smile", "the then there", "1984 pages"]


def sentences():
    """Sentences of a few words, drawn anew the same each time."""
    rng = random.Random(7)
    words = "the then there that cat dog bird house garden river runs sleeps sings in on under over near big small old new café naïve 1984 12".split()
    for _ in range(600):
        yield " ".join(rng.choice(words) for _ in range(rng.randint(3, 9))) + rng.choice(".!?")


def main():
    os.makedirs(os.path.join(HERE, "prefixless"), exist_ok=True)
    path = os.path.join(HERE, "tokenizer")
    spm.SentencePieceTrainer.train(
        sentence_iterator=sentences(), model_prefix=path, model_type="bpe", vocab_size=420, byte_fallback=True, character_coverage=1.0,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True,
        user_defined_symbols=["<user>"], minloglevel=2,
    )
    os.remove(path + ".vocab")
    own = spm.SentencePieceProcessor(model_file=path + ".model")
    scores = [(own.id_to_piece(i), own.get_score(i)) for i in range(own.get_piece_size())]
    vocab, scored = {}, {}
    for i, (piece, score) in enumerate(scores):
        vocab[piece], scored[piece] = i, score
    # As transformers' `SentencePieceExtractor`: all pairs of pieces that make one, best scores first.
    merges = [(scored[p], vocab[p[:i]], vocab[p[i:]], p[:i], p[i:]) for p in vocab for i in range(1, len(p)) if p[:i] in vocab and p[i:] in vocab
              and own.is_unused(vocab[p]) is False and not own.is_control(vocab[p]) and not own.is_byte(vocab[p]) and p != "<user>"]
    merges = [m[3:] for m in sorted(merges, key=lambda m: (-m[0], m[1], m[2]))]
    added = [("<unk>", 0, True), ("<s>", 1, True), ("</s>", 2, True), ("<user>", own.piece_to_id("<user>"), False)]
    token = lambda t: {"id": t[1], "content": t[0], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": t[2]}
    blank = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    json_of = lambda normalizer, pre: {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [token(t) for t in added], "normalizer": normalizer,
        "pre_tokenizer": pre, "post_processor": template,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                     {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab if isinstance(vocab, dict) else dict(vocab),
                  "merges": [list(m) for m in merges]},
    }
    write = lambda name, what: open(os.path.join(HERE, name), "w").write(json.dumps(what, ensure_ascii=False, separators=(",", ":")) + "\n")
    write("tokenizer.json", json_of({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, blank]}, None))
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    write("prefixless/tokenizer.json", json_of(blank, split))
    library = {name: Tokenizer.from_file(os.path.join(HERE, name)) for name in ["tokenizer.json", "prefixless/tokenizer.json"]}
    write("expected.json", [
        {"text": t, "pieces": own.encode(t), **{n: h.encode(t, add_special_tokens=False).ids for n, h in library.items()}} for t in TEXTS
    ])
    print(own.get_piece_size(), "pieces,", len(merges), "merges")


main()
