# SPDX-License-Identifier: GPL-2.0 OR MIT
"""bench.py BUILD [guest] [wire] [recording] [engine]: makes tables, bench.json, bench-wire.json, bench-recording.json, bench-engine.json
and bench.svg from the results of scripts/bench."""
import json
import math
import os
import statistics
import sys

import bench_picture


def lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def size_name(size):
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def spread(values):
    """Half the range, in percent of the median."""
    return 50 * (max(values) - min(values)) / statistics.median(values)


def summarise(samples, others=(), one="verbena", base="rxe"):
    """Returns a row for each test and size, in the order of the run, which compares `one` with `base`. `others`: results of `base` over
    another link, which are used where they are better."""
    groups, also = {}, {}
    for s in samples:
        groups.setdefault((s["test"], s["size"]), {}).setdefault(s["device"].rstrip("0123456789"), []).append(s["value"])
    for s in others:
        also.setdefault((s["test"], s["size"]), []).append(s["value"])
    rows = []
    for (test, size), by_device in groups.items():
        latency = test.endswith("_lat")
        better = min if latency else max
        by_device[base] = better((v for v in (by_device[base], also.get((test, size))) if v), key=statistics.median)
        ours, theirs = statistics.median(by_device[one]), statistics.median(by_device[base])
        rows.append({
            "row": {
                "test": test, "size": size, "unit": "us" if latency else "MiB/s", one: ours, base: theirs,
                "ratio": round(theirs / ours if latency else ours / theirs, 3),
            },
            "spread": (spread(by_device[one]), spread(by_device[base])),
            "rounds": min(len(v) for v in by_device.values()),
        })
    return rows


def amount(value, unit):
    """Formats with three digits and a suitable unit: 15.4 us, 43.7 MiB/s, 9.88 GiB/s."""
    if unit == "MiB/s":
        for name, factor in (("GiB/s", 1 / 1024), ("MiB/s", 1), ("KiB/s", 1024)):
            if value * factor >= 0.9995 or name == "KiB/s":
                value, unit = value * factor, name
                break
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 3)}f} {unit}"


def describe(abouts):
    """Describes machine, day and versions of a part, from the lines of its guests and of the machine."""
    about = {}
    for one in abouts:
        about |= one
    names = ("date", "cpu", "cores", "accelerator", "verbena", "kernel", "qemu", "rdma-core")
    before = {"cores": "", "verbena": "Verbena ", "kernel": "Linux ", "qemu": "QEMU ", "rdma-core": "rdma-core "}
    after = {"cores": " cores"}
    return ", ".join(f"{before.get(name, '')}{about[name]}{after.get(name, '')}" for name in names if name in about)


def panel(rows, title, about, one="verbena", base="rxe"):
    """Returns a part in the form of the picture."""
    bars = []
    for r in rows:
        row, (a, b) = r["row"], r["spread"]
        figures = f"{amount(row[one], row['unit'])} \u00b1{a:.0f}% / {amount(row[base], row['unit'])} \u00b1{b:.0f}%"
        bars.append((f"{row['test']}, {size_name(row['size'])}", row["ratio"], f"{bench_picture.times(row['ratio'])}  ({figures})"))
    return {"title": title, "about": about, "axis": f"{one} / {base}: above 1 {one} is better", "rows": bars}


def table(rows, what, one="verbena", base="rxe"):
    print(f"\nperftest, RC, {what}, medians of {min(r['rounds'] for r in rows)} rounds (± half the range); ratio above 1: {one} is better\n")
    print(f"  {'test':16}{'size':>9}{one:>20}{base:>20}{'ratio':>9}")
    for r in rows:
        row, (a, b) = r["row"], r["spread"]
        print(f"  {row['test']:16}{size_name(row['size']):>9}"
              f"{f'''{amount(row[one], row['unit'])} ±{a:.0f}%''':>20}{f'''{amount(row[base], row['unit'])} ±{b:.0f}%''':>20}{row['ratio']:>9.3g}")


def write(path, rows):
    with open(path, "w") as f:
        json.dump(rows, f, indent=1)
        f.write("\n")


def read(path):
    """Returns the measurements, and the description of machine, day and versions."""
    all_lines = lines(path)
    return [line for line in all_lines if "test" in line], describe(line["about"] for line in all_lines if "about" in line)


def guest(build):
    samples, about = read(f"{build}/bench.jsonl")
    rows = summarise(samples)
    return [(rows, "in one guest", about, {})]


def wire(build):
    samples, about = read(f"{build}/bench-wire.jsonl")
    others = [s for s in samples if s["link"] == "switch"]
    links = ("one-process", "between guests of one NIC process"), ("unix", "between two NICs joined by UNIX sockets")
    return [(summarise([s for s in samples if s["link"] == link], others), what, about, {"link": link}) for link, what in links]


def recording(build):
    samples, about = read(f"{build}/bench-recording.jsonl")
    return [(summarise(samples, one="recorded", base="unrecorded"), "in one guest, with the flight recorder and without", about, {})]


# Of each part: the function that reads its results, its file, and the names of the compared sides.
PARTS = {
    "guest": (guest, "bench.json", ("verbena", "rxe")),
    "wire": (wire, "bench-wire.json", ("verbena", "rxe")),
    "recording": (recording, "bench-recording.json", ("recorded", "unrecorded")),
}


def main():
    build, parts = sys.argv[1], sys.argv[2:]
    panels = []
    for part, (results, name, sides) in PARTS.items():
        # The picture includes results of earlier runs, each with its date.
        if part not in parts and not os.path.exists(f"{build}/{name}l"):
            continue
        found = results(build)
        panels += [panel(rows, f"perftest, RC, {what}", about, *sides) for rows, what, about, _ in found]
        if part not in parts:
            continue
        for rows, what, _, _ in found:
            table(rows, what, *sides)
        write(f"{build}/{name}", [{**more, **r["row"]} for rows, _, _, more in found for r in rows])
        print(f"\nwritten: {build}/{name}")
    if panels:
        with open(f"{build}/bench.svg", "w", encoding="utf-8") as f:
            f.write(bench_picture.picture(panels))
        print(f"written: {build}/bench.svg")
    if "engine" in parts:
        engine = lines(f"{build}/bench-engine.jsonl")
        write(f"{build}/bench-engine.json", engine)
        print("\nthe engine alone\n")
        for e in engine:
            print("  " + "  ".join(f"{k}={v:.5g}" if isinstance(v, float) else f"{k}={v}" for k, v in e.items()))
        print(f"\nwritten: {build}/bench-engine.json")


if __name__ == "__main__":
    main()
