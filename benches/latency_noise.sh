#!/usr/bin/env bash
# Latency under noise, by hand: benches/latency_noise.sh [load] [PARING]
#
# Without `load`, on a quiet machine: three profiles of either demo in a row, and every figure that is not marked has to agree
# with its counterparts within the spreads that the two state.
# With `load`: another process uses all cores half of the time (PERIOD_MS of work, as much rest). The demo's profile has to mark
# what it could not measure, and in a session on the demo no saving that is forecast may exceed what its rows take.
# Exit code 0: it held.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=quiet
if [[ ${1:-} == load ]]; then mode=load; shift; fi
paring=${1:-target/release/paring}
[[ -x $paring ]] || { echo "latency_noise: no \`$paring\`; hint: cargo build --release, or name the binary" >&2; exit 2; }
work=$(mktemp -d)
export PARING_HOME=$work/home XDG_CACHE_HOME=$work/cache
load=
finish() {
    if [[ -n $load ]]; then kill "$load" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap finish EXIT

if [[ $mode == load ]]; then
    python3 - "${PERIOD_MS:-200}" <<'PY' &
import os, sys, time
half, parent = float(sys.argv[1]) / 1e3, os.getpid()
for _ in range(os.cpu_count() - 1):
    if os.fork() == 0:
        break
child = os.getpid() != parent
while not (child and os.getppid() != parent):
    # By the clock, so that all processes work and rest together.
    if int(time.monotonic() / half) % 2 == 0:
        end = (int(time.monotonic() / half) + 1) * half
        while time.monotonic() < end:
            pass
    else:
        time.sleep(half / 20)
PY
    load=$!
    sleep 1
fi

profiles() {
    for i in 1 2 3; do "$paring" profile "$1" --json >"$work/$2.$i.json"; done
}
profiles demo:vit vit
profiles demo:cnn cnn
if [[ $mode == load ]]; then
    "$paring" run demo:vit --data synthetic:eval --calib synthetic:calib --limit 400 \
        --budget macs=0.6,drop=9 --policy auto --rounds 1 --out "$work/out" --json >"$work/run.json" || [[ $? == 3 ]]
fi

python3 - "$work" "$mode" <<'PY'
import itertools, json, os, sys
work, mode = sys.argv[1:]
bad, compared, marked = [], 0, 0
for net in ("vit", "cnn"):
    all = [json.load(open(f"{work}/{net}.{i}.json")) for i in (1, 2, 3)]
    for p in all:
        rows, whole = p["rows"], p["whole"]["p50"]
        doubts = sum("doubt" in r for r in rows)
        marked += doubts + ("doubt" in p)
        load = p["load"]
        print(f"{net}: whole {whole:.3f}{'?' if 'doubt' in p else ''} ms ±{whole * p['whole']['spread']:.3f}, "
              f"{doubts} of {len(rows)} rows marked, others {load['others']:.2f}, waited {load['waited']:.3f}, "
              f"set aside {load['set_aside']:.2f}, {p['runs']} runs")
    for a, b in itertools.combinations(all, 2):
        def near(what, x, dx, y, dy):
            global compared
            compared += 1
            if abs(x - y) > dx + dy:
                bad.append(f"{net} {what}: {x:.4f} ±{dx:.4f} and {y:.4f} ±{dy:.4f} ms")
        if "doubt" not in a and "doubt" not in b:
            wa, wb = a["whole"], b["whole"]
            near("whole", wa["p50"], wa["p50"] * wa["spread"], wb["p50"], wb["p50"] * wb["spread"])
        for r, s in zip(a["rows"], b["rows"]):
            if "doubt" not in r and "doubt" not in s:
                near(r["name"], r["ms"], r["spread_ms"], s["ms"], s["spread_ms"])
print(f"{compared} comparisons of what is not marked, {len(bad)} beyond what both state")
for line in bad:
    print("  " + line)
if mode == "load":
    run = json.load(open(f"{work}/run.json"))
    over = 0
    for r in run["rounds"]:
        for d in r["decisions"]:
            f = d.get("forecast") or {}
            change, touched = f.get("d_latency_ms", {}), f.get("touched_ms", 0.0)
            if change and -change["low"] > touched + 1e-9:
                over += 1
                print(f"  {d['target']}: saves up to {-change['low']:.3f} of {touched:.3f} ms")
        print("round", r["round"], "latency", json.dumps(r["measured"].get("latency_factor")))
    print(f"{marked} figures marked, {over} savings beyond their rows")
    sys.exit(over > 0 or bool(bad))
sys.exit(bool(bad))
PY
