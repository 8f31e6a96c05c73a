# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Tests of the reports of pytest with the plugin: for a test that fails, and without a NIC."""
import os
import re

import pytest
from verbena_faults import NoNic, Nic

pytest_plugins = "pytester"

WANTS_NIC = "def test_it(verbena): pass"


@pytest.fixture
def nowhere(monkeypatch):
    monkeypatch.delenv("VERBENA_CONTROL")


def test_a_failure_shows_the_cause_the_rules_and_the_capture(pytester):
    pytester.makepyfile(
        """
        def test_it(verbena, pair, tmp_path):
            write = {"qp": pair.qpn, "opcode": "RDMA WRITE"}
            with verbena.capture(tmp_path / "seen.pcapng"), verbena.fault("drop", write, name="all lost"):
                pair.write(b"x")
        """
    )
    told = pytester.runpytest().stdout.str()
    assert "completed with IBV_WC_RETRY_EXC_ERR (12), vendor_err 0xc01" in told
    why = told[told.index("- verbena: why -") :]
    assert re.search(r"QP 0x[0-9a-f]+ is in ERR, .*0x0c01", why) and 'rule "all lost" fired 8 times' in why
    assert re.search(r'rule "all lost": drop, matched \d+ times, fired [1-9]\d* times', why)
    (capture,) = re.findall(r"(/\S+/seen.pcapng) \([1-9]\d* frames\)", why)
    assert os.path.getsize(capture) > 0


def test_a_failure_shows_errors_of_destroyed_queue_pairs_but_not_of_earlier_tests(pytester):
    pytester.makepyfile(
        """
        from verbena_faults.pytest_plugin import queue_pairs

        def lose(verbena, name):
            pair = queue_pairs(is_loop=False)
            try:
                with verbena.fault("drop", {"qp": pair.qpn, "opcode": "RDMA WRITE"}, name=name):
                    pair.write(b"x")
            except AssertionError:
                pass
            finally:
                pair.close()

        def test_one(verbena):
            lose(verbena, "lost before")

        def test_two(verbena):
            lose(verbena, "lost now")
            assert False
        """
    )
    told = pytester.runpytest().stdout.str()
    assert 'rule "lost now" fired' in told and "lost before" not in told


def test_a_failure_without_an_error_says_so(pytester):
    pytester.makepyfile("def test_it(qp):\n    qp.write(b'x')\n    assert qp.written() == b'y'")
    told = pytester.runpytest("--verbena-capture", "seen").stdout.str()
    assert re.search(r"there was no error since the test began; QP 0x[0-9a-f]+ is in RTS\n", told)
    assert "the test has added no rule" in told
    assert re.search(r"/seen/\S*test_it.pcapng \(\d+ frames\)", told)


def test_pair_has_two_queue_pairs_and_qp_has_one(pair, qp):
    assert len({pair.qpn, pair.peer_qpn, qp.qpn}) == 3 and qp.qpn == qp.peer_qpn
    for one in pair, qp:
        one.write(b"right" * 1000)
        assert one.written() == b"right" * 1000


def test_without_a_nic_tests_are_skipped_unless_it_is_required(pytester, nowhere):
    pytester.makepyfile(WANTS_NIC)
    skipped = pytester.runpytest("-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["*VERBENA_CONTROL is not set*--verbena-required makes this an error*"])
    required = pytester.runpytest("--verbena-required")
    required.assert_outcomes(errors=1)
    required.stdout.fnmatch_lines(["*--verbena-required needs a NIC, and there is none: VERBENA_CONTROL is not set*"])
    pytester.makeini("[pytest]\nverbena_required = true")
    pytester.runpytest().assert_outcomes(errors=1)


@pytest.mark.parametrize("path, why", [("nowhere", "there is no such file"), ("test_it.py", "neither a socket nor a port")], ids=["nowhere", "file"])
def test_a_missing_nic_is_an_error_with_a_reason(pytester, monkeypatch, path, why):
    pytester.makepyfile(test_it=WANTS_NIC)
    monkeypatch.setenv("VERBENA_CONTROL", path)
    run = pytester.runpytest()
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines([f"*the NIC at {path} (VERBENA_CONTROL) cannot be reached: *{why}*"])


def test_programs_get_the_same_reasons(nowhere):
    with pytest.raises(NoNic, match="VERBENA_CONTROL is not set"):
        Nic()
    with pytest.raises(NoNic, match="no such file"):
        Nic("/nowhere").rules()
