# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A NIC, and rules for it."""
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
    """A rule was to fire and did not, so nothing was tested."""


class Nic:
    """The NIC of one VM: the one at `path`, or at $VERBENA_CONTROL.

    `faults` and `captures` are those that were made by it so far, in order, also after their blocks have ended.
    """

    def __init__(self, path: Optional[str] = None) -> None:
        path = path or os.environ.get("VERBENA_CONTROL")
        if not path:
            raise NoNic(
                "VERBENA_CONTROL is not set: on the host it names the control socket of a NIC, which scripts/vm prints;"
                " in a guest of scripts/vm it is set, and names the port that leads to the guest's NIC"
            )
        self.path = path
        self.faults: list[Fault] = []
        self.captures: list[Capture] = []
        self._own_capture: Optional[Capture] = None

    def ask(self, command: str, **more: Any) -> dict[str, Any]:
        """Asks what `verbenactl` asks, and returns what the NIC says."""
        door = Door(self.path)
        try:
            return door.ask({"command": command, **more})
        finally:
            door.close()

    def rules(self) -> list[dict[str, Any]]:
        """The rules that there are, with `matched` and `fired`."""
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
        """A rule for a `with` block."""
        name = name or f"python {os.getpid()}.{next(_names)}"
        fault = Fault(self, {"name": name, "optional": optional, "match": dict(match or {}), "action": action}, seed)
        self.faults.append(fault)
        return fault

    def capture(self, file: Union[str, os.PathLike[str]]) -> Capture:
        """A capture in pcapng of a `with` block."""
        self.end_capture()
        capture = Capture(self.path, file)
        self.captures.append(capture)
        return capture

    def capture_until_another(self, file: Union[str, os.PathLike[str]]) -> None:
        """Begins a capture that ends with `end_capture`, or when another is wanted: the NIC has one at a time."""
        capture = self.capture(file)
        capture.__enter__()
        self._own_capture = capture

    def end_capture(self) -> None:
        """Ends what `capture_until_another` began, if it has not ended."""
        capture, self._own_capture = self._own_capture, None
        if capture:
            capture.__exit__(None, None, None)

    def counters(self, qpn: Optional[int] = None) -> dict[str, int]:
        """Counters of a queue pair since it was created, or of the port, by name (Documentation/verbenactl.md)."""
        told = self.ask("port")["port"] if qpn is None else self.ask("qp", number=qpn)["qp"]
        counters: dict[str, int] = told["counters"]
        return counters


class Fault:
    """A rule that goes at the end of its `with` block. `matched` and `fired` say how it went, then and afterwards."""

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
        """What it names came so often."""
        return int(self._look()["matched"])

    @property
    def fired(self) -> int:
        """It fired so often."""
        return int(self._look()["fired"])
