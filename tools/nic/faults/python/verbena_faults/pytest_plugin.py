# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Fixtures for pytest (Documentation/pytest.md).

`verbena` is the NIC at $VERBENA_CONTROL, without rules before and after the test. `pair` is two connected queue
pairs, and `qp` is a queue pair that is connected to itself. If a test with one of these fixtures fails, its report
shows the errors of the NIC.
"""
from __future__ import annotations

import os
import re
from typing import Any, Iterator

import pytest

from . import failure
from .door import NoNic, Refused
from .nic import Nic

ENTRIES = 16384
_SINCE = pytest.StashKey[int]()


def pytest_addoption(parser: Any) -> None:
    """Adds the options of the command line and of the configuration."""
    group = parser.getgroup("verbena", "a Verbena NIC")
    required = "tests that need a NIC fail, instead of being skipped, if VERBENA_CONTROL is not set"
    group.addoption("--verbena-required", action="store_true", help=required)
    group.addoption("--verbena-capture", metavar="DIR", help="captures the packets of the NIC in each test, as DIR/FILE_TEST.pcapng")
    parser.addini("verbena_required", f"{required}, as --verbena-required", type="bool", default=False)


def _nic(config: Any) -> Nic:
    try:
        return Nic()
    except NoNic as why:
        if config.getoption("--verbena-required") or config.getini("verbena_required"):
            pytest.fail(f"--verbena-required needs a NIC, and there is none: {why}", pytrace=False)
        pytest.skip(f"{why} (--verbena-required makes this an error)")


@pytest.fixture
def verbena(request: pytest.FixtureRequest) -> Iterator[Nic]:
    """The NIC at $VERBENA_CONTROL."""
    nic = _nic(request.config)
    try:
        nic.clear()
        # The report of a failed test needs the flight recorder.
        recorder = nic.ask("recorder")
        if recorder["entries"] == 0:
            recorder = nic.ask("record", entries=ENTRIES)
        request.node.stash[_SINCE] = recorder["total"]
        directory = request.config.getoption("--verbena-capture")
        if directory:
            os.makedirs(directory, exist_ok=True)
            name = re.sub(r"[^\w.-]+", "_", request.node.nodeid)
            nic.capture_until_another(os.path.join(directory, f"{name}.pcapng"))
    except (NoNic, Refused) as why:
        pytest.fail(str(why), pytrace=False)
    try:
        yield nic
    finally:
        nic.end_capture()
        nic.clear()


def queue_pairs(is_loop: bool) -> Any:
    """Returns queue pairs like those of the fixtures `pair` and `qp`. The caller closes them."""
    if "VERBENA_SHARED" in os.environ:
        from .remote import RemotePair

        return RemotePair(os.environ["VERBENA_SHARED"], is_loop)
    try:
        from .queue_pairs import NoDevice, Pair
    except ImportError as error:
        text = "queue pairs need pyverbs (Debian's python3-pyverbs), which is missing here: run pytest in the guest, or let the guest"
        pytest.fail(f"{text} create them (Documentation/pytest.md, \"On the host\"). {error}", pytrace=False)
    try:
        return Pair(is_loop)
    except NoDevice as why:
        pytest.fail(str(why), pytrace=False)


def lent(is_loop: bool) -> Iterator[Any]:
    """Yields queue pairs for one test, and closes them after it."""
    made = queue_pairs(is_loop)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pair(verbena: Nic) -> Iterator[Any]:
    """Two connected queue pairs: a `queue_pairs.Pair`."""
    yield from lent(is_loop=False)


@pytest.fixture
def qp(verbena: Nic) -> Iterator[Any]:
    """A queue pair that is connected to itself: a `queue_pairs.Pair` with the same queue pair at both ends."""
    yield from lent(is_loop=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds the sections of `failure` to the report of a failed test, before its queue pairs are closed."""
    outcome: Any = yield
    report = outcome.get_result()
    used = getattr(item, "funcargs", {})
    nic = used.get("verbena")
    if call.when != "call" or not report.failed or not isinstance(nic, Nic):
        return
    made = [used[name] for name in ("pair", "qp") if name in used]
    qpns = dict.fromkeys(qpn for one in made for qpn in (one.qpn, one.peer_qpn))
    try:
        nic.end_capture()
        report.sections.extend(failure.sections(nic, qpns, item.stash.get(_SINCE, 0)))
    except (NoNic, Refused) as why:
        report.sections.append(("verbena", f"the NIC does not report its errors: {why}"))
