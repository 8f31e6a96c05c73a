# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Combinations of perftest's options: a random sample of their product, drawn with a seed. The suite `perftest` tests each option by itself."""
import random
import re

import perftest
from perftest import Failed, again
from row import Part, Row

# The name of a part consists of its options, joined by underscores. This seed determines all samples.
SEED = 12
SAMPLES, OF_EACH = 8, 25
TRANSPORTS = {"send": "RC UC UD XRC", "write": "RC UC XRC", "read": "RC XRC", "atomic": "RC XRC"}
SIZES = (1, 2, 3, 63, 64, 65, 255, 256, 1023, 1024, 1025, 4096, 65535, 65536, 65537, 1 << 20)
# Sizes that fit into a datagram with the smallest path MTU.
SIZES_UD = tuple(size for size in SIZES if size <= 256)
# Largest number of messages of each size with -a: 1000 would be 16 GiB.
MOST_OF_ALL = 50
# Options, their possible values (None: the option has no value), and their probabilities.
COMMON = (
    ("-n", (5, 6, 50, 300, 1000), 1),
    ("-m", (256, 512, 1024), 0.3),
    ("-t", (1, 2, 16, 100, 512), 0.3),
    ("-R", None, 0.15),
    ("-z", None, 0.1),
    ("-u", (14, 16, 18), 0.1),
    ("-S", (0, 3, 7), 0.1),
    ("--tclass", (0, 32, 255), 0.1),
    ("--flow_label", (1, 77), 0.1),
    ("--use_old_post_send", None, 0.2),
    ("--no_lock", None, 0.1),
    ("--pkey_index", (0,), 0.05),
)
BW = (
    ("-q", (2, 3, 16), 0.3),
    ("-Q", (1, 5, 100), 0.3),
    ("-l", (2, 16), 0.15),
    ("-b", None, 0.2),
    ("-N", None, 0.2),
    ("-a", None, 0.05),
    ("--reversed", None, 0.05),
    ("--perform_warm_up", None, 0.1),
    ("--mr_per_qp", None, 0.1),
    ("--report_gbits", None, 0.1),
)
LAT = (("-C", None, 0.1), ("-U", None, 0.05), ("-a", None, 0.05))
SIZE = ("-s", SIZES, 0.8)
EVENTS = ("-e", None, 0.3)
INLINE = ("-I", (0, 32, 220), 0.1)
# Options that perftest refuses are left out: events with WRITE, inline data with READ and atomics, the size of an atomic.
OF_VERB = {
    "send": (SIZE, EVENTS, INLINE, ("-r", (1, 2, 64, 600), 0.3), ("--use-srq", None, 0.2), ("-g", None, 0.05)),
    "write": (SIZE, INLINE, ("--write_with_imm", None, 0.3), ("--unsolicited_write", None, 0.05)),
    "read": (SIZE, EVENTS, ("-o", (1, 2, 16), 0.4)),
    "atomic": (EVENTS, ("-o", (1, 2, 16), 0.4), ("-A", ("CMP_AND_SWAP", "FETCH_AND_ADD"), 0.7)),
}


def draw(lot):
    """Returns a random command."""
    verb, kind = lot.choice(list(TRANSPORTS)), lot.choice(("lat", "bw"))
    transport = lot.choice(TRANSPORTS[verb].split())
    command = [f"ib_{verb}_{kind}", "-c", transport]
    for option, values, likely in COMMON + OF_VERB[verb] + (BW if kind == "bw" else LAT):
        if values is SIZES and transport == "UD":
            values, likely = SIZES_UD, 1
        if lot.random() < likely:
            command += [option] if values is None else [option, str(lot.choice(values))]
    if "-a" in command:
        # -a measures each size up to 8 MiB, so the number of messages is limited.
        times = command.index("-n") + 1
        command[times] = str(min(int(command[times]), MOST_OF_ALL))
    return command


def refusal(failure):
    """Returns perftest's message if it refuses its options before it uses the device, or None."""
    ended = re.match(r"the server ended with 1: (.*)", str(failure), re.S)
    # Messages with these words report errors of the device.
    if not ended or re.search(r"Unable|[Cc]ouldn't|Failed|failed", ended[1]):
        return None
    lines = [line.strip() for line in ended[1].splitlines() if re.search("[a-z]", line) and "Parser function" not in line]
    return lines[-1] if lines else None


def measure(place, command):
    """Runs both ends, which must succeed and print results."""
    more = ["-d", "@DEVICE", "-x", "@GID", "-F"]
    out = perftest.pair(place.server, command[0], *more, *command[1:], limit=120)
    if not re.search(r"^ *\d+ +\d+ +[\d.]+", out, re.M):
        raise Failed(f"no results in the output: {out[-300:].strip()}")


def sample(place, number):
    lot = random.Random(SEED * 1000 + number)
    parts = []
    for _ in range(OF_EACH):
        command = draw(lot)
        name = "_".join(command)
        try:
            again(lambda c=command: measure(place, c))
            parts.append(Part(name, "pass"))
        except Failed as e:
            no = refusal(e)
            parts.append(Part(name, "nothere" if no else "fail", f"perftest refuses: {no}" if no else str(e)))
    return parts


def rows():
    return [Row(f"perftest/cross_{n}", "perftest", "perftest", lambda p, n=n: sample(p, n)) for n in range(1, SAMPLES + 1)]
