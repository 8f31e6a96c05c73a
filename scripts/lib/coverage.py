# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of scripts/coverage that runs in the toolchain root."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

TOP, SHOWN = sys.argv[1], sys.argv[2:]
SRC = f"{TOP}/tools/nic/transport/src/"
WORK = f"{TOP}/build/coverage"
LEAST = 90.0
# Groups of files that must reach LEAST percent.
GROUPS = {
    "parsers (wire/, frame.rs)": r"wire/|frame\.rs",
    "requester": r"qp/(requester|timers)",
    "responder": r"qp/(responder|uc|ud)",
}


def measure():
    """Runs the tests. Returns how often each line ran, as {file: {line: times}}."""
    profiles = f"{WORK}/profiles"
    shutil.rmtree(profiles, ignore_errors=True)
    env = dict(os.environ, RUSTFLAGS="-Cinstrument-coverage", LLVM_PROFILE_FILE=f"{profiles}/%p-%m.profraw")
    cargo = ["cargo", "test", "-q", "-p", "verbena-transport", "-p", "verbena-lab-transport", "--tests", "--target-dir", f"{WORK}/cargo"]
    built = subprocess.run(cargo + ["--no-run", "--message-format=json"], env=env, cwd=TOP, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit("error: the tests do not build, see above")
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    tests = [m["executable"] for m in messages if m.get("executable") and m.get("profile", {}).get("test")]
    for test in tests:
        run = subprocess.run([test, "-q"], env=env, cwd=f"{TOP}/tools/nic/transport", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode:
            sys.exit(f"{run.stdout}\nerror: a test fails")
    merged = f"{WORK}/merged.profdata"
    subprocess.run(["llvm-profdata", "merge", "-sparse", "-o", merged] + glob.glob(f"{profiles}/*"), check=True)
    export = ["llvm-cov", "export", "-format=lcov", f"-instr-profile={merged}", tests[0]]
    for test in tests[1:]:
        export += ["-object", test]
    lcov = subprocess.run(export, stdout=subprocess.PIPE, text=True, check=True).stdout
    covered, name = {}, None
    for line in lcov.splitlines():
        if line.startswith("SF:"):
            name = line[3:]
            name = name[len(SRC):] if name.startswith(SRC) else None
        elif line.startswith("DA:") and name:
            number, times = line[3:].split(",")[:2]
            lines = covered.setdefault(name, {})
            lines[int(number)] = max(int(times), lines.get(int(number), 0))
    return covered


def test_modules():
    """Returns files and directories of modules that only tests use."""
    found = []
    for name in glob.glob(f"{SRC}**/*.rs", recursive=True):
        folder = os.path.dirname(name) if os.path.basename(name) in ("mod.rs", "lib.rs") else name[:-3]
        with open(name, encoding="utf-8") as f:
            found += [f"{folder}/{module}"[len(SRC):] for module in re.findall(r"#\[cfg\(test\)\]\s*(?:pub\(crate\) )?mod (\w+);", f.read())]
    return found


def items(text, pattern):
    """Yields the line numbers of each item that begins with a matching line."""
    for begin, line in enumerate(text):
        if not re.match(pattern, line):
            continue
        indent, end = re.match(r"\s*", line)[0], begin
        # rustfmt puts the closing brace of an item below its beginning. An item of one line follows its attribute.
        if not (begin + 1 < len(text) and text[begin + 1].endswith(";")):
            while end < len(text) - 1 and text[end] not in (indent + "}", indent + "},"):
                end += 1
        else:
            end += 1
        yield range(begin + 1, end + 2)


def without_tests(name, lines):
    """Returns the lines outside of test modules. Leaves out functions that ran only at compile time, whose results are constants."""
    with open(SRC + name, encoding="utf-8") as f:
        text = f.read().split("\n")
    skipped = set()
    for item in items(text, r"\s*#\[cfg\(test\)\]"):
        skipped.update(item)
    for item in items(text, r"\s*const fn "):
        if not any(lines.get(number) for number in item):
            skipped.update(item)
    return {number: times for number, times in lines.items() if number not in skipped}


def percent(counts):
    run, all_ = counts
    return 100.0 * run / all_ if all_ else 100.0


def main():
    tests = test_modules()
    covered = {n: without_tests(n, lines) for n, lines in measure().items()
               if not any(n == f"{test}.rs" or n.startswith(f"{test}/") for test in tests)}
    table = {n: (sum(1 for t in lines.values() if t), len(lines)) for n, lines in sorted(covered.items()) if lines}
    bad = []
    print(f"{'file':<44} {'lines':>6} {'run':>6} {'covered':>8}")
    for name, counts in table.items():
        low = percent(counts) < LEAST
        watched = any(re.match(pattern, name) for pattern in GROUPS.values())
        if low and watched:
            bad.append(name)
        print(f"{name:<44} {counts[1]:>6} {counts[0]:>6} {percent(counts):>7.1f}%{'  below 90%' if low else ''}")
    groups = dict(GROUPS, **{"everything": ""})
    print()
    for group, pattern in groups.items():
        mine = [counts for name, counts in table.items() if re.match(pattern, name)]
        total = (sum(c[0] for c in mine), sum(c[1] for c in mine))
        if percent(total) < LEAST and group in GROUPS:
            bad.append(group)
        print(f"{group:<44} {total[1]:>6} {total[0]:>6} {percent(total):>7.1f}%")
    for shown in SHOWN:
        for name in (n for n in table if shown in n):
            with open(SRC + name, encoding="utf-8") as f:
                text = f.read().split("\n")
            for number in sorted(n for n, times in covered[name].items() if times == 0):
                print(f"{name}:{number}: {text[number - 1].strip()}")
    if bad:
        sys.exit(f"below {LEAST:.0f}%: {', '.join(bad)}")


main()
