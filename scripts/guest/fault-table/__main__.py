#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: causes every completion status and every asynchronous event, by rules. usage: fault-table [--long] [FILTER...]

Prints a line of JSON for each row: the expected and the found report, and the rules as the NIC had them. Ends with `N passed, N failed`. A
FILTER is a part of a row's name. --long: also checks that the same rules have the same result twenty times.
"""
import json
import os
import sys
import time

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from row import RECORDED, ctl, nic, summaries  # noqa: E402

import again  # noqa: E402
import events  # noqa: E402
import statuses  # noqa: E402
from perftest import chosen  # noqa: E402


def main():
    args = sys.argv[1:]
    if set(args) & {"--help", "-h"}:
        print(__doc__)
        return 2
    is_long = "--long" in args
    filters = {arg for arg in args if arg != "--long"}
    counts = {"pass": 0, "fail": 0}
    rows = statuses.ROWS + events.ROWS + (again.ROWS if is_long else [])
    assert len({row.name for row in rows}) == len(rows), "two rows have the same name"
    for row in rows:
        if not chosen(row.name, filters):
            continue
        began, found, why = time.monotonic(), {}, ""
        nic.clear()
        summaries.clear()
        ctl("record", "on", str(RECORDED))
        try:
            found = row.run()
            if wrong := [what for what, value in row.wanted.items() if found.get(what) != value]:
                why = f"other values than expected: {', '.join(wrong)}"
        except Exception as wrong:  # pyverbs raises various exceptions
            why = f"{type(wrong).__name__}: {wrong}"
        result = "fail" if why else "pass"
        counts[result] += 1
        print(json.dumps({"row": row.name, "of": row.of, "door": row.door, "program": row.program, "wanted": row.wanted, "found": found,
                          "summary": "".join(summaries), "result": result, "why": why, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    nic.clear()
    ctl("record", "off")
    print(f"{counts['pass']} passed, {counts['fail']} failed", flush=True)
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
