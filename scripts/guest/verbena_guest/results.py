# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs tests, prints their results for readers, and writes the records of results for the test harness (tools/lab/harness/src/records.rs)."""
import errno
import json
import os
import stat
import sys
import time

# The file of the records; in a guest it is a port to the host. Programs that this one starts report to it, and not to the harness.
FILE = os.environ.pop("VERBENA_RESULTS", None)
LONGEST = 1000
# A port can be opened by one process at a time.
TRIES, PAUSE = 200, 0.05


class Results:
    """The results of the tests of a program, from its begin to its end."""

    def __init__(self, program=None, path=FILE):
        """The program's name is that of its file, unless it is given. Without a path no records are written."""
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}
        self._path = path
        in_guest = path and os.path.exists(path) and stat.S_ISCHR(os.stat(path).st_mode)
        self._own = {"program": program or os.path.basename(sys.argv[0]), "process": os.getpid(), "where": os.uname().nodename if in_guest else ""}
        self._since = time.monotonic()
        self._write(event="begin")

    def passed(self, name, seconds=None, show=True):
        """A test has passed. `seconds` is its duration, by default the time since the last result; printed if given. `show`: prints the line."""
        self._test(name, "passed", "", seconds)
        if show:
            print(f"ok {name}" if seconds is None else f"ok {name} ({seconds:.1f} s)", flush=True)

    def failed(self, name, why, seconds=None):
        """A test has failed, for a reason."""
        self._test(name, "failed", str(why), seconds)
        print(f"FAILED {name}: {' / '.join(str(why).splitlines())}", flush=True)

    def skipped(self, name, why):
        """A test cannot run here, for a reason. scripts/lib/skips lists the tests that may be skipped."""
        self._test(name, "skipped", str(why), None)
        print(f"skipped {name}: {why}", flush=True)

    def judged(self, name, wrong):
        """A test that passes if there is no line of what is wrong. Prints the first ten lines."""
        wrong = [str(line) for line in wrong]
        if wrong:
            self.failed(name, wrong[0])
            print("".join(f"  | {line}\n" for line in wrong[:10]), end="", flush=True)
        else:
            self.passed(name)

    def run(self, name, test, *arguments):
        """Runs a test, which passes unless it raises an exception. Returns whether it has passed."""
        began = time.monotonic()
        try:
            test(*arguments)
        except Exception as wrong:  # any error fails the test, and the next test runs
            self.failed(name, described(wrong), time.monotonic() - began)
            return False
        self.passed(name, time.monotonic() - began)
        return True

    def end(self):
        """Prints the numbers, and returns the exit status: 0 if a test has passed and none has failed."""
        self._write(event="end", tests=sum(self.counts.values()))
        print(f"{self.counts['passed']} passed, {self.counts['failed']} failed", flush=True)
        return 1 if self.counts["failed"] or not self.counts["passed"] else 0

    def _test(self, name, verdict, reason, seconds):
        now = time.monotonic()
        took, self._since = now - self._since if seconds is None else seconds, now
        self.counts[verdict] += 1
        self._write(event="test", name=valid(name), verdict=verdict, reason=valid(reason)[:LONGEST], seconds=round(took, 3))

    def _write(self, **fields):
        """Appends a record by a single write, because other programs may write to the same file."""
        if not self._path:
            return
        line = (json.dumps({**fields, **self._own}) + "\n").encode()
        for left in reversed(range(TRIES)):
            try:
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                break
            except OSError as wrong:
                if wrong.errno != errno.EBUSY or not left:
                    # The harness notices that the record is lost.
                    print(f"cannot write a record of a result to {self._path}: {wrong}", file=sys.stderr)
                    return
                time.sleep(PAUSE)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def valid(text):
    """Returns a text in which bytes that were no UTF-8 are question marks, because JSON cannot have them."""
    return text.encode(errors="replace").decode()


def described(wrong):
    """Returns the text of an exception, with the name of its class, unless a test has raised it on purpose."""
    kind = type(wrong).__name__
    return str(wrong) if kind in ("Failed", "Failure") else f"{kind}: {wrong}"
