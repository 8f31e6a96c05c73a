#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: reports of UCX and libfabric after faults by rules. usage: libraries [--list] [ROW...]

A row is a program and a fault (PROGRAM/WAY). Prints a line of JSON for each: how both ends ended, their first error messages and when these
came, and the completions in error and events of the device. Ends with `N passed, N failed`. A row fails if its fault did not occur as planned;
scripts/lib/libraries.py compares the behaviour of the library with Documentation/libraries.md.
"""
import collections
import json
import os
import re
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.dirname(HERE), f"{os.path.dirname(HERE)}/users"]

from agent import script  # noqa: E402
from perftest import Failed, chosen  # noqa: E402
from programs import PROGRAMS, start  # noqa: E402
from row import use  # noqa: E402
from ways import MOMENT, SEED, WAYS, rules  # noqa: E402

faults = script("faults")
# Seconds for all messages, with retransmissions.
WORK = 240
RECORDED = 32768


def device_reports():
    """Returns the completions in error and the events in the flight recording, with their numbers."""
    with tempfile.TemporaryDirectory() as folder:
        file, page = f"{folder}/recording", f"{folder}/page"
        faults.right("record", "dump", file)
        faults.right("report", file, "-o", page)
        rows = faults.shown(page)["rows"]
    # `IBV_WC_...: send 3 (wr_id 0x7) in CQ 5`, `event IBV_EVENT_... of CQ 5`: tools/nic/recorder/src/report/rows.rs. Commands have the same kinds.
    forms = {"failed": r"(IBV_WC_\w+): ", "flushed": r"(IBV_WC_\w+): ", "event": r"event (IBV_EVENT_\w+)"}
    found = [re.match(forms[kind], text) for _, _, _, _, kind, text, *_ in rows if kind in forms]
    return dict(collections.Counter(match[1] for match in found if match))


def fired(name):
    return any(rule["name"] == name and rule["fired"] for rule in faults.nic.rules())


def run(program, way):
    """Runs a program with a fault. Returns the fields of the row."""
    faults.nic.clear()
    faults.ctl("record", "on", str(RECORDED))
    made = rules(way, program)
    if made:
        faults.nic.add(*made, seed=SEED)
    has_moment = any(rule["name"] == MOMENT for rule in made)
    server, client = ends = start(program)
    began = time.monotonic()
    fault_at = None if has_moment else began
    deadline = began + WORK
    try:
        while True:
            sizes = [end.size() for end in ends]
            if fault_at is None and fired(MOMENT):
                fault_at = time.monotonic()
                deadline = fault_at + program.patience
                if way.kills:
                    server.process.kill()
            elif fault_at is None:
                # Output before the fault is ignored.
                for end, size in zip(ends, sizes):
                    end.mark = size
            over = [end.look() for end in ends]
            if all(over) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        if fault_at is None:
            raise Failed(f"the rule for the moment of the fault never fired: {client.text()[-200:]}, {server.text()[-200:]}")
        found = {"device": device_reports(), "fired": {rule["name"]: rule["fired"] for rule in faults.nic.rules()}}
        if "loss" in found["fired"] and not found["fired"]["loss"]:
            raise Failed("no packet was lost")
        if way.report and way.report not in found["device"]:
            raise Failed(f"the device did not report {way.report}, but {', '.join(found['device']) or 'nothing'}")
        for name, end in ("client", client), ("server", server):
            found[name] = {
                "outcome": end.outcome(),
                "done": bool(re.search(program.done, end.text(), re.M)),
                "words": end.complaints()[:4],
                "said_after": round(end.said_at - fault_at, 1) if end.said_at else None,
                "ended_after": round(end.ended_at - fault_at, 1) if end.ended_at else None,
                "text": end.text()[-3000:],
            }
        return found
    finally:
        for end in ends:
            end.end()
        faults.nic.clear()
        if way.repaired:
            faults.until_works()


def main():
    args = [arg for arg in sys.argv[1:] if arg != "--list"]
    rows = [(p, w) for p in PROGRAMS for w in WAYS if (p.is_reliable or not w.reliable) and chosen(f"{p.name}/{w.name}", args)]
    if "--list" in sys.argv:
        print("\n".join(f"{p.name}/{w.name}" for p, w in rows))
        return 0
    use(os.environ["DEVICE"])
    passed, failed = 0, 0
    for program, way in rows:
        row = {"row": f"{program.name}/{way.name}", "program": program.name, "command": str(program), "way": way.name, "text": way.text}
        try:
            row |= run(program, way)
            passed += 1
        except (Failed, OSError, ValueError) as wrong:
            row["wrong"] = str(wrong)
            failed += 1
        print(json.dumps(row), flush=True)
    faults.ctl("record", "off")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
