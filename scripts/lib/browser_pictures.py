# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What `scripts/browser pictures` runs in the browser root: `browser_pictures.py DIR` takes a picture of the report of each scenario, from its top to
the end of its ladder, in the colours of the page.
"""
import json
import os
import re
import sys

from browser import Browser

DIR, PICTURES = sys.argv[1], "Documentation/pictures"
# The ladder has 70% of the height: its head and 19 rows.
WIDTH, HEIGHT = 1000, 580
# The end of the ladder.
END = "Math.ceil(document.getElementById('ladder').getBoundingClientRect().bottom + window.scrollY + 12)"

# The colours of the kinds that the page has.
KINDS = """(() => [...document.querySelectorAll("#key .swatch i")].map(one => getComputedStyle(one, "::after").backgroundColor))()"""

with open(f"{DIR}/expected.json", encoding="utf-8") as file:
    scenarios = [name for name, it in json.load(file).items() if "scenario" in it]
with Browser() as browser:
    for name in scenarios:
        page = browser.open(f"{DIR}/{name}.html", WIDTH, HEIGHT)
        page.whole()
        if page.complaints():
            sys.exit(f"error: {name}: {page.complaints()}")
        path = f"{PICTURES}/{name}.png"
        kinds = {bytes(int(part) for part in re.findall(r"\d+", kind)[:3]) for kind in page.evaluate(KINDS) if kind.startswith("rgb(")}
        colours = page.picture(path, WIDTH, page.evaluate(END), sorted(kinds))
        if not kinds <= colours:
            sys.exit(f"error: {name}: the picture has not the colours {kinds - colours}")
        page.close()
        print(f"{path}: {os.path.getsize(path)} bytes")
