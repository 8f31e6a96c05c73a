# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The connection to a NIC. Each request and each answer is a JSON object on a line."""
from __future__ import annotations

import errno
import json
import os
import select
import socket
import stat
from typing import Any, Mapping, Optional

PATIENCE = 10.0


class Refused(Exception):
    """The NIC has refused a request. The text is its reason."""


class NoNic(Exception):
    """The NIC cannot be reached. The text has the reason and the next step."""


def _no_nic(path: str, error: OSError) -> NoNic:
    """Returns the exception for an error of opening or connecting."""
    if isinstance(error, FileNotFoundError):
        why = "there is no such file: check that the guest runs, and that this is the path that scripts/vm printed"
    elif isinstance(error, ConnectionRefusedError):
        why = "no process listens there: the NIC of this control socket has ended, so start it again"
    elif isinstance(error, PermissionError):
        why = "permission denied: only root and the user who started the NIC may connect"
    elif error.errno == errno.EBUSY:
        why = "another program has this port open, and only one can at a time: wait until that program has closed it"
    else:
        why = error.strerror or str(error)
    return NoNic(f"the NIC at {path} (VERBENA_CONTROL) cannot be reached: {why}")


class Door:
    """A connection to the NIC. A port has one connection at a time, and stays open after the NIC has stopped listening."""

    def __init__(self, path: str) -> None:
        self.socket: Optional[socket.socket] = None
        try:
            self._open(path)
        except OSError as error:
            raise _no_nic(path, error) from None

    def _open(self, path: str) -> None:
        mode = os.stat(path).st_mode
        self.is_port = stat.S_ISCHR(mode)
        if not self.is_port and not stat.S_ISSOCK(mode):
            raise OSError("this is neither a socket nor a port of a guest")
        if self.is_port:
            self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            # Discards the answer to a program that did not wait for it.
            while self._is_readable(0) and os.read(self.file, 1 << 16):
                pass
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
            except OSError:
                self.socket.close()
                raise
            self.file = self.socket.fileno()

    def _is_readable(self, patience: float) -> bool:
        poll = select.poll()
        poll.register(self.file, select.POLLIN)
        return bool(poll.poll(patience * 1000))

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer of the NIC without `ok`."""
        line = json.dumps(request).encode() + b"\n"
        while line:
            line = line[os.write(self.file, line):]
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            if not self._is_readable(PATIENCE):
                raise Refused(f"the NIC has not answered within {PATIENCE:.0f} s")
            parts.append(os.read(self.file, 1 << 16))
            if not parts[-1]:
                raise Refused("the NIC has closed the connection")
        told: dict[str, Any] = json.loads(b"".join(parts))
        if not told.pop("ok"):
            raise Refused(told.get("error", "the NIC gave no reason"))
        return told

    def close(self) -> None:
        """Closes the connection. The NIC then ends the rules and captures that belong to the connection."""
        if self.socket:
            self.socket.close()
        else:
            os.close(self.file)


class Tied:
    """A connection for a rule or a capture that ends with the connection.

    A port is opened anew for each request, so that other programs can use it in between.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        door = Door(path)
        self.door: Optional[Door] = None
        if door.is_port:
            door.close()
        else:
            self.door = door

    def begin(self, request: Mapping[str, Any]) -> Tied:
        """Requests the rule or the capture. Closes the connection if the NIC refuses."""
        try:
            self.ask(request)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def is_port(self) -> bool:
        """True for a port, with whose connection nothing ends."""
        return self.door is None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request like `Door.ask`."""
        if self.door:
            return self.door.ask(request)
        door = Door(self.path)
        try:
            return door.ask(request)
        finally:
            door.close()

    def close(self) -> None:
        """Closes the connection, and so ends the rule or the capture."""
        if self.door:
            self.door.close()
