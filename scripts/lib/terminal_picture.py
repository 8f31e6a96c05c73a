# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of `scripts/terminal draw`: `terminal_picture.py FILE` prints a moving picture (SVG with CSS) of a recording in the format asciicast 2.

The terminal knows carriage return, line feed and "erase to the end of the line"; another control sequence is an error. Each piece of a line
that does not change for a while is a text element with the times at which it appears and disappears. Readers who want no motion see the end.
"""
import json
import re
import sys
from html import escape

# Pixels.
ADVANCE, LINE, SIZE, MARGIN = 7.8, 18, 13, 14
# Longest pause and least time between two frames in seconds, and the pause at the end. The times of commands are shortened, not the texts.
LONGEST_PAUSE, LEAST, END = 1.0, 0.12, 6.0
# A progress line counts seconds. It is shown faster.
PROGRESS, PROGRESS_PAUSE = re.compile(r"^booting "), 0.05
STYLE = f"""rect {{ fill: #14181d; }} text {{ fill: #e8ecf1; font: {SIZE}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre; }}
.p {{ fill: #7ee0a0; }} .e {{ fill: #ffb454; }} .s {{ fill: #8b98a5; }}"""


class Screen:
    def __init__(self, columns, rows):
        self.columns, self.rows, self.lines, self.column = columns, rows, [""], 0

    def write(self, text):
        for part in re.findall(r"\x1b\[K|\r|\n|[^\x00-\x1f]+|\t|.", text, re.DOTALL):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.lines.append("")
                self.column = 0
            elif part == "\x1b[K":
                self.lines[-1] = self.lines[-1][: self.column]
            elif part == "\t":
                self.put(" " * (8 - self.column % 8))
            elif part < " ":
                raise ValueError(f"the recording has a control character that this terminal does not know: {part!r} in {text!r}")
            else:
                self.put(part)

    def put(self, text):
        for character in text:
            if self.column == self.columns:
                self.lines.append("")
                self.column = 0
            line = self.lines[-1].ljust(self.column)
            self.lines[-1] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def shown(self):
        """Returns the rows that the terminal shows."""
        return [line.rstrip() for line in self.lines[-self.rows :]]


def frames(path):
    """Returns the size of the terminal, and its frames as pairs of time and rows."""
    with open(path, encoding="utf-8") as file:
        head, *events = [json.loads(line) for line in file]
    screen, found, now, last = Screen(head["width"], head["height"]), [], 0.0, 0.0
    for time, kind, text in events:
        if kind != "o":
            continue
        now += min(time - last, PROGRESS_PAUSE if PROGRESS.match(screen.lines[-1]) else LONGEST_PAUSE)
        last = time
        screen.write(text)
        rows = screen.shown()
        if found and now - found[-1][0] < LEAST:
            found[-1] = (found[-1][0], rows)
        else:
            found.append((now, rows))
    return head["width"], head["height"], found


def pieces(found, end):
    """Returns each text with its row and the times from which and to which it is shown."""
    done, shown = [], {}
    for time, rows in [*found, (end, [])]:
        for row in sorted(set(shown) | set(range(len(rows)))):
            text = rows[row] if row < len(rows) else ""
            if row in shown and shown[row][0] == text:
                continue
            if row in shown:
                old, begin = shown.pop(row)
                done.append((row, old, begin, time))
            if text:
                shown[row] = (text, time)
    return sorted(done, key=lambda one: (one[2], one[0]))


def look(text):
    """Returns the class of a line: a prompt, the last lines of a failed run, or the progress."""
    if text.startswith("$ "):
        return "p"
    if re.match(r"what happened: |where: |again: ", text):
        return "e"
    return "s" if PROGRESS.match(text) else ""


def picture(path):
    columns, rows, found = frames(path)
    end = round(found[-1][0] + END, 2)
    width, height = round(columns * ADVANCE + 2 * MARGIN), rows * LINE + 2 * MARGIN
    rules, texts, names = [], [], {}
    for row, text, begin, until in pieces(found, end):
        is_last = until >= end
        key = (round(100 * begin / end, 2), 100 if is_last else round(100 * until / end, 2))
        if key not in names:
            names[key] = f"k{len(names)}"
            first, last = key
            hidden = "" if first == 0 else f"0%,{max(first - 0.01, 0):.2f}%{{opacity:0}}"
            after = "" if is_last else f"{last:.2f}%,100%{{opacity:0}}"
            shown_until = 100 if is_last else max(last - 0.01, first)
            rules.append(f"@keyframes {names[key]}{{{hidden}{first:.2f}%,{shown_until:.2f}%{{opacity:1}}{after}}}")
            rules.append(f".{names[key]}{{animation:{names[key]} {end}s infinite step-end;opacity:{int(is_last)}}}")
        classes = f"{names[key]} {look(text)}".strip()
        y = MARGIN + row * LINE + SIZE
        texts.append(f'<text x="{MARGIN}" y="{y}" class="{classes}" textLength="{len(text) * ADVANCE:.1f}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>')
    still = "@media (prefers-reduced-motion: reduce) { text { animation: none !important; } }"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<title>A terminal with verbena run</title>",
        f"<style>{STYLE}\n" + "\n".join(rules) + f"\n{still}</style>",
        f'<rect width="{width}" height="{height}" rx="8"/>',
        *texts, "</svg>",
    ]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(picture(sys.argv[1]))
