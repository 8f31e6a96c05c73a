# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Tests of the package: the end of rules, refused rules, and captures."""
import os

import pytest
from verbena_faults import NeverFired, Nic, Refused
from verbena_faults.capture import Frame, _blocks

WRITE = {"opcode": "RDMA WRITE"}


def test_a_rule_is_removed_at_the_end_of_its_block(verbena, pair):
    with verbena.fault("drop", {**WRITE, "limit": 1}, name="x", optional=True):
        assert [rule["name"] for rule in verbena.rules()] == ["x"]
    assert verbena.rules() == []
    with pytest.raises(ZeroDivisionError), verbena.fault("drop", {**WRITE, "limit": 1}):
        raise ZeroDivisionError
    assert verbena.rules() == []
    pair.write(b"right" * 1000)
    assert pair.written() == b"right" * 1000


def test_a_rule_that_never_fires_fails_unless_it_is_optional(verbena, pair):
    with pytest.raises(NeverFired, match="matched 0 times"), verbena.fault("drop", {"opcode": "CmpSwap"}):
        pair.write(b"x")
    with verbena.fault("drop", {"opcode": "CmpSwap"}, optional=True) as fault:
        pair.write(b"x")
    assert (fault.matched, fault.fired) == (0, 0)
    # Another exception takes precedence over NeverFired.
    with pytest.raises(KeyError), verbena.fault("drop", {"opcode": "CmpSwap"}):
        raise KeyError


def test_an_invalid_rule_is_refused_and_leaves_no_rule(verbena):
    for rule in ({"nth": 0}, {"qp": 1 << 24}, {"on": "nothing"}, {"nht": 1}):
        with pytest.raises(Refused), verbena.fault("drop", rule):
            pytest.fail("the rule was added")
    with verbena.fault("drop", WRITE, name="x", optional=True):
        with pytest.raises(Refused, match="already"), verbena.fault("drop", WRITE, name="x"):
            pytest.fail("the rule was added twice")
        assert len(verbena.rules()) == 1
    assert verbena.rules() == []
    with pytest.raises(Refused):
        verbena.ask("nonsense")


def test_a_capture_has_each_frame_and_the_effects_of_rules(verbena, pair, tmp_path):
    with verbena.capture(tmp_path / "a.pcapng") as capture:
        with verbena.fault("drop", {**WRITE, "qp": pair.qpn, "packet_of_message": 2, "limit": 1}, name="second"):
            pair.write(b"right" * 1000)
    assert capture.dropped == 0
    lost = [frame for frame in capture.frames if frame.note]
    assert [frame.note for frame in lost] == ['rule "second": drop']
    psn = lambda frame: frame.data[42 + 9 : 42 + 12]
    sent = [psn(frame) for frame in capture.frames if frame.src_qpn == pair.qpn]
    assert sent.count(psn(lost[0])) >= 2 and len(set(sent)) == 5
    file = (tmp_path / "a.pcapng").read_bytes()
    assert file[:4] == b"\x0a\x0d\x0d\x0a" and b'rule "second": drop' in file
    # The next capture begins empty, and its file is written although the block fails.
    with pytest.raises(ZeroDivisionError), verbena.capture(tmp_path / "b.pcapng"):
        raise ZeroDivisionError
    assert os.path.getsize(tmp_path / "b.pcapng") < len(file)
    with pytest.raises(Refused, match="no capture was begun"):
        verbena.ask("capture-end")


def test_a_packet_of_an_infiniband_port_becomes_an_erf_record():
    # The header of packet 11 of Wireshark's sample capture `infiniband.pcap`, without the padding of its record.
    time_ns = 0x482B41F8 * 10**9 + 180740565
    frame = Frame("sent", 16, None, time_ns, b"\7" * 30, None)
    _, interface, packet = _blocks([frame], "x", True)
    assert interface[8:10] == b"\xc5\0"
    record = packet[28 : 28 + 46]
    assert record[4:10] == bytes([0xF8, 0x41, 0x2B, 0x48, 21, 4])
    assert record[10:] == bytes([0, 46, 0, 0, 0, 30]) + b"\7" * 30


def test_a_rule_is_left_to_the_fixture(verbena):
    assert verbena.rules() == []
    verbena.add({"name": "left", "action": "drop", "match": {"opcode": "CmpSwap"}})


def test_the_fixture_has_removed_the_rule():
    assert Nic().rules() == []
