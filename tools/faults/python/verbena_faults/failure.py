# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What is told of a test that has failed: why its queue pairs are in error, which rules fired, where its captures are."""
from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any, Iterable, Iterator

from .nic import Nic

_PATIENCE = 60


def sections(nic: Nic, qpns: Iterable[int], since: int) -> Iterator[tuple[str, str]]:
    """Title and text of each.

    `qpns`: the queue pairs of the test, which are told of if nothing was in error. `since`: how many entries the flight recorder had
    written when the test began.
    """
    yield "verbena: why", _why(nic, qpns, since)
    yield "verbena: rules", "\n".join(_rules(nic)) or "the test has made no rule"
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
    # Of what is in error and has no entry any more, nobody knows when it came to it.
    new = ["\n".join(error["why"]) for error in errors if error["entry"] is None or error["entry"] >= since]
    if new:
        return "\n\n".join(new)
    objects = nic.ask("contexts")["contexts"]
    states = {thing["number"]: thing["fields"]["state"] for thing in objects if thing["kind"] == "qp"}
    told = "".join(f"; QP {qpn:#x} is in {states.get(qpn, 'no state any more').upper()}" for qpn in qpns)
    return f"there was no error since the test began{told}"


def _verbenactl(nic: Nic, *arguments: str) -> str:
    """What it prints, or why it does not."""
    command = shlex.split(os.environ.get("VERBENACTL") or "verbenactl") + ["--socket", nic.path, *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE, check=False)
    except FileNotFoundError:
        return f"{command[0]} is not there to ask for {shlex.join(arguments)}: on the host VERBENACTL='scripts/in-root verbenactl' names it"
    except subprocess.TimeoutExpired:
        return f"{shlex.join(command)} gives no answer for {_PATIENCE} s"
    return done.stdout.rstrip("\n")
