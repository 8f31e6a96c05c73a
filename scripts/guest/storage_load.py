# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: workers that write and read random extents with O_DIRECT, and compare every byte. For `storage`,
`storage-wire` and `consumers.py`."""
import errno
import mmap
import os
import random
import struct
import threading
import time

from perftest import SLOW, Failed

BLOCK = 4096


def until(what, condition, seconds=30):
    deadline = time.monotonic() + seconds * SLOW
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds * SLOW} s")
        time.sleep(0.1)


class Worker(threading.Thread):
    """Owns a range of blocks of a file. Writes and reads random extents of it, and knows what each block must contain.

    A block is filled with its number and the count of the write that wrote it. A failed write may have been executed or not. Each of the error
    numbers `excused` is tolerated once, and each of `tolerated` any number of times.
    """

    def __init__(self, path, first, blocks, seed, excused, tolerated):
        super().__init__(daemon=True)
        self.path, self.first, self.blocks = path, first, blocks
        self.rng = random.Random(seed)
        self.count = 0
        self.may = [{0} for _ in range(blocks)]  # counts that each block may contain; 0: not written yet
        self.stop, self.why, self.errors, self.excused = threading.Event(), None, 0, set(excused)
        self.tolerated, self.failed = tolerated, 0
        self.written = self.read = 0
        self.buffer = mmap.mmap(-1, 64 * BLOCK)

    def content(self, block, count):
        return struct.pack("<QQ", self.first + block, count) * (BLOCK // 16)

    def extent(self):
        length = self.rng.choice((1, 1, 2, 8, 32, 64))
        return self.rng.randrange(self.blocks - length + 1), length

    def put(self, fd, at, length):
        self.count += 1
        self.buffer[: length * BLOCK] = b"".join(self.content(b, self.count) for b in range(at, at + length))
        for block in range(at, at + length):
            self.may[block] = self.may[block] | {self.count}
        done = os.pwritev(fd, [memoryview(self.buffer)[: length * BLOCK]], (self.first + at) * BLOCK)
        if done != length * BLOCK:
            raise OSError(errno.EIO, "a short write")
        for block in range(at, at + length):
            self.may[block] = {self.count}
        self.written += length

    def look(self, fd, at, length):
        done = os.preadv(fd, [memoryview(self.buffer)[: length * BLOCK]], (self.first + at) * BLOCK)
        if done != length * BLOCK:
            raise OSError(errno.EIO, "a short read")
        for number, block in enumerate(range(at, at + length)):
            got = self.buffer[number * BLOCK : (number + 1) * BLOCK]
            found = [c for c in self.may[block] if got == (self.content(block, c) if c else bytes(BLOCK))]
            if not found:
                head = struct.unpack("<QQ", got[:16])
                self.why = f"block {self.first + block} contains {head}, not {sorted(self.may[block])}"
                raise Failed(self.why)
            self.may[block] = {found[0]}
        self.read += length

    def run(self):
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        except OSError as e:
            self.why = f"opening {self.path}: {e}"
            return
        try:
            while not self.stop.is_set():
                try:
                    (self.put if self.rng.random() < 0.5 else self.look)(fd, *self.extent())
                except OSError as e:
                    if e.errno in self.tolerated:
                        self.failed += 1
                        time.sleep(0.2)
                        continue
                    if e.errno not in self.excused:
                        raise
                    self.excused.remove(e.errno)
        except OSError as e:
            # The disk is gone, which some tests expect.
            self.errors += 1
            self.lost = str(e)
        except Failed:
            pass
        finally:
            os.close(fd)

    def check(self):
        """Reads and compares the whole range."""
        fd = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        try:
            for at in range(0, self.blocks, 64):
                self.look(fd, at, min(64, self.blocks - at))
        finally:
            os.close(fd)


class Load:
    """Several workers on one file."""

    def __init__(self, path, blocks, workers=4, seed=1, excused=(), tolerated=()):
        each = blocks // workers
        self.workers = [Worker(path, number * each, each, seed * 100 + number, excused, tolerated) for number in range(workers)]
        for worker in self.workers:
            worker.start()

    def progress(self):
        return sum(w.written + w.read for w in self.workers)

    def goes_on(self, what, seconds=60):
        """Waits until each worker has made progress."""
        for worker in self.workers:
            before = worker.written + worker.read
            until(f"{what}: progress of a worker", lambda: worker.why or worker.errors or worker.written + worker.read > before + 4, seconds)
            if worker.why or worker.errors:
                raise Failed(f"{what}: {worker.why or worker.lost}")

    def end(self, may_fail=False):
        for worker in self.workers:
            worker.stop.set()
        for worker in self.workers:
            worker.join(120 * SLOW)
            if worker.is_alive():
                raise Failed("a worker hangs")
            if worker.why:
                raise Failed(worker.why)
            if worker.errors and not may_fail:
                raise Failed(f"a worker ended: {worker.lost}")

    def check(self, path):
        for worker in self.workers:
            worker.path = path
            try:
                worker.check()
            except OSError as e:
                raise Failed(f"reading the whole range: {e}") from None

    def summary(self):
        written, read = (sum(getattr(w, kind) for w in self.workers) * BLOCK >> 20 for kind in ("written", "read"))
        failed = sum(w.failed for w in self.workers)
        return f"{written} MiB written, {read} MiB read and compared" + (f", {failed} requests failed" if failed else "")
