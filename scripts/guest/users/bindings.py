# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Verbs bindings for Rust and Python: the tests and some examples of four crates and of PyPI's ibverbs, built by scripts/lib/users-suites.

Most of them use the first device, or all devices, so the guest has only the device of the row while they run.
"""
import contextlib
import os
import re
import xml.etree.ElementTree

from gtest import changed
from perftest import SLOW, Failed
from row import Part, Row, suite

# For each device: commands that remove it, and that bring it back with its GID. These rows run in one guest, the first.
DRIVER = "/sys/bus/pci/drivers/verbena"
GOES = {
    "rxe0": ("rdma link delete rxe0", "rdma link add rxe0 type rxe netdev $RXE_NETDEV; test $(gid-index rxe0 0a01:0001) = $RXE_GID"),
    "verbena0": (f"cd {DRIVER}; echo 0000:* >/run/function; cat /run/function >unbind",
                 f"cat /run/function >{DRIVER}/bind; test $(gid-index verbena0 0a00:0001) = $VERBENA_GID"),
}


@contextlib.contextmanager
def alone(place):
    with contextlib.ExitStack() as stack:
        for device, (gone, back) in GOES.items():
            if device != place.device and os.path.exists(f"/sys/class/infiniband/{device}"):
                stack.enter_context(changed(place, f"set -e; {gone}", f"set -e; {back}"))
        yield


def rust_test(place, path, program, name):
    """Runs a test of a crate in its own process, as cargo-nextest does."""
    out, silent = place.watched(f"cd /tmp; {path}/tests/{program} --exact {name} 2>&1; echo ended with $?", 60 * SLOW)
    if re.search(r"^test result: ok\. 1 passed;", out, re.M) and out.endswith("ended with 0\n"):
        return Part(f"{program}/{name}", "pass")
    if ignored := re.search(r"^test .* \.\.\. ignored(, )?(.*)$", out, re.M):
        return Part(f"{program}/{name}", "nothere", f"the crate ignores it: {ignored[2]}".rstrip(": "))
    return Part(f"{program}/{name}", "fail", f"{silent}{': ' if silent else ''}{out[-600:].strip()}")


def rust_tests(place, path):
    parts = []
    for program in sorted(os.listdir(f"{path}/tests")):
        for name in re.findall(r"^(\S+): test$", place.run(f"{path}/tests/{program} --list --format terse"), re.M):
            parts.append(rust_test(place, path, program, name))
    return parts


def example(name, run):
    """Runs an example, which must exit with 0 and print no error. Returns the part."""
    try:
        said = run()
        for line in said if isinstance(said, tuple) else (said,):
            if wrong := re.search(r"^.*(panicked|Error).*$", line or "", re.M):
                raise Failed(f"it printed: {wrong[0]}")
        return Part(f"example/{name}", "pass")
    except Failed as e:
        return Part(f"example/{name}", "fail", str(e))


def ibverbs(place, path):
    return rust_tests(place, path) + [example("loopback", lambda: said(place, f"{path}/examples/loopback", "^received$"))]


def said(place, line, pattern):
    out = place.run(f"{line} 2>&1")
    if not re.search(pattern, out, re.M):
        raise Failed(f"the output does not have {pattern}: {out[-400:].strip()}")
    return out


def sideway(place, path):
    examples = f"{path}/examples"
    pingpong = {name: f"{examples}/{name} -d $DEVICE -g $GID -p PORT" for name in ("rc_pingpong", "rc_pingpong_split")}
    cmtime = f"{examples}/cmtime -b $ADDRESS -p PORT"
    return rust_tests(place, path) + [
        example("ibv_devinfo", lambda: said(place, f"{examples}/ibv_devinfo", f"{place.device}")),
        example("show_gids", lambda: said(place, f"{examples}/show_gids", f"{place.device}.* {os.environ['ADDRESS']} ")),
        *(example(name, lambda line=line: place.both(line, f"{line} $SERVER")) for name, line in pingpong.items()),
        example("cmtime", lambda: place.both(cmtime, f"{cmtime} -s $SERVER")),
    ]


def rdma_sys(place, path):
    """The tests run in one process, because they check only the layout of structures."""
    return [Part(f"lib/{name}", "pass") for name in re.findall(r"^test (\S+) \.\.\. ok$", place.run(f"{path}/tests/lib"), re.M)]


def async_rdma(place, path):
    examples = f"{path}/examples"
    # The server recognises immediate data by a value of wc_flags, which differs on rxe.
    server = "server" if place.rxe else "server_flag_2"
    cm_server, cm_client = f"{examples}/cm_server", f"{examples}/cm_client $SERVER 7471"
    return rust_tests(place, path) + [
        example("devices", lambda: said(place, f"{examples}/devices", f"{place.device}")),
        example("rpc", lambda: said(place, f"{examples}/rpc", "^response: world$")),
        example("client", lambda: place.both(f"{examples}/{server}", f"{examples}/client", port=5555)),
        example("cm_client", lambda: place.both(f"{cm_server} | tee /dev/stderr | grep -q ^send", cm_client, port=7471)),
    ]


def python(place, path):
    report = "/tmp/python-ibverbs.xml"
    # Without plugins: Debian's pytest has several, and Verbena's is installed too.
    env = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path}"
    out = place.run(f"rm -f {report}; cd {path}/tests; {env} python3 -m pytest -p no:cacheprovider --rootdir . --junitxml {report} . 2>&1; true", 600 * SLOW)
    if not os.path.exists(report):
        raise Failed(f"pytest did not write its report: {out[-400:].strip()}")
    parts = []
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        wrong = next((case.find(kind) for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None)
        result = "pass" if wrong is None else "nothere" if wrong.tag == "skipped" else "fail"
        why = "" if wrong is None else f"{wrong.get('message')}: {(wrong.text or '')[-500:]}"
        # A skipped file has no name of a test.
        parts.append(Part("/".join(filter(None, (case.get("classname"), case.get("name")))), result, why))
    return parts


SUITES = {"ibverbs": ibverbs, "sideway": sideway, "rdma-sys": rdma_sys, "async-rdma": async_rdma, "python-ibverbs": python}


def tests(place, name, package):
    path = suite(package)
    with alone(place):
        return SUITES[name](place, path)


def rows():
    packages = {name: name if name.startswith("python") else f"crate-{name}" for name in SUITES}
    return [Row(f"bindings/{name}", name, package, lambda p, n=name, k=package: tests(p, n, k), pair=False) for name, package in packages.items()]
