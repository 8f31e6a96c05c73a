# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Generated bugs, for scripts/mutants --made: `mutants_made.py COUNT SAMPLE SEEDS`, in the top directory.

cargo-mutants lists the small changes that it can make to the transport's queue pairs and to the device model. SAMPLE determines their
order. They are tried one after the other until COUNT of them were viable (they compiled). Results with the same source are in
build/mutants/made.jsonl, so a later run continues where the last one was stopped.
"""
import collections
import hashlib
import json
import os
import random
import re
import resource
import subprocess
import sys
import time

import mutants
from mutants import DEVICE, HERE, SIM, SOURCE, DoesNotCompile, copy, files, read, simulate

VERSION = "26.0.0"
TOOLS = f"{HERE}/tools"
STATE = f"{HERE}/made.jsonl"
WHERE = ("tools/nic/transport/src/qp/**/*.rs", "tools/nic/device/src/**/*.rs")
# A prefetch changes only speed, so no test can notice its removal.
NO_NAME = "[Pp]refetch"
# Mocks and misbehaving builds exist only for tests.
NOT_IN = ("tools/nic/device/src/mock/**", "tools/nic/device/src/tests/**", "tools/nic/device/src/hostile.rs", "tools/nic/device/src/misbehave.rs",
          "tools/nic/device/src/device/misbehaviour.rs")
# Flags joined with | are different bits, so ^ gives the same number. In these functions all of them are constants.
SAME = re.compile(r"tools/nic/device/src/(config|device/cmd/qp_attr)\.rs:.*: (caps|masks): BinaryOperator -> \^$")
# Seconds. A mutant that does not end counts as found, because a test has to end.
LONGEST = 120


def install():
    have = f"{TOOLS}/bin/cargo-mutants"
    known = subprocess.run([have, "mutants", "--version"], stdout=subprocess.PIPE, text=True).stdout if os.path.exists(have) else ""
    if VERSION not in known:
        print(f"building cargo-mutants {VERSION} ...", file=sys.stderr, flush=True)
        subprocess.run(["cargo", "install", "--quiet", "--locked", "--version", VERSION, "--root", TOOLS, "cargo-mutants"], check=True)
    return have


def known_mutants():
    """Returns all mutants of the copy, in the order of their places."""
    command = [install(), "mutants", "--list", "--json", "--dir", SOURCE]
    for pattern in WHERE:
        command += ["--file", pattern]
    for pattern in NOT_IN:
        command += ["--exclude", pattern]
    command += ["--exclude-re", NO_NAME]
    listed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=SOURCE).stdout
    return json.loads(listed)


def known_by():
    """Returns the keys of results: a hash of the code, and a hash of the code with all that tests it.

    A mutant that was found, or that does not compile, stays so while only tests and laboratory change. A mutant that survived does not.
    """
    code, everything = hashlib.sha256(), hashlib.sha256()
    for path in files():
        if path.startswith(("tools/nic/transport", "tools/nic/device", "tools/lab/transport", "tools/lab/device", "tools/lab/sim", "tools/abi", "include/abi")) and not path.endswith(".patch"):
            content = path.encode() + b"\0" + read(path) + b"\0"
            everything.update(content)
            mine = path.startswith(("tools/nic/transport/src/", "tools/nic/device/src/", "include/abi"))
            if mine and "/tests" not in path and "/mock/" not in path:
                code.update(content)
    return code.hexdigest()[:16], everything.hexdigest()[:16]


def name(mutant):
    """Returns the name of a mutant: its place, the changed construct, and the replacement."""
    start = mutant["span"]["start"]
    function = (mutant.get("function") or {}).get("function_name", "")
    return f"{mutant['file']}:{start['line']}:{start['column']}: {function}: {mutant['genre']} -> {mutant['replacement'] or 'nothing'}"


def put(mutant):
    """Applies the mutant to the copy."""
    path = f"{SOURCE}/{mutant['file']}"
    text = read(path).decode()
    lines = text.splitlines(keepends=True)

    def offset(place):
        return sum(len(line) for line in lines[:place["line"] - 1]) + place["column"] - 1

    span = mutant["span"]
    with open(path, "w", encoding="utf-8") as out:
        out.write(text[:offset(span["start"])] + mutant["replacement"] + text[offset(span["end"]):])


def verdict(mutant, seeds):
    """Returns one of unviable, caught and survived, and by what the mutant was found."""
    put(mutant)
    folder = SIM if mutant["file"].startswith("tools/nic/transport/") else DEVICE
    try:
        failed, said = mutants.test(folder, LONGEST)
        if failed != []:
            return "caught", mutants.name_tests(failed) if failed else said
        mutants.build(DEVICE)
    except DoesNotCompile as error:
        return "unviable", str(error)[:100]
    # Programs on the whole device reach much of the transport too.
    for laboratory, so_many in ((SIM, seeds), (DEVICE, seeds // 4)) if folder == SIM else ((DEVICE, seeds),):
        said, broken = simulate(so_many, laboratory)
        if broken:
            return "caught", f"seed {broken[0]} of {os.path.basename(laboratory)}"
        if "no broken rule" not in said:
            return "caught", "the simulation does not end"
    return "survived", "nothing"


def main():
    count, sample, seeds = (int(argument) for argument in sys.argv[1:4])
    # A mutant that allocates without end must fail before the machine runs out of memory.
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    copy()
    code, everything = known_by()
    done = {}
    for line in (read(STATE) or b"").decode().splitlines():
        entry = json.loads(line)
        if entry["code"] == code and (entry["verdict"] != "survived" or entry["all"] == everything):
            done[entry["name"]] = entry
    listed = known_mutants()
    random.Random(sample).shuffle(listed)
    print(f"{len(listed)} mutants, of which {len(done)} are known", flush=True)
    tally, survivors = collections.Counter(), []
    for mutant in listed:
        if tally["caught"] + tally["survived"] >= count:
            break
        if SAME.match(name(mutant)):
            continue
        entry = done.get(name(mutant))
        if not entry:
            copy()
            began = time.monotonic()
            what, by = verdict(mutant, seeds)
            entry = {"code": code, "all": everything, "name": name(mutant), "verdict": what, "by": by}
            with open(STATE, "a", encoding="utf-8") as out:
                out.write(json.dumps(entry) + "\n")
            print(f"{what}: {name(mutant)} ({entry['by']}, {time.monotonic() - began:.0f} s)", flush=True)
        tally[entry["verdict"]] += 1
        if entry["verdict"] == "survived":
            survivors.append(name(mutant))
    copy()
    viable = tally["caught"] + tally["survived"]
    for survivor in survivors:
        print(f"survived: {survivor}")
    print(f"{viable} viable mutants of sample {sample}, {tally['caught']} caught ({100 * tally['caught'] / max(viable, 1):.1f} %); "
          f"{tally['unviable']} did not compile")


if __name__ == "__main__":
    main()
