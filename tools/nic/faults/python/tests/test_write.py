# SPDX-License-Identifier: GPL-2.0 OR MIT
def test_a_lost_packet_is_sent_again(verbena, pair):
    first = {"qp": pair.qpn, "opcode": "RDMA WRITE", "limit": 1}
    with verbena.fault("drop", first):
        pair.write(b"some bytes")
    assert pair.written() == b"some bytes"
