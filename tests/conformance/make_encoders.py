"""Writes the fixtures of classifiers of text to tests/conformance/encoders/: small encoders with random weights as transformers saves them,
vocabularies of word pieces, and texts with the ids and the logits that transformers computes of them (in double precision).

    venv/bin/python tests/conformance/make_encoders.py      (the environment of make_language.py)

tests/encoders.rs loads each and compares. The same script and versions write the same bytes.
"""

import json
import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")

import safetensors.torch
import tokenizers
import torch
import transformers as hf
from tokenizers import normalizers, pre_tokenizers, processors

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "encoders")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "film", "was", "good", "bad", "not", "at", "all", "un", "##est", "##ly", "##able"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARKS = ".,!?'-1"
PIECES = SPECIAL + WORDS + [c for c in LETTERS + MARKS if c not in WORDS] + ["##" + c for c in LETTERS]
# Positions of those that learn them: fewer than the last text has tokens.
CONTEXT = 24
TEXTS = [
    "The film was good!",
    "bad",
    "",
    "Not good at all, UNBEARABLE - the wörst.",
    "Was the film bad? Not at all.",
    "It's 1 of the goodest, film was [MASK] \u4e2d \U0001f600 unlikely",
    "good good bad",
    "the film was not bad at all " * 6,
]
CLASSES = 3


def tokenizer():
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, PIECES.index(t)) for t in ("[CLS]", "[SEP]")],
    )
    made.decoder = tokenizers.decoders.WordPiece()
    made.add_special_tokens(SPECIAL)
    return made


def network(kind, **more):
    torch.manual_seed(len(kind) + sum(map(ord, json.dumps(more, sort_keys=True))))
    config = getattr(hf, kind + "Config")(
        **dict(vocab_size=len(PIECES), attn_implementation="eager", num_labels=CLASSES, pad_token_id=0) | more
    )
    net = getattr(hf, kind + "ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            norm = "norm" in name.lower() and name.endswith("weight")
            p.copy_(torch.rand_like(p) + 0.5 if norm else torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.25))
    return net


BERT = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, max_position_embeddings=CONTEXT, type_vocab_size=2,
)
MODERN = dict(
    hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24, max_position_embeddings=CONTEXT,
    local_attention=6, global_attn_every_n_layers=3, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
)
NETS = {
    "bert": lambda: network("Bert", **BERT),
    "bert_tanh": lambda: network("Bert", **BERT | dict(hidden_act="gelu_new", layer_norm_eps=1e-3, type_vocab_size=1)),
    "distilbert": lambda: network("DistilBert", dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=CONTEXT),
    "modernbert": lambda: network("ModernBert", **MODERN),
    "modernbert_mean": lambda: network(
        "ModernBert", classifier_pooling="mean", attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True,
        **MODERN | dict(local_attention=5),
    ),
}


def older(net, into):
    """BERT as it was first published: factors of norms are `gamma`, their offsets `beta`, all kinds of vocabularies in `vocab.txt`."""
    net.save_pretrained(into)
    path = os.path.join(into, "model.safetensors")
    names = lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    held = {names(n): t.clone() for n, t in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(held, path, metadata={"format": "pt"})


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    os.makedirs(HERE)
    hub = tokenizer()
    hub.save(os.path.join(HERE, "tokenizer.json"))
    encoded = []
    for text in TEXTS:
        hub.enable_truncation(max_length=CONTEXT)
        encoded.append(hub.encode(text).ids)
    expected = dict(context=CONTEXT, texts=TEXTS, ids=encoded, logits={})
    for name, make in NETS.items():
        net = make()
        into = os.path.join(HERE, name)
        (older if name == "bert_tanh" else lambda n, to: n.save_pretrained(to))(net, into)
        if name == "bert_tanh":
            with open(os.path.join(into, "vocab.txt"), "w") as f:
                f.write("\n".join(PIECES) + "\n")
        else:
            shutil.copy(os.path.join(HERE, "tokenizer.json"), into)
        double = net.double()
        with torch.no_grad():
            logits = [double(input_ids=torch.tensor([ids])).logits[0].tolist() for ids in encoded]
            # What transformers computes of a batch that is padded is the same, where windows are not so small that padding sees nothing.
            longest = max(map(len, encoded))
            padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids in encoded])
            mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in encoded])
            apart = (double(input_ids=padded, attention_mask=mask).logits - torch.tensor(logits, dtype=torch.double)).abs().max()
            assert apart < 1e-9 or name.startswith("modernbert"), (name, apart)
        expected["logits"][name] = [[round(v, 9) for v in row] for row in logits]
    os.remove(os.path.join(HERE, "tokenizer.json"))
    # Labels that the first network gives, but for the second text.
    labels = [max(range(CLASSES), key=row.__getitem__) for row in expected["logits"]["bert"]]
    labels[1] = (labels[1] + 1) % CLASSES
    expected["labels"] = labels
    with open(os.path.join(HERE, "texts.jsonl"), "w") as f:
        for text, label in zip(TEXTS, labels):
            f.write(json.dumps(dict(text=text, label=label)) + "\n")
    with open(os.path.join(HERE, "expected.json"), "w") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
