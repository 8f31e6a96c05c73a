# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of `scripts/terminal record`: runs commands on a terminal, as if they were typed, and prints what the terminal gets as asciicast 2."""
import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import time

COLUMNS, ROWS = 100, 26
PROMPT = "$ "
# Seconds for a key, and before a command begins.
KEY, PAUSE = 0.04, 0.5
COMMANDS = (
    "verbena run -- ibv_devinfo -d verbena0",
    "verbena run --nodes 2 --on 2 'ibv_rc_pingpong -g $GID >/dev/null' -- 'sleep 5; ibv_rc_pingpong -g $GID $PEER'",
    "verbena run --nic-args '--drop 100' -- 'ibv_rc_pingpong -g 1 >/dev/null & sleep 1; ibv_rc_pingpong -g 1 localhost'",
)


class Recording:
    def __init__(self):
        self.now = 0.0
        print(json.dumps({"version": 2, "width": COLUMNS, "height": ROWS, "title": "verbena run"}))

    def add(self, text, seconds):
        """Adds what the terminal gets after some seconds."""
        self.now += seconds
        print(json.dumps([round(self.now, 3), "o", text]))

    def type(self, command):
        self.add(PROMPT, 0)
        for key in command:
            self.add(key, KEY)
        self.add("\r\n", PAUSE)

    def run(self, command):
        process, terminal = pty.fork()
        if process == 0:
            os.execvp("sh", ["sh", "-c", command])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        last = time.monotonic()
        while True:
            try:
                text = os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
            if not text:
                break
            now = time.monotonic()
            self.add(plain(text), now - last)
            last = now
        os.waitpid(process, 0)
        os.close(terminal)


def plain(text):
    """Replaces the paths of this machine."""
    text = re.sub(r"/\S*/(run\.[A-Za-z0-9]{6})", r"~/.cache/verbena/runs/\1", text)
    return re.sub(r"again: \S*/verbena ", "again: verbena ", text)


recording = Recording()
for command in COMMANDS:
    recording.type(command)
    recording.run(command)
recording.add(PROMPT, PAUSE)
sys.stdout.flush()
