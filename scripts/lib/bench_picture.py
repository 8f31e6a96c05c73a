# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The picture of the results of scripts/bench: a panel for each part, with machine, day and versions. `bench_picture.py README.md` prints
the picture of the tables in README.md (Documentation/pictures/bench.svg), which may be older than the last run.
"""
import math
import re
import sys
from html import escape

# Pixels: height of a bar with its gap, width of the bars, space above and below the bars of a panel.
HIGH, WIDE, ABOVE, BELOW = 24, 320, 62, 46
# The colours differ for colour-blind readers too, on light and dark backgrounds. A bar to the left of 1 means worse. The outline of text
# hides lines under it.
STYLE = """
svg { background: #fff; } text { fill: #1b1f24; font: 13px system-ui, sans-serif; paint-order: stroke; stroke: #fff; stroke-width: 4px; } .head { font-size: 20px; font-weight: 600; }
.title { font-size: 15px; font-weight: 600; } .soft { fill: #57606a; font-size: 12px; } .grid { stroke: #d3d9e0; } .one { stroke: #1b1f24; }
.better { fill: #2f62d9; } .worse { fill: #b58e10; }
@media (prefers-color-scheme: dark) {
svg { background: #14181d; } text { fill: #e8ecf1; stroke: #14181d; } .soft { fill: #a3adb8; } .grid { stroke: #37414c; } .one { stroke: #e8ecf1; }
.better { fill: #5b8cff; } .worse { fill: #ffa000; } }
"""


def text_width(text, size=13):
    """Returns an upper bound of the width in pixels, for any sans-serif font that a viewer may use."""
    return math.ceil(len(text) * size * 0.62)


def text(x, y, content, look="", end=""):
    look = f' class="{look}"' if look else ""
    end = f' text-anchor="{end}"' if end else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{look}{end}>{escape(content)}</text>'


def scale(ratios):
    """Returns the ticks of a panel's axis, its ends, and whether it is logarithmic, which a wide range needs."""
    low, high = min(1.0, *ratios), max(1.0, *ratios)
    if high / low < 5:
        step = 0.05 if high - low < 0.3 else 0.5
        low, high = math.floor(low / step - 0.5) * step, math.ceil(high / step + 0.5) * step
        return [low + n * step for n in range(round((high - low) / step) + 1)], low, high, False
    low, high = low / 1.1, high * 1.3
    ticks = [m * 10.0 ** n for n in range(-3, 7) for m in ((1, 2, 5) if high / low < 200 else (1,))]
    return [tick for tick in ticks if low <= tick <= high], low, high, True


def panel(top, left, one):
    """Returns the elements of a panel, its height and its width. `one` has title, about, axis and rows: (label, ratio, figures)."""
    rows = one["rows"]
    ticks, low, high, is_log = scale([ratio for _, ratio, _ in rows])

    def x(ratio):
        part = math.log(ratio / low) / math.log(high / low) if is_log else (ratio - low) / (high - low)
        return left + WIDE * part

    # Machine and day are below the title, unless they are the same for all panels.
    above = ABOVE if one["about"] else ABOVE - 18
    bottom = top + above + HIGH * len(rows)
    out = [text(20, top + 20, one["title"], "title")]
    if one["about"]:
        out.append(text(20, top + 39, one["about"], "soft"))
    for tick in ticks:
        look = "one" if math.isclose(tick, 1) else "grid"
        out.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top + above - 6}" y2="{bottom + 4}" class="{look}"/>')
        out.append(text(x(tick), bottom + 18, f"{tick:.4g}", "soft", "middle"))
    out.append(text(left + WIDE / 2, bottom + 34, one["axis"] + (", logarithmic" if is_log else ""), "soft", "middle"))
    wide = max(20 + text_width(one["title"], 15), 20 + text_width(one["about"], 12))
    for n, (label, ratio, figures) in enumerate(rows):
        y, (begin, end) = top + above + n * HIGH, sorted((x(1.0), x(ratio)))
        look = "better" if ratio >= 1 else "worse"
        out.append(text(left - 10, y + 16, label, "", "end"))
        out.append(f'<rect x="{begin:.1f}" y="{y + 3}" width="{max(end - begin, 1):.1f}" height="{HIGH - 7}" rx="2" class="{look}"/>')
        out.append(text(max(end, x(1.0)) + 7, y + 16, figures))
        wide = max(wide, max(end, x(1.0)) + 7 + text_width(figures))
    return out, bottom + BELOW - top, wide


def picture(panels):
    """Returns all panels, one below the other, as SVG."""
    left = 30 + max(text_width(label) for one in panels for label, _, _ in one["rows"])
    out, top, wide = [], 44, 300
    about = panels[0]["about"]
    if all(one["about"] == about for one in panels):
        panels = [{**one, "about": ""} for one in panels]
        out, top, wide = [text(20, 50, about, "soft")], 62, 20 + text_width(about, 12)
    for one in panels:
        lines, height, width = panel(top, left, one)
        out, top, wide = out + lines, top + height, max(wide, width)
    size = f'width="{wide + 20:.0f}" height="{top}" viewBox="0 0 {wide + 20:.0f} {top}"'
    head = text(20, 30, "Verbena: medians, and how many times better", "head")
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{STYLE}</style>", head, *out, "</svg>"]) + "\n"


def times(ratio):
    return f"{ratio:.3g}x" if ratio < 100 else f"{ratio:.0f}x"


def tables(lines):
    """Yields the tables of a Markdown file, each as a list of rows of cells."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else None for line in lines]
    table = []
    for row in [*rows, None]:
        if row is None:
            if table:
                yield table
            table = []
        elif not all(re.fullmatch("-+", cell) for cell in row):
            table.append(row)


def of_readme(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    about = "Two cores, QEMU's TCG (no KVM); README.md says what is compared."
    panels = []
    for table in tables(lines):
        head = table[0]
        for column in (n for n, name in enumerate(head) if name == "ratio" and head[0] == "test"):
            name = head[column - 1]
            title = "In one guest: Verbena / rxe" if name == "rxe" else f"From guest to guest ({name}): Verbena, and times rxe"
            value = head.index("Verbena") if name == "rxe" else column - 1
            rows = []
            for row in table[1:]:
                ratio = float(row[column])
                figures = f"{times(ratio)}  ({row[value]}" + (f" / {row[column - 1]})" if name == "rxe" else ")")
                rows.append((row[0], ratio, figures))
            panels.append({"title": title, "about": about, "axis": "times better than rxe", "rows": rows})
    return picture(panels)


if __name__ == "__main__":
    sys.stdout.write(of_readme(sys.argv[1]))
