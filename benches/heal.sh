#!/bin/bash
# What healing gives back: whole runs on CIFAR-10, calibrated on 5,000 training images and judged on all test images.
#
#   benches/heal.sh REAL PARING OUT [SEED...]
#
# REAL is a folder with resnet56/, vit_cifar10/ and cifar10/, PARING the program, OUT a folder for the runs. A row each: what was asked, right of
# 10,000 with its interval against the original, steps, the seconds of all. A run's healing takes as long as it says on a machine that does nothing
# else: a time becomes steps by the pace of its first seconds. Not here: how fast a step is (`train.rs`).
set -euo pipefail
real=$1 paring=$2 out=$3
shift 3
seeds=${*:-0 1 2}
mkdir -p "$out"
row() { # NAME SEED MODEL ARGS...
    local name=$1 seed=$2 model=$3
    shift 3
    local began=$SECONDS to=$out/$name-$seed
    "$paring" run "$real/$model" --data "$real/cifar10/test_batch.bin" --calib "$real/cifar10/calib_5000.bin" "$@" \
        --seed "$seed" --out "$to" > "$to.log" 2>&1 || { echo "$name seed $seed: $(tail -n 1 "$to.log")"; return; }
    python3 - "$to/report.json" "$name seed $seed" "$((SECONDS - began))" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
v, h = r["verdict"], r["rounds"][-1]["healing"]
steps = h["best"]["step"], h["healing"]["steps"]
change = f"{v['d_top1']:+.2f} [{v['d_top1_low']:+.2f}, {v['d_top1_high']:+.2f}]"
print(f"{sys.argv[2]}: {r['final']['correct']} right, {change} points, best of {steps[1]} steps {steps[0]}, {sys.argv[3]} s", flush=True)
PY
}
for seed in $seeds; do
    row macs50 "$seed" resnet56/resnet56-4bfd9763.th --budget macs=0.5,drop=5 --heal 20m
    row macs40 "$seed" resnet56/resnet56-4bfd9763.th --budget macs=0.4,drop=5 --heal 20m
    row w4 "$seed" resnet56/resnet56-4bfd9763.th --precision w4 --heal 15m
    row vit50 "$seed" vit_cifar10/vit_cifar10.pth --budget macs=0.5,drop=10 --heal 20m
    row labels50 "$seed" resnet56/resnet56-4bfd9763.th --budget macs=0.5,drop=5 --heal "20m labels"
done
