# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Rules of what is to go wrong in a Verbena NIC (Documentation/faults.md), for Python programs and tests.

    nic = Nic()
    with nic.fault("drop", match={"opcode": "RDMA WRITE", "packet_of_message": 3, "limit": 1}) as fault:
        ...

A rule that has not fired when its block ends raises `NeverFired`, unless it is optional.
`Nic()` asks the NIC at $VERBENA_CONTROL: its control socket, or inside a guest the port that leads there. A rule goes when its
`with` block ends; on the host also when the program ends in any other way. `queue_pairs` has queue pairs for tests, `pytest_plugin`
fixtures for pytest (Documentation/pytest.md).
"""
from .capture import Capture
from .door import NoNic, Refused
from .nic import Action, Fault, NeverFired, Nic, VERSION

__all__ = ["Action", "Capture", "Fault", "NeverFired", "NoNic", "Nic", "Refused", "VERSION"]
