# SPDX-License-Identifier: GPL-2.0 OR MIT
"""recipes.py --list | --work DIR --logs DIR [NAME...]: does the work of scripts/test-recipes, in the top directory of the checkout.

A page consists of blocks between fences. Each block is of one of three kinds (Documentation/testing.md describes how to write them): commands
to run, a file to write, or the output of the commands before it. Any other block is an error, so that no block is left untested.
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

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../guest")
from verbena_guest.results import Results  # noqa: E402

PAGES = "Documentation/recipes"
# Seconds after which a page counts as hung.
LIMIT = 1800
# The first line of a file that names its place, as a comment in C, Rust, Python, shell, make and TOML.
NAMED = re.compile(r"(?://|#|/\*) (~/\S+?)(?: \*/)?$")
# A comment of the page that names the place of a file whose format has no comments.
NAMED_ABOVE = re.compile(r"file: (~/\S+)$")
# The three lines of the comment above commands that cannot run everywhere.
CONDITION = ("only if", "instead", "because")
PROGRESS = re.compile(r"\[ *\d+s\] ")


class Mistake(Exception):
    """An error of a page, with its line."""

    def __init__(self, line, why):
        super().__init__(f"line {line}: {why}")


@dataclasses.dataclass
class Commands:
    """Commands for bash. With a condition: run only where it holds; elsewhere `instead` is run."""
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
    """The output of the commands before this block."""
    line: int
    text: str


def fences(text):
    """Yields each fence as (line, language, content, comment above it); lines count from 1."""
    lines, n, comment = text.split("\n"), 0, ""
    while n < len(lines):
        line, start = lines[n], n + 1
        n += 1
        if line.startswith("<!--"):
            said = [line]
            while "-->" not in said[-1]:
                if n == len(lines):
                    raise Mistake(start, "the comment does not end")
                said.append(lines[n])
                n += 1
            comment = "\n".join(said)[4:].partition("-->")[0].strip()
        elif line.startswith("```"):
            content = []
            while n < len(lines) and lines[n] != "```":
                content.append(lines[n])
                n += 1
            if n == len(lines):
                raise Mistake(start, "the block does not end")
            n += 1
            yield start, line[3:].strip(), "".join(f"{c}\n" for c in content), comment
            comment = ""
        elif re.match(r"\s+```|~~~", line):
            raise Mistake(start, "a fence has to begin with ``` at the beginning of its line")
        elif line.strip():
            comment = ""


def condition(line, comment):
    """Returns the condition in the comment above commands, by the names of its lines."""
    said = dict(re.findall(rf"^\s*({'|'.join(CONDITION)}): (.+)$", comment, re.M))
    if comment and set(said) != set(CONDITION):
        raise Mistake(line, f"the comment above commands must have the lines `{':`, `'.join(CONDITION)}:`")
    return {name.replace(" ", "_"): words for name, words in said.items()}


def blocks(text):
    """Returns the blocks of a page."""
    found = []
    for line, language, content, comment in fences(text):
        named = NAMED.match(content.partition("\n")[0]) or NAMED_ABOVE.match(comment)
        if language == "sh":
            found.append(Commands(line, content, **condition(line, comment)))
        elif named:
            found.append(File(line, content, named[1]))
        elif language in ("", "text"):
            if not found or not isinstance(found[-1], Commands):
                raise Mistake(line, "a block without a language is the output of commands, and must follow a block of commands")
            found.append(Prints(line, content))
        else:
            raise Mistake(line, f"a block of {language} must name its file in the first line (`# ~/...`)")
    if not any(isinstance(block, Commands) for block in found):
        raise Mistake(1, "the page has no commands (```sh)")
    return found


def pattern(shown):
    """Turns the shown output into a regular expression: the line `...` stands for any lines, `...` within a line for any text."""
    parts = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r"[^\n]*".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n")
    return re.compile("^" + "".join(parts), re.M)


def printed(output, shown):
    """True if the commands printed these lines one after the other. Progress lines of scripts are ignored, because pages do not show them."""
    lines = [line for line in output.replace("\r", "").split("\n") if not PROGRESS.match(line)]
    return bool(pattern(shown).search("\n".join(lines).rstrip("\n") + "\n"))


def driver(steps, logs, home):
    """Returns the script of a page, which sources each block in the same shell, as if typed, with the output in its own log."""
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
    """Makes an empty home directory with links to the user's dot files."""
    os.makedirs(home)
    own = os.path.expanduser("~")
    for name in os.listdir(own):
        if name.startswith("."):
            os.symlink(os.path.join(own, name), os.path.join(home, name))


def run(script, home, limit):
    """Returns the exit status of a page's script, or None if it hung. Ends the processes that are left."""
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
    """Returns the errors of a page's run, and the commands that were not run."""
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
                wrong.append(f"line {step.line}: the output does not contain this, but is{end(output, 40)}")
    return wrong, not_run


def follow(text, logs, home, limit=LIMIT):
    """Follows a page. Returns its errors, and the commands that could not be run."""
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
        print(f"error: there is no recipe {' '.join(sorted(unknown))}, only {' '.join(names())}", file=sys.stderr)
        return 2
    results = Results("recipes")
    wanted = args.names or names()
    for name in wanted:
        logs = os.path.join(args.logs, name)
        subprocess.run(["rm", "-rf", logs], check=True)
        started = time.monotonic()
        wrong, not_run = follow(read(f"{PAGES}/{name}.md"), logs, os.path.join(args.work, name))
        took = time.monotonic() - started
        if wrong:
            results.failed(name, f"{wrong[0]} ({took:.0f} s; logs: {logs})", took)
        else:
            results.passed(name, took)
        for line in wrong[1:] + not_run:
            print(f"  {name}: {line}")
        sys.stdout.flush()
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
