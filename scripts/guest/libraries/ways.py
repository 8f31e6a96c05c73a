# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Faults for a library: rules, and what else happens when they fire."""
from typing import NamedTuple

from programs import MIDDLE

# The name of the rule that fires in the middle of the messages.
MOMENT = "moment"
SEED = 1


class Way(NamedTuple):
    name: str
    text: str
    rules: tuple  # (name, action, match); `opcode` None stands for the packets with the program's messages
    kills: bool = False  # the server is killed when the rule fires
    reliable: bool = False  # the fault exists only with reliable connections
    repaired: bool = False  # the device comes back after a while
    report: str = ""  # the status or event that the device always reports


def at(action, **more):
    """Returns a rule for the message in the middle."""
    return (MOMENT, action, {"opcode": None, "nth": MIDDLE, **more})


def while_there(action, **match):
    """Returns a rule for packets from that message on."""
    return ("later", action, {"while": MOMENT, **match})


WAYS = (
    Way("nothing", "nothing", ()),
    Way("loss_1", "1% of all packets is lost", (("loss", "drop", {"probability": 0.01}),)),
    Way("loss_5", "5% of all packets are lost", (("loss", "drop", {"probability": 0.05}),)),
    Way("port_down_3s", "the port carries nothing for 3 s", (at({"port_down_ms": 3000}),)),
    Way("killed", "the server is killed (SIGKILL)", (at({"delay_us": 1}),), kills=True),
    Way("vanishes", "nothing arrives any more", (at("drop"), while_there("drop"))),
    Way("rnr_20", "20 NAKs: receiver not ready", (at({"rnr": 1}, direction="in"), while_there({"rnr": 1}, direction="in", opcode=None, limit=19)), reliable=True),
    Way("rnr_always", "receiver not ready, for ever", (at({"rnr": 1}, direction="in"), while_there({"rnr": 1}, direction="in", opcode=None)), reliable=True),
    Way("nak_access", "NAK: remote access error", (at({"nak": "remote access error"}, direction="in"),), reliable=True, report="IBV_WC_REM_ACCESS_ERR"),
    Way("nak_operation", "NAK: remote operational error", (at({"nak": "remote operational error"}, direction="in"),), reliable=True, report="IBV_WC_REM_OP_ERR"),
    Way("qp_error", "a queue pair is in ERR", (at("qp_error"),), report="IBV_EVENT_QP_FATAL"),
    Way("cq_send", "a send CQ overflows", (at({"cq_overflow": "send"}),), report="IBV_EVENT_CQ_ERR"),
    Way("cq_receive", "a receive CQ overflows", (at({"cq_overflow": "recv"}, direction="in"),)),
    Way("fatal", "the device dies", (at("fatal"),), repaired=True, report="IBV_EVENT_DEVICE_FATAL"),
)


def rules(way, program):
    """Returns the rules in the form of fault injection, for this program."""
    found = []
    for name, action, match in way.rules:
        match = {key: list(program.data) if key == "opcode" else value for key, value in match.items()}
        found.append({"name": name, "action": action, "match": match, "optional": name != MOMENT})
    return found
