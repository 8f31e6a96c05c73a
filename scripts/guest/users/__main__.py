#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: programs of other projects on Verbena and on rxe. usage: users [--peer NAME] [--for SECONDS] ROW@DEVICE...
       users --list [--peer NAME] [FILTER...]
       users --agent

After SECONDS no further row begins. With --peer the servers run in another guest, where `users --agent` serves until vm1 has ended. A FILTER
is a part of a row's name; one that begins with ! excludes the names that contain the rest. For each row prints lines of JSON: its begin; for a
suite of many tests, one for each part; its result, which is pass, fail or nothere, with the reason, and a measured value if there is one. Ends
with `N passed, N failed`.
"""
import argparse
import json
import os
import sys
import time

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import agent  # noqa: E402
from perftest import Failed, chosen  # noqa: E402
from row import NotHere, Place, use, version  # noqa: E402

GROUPS = ("ucx", "libfabric", "mpi", "ai", "rpma", "verbs", "cross", "storage", "rds", "ceph", "suites", "gtest", "bindings", "tools")


def all_rows():
    return [row for group in GROUPS for row in __import__(group).rows()]


class Agent(agent.Agent):
    def use(self, device):
        use(device)


def print_line(**what):
    print(json.dumps(what), flush=True)


def one(row, device, peer):
    """Runs a row on a device, and returns the result."""
    began = time.monotonic()
    figure, parts, why = None, [], ""
    try:
        found = row.run(Place(device, peer))
        figure, parts = (None, found) if isinstance(found, list) else (found, [])
        if parts is found and not parts:
            raise Failed("the suite ran no test")
        result = "pass"
    except NotHere as e:
        result, why = "nothere", str(e)
    except Exception as e:  # any error fails the row, and the next rows run
        result, why = "fail", f"{type(e).__name__ + ': ' if not isinstance(e, Failed) else ''}{e}"
    common = {"device": device, "pair": peer is not None, "program": row.program, "package": row.package, "version": version(row.package)}
    for part in parts:
        print_line(row=f"{row.name}/{part.name}", of=row.name, **common, result=part.result, why=part.why, seconds=0)
    done = {"row": row.name, **common, "result": result, "why": why, "seconds": round(time.monotonic() - began, 1)}
    if figure:
        done |= {"figure": figure.value, "unit": figure.unit}
    if parts:
        done["parts"] = len(parts)
    print_line(**done)
    return "fail" if any(part.result == "fail" for part in parts) else result


def answers(name):
    try:
        agent.Peer(name, patience=30)
        return True
    except Failed:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("--peer")
    parser.add_argument("--agent", action="store_true")
    parser.add_argument("--for", type=int, dest="seconds")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("what", nargs="*")
    args = parser.parse_args()
    if args.agent:
        return agent.serve(Agent())
    rows = {r.name: r for r in all_rows() if r.pair in (None, bool(args.peer))}
    if args.list:
        print("\n".join(name for name in rows if chosen(name, args.what)))
        return 0
    peer = agent.Peer(args.peer) if args.peer else None
    counts = {"pass": 0, "fail": 0, "nothere": 0}
    began = time.monotonic()
    for what in args.what:
        if args.seconds is not None and time.monotonic() - began > args.seconds:
            break
        name, device = what.split("@")
        print_line(begins=name, device=device)
        result = one(rows[name], device, peer)
        counts[result] += 1
        if result == "fail" and peer and not answers(args.peer):
            # scripts/users runs the remaining rows in new guests.
            print(f"{args.peer} does not answer after {name} on {device}")
            break
    print(f"{counts['pass']} passed, {counts['fail']} failed")
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
