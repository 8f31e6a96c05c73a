# SPDX-License-Identifier: GPL-2.0 OR MIT
"""recipes.py --list | --work DIR --logs DIR [NAME...]: what scripts/test-recipes does, in the top directory of the checkout.

A page is read as blocks, each fence being one of three kinds (Documentation/testing.md says how they are written): commands that run, a file that
is written, or what the commands before it print. Whatever is none of these is a mistake of the page, so that nothing in it goes untested.
"""
import argparse
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import time

PAGES = "Documentation/recipes"
# How long a page may take before it counts as hung, in seconds.
LIMIT = 1800
# The first line of a file that says where it goes, in the comments of C, Rust, Python, shell, make and TOML.
NAMED = re.compile(r"(?://|#|/\*) (~/\S+?)(?: \*/)?$")
# A comment that does so where the file has no place for one.
NAMED_ABOVE = re.compile(r"file: (~/\S+)$")
# The three lines of the comment above commands that cannot run everywhere.
CONDITION = ("only if", "instead", "because")
PROGRESS = re.compile(r"\[ *\d+s\] ")


class Mistake(Exception):
    """What is wrong with a page, with the line where."""

    def __init__(self, line, why):
        super().__init__(f"line {line}: {why}")


@dataclasses.dataclass
class Commands:
    """Run by bash; with a condition only where that holds, else what is to be checked instead."""
    line: int
    text: str
    only_if: str = ""
    instead: str = ""
    because: str = ""


@dataclasses.dataclass
class File:
    line: int
    text: str
    path: str


@dataclasses.dataclass
class Prints:
    """What the commands before it print."""
    line: int
    text: str


def fences(text):
    """Each fence as (line, language, content, comment above it); lines count from 1."""
    lines, n, comment = text.split("\n"), 0, ""
    while n < len(lines):
        line, start = lines[n], n + 1
        n += 1
        if line.startswith("<!--"):
            said = [line]
            while "-->" not in said[-1]:
                if n == len(lines):
                    raise Mistake(start, "a comment that does not end")
                said.append(lines[n])
                n += 1
            comment = "\n".join(said)[4:].partition("-->")[0].strip()
        elif line.startswith("```"):
            content = []
            while n < len(lines) and lines[n] != "```":
                content.append(lines[n])
                n += 1
            if n == len(lines):
                raise Mistake(start, "a block that does not end")
            n += 1
            yield start, line[3:].strip(), "".join(f"{c}\n" for c in content), comment
            comment = ""
        elif re.match(r"\s+```|~~~", line):
            raise Mistake(start, "a fence has to begin with ``` at the beginning of its line")
        elif line.strip():
            comment = ""


def condition(line, comment):
    """The condition in the comment above commands, by the names of its lines."""
    said = dict(re.findall(rf"^\s*({'|'.join(CONDITION)}): (.+)$", comment, re.M))
    if comment and set(said) != set(CONDITION):
        raise Mistake(line, f"the comment above commands has the lines `{':`, `'.join(CONDITION)}:`, or is not there")
    return {name.replace(" ", "_"): words for name, words in said.items()}


def blocks(text):
    """The blocks of a page."""
    found = []
    for line, language, content, comment in fences(text):
        named = NAMED.match(content.partition("\n")[0]) or NAMED_ABOVE.match(comment)
        if language == "sh":
            found.append(Commands(line, content, **condition(line, comment)))
        elif named:
            found.append(File(line, content, named[1]))
        elif language in ("", "text"):
            if not found or not isinstance(found[-1], Commands):
                raise Mistake(line, "a block without a language is what commands print, and there are none right before it")
            found.append(Prints(line, content))
        else:
            raise Mistake(line, f"a block of {language} that does not say in its first line which file it is (`# ~/...`)")
    if not any(isinstance(block, Commands) for block in found):
        raise Mistake(1, "the page has no commands (```sh)")
    return found


def pattern(shown):
    """What a page shows as a regular expression: `...` as a line is any lines, within a line any text."""
    parts = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n")
    return re.compile("^" + "".join(parts), re.M)


def printed(output, shown):
    """Whether the commands printed these lines one after the other; what scripts say of their progress is nothing that a page shows."""
    lines = [line for line in output.replace("\r", "").split("\n") if not PROGRESS.match(line)]
    return bool(pattern(shown).search("\n".join(lines).rstrip("\n") + "\n"))


def driver(steps, logs, home):
    """The script of one page: each block sourced in the same shell, as if it were typed, with its output in a log of its own."""
    lines = ["set -e -o pipefail"]
    for n, step in enumerate(steps):
        base = os.path.join(logs, str(n))
        run = f". {base}.sh >{base}.out 2>&1"
        if isinstance(step, Prints):
            continue
        lines.append(f"echo {n} >{logs}/begun")
        if isinstance(step, File):
            path = os.path.join(home, step.path[2:])
            lines.append(f"mkdir -p {shlex.quote(os.path.dirname(path))} && cp {base}.file {shlex.quote(path)}")
        elif step.only_if:
            lines.append(f"if bash -c {shlex.quote(step.only_if)} >{base}.condition 2>&1; then {run}; else : >{base}.not-run; . {base}.instead.sh >{base}.out 2>&1; fi")
        else:
            lines.append(run)
    return "\n".join(lines + [f"echo {len(steps)} >{logs}/begun", ""])


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def make_home(home):
    """An empty home directory, but for what its owner has configured."""
    os.makedirs(home)
    own = os.path.expanduser("~")
    for name in os.listdir(own):
        if name.startswith("."):
            os.symlink(os.path.join(own, name), os.path.join(home, name))


def run(script, home, limit):
    """The exit status of a page's script, or None if it hung. What it left running ends."""
    env = os.environ | {"HOME": home}
    page = subprocess.Popen(["bash", script], stdin=subprocess.DEVNULL, env=env, start_new_session=True)
    try:
        return page.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(page.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        page.wait()


def end(text, count=15):
    return "".join(f"\n  | {line}" for line in text.rstrip("\n").split("\n")[-count:])


def judge(steps, logs, status, limit):
    """What became of a page's run: each thing that is wrong, and which commands were not run."""
    wrong, not_run = [], []
    begun = int(read(f"{logs}/begun"))
    if status != 0:
        step = steps[min(begun, len(steps) - 1)]
        log = f"{logs}/{begun}.out"
        how = f"did not end within {limit} s" if status is None else f"ended with {status}"
        wrong.append(f"line {step.line}: {how}{end(read(log)) if os.path.exists(log) else ''}")
    elif begun < len(steps):
        wrong.append(f"line {steps[begun].line}: ends the reader's shell")
    last = None
    for n, step in enumerate(steps[:begun]):
        if isinstance(step, Commands):
            last = None if os.path.exists(f"{logs}/{n}.not-run") else n
            if last is None:
                not_run.append(f"line {step.line} was not run, because {step.because}; instead: {step.instead}")
        elif isinstance(step, Prints) and last is not None:
            output = read(f"{logs}/{last}.out")
            if not printed(output, step.text):
                wrong.append(f"line {step.line}: this is not printed, but{end(output, 40)}")
    return wrong, not_run


def follow(text, logs, home, limit=LIMIT):
    """Follows a page; returns what is wrong with it, and which commands could not be run."""
    try:
        steps = blocks(text)
    except Mistake as mistake:
        return [str(mistake)], []
    os.makedirs(logs)
    make_home(home)
    for n, step in enumerate(steps):
        if isinstance(step, File):
            write(f"{logs}/{n}.file", step.text)
        elif isinstance(step, Commands):
            write(f"{logs}/{n}.sh", step.text)
            write(f"{logs}/{n}.instead.sh", step.instead + "\n")
    script = f"{logs}/page.sh"
    write(script, driver(steps, logs, home))
    return judge(steps, logs, run(script, home, limit), limit)


def names():
    return sorted(name[:-3] for name in os.listdir(PAGES) if name.endswith(".md"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work")
    parser.add_argument("--logs")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.list:
        print("\n".join(names()))
        return 0
    unknown = set(args.names) - set(names())
    if unknown:
        print(f"error: there is no recipe {' '.join(sorted(unknown))}: {' '.join(names())}", file=sys.stderr)
        return 2
    failed = 0
    wanted = args.names or names()
    for name in wanted:
        logs = os.path.join(args.logs, name)
        subprocess.run(["rm", "-rf", logs], check=True)
        started = time.monotonic()
        wrong, not_run = follow(read(f"{PAGES}/{name}.md"), logs, os.path.join(args.work, name))
        took = f"{time.monotonic() - started:.0f} s"
        print(f"FAILED {name}: {wrong[0]} ({took}; logs: {logs})" if wrong else f"ok {name} ({took})")
        for line in wrong[1:] + not_run:
            print(f"  {name}: {line}")
        sys.stdout.flush()
        failed += bool(wrong)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
