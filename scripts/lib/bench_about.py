# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Prints a JSON line about machine, day and versions of the host, for the results of scripts/bench. Runs in the toolchain root."""
import datetime
import json
import os
import re
import subprocess


def first(command, pattern):
    """Returns the part of the command's output that matches, or `?`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(pattern, done.stdout)
    return found[1] if found else "?"


with open("/proc/cpuinfo", encoding="utf-8") as file:
    cpu = re.search(r"^model name\s*: (.*)", file.read(), re.MULTILINE)
print(json.dumps({"about": {
    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    "cpu": cpu[1].strip() if cpu else "?",
    "cores": len(os.sched_getaffinity(0)),
    "qemu": first(["qemu-system-x86_64", "--version"], r"version (\S+)"),
    "verbena": os.environ.get("BENCH_COMMIT") or "?",
}}))
