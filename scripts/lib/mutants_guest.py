# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The copy of the tree that scripts/mutants --guest builds. Runs in the top directory.

usage: mutants_guest.py copy       makes build/mutants/guest equal to the working tree, without writing unchanged files
       mutants_guest.py list NAME...  prints for each planted bug whose path contains a name (without names: those of
                                   tools/lab/mutants/guest) the patch, the command for the guest, and the names of the tests, joined by
                                   |. Bugs that belong to no rule are in tools/lab/mutants/guest.toml
       mutants_guest.py list --short  prints the same for the bugs of the short form in tools/lab/mutants/guest.toml
"""
import os
import subprocess
import sys
import tomllib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from conformance import rules  # noqa: E402

TREE = "build/mutants/guest"
GUEST = "tools/lab/mutants/guest/"
BUGS = "tools/lab/mutants/guest.toml"


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def copy():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], stdout=subprocess.PIPE, check=True,
                            text=True).stdout
    wanted = {f for f in listed.split("\0") if f and os.path.isfile(f)}
    for f in sorted(wanted):
        content = read(f)
        if read(f"{TREE}/{f}") != content:
            os.makedirs(os.path.dirname(f"{TREE}/{f}") or ".", exist_ok=True)
            with open(f"{TREE}/{f}", "wb") as out:
                out.write(content)
            os.chmod(f"{TREE}/{f}", os.stat(f).st_mode)
    for base, folders, names in os.walk(TREE):
        folders[:] = [f for f in folders if os.path.join(base, f) not in (f"{TREE}/build", f"{TREE}/.git")]
        for name in names:
            path = os.path.join(base, name)
            if os.path.relpath(path, TREE) not in wanted:
                os.remove(path)


def bugs():
    """Returns the bugs that belong to no rule, in the form of rules: `bug` is the patch, and one of the tests `user` must fail."""
    with open(BUGS, "rb") as f:
        return [{**bug, "bug": bug["patch"]} for bug in tomllib.load(f)["bug"]]


def commands(names):
    """Returns for each patch the command for the guest, and the tests of which at least one must fail."""
    found = {}
    short = names == ["--short"]
    for rule in bugs() if short else rules() + bugs():
        patch = rule.get("bug", "")
        if rule.get("short", False) if short else any(name in patch for name in names or [GUEST]):
            run, tests = found.setdefault(patch, ([], []))
            user, kernel = rule.get("user", []), rule.get("kernel", [])
            run += [f"verbena-guest-tests --filter {test}" for test in user]
            # The program runs all its tests.
            run += ["kernel-selftest"] if kernel else []
            tests += user + kernel
    return {patch: (" && ".join(dict.fromkeys(run)), "|".join(dict.fromkeys(tests))) for patch, (run, tests) in found.items()}


def main():
    match sys.argv[1:]:
        case ["copy"]:
            copy()
            return 0
        case ["list", *names]:
            for patch, (command, tests) in sorted(commands(names).items()):
                print(f"{patch}\t{command}\t{tests}")
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
