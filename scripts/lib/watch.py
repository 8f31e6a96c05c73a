# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Watches a guest of scripts/vm. usage: watch.py QMP-SOCKET KERNEL.LOG SILENCE ACCELERATOR REASON

Ends QEMU and writes a sentence to the file REASON in two cases: the guest prints nothing for SILENCE seconds before it is up (its `init`
then writes a line to the kernel log), or QEMU has paused it after an error of KVM or of the disk, in which QEMU would wait for ever. A guest
that is stopped later by QEMU's monitor is left alone.
"""
import json
import os
import select
import socket
import sys
import time

UP = b"verbena: the guest is up"
# States in which QEMU has paused the guest by itself (RunState in QEMU's qapi/run-state.json).
FAILED = {
    "internal-error": "QEMU has paused the guest after an internal error of the accelerator {accelerator}{help}",
    "io-error": "QEMU has paused the guest because its disk cannot be written: is the file system of /tmp or /var/tmp full?",
    "guest-panicked": "the guest's kernel panicked, and QEMU has paused it",
}
HELP = {"kvm": ". If KVM does not work on this machine, use `--accel tcg`", "tcg": ""}


class Qmp:
    """QEMU's monitor. Each line is a JSON object; events may come between the answers."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.socket.connect(path)
                break
            except OSError:
                time.sleep(0.1)
        self.rest, self.events = b"", []
        self.ask("qmp_capabilities")

    def line(self, patience):
        """Returns the next object, or None after that many seconds. Exits when QEMU has closed the connection."""
        while b"\n" not in self.rest:
            if not select.select([self.socket], [], [], patience)[0]:
                return None
            try:
                more = self.socket.recv(1 << 16)
            except OSError:
                more = b""
            if not more:
                sys.exit(0)
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def ask(self, command):
        """Returns QEMU's answer to a command. Events before it are kept."""
        self.socket.sendall(json.dumps({"execute": command}).encode() + b"\n")
        while True:
            message = self.line(None)
            if "return" in message or "error" in message:
                return message.get("return")
            if "event" in message:
                self.events.append(message["event"])

    def event(self, patience):
        """Returns the name of the next event, or None."""
        if not self.events:
            message = self.line(patience)
            return message and message.get("event")
        return self.events.pop(0)


def end(qmp, reason, why):
    with open(reason, "w", encoding="utf-8") as file:
        file.write(why + "\n")
    qmp.ask("quit")
    sys.exit(0)


def main():
    path, log, silence, accelerator, reason = sys.argv[1:]
    begin = size = os.path.getsize(log)
    is_up, since = False, time.monotonic()
    qmp = Qmp(path)
    # The guest may have been paused before this program connected.
    event = "STOP"
    while True:
        status = qmp.ask("query-status")["status"] if event == "STOP" or not is_up else ""
        if status in FAILED:
            end(qmp, reason, FAILED[status].format(accelerator=accelerator, help=HELP[accelerator]))
        if not is_up:
            now = os.path.getsize(log)
            if now != size:
                size, since = now, time.monotonic()
                with open(log, "rb") as file:
                    file.seek(begin)
                    is_up = UP in file.read()
            elif time.monotonic() - since > int(silence):
                paused = "" if status == "running" else f"; QEMU has paused it ({status})"
                end(qmp, reason, f"the guest does not boot: its kernel has printed nothing for {silence} s{paused}{HELP[accelerator]}")
        event = qmp.event(None if is_up else 1)


if __name__ == "__main__":
    main()
