# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A NIC, its rules and its captures."""
from __future__ import annotations

import itertools
import os
from types import TracebackType
from typing import Any, Mapping, Optional, Type, Union

from .capture import Capture
from .door import Door, NoNic, Tied

VERSION = 1
Action = Union[str, Mapping[str, Any]]
_names = itertools.count(1)


class NeverFired(AssertionError):
    """A rule that is not optional did not fire, so the test has tested nothing."""


class Nic:
    """The NIC of one VM: the one at `path`, or at $VERBENA_CONTROL.

    `faults` and `captures` are the rules and captures that this object has made, in order, including those whose
    blocks have ended.
    """

    def __init__(self, path: Optional[str] = None) -> None:
        path = path or os.environ.get("VERBENA_CONTROL")
        if not path:
            raise NoNic(
                "VERBENA_CONTROL is not set: on the host, set it to the control socket of a NIC, which scripts/vm prints;"
                " in a guest, scripts/vm sets it to the port that leads to the guest's NIC"
            )
        self.path = path
        self.faults: list[Fault] = []
        self.captures: list[Capture] = []
        self._own_capture: Optional[Capture] = None

    def ask(self, command: str, **more: Any) -> dict[str, Any]:
        """Sends a command of the control protocol, as `verbenactl` does, and returns the answer."""
        door = Door(self.path)
        try:
            return door.ask({"command": command, **more})
        finally:
            door.close()

    def rules(self) -> list[dict[str, Any]]:
        """Returns the present rules, with `matched` and `fired`."""
        told: list[dict[str, Any]] = self.ask("faults")["rules"]
        return told

    def add(self, *rules: Mapping[str, Any], seed: int = 0) -> None:
        """Adds rules, all or none. They stay until they are removed."""
        self.ask("fault-add", set={"version": VERSION, "seed": seed, "rule": list(rules)})

    def remove(self, name: str) -> None:
        """Removes a rule."""
        self.ask("fault-remove", name=name)

    def clear(self) -> None:
        """Removes all rules."""
        self.ask("fault-clear")

    def fault(
        self,
        action: Action,
        match: Optional[Mapping[str, Any]] = None,
        name: Optional[str] = None,
        seed: int = 0,
        optional: bool = False,
    ) -> Fault:
        """Returns a rule for a `with` block."""
        name = name or f"python {os.getpid()}.{next(_names)}"
        fault = Fault(self, {"name": name, "optional": optional, "match": dict(match or {}), "action": action}, seed)
        self.faults.append(fault)
        return fault

    def capture(self, file: Union[str, os.PathLike[str]]) -> Capture:
        """Returns a capture of a `with` block, as pcapng."""
        self.end_capture()
        capture = Capture(self.path, file)
        self.captures.append(capture)
        return capture

    def capture_until_another(self, file: Union[str, os.PathLike[str]]) -> None:
        """Begins a capture that ends with `end_capture`, or when the test begins another: the NIC has one at a time."""
        capture = self.capture(file)
        capture.__enter__()
        self._own_capture = capture

    def end_capture(self) -> None:
        """Ends the capture of `capture_until_another`, if it has not ended."""
        capture, self._own_capture = self._own_capture, None
        if capture:
            capture.__exit__(None, None, None)

    def counters(self, qpn: Optional[int] = None) -> dict[str, int]:
        """Returns the counters of a queue pair since its creation, or of the port, by name (Documentation/verbenactl.md)."""
        told = self.ask("port")["port"] if qpn is None else self.ask("qp", number=qpn)["qp"]
        counters: dict[str, int] = told["counters"]
        return counters


class Fault:
    """A rule that the NIC removes at the end of its `with` block. `matched` and `fired` are valid in the block and after it."""

    def __init__(self, nic: Nic, rule: Mapping[str, Any], seed: int) -> None:
        self.nic, self.rule, self.seed = nic, rule, seed
        self.tied: Optional[Tied] = None
        self.last: dict[str, Any] = {"matched": 0, "fired": 0}

    def __enter__(self) -> Fault:
        rules = {"version": VERSION, "seed": self.seed, "rule": [self.rule]}
        tied = Tied(self.nic.path)
        self.tied = tied.begin({"command": "fault-add", "set": rules, "while_connected": not tied.is_port})
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], wrong: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        tied = self.tied
        if not tied:
            return
        try:
            self._look()
            tied.ask({"command": "fault-remove", "name": self.rule["name"]})
        finally:
            self.tied = None
            tied.close()
        if kind is None and not self.last["fired"] and not self.rule.get("optional"):
            raise NeverFired(f"{self.rule['name']}: matched {self.last['matched']} times and never fired: {self.rule}")

    def _look(self) -> dict[str, Any]:
        if self.tied:
            for told in self.tied.ask({"command": "faults"})["rules"]:
                if told["name"] == self.rule["name"]:
                    self.last = told
        return self.last

    @property
    def matched(self) -> int:
        """Number of matches."""
        return int(self._look()["matched"])

    @property
    def fired(self) -> int:
        """Number of firings."""
        return int(self._look()["fired"])
