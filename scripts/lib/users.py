# SPDX-License-Identifier: GPL-2.0 OR MIT
"""users.py: stores the results of scripts/users, and makes the table of them.

  --todo RESULTS STAGE DEVICES [RECORD]
                                 reads names of rows; prints NAME@DEVICE for each without a result in RESULTS and RECORD
  --keep RESULTS STAGE COMMIT SMP
                                 reads the output of `users`; prints the results and stores them with their commit. Performance is stored
                                 only for guests with two processors, because one table compares all
  --guest RESULTS STAGE COMMIT STATUS TEXT
                                 stores the status and the errors of scripts/vm as the row guest/kernel
  --forget RESULTS GUESTS DEVICES [FILTER...]
                                 removes the results of these rows in one guest (GUESTS has a 1) and between two (a 2), and the rows
                                 guest/kernel
  --again RESULTS                removes rows that could not run
  --show RESULTS BUILD KIND      prints the table; for the long form also writes users.html and users.json in BUILD
  --record RESULTS RECORD        writes the results into the record, a table in the repository. Reads the known rows, as STAGE ROW

A line of RESULTS is a result of a row on a device, as scripts/guest/users prints it, with the stage: `one` guest or `two`.
"""
import collections
import contextlib
import fcntl
import fnmatch
import html
import json
import os
import shlex
import sys

LIB = os.path.dirname(os.path.abspath(__file__))
CAUSES = os.path.join(LIB, "users-causes")
sys.path.insert(1, os.path.join(os.path.dirname(LIB), "guest"))

import table_page  # noqa: E402
from perftest import chosen  # noqa: E402

HERE, PEER = DEVICES = "verbena0", "rxe0"


def read(path):
    """Returns the newest result of each stage, row and device, in the order of their first results."""
    found = {}
    with open(path) as f:
        for line in f:
            r = json.loads(line)
            found[r["stage"], r["row"], r["device"]] = r
    return found


@contextlib.contextmanager
def alone(path):
    """Locks the file against other runs in the same checkout."""
    with open(path + ".lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def add(path, r):
    print_result(r)
    with alone(path), open(path, "a") as f:
        f.write(json.dumps(r) + "\n")


def retain(path, kept):
    """Keeps only the results for which `kept` is true."""
    with alone(path):
        results = [r for r in read(path).values() if kept(r)]
        with open(path + ".new", "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in results)
        os.replace(path + ".new", path)


def causes():
    """Returns the known failures: (patterns of stage, row, device and message, cause)."""
    with open(CAUSES) as f:
        lines = [line.partition("#") for line in f if line.strip() and line[0] != "#"]
    return [(shlex.split(patterns), cause.strip()) for patterns, _, cause in lines]


def cause(r, known):
    return next((c for patterns, c in known if all(fnmatch.fnmatch(r[k], p) for k, p in zip(("stage", "row", "device", "why"), patterns))), "")


def todo(results, stage, devices, kept=None):
    done = {(row, device) for s, row, device in read(results) if s == stage}
    if kept:
        done |= {(row, device) for (row, s), cells in recorded(kept).items() for device in DEVICES if s == stage and is_done(device, cells[device])}
    for name in sys.stdin.read().split():
        for device in devices.split(","):
            if (name, device) not in done:
                print(f"{name}@{device}")


def print_result(r):
    amount = f" ({figure(r)})" if "figure" in r else ""
    print(f"{r['result']} {r['stage']}/{r['row']} {r['device']}{amount}{': ' + r['why'] if r['why'] else ''}", flush=True)


def unsaid(stage, commit, row, device, program=""):
    """Returns the part of a result that the guest has not printed."""
    return {"stage": stage, "commit": commit, "row": row, "device": device, "program": program, "package": "", "version": "", "seconds": 0}


def keep(results, stage, commit, smp):
    begun = None
    for line in sys.stdin:
        if line[:1] != "{":
            continue
        r = json.loads(line)
        if "begins" in r:
            begun = unsaid(stage, commit, r["begins"], r["device"])
            continue
        begun = None
        if smp != "2":
            r = {name: value for name, value in r.items() if name not in ("figure", "unit")}
        add(results, {"stage": stage, "commit": commit, **r})
    if begun:
        add(results, {**begun, "result": "fail", "why": DIED})


# The row that passes if a guest's kernel and NIC reported no error. A failure stays until it is removed.
GUEST = "guest/kernel"
DIED = "the guest or its time limit ended before the row did"


def guest(results, stage, commit, status, errors):
    good = status == "0"
    if not good or (stage, GUEST, HERE) not in read(results):
        why = "" if good else f"scripts/vm ended with {status}: {' '.join(errors.split())}"
        add(results, {**unsaid(stage, commit, GUEST, HERE, "Linux"), "result": "pass" if good else "fail", "why": why})


def forget(results, guests, devices, *filters):
    stages = [stage for number, stage in (("1", "one"), ("2", "two")) if number in guests]

    def concerned(r):
        return r["row"] == GUEST or (r["device"] in devices.split(",") and chosen(r["row"], filters))

    retain(results, lambda r: r["stage"] not in stages or not concerned(r))


def again(results):
    retain(results, lambda r: r["result"] != "nothere" or "of" in r)


UNITS = {"us": ((1e6, "s"), (1e3, "ms"), (1, "us")), "bytes/s": ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s"), (1, "B/s")),
         "messages/s": ((1e6, "M/s"), (1e3, "k/s"), (1, "/s"))}


def figure(r):
    for factor, unit in UNITS[r["unit"]]:
        if r["figure"] >= factor or factor == 1:
            return f"{r['figure'] / factor:.3g} {unit}"


def lines(found):
    """Yields a line of the table for each row and stage."""
    known, table = causes(), collections.OrderedDict()
    for (stage, row, device), r in found.items():
        # The parts of a suite are counted instead of the suite.
        if not r.get("parts"):
            table.setdefault((row, stage), {})[device] = r
    for (row, stage), results in table.items():
        here, peer = results.get(HERE), results.get(PEER)
        some = here or peer
        line = {"row": row, "guests": stage, "program": some["program"], "package": some["package"], "version": some["version"]}
        if "of" in some:
            line["part"] = some["of"]
        for name, r in (("verbena", here), ("rxe", peer)):
            if not r:
                continue
            why = r["why"]
            result = r["result"]
            if result == "fail" and (c := cause(r, known)):
                result, why = "known", f"{c} [{why[-200:]}]"
            line[name] = {"result": result, "why": why, "seconds": r["seconds"], "commit": r.get("commit", "")}
            if "figure" in r:
                line[name] |= {"figure": r["figure"], "unit": r["unit"], "told": figure(r)}
        if all(n in line and "figure" in line[n] for n in ("verbena", "rxe")):
            a, b = line["verbena"]["figure"], line["rxe"]["figure"]
            line["ratio"] = round(b / a if line["verbena"]["unit"] == "us" else a / b, 3)
        yield line


def groups(table):
    """Prints how many rows of each group passed, failed for a known cause, failed, and could not run, by device."""
    kinds = ("pass", "known", "fail", "nothere")
    counts = collections.Counter((line["row"].split("/")[0], line["guests"], name, line[name]["result"])
                                 for line in table for name in ("verbena", "rxe") if name in line)
    print(f"{'passed, known, failed, not here':34}{'guests':7}{'verbena':22}{'rxe':22}")
    for group, guests in dict.fromkeys((line["row"].split("/")[0], line["guests"]) for line in table):
        cells = [", ".join(str(counts[group, guests, name, kind]) for kind in kinds) for name in ("verbena", "rxe")]
        print(f"{group:34}{guests:7}{cells[0]:22}{cells[1]:22}")


def cell(line, name):
    r = line.get(name)
    return "-" if not r else r["result"] + (f" {r['told']}" if "told" in r else "")


def has(line, name, *kinds):
    return line.get(name, {}).get("result") in kinds


def show(results, build, kind):
    table = list(lines(read(results)))
    # The verdict is about Verbena, or about rxe if only that was run.
    judged = "verbena" if any("verbena" in line for line in table if line["row"] != GUEST) else "rxe"
    print(f"{'row':34}{'guests':7}{'verbena':22}{'rxe':22}{'ratio':>8}")
    for line in (line for line in table if "part" not in line or (judged in line and not has(line, judged, "pass"))):
        print(f"{line['row']:34}{line['guests']:7}{cell(line, 'verbena'):22}{cell(line, 'rxe'):22}{line.get('ratio', ''):>8}")
    groups(table)
    # The row of the guest's kernel and NIC counts for both devices.
    counting = [(line, line[of]) for line in table if (of := "verbena" if line["row"] == GUEST else judged) in line]
    counts = collections.Counter(r["result"] for _, r in counting)
    only_rxe = [f"{line['row']} ({line['guests']})" for line in table if has(line, "verbena", "fail", "known") and has(line, "rxe", "pass")]
    for line, r in counting:
        if r["result"] in ("fail", "known"):
            print(f"{'FAILED' if r['result'] == 'fail' else 'known'} {line['guests']}/{line['row']}: {r['why']}")
    if only_rxe:
        print(f"passes on rxe and not here: {', '.join(only_rxe)}")
    if kind == "long":
        with open(f"{build}/users.json", "w") as f:
            json.dump(table, f, indent=1)
            f.write("\n")
        with open(f"{build}/users.html", "w") as f:
            f.write(page(table))
        print(f"written: {build}/users.json, {build}/users.html")
    if counts["known"] or counts["nothere"]:
        print(f"{counts['known']} failed for a known cause, {counts['nothere']} could not run")
    print(f"{counts['pass']} passed, {counts['fail']} failed")
    return 1 if counts["fail"] or not counts["pass"] else 0


RECORD_HEAD = """# What ran

`scripts/users --record` writes this page. It has the last result of each row of
[what people run](../../../Documentation/users.md), and the commit of that run. The result of a suite with many tests has
the numbers of tests that passed, failed for a known cause, failed otherwise, and could not run.
`scripts/users --resume` runs the rows that have no result, and those that failed or could not run
on Verbena.

| row | guests | Verbena | at | rxe | at | ratio |
| --- | --- | --- | --- | --- | --- | --- |
"""


def recorded(path):
    """Returns the cells of the record: (row, stage) to {device: (result, commit)}, and "ratio"."""
    found = {}
    with open(path) as f:
        for line in f:
            cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
            if len(cells) == 7 and cells[1] in ("one", "two"):
                row, stage, here, here_at, peer, peer_at, ratio = cells
                found[row, stage] = {HERE: (here, here_at), PEER: (peer, peer_at), "ratio": ratio}
    return found


def is_done(device, cell):
    """True if the row need not run again. Failures on Verbena are run again, because a change may have repaired them; on rxe they are not."""
    result, _ = cell
    return result != "-" and "not given" not in result and (device != HERE or not ("fail" in result or result.startswith("not here")))


def record_cell(r, parts, known):
    """Returns a cell of the record."""
    if r["result"] == "nothere":
        return f"not here: {r['why'][:60]}".replace("|", "/")
    kinds = collections.Counter("known" if p["result"] == "fail" and cause(p, known) else p["result"] for p in parts or [r])
    if not parts:
        kind, = kinds
        return kind + (f" {figure(r)}" if "figure" in r else "")
    if r["result"] == "fail":
        return f"fail, {kinds['pass']} of its tests passed"
    return f"{kinds['pass']} passed" + "".join(f", {kinds[k]} {name}" for k, name in (("known", "known"), ("fail", "failed"), ("nothere", "not here")) if kinds[k])


def record(results, path):
    found, known = read(results), causes()
    cells, parts = recorded(path), collections.defaultdict(list)
    ratios = {(line["row"], line["guests"]): f"{line['ratio']:.3g}" for line in lines(found) if "ratio" in line}
    for (stage, _, device), r in found.items():
        if "of" in r:
            parts[r["of"], stage, device].append(r)
    rows = [(row, stage) for stage, row in (line.split() for line in sys.stdin)]
    groups = list(dict.fromkeys(row.split("/")[0] for row, _ in rows))
    with open(path + ".new", "w") as f:
        f.write(RECORD_HEAD)
        for row, stage in sorted(rows, key=lambda key: groups.index(key[0].split("/")[0])):
            old = cells.get((row, stage), {})
            line = [f"`{row}`", stage]
            for device in DEVICES:
                r = found.get((stage, row, device))
                line += [record_cell(r, parts[row, stage, device], known), r["commit"]] if r else old.get(device, ("-", "-"))
            line.append(ratios.get((row, stage)) or old.get("ratio", "-"))
            f.write(f"| {' | '.join(line)} |\n")
    os.replace(path + ".new", path)


LOOKS = {"pass": "ok", "fail": "bad", "known": "known", "nothere": "dim"}
SAID = {"pass": "passed", "fail": "failed", "known": "failed for a known cause", "nothere": "could not run"}


def page(table):
    def result(line, name):
        r = line.get(name)
        if not r:
            return "dim", "-"
        why = f"<details><summary>why</summary><pre>{html.escape(r['why'])}</pre></details>" if r["why"] else ""
        return LOOKS[r["result"]], html.escape(cell(line, name)) + why

    facts = []
    for name, title in (("verbena", "Verbena"), ("rxe", "rxe")):
        counts = collections.Counter(line[name]["result"] for line in table if name in line)
        facts.append(f"{title}: " + ", ".join(f"{counts[kind]} {said}" for kind, said in SAID.items()) + ".")
    facts.append("A ratio above 1 means that Verbena is better.")
    rows, group = [], None
    for line in table:
        if (now := line["row"].split("/")[0]) != group:
            rows.append(group := now)
        program = "long", html.escape(line["program"]) + f"<br><small>{html.escape(line['package'])} {html.escape(line['version'])}</small>"
        rows.append([("long", html.escape(line["row"])), line["guests"], program, result(line, "verbena"), result(line, "rxe"), str(line.get("ratio", ""))])
    return table_page.page("What people run, on Verbena and on rxe", facts, ["row", "guests", "program", "Verbena", "rxe", "ratio"], rows)


if __name__ == "__main__":
    how, *args = sys.argv[1:]
    commands = {"--todo": todo, "--keep": keep, "--again": again, "--guest": guest, "--show": show, "--record": record, "--forget": forget}
    sys.exit(commands[how](*args))
