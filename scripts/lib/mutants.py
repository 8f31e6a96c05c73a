# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The work of scripts/mutants, in the top directory: `mutants.py SEEDS [NAME...]`."""
import concurrent.futures
import glob
import hashlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.abspath("build/mutants")
SOURCE = f"{HERE}/source"
# What was caught: a run that was stopped goes on behind it.
STATE = f"{HERE}/caught.jsonl"
# A build that is quick to make and quick enough to run, with all assertions.
PROFILE = {"OPT_LEVEL": "1", "DEBUG_ASSERTIONS": "true", "OVERFLOW_CHECKS": "true", "DEBUG": "0", "INCREMENTAL": "true",
           "CODEGEN_UNITS": "256"}
ENVIRONMENT = dict(
    os.environ, CARGO_TARGET_DIR=f"{HERE}/target",
    # The copy is no part of a repository, so that `git apply` takes it as it is.
    GIT_CEILING_DIRECTORIES=HERE,
    **{f"CARGO_PROFILE_RELEASE_{name}": value for name, value in PROFILE.items()})
# Most of a build is one thread's work, so that several mutants are tried side by side, each in a place of its own.
WORKERS = min(os.cpu_count() or 1, 4)
# A mutant that hangs is not caught: what waits for ever is to be found by an invariant.
LONGEST = 600
SIM = "tools/sim/mutants"
DEVICE = "tools/device/mutants"
PROVIDER = "tools/provider/mutants"
NIC = "tools/nic/mutants"
# The tests that a mutant of each folder is shown to. Those of the transport: unit tests and the rules.
TESTS = {SIM: ("-p", "verbena-roce", "--lib", "--test", "rules"), DEVICE: ("-p", "verbena-device", "--lib"),
         PROVIDER: ("-p", "verbena-provider", "--lib"), NIC: ("-p", "verbena-nic", "--lib", "--test", "daemon")}
# What the simulation runs for the mutants of each folder: queue pairs on a network, or programs on the whole device.
LABORATORY = {SIM: (), DEVICE: ("--device",)}
# What it is built with for that.
FEATURES = {SIM: ("--no-default-features",), DEVICE: ()}


class DoesNotCompile(Exception):
    """A mutant that is none: it says what the compiler said."""


def run(*command, timeout=None):
    """Runs a command to its end. What it has started ends with it, also when its time is up."""
    with subprocess.Popen(command, cwd=SOURCE, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", process_group=0) as process:
        try:
            out, _ = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out)


def files():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "Cargo.toml", "Cargo.lock", "tools", "include", "rust", "examples",
         "scripts/guest/misbehave"],
        stdout=subprocess.PIPE, check=True, text=True).stdout
    return sorted(f for f in set(listed.split("\0")) if f and os.path.isfile(f))


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def copy():
    """Makes the copy like the working tree. What is the same is not touched, so that only what changed is built."""
    wanted = {f: read(f) for f in files() if not f.endswith(".patch")}
    for base, _, names in os.walk(SOURCE):
        for name in names:
            path = os.path.join(base, name)
            if os.path.relpath(path, SOURCE) not in wanted:
                os.remove(path)
    for f, content in wanted.items():
        path = f"{SOURCE}/{f}"
        if read(path) != content:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                out.write(content)


def compiled(*command):
    built = run("cargo", *command)
    if built.returncode:
        raise DoesNotCompile("does not compile: " + " ".join(built.stdout.split())[:600])


def build(folder=SIM):
    compiled("build", "-q", "--release", "-p", "verbena-sim", "--bin", "verbena-sim", *FEATURES[folder])


def short(message):
    """A rule without the work requests and packets that it was broken by, with the place where it stands."""
    text = " ".join(message.split())
    place = re.search(r"\((?:tools/[\w-]+/)?src/([\w/]+\.rs:\d+)\)$", text)
    text = re.sub(r"^assertion `[^`]*` failed:? ?", "", re.sub(r" \([^()]*:\d+\)$", "", text))
    text = re.split(r"[:;,]? (?:for |by |than |to |as )?\(?(?:Op|Packet|Completion|Some\(Pending) ?\{| left: ", text)[0]
    return f"{text[:110]} ({place[1] if place else '?'})"


def simulate(seeds, folder=SIM):
    """What the simulation says, and the first seed that breaks a rule with the rule, if one does."""
    state = f"{HERE}/state"
    if os.path.exists(state):
        os.remove(state)
    try:
        result = run(f"{HERE}/target/release/verbena-sim", *LABORATORY[folder], "--seeds", str(seeds), "--state", state,
                     timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return f"it did not end within {LONGEST} s", None
    broken = re.search(r"^seed (\d+) breaks a rule: (.*?)^replay:", result.stdout, re.M | re.S)
    if broken:
        return result.stdout, (int(broken[1]), short(broken[2]))
    if result.returncode:
        return f"it ended with status {result.returncode} and named no rule: {result.stdout[-300:]}", None
    return result.stdout, None


def test(folder, longest=LONGEST):
    """The tests of a folder's mutants that fail, and a line for when none does. None: they did not run to their end."""
    command = ("test", "-q", "--release", "--no-fail-fast", *TESTS[folder])
    compiled(*command, "--no-run")
    try:
        result = run("cargo", *command, timeout=longest)
    except subprocess.TimeoutExpired:
        return None, f"its tests did not end within {longest} s"
    failed = sorted(set(re.findall(r"^    ([\w:]+)$", result.stdout, re.M)))
    if result.returncode and not failed:
        return None, f"its tests ended with status {result.returncode}: {' '.join(result.stdout.split())[-300:]}"
    return failed, "no test fails"


def name_tests(failed):
    return f"caught by {', '.join(failed[:3])}" + (f" and {len(failed) - 3} more tests" if len(failed) > 3 else "")


def try_patch(patch, seeds):
    """Whether a mutant is caught, and a line that says by what; by the simulation, also the seed.

    One of the transport is shown to a few seeds of the simulation first, to its tests, to the device's, and then to all seeds; one of
    the device to its tests and then to the simulation of the device; one of the provider or the NIC to its tests.
    """
    folder = os.path.dirname(patch)
    applied = run("git", "apply", os.path.abspath(patch))
    if applied.returncode:
        return False, None, f"does not apply: {applied.stdout.strip()}"
    slipped = []
    for judge in JUDGES[folder]:
        try:
            caught, seed, said = judge(folder, seeds)
        except DoesNotCompile as error:
            return False, None, str(error)
        slipped.append(said)
        if caught:
            return True, seed, "; ".join(slipped)
    return False, None, "NOT CAUGHT: " + "; ".join(slipped)


def by_simulation(folder, seeds):
    build(folder)
    said, broken = simulate(seeds, folder)
    if broken:
        return True, broken[0], f"caught by the simulation at seed {broken[0]}: {broken[1]}"
    return False, None, last_line(said)


def by_a_few_seeds(folder, seeds):
    return by_simulation(folder, max(seeds // 10, 1))


def by_tests(folder, _):
    failed, said = test(folder)
    return bool(failed), None, name_tests(failed) if failed else said


def by_device(_, seeds):
    return by_tests(DEVICE, seeds)


# All seeds take a minute, and what a few do not find the tests do, mostly.
JUDGES = {SIM: (by_a_few_seeds, by_tests, by_device, by_simulation), DEVICE: (by_tests, by_simulation), PROVIDER: (by_tests,), NIC: (by_tests,)}


def last_line(said):
    return said.strip().split("\n")[-1]


def settle(places):
    """Gives a process of its own place to work in: sources, what is built of them, state."""
    global HERE, SOURCE
    HERE = f"{HERE}/{places.get()}"
    SOURCE = f"{HERE}/source"
    os.makedirs(SOURCE, exist_ok=True)
    ENVIRONMENT.update(CARGO_TARGET_DIR=f"{HERE}/target")


def known_by(patches, seeds):
    """By patch, what a verdict is known by: the very same sources, bug and seeds."""
    sources = hashlib.sha256(str(seeds).encode())
    for path in files():
        if not path.endswith(".patch"):
            sources.update(path.encode() + b"\0" + read(path) + b"\0")
    return {patch: hashlib.sha256(sources.digest() + read(patch)).hexdigest() for patch in patches}


def tried(patch, seeds):
    """What try_patch says of a mutant in a copy of the sources, and the seconds that it took."""
    copy()
    began = time.monotonic()
    return *try_patch(patch, seeds), time.monotonic() - began


def main():
    seeds, names = int(sys.argv[1]), sys.argv[2:]
    patches = [patch for folder in JUDGES for patch in sorted(glob.glob(f"{folder}/*.patch"))]
    chosen = [p for p in patches if not names or any(name in p for name in names)]
    if not chosen:
        sys.exit("error: no mutant is called " + ", ".join(names))
    keys, done = known_by(chosen, seeds), {}
    for line in (read(STATE) or b"").decode().splitlines():
        entry = json.loads(line)
        done[entry["key"]] = entry
    passed = failed = 0
    last, tested = {}, set()
    places = multiprocessing.Queue()
    for place in range(WORKERS):
        places.put(place)
    with concurrent.futures.ProcessPoolExecutor(WORKERS, initializer=settle, initargs=(places,)) as workers:
        to_try = [patch for patch in chosen if keys[patch] not in done]
        outcomes = workers.map(tried, to_try, [seeds] * len(to_try))
        for patch in chosen:
            entry = done.get(keys[patch])
            if entry:
                caught, seed, line, took = True, entry["seed"], entry["line"], "known"
            else:
                caught, seed, line, seconds = next(outcomes)
                took = f"{seconds:.0f} s"
                if caught:
                    with open(STATE, "a", encoding="utf-8") as out:
                        out.write(json.dumps({"key": keys[patch], "seed": seed, "line": line}) + "\n")
            passed, failed = passed + caught, failed + (not caught)
            if seed is not None:
                last[os.path.dirname(patch)] = max(last.get(os.path.dirname(patch), 0), seed)
            else:
                tested.add(os.path.dirname(patch))
            print(f"{'ok' if caught else 'FAILED'} {os.path.basename(patch)[:-6]} ({took}): {line}", flush=True)
    # What they broke is kept by the engine itself.
    places.put(0)
    settle(places)
    copy()
    for folder in sorted(last):
        build(folder)
        said, broken = simulate(last[folder] + 1, folder)
        sound = "no broken rule" in said and not broken
        passed, failed = passed + sound, failed + (not sound)
        print(f"{'ok' if sound else 'FAILED'} without a mutant, the same seeds for {folder}: {last_line(said)}", flush=True)
    for folder in sorted(tested):
        broken, said = test(folder)
        sound = broken == []
        passed, failed = passed + sound, failed + (not sound)
        said = name_tests(broken) if broken else said
        print(f"{'ok' if sound else 'FAILED'} without a mutant, the tests of {folder}: {said}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
