# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Makes a page with one table that fits a wide window and a phone, and has a light and a dark scheme: `page(title, facts, heads, rows)`.

Each of `rows` is a list of cells, or a string, which is the heading of the rows after it. A cell is HTML, or a pair (class, HTML). The
classes `ok`, `bad`, `known` and `dim` colour a cell by its result; on a phone, a cell of the class `long` takes a whole line.
"""
import html

# The colours are those of reports (tools/nic/recorder/src/report/page.css). Text has a contrast of 4.5 to 1 with both backgrounds.
STYLE = """
:root { color-scheme: light dark; --bg: #fff; --panel: #f5f6f8; --ink: #1b1f24; --soft: #57606a; --line: #d3d9e0; --ok: #17703f; --bad: #b3261e; --known: #7d5c00; }
@media (prefers-color-scheme: dark) {
:root { --bg: #14181d; --panel: #1d232a; --ink: #e8ecf1; --soft: #a3adb8; --line: #37414c; --ok: #4cc38a; --bad: #ff7a68; --known: #ffb938; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--bg); max-width: 1680px; margin: 0 auto; padding: 14px clamp(12px, 2vw, 32px) 48px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 8px; }
p { margin: 0 0 4px; }
table { border-collapse: collapse; width: 100%; margin-top: 16px; font-variant-numeric: tabular-nums; }
td, th { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
thead th { position: sticky; top: 0; background: var(--bg); color: var(--soft); font-size: 13px; overflow-wrap: normal; }
tbody th { font-size: 18px; padding-top: 22px; }
small { color: var(--soft); }
.ok { color: var(--ok); } .bad { color: var(--bad); font-weight: 600; } .known { color: var(--known); } .dim { color: var(--soft); }
.ok, .bad, .known, .dim { overflow-wrap: normal; }
.ok pre, .bad pre, .known pre, .dim pre { overflow-wrap: anywhere; min-width: 12em; }
summary { cursor: pointer; min-height: 24px; }
pre { white-space: pre-wrap; margin: 4px 0; color: var(--ink); font-weight: 400; }
@media (max-width: 640px) {
h1 { font-size: 22px; }
/* On a phone each row is a paragraph of its cells, each with the head of its column. */
table, tbody, tbody th { display: block; }
thead { display: none; }
tr { display: flex; flex-wrap: wrap; gap: 0 14px; border-bottom: 1px solid var(--line); padding: 8px 0; }
td { border: 0; padding: 0; max-width: 100%; }
td:empty { display: none; }
td::before { content: attr(data-head) " "; color: var(--soft); font-weight: 400; }
td.long { flex-basis: 100%; }
td.long::before { content: none; }
summary { min-height: 44px; padding: 10px 0; }
tbody th { border: 0; padding-top: 10px; }
}
"""


def cells(row, heads):
    for cell, head in zip(row, heads):
        look, text = cell if isinstance(cell, tuple) else ("", cell)
        look = f' class="{look}"' if look else ""
        yield f'<td{look} data-head="{html.escape(head)}">{text}</td>'


def page(title, facts, heads, rows):
    lines = (f'<tr><th colspan="{len(heads)}" scope="rowgroup">{html.escape(row)}</th></tr>' if isinstance(row, str) else f"<tr>{''.join(cells(row, heads))}</tr>"
             for row in rows)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="color-scheme" content="light dark"><title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n'
            f"<body><h1>{html.escape(title)}</h1>\n" + "".join(f"<p>{html.escape(fact)}</p>\n" for fact in facts)
            + f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table></body></html>\n")
