# SPDX-License-Identifier: GPL-2.0 OR MIT
"""recipes_test.py DIR: does the work of `scripts/test-recipes --own`: tests recipes.py with small pages, most of them with a mistake that it
must find. Prints `ok NAME` or `FAILED NAME: why` for each, and ends with `N passed, N failed`.
"""
import os
import sys

from recipes import follow
from verbena_guest.results import Results  # recipes has added its directory

GOOD = """# Good

<!-- this is no condition, since text follows -->
Text.

```c
// ~/mine/hello.c
int x;
```

<!-- file: ~/mine/data.json -->
```json
{}
```

```sh
here=$PWD
cd ~/mine
echo '[   3s] progress'
grep -c x hello.c; wc -l <data.json; echo took 17 ms; echo between; echo last
```

prints

```
1
...
took ... ms
...
last
```

```sh
cd "$here"
test -e scripts/test-recipes
```

<!-- only if: test -e /nowhere
instead: test "$here" = "$PWD"
because: the file does not exist -->
```sh
exit 3
```

```
this is not compared
```
"""

# By name: a page, and a text that its first error must contain, or nothing if the page is right.
PAGES = {
    "a-right-page": (GOOD, ""),
    "no-commands": ("```c\n// ~/x.c\n```\n", "the page has no commands"),
    "a-failing-command": ("```sh\ntrue\n```\n\n```sh\necho words; false; true\n```\n", "line 5: ended with 1\n  | words"),
    "a-failing-command-in-a-pipe": ("```sh\nfalse | cat\n```\n", "line 1: ended with 1"),
    "a-failing-command-of-instead": (GOOD.replace('instead: test "$here"', 'instead: test "not $here"'), "line 41: ended with 1"),
    "other-output": ("```sh\necho a\n```\n\n```\nb\n```\n", "line 5: the output does not contain this, but is\n  | a"),
    "an-additional-line": ("```sh\nseq 3\n```\n\n```\n1\n3\n```\n", "does not contain this"),
    "lines-in-another-order": ("```sh\nseq 3\n```\n\n```\n2\n...\n1\n```\n", "does not contain this"),
    "a-part-of-a-line": ("```sh\necho a b\n```\n\n```\na\n```\n", "does not contain this"),
    "output-without-commands": ("```\na\n```\n\n```sh\ntrue\n```\n", "line 1: a block without a language"),
    "a-file-without-a-name": ("```c\nint x;\n```\n\n```sh\ntrue\n```\n", "line 1: a block of c must name"),
    "a-file-outside-the-home": ("```c\n// scripts/x.c\n```\n\n```sh\ntrue\n```\n", "line 1: a block of c must name"),
    "half-a-condition": ("<!-- only if: false -->\n```sh\ntrue\n```\n", "line 2: the comment above commands"),
    "a-block-without-an-end": ("```sh\ntrue\n", "line 1: the block does not end"),
    "a-block-in-a-list": ("* this\n  ```sh\n  true\n  ```\n", "line 2: a fence has to begin"),
    "a-command-that-ends-the-shell": ("```sh\nexit 0\n```\n\n```sh\nfalse\n```\n", "line 1: ends the reader's shell"),
    "a-hang": ("```sh\nsleep 1000\n```\n", "line 1: did not end within 1 s"),
    "an-empty-home": ("```sh\ntest -z \"$(ls ~)\"\n```\n", ""),
}


def main():
    work, results = sys.argv[1], Results("recipes-with-mistakes")
    for name, (page, wanted) in PAGES.items():
        at = os.path.join(work, name)
        wrong, not_run = follow(page, f"{at}.logs", at, 1 if name == "a-hang" else 60)
        said = wrong[0] if wrong else ""
        why = "" if (wanted in said if wanted else not said) else f"the error is {said!r}, and must contain {wanted!r}"
        if name == "a-right-page" and len(not_run) != 1:
            why = f"{len(not_run)} commands were not run, not 1"
        if why:
            results.failed(name, why)
        else:
            results.passed(name)
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
