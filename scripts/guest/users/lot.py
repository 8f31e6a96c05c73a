# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Of many tests, some: the same each time."""
import random


def draw(of, most, seed, always=lambda _: False):
    """At most so many, drawn by the seed and in their order, and those that are `always` among them."""
    drawn = set(random.Random(seed).sample(range(len(of)), min(most, len(of))))
    return [one for number, one in enumerate(of) if number in drawn or always(one)]
