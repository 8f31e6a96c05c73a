# SPDX-License-Identifier: GPL-2.0 OR MIT
"""libraries.py PAGE LOG...: makes the tables of scripts/libraries from the newest output of `libraries` for each row.

Prints the tables in the form of the page, and compares how both ends of a row ended with the page, where `X or Y` allows either. Times, texts,
and which end had which outcome are not compared, because they depend on chance and on the machine. Ends with `N passed, N failed`.
"""
import json
import os
import re
import sys

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../guest")
from verbena_guest.results import Results  # noqa: E402

HEAD = "| what goes wrong | the device says | one end | the other end |\n| --- | --- | --- | --- |"
# Each queue pair on an SRQ gets this event when it is destroyed.
USUAL = "IBV_EVENT_QP_LAST_WQE_REACHED"
SHOWN = 3


def outcome(end, is_client):
    """Returns an outcome in the words of the page."""
    how = end["outcome"]
    if how == "ends with 0":
        return "done" if end["done"] or not is_client else "ends with 0, with nothing done"
    return {"killed by SIGABRT": "aborts", "killed by SIGKILL": "is killed"}.get(how, how)


def after(seconds):
    return "at once" if seconds < 2 else f"after {seconds:.0f} s"


def cell(end, is_client):
    text = outcome(end, is_client)
    said, ended = end["said_after"], end["ended_after"]
    if ended is not None and text not in ("done", "is killed"):
        text += f", {after(ended)}"
    if said is not None and (ended is None or ended - said > 2):
        text += f", having said {after(said)}"
    words = " / ".join(f"`{line}`" for line in end["words"][:SHOWN]).replace("|", "\\|")
    return text + (f": {words}" if words else "")


def device(reports):
    """Formats statuses and events, as C spells them."""
    return ", ".join(sorted(set(reports) - {USUAL})) or "nothing"


def ends(row):
    """Returns the outcomes and the cells of both ends; the end that reports an error first comes first."""
    found = [(row[name], name == "client") for name in ("client", "server")]
    late = 1e9
    found.sort(key=lambda f: (f[0]["outcome"] == "killed by SIGKILL", f[0]["said_after"] if f[0]["said_after"] is not None else late, not f[1]))
    return [outcome(*f) for f in found], [cell(*f) for f in found]


OUTCOME = r"done|waits|aborts|is killed|ends with \d+(?:, with nothing done)?"


def documented(page):
    """Returns the allowed outcomes of both ends, by program and fault."""
    with open(page) as f:
        text = f.read()
    found = {}
    for name, block in re.findall(r"^### (\S+/\S+)\n(.*?)(?=^##|\Z)", text, re.S | re.M):
        for line in block.splitlines():
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)]
            if len(cells) == 6 and cells[1] not in ("what goes wrong", "---"):
                leading = [re.match(rf"(?:{OUTCOME})(?: or (?:{OUTCOME}))*", c) for c in cells[3:5]]
                assert all(leading), f"{page}: {name}: no outcome in {line}"
                found[name, cells[1]] = [match[0].split(" or ") for match in leading]
    return found


def agree(outcomes, cells):
    """True if the outcomes are allowed, in either order of the ends."""
    return any(all(o in c for o, c in zip(outcomes, order)) for order in (cells, cells[::-1]))


def main():
    page, *logs = sys.argv[1:]
    rows, wrong = {}, {}
    for log in logs:
        with open(log, errors="replace") as f:
            rows |= {row["row"]: row for row in (json.loads(line) for line in f if line.startswith('{"row"'))}
    known, results, program = documented(page), Results("libraries"), None
    for row in rows.values():
        if row["program"] != program:
            program = row["program"]
            print(f"\n### {program}\n\n`{row['command']}`\n\n{HEAD}")
        if "wrong" in row:
            wrong[row["row"]] = row["wrong"]
            continue
        outcomes, cells = ends(row)
        print(f"| {row['text']} | {device(row['device'])} | {cells[0]} | {cells[1]} |")
        said = known.get((program, row["text"]))
        if not said or not agree(outcomes, said):
            wrong[row["row"]] = f"{' / '.join(outcomes)}; {page} has {' / '.join(map(' or '.join, said)) if said else 'no such row'}"
    print()
    for name in rows:
        if name in wrong:
            results.failed(name, wrong[name])
        else:
            results.passed(name, show=False)
    if not rows:
        results.failed("rows", "the guest printed no row")
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
