# SPDX-License-Identifier: GPL-2.0 OR MIT
"""faults.py LOG JSON [--all]: makes the table of scripts/faults from the output of `fault-table` in the guest.

Writes the rows to JSON and prints them. With --all, each status and each event must have a row: those of the ABI (include/abi) except the
statuses of reliable datagrams, and the events that come from the net device. Ends with `N passed, N failed`.
"""
import json
import os
import re
import sys
import textwrap

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../guest")
from verbena_guest.results import Results  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Statuses without a row. The ABI gives the reason beside each (IBTA 11.6.2: "reliable datagram only").
DATAGRAM = re.compile(r"reliable datagram only", re.I)
# Events of the port come from the kernel, which watches the net device.
NETDEV = ("IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE", "IBV_EVENT_GID_CHANGE")
# Events that only a subnet manager causes. The device of the table has an Ethernet port.
SUBNET = ("IBV_EVENT_LID_CHANGE", "IBV_EVENT_PKEY_CHANGE", "IBV_EVENT_SM_CHANGE", "IBV_EVENT_CLIENT_REREGISTER")
# Rows of --long: the same rules have the same result.
AGAIN = "again/"
VENDOR_ERR = re.compile(r"^ +(\w+) = (0x[0-9a-f]+),$", re.M)


def abi(path, enum):
    """Returns the variants of an enumeration of the ABI, as C spells them, each with its doc comment."""
    with open(f"{TOP}/include/abi/{path}") as f:
        source = f.read()
    body = re.search(rf"pub enum {enum}: u\d+ {{(.*?)\n    }}", source, re.S)[1]
    spelled = dict(re.findall(r'Self::(\w+) => "(\w+)"', source))
    return {spelled[name]: text for text, name in re.findall(r"///([^\n]*)\n +(\w+) = ", body)}


def syndromes():
    with open(f"{TOP}/include/abi/syndrome.rs") as f:
        return {int(code, 16): name for name, code in VENDOR_ERR.findall(f.read())}


def missing(rows):
    """Returns the statuses and events without a row, those that no row can have, and all that exist."""
    statuses, events = abi("cqe.rs", "WcStatus"), abi("eqe.rs", "EventType")
    assert len(statuses) == 22 and len(events) >= 11, "the enumerations of the ABI were not parsed"
    unreachable = [name for name, text in statuses.items() if DATAGRAM.search(text)]
    wanted = [name for name in statuses if name not in unreachable] + [name for name in events if name not in SUBNET] + list(NETDEV)
    there = {row["of"] for row in rows}
    return [name for name in wanted if name not in there], unreachable, wanted


def words(said, codes):
    """Formats a report, expected or found: after a slash, that of the other end."""
    def one(prefix):
        parts = []
        for key in ("status", "vendor_err", "state", "event", "limit", "ended", "runs", "ways", "fired"):
            value = said.get(prefix + key)
            if value is None:
                continue
            if key == "vendor_err":
                value = f"{value:#x} {codes.get(value, '?')}" if value else "0"
            elif isinstance(value, list):
                value = " ".join(value) or "none"
            elif key in ("limit", "ended", "runs", "ways", "fired"):
                value = f"{key} {value}"
            parts.append(str(value))
        return ", ".join(parts)
    return " / ".join(part for part in (one(""), one("peer_")) if part)


def show(rows, codes):
    head = ("status or event", "rule or door", "program", "reported / at the other end", "")
    lines = [head] + [(r["of"], r["door"], r["program"], words(r["found"], codes), r["result"]) for r in rows]
    widths = [min(max(len(line[n]) for line in lines), limit) for n, limit in enumerate((29, 64, 34, 70, 4))]
    for line in lines:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(line, widths)]
        for n in range(max(map(len, cells))):
            print("  ".join((cell[n] if n < len(cell) else "").ljust(width) for cell, width in zip(cells, widths)).rstrip())


def summary(rows, codes, results):
    """Prints for each row its seed, its rules, how often each fired, and the command that repeats it; for failures all details. Reports each row."""
    print()
    for r in rows:
        heads = r["summary"].split("\n\n")[0].splitlines()
        long = "--long " if r["of"].startswith(AGAIN) else ""
        print(f"{r['row']}: {'; '.join(heads) or 'no rules'}; again: scripts/faults {long}'{r['row']}'")
    for r in rows:
        if r["result"] != "pass":
            results.failed(r["row"], f"{r['why']}; wanted {words(r['wanted'], codes)}")
            print(r["summary"])
        else:
            results.passed(r["row"], show=False)


def main():
    log, out, *options = sys.argv[1:]
    with open(log, errors="replace") as f:
        rows = [json.loads(line) for line in f if line.startswith('{"row"')]
    codes = syndromes()
    unknown = [row["row"] for row in rows for key in ("vendor_err", "peer_vendor_err") if row["wanted"].get(key) and row["wanted"][key] not in codes]
    lacking, unreachable, known = missing(rows)
    failures = [(name, "expects a vendor_err that is not in include/abi/syndrome.rs") for name in unknown]
    failures += [(row["row"], "no such status or event") for row in rows if row["of"] not in known and not row["of"].startswith(AGAIN)]
    if "--all" in options:
        failures += [(name, "no row has this status or event") for name in lacking]
    with open(out + ".new", "w") as f:
        json.dump({"rows": rows, "missing": lacking, "reliable_datagrams": unreachable}, f, indent=1)
    os.replace(out + ".new", out)
    show(rows, codes)
    results = Results("faults-table")
    summary(rows, codes, results)
    print(f"no row, because only reliable datagrams have it: {', '.join(unreachable)}")
    print(f"no row, because only InfiniBand ports have it: {', '.join(SUBNET)}")
    for name, why in failures:
        results.failed(name, why)
    if not rows:
        results.failed("rows", "the guest printed no row")
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
