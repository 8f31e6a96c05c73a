# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a row of the table is: a status or an event, how it is provoked, and what a program has to be told then."""
import contextlib
import json
import os
import re
import time
from typing import Callable, NamedTuple

import pyverbs.enums as e

from agent import script

faults = script("faults")
ctl, nic = faults.ctl, faults.nic
# So long nothing more may come.
QUIET = 0.5
RECORDED = 65536


def named(prefix):
    return {getattr(e, name): name for name in dir(e) if name.startswith(prefix)}


# By the numbers of libibverbs, in the spelling of C.
EVENTS = named("IBV_EVENT_")
# Flags of completions have the same prefix, and no status is their number.
STATUSES = named("IBV_WC_") | {getattr(e, name): name for name in dir(e) if re.fullmatch("IBV_WC_(SUCCESS|[A-Z_]+_ERR)", name)}
STATES = {number: name.removeprefix("IBV_QPS_") for number, name in named("IBV_QPS_").items()}


class Row(NamedTuple):
    of: str  # the status or the event
    door: str  # what provokes it: rules as JSON, or the door or net device in words
    program: str  # who is told
    wanted: dict  # status, vendor_err (of the completion), state (of the queue pair), event (all that came), peer_... (of the other end)
    run: Callable  # the same, as it was found

    @property
    def name(self):
        """With the first rule's action, if there is one."""
        action = re.match(r"\{?(\w+)(?:: .*)? of ", self.door)
        return "/".join([self.of, self.program.split()[0].rstrip(":"), *(action.groups() if action else ())])


def said(rules):
    """Rules in short."""
    return "; ".join(f"{json.dumps(action)} of {json.dumps(match)}" for action, match in rules).replace('"', "")


# What `verbenactl fault summary` said at the end of the last block: seed, rules as the NIC has them, how often each fired.
summaries = []


@contextlib.contextmanager
def applied(rules, seed=0):
    """Rules for a block, of which each has to fire. The first is called 1, and so on."""
    with contextlib.ExitStack() as stack:
        for n, (action, match) in enumerate(rules, 1):
            stack.enter_context(nic.fault(action, match, name=str(n), seed=seed))
        status = 0
        try:
            yield
        finally:
            if rules:
                status, told = ctl("fault", "summary")
                summaries[:] = [told]
        if status:
            raise faults.Failed(f"verbenactl fault summary: {told}")


def completion(done):
    """What is valid of a completion in error, and of others."""
    return {"status": STATUSES[done.status], "vendor_err": done.vendor_err}


def state(end):
    return STATES[end.qp.query(e.IBV_QP_STATE)[0].qp_state]


def next_completion(end):
    return completion(end.completion(faults.LIMIT))


def wait_for_no_event():
    """Who asks for an asynchronous event when there is none is told so: pyverbs has no door to the descriptors."""
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.islink(path) and "infinibandevent" in os.readlink(path):
            os.set_blocking(int(number), False)


def events(context, at_least=1):
    """All events of a context, sorted: so many at least, and then until there are no more."""
    wait_for_no_event()
    found, deadline = [], time.monotonic() + 20 * faults.SLOW
    while time.monotonic() < deadline:
        try:
            event = context.get_async_event()
        except Exception:  # none yet
            if len(found) >= at_least and at_least:
                at_least, deadline = 0, time.monotonic() + QUIET * faults.SLOW
            time.sleep(0.01)
            continue
        found.append(EVENTS[event.event_type])
        event.ack()
    return sorted(found)


def recorded(qpn):
    """The last state of a queue pair, which may be gone, and the cause if it is an error, as the flight recorder has them."""
    status, told = ctl("why", qpn)
    found = re.search(r" is in (\w+).*?(?: \((0x[0-9a-f]{4})\):|$)", told, re.M)
    if status or not found:
        raise faults.Failed(f"verbenactl why {qpn}: {told}")
    return found[1], int(found[2] or "0", 16)
