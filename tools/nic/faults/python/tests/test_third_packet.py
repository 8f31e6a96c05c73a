# SPDX-License-Identifier: GPL-2.0 OR MIT
import os


def test_third_packet_is_lost(verbena, pair, tmp_path):
    data = os.urandom(16384)
    third = {"qp": pair.qpn, "opcode": "RDMA WRITE", "packet_of_message": 3, "limit": 1}
    with verbena.capture(tmp_path / "lost.pcapng"), verbena.fault("drop", third) as fault:
        pair.write(data)
    assert fault.fired == 1                               # it was lost,
    assert verbena.counters(pair.qpn)["retransmits"] > 0  # sent again,
    assert pair.written() == data                         # and is right
