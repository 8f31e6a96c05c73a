# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What is told of a test that has failed: why its queue pairs are in error, which rules fired, where its captures are."""
from __future__ import annotations

import os
import shlex
import subprocess
from typing import Iterable, Iterator

from .nic import Nic

_MOST = 4
_PATIENCE = 60


def sections(nic: Nic, qpns: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Title and text of each. `qpns`: the queue pairs of the test, which are told of if none is in error."""
    yield "verbena: why", _why(nic, qpns)
    yield "verbena: rules", "\n".join(_rules(nic)) or "the test has made no rule"
    for capture in nic.captures:
        seen = f"{len(capture.frames)} frames" if capture.dropped == 0 else f"{len(capture.frames)} frames, {capture.dropped} dropped"
        yield "verbena: capture", f"{os.path.abspath(capture.file)} ({seen})"


def _rules(nic: Nic) -> Iterator[str]:
    told = [fault.last | fault.rule for fault in nic.faults]
    told += [rule for rule in nic.rules() if all(rule["name"] != fault.rule["name"] for fault in nic.faults)]
    for rule in told:
        yield f'rule "{rule["name"]}": {rule["action"]}, matched {rule["matched"]} times, fired {rule["fired"]} times'


def _why(nic: Nic, qpns: Iterable[int]) -> str:
    objects = nic.ask("contexts")["contexts"]
    states = {thing["number"]: thing["fields"]["state"] for thing in objects if thing["kind"] == "qp"}
    wrong = [qpn for qpn, state in states.items() if state in ("Err", "Sqe")]
    if not wrong:
        states = {qpn: states.get(qpn, "gone") for qpn in qpns}
        return "no queue pair is in error" + "".join(f"; QP {qpn:#x} is in {state.upper()}" for qpn, state in states.items())
    told = [_verbenactl(nic, "why", f"{qpn:#x}") for qpn in wrong[:_MOST]]
    if len(wrong) > _MOST:
        told.append(f"{len(wrong) - _MOST} more queue pairs are in error")
    return "\n".join(told)


def _verbenactl(nic: Nic, *arguments: str) -> str:
    command = shlex.split(os.environ.get("VERBENACTL") or "verbenactl") + ["--socket", nic.path, *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE, check=False)
    except FileNotFoundError:
        return f"{command[0]} is not there to ask for {shlex.join(arguments)}: on the host VERBENACTL='scripts/in-root verbenactl' names it"
    except subprocess.TimeoutExpired:
        return f"{shlex.join(command)} gives no answer for {_PATIENCE} s"
    return done.stdout.rstrip("\n")
