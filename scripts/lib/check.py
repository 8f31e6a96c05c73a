# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The checks of scripts/check-style that only read files: `check.py NAME`, in the top directory. Prints the errors."""
import difflib
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(__file__))
from floors import EXEMPT, FLOORS, climbs, roots  # noqa: E402
from recipes import Mistake, blocks  # noqa: E402


def tracked(*suffixes):
    """Returns the files that are in the repository, or would be after `git add`."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        stdout=subprocess.PIPE, check=True, text=True).stdout
    return sorted(f for f in out.split("\0") if f and os.path.isfile(f) and (not suffixes or f.endswith(suffixes)))


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def crates():
    """Returns the folder of each crate by the name of its package."""
    manifests = {os.path.dirname(f): read(f) for f in tracked("Cargo.toml")}
    return {re.search(r'^name = "([^"]+)"', text, re.M)[1]: folder for folder, text in manifests.items() if "[package]" in text}


def spdx():
    """Every source file has a licence in its first lines: GPL-2.0 for the module, GPL-2.0 OR MIT for the rest."""
    source = (".rs", ".c", ".h", ".py", ".sh", ".toml")
    for f in tracked():
        name = os.path.basename(f)
        text = read(f)
        if f.startswith("LICENSES/") or not (f.endswith(source) or name in ("Kbuild", "Makefile") or text.startswith("#!")):
            continue
        m = re.search(r"SPDX-License-Identifier: (.*?)(?: \*/)?$", "\n".join(text.split("\n")[:3]), re.M)
        if not m:
            yield f"{f}: no SPDX-License-Identifier in its first three lines"
            continue
        kernel = f.startswith(("rust/", "tools/lab/kernel/")) or f == "Kbuild"
        wanted = "GPL-2.0" if kernel else "GPL-2.0 OR MIT"
        if m[1].strip() != wanted:
            yield f"{f}: the licence is '{m[1].strip()}', and must be '{wanted}' in this directory"


TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<h>\#*)".*?"(?P=h)|b?c?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]{1,8}?|[^\\'\n])'""", re.S)


def code(text):
    """Returns Rust source without comments, strings and characters, with the same line numbers."""
    return TOKEN.sub(lambda m: "\n" * m[0].count("\n") + " ", text)


# A text in the first lines of each generated file.
GENERATED = re.compile(r"enerated by (scripts/|rust-bindgen)")


def walls():
    """`unsafe` is only where CONTRIBUTING.md allows it, and each block has a SAFETY comment."""
    listed = re.search(r"<!-- walls:begin -->(.*?)<!-- walls:end -->", read("CONTRIBUTING.md"), re.S)
    if not listed:
        yield "CONTRIBUTING.md: no list between walls:begin and walls:end"
        return
    allowed = re.findall(r"^\| `([^`]+)` \|", listed[1], re.M)
    if not allowed:
        yield "CONTRIBUTING.md: the list of walls is empty"
    for wall in allowed:
        if not os.path.exists(wall):
            yield f"CONTRIBUTING.md: the wall {wall} does not exist"
    for f in tracked(".rs"):
        text = read(f)
        if GENERATED.search(text[:300]) and any(f.startswith(w) for w in allowed):
            continue
        inside = any(f == w or (w.endswith("/") and f.startswith(w)) for w in allowed)
        lines = text.split("\n")
        for n, line in enumerate(code(text).split("\n")):
            if not inside and re.search(r"allow\([^)]*\bunsafe_code\b", line):
                yield f"{f}:{n + 1}: allows unsafe_code, but is not in the table of walls in CONTRIBUTING.md"
            if not re.search(r"\bunsafe\b", line):
                continue
            if not inside:
                yield f"{f}:{n + 1}: unsafe in a file that is not in the table of walls in CONTRIBUTING.md"
            elif re.search(r"\bunsafe\s*(\{|impl\b)", line):
                above, i = lines[n], n - 1
                # The comment is above the statement, which may begin some lines earlier.
                while i >= 0 and n - i <= 24 and lines[i].strip():
                    above += lines[i]
                    i -= 1
                if "SAFETY" not in above:
                    yield f"{f}:{n + 1}: unsafe without a SAFETY comment"


def dependencies():
    """Each dependency is used by its crate and justified by a comment above it (one comment may cover a group)."""
    for manifest in tracked("Cargo.toml"):
        folder = os.path.dirname(manifest) or "."
        sources = ""
        for base, dirs, files in os.walk(folder):
            dirs[:] = [d for d in dirs if d not in ("build", ".git", "target")]
            for f in files:
                if not f.endswith(".rs"):
                    continue
                text = read(os.path.join(base, f))
                sources += code(text)
                # A module from outside the crate (the ABI) is a directory of its own.
                for outside in re.findall(r'#\[path = "((?:\.\./)+[^"]+)"\]', text):
                    beside = os.path.dirname(os.path.normpath(os.path.join(base, outside)))
                    sources += "".join(code(read(os.path.join(beside, g))) for g in os.listdir(beside) if g.endswith(".rs"))
        section, commented = "", False
        for line in read(manifest).split("\n"):
            if line.startswith("["):
                section, commented = line.strip("[] "), False
                named = re.fullmatch(r"(?:.*\.)?(?:dev-|build-)?dependencies\.([\w-]+)", section)
                name = named[1] if named else None
            else:
                entry = re.match(r"([\w-]+)\s*(?:\.\w+\s*)?=", line)
                name = entry[1] if entry and re.search(r"(^|\.)(dev-|build-)?dependencies$", section) else None
            if line.startswith("#"):
                commented = True
            elif not line.strip():
                commented = False
            if name and not section.startswith("workspace"):
                if not re.search(rf"\b{name.replace('-', '_')}\b", sources):
                    yield f"{manifest}: {name} is not used: remove it"
                if not commented and not line.startswith("[") and "path =" not in line:
                    yield f"{manifest}: {name} has no comment that justifies it"


def anchor(heading):
    text = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def links():
    """Relative links in Markdown point to existing files, and their anchors to existing headings."""
    for f in tracked(".md"):
        text = re.sub(r"^(```|~~~).*?^\1", "", read(f), flags=re.S | re.M)
        for target in re.findall(r"(?<!`)\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "``", text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, fragment = target.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(f), path)) if path else f
            if not os.path.exists(path):
                yield f"{f}: link to {target}: no such file"
            elif fragment and path.endswith(".md"):
                headings = re.findall(r"^#+ (.*)$", read(path), re.M)
                if fragment not in [anchor(h) for h in headings]:
                    yield f"{f}: link to {target}: no such heading"


def hosts():
    """No file names a package host, because mirrors come from the package manager's configuration."""
    for f in tracked():
        if f.endswith("Cargo.lock"):
            continue
        for n, line in enumerate(read(f).split("\n")):
            if re.search(r"https?://[a-z0-9.-]*(debian|pypi|npmjs|crates)[a-z0-9.-]*", line):
                yield f"{f}:{n + 1}: names a package host"


def shell():
    """Shell scripts pass shellcheck, stop at the first error, and have --help."""
    scripts = [f for f in tracked() if re.match(r"#!/bin/(ba)?sh\b", read(f)) or f.endswith(".sh")]
    result = subprocess.run(["shellcheck", "-x", "-P", "SCRIPTDIR", "-f", "gcc", *scripts], stdout=subprocess.PIPE, text=True)
    yield from result.stdout.splitlines()
    for f in scripts:
        text = read(f)
        if not text.startswith("#!"):
            continue
        if f.startswith("scripts/") and not f.startswith("scripts/guest/"):
            if "set -euo pipefail" not in text:
                yield f"{f}: no `set -euo pipefail`"
            if "--help" not in text:
                yield f"{f}: no --help"


def rules():
    """Each test in Documentation/rules.md exists: `a::b::test` in tools/nic/transport, or in another crate, as `device::...`, `lab_transport::...`.
    So does each model in Documentation/ordering.md."""
    page, tests = "Documentation/rules.md", {}
    folders = {name.removeprefix("verbena-").replace("-", "_"): folder for name, folder in crates().items()}
    for f in tracked(".rs"):
        crate = next((name for name, folder in folders.items() if f.startswith((f"{folder}/src/", f"{folder}/tests/"))), None)
        if crate:
            for name in re.findall(r"#\[test\][^{;]*?\bfn (\w+)", code(read(f)), re.S):
                tests.setdefault((crate, name), []).append(f)
            for block in re.findall(r"\bproptest!\s*\{.*", code(read(f)), re.S):
                for name in re.findall(r"\bfn (\w+)", block):
                    tests.setdefault((crate, name), []).append(f)
    named = 0
    for n, line in enumerate(read(page).split("\n")):
        if not line.startswith("|"):
            continue
        cells = re.split(r"(?<!\\)\|", line)
        for path in re.findall(r"`((?:\w+::)+[a-z]\w*)`", cells[-2]):
            parts = path.split("::")
            ours = any(os.path.exists(f"tools/nic/transport/src/{parts[0]}{end}") for end in ("", ".rs"))
            crate = "transport"
            if not ours and parts[0] in folders:
                crate, parts = parts[0], parts[1:]
            # A whole module, all of whose tests show the rule.
            if os.path.exists(f"{folders[crate]}/src/{'/'.join(parts)}.rs"):
                continue
            named += 1
            # The file is a/b.rs or a/b/mod.rs; a module `tests` may be within a.rs.
            want = [p for p in parts[:-1] if p != "tests"]
            found = tests.get((crate, parts[-1]), [])
            if not any(all(w in re.split(r"[/.]", f) for w in want) for f in found):
                yield f"{page}:{n + 1}: no test {path}"
    if named < 100:
        yield f"{page}: names only {named} tests"
    models = re.findall(r"`(loom_\w+)`", read("Documentation/ordering.md"))
    for name in models:
        if not any(test == name for _, test in tests):
            yield f"Documentation/ordering.md: no model {name}"
    if len(models) < 10:
        yield f"Documentation/ordering.md: names only {len(models)} models"


def mutants():
    """Each patch (tools/lab/mutants) describes its bug in the first line, and applies."""
    patches = tracked(".patch")
    for f in patches:
        if not re.match(r"[A-Z][^\n]*\.\n\n--- a/", read(f)):
            yield f"{f}: the first line is not a sentence about the bug, followed by an empty line and the patch"
        result = subprocess.run(["git", "apply", "--check", f], stderr=subprocess.PIPE, text=True)
        if result.returncode:
            yield f"{f}: {result.stderr.strip()}"
    names = read("tools/lab/mutants/guest.toml")
    table = names + read("tools/lab/guest/conformance.toml")
    tests = "".join(read(t) for t in tracked(".rs") if t.startswith("tools/lab/guest/src/tests/"))
    for test in re.findall(r'"([^"]+/[^"]+)"', "".join(line for line in names.splitlines() if line.startswith("user"))):
        if f'"{test}"' not in tests:
            yield f"tools/lab/mutants/guest.toml: no test {test}"
    for f in patches:
        if f.startswith("tools/lab/mutants/guest/") and f'"{f}"' not in table:
            yield f"{f}: neither tools/lab/mutants/guest.toml nor conformance.toml names the tests that find it"
    for folder, least in ("transport", 20), ("device", 20), ("provider", 10), ("daemon", 10), ("fabric", 10), ("loom", 10), ("guest", 20):
        count = sum(f.startswith(f"tools/lab/mutants/{folder}/") for f in patches)
        if count < least:
            yield f"tools/lab/mutants/{folder}: only {count} patches"


def examples():
    """A code block below a comment with the name of a file equals that file without its licence line."""
    shown = 0
    for f in tracked(".md"):
        for path, block in re.findall(r"^<!-- (\S+/\S+) -->\n```\w*\n(.*?)^```$", read(f), re.S | re.M):
            shown += 1
            lines = [line for line in read(path).split("\n") if "SPDX-License-Identifier" not in line] if os.path.exists(path) else []
            if "\n".join(lines) != block:
                yield f"{f}: the code block below the comment {path} differs from that file"
    if not shown:
        yield "no page shows a file"


def recipes():
    """scripts/test-recipes can follow each recipe, and the pages for readers link to it."""
    pages = tracked(".md")
    for f in pages:
        if os.path.dirname(f) != "Documentation/recipes":
            continue
        try:
            blocks(read(f))
        except Mistake as mistake:
            yield f"{f}: {mistake}"
        for page in "Documentation/README.md", "Documentation/quickstart.md":
            if f"](recipes/{os.path.basename(f)})" not in read(page):
                yield f"{page}: has no link to the recipe {f}"


WIDEST_CELL = 120


def suites():
    """The table of suites in Documentation/testing.md is that of scripts/test, and no cell has more than 120 characters."""
    page = "Documentation/testing.md"
    table = ["cargo", "run", "-q", "-p", "verbena-lab-harness", "--", "--markdown"]
    made = subprocess.run(table, stdout=subprocess.PIPE, check=True, text=True).stdout
    for row in made.splitlines():
        for cell in re.split(r"(?<!\\)\|", row):
            if len(cell.strip()) > WIDEST_CELL:
                yield f"tools/lab/harness/src/table: a text of {len(cell.strip())} characters, {WIDEST_CELL} are allowed: {cell.strip()}"
    shown = re.search(r"^<!-- suites:begin -->\n(.*?)^<!-- suites:end -->$", read(page), re.S | re.M)
    if not shown:
        yield f"{page}: no table between <!-- suites:begin --> and <!-- suites:end -->"
    elif shown[1] != made:
        yield from difflib.unified_diff(shown[1].splitlines(), made.splitlines(), page, "scripts/test --markdown", n=0, lineterm="")
        yield f"{page}: the table of suites differs from scripts/test. This command makes it again:"
        yield f"scripts/test --markdown | sed -i -e '/suites:begin/r /dev/stdin' -e '/suites:begin/,/suites:end/{{//!d}}' {page}"


def glossary():
    """The code has each name in the last column of the glossary: a path of a file or folder, or a word of a source file."""
    page, source = "Documentation/glossary.md", (".rs", ".c", ".py")
    files = tracked()
    words = set(re.findall(r"\w+", " ".join(read(f) for f in files if f.endswith(source))))
    rows = 0
    for n, line in enumerate(read(page).split("\n")):
        if not line.startswith("| ") or line.startswith(("| term ", "| --- ")):
            continue
        rows += 1
        for name in re.findall(r"`([^`]+)`", line.split("|")[-2]):
            is_path = "/" in name or "." in name
            if not (any(f"/{name.rstrip('/')}/" in f"/{f}/" for f in files) if is_path else name in words):
                yield f"{page}:{n + 1}: the project has no {name}: follow a renaming, or correct the row"
    if rows < 80:
        yield f"{page}: has only {rows} terms"


MOST_LINES = 600


def lines():
    """No source file has more than 600 lines, except generated ones."""
    for f in tracked():
        text = read(f)
        if not f.endswith((".rs", ".c", ".h", ".py", ".sh")) and not re.match(r"#!.*\b(sh|bash|python3)\b", text):
            continue
        if GENERATED.search(text[:300]):
            continue
        count = text.count("\n")
        if count > MOST_LINES:
            yield f"{f}: {count} lines, {MOST_LINES} are allowed"


def floors():
    """In the device model, the transport, the daemon, the subnet, the guests, the driver and its verbs, no file uses a part of a higher layer."""
    for top, names in FLOORS.items():
        files = [f.removeprefix(top) for f in tracked(".rs") if f.startswith(top)]
        root = roots(code("".join(read(top + f) for f in files if f in ("lib.rs", "main.rs", "mod.rs"))))
        known = set()
        for f in files:
            if EXEMPT.search(f):
                continue
            known.add(f.split("/")[0].removesuffix(".rs"))
            # The tests in a file may use all layers.
            text = re.split(r"#\[cfg\(.*\btest\b.*\)\]\nmod \w*tests", read(top + f))[0]
            yield from climbs(top, f, code(text), root)
        for name in set(" ".join(names).split()) - known:
            yield f"{top}: FLOORS names {name}, which does not exist"


def versions():
    """All parts have the version of the workspace: the crates, the Python package and the module."""
    workspace = re.search(r'^\[workspace\.package\]\n(?:[^\[].*\n|\n)*?version = "([^"]+)"', read("Cargo.toml"), re.M)
    if not workspace:
        yield "Cargo.toml: [workspace.package] has no version"
        return
    parts = [("tools/nic/faults/python/pyproject.toml", r'^version = "(.*)"$'), ("rust/rdma/helpers.c", r'^MODULE_VERSION\("(.*)"\);$')]
    # The fuzz targets are a workspace of their own, and the project for CI is an example of another project.
    parts += ((f, r'^version(?: = "(.*)"|\.workspace = true)$') for f in tracked("Cargo.toml")
              if f != "Cargo.toml" and not f.startswith(("ci/project/", "tools/lab/transport/fuzz/")))
    for f, pattern in parts:
        found = re.search(pattern, read(f), re.M)
        if not found:
            yield f"{f}: has no version, and must have {workspace[1]}, that of Cargo.toml"
        elif (found[1] or workspace[1]) != workspace[1]:
            yield f"{f}: the version is {found[1]}, and must be {workspace[1]}, that of Cargo.toml"


CHECKS = {c.__name__: c for c in (spdx, walls, dependencies, links, glossary, hosts, shell, rules, lines, examples, recipes, suites, mutants, floors, versions)}

if __name__ == "__main__":
    problems = list(CHECKS[sys.argv[1]]())
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
