# SPDX-License-Identifier: GPL-2.0 OR MIT
"""UCX: ucx_perftest over its verbs transports."""
from perftest import Failed
from row import Figure, Row

# UCX before 1.19 drops UD packets whose destination GID it cannot check (Documentation/users.md).
ENV = "UCX_NET_DEVICES=$DEVICE:1 UCX_IB_GID_INDEX=$GID UCX_UD_ETH_DGID_CHECK=n"


def launch(place, env, ranks, command, more):
    """Returns an mpirun command that starts the program in one guest or in both, each with the device of its guest."""
    where = f"--bind-to none -H vm1:{ranks // 2},vm2:{ranks // 2} --mca oob_tcp_if_include 10.0.0.0/24" if place.pair else "--oversubscribe"
    return (f"mpirun --allow-run-as-root {where} -np {ranks} {more} "
            f"bash -c '. /run/users.env; {env} exec {command}'")


def perf(test, tls, place, more=""):
    # The two processes find each other by MPI, which must not use the RDMA device.
    own = "--mca pml ob1 --mca btl self,sm,tcp --mca btl_tcp_if_include 10.0.0.0/24"
    kind = f"-x {tls} -d $DEVICE:1" if more == "uct" else ""
    if more == "uct" and test.startswith("get"):
        # By default the data would be inline in the request, which transports cannot do for data that they fetch ("Unsupported operation").
        kind += " -D bcopy"
    env = ENV if more == "uct" else f"{ENV} UCX_TLS={tls}"
    out = place.run(launch(place, env, 2, f"ucx_perftest -t {test} {kind} -n 500 -w 20 -f", own))
    return figure(out, test)


def figure(out, test):
    """Reads the line of -f: iterations; typical, average and overall latency; average and overall bandwidth; average and overall rate."""
    lines = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit() or line.startswith("Final:")]
    numbers = [[float(x) for x in line if x.replace(".", "", 1).isdigit()] for line in lines]
    numbers = [line for line in numbers if len(line) >= 7]
    if not numbers:
        raise Failed(f"no result in the output: {out[-300:].strip()}")
    row = numbers[-1]
    return Figure(row[2], "us") if "lat" in test else Figure(row[-1], "messages/s")


UCP = ("tag_lat", "tag_bw", "tag_sync_lat", "tag_sync_bw", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap",
       "ucp_cswap", "stream_bw", "stream_lat", "ucp_am_lat", "ucp_am_bw")
UCT = {"rc_verbs": ("am_lat", "put_lat", "add_lat", "am_bw", "put_bw", "get_bw", "add_mr"), "ud_verbs": ("am_lat", "am_bw")}


def rows():
    found = []
    for name, tls in ("rc", "rc_verbs,ud_verbs"), ("ud", "ud_verbs"):
        for test in UCP:
            found.append(Row(f"ucx/{name}_{test}", "ucx_perftest", "ucx-utils", lambda p, t=test, n=tls: perf(t, n, p)))
    for tls, tests in UCT.items():
        for test in tests:
            found.append(Row(f"ucx/uct_{tls[:2]}_{test}", "ucx_perftest", "ucx-utils", lambda p, t=test, n=tls: perf(t, n, p, "uct")))
    return found
