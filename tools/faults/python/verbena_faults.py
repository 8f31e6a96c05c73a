# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Rules of what is to go wrong in a Verbena NIC (Documentation/faults.md), for Python programs and tests.

    nic = Nic()
    with nic.fault("drop", match={"opcode": "RDMA WRITE", "packet_of_message": 3, "limit": 1}) as fault:
        ...

A rule that has not fired when its block ends raises `NeverFired`, unless it is optional.
`Nic()` asks the NIC at $VERBENA_CONTROL: its control socket, or inside a guest the port that leads there. A rule goes when its
`with` block ends; on the host also when the program ends in any other way.
"""
from __future__ import annotations

import itertools
import json
import os
import socket
import stat
from types import TracebackType
from typing import IO, Any, Mapping, Optional, Type, Union

VERSION = 1
PATIENCE = 10.0
Action = Union[str, Mapping[str, Any]]
_names = itertools.count(1)


class Refused(Exception):
    """The NIC says why it does not do what it was asked for."""


class NeverFired(AssertionError):
    """A rule was to fire and did not, so nothing was tested."""


class _Door:
    """A connection to the NIC."""

    def __init__(self, path: str) -> None:
        self.is_port = stat.S_ISCHR(os.stat(path).st_mode)
        self.socket: Optional[socket.socket] = None
        if self.is_port:
            self.file: IO[bytes] = open(path, "r+b", buffering=0)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE)
            self.socket.connect(path)
            self.file = self.socket.makefile("rwb", buffering=0)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.file.write(json.dumps(request).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            more = self.file.read(1 << 16) if self.is_port else self.file.readline()
            if not more:
                raise Refused("the NIC has gone")
            line += more
        told: dict[str, Any] = json.loads(line)
        if not told.pop("ok"):
            raise Refused(told.get("error", "the NIC gave no reason"))
        return told

    def close(self) -> None:
        self.file.close()
        if self.socket:
            self.socket.close()


class Nic:
    """The NIC of one VM."""

    def __init__(self, path: Optional[str] = None) -> None:
        self.path = path or os.environ["VERBENA_CONTROL"]

    def ask(self, command: str, **more: Any) -> dict[str, Any]:
        """Asks what `verbenactl` asks, and returns what the NIC says."""
        door = _Door(self.path)
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
        return Fault(self, {"name": name, "optional": optional, "match": dict(match or {}), "action": action}, seed)


class Fault:
    """A rule that goes at the end of its `with` block. `matched` and `fired` say how it went, then and afterwards."""

    def __init__(self, nic: Nic, rule: Mapping[str, Any], seed: int) -> None:
        self.nic, self.rule, self.seed = nic, rule, seed
        self.door: Optional[_Door] = None
        self.last: dict[str, Any] = {"matched": 0, "fired": 0}

    def __enter__(self) -> Fault:
        rules = {"version": VERSION, "seed": self.seed, "rule": [self.rule]}
        door = _Door(self.nic.path)
        try:
            # A port stays open when this program goes.
            door.ask({"command": "fault-add", "set": rules, "while_connected": not door.is_port})
        except BaseException:
            door.close()
            raise
        if door.is_port:
            door.close()
        else:
            self.door = door
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], wrong: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self._look()
            self.nic.remove(self.rule["name"])
        finally:
            if self.door:
                self.door.close()
                self.door = None
        if kind is None and not self.last["fired"] and not self.rule.get("optional"):
            raise NeverFired(f"{self.rule['name']}: matched {self.last['matched']} times and never fired: {self.rule}")

    def _look(self) -> dict[str, Any]:
        for told in self.nic.rules():
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
