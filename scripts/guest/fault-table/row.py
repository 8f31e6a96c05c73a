# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A row of the table: a status or an event, how it is caused, and the report that a program must get."""
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
# Seconds without further events, after which all events count as received.
QUIET = 0.5
RECORDED = 65536


def named(prefix):
    return {getattr(e, name): name for name in dir(e) if name.startswith(prefix)}


# Names by the numbers of libibverbs, as C spells them.
EVENTS = named("IBV_EVENT_")
# Flags of completions have the same prefix. The second part overrides those whose number is that of a status.
STATUSES = named("IBV_WC_") | {getattr(e, name): name for name in dir(e) if re.fullmatch("IBV_WC_(SUCCESS|[A-Z_]+_ERR)", name)}
STATES = {number: name.removeprefix("IBV_QPS_") for number, name in named("IBV_QPS_").items()}


class Row(NamedTuple):
    of: str  # status or event
    door: str  # cause: rules, or the door or the net device in words
    program: str  # program that gets the report
    wanted: dict  # status, vendor_err (of the completion), state (of the queue pair), event (all events), peer_... (of the other end)
    run: Callable  # returns the same fields as found

    @property
    def name(self):
        """The name of the row, with the action of the first rule, if there is one."""
        action = re.match(r"\{?(\w+)(?:: .*)? of ", self.door)
        return "/".join([self.of, self.program.split()[0].rstrip(":"), *(action.groups() if action else ())])


def said(rules):
    """Formats rules in short."""
    return "; ".join(f"{json.dumps(action)} of {json.dumps(match)}" for action, match in rules).replace('"', "")


# The output of `verbenactl fault summary` at the end of the last `applied`: seed, rules as the NIC has them, how often each fired.
summaries = []


@contextlib.contextmanager
def applied(rules, seed=0):
    """Adds rules for a block; each must fire in it. Their names are 1, 2, and so on."""
    with contextlib.ExitStack() as stack:
        for n, (action, match) in enumerate(rules, 1):
            stack.enter_context(nic.fault(action, match, name=str(n), seed=seed))
        status = 0
        try:
            yield
        finally:
            if rules:
                status, text = ctl("fault", "summary")
                summaries[:] = [text]
        if status:
            raise faults.Failed(f"verbenactl fault summary: {text}")


def completion(done):
    """Returns the fields that are valid in every completion."""
    return {"status": STATUSES[done.status], "vendor_err": done.vendor_err}


def state(end):
    return STATES[end.qp.query(e.IBV_QP_STATE)[0].qp_state]


def next_completion(end):
    return completion(end.completion(faults.LIMIT))


def wait_for_no_event():
    """Makes get_async_event() fail instead of wait if there is no event. pyverbs does not give access to the descriptor."""
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.islink(path) and "infinibandevent" in os.readlink(path):
            os.set_blocking(int(number), False)


def events(context, at_least=1):
    """Returns all events of a context, sorted. Waits for `at_least` events, and then until no more come."""
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
    """Returns the last state of a queue pair, which may be destroyed, and the cause if it is an error, from the flight recorder."""
    status, text = ctl("why", qpn)
    found = re.search(r" is in (\w+).*?(?: \((0x[0-9a-f]{4})\):|$)", text, re.M)
    if status or not found:
        raise faults.Failed(f"verbenactl why {qpn}: {text}")
    return found[1], int(found[2] or "0", 16)
