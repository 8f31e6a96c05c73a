# SPDX-License-Identifier: GPL-2.0 OR MIT
"""librpma: its examples, each a server with its clients, over ordinary memory. An example exits with 0 if all of its calls succeeded."""
from row import Row, suite

# By directory: the arguments of each client after address and port; the arguments of the server.
CLIENTS = {
    "01-connection": [""],
    "02-read-to-volatile": [""],
    "03-read-to-persistent": [""],
    "04-write-to-persistent": [""],
    "05-flush-to-persistent": [""],
    "06-multiple-connections": ["8", "9", "11", "12"],
    "06scch-multiple-connections": ["8", "9", "11", "12"],
    "07-atomic-write": ["first second third"],
    "08-messages-ping-pong": ["7 3"],
    "08srq-simple-messages-ping-pong-with-srq": ["7 3"],
    "09-flush-to-persistent-GPSPM": [""],
    "09scch-flush-to-persistent-GPSPM": [""],
    "10-send-with-imm": ["1234 word"],
    "11-write-with-imm": ["1234"],
    "12-receive-completion-queue": ["7 3"],
    "12scch-receive-completion-queue": ["7 3"],
    "13-messages-ping-pong-with-srq": ["1 3", "5 3", "10 3"],
}
SERVER = {"13-messages-ping-pong-with-srq": "3"}
# Clients of these run at the same time; the server's argument is their number.
TOGETHER = "13"
# Servers of these continue after a client has ended.
ENDLESS = ("06", "13")


def example(place, name):
    path = f"{suite('rpma')}/{name}"
    server = f"{path}/server $ADDRESS PORT {SERVER.get(name, '')}"
    clients = [f"{path}/client $SERVER PORT {arguments}" for arguments in CLIENTS[name]]
    if name.startswith(TOGETHER):
        client = " & ".join(clients) + " & rc=0; for p in $(jobs -p); do wait $p || rc=1; done; exit $rc"
    else:
        client = " && ".join(clients)
    (place.served if name.startswith(ENDLESS) else place.both)(server, client)


def rows():
    return [Row(f"rpma/{name}", "librpma", "rpma", lambda p, n=name: example(p, n)) for name in CLIENTS]
