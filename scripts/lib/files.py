# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Prints Documentation/files.md: each Rust file that is no test, what it is for, and who uses it. In the top directory."""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(__file__))
from check import code, read, tracked  # noqa: E402

# Folder of a crate: its root file, its name in paths, and where else its modules are.
CRATES = {
    "include/abi": ("mod.rs", "verbena_abi", {}),
    "rust/rdma": ("rdma.rs", "rdma", {}),
    "rust/verbena": ("main.rs", "verbena", {("abi",): "include/abi"}),
}
for manifest in tracked("Cargo.toml"):
    folder = os.path.join(os.path.dirname(manifest), "src")
    name = re.search(r'^name = "(.*)"', read(manifest), re.M)
    for root in ("lib.rs", "main.rs"):
        if name and os.path.exists(os.path.join(folder, root)) and folder != "tools/abi/src" and folder not in CRATES:
            CRATES[folder] = (root, name[1].replace("-", "_"), {})
BY_NAME = {name: folder for folder, (_, name, _) in CRATES.items()}
TEST = re.compile(r"(^|/)(tests?|mock|testing)(/|\.rs$)|_tests\.rs$|/bin/")


def flatten(tree):
    """The paths of a `use` tree: a::{b, c::d} is a::b and a::c::d."""
    tree = re.sub(r"\s+", " ", tree).strip()
    m = re.match(r"(.*?)\{(.*)\}$", tree)
    if not m:
        return [re.sub(r" as .*", "", tree)]
    paths, depth, part = [], 0, ""
    for c in m[2] + ",":
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            paths += [m[1] + p for p in flatten(part) if p]
            part = ""
        else:
            part += c
    return paths


def main():
    files = {f: s for f in tracked(".rs") for s in CRATES if f.startswith(s + "/") and not TEST.search(f)}
    modules = {}
    for f, folder in files.items():
        at = os.path.relpath(f, folder)[:-3].split("/")
        path = () if os.path.relpath(f, folder) == CRATES[folder][0] else tuple(at[:-1] if at[-1] == "mod" else at)
        modules[folder, path] = f
    texts = {f: re.sub(r"#\[cfg\(test\)\]\s*mod \w+ \{.*", "", code(read(f)), flags=re.S) for f in files}

    def resolve(folder, path, p, shown):
        """The module that a path leads to, by what modules show of others."""
        parts = [s.strip() for s in p.lstrip("$").split("::")]
        if parts[0] in BY_NAME and parts[0] != "crate":
            where, at = BY_NAME[parts[0]], ()
        elif parts[0] in ("crate", "super", "self"):
            where, at = folder, {"crate": (), "super": path[:-1], "self": path}[parts[0]]
        elif (folder, path + (parts[0],)) in modules:
            where, at = folder, path + (parts[0],)
        else:
            return None
        for part in parts[1:]:
            if part == "super":
                at = at[:-1]
            elif (where, at + (part,)) in modules:
                at = at + (part,)
            elif at + (part,) in CRATES[where][2]:
                where, at = CRATES[where][2][at + (part,)], ()
            else:
                where, at = shown.get((where, at, part), (where, at))
                break
        return where, at

    shown = {}
    for (folder, path), f in modules.items():
        for m in re.finditer(r"\bpub(?:\([^)]*\))? use ([^;]+);", texts[f]):
            for p in flatten(m[1]):
                target = resolve(folder, path, p, {})
                if target:
                    shown[folder, path, p.split("::")[-1]] = target
    users = {f: set() for f in files}
    for (folder, path), f in modules.items():
        text = texts[f]
        paths = [p for m in re.finditer(r"\buse ([^;]+);", text) for p in flatten(m[1])]
        paths += re.findall(r"(?<![\w:])(?:crate|super|self|%s)(?:::\w+)+" % "|".join(BY_NAME), text)
        for p in paths:
            target = modules.get(resolve(folder, path, p, shown))
            if target and target != f:
                users[target].add(f)
    for (folder, path), f in modules.items():
        # Methods of a type of another file: nobody names the file itself.
        if path not in ((), ("main",)) and not users[f]:
            users[f].add(modules.get((folder, path[:-1]), f))
    print("# Files\n\nEach file of the project's Rust code that is no test: what it is for, and who uses it. Made by `scripts/lib/files.py`;")
    print("`make check` compares. What the crates may do, and how they work together, is on [another page](architecture.md).")
    for folder in sorted(set(files.values())):
        print(f"\n## {folder}\n\n| file | what it is for | used by |\n| --- | --- | --- |")
        for f in sorted(f for f, s in files.items() if s == folder):
            said = re.match(r"(?:// [^\n]*\n|\s)*((?://!.*\n)+)", read(f))
            said = " ".join(line[3:].strip() for line in said[1].split("\n//!\n")[0].split("\n")) if said else "generated"
            said = re.sub(r"\[(`[^`]*`)\](\([^)]*\))?", r"\1", re.split(r"(?<=\.) (?=[A-Z*`\[])|: +\|", said.strip())[0])
            own = sorted(os.path.relpath(u, folder)[:-3] for u in users[f] if files[u] == folder)
            own = [f"{len(own)} files here"] if len(own) > 8 else own
            others = sorted({files[u] for u in users[f]} - {folder})
            print(f"| `{os.path.relpath(f, folder)}` | {said.replace('|', '/')} | {', '.join(own + [f'`{o}`' for o in others])} |")


if __name__ == "__main__":
    main()
