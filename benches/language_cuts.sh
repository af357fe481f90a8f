#!/bin/sh
# Masks and cuts of a language model side by side, on text that none was made with: how far each moves the model's answers (KL divergence in nats a
# token, with its interval over windows), perplexity, and weights. Weights are written in 16 bits, so that nothing is rounded besides.
#
#   benches/language_cuts.sh MODEL CALIB.txt EVAL.txt OUT [WINDOWS]     (a release build; minutes a row)
#
# WINDOWS of 512 tokens of EVAL, 0 for all; rows that OUT has already are not made again.
set -eu
model=$1 calib=$2 eval=$3 out=$4 windows=${5:-0}
paring=${PARING:-target/release/paring}
limit=${LIMIT:-64}
mkdir -p "$out"

row() {
    name=$1
    shift
    file="$out/$name.safetensors"
    [ -s "$out/$name.made.json" ] ||
        "$paring" convert "$model" --calib "$calib" --limit "$limit" --precision f16 --out "$file" --json "$@" >"$out/$name.made.json"
    [ -s "$out/$name.json" ] ||
        "$paring" eval "$file" --tokenizer "$model" --data "$eval" --limit "$windows" --against "$model" --json >"$out/$name.json"
    python3 - "$name" "$out/$name.made.json" "$out/$name.json" <<'PY'
import json, sys
name, made, said = sys.argv[1], *(json.load(open(p)) for p in sys.argv[2:])
kl = said["against"]["kl_divergence"]
low, high = kl["range"] if "range" in kl else (kl.get("low"), kl.get("high"))
print(f"{name:12} {made['weights']/1e6:7.1f} M weights  KL {kl['mean']:.4f} [{low:.4f}, {high:.4f}]  perplexity {said['perplexity']:.2f}", flush=True)
PY
}

row magnitude --sparsity 2:4 --masks magnitude
row wanda --sparsity 2:4 --masks wanda
row sparsegpt --sparsity 2:4 --masks sparsegpt
row learnt --sparsity 2:4 --masks learnt
row joint10 --prune 10%
row blocks10 --prune 10% --prune-by influence
row joint20 --prune 20%
row blocks20 --prune 20% --prune-by influence
row factors50 --factors 50%
