# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Draws some of many tests, the same ones each time."""
import random


def draw(of, most, seed, always=lambda _: False):
    """Returns at most `most` items, drawn with the seed, and all for which `always` is true, in their order."""
    drawn = set(random.Random(seed).sample(range(len(of)), min(most, len(of))))
    return [one for number, one in enumerate(of) if number in drawn or always(one)]
