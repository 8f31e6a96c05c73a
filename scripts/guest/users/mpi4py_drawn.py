# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs a random selection of mpi4py's tests, drawn with a seed, which must be the same on each rank. The first rank prints it.

usage: mpi4py_drawn.py MOST SEED MAIN [ARGUMENT...]     MAIN is test/main.py of mpi4py
"""
import os
import runpy
import sys
import unittest

import lot


def each(suite):
    for test in suite:
        yield from each(test) if isinstance(test, unittest.TestSuite) else [test]


def draw(most, seed):
    whole = unittest.TestLoader.discover

    def discover(self, *how):
        tests = list(each(whole(self, *how)))
        # A module that could not be loaded is a failing test, which is never left out.
        tests = lot.draw(tests, most, seed, always=lambda t: isinstance(t, unittest.loader._FailedTest))
        if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
            print(*(f"drawn: {t.id()}" for t in tests), sep="\n", flush=True)
        return unittest.TestSuite(tests)

    unittest.TestLoader.discover = discover


if __name__ == "__main__":
    most, seed, main, *_ = sys.argv[1:]
    draw(int(most), int(seed))
    sys.argv = sys.argv[3:]
    sys.path.insert(0, os.path.dirname(main))
    runpy.run_path(main, run_name="__main__")
