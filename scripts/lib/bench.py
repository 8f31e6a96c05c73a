# SPDX-License-Identifier: GPL-2.0 OR MIT
"""bench.py BUILD [guest] [wire] [recording] [engine]: from the lines of scripts/bench to tables, bench.json, bench-wire.json,
bench-recording.json, bench-engine.json and bench.svg."""
import json
import math
import statistics
import sys
from html import escape


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
    """One row for each test and size, in the order of the run: `one` beside `base`. `others`: those of `base` on another way, which count
    where they are better."""
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
    """With three digits and the unit that fits: 15.4 us, 43.7 MiB/s, 9.88 GiB/s."""
    if unit == "MiB/s":
        for name, factor in (("GiB/s", 1 / 1024), ("MiB/s", 1), ("KiB/s", 1024)):
            if value * factor >= 0.9995 or name == "KiB/s":
                value, unit = value * factor, name
                break
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 3)}f} {unit}"


def text_width(text, size=13):
    """At most so many pixels in any sans-serif font that a viewer may take."""
    return math.ceil(len(text) * size * 0.62)


def picture(rows):
    """Horizontal bars of the ratios, logarithmic."""
    labels = [f'{r["test"]}, {size_name(r["size"])}' for r in rows]
    figures = [f'{r["ratio"]:.{1 if r["ratio"] < 100 else 0}f}x  ({amount(r["verbena"], r["unit"])} / {amount(r["rxe"], r["unit"])})' for r in rows]
    title = "Verbena against rxe in one guest: how many times better (median)"
    height, left, width, top = 26, 26 + max(map(text_width, labels)), 560, 60
    high = max(10.0, max(r["ratio"] for r in rows)) * 1.3
    low = min(1.0, min(r["ratio"] for r in rows)) / 1.05
    x = lambda v: left + width * math.log(v / low) / math.log(high / low)
    total = top + height * len(rows) + 40
    right = max([x(max(1.0, r["ratio"])) + 6 + text_width(f) for r, f in zip(rows, figures)] + [16 + text_width(title, 17)]) + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right:.0f}" height="{total}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="16" y="26" font-size="17">{title}</text>',
        '<text x="16" y="45" fill="#666">latency: rxe / Verbena; bandwidth: Verbena / rxe; logarithmic</text>',
    ]
    tick = 10 ** math.floor(math.log10(low))
    while tick <= high:
        for m in (1, 2, 5):
            v = tick * m
            if low <= v <= high:
                colour = "#000" if v == 1 else "#ddd"
                out.append(f'<line x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{top - 4}" y2="{total - 34}" stroke="{colour}"/>')
                out.append(f'<text x="{x(v):.1f}" y="{total - 16}" text-anchor="middle" fill="#666">{v:g}</text>')
        tick *= 10
    for i, r in enumerate(rows):
        y = top + i * height
        a, b = sorted((x(1.0), x(r["ratio"])))
        colour = "#3a7d44" if r["ratio"] >= 1 else "#b3433a"
        out.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end">{escape(labels[i])}</text>')
        out.append(f'<rect x="{a:.1f}" y="{y + 4}" width="{max(b - a, 1):.1f}" height="{height - 8}" fill="{colour}"/>')
        out.append(f'<text x="{b + 6:.1f}" y="{y + 17}">{escape(figures[i])}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


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


def main():
    build, parts = sys.argv[1], sys.argv[2:]
    if "guest" in parts:
        rows = summarise(lines(f"{build}/bench.jsonl"))
        table(rows, "in one guest")
        result = [r["row"] for r in rows]
        write(f"{build}/bench.json", result)
        with open(f"{build}/bench.svg", "w") as f:
            f.write(picture(result))
        print(f"\nwritten: {build}/bench.json, {build}/bench.svg")
    if "wire" in parts:
        samples, result = lines(f"{build}/bench-wire.jsonl"), []
        others = [s for s in samples if s["link"] == "switch"]
        for link, what in ("one-process", "between guests of one NIC process"), ("unix", "between two NICs joined by UNIX sockets"):
            rows = summarise([s for s in samples if s["link"] == link], others)
            table(rows, what)
            result += [{"link": link, **r["row"]} for r in rows]
        write(f"{build}/bench-wire.json", result)
        print(f"\nwritten: {build}/bench-wire.json")
    if "recording" in parts:
        rows = summarise(lines(f"{build}/bench-recording.jsonl"), one="recorded", base="unrecorded")
        table(rows, "in one guest, with the flight recorder and without", "recorded", "unrecorded")
        write(f"{build}/bench-recording.json", [r["row"] for r in rows])
        print(f"\nwritten: {build}/bench-recording.json")
    if "engine" in parts:
        engine = lines(f"{build}/bench-engine.jsonl")
        write(f"{build}/bench-engine.json", engine)
        print("\nthe engine alone\n")
        for e in engine:
            print("  " + "  ".join(f"{k}={v:.5g}" if isinstance(v, float) else f"{k}={v}" for k, v in e.items()))
        print(f"\nwritten: {build}/bench-engine.json")


if __name__ == "__main__":
    main()
