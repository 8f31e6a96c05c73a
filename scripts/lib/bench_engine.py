# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Joins the results with targets, Criterion's estimates and the results over a wire: {"targets": [...], "criterion": [{name, ns, rate, unit},
...], "wire": [{test, size, unit, value, memcpy, ratio}, ...]}."""

import json
import pathlib
import sys

targets, criterion, wire = map(pathlib.Path, sys.argv[1:4])
rows = []
for file in sorted(criterion.glob("**/new/estimates.json")):
    about = json.loads((file.parent / "benchmark.json").read_text())
    ns = json.loads(file.read_text())["median"]["point_estimate"]
    row = {"name": about["full_id"], "ns": round(ns, 2)}
    for kind, unit in (("Elements", "/s"), ("Bytes", "B/s")):
        count = (about.get("throughput") or {}).get(kind)
        if count:
            row |= {"rate": round(count * 1e9 / ns), "unit": unit}
    rows.append(row)
wires = [json.loads(line) for line in wire.read_text().splitlines()]
print(json.dumps({"targets": json.loads(targets.read_text()), "criterion": rows, "wire": wires}, indent=1))
