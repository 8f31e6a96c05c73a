# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Tests in Python, with the fixtures of the package verbena_faults, which every guest has."""
import os


def test_a_lost_packet_is_sent_again(verbena, pair):
    first = {"qp": pair.qpn, "opcode": "RDMA WRITE", "limit": 1}
    with verbena.fault("drop", first):
        pair.write(b"some bytes")
    assert pair.written() == b"some bytes"


def test_it_works_when_all_packets_are_lost(verbena, pair):
    """Fails if BROKEN is set: a picture of a failure in CI."""
    if os.environ.get("BROKEN"):
        with verbena.fault("drop", name="all lost"):
            pair.write(b"some bytes")
    else:
        pair.write(b"some bytes")
    assert pair.written() == b"some bytes"
