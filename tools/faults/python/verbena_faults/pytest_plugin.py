# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Fixtures for pytest (Documentation/pytest.md): `verbena`, the NIC at $VERBENA_CONTROL, without rules before the test and after it;
`pair`, two queue pairs that are connected; `qp`, one that is connected to itself. A test that has one of them and fails tells why.
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
    """What a command line or a configuration can ask for."""
    group = parser.getgroup("verbena", "a Verbena NIC")
    required = "tests that want a NIC fail where there is none, instead of being skipped (VERBENA_CONTROL is not set)"
    group.addoption("--verbena-required", action="store_true", help=required)
    group.addoption("--verbena-capture", metavar="DIR", help="what the NIC sends and receives in each test, as DIR/TEST.pcapng")
    parser.addini("verbena_required", f"{required}, as --verbena-required", type="bool", default=False)


def _nic(config: Any) -> Nic:
    try:
        return Nic()
    except NoNic as why:
        if config.getoption("--verbena-required") or config.getini("verbena_required"):
            pytest.fail(f"there is no NIC, and --verbena-required wants one: {why}", pytrace=False)
        pytest.skip(f"{why} (--verbena-required makes this an error)")


@pytest.fixture
def verbena(request: pytest.FixtureRequest) -> Iterator[Nic]:
    """The NIC."""
    nic = _nic(request.config)
    try:
        nic.clear()
        # What went wrong, the flight recorder knows.
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
    """As the fixtures `pair` and `qp` have them; whoever asks for them closes them."""
    if "VERBENA_SHARED" in os.environ:
        from .remote import RemotePair

        return RemotePair(os.environ["VERBENA_SHARED"], is_loop)
    try:
        from .queue_pairs import NoDevice, Pair
    except ImportError as error:
        text = "queue pairs are made with pyverbs (Debian's python3-pyverbs), which is missing here: run pytest in the guest, or have the guest"
        pytest.fail(f"{text} make them (Documentation/pytest.md, \"On the host\"). {error}", pytrace=False)
    try:
        return Pair(is_loop)
    except NoDevice as why:
        pytest.fail(str(why), pytrace=False)


def lent(is_loop: bool) -> Iterator[Any]:
    """The queue pairs of one test, which are closed when it ends."""
    made = queue_pairs(is_loop)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pair(verbena: Nic) -> Iterator[Any]:
    """Two queue pairs that are connected: `queue_pairs.Pair`."""
    yield from lent(is_loop=False)


@pytest.fixture
def qp(verbena: Nic) -> Iterator[Any]:
    """One queue pair that is connected to itself: `queue_pairs.Pair`, both of whose ends are the same."""
    yield from lent(is_loop=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds what the NIC knows to the report of a test that has failed, while its queue pairs are still there."""
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
        report.sections.append(("verbena", f"the NIC cannot be asked what happened: {why}"))
