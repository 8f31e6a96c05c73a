# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What `scripts/browser pictures` runs in the browser root: `browser_pictures.py DIR` takes a picture of the report of each scenario, from its top to
the end of its ladder.
"""
import json
import os
import sys

from browser import Browser

DIR, PICTURES = sys.argv[1], "Documentation/pictures"
# The ladder has 60% of the height: its head and 26 rows.
WIDTH, HEIGHT = 1000, 730
# The end of the ladder.
END = "Math.ceil(document.getElementById('ladder').getBoundingClientRect().bottom + window.scrollY + 12)"

with open(f"{DIR}/expected.json", encoding="utf-8") as file:
    scenarios = [name for name, it in json.load(file).items() if it.get("scenario")]
with Browser() as browser:
    for name in scenarios:
        page = browser.open(f"{DIR}/{name}.html", WIDTH, HEIGHT)
        if page.complaints():
            sys.exit(f"error: {name}: {page.complaints()}")
        path = f"{PICTURES}/{name}.png"
        page.picture(path, WIDTH, page.evaluate(END))
        page.close()
        print(f"{path}: {os.path.getsize(path)} bytes")
