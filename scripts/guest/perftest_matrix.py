# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: the combinations of perftest's operations, transports and options. For `programs`.

Each operation runs over each transport, for latency and bandwidth, with each variant of options. perftest refuses some combinations; that
it does is tested too (`REFUSED`).
"""
import math

from perftest import Failed, NoClock, again, end, pair, peer_is_another, rows as rows_of, start, timed

TRANSPORTS = ("RC", "UC", "UD", "XRC")
OPERATIONS = {
    "send": ("send",),
    "write": ("write",),
    "write_imm": ("write", "--write_with_imm"),
    "read": ("read",),
    "atomic": ("atomic",),
}
VARIANTS = {
    "plain": ("-n", 200),
    "all": ("-a", "-n", 50),
    "events": ("-e", "-n", 200),
    "cm": ("-R", "-n", 200),
    "64_qps": ("-q", 64, "-n", 100),
    # perftest sends nothing inline on a device that it does not know, and reports that; rstream does (`programs cm/rstream`).
    "inline": ("-I", 512, "-n", 200),
    "srq": ("--use-srq", "-n", 200),
}
# Sizes with -a: every power of two from 2 B to 8 MiB; for datagrams up to 1 KiB, because of the port's MTU.
ALL, ALL_UD = 23, 10
# The tests of others() in the short form.
SHORT = [f"perftest/{name}" for name in ("write_bw_64_long", "send_bw_8m", "read_bw_8_qps", "send_bw_both_ways", "read_bw_64k_events", "write_bw_cm",
    "atomic_cas_lat", "send_bw_multicast")]
# Refused combinations: operation, kind, transport, variant (None: any), and the message. The first match counts.
REFUSED = (
    (("write", "write_imm"), None, ("UD",), None, "UD connection only possible in SEND verb"),
    (("read", "atomic"), None, ("UD",), None, "UD connection only possible in SEND verb"),
    (("read", "atomic"), None, ("UC",), None, "UC connection not possible in READ/ATOMIC verbs"),
    (("write", "write_imm"), None, None, ("events",), "Events feature not available on WRITE verb"),
    (None, ("lat",), None, ("64_qps",), "Multiple QPs only available on bw tests"),
    (("read", "atomic"), None, None, ("inline",), "Inline feature not available on READ/Atomic verbs"),
    (("atomic",), None, None, ("all",), "Message size cannot be changed for Atomic tests"),
    (("write", "write_imm", "read", "atomic"), None, None, ("srq",), "Using SRQ only avavilible in SEND tests"),
    (None, None, ("XRC",), ("cm",), "XRC does not support RDMA_CM"),
    (None, None, ("UC",), ("cm",), "UC is not supported in librdmacm"),
)


def in_short(operation, kind, transport, variant):
    """The short form has each operation over each transport without options, and the options with SEND and READ bandwidth over RC and UD."""
    return variant == "plain" or (kind == "bw" and operation in ("send", "read") and transport in ("RC", "UD"))


def in_all_sizes(operation, kind, transport):
    """For each size perftest measures the CPU's clock for a third of a second. So only latency or only bandwidth has all sizes, in turns;
    datagrams, with fewer sizes, have both."""
    turn = TRANSPORTS.index(transport) + list(OPERATIONS).index(operation)
    return operation != "atomic" and (transport == "UD" or (kind == "lat") == (turn % 2 == 0))


def same(operation, kind, transport, variant):
    """True if another combination covers this one: an XRC target always receives from an SRQ, and all sizes include one size."""
    if variant in ("plain", "all"):
        return in_all_sizes(operation, kind, transport) == (variant == "plain")
    return (transport, variant) == ("XRC", "srq")


def refusal(*combination):
    """Returns the message with which perftest refuses the combination, or None."""
    for *who, message in REFUSED:
        if all(asked is None or c in asked for c, asked in zip(combination, who)):
            return message
    return None


def options(operation, variant):
    more = list(VARIANTS[variant])
    if variant in ("plain", "events", "cm", "64_qps", "srq") and operation != "atomic":
        # Fits into a datagram.
        more += ["-s", 1024]
    if variant == "inline":
        more += ["-s", 512]
    return more


class Matrix:
    def __init__(self, device, address, gid, short=False):
        """If `gid` is empty, the ends address each other by their LIDs."""
        self.device, self.address, self.gid, self.short = device, address, gid, short

    def run(self, *command, count=1, limit=240, meanwhile=None, gid=None):
        """Checks that perftest prints `count` rows, and that each result is plausible."""
        given = self.gid if gid is None else gid
        if peer_is_another() and command[0].startswith(("ib_read", "ib_atomic")):
            # An end requests as many outstanding reads as its own device supports, so both get the same limit.
            command = (*command, "-o", 16)
        path = () if given == "" else ("-x", given)
        out = pair(self.address, command[0], "-d", self.device, *path, "-F", *command[1:], limit=limit, meanwhile=meanwhile)
        for row in rows_of(out, count):
            if not timed(row):
                # With all sizes, repeats only this size.
                if count > 1:
                    alone = [c for c in command if c != "-a"] + ["-s", int(row[0])]
                    again(lambda: self.run(*alone, gid=gid))
                    continue
                raise NoClock(f"perftest found no CPU clock: {row}")
            # With few iterations, the last columns of latency rows may be 0; the typical value and the bandwidth may not.
            # A bandwidth below 5 kB/s is printed as 0: then the message rate counts.
            value = row[4] if command[0].endswith("_lat") else row[3] or row[4]
            if not math.isfinite(value) or not 0 < value < 1e6:
                raise Failed(f"implausible result {value} in row {row}")

    def refused(self, command, message):
        """The command must fail at once, with the message."""
        process = start(command[0], "-d", self.device, *command[1:])
        try:
            end(process, command[0], 20)
        except Failed as e:
            if message in str(e):
                return
            raise Failed(f"{' '.join(map(str, command))} fails without the message '{message}': {e}") from None
        raise Failed(f"{' '.join(map(str, command))} is not refused: '{message}'")

    def tests(self):
        """Returns name and function of each test: the combinations that run, and one test for each reason of refusal."""
        found, refused = [], {}
        for variant in VARIANTS:
            for transport in TRANSPORTS:
                for operation, (verb, *more) in OPERATIONS.items():
                    for kind in ("lat", "bw"):
                        command = [f"ib_{verb}_{kind}", "-c", transport, *more, *options(operation, variant)]
                        message = refusal(operation, kind, transport, variant)
                        if message:
                            refused.setdefault(message, []).append(command)
                            continue
                        if not in_short(operation, kind, transport, variant) if self.short else same(operation, kind, transport, variant):
                            continue
                        count = 1 if variant != "all" else ALL_UD if transport == "UD" else ALL
                        name = f"perftest/{operation}_{kind}_{transport}_{variant}"
                        found.append((name, lambda c=command, n=count: again(lambda: self.run(*c, count=n))))
        for message, commands in refused.items():
            # One command for each program, because the same line of its code refuses the others.
            each = {c[0]: c for c in commands}.values()
            name = f"perftest/refused: {message}"
            found.append((name, lambda e=each, m=message: [self.refused(c, m) for c in e]))
        return found + [test for test in self.others() if not self.short or test[0] in SHORT]

    def others(self):
        """Returns long runs, large messages, both directions at once, and options of single operations."""

        def perf(name, *command, rows=1, gid=None):
            found.append((f"perftest/{name}", lambda: again(lambda: self.run(*command, count=rows, gid=gid))))

        found = []
        for op in ("send", "write", "read"):
            perf(f"{op}_bw_64_long", f"ib_{op}_bw", "-s", 64, "-n", 100000)
            perf(f"{op}_bw_8m", f"ib_{op}_bw", "-s", 8388608, "-n", 100)
            perf(f"{op}_bw_8_qps", f"ib_{op}_bw", "-s", 4096, "-n", 20000, "-q", 8, "-Q", 16)
        for op in ("send", "write"):
            perf(f"{op}_bw_both_ways", f"ib_{op}_bw", "-s", 65536, "-n", 5000, "-b")
        for op in ("send", "read"):
            perf(f"{op}_lat_all_events", f"ib_{op}_lat", "-a", "-n", 200, "-e", rows=ALL)
            perf(f"{op}_bw_64k_events", f"ib_{op}_bw", "-s", 65536, "-n", 5000, "-e")
        perf("write_bw_cm", "ib_write_bw", "-R", "-s", 65536, "-n", 1000)
        for kind in ("lat", "bw"):
            perf(f"atomic_cas_{kind}", f"ib_atomic_{kind}", "-A", "CMP_AND_SWAP", "-n", 2000)
        # perftest's groups are IPv6 groups, which packets with an IPv4 GID cannot address on a wire.
        for kind in ("lat", "bw"):
            perf(f"send_{kind}_multicast", f"ib_send_{kind}", "-c", "UD", "-g", "-a", "-n", 200, rows=ALL_UD, gid=0)
        return found
