# SPDX-License-Identifier: GPL-2.0 OR MIT
"""MPI: Open MPI over UCX and over libfabric, MPICH; mpi4py, OSU's benchmarks; gloo."""
import os
import re
from typing import NamedTuple

from perftest import SLOW, Failed
from row import Figure, NotHere, Part, Row, suite
from ucx import ENV, launch


class Library(NamedTuple):
    """A library under Open MPI: variables, and options of mpirun."""

    env: str
    options: str
    pair_options: str = ""  # more options between two guests
    left_out: str = ""  # options that exclude tests of mpi4py


OVER = {
    "ucx": Library(
        f"{ENV} UCX_TLS=rc_verbs,ud_verbs,self UCX_FENCE_MODE=weak",
        "--mca pml ucx --mca osc ucx --mca btl ^openib,uct,ofi",
        # Over UCX, Open MPI 5.0 has no communicators from groups, does not revoke one, crashes in some waits, and hangs if several ranks want
        # a mutex at once (Documentation/users.md).
        left_out="-x TestIntercommCreateFromGroups.testHalf -x .testRevoke -x .testWaitAll"
        + "".join(f' -x "*.Test{what}"' for what in ("Mutex*World.test[AEW]*", "Mutex*World.testFairness", "Condition*World.test[AW]*",
                                                     "Semaphore*World.test[ABW]*")),
    ),
    "ofi": Library(
        "FI_UNIVERSE_SIZE=4 FI_PROVIDER=\"verbs;ofi_rxm\" FI_VERBS_IFACE=$NETDEV",
        "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' --mca btl self,ofi --mca btl_ofi_provider_include 'verbs;ofi_rxm'",
        # By default Open MPI finds no component for windows of two nodes.
        pair_options=" --mca osc rdma",
    ),
    # For comparison: the same port without RDMA.
    "tcp": Library("", "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include 10.0.0.0/24"),
}
RDMA = ("ucx", "ofi")


def ring(place, over, ranks, size):
    """Runs mpi4py's own benchmark, which prints seconds."""
    env, more, *_ = OVER[over]
    out = place.run(launch(place, env, ranks, f"python3 -m mpi4py.bench ringtest -n {size} -l 100", more))
    return Figure(Figure.of(out, r"= ([\d.]+) seconds", "s").value * 1e6 / 100, "us")


def hello(place, over):
    env, more, *_ = OVER[over]
    out = place.run(launch(place, env, 4, "python3 -m mpi4py.bench helloworld", more))
    if out.count("Hello, World!") != 4:
        raise Failed(out[-300:])


HERE = os.path.dirname(os.path.abspath(__file__))
# Largest number of tests of a part, drawn with this seed. Fewer where tests are slow: between two guests, because ranks wait until the machine
# runs both emulators; over libfabric, where a test on four ranks that share processors takes half a minute; and for windows, whose locks the
# ranks take from each other. On rxe, which is only for comparison, a few.
MOST, FEWER, FEW, SEED = 60, 20, 5, 12
# Parts of mpi4py's tests, by the names of their files, so that each fits into a slice of time. Tests that spawn processes are left out.
MPI4PY = {"cco": "cco_(?!nb|pr)", "cco_nb": "cco_nb", "cco_pr": "cco_pr", "p2p": "p2p|msg", "rma": "rma|win", "io": "io|file",
          "pkl5": "util_pkl5", "util": "util_(?!pkl5)"}
REST = "|".join(("spawn", "dynproc", *MPI4PY.values()))
# Seconds without output before a test counts as hung. `testStruct2` of test_util_dtlib makes eight thousand datatypes on each rank, which takes
# minutes on emulated processors that all ranks share. In test_rma four ranks take each other's locks tens of thousands of times.
IDLE = {"rma": 1800 * SLOW, "util": 900 * SLOW}


def own_tests(place, over, part):
    """Runs a part of mpi4py's test suite on four ranks."""
    library = OVER[over]
    which = f'-i "^test_({MPI4PY[part]})"' if part in MPI4PY else f'-e "^test_({REST})"'
    # There are more ranks than processors, as in mpi4py's own runs, which set the same option.
    more = f"{library.options} --mca mpi_yield_when_idle 1"
    if place.pair:
        more += library.pair_options
    most = FEW if place.rxe else FEWER if place.pair or over == "ofi" or part == "rma" else MOST
    command = f"python3 {HERE}/mpi4py_drawn.py {most} {SEED} {suite('mpi4py')}/test/main.py -f -v {which} {library.left_out}"
    out, silent = place.watched(f"{launch(place, library.env, 4, command, more)}; echo ended with $?", IDLE.get(part, 300 * SLOW))
    drawn = re.findall(r"drawn: (\S+)$", out, re.M)
    if drawn and re.search(r"^OK\b.*^ended with 0$", out, re.M | re.S):
        return [Part(name, "pass") for name in drawn]
    # The end of the output names the hanging test, or has mpirun's report about its processes.
    failed = sorted(set(re.findall(r"(?:ERROR|FAIL): (test\w+ \S+)", out)))
    if silent:
        failed.append(f"it {silent}")
    raise Failed(f"{', '.join(failed)}: {out[-400:]}")


# Of each OSU benchmark: bytes of a message, our unit for the second column, and the factor to it.
OSU = {"latency": (8, "us", 1), "bw": (65536, "bytes/s", 1e6), "bibw": (65536, "bytes/s", 1e6)}


def measured(place, test, binary, started):
    """Runs an OSU benchmark; `started` makes a command that starts its two processes."""
    size, unit, factor = OSU[test]
    command = suite("osu-micro-benchmarks") + f"/{binary} -i {20 if factor > 1 else 200} -x 5"
    figure = Figure.of(place.run(started(command), 600), rf"^{size} +([\d.]+)$", unit)
    return figure._replace(value=figure.value * factor)


def osu(place, over, test):
    env, more, *_ = OVER[over]
    if over == "tcp" and place.rxe:
        raise NotHere("TCP uses no RDMA device: see the result on verbena0")
    return measured(place, test, f"osu_{test}", lambda command: launch(place, env, 2, command, more))


def mpich(place, test):
    """Runs OSU's benchmark with MPICH, which has only UCX, and starts its processes itself."""
    where = "-hosts vm1,vm2 -launcher ssh" if place.pair else ""
    started = f"mpiexec.mpich {where} -n 2 bash -c '. /run/users.env; {ENV} UCX_TLS=rc_verbs,ud_verbs,self exec %s'"
    return measured(place, test, f"mpich_osu_{test}", lambda command: started % command)


def gloo(place, ranks):
    """Runs several processes in one guest, which find each other by files."""
    binary = suite("gloo") + "/allreduce"
    out = place.run(f"d=$(mktemp -d); for r in $(seq 1 {ranks - 1}); do {binary} $r {ranks} $d $DEVICE $GID & done; "
                    f"{binary} 0 {ranks} $d $DEVICE $GID; rc=$?; for p in $(jobs -p); do wait $p || rc=1; done; rm -rf $d; exit $rc", 180)
    return Figure.of(out, r"right, ([\d.]+) bytes/s", "bytes/s")


def rows():
    found = [Row(f"mpi/tcp_osu_{test}", "OSU micro-benchmarks", "osu-micro-benchmarks", lambda p, t=test: osu(p, "tcp", t), pair=True) for test in OSU]
    found += [Row(f"mpi/mpich_osu_{test}", "OSU micro-benchmarks", "osu-micro-benchmarks", lambda p, t=test: mpich(p, t)) for test in OSU]
    found += [Row(f"gloo/allreduce_ring_{n}", "gloo", "gloo", lambda p, n=n: gloo(p, n), pair=False) for n in (2, 4)]
    for over in RDMA:
        def row(name, run, *how, pair=None):
            return Row(f"mpi/{over}_{name}", "Open MPI, mpi4py", "openmpi-bin", lambda p, o=over: run(p, o, *how), pair)

        found += [Row(f"mpi/{over}_osu_{test}", "OSU micro-benchmarks", "osu-micro-benchmarks", lambda p, o=over, t=test: osu(p, o, t))
                  for test in OSU]

        found += [
            row("hello", hello),
            row("ring_64", ring, 2, 64),
            row("ring_64k", ring, 4, 65536),
            # All ranks must open the same file (MPI 4.1, 14.2.1), and two guests share none.
            *(row(f"mpi4py_{part}", own_tests, part, pair=False if part == "io" else None) for part in (*MPI4PY, "rest")),
        ]
    return found
