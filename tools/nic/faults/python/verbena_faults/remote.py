# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Queue pairs in a guest for a test on the host.

Start the guest with `scripts/vm --share DIR`, and run `python3 -m verbena_faults.remote /mnt/host` in the guest.
The host writes each call to a numbered file in the shared directory, and the guest writes each answer to another.
The file `over` ends the program in the guest.
"""
from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from typing import Any
PATIENCE = 120 * int(os.environ.get("VERBENA_SLOW", "1"))


def put(path: str, what: Any) -> None:
    """Writes a file completely or not at all."""
    with open(path + ".new", "w", encoding="ascii") as file:
        json.dump(what, file)
    os.rename(path + ".new", path)


def take(path: str) -> Any:
    """Reads a file and removes it."""
    with open(path, encoding="ascii") as file:
        what = json.load(file)
    os.unlink(path)
    return what


class RemotePair:
    """The part of `queue_pairs.Pair` that works over files: `qpn`, `peer_qpn`, `write`, `written` and `close`."""

    numbers = itertools.count(1)

    def __init__(self, directory: str, is_loop: bool = False) -> None:
        self.directory = directory
        self.qpn, self.peer_qpn = self._call("open", is_loop)

    def _call(self, what: str, argument: Any = "") -> Any:
        __tracebackhide__ = True
        ask, told = (os.path.join(self.directory, f"{name}.{next(self.numbers)}") for name in ("ask", "told"))
        put(ask, [what, argument, os.path.basename(told)])
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(told):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the guest has not answered the call {what}: check that verbena_faults.remote runs there, with the directory {self.directory}")
            time.sleep(0.02)
        wrong, result = take(told)
        if wrong:
            raise AssertionError(wrong)
        return result

    def write(self, data: bytes) -> None:
        """Like `queue_pairs.Pair.write`. An exception in the guest is raised as AssertionError with its text."""
        __tracebackhide__ = True
        self._call("write", data.hex())

    def written(self) -> bytes:
        """Like `queue_pairs.Pair.written`."""
        return bytes.fromhex(self._call("written"))

    def close(self) -> None:
        """Like `queue_pairs.Pair.close`."""
        self._call("close")


def serve(directory: str) -> None:
    """Executes the calls of the host, in the guest."""
    from .queue_pairs import Pair, WorkFailed

    pair: Any = None

    def answer(what: str, argument: Any) -> Any:
        nonlocal pair
        if what == "open":
            pair = Pair(is_loop=bool(argument))
            return [pair.qpn, pair.peer_qpn]
        if what == "write":
            return pair.write(bytes.fromhex(argument))
        return pair.written().hex() if what == "written" else pair.close()

    # The file may be left from an earlier guest.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, "over"))
    put(os.path.join(directory, "ready"), True)
    while not os.path.exists(os.path.join(directory, "over")):
        asked = [name for name in os.listdir(directory) if name.startswith("ask.") and not name.endswith(".new")]
        for name in sorted(asked, key=lambda name: int(name.split(".")[1])):
            what, argument, told = take(os.path.join(directory, name))
            try:
                put(os.path.join(directory, told), [None, answer(what, argument)])
            except WorkFailed as wrong:
                put(os.path.join(directory, told), [str(wrong), None])
            except Exception as wrong:  # the host raises it in the test
                put(os.path.join(directory, told), [repr(wrong), None])
        time.sleep(0.02)


if __name__ == "__main__":
    serve(sys.argv[1])
