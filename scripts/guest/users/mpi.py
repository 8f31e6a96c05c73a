# SPDX-License-Identifier: GPL-2.0 OR MIT
"""MPI: Open MPI over UCX and over libfabric, MPICH; mpi4py, OSU's benchmarks; gloo."""
import os
import re
from typing import NamedTuple

from perftest import SLOW, Failed
from row import Figure, NotHere, Part, Row, suite
from ucx import ENV, launch


class Library(NamedTuple):
    """What Open MPI is run over: variables, and mpirun's options."""

    env: str
    options: str
    pair_options: str = ""  # between two guests, too
    left_out: str = ""  # of mpi4py's own tests


OVER = {
    "ucx": Library(
        f"{ENV} UCX_TLS=rc_verbs,ud_verbs,self UCX_FENCE_MODE=weak",
        "--mca pml ucx --mca osc ucx --mca btl ^openib,uct,ofi",
        # Open MPI 5.0 over UCX has no communicators from groups, does not revoke one, dies of some that it waits for, and waits for ever where
        # ranks want a mutex at once (Documentation/users.md).
        left_out="-x TestIntercommCreateFromGroups.testHalf -x .testRevoke -x .testWaitAll"
        + "".join(f' -x "*.Test{what}"' for what in ("Mutex*World.test[AEW]*", "Mutex*World.testFairness", "Condition*World.test[AW]*",
                                                     "Semaphore*World.test[ABW]*")),
    ),
    "ofi": Library(
        "FI_UNIVERSE_SIZE=4 FI_PROVIDER=\"verbs;ofi_rxm\" FI_VERBS_IFACE=$NETDEV",
        "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' --mca btl self,ofi --mca btl_ofi_provider_include 'verbs;ofi_rxm'",
        # By itself Open MPI finds nothing for windows of two nodes.
        pair_options=" --mca osc rdma",
    ),
    # What to compare with: the same port, without RDMA.
    "tcp": Library("", "--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include 10.0.0.0/24"),
}
RDMA = ("ucx", "ofi")


def ring(place, over, ranks, size):
    """mpi4py's own benchmark, which prints seconds."""
    env, more, *_ = OVER[over]
    out = place.run(launch(place, env, ranks, f"python3 -m mpi4py.bench ringtest -n {size} -l 100", more))
    return Figure(Figure.of(out, r"= ([\d.]+) seconds", "s").value * 1e6 / 100, "us")


def hello(place, over):
    env, more, *_ = OVER[over]
    out = place.run(launch(place, env, 4, "python3 -m mpi4py.bench helloworld", more))
    if out.count("Hello, World!") != 4:
        raise Failed(out[-300:])


HERE = os.path.dirname(os.path.abspath(__file__))
# Of each part, of which the largest have hundreds, at most so many are drawn by this seed; fewer between two guests, whose ranks wait for those
# of the other as long as the machine takes to let both emulators run, over libfabric, where four ranks that share processors take half a minute
# for a test, and of windows, whose locks they take from one another; a few on rxe, which is there to compare with.
MOST, FEWER, FEW, SEED = 60, 20, 5, 12
# mpi4py's tests by the names of their files, so that a slice of time does for each; those that spawn processes are left out.
MPI4PY = {"cco": "cco_(?!nb|pr)", "cco_nb": "cco_nb", "cco_pr": "cco_pr", "p2p": "p2p|msg", "rma": "rma|win", "io": "io|file",
          "pkl5": "util_pkl5", "util": "util_(?!pkl5)"}
REST = "|".join(("spawn", "dynproc", *MPI4PY.values()))
# It may say nothing for so many seconds, before the test that it waits in is told: `testStruct2` of test_util_dtlib makes eight thousand datatypes
# on each rank, which is minutes of an emulated processor that all of them share; in test_rma four ranks take one another's locks tens of
# thousands of times.
IDLE = {"rma": 1800 * SLOW, "util": 900 * SLOW}


def own_tests(place, over, part):
    """A part of mpi4py's test suite on four ranks."""
    library = OVER[over]
    which = f'-i "^test_({MPI4PY[part]})"' if part in MPI4PY else f'-e "^test_({REST})"'
    # There are more ranks than processors, as in mpi4py's own runs, which set that, too.
    more = f"{library.options} --mca mpi_yield_when_idle 1"
    if place.pair:
        more += library.pair_options
    most = FEW if place.rxe else FEWER if place.pair or over == "ofi" or part == "rma" else MOST
    command = f"python3 {HERE}/mpi4py_drawn.py {most} {SEED} {suite('mpi4py')}/test/main.py -f -v {which} {library.left_out}"
    out, silent = place.watched(f"{launch(place, library.env, 4, command, more)}; echo ended with $?", IDLE.get(part, 300 * SLOW))
    drawn = re.findall(r"drawn: (\S+)$", out, re.M)
    if drawn and re.search(r"^OK\b.*^ended with 0$", out, re.M | re.S):
        return [Part(name, "pass") for name in drawn]
    # What comes last is which test waits, or what mpirun says of its processes.
    failed = sorted(set(re.findall(r"(?:ERROR|FAIL): (test\w+ \S+)", out)))
    if silent:
        failed.append(f"it {silent}")
    raise Failed(f"{', '.join(failed)}: {out[-400:]}")


# What OSU's benchmarks are looked at for: bytes of a message, unit of the second column, and what that is in ours.
OSU = {"latency": (8, "us", 1), "bw": (65536, "bytes/s", 1e6), "bibw": (65536, "bytes/s", 1e6)}


def measured(place, test, binary, started):
    """One of them; `started` makes a line that starts two processes of its own."""
    size, unit, factor = OSU[test]
    command = suite("osu-micro-benchmarks") + f"/{binary} -i {20 if factor > 1 else 200} -x 5"
    figure = Figure.of(place.run(started(command), 600), rf"^{size} +([\d.]+)$", unit)
    return figure._replace(value=figure.value * factor)


def osu(place, over, test):
    env, more, *_ = OVER[over]
    if over == "tcp" and place.rxe:
        raise NotHere("TCP needs no device: the row of the other one tells it")
    return measured(place, test, f"osu_{test}", lambda command: launch(place, env, 2, command, more))


def mpich(place, test):
    """OSU's benchmark with MPICH, which has UCX alone, and starts its processes itself."""
    where = "-hosts vm1,vm2 -launcher ssh" if place.pair else ""
    started = f"mpiexec.mpich {where} -n 2 bash -c '. /run/users.env; {ENV} UCX_TLS=rc_verbs,ud_verbs,self exec %s'"
    return measured(place, test, f"mpich_osu_{test}", lambda command: started % command)


def gloo(place, ranks):
    """Processes of one guest, which find each other by files."""
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
            # All ranks are to open the same file (MPI 4.1, 14.2.1), and two guests have none that both see.
            *(row(f"mpi4py_{part}", own_tests, part, pair=False if part == "io" else None) for part in (*MPI4PY, "rest")),
        ]
    return found
