# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The conformance report. usage: conformance.py check | bugs FILTER | units | report LOG TEXT HTML

Reads tools/lab/guest/conformance.toml, in the top directory.
"""
import html
import os
import re
import subprocess
import sys
import tomllib

import table_page
from check import crates

TABLE = "tools/lab/guest/conformance.toml"
SECTIONS = {
    "1": "Work completions",
    "2": "Immediate errors",
    "3": "Completion statuses",
    "4": "Asynchronous events",
    "5": "Recovery",
    "6": "Queue pairs",
    "7": "Memory",
}


def rules():
    with open(TABLE, "rb") as f:
        return tomllib.load(f)["row"]


def names(folder, pattern):
    out = subprocess.run(["git", "grep", "-hoE", pattern, "--", folder], stdout=subprocess.PIPE, text=True, check=False).stdout
    return {re.sub(r'^[{ ]*"|"$', "", line) for line in out.splitlines()}


def unit(test):
    """Splits `PACKAGE::PATH` into package and path."""
    return test.split("::", 1)


def is_unit(test):
    """True if the package has a test of that name, in a file whose path contains one of its modules."""
    package, path = unit(test)
    *modules, name = path.split("::")
    folder = crates()[package]
    out = subprocess.run(["git", "grep", "-lE", rf"^ *fn {name}\(\)", "--", folder], stdout=subprocess.PIPE, text=True, check=False).stdout
    return any(set(modules) & set(re.split(r"[/.]", file)) for file in out.splitlines())


def units():
    """Returns, by package, the tests that `cargo test` has to run."""
    found = {}
    for rule in rules():
        for test in rule.get("unit", []):
            package, path = unit(test)
            found.setdefault(package, set()).add(path)
    return found


def check():
    """Yields the errors of the table."""
    user = names("tools/lab/guest/src/tests", r'"[0-9a-z.]+/[a-z0-9-]+"')
    kernel = names("tools/lab/kernel", r'\{ "[a-z0-9-]+"') | {"drain-held"}
    for rule in rules():
        where = f"{TABLE}: {rule['section']} {rule['rule']}"
        for test in rule.get("user", []):
            if test not in user:
                yield f"{where}: the guest tests have no test {test}"
        for test in rule.get("kernel", []):
            if test not in kernel:
                yield f"{where}: the self-test has no test {test}"
        for test in rule.get("unit", []):
            if not is_unit(test):
                yield f"{where}: no crate has the unit test {test}"
        if rule.get("unreachable"):
            continue
        if not any(rule.get(kind) for kind in ("user", "kernel", "unit")):
            yield f"{where}: the rule has no test"
        if "kernel" not in rule and "kernel_none" not in rule:
            yield f"{where}: no test for kernel users: write one, or give the reason in kernel_none"
        if "bug" not in rule:
            yield f"{where}: no planted bug"
        elif not os.path.isfile(rule["bug"]):
            yield f"{where}: the patch {rule['bug']} does not exist"


def results(log):
    """Returns, by part of the log, the result of each test: ok, FAILED, skipped."""
    found, part = {"user": {}, "kernel": {}, "rxe": {}, "unit": {}}, None
    with open(log, encoding="utf-8", errors="replace") as f:
        for line in f:
            if m := re.match(r"=== (\w+)", line):
                part = found[m[1]]
            elif part is not None and (m := re.match(r"(ok|FAILED|skipped) ([^\s:]+)", line)):
                part[m[2]] = m[1]
            elif part is found["unit"] and (m := re.match(r"test (\S+) \.\.\. (ok|FAILED)", line)):
                part[m[1]] = m[2]
    return found


def verdict(tests, found):
    """Returns the worst result of several tests."""
    if not tests:
        return ""
    said = [found.get(test, "not run") for test in tests]
    for worst in ("FAILED", "not run", "skipped"):
        if worst in said:
            return worst
    return "ok"


def lines(found):
    for rule in rules():
        user, kernel = rule.get("user", []), rule.get("kernel", [])
        alone = [unit(test)[1] for test in rule.get("unit", [])]
        if rule.get("unreachable"):
            yield rule, "unreachable", "", "", ""
        else:
            yield (rule, verdict(user, found["user"]), verdict(kernel, found["kernel"]), verdict(alone, found["unit"]),
                   verdict(user, found["rxe"]))


def cell(said):
    kind = {"ok": "ok", "FAILED": "bad", "not run": "bad"}.get(said, "dim")
    return kind, html.escape(said)


def report(log, text_path, html_path):
    found = results(log)
    text, rows, section, bad, held, of_rxe = [], [], None, 0, 0, 0
    for rule, user, kernel, alone, rxe in lines(found):
        if (top := rule["section"].split(".")[0]) != section:
            section = top
            text.append(f"\n{section}. {SECTIONS[section]}".ljust(78) + f"{'processes':<11} {'kernel':<8} {'unit':<8} rxe")
            rows.append(f"{section}. {SECTIONS[section]}")
        text.append(f"{rule['section']:<5} {rule['rule']:<72.72} {user:<11} {kernel:<8} {alone:<8} {rxe}")
        tests = ", ".join(rule.get("user", []) + [f"kernel: {t}" for t in rule.get("kernel", [])] + rule.get("unit", []))
        if "kernel_none" in rule:
            tests += f"; not for kernel users: {rule['kernel_none']}"
        bug = os.path.basename(rule.get("bug", "")).removesuffix(".patch")
        rows.append([rule["section"], ("long", f"{html.escape(rule['rule'])}<br><small>{html.escape(tests)}</small>"),
                     cell(user), cell(kernel), cell(alone), cell(rxe), f"<small>{html.escape(bug)}</small>" if bug else ""])
        if user == "unreachable":
            continue
        good = {user, kernel, alone} <= {"ok", ""}
        held, bad = held + good, bad + (not good)
        of_rxe += rxe == "ok"
    compared = sum(1 for rule, *_ in lines(found) if rule.get("user"))
    end = f"{held} rules hold, {bad} do not; rxe keeps {of_rxe} of the {compared} rules that processes can observe"
    text = "\n".join([*text, "", end, ""])
    with open(text_path, "w", encoding="utf-8") as f:
        f.write(text)
    with open(html_path, "w", encoding="utf-8") as f:
        f.write(table_page.page("Conformance", [f"{end}."], ["section", "rule", "processes", "kernel", "unit", "rxe", "planted bug"], rows))
    print(text.strip())
    return bad == 0


def main():
    match sys.argv[1:]:
        case ["check"]:
            wrong = list(check())
            print("\n".join(wrong), end="\n" if wrong else "")
            return not wrong
        case ["bugs", part]:
            patches = {rule["bug"] for rule in rules() if "bug" in rule and part in f"{rule['section']} {rule['rule']}"}
            print("\n".join(sorted(patches)))
            return True
        case ["units"]:
            for package, tests in sorted(units().items()):
                print(package, *sorted(tests))
            return True
        case ["report", log, text_path, html_path]:
            return report(log, text_path, html_path)
    print(__doc__, file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
