# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The layers of the crates, and the parts of a crate that a source file uses (for the check `floors` of check.py)."""
import re

# The layers of each crate, from the lowest up. A part may use the parts of its own layer and of the layers before it.
FLOORS = {
    "tools/nic/device/src/": ("config regs error slots misbehave capture", "memory", "objects hostile observation", "execution", "device"),
    "tools/nic/transport/src/": ("counters prefetch psn reassembly_quota", "host packet pool wire", "qp", "sched"),
    "tools/nic/daemon/src/": (
        "guest_ram outlet pci places policy sharing shares waker",
        "inbox refusals switch uplink vfio_user",
        "args impair",
        "common",
        "shared",
        "full network recording slice",
        "departures front netdev",
        "attend control engine",
    ),
    "tools/nic/fabric/src/": ("mad", "counters topology", "port", "forwarding traps", "node", "agent", "fabric"),
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
}
# Files that may use all layers: the root of a crate, and files that only its tests use.
EXEMPT = re.compile(r"^(lib|main)\.rs$|(^|/)(mock|tests?|\w+_tests)(/|\.rs$)")
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


def used(text, depth, names):
    """Yields the line and the name of each part that a file names. `depth` is the number of modules from the root to the file."""
    for m in re.finditer(r"(?<![\w:])(?:crate|((?:super::)*super))::(?=[\w{])", text):
        if m[1] and m[1].count("super") != depth:
            continue
        line = text.count("\n", 0, m.start()) + 1
        for path in leaves(text, m.end()):
            yield line, names.get(path[0], path[0])


def climbs(top, path, text, names):
    """Yields the lines of a file that use a part of a higher layer. `text` has neither comments nor tests."""
    floor = {name: n for n, parts in enumerate(FLOORS[top]) for name in parts.split()}
    modules = path.removesuffix(".rs").removesuffix("/mod").split("/")
    part = modules[0]
    if part not in floor:
        yield f"{top}{path}: {part} is in none of the layers of FLOORS ({'; '.join(FLOORS[top])})"
        return
    for line, name in used(text, len(modules), names):
        if floor.get(name, -1) > floor[part]:
            yield f"{top}{path}:{line}: {part} uses {name}, which is in a higher layer"
