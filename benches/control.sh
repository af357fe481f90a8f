#!/usr/bin/env bash
# Controllers beside fixed levels, by hand: [CALIB=200] [HELD=24] benches/control.sh MODEL TEXT [PARING] [FLAG...]
#
# Levels and controllers are made with the last quarter of TEXT and judged on its first: what is reported was never learnt from. Prints what
# `paring control` tells; with --json, all of it. CALIB and HELD are windows of 144 tokens to make them with and to judge them on. Times are compared window by window in turns, so that a shared machine disturbs all alike.
set -euo pipefail

model=${1:?a language model}
text=${2:?a file of text}
paring=${3:-"$(dirname "$0")/../target/release/paring"}
shift $(($# < 3 ? $# : 3))
[[ -x $paring ]] || { echo "control: no \`$paring\`; hint: cargo build --release, or name the binary" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$text" "$work" <<'PY'
import pathlib, sys
text, work = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), pathlib.Path(sys.argv[2])
def lines(a, b):
    part = text[a:b]
    return part[part.find("\n") + 1 : part.rfind("\n") + 1]
n = len(text)
(work / "held.txt").write_text(lines(0, n // 4), encoding="utf-8")
(work / "calib.txt").write_text(lines(3 * n // 4, n), encoding="utf-8")
PY
"$paring" control "$model" --calib "$work/calib.txt" --data "$work/held.txt" --out "$work/control.safetensors" \
    --levels 5 --window 144 --calib-limit "${CALIB:-200}" --limit "${HELD:-24}" "$@"
