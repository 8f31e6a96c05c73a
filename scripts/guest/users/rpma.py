# SPDX-License-Identifier: GPL-2.0 OR MIT
"""librpma: the examples that come with it, each a server and its clients, over ordinary memory. Each ends with 0 if all of its calls did."""
from row import Row, suite

# By their directories: what each client is told after address and port; what the server is told.
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
# Its clients are there at the same time, so many as the server was told.
TOGETHER = "13"
# Their servers go on when a client has gone.
ENDLESS = ("06", "13")


def example(place, name):
    path = f"{suite('rpma')}/{name}"
    server = f"{path}/server $ADDRESS PORT {SERVER.get(name, '')}"
    clients = [f"{path}/client $SERVER PORT {told}" for told in CLIENTS[name]]
    if name.startswith(TOGETHER):
        client = " & ".join(clients) + " & rc=0; for p in $(jobs -p); do wait $p || rc=1; done; exit $rc"
    else:
        client = " && ".join(clients)
    (place.served if name.startswith(ENDLESS) else place.both)(server, client)


def rows():
    return [Row(f"rpma/{name}", "librpma", "rpma", lambda p, n=name: example(p, n)) for name in CLIENTS]
