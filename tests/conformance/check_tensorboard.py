"""Reads a run that paring wrote with TensorBoard's own reader and holds it against the profile's JSON.

    pip install tensorboard
    paring profile MODEL --parameters --json --tensorboard RUN > profile.json
    python check_tensorboard.py RUN profile.json
"""
import json
import math
import sys

from tensorboard.backend.event_processing import event_accumulator

run, profile = sys.argv[1], json.load(open(sys.argv[2]))
everything = {kind: 0 for kind in (event_accumulator.SCALARS, event_accumulator.HISTOGRAMS, event_accumulator.TENSORS)}
events = event_accumulator.EventAccumulator(run, size_guidance=everything)
events.Reload()
tags = events.Tags()


def close(a, b, part=1e-6):
    return math.isclose(a, b, rel_tol=part, abs_tol=1e-9)


rows = profile["rows"]
per_row = {
    "layers/p50_ms": lambda r: r["ms"],
    "layers/share": lambda r: r["share"],
    "layers/params": lambda r: r["params"],
    "layers/weight_bytes": lambda r: r["weight_bytes"],
    "layers/activation_bytes": lambda r: r["activation_bytes"],
    "layers/macs": lambda r: r["macs"]["conv_linear"],
}
for tag, of in per_row.items():
    found = events.Scalars(tag)
    assert [e.step for e in found] == list(range(len(rows))), f"{tag}: steps {[e.step for e in found]}"
    for e, row in zip(found, rows):
        assert close(e.value, of(row)), f"{tag} of {row['name']}: {e.value}, not {of(row)}"
assert close(events.Scalars("whole/p50_ms")[0].value, profile["whole"]["p50"])

weights = {p["name"]: p for p in profile["parameters"]}
told = {t.removeprefix("weights/") for t in tags["histograms"]}
assert told == set(weights), f"histograms of {told ^ set(weights)}"
values = 0
for name, p in weights.items():
    h = events.Histograms(f"weights/{name}")[0].histogram_value
    assert h.num == p["values"] == sum(h.bucket), f"{name}: {h.num} of {p['values']}, {sum(h.bucket)} in buckets"
    assert all(a < b for a, b in zip(h.bucket_limit, h.bucket_limit[1:])), f"{name}: limits do not ascend"
    if not p.get("sampled"):
        assert close(h.min, p["min"]) and close(h.max, p["max"]), f"{name}: from {h.min} to {h.max}"
        assert close(math.sqrt(h.sum_squares), p["l2"], 1e-4), f"{name}: norm {math.sqrt(h.sum_squares)}, not {p['l2']}"
    values += int(h.num)
texts = [t for t in tags["tensors"]]
for tag in ("conditions", "figures", "layers"):
    assert tag in texts, f"no text `{tag}` in {texts}"
    assert events.summary_metadata[tag].plugin_data.plugin_name == "text"
layers = events.Tensors("layers")[0].tensor_proto.string_val[0].decode()
assert all(row["name"] in layers for row in rows)
print(f"{len(rows)} rows, {len(weights)} histograms of {values} values, texts: all as in the JSON")
