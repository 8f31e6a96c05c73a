# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The way to a NIC: one JSON object a line each way."""
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
    """The NIC says why it does not do what it was asked for."""


class NoNic(Exception):
    """There is no way to a NIC; the text says why, and what helps."""


def _no_nic(path: str, error: OSError) -> NoNic:
    """What an error of opening or connecting means."""
    if isinstance(error, FileNotFoundError):
        why = "there is no such file: does the guest run, and is this the name that scripts/vm printed?"
    elif isinstance(error, ConnectionRefusedError):
        why = "nobody listens there: the NIC whose control socket this was has ended"
    elif isinstance(error, PermissionError):
        why = "permission denied: root and the user who started the NIC may ask it"
    elif error.errno == errno.EBUSY:
        why = "another program has this port open, and one at a time can"
    else:
        why = error.strerror or str(error)
    return NoNic(f"no way to the NIC at {path} (VERBENA_CONTROL): {why}")


class Door:
    """A connection to the NIC. Of a port there is one at a time, and it stays connected when nobody listens any more."""

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
            # The answer to somebody who did not wait for it.
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
        """What the NIC answers, without `ok`."""
        line = json.dumps(request).encode() + b"\n"
        while line:
            line = line[os.write(self.file, line):]
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            if not self._is_readable(PATIENCE):
                raise Refused("the NIC gives no answer")
            parts.append(os.read(self.file, 1 << 16))
            if not parts[-1]:
                raise Refused("the NIC has gone")
        told: dict[str, Any] = json.loads(b"".join(parts))
        if not told.pop("ok"):
            raise Refused(told.get("error", "the NIC gave no reason"))
        return told

    def close(self) -> None:
        """Ends the connection, and with it what is tied to it."""
        if self.socket:
            self.socket.close()
        else:
            os.close(self.file)


class Tied:
    """A connection that something is tied to for a while. A port is opened anew each time, so that others have it in between."""

    def __init__(self, path: str) -> None:
        self.path = path
        door = Door(path)
        self.door: Optional[Door] = None
        if door.is_port:
            door.close()
        else:
            self.door = door

    def begin(self, request: Mapping[str, Any]) -> Tied:
        """Asks for what is to be tied to it. It ends if the NIC refuses."""
        try:
            self.ask(request)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def is_port(self) -> bool:
        """Nothing can be tied to it."""
        return self.door is None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """As of a `Door`."""
        if self.door:
            return self.door.ask(request)
        door = Door(self.path)
        try:
            return door.ask(request)
        finally:
            door.close()

    def close(self) -> None:
        """The end of what is tied to it."""
        if self.door:
            self.door.close()
