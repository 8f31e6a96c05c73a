# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The fixture `verbena` for pytest: the NIC at $VERBENA_CONTROL, without rules before the test and after it."""
import os
from typing import Iterator

import pytest

from .nic import Nic


@pytest.fixture
def verbena() -> Iterator[Nic]:
    """The NIC."""
    if "VERBENA_CONTROL" not in os.environ:
        pytest.skip("VERBENA_CONTROL does not say where the NIC is")
    nic = Nic()
    nic.clear()
    try:
        yield nic
    finally:
        nic.clear()
