# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Fault rules for a Verbena NIC (Documentation/faults.md), for Python programs and tests.

    nic = Nic()
    with nic.fault("drop", match={"opcode": "RDMA WRITE", "packet_of_message": 3, "limit": 1}) as fault:
        ...

A rule that has not fired at the end of its block raises `NeverFired`, unless the rule is optional.
`Nic()` connects to the NIC at $VERBENA_CONTROL: the control socket of the NIC, or inside a guest the port
that leads to the NIC. The NIC removes a rule at the end of its `with` block, and on the host also when the
program ends in any other way. `queue_pairs` has queue pairs for tests, and `pytest_plugin` has fixtures for
pytest (Documentation/pytest.md).
"""
from .capture import Capture
from .door import NoNic, Refused
from .nic import Action, Fault, NeverFired, Nic, VERSION

__all__ = ["Action", "Capture", "Fault", "NeverFired", "NoNic", "Nic", "Refused", "VERSION"]
