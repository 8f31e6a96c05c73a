# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of scripts/browser, in the toolchain root. `reports.py DIR` makes a page of each scenario's recording in DIR, and of recordings that it
derives from these: an empty one, one whose beginning was overwritten, some with hostile names, one that is cut off. DIR/expected.json has the
expected contents of each page, read from the recording (the format is in tools/nic/recorder/src/flight_recording.rs and entry/words.rs).
"""
import glob
import json
import os
import re
import struct
import subprocess
import sys

DIR = sys.argv[1]
ENTRY = 48
WORK, SENT, RECEIVED, PASSED, COMPLETED, EVENT, COMMAND, STATE, FIRED = 1, 2, 3, 4, 5, 6, 7, 9, 12
SET_GID, SET_PORT = 4, 5
LOST = 4
# Hostile names of rules and reasons, which a page must show as text: at most 64 bytes, without control characters.
HOSTILE = (
    "</script><script>document.body.dataset.ran=1</script>",
    '<img src="x" onerror="document.body.dataset.ran=1">',
    "<svg/onload=document.body.dataset.ran=1>",
    "\"'`;document.body.dataset.ran=1;//${document.body.dataset.ran=1}",
    "<!--<script>",
    "]]>--></style></title><b>&lt;&#60;\\u003c\\",
    "/*script*/ /*data*/ $& $' $1",
    "\u2028\u2029\u202e</p><h1>",
)


class Recording:
    """The parts of a recording."""

    def __init__(self, data):
        self.head, at = data[:46], 48
        self.first = struct.unpack_from("<Q", data, 16)[0]

        def text():
            nonlocal at
            length = struct.unpack_from("<I", data, at)[0]
            at += 4 + length
            return data[at - length:at].decode()

        self.reason = text()
        count = struct.unpack_from("<I", data, at)[0]
        at += 4
        self.rules = [text() for _ in range(count)]
        count = struct.unpack_from("<Q", data, at)[0]
        at += 8
        self.entries = [data[at + n * ENTRY:at + (n + 1) * ENTRY] for n in range(count)]

    def bytes(self):
        def text(t):
            return struct.pack("<I", len(t.encode())) + t.encode()

        out = bytearray(self.head + bytes(2))
        struct.pack_into("<Q", out, 16, self.first)
        out += text(self.reason) + struct.pack("<I", len(self.rules)) + b"".join(map(text, self.rules))
        out += struct.pack("<Q", len(self.entries)) + b"".join(self.entries)
        total = 0xCBF29CE484222325
        for byte in out:
            total = (total ^ byte) * 0x100000001B3 & (1 << 64) - 1
        return bytes(out) + struct.pack("<Q", total)

    def fired(self):
        """Returns the names of the rules that fired."""
        numbers = {b for kind, _, b in (struct.unpack_from("<BBH", entry, 8) for entry in self.entries) if kind == FIRED}
        return [json.loads(self.rules[number])["name"] for number in sorted(numbers)]

    def expected(self):
        """Returns the numbers of rows, packets and lost packets."""
        drops = {number for number, rule in enumerate(self.rules) if json.loads(rule)["action"] == "drop"}
        rows = packets = lost = 0
        for entry in self.entries:
            kind, a, b, _, port = struct.unpack_from("<BBHII", entry, 8)
            packets += kind in (SENT, RECEIVED)
            is_lost = kind == PASSED and b >> 8 & LOST
            lost += bool(is_lost or kind == FIRED and b in drops)
            # A command has a row if it was refused, changed an address, or set the port.
            is_shown = kind == COMMAND and (a or b == SET_GID or b == SET_PORT and port)
            rows += bool(is_lost or is_shown or kind in (WORK, SENT, RECEIVED, COMPLETED, EVENT, STATE, FIRED))
        return {"rows": rows, "packets": packets, "lost": lost}


def page(name):
    return subprocess.run(["verbenactl", "report", f"{DIR}/{name}.record", "-o", f"{DIR}/{name}.html"], capture_output=True, text=True)


expected = {}


def made(name, recording=None, **more):
    path = f"{DIR}/{name}.record"
    if recording:
        with open(path, "wb") as file:
            file.write(recording.bytes())
    else:
        with open(path, "rb") as file:
            recording = Recording(file.read())
    done = page(name)
    if done.returncode:
        sys.exit(f"FAILED browser/{name}: verbenactl report: {done.stderr}")
    expected[name] = {**recording.expected(), **more}


def peer_dies():
    with open(f"{DIR}/peer-dies.record", "rb") as file:
        return Recording(file.read())


for scenario in sorted(glob.glob(f"{DIR}/*.record")):
    with open(scenario, "rb") as file:
        fired = Recording(file.read()).fired()
    name = os.path.basename(scenario)[:-len(".record")]
    made(name, scenario=name, fired=fired)
same = peer_dies()
if same.bytes() != open(f"{DIR}/peer-dies.record", "rb").read():
    sys.exit("FAILED browser: the format of recordings differs from the one that reports.py reads")
same.entries, same.rules = [], []
made("empty", same)
half = peer_dies()
gone = len(half.entries) // 2
half.entries, half.first = half.entries[gone:], half.first + gone
made("overwritten", half, first=half.first)
for number, name in enumerate(HOSTILE):
    hostile = peer_dies()
    rules = [json.loads(rule) for rule in hostile.rules]
    hostile.rules = [json.dumps({**rule, "name": name}) for rule in rules]
    hostile.reason = name
    # In a sentence, a name is quoted as by Rust's {:?}.
    quoted = re.sub("[\u2028\u2029\u202e]", lambda c: f"\\u{{{ord(c[0]):x}}}", name.replace("\\", "\\\\").replace('"', '\\"'))
    made(f"hostile-{number}", hostile, reason=name, rule=f'rule "{quoted}"')
with open(f"{DIR}/cut.record", "wb") as file:
    file.write(peer_dies().bytes()[:-1000])
done = page("cut")
if not done.returncode or "it ends after" not in done.stderr or os.path.exists(f"{DIR}/cut.html"):
    sys.exit(f"FAILED browser/cut: verbenactl report made a page of a recording that is cut off: {done.stderr}")
with open(f"{DIR}/expected.json", "w", encoding="utf-8") as file:
    json.dump(expected, file)
