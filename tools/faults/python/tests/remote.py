# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A pair in a guest for a test on the host: `scripts/vm --share DIR`, and in the guest `remote.py /mnt/host`.

Each call is a file with a number that the host writes, and each answer one that the guest writes, in a directory of both. A file `over`
is the end.
"""
import itertools
import json
import os
import sys
import time

PATIENCE = 120 * int(os.environ.get("VERBENA_SLOW", "1"))


def put(path, what):
    """Whole or not at all."""
    with open(path + ".new", "w", encoding="ascii") as file:
        json.dump(what, file)
    os.rename(path + ".new", path)


def take(path):
    with open(path, encoding="ascii") as file:
        what = json.load(file)
    os.unlink(path)
    return what


class RemotePair:
    numbers = itertools.count(1)

    def __init__(self, directory):
        self.directory = directory
        self.qpn = self._call("open")

    def _call(self, what, argument=""):
        ask, told = (os.path.join(self.directory, f"{name}.{next(self.numbers)}") for name in ("ask", "told"))
        put(ask, [what, argument, os.path.basename(told)])
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(told):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the guest does not answer: {what}")
            time.sleep(0.02)
        wrong, result = take(told)
        assert not wrong, wrong
        return result

    def write(self, data):
        self._call("write", data.hex())

    def written(self):
        return bytes.fromhex(self._call("written"))

    def close(self):
        self._call("close")


def serve(directory):
    """The guest's end."""
    from rdma_pair import Pair

    pair = None

    def answer(what, argument):
        nonlocal pair
        if what == "open":
            pair = Pair()
            return pair.qpn
        if what == "write":
            return pair.write(bytes.fromhex(argument))
        return pair.written().hex() if what == "written" else pair.close()

    put(os.path.join(directory, "ready"), True)
    while not os.path.exists(os.path.join(directory, "over")):
        asked = [name for name in os.listdir(directory) if name.startswith("ask.") and not name.endswith(".new")]
        for name in sorted(asked, key=lambda name: int(name.split(".")[1])):
            what, argument, told = take(os.path.join(directory, name))
            try:
                put(os.path.join(directory, told), [None, answer(what, argument)])
            except Exception as wrong:  # the test is told of it
                put(os.path.join(directory, told), [repr(wrong), None])
        time.sleep(0.02)


if __name__ == "__main__":
    serve(sys.argv[1])
