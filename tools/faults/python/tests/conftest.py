# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The fixture `pair`: two connected queue pairs, of this guest or, if $VERBENA_SHARED names a directory, of the guest that serves there."""
import os

import pytest


@pytest.fixture
def pair():
    if "VERBENA_SHARED" in os.environ:
        from remote import RemotePair

        pair = RemotePair(os.environ["VERBENA_SHARED"])
    else:
        from rdma_pair import Pair

        pair = Pair()
    try:
        yield pair
    finally:
        pair.close()
