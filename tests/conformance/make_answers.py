"""Figures of written answers by the packages that the field counts with: SQuAD's script (written out: evaluate-v1.1.py), rouge_score, sacreBLEU.

    python make_answers.py          (needs rouge_score and sacrebleu)
"""
import collections
import json
import re
import string
from pathlib import Path

import sacrebleu
from rouge_score import rouge_scorer

CASES = [
    ("The cat sat on the mat.", ["The cat sat on the mat."]),
    ("a cat sat on a mat", ["The cat sat on the mat.", "Cats sit on mats"]),
    ("It is 3.14, roughly; 1,000 times more-or-less.", ["It's 3.14 (about), 1,000 times more or less."]),
    ("Paris", ["paris", "Paris, France"]),
    ("", ["something"]),
    ("the", ["a"]),
    ("Tom &amp; Jerry said: \"no\" &lt;twice&gt; [sic] {x} ~ `y` a/b 5-6 x-y",
     ["Tom & Jerry said \"no\" <twice> [sic] {x}", "Tom and Jerry said no"]),
    ("naïve café costs 5 €, isn't it? Größe!", ["The naive café costs 5 €; isn't it?", "Größe"]),
    ("one two three four five six seven eight", ["one two four three five six eight seven", "one two three"]),
    ("line one\nline two-\nthree", ["line one line two three"]),
    ("word word word word", ["word"]),
    ("..., -- 1.5.2 ,a .b 2-3-4", ["1.5.2 a b 2-3-4 ..."]),
]
names = ["rouge1", "rouge2", "rougeL"]
rouge = rouge_scorer.RougeScorer(names, use_stemmer=False)


def normal(s):
    s = "".join(c for c in s.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())


def f1(a, b):
    a, b = normal(a).split(), normal(b).split()
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    return 0.0 if same == 0 else 2 * (same / len(a)) * (same / len(b)) / (same / len(a) + same / len(b))


def bleu(said, right):
    most = max(len(r) for r in right)
    streams = [[r[i] if i < len(r) else None for r in right] for i in range(most)]
    return sacrebleu.corpus_bleu(said, streams).score


cases = []
for said, right in CASES:
    case = {"said": said, "right": right, "exact": float(any(normal(said) == normal(r) for r in right))}
    case["f1"] = max(f1(said, r) for r in right)
    for n in names:
        case[n] = max(rouge.score(r, said)[n].fmeasure for r in right)
    case["bleu"] = bleu([said], [right])
    cases.append(case)
out = {"cases": cases, "bleu": bleu([s for s, _ in CASES], [r for _, r in CASES])}
(Path(__file__).parent / "language/answers.json").write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")
