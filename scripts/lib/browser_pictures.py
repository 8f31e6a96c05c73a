# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Part of `scripts/browser pictures`, in the browser root. `browser_pictures.py DIR` takes a picture of the report of each scenario, from
its top to the end of its ladder, in the colours of the page.
"""
import json
import os
import re
import sys

from browser import Browser

DIR, PICTURES = sys.argv[1], "Documentation/pictures"
# The ladder has 70% of the height: its head and 19 rows.
WIDTH, HEIGHT = 1000, 580
# The y coordinate below the ladder.
END = "Math.ceil(document.getElementById('ladder').getBoundingClientRect().bottom + window.scrollY + 12)"

# All colours that have a name in the page.
PALETTE = """(() => {
	const probe = document.body.appendChild(document.createElement("i")), root = [...document.styleSheets[0].cssRules].find(rule => rule.selectorText === ":root");
	const colours = [...root.style].map(name => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; });
	probe.remove();
	return colours;
})()"""
# The colours of the kinds of rows in the page's key.
KINDS = """(() => [...document.querySelectorAll("#key .swatch i")].map(one => getComputedStyle(one, "::after").backgroundColor))()"""



def colours_of(page, script):
    return {bytes(int(part) for part in re.findall(r"\d+", colour)[:3]) for colour in page.evaluate(script) if colour.startswith("rgb(")}


with open(f"{DIR}/expected.json", encoding="utf-8") as file:
    scenarios = [name for name, it in json.load(file).items() if "scenario" in it]
with Browser() as browser:
    for name in scenarios:
        page = browser.open(f"{DIR}/{name}.html", WIDTH, HEIGHT)
        page.whole()
        if page.complaints():
            sys.exit(f"error: {name}: {page.complaints()}")
        path = f"{PICTURES}/{name}.png"
        kinds = colours_of(page, KINDS)
        # The edge of the marked row has too few pixels for its colour to be kept by frequency. The palette keeps it from turning into a
        # colour with another meaning.
        colours = page.picture(path, WIDTH, page.evaluate(END), sorted(kinds | colours_of(page, PALETTE)))
        if not kinds <= colours:
            sys.exit(f"error: {name}: the picture lacks the colours {kinds - colours}")
        page.close()
        print(f"{path}: {os.path.getsize(path)} bytes")
