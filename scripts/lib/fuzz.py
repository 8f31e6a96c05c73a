# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of scripts/fuzz, in the toolchain root: builds the fuzz targets, runs them in turns, and counts executions."""
import argparse
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

TOP = sys.argv[1]
FUZZ = f"{TOP}/tools/lab/transport/fuzz"
WORK = f"{TOP}/build/fuzz"
LOG = f"{TOP}/tools/lab/ledger/fuzzing.md"
HEADERS = ["ethernet", "ipv4", "ipv6", "udp", "bth", "ext"]
PARSERS = HEADERS + ["frame", "round_trip"]
SWITCH = "hostile_frames"
FILES = ["rule_file", "recording"]
SUBNETS = ["subnet", "subnet_packets"]
TARGETS = PARSERS + ["operations", SWITCH] + FILES + SUBNETS
# Length of the longest input. A target ignores more.
LENGTH = {"frame": 320, "round_trip": 320, "operations": 256, SWITCH: 1024, "rule_file": 1024, "recording": 2048, "subnet": 512,
          "subnet_packets": 512}
# Executions a second, until a turn has measured them. Others: 500,000.
RATES = {"operations": 20_000, SWITCH: 1000, "rule_file": 20_000, "recording": 5000, "subnet": 5000, "subnet_packets": 2000}
# Seconds of a turn. The count is saved after each.
TURN = 20
# Bytes of a target's committed corpus, as text.
COMMITTED = {"operations": 150_000}
# libFuzzer needs from the compiler: counters of edges, a table of them, calls at comparisons.
COVERAGE = ["-Cpasses=sancov-module"] + ["-Cllvm-args=-sanitizer-coverage-" + option for option in (
    "level=4", "inline-8bit-counters", "pc-table", "trace-compares")]


def files(*patterns):
    found = []
    for pattern in patterns:
        found += glob.glob(f"{TOP}/{pattern}", recursive=True)
    return sorted({f for f in found if not re.search(r"/tests(\.rs|/)", f)})


def source_hash(target):
    """Returns a hash of all sources that the target runs, because counts do not apply to other code."""
    ours = "tools/lab/transport/src/fuzz/"
    if target == "operations":
        used = files("tools/nic/transport/src/**/*.rs", ours + "mod.rs", ours + "node.rs", ours + "operations/*.rs",
                     "tools/lab/transport/src/keys.rs", "tools/lab/transport/src/arena.rs")
    elif target == SWITCH:
        used = files("tools/nic/transport/src/**/*.rs", "tools/nic/device/src/**/*.rs", "tools/nic/daemon/src/switch.rs", "tools/lab/daemon/src/*.rs",
                     ours + "mod.rs", ours + "frames.rs")
    elif target in SUBNETS:
        used = files("tools/nic/fabric/src/**/*.rs", ours + "mod.rs", "tools/lab/daemon/src/subnet/*.rs", "tools/lab/daemon/src/subnet.rs")
        if target == "subnet_packets":
            used += files("tools/nic/transport/src/**/*.rs", "tools/nic/daemon/src/subnet.rs", "tools/lab/daemon/src/subnet_packets.rs")
    elif target in FILES:
        used = files("tools/nic/faults/src/*.rs", "tools/nic/protocol/src/rules.rs", "tools/nic/protocol/src/strict.rs", "tools/lab/daemon/src/files.rs")
        if target == "recording":
            used += files("tools/nic/recorder/src/**/*.rs")
    else:
        module = "headers.rs" if target in HEADERS else "frames.rs"
        used = files("tools/nic/transport/src/wire/**/*.rs", "tools/nic/transport/src/headers.rs", ours + "mod.rs", ours + module)
        if target not in HEADERS:
            used += files(*(f"tools/nic/transport/src/{f}.rs" for f in ("copy", "frame", "gather", "packet", "pool", "psn", "sges")))
    digest = hashlib.sha256()
    for f in sorted(used):
        with open(f, "rb") as text:
            digest.update(os.path.relpath(f, TOP).encode() + b"\0" + text.read() + b"\0")
    return digest.hexdigest()[:12]


def build():
    triple = re.search(r"^host: (.*)$", subprocess.run(
        ["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout, re.M)[1]
    target_dir = f"{WORK}/cargo"
    command = ["cargo", "build", "-q", "--release", "--manifest-path", f"{FUZZ}/Cargo.toml",
               "--target", triple, "--target-dir", target_dir]
    env = dict(os.environ, RUSTFLAGS=" ".join(["--cfg", "fuzzing"] + COVERAGE))
    if subprocess.run(command, env=env, check=False).returncode:
        sys.exit("error: the fuzz targets do not build, see above")
    # A copy, so that another build does not disturb a campaign.
    built = f"{WORK}/bin"
    os.makedirs(built, exist_ok=True)
    for target in TARGETS:
        shutil.copy2(f"{target_dir}/{triple}/release/{target}", f"{built}/{target}.new")
        os.replace(f"{built}/{target}.new", f"{built}/{target}")


def binary(target):
    return f"{WORK}/bin/{target}"


class State:
    """Counts of one target: executions, corpus and features, by source hash."""

    def __init__(self, target):
        self.target = target
        self.path = f"{WORK}/state/{target}.json"
        self.hash = source_hash(target)
        self.all = {}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                self.all = json.load(f)
        self.now = self.all.setdefault(self.hash, {"executions": 0, "corpus": 0, "features": 0, "seconds": 0})

    def add(self, executions, seconds, corpus, features):
        self.now["executions"] += executions
        self.now["seconds"] += seconds
        self.now["corpus"] = corpus or self.now["corpus"]
        self.now["features"] = max(features, self.now["features"])
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path + ".new", "w", encoding="utf-8") as f:
            json.dump(self.all, f, indent=1)
        os.replace(self.path + ".new", self.path)


def seed(target):
    """Returns the directory of the growing corpus, after adding the committed inputs."""
    folder = f"{WORK}/corpus/{target}"
    os.makedirs(folder, exist_ok=True)
    inputs = []
    packed = f"{FUZZ}/corpus/{target}.hex"
    if os.path.exists(packed):
        with open(packed, encoding="utf-8") as f:
            inputs += [bytes.fromhex(line) for line in f]
    for crash in glob.glob(f"{FUZZ}/crashes/{target}/*"):
        with open(crash, "rb") as f:
            inputs.append(f.read())
    for data in inputs:
        # libFuzzer would use the same name.
        path = f"{folder}/{hashlib.sha1(data).hexdigest()}"
        if not os.path.exists(path):
            with open(path, "wb") as f:
                f.write(data)
    return folder


def minimise(target, path):
    small = f"{path}.min"
    subprocess.run([binary(target), "-minimize_crash=1", "-max_total_time=30", "-timeout=10", f"-exact_artifact_path={small}", path],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return small if os.path.exists(small) else path


class Campaign:
    """Turns of targets, run by parallel workers."""

    def __init__(self, targets, runs):
        self.states = {target: State(target) for target in targets}
        self.left = {t: max(0, runs - s.now["executions"]) for t, s in self.states.items()}
        self.rate = {t: RATES.get(t, 500_000) for t in targets}
        self.lock = threading.Lock()
        self.running = {}
        self.failed = []
        self.stopped = False

    def take(self):
        """Returns a target with executions left, and how many of them to run in this turn, or None."""
        with self.lock:
            if self.stopped or self.failed:
                return None
            # The target that will take longest goes first, so that at the end no worker is left alone with it.
            target = max(self.left, key=lambda t: self.left[t] / self.rate[t])
            runs = min(self.left[target], max(1000, int(self.rate[target] * TURN)))
            self.left[target] -= runs
            return (target, runs) if runs > 0 else None

    def turn(self, target, runs, worker):
        folder = f"{WORK}/corpus/{target}"
        crashes = f"{WORK}/crashes/{target}/"
        os.makedirs(crashes, exist_ok=True)
        command = [binary(target), f"-runs={runs}", f"-max_len={LENGTH.get(target, 80)}", "-timeout=10", "-rss_limit_mb=1024",
                   "-print_final_stats=1", "-detect_leaks=0", "-verbosity=1", f"-artifact_prefix={crashes}", folder]
        began = time.time()
        log = f"{WORK}/log-{target}-{worker}"
        with open(log, "w+", encoding="utf-8", errors="replace") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
            with self.lock:
                self.running[worker] = process
            code = process.wait()
            out.seek(0)
            text = out.read()
        seconds = time.time() - began
        number = re.search(r"^stat::number_of_executed_units: +(\d+)", text, re.M)
        done = int(number[1]) if number else 0
        shape = re.findall(r"cov: \d+ ft: (\d+) corp: (\d+)/", text)
        features, corpus = map(int, shape[-1]) if shape else (0, 0)
        with self.lock:
            self.left[target] += runs - done if done < runs else 0
            if seconds > 2 and done:
                self.rate[target] = max(100, done / seconds)
            state = self.states[target]
            state.add(done, round(seconds, 1), corpus, features)
            print(f"{target}: {done:,} more, {state.now['executions']:,} in all; {done / max(seconds, 0.001):,.0f}/s, "
                  f"corpus {corpus:,}, features {features:,}", flush=True)
            if code not in (0, 72) and not self.stopped:
                wrote = re.search(r"Test unit written to (\S+)", text)
                self.failed.append((target, wrote[1] if wrote else None, log, text))

    def work(self, worker):
        while (turn := self.take()) is not None:
            self.turn(*turn, worker)

    def run(self, jobs):
        workers = [threading.Thread(target=self.work, args=(n,)) for n in range(jobs)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except KeyboardInterrupt:
            # libFuzzer ends at this signal too, and prints its counts.
            self.stopped = True
            with self.lock:
                for process in self.running.values():
                    process.terminate()
            for worker in workers:
                worker.join()
            print("stopped; the next run continues")
        return not self.failed


def report(failed):
    for target, path, log, text in failed:
        why = re.search(r"^thread .* panicked at .*\n.*", text, re.M) or re.search(r"^.*ERROR: libFuzzer: .*", text, re.M)
        print(f"\nFAILED: {target}: {why[0] if why else 'it printed no error, see ' + log}")
        if path is None:
            continue
        kept = os.path.relpath(minimise(target, path), TOP)
        print(f"  input:  {kept}\n  replay: scripts/fuzz --replay {target} {kept}\n"
              f"  keep:   cp {kept} tools/lab/transport/fuzz/crashes/{target}/ (named after the fix, once there is one)")


HEAD = """# Fuzzing: what was run

`scripts/fuzz --runs N --record` writes this list: the executions of each target with one state of
its source (a hash of all that the target runs), without a crash or a hang. A later run with the
same source replaces the line.

| engine | source | target | executions | corpus | features |
| --- | --- | --- | ---: | ---: | ---: |
"""


def record(states):
    commit = subprocess.run(["git", "-C", TOP, "rev-parse", "--short=10", "HEAD"], stdout=subprocess.PIPE, text=True, check=True)
    rows = []
    if os.path.exists(LOG):
        with open(LOG, encoding="utf-8") as f:
            rows = [line.rstrip("\n") for line in f if re.match(r"\| [0-9a-f]{10} ", line)]
    for target, state in states.items():
        if state.now["executions"] == 0:
            continue
        rows = [row for row in rows if f"| {state.hash} | {target} |" not in row]
        now = state.now
        rows.append(f"| {commit.stdout.strip()} | {state.hash} | {target} | {now['executions']:,} | {now['corpus']:,} | {now['features']:,} |")
    with open(LOG, "w", encoding="utf-8") as f:
        f.write(HEAD + "\n".join(rows) + "\n")


def pack(target):
    """Writes the committed corpus: the smallest inputs that reach all covered code, one a line, up to the limit of COMMITTED."""
    merged = f"{WORK}/merged/{target}"
    shutil.rmtree(merged, ignore_errors=True)
    os.makedirs(merged)
    subprocess.run([binary(target), "-set_cover_merge=1", f"-max_len={LENGTH.get(target, 80)}", "-timeout=10", merged, seed(target)],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    inputs = []
    for path in glob.glob(f"{merged}/*"):
        with open(path, "rb") as f:
            inputs.append(f.read().hex())
    inputs.sort(key=lambda text: (len(text), text))
    kept, room = [], COMMITTED.get(target, 25_000)
    for text in inputs:
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    with open(f"{FUZZ}/corpus/{target}.hex", "w", encoding="utf-8") as f:
        f.write("".join(text + "\n" for text in kept if text))
    print(f"{target}: {len(kept)} of {len(inputs)} inputs, {sum(map(len, kept)) // 2:,} bytes")


def main():
    parser = argparse.ArgumentParser(prog="scripts/fuzz", add_help=False)
    parser.add_argument("--runs", type=lambda text: int(float(text.replace(",", ""))), default=1_000_000)
    parser.add_argument("--jobs", type=int, default=1)
    for flag in ("--record", "--list", "--replay", "--corpus"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(sys.argv[2:])
    names = options.names or TARGETS
    if options.replay:
        build()
        target, inputs = names[0], names[1:]
        sys.exit(subprocess.run([binary(target)] + inputs, check=False).returncode)
    targets = []
    for name in names:
        if name not in TARGETS + ["parsers"]:
            sys.exit(f"error: there is no target {name}, only {', '.join(TARGETS)}, and parsers")
        targets += [t for t in (PARSERS if name == "parsers" else [name]) if t not in targets]
    if options.list:
        for target in targets:
            state = State(target)
            print(f"{target}: {state.now['executions']:,} executions of source {state.hash}")
        return
    build()
    if options.corpus:
        for target in targets:
            pack(target)
        return
    for target in targets:
        seed(target)
    campaign = Campaign(targets, options.runs)
    good = campaign.run(options.jobs)
    if options.record and good:
        record(campaign.states)
    for target, state in campaign.states.items():
        print(f"{target}: {state.now['executions']:,} executions of source {state.hash}, corpus {state.now['corpus']:,}, "
              f"features {state.now['features']:,}")
    report(campaign.failed)
    sys.exit(130 if campaign.stopped else 0 if good else 1)


main()
