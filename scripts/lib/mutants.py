# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of scripts/mutants, in the top directory: `mutants.py SEEDS [NAME...]`."""
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
# Bugs that were found. A run after an interrupted one skips them.
STATE = f"{HERE}/caught.jsonl"
# A profile that builds fast and runs fast enough, with all assertions.
PROFILE = {"OPT_LEVEL": "1", "DEBUG_ASSERTIONS": "true", "OVERFLOW_CHECKS": "true", "DEBUG": "0", "INCREMENTAL": "true",
           "CODEGEN_UNITS": "256"}
ENVIRONMENT = dict(
    os.environ, CARGO_TARGET_DIR=f"{HERE}/target",
    # Outside of any repository, so that `git apply` changes the copy.
    GIT_CEILING_DIRECTORIES=HERE,
    **{f"CARGO_PROFILE_RELEASE_{name}": value for name, value in PROFILE.items()})
# Most of a build uses one thread, so several mutants are tried in parallel, each in its own directory.
WORKERS = min(os.cpu_count() or 1, 4)
# Seconds. A mutant that hangs does not count as found, because an invariant should report an endless wait.
LONGEST = 600
SIM = "tools/lab/mutants/transport"
DEVICE = "tools/lab/mutants/device"
PROVIDER = "tools/lab/mutants/provider"
NIC = "tools/lab/mutants/daemon"
FABRIC = "tools/lab/mutants/fabric"
LOOM = "tools/lab/mutants/loom"
# The tests for the mutants of each directory. For the transport: unit tests and the rules.
TESTS = {SIM: ("-p", "verbena-transport", "--lib", "--test", "rules"), DEVICE: ("-p", "verbena-device", "--lib"),
         PROVIDER: ("-p", "verbena-provider", "--lib"), NIC: ("-p", "verbena-nic", "--lib", "--test", "daemon"),
         FABRIC: ("-p", "verbena-fabric", "--lib"),
         LOOM: ("-p", "verbena-abi", "-p", "verbena-device", "--test", "loom*")}
# Further tests for the mutants of a directory.
MORE_TESTS = {LOOM: (("-p", "verbena-provider", "--lib", "loom"),)}
# The models are compiled with loom's atomics (suite `loom`).
FLAGS = {LOOM: "--cfg loom"}
# Options of the simulation for the mutants of each directory: queue pairs on a network, or programs on the whole device.
LABORATORY = {SIM: (), DEVICE: ("--device",)}
# Features with which the simulation is built for each directory.
FEATURES = {SIM: ("--no-default-features",), DEVICE: ()}


class DoesNotCompile(Exception):
    """The mutant does not compile; the text is the compiler's."""


def run(*command, timeout=None, flags=None):
    """Runs a command, with these flags of rustc. All its processes end with it, or at the timeout."""
    env = dict(ENVIRONMENT, RUSTFLAGS=flags, CARGO_TARGET_DIR=f"{HERE}/target-loom") if flags else ENVIRONMENT
    with subprocess.Popen(command, cwd=SOURCE, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
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
    """Makes the copy equal to the working tree. Unchanged files are not written, so only changes are built."""
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


def compiled(*command, flags=None):
    built = run("cargo", *command, flags=flags)
    if built.returncode:
        raise DoesNotCompile("does not compile: " + " ".join(built.stdout.split())[:600])


def build(folder=SIM):
    compiled("build", "-q", "--release", "-p", "verbena-lab-sim", "--bin", "verbena-sim", *FEATURES[folder])


def short(message):
    """Shortens a rule's message: leaves out work requests and packets, and adds the place of the assertion."""
    text = " ".join(message.split())
    place = re.search(r"\((?:tools/[\w/-]+/)?src/([\w/]+\.rs:\d+)\)$", text)
    text = re.sub(r"^assertion `[^`]*` failed:? ?", "", re.sub(r" \([^()]*:\d+\)$", "", text))
    text = re.split(r"[:;,]? (?:for |by |than |to |as )?\(?(?:Op|Packet|Completion|Some\(Pending) ?\{| left: ", text)[0]
    return f"{text[:110]} ({place[1] if place else '?'})"


def simulate(seeds, folder=SIM):
    """Runs the simulation. Returns its output, and the first seed that breaks a rule with that rule, or None."""
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
    """Runs the tests for a directory's mutants. Returns the names of those that fail, and a text for the case that none does. Instead of
    names, None if the tests did not run to their end."""
    failed = []
    for tests in (TESTS[folder], *MORE_TESTS.get(folder, ())):
        command = ("test", "-q", "--release", "--no-fail-fast", *tests)
        flags = FLAGS.get(folder)
        compiled(*command, "--no-run", flags=flags)
        try:
            result = run("cargo", *command, timeout=longest, flags=flags)
        except subprocess.TimeoutExpired:
            return None, f"its tests did not end within {longest} s"
        named = sorted(set(re.findall(r"^    ([\w:]+)$", result.stdout, re.M)))
        if result.returncode and not named:
            return None, f"its tests ended with status {result.returncode}: {' '.join(result.stdout.split())[-300:]}"
        failed += named
        # The first tests that fail are enough.
        if failed:
            break
    return failed, "no test fails"


def name_tests(failed):
    return f"caught by {', '.join(failed[:3])}" + (f" and {len(failed) - 3} more tests" if len(failed) > 3 else "")


def try_patch(patch, seeds):
    """Tries a mutant. Returns whether it was found, the seed if the simulation found it, and a text that says by what.

    JUDGES has the order. For the transport: a few seeds, its tests, the device's tests, all seeds. For the device: its tests, then the
    simulation of the device. For the provider, the NIC and the subnet: the tests of the crate. For memory orders: the loom models.
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


# Simulating all seeds takes a minute. Tests come before that, because they find most bugs that a few seeds do not.
JUDGES = {SIM: (by_a_few_seeds, by_tests, by_device, by_simulation), DEVICE: (by_tests, by_simulation), PROVIDER: (by_tests,), NIC: (by_tests,),
          FABRIC: (by_tests,), LOOM: (by_tests,)}


def last_line(said):
    return said.strip().split("\n")[-1]


def settle(places):
    """Gives the worker process its own directory for sources, builds and state."""
    global HERE, SOURCE
    HERE = f"{HERE}/{places.get()}"
    SOURCE = f"{HERE}/source"
    os.makedirs(SOURCE, exist_ok=True)
    ENVIRONMENT.update(CARGO_TARGET_DIR=f"{HERE}/target")


def known_by(patches, seeds):
    """Returns a key for each patch: a hash of the sources, the bug and the number of seeds."""
    sources = hashlib.sha256(str(seeds).encode())
    for path in files():
        if not path.endswith(".patch"):
            sources.update(path.encode() + b"\0" + read(path) + b"\0")
    return {patch: hashlib.sha256(sources.digest() + read(patch)).hexdigest() for patch in patches}


def tried(patch, seeds):
    """Runs try_patch in a copy of the sources. Returns its result and the seconds that it took."""
    copy()
    began = time.monotonic()
    return *try_patch(patch, seeds), time.monotonic() - began


def main():
    seeds, names = int(sys.argv[1]), sys.argv[2:]
    patches = [patch for folder in JUDGES for patch in sorted(glob.glob(f"{folder}/*.patch"))]
    chosen = [p for p in patches if not names or any(name in p for name in names)]
    if not chosen:
        sys.exit("error: no patch has a path that contains " + ", ".join(names))
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
    # The seeds and tests that found bugs must pass without them.
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
