# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The additional sections of the report of a failed test: the errors of queue pairs, the rules, and the captures."""
from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any, Iterable, Iterator

from .nic import Nic

_PATIENCE = 60


def sections(nic: Nic, qpns: Iterable[int], since: int) -> Iterator[tuple[str, str]]:
    """Yields the title and the text of each section.

    `qpns` are the queue pairs of the test, whose states are reported if there was no error. `since` is the number of
    entries that the flight recorder had written when the test began.
    """
    yield "verbena: why", _why(nic, qpns, since)
    yield "verbena: rules", "\n".join(_rules(nic)) or "the test has added no rule"
    for capture in nic.captures:
        seen = f"{len(capture.frames)} frames" if capture.dropped == 0 else f"{len(capture.frames)} frames, {capture.dropped} dropped"
        yield "verbena: capture", f"{os.path.abspath(capture.file)} ({seen})"


def _rules(nic: Nic) -> Iterator[str]:
    told = [fault.last | fault.rule for fault in nic.faults]
    told += [rule for rule in nic.rules() if all(rule["name"] != fault.rule["name"] for fault in nic.faults)]
    for rule in told:
        yield f'rule "{rule["name"]}": {rule["action"]}, matched {rule["matched"]} times, fired {rule["fired"]} times'


def _why(nic: Nic, qpns: Iterable[int], since: int) -> str:
    told = _verbenactl(nic, "--json", "why")
    try:
        errors: list[dict[str, Any]] = json.loads(told)["errors"]
    except (ValueError, KeyError):
        return told
    # It is not known when an object whose entry was overwritten got its error, so that error
    # counts.
    new = ["\n".join(error["why"]) for error in errors if error["entry"] is None or error["entry"] >= since]
    if new:
        return "\n\n".join(new)
    objects = nic.ask("contexts")["contexts"]
    states = {thing["number"]: thing["fields"]["state"] for thing in objects if thing["kind"] == "qp"}
    told = "".join(f"; QP {qpn:#x} is in {states[qpn].upper()}" if qpn in states else f"; QP {qpn:#x} no longer exists" for qpn in qpns)
    return f"there was no error since the test began{told}"


def _verbenactl(nic: Nic, *arguments: str) -> str:
    """Returns the output of verbenactl, or the reason why there is none."""
    command = shlex.split(os.environ.get("VERBENACTL") or "verbenactl") + ["--socket", nic.path, *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE, check=False)
    except FileNotFoundError:
        return f"{command[0]} was not found, so {shlex.join(arguments)} was not run: on the host, set VERBENACTL='scripts/in-root verbenactl'"
    except subprocess.TimeoutExpired:
        return f"{shlex.join(command)} has not ended within {_PATIENCE} s"
    return done.stdout.rstrip("\n")
