# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The layers of the crates, and the parts of a crate that a source file uses (for the check `floors` of check.py)."""
import re

# The layers of each crate, from the lowest up. A part may use the parts of its own layer and of the layers before it.
FLOORS = {
    "tools/nic/device/src/": ("config regs error slots misbehave capture", "memory", "objects hostile observation", "execution", "device"),
    "tools/nic/transport/src/": (
        "counters headers prefetch psn reassembly_quota sges",
        "copy wire",
        "gather",
        "packet",
        "pool",
        "frame host",
        "qp",
        "sched",
    ),
    "tools/nic/daemon/src/": (
        "bound_sockets frame_address guest_ram netdev_queue pci peer_process policy sender_budgets waker",
        "inbox refusals subnet switch uplink vfio_user",
        "args impairments",
        "process_state",
        "vm_state",
        "flight_recording full_recording network vm_device",
        "netdev pci_function uplink_queues",
        "control engine vm_server",
    ),
    "tools/nic/fabric/src/": ("mad", "counters topology", "port", "forwarding traps", "node", "agent", "fabric"),
    "tools/lab/harness/src/": (
        "guests libtest results step suite",
        "junit needs processes records skips text",
        "console files options table verdict",
        "run",
    ),
    "tools/vm/src/": (
        "scratch",
        "archive boots installation options output run_directory shell signals window",
        "complaints frames nic session watcher",
        "node_request node_set terminal",
        "agent agent_link guest_files process root",
        "node_server qemu",
        "guest",
        "judge",
        "summary",
        "boot",
        "background node_client node_session",
        "bin cache copy doctor launch",
    ),
    "rust/verbena/": (
        "bars ids ratelimit served_areas",
        "health",
        "cmdq ctx ring",
        "hw",
        "doorbell eq netdev",
        "verbs",
        "death_work debugfs heartbeat",
        "device_life",
        "pci",
    ),
    # A layer with layers of its own.
    "rust/verbena/verbs/": ("ah counters infiniband key pages pd port_events wq xrcd", "mw", "mr srq ucontext", "cq", "qp", "device port"),
}
# Types that all layers of a folder may use. The objects of the verbs and their device cannot do without each other: each object has a
# reference to `VerbsDevice`, which has tables of the objects, and the traits of the crate `rdma` have the driver's type `Verbena` as
# parameter, which in turn names the driver's type of each object.
SHARED = {"rust/verbena/verbs/": {"Verbena", "VerbsDevice"}}
# Files that may use all layers: the root of a crate or of a layer, and files that only tests use.
EXEMPT = re.compile(r"^(lib|main|mod)\.rs$|(^|/)(mock|tests?|\w+_tests)(/|\.rs$)")
USE = re.compile(r"\buse\s+([^;]*);")
WORD = re.compile(r"\s*(::|[{},*]|\w+)")


def leaves(text, at):
    """Yields the paths of the use tree (or the single path) that begins at a place, each as a list of names."""
    prefix = []
    while True:
        m = WORD.match(text, at)
        if not m or m[1] in ",}":
            yield prefix
            return
        at = m.end()
        if m[1] == "{":
            depth, begin = 1, at
            while depth and at < len(text):
                end, c = at, text[at]
                at += 1
                depth += (c == "{") - (c == "}")
                if depth == 0 or depth == 1 and c == ",":
                    if text[begin:end].strip():
                        yield from (prefix + rest for rest in leaves(text[begin:end], 0))
                    begin = at
            return
        prefix.append(m[1])
        m = WORD.match(text, at)
        if not m or m[1] != "::":
            yield prefix
            return
        at = m.end()


def roots(text):
    """Returns the part from which the root of the crate takes each of its names: `Name` in lib.rs is `part::...::Name`."""
    found = {}
    for m in re.finditer(r"\buse\s+(?:crate::|self::)?(?=[a-z])", text):
        for path in leaves(text, m.end()):
            found[path[-1]] = path[0]
    return found


def paths(text):
    """Yields the line of each path that begins with `crate` or `super`, and its names: those of the use trees, then all others."""
    for m in USE.finditer(text):
        yield from ((text.count("\n", 0, m.start()) + 1, path) for path in leaves(text, m.start(1)))
    text = USE.sub(lambda m: "\n" * m[0].count("\n"), text)
    for m in re.finditer(r"(?<![\w:])(?:crate|super)::(?=[\w{])", text):
        yield from ((text.count("\n", 0, m.start()) + 1, path) for path in leaves(text, m.start()))


def used(text, home, depth):
    """Yields the line and the names of each path to a part, from the part on. `home` is the folder of the parts, as modules from the root
    of the crate. `depth` is the number of modules from that folder to the file."""
    for line, path in paths(text):
        supers = next((n for n, name in enumerate(path) if name != "super"), len(path))
        above = ["crate"] + home if supers == 0 else ["super"] * depth
        if path[:len(above)] == above and supers in (0, depth) and len(path) > len(above):
            yield line, path[len(above):]


def climbs(top, path, text, names):
    """Yields the lines of a file that use a part of a higher layer. `text` has neither comments nor tests."""
    floor = {name: n for n, parts in enumerate(FLOORS[top]) for name in parts.split()}
    modules = path.removesuffix(".rs").removesuffix("/mod").split("/")
    part = modules[0]
    if part not in floor:
        yield f"{top}{path}: {part} is in none of the layers of FLOORS ({'; '.join(FLOORS[top])})"
        return
    home = next((top[len(crate):].strip("/").split("/") for crate in FLOORS if top.startswith(crate) and crate != top), [])
    for line, (name, *_) in used(text, home, len(modules)):
        used_part = names.get(name, name)
        if floor.get(used_part, -1) > floor[part] and name not in SHARED.get(top, ()):
            yield f"{top}{path}:{line}: {part} uses {used_part}, which is in a higher layer"
