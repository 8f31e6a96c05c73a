#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Transfers memory by a transfer engine of inference servers. usage: engines.py mooncake|nixl serve ADDRESS PORT
       engines.py mooncake|nixl write|read ADDRESS SERVER PORT

Each end registers BYTES of memory. On request over TCP, the server sends the address of its memory, fills it, or sends its SHA-256. The client
writes its memory there or reads from there, ROUNDS times with different bytes, and compares. It prints the bytes per second.
"""
import ctypes
import hashlib
import json
import os
import random
import socket
import sys
import time

BYTES, ROUNDS = 8 << 20, 4


class Mooncake:
    def __init__(self, address, memory):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        check(self.engine.initialize(f"{address}:0", "P2PHANDSHAKE", "rdma", os.environ["DEVICE"]) == 0, "initialize")
        check(self.engine.register_memory(memory, BYTES) == 0, "register_memory")
        self.memory = memory
        self.where = {"segment": f"{address}:{self.engine.get_rpc_port()}", "memory": memory}

    def move(self, how, there):
        move = self.engine.transfer_sync_write if how == "write" else self.engine.transfer_sync_read
        check(move(there["segment"], self.memory, there["memory"], BYTES) == 0, how)


class Nixl:
    def __init__(self, address, memory):
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(f"{address} {random.random()}", nixl_agent_config(backends=["UCX"]))
        self.registered = self.agent.register_memory([(memory, BYTES, 0, "")], "DRAM")
        self.memory, self.peer = memory, None
        self.where = {"agent": self.agent.get_agent_metadata().hex(), "memory": memory}

    def move(self, how, there):
        self.peer = self.peer or self.agent.add_remote_agent(bytes.fromhex(there["agent"]))
        here, there = (self.agent.get_xfer_descs([(at, BYTES, 0)], "DRAM") for at in (self.memory, there["memory"]))
        handle = self.agent.initialize_xfer(how.upper(), here, there, self.peer)
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        check(state == "DONE", f"{how}: {state}")
        self.agent.release_xfer_handle(handle)


def check(right, what):
    if not right:
        sys.exit(f"{what}: not done")


def filled(memory, seed):
    """Fills the memory with random bytes of a seed. Returns their SHA-256."""
    data = random.Random(seed).randbytes(BYTES)
    ctypes.memmove(memory, data, BYTES)
    return hashlib.sha256(data).hexdigest()


def summed(memory):
    return hashlib.sha256(ctypes.string_at(memory, BYTES)).hexdigest()


def serve(engine, memory, address, port):
    listening = socket.create_server((address, port))
    while True:
        connection, _ = listening.accept()
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                asked = json.loads(line)
                answer = engine.where if "where" in asked else filled(memory, asked["fill"]) if "fill" in asked else summed(memory)
                lines.write(json.dumps(answer) + "\n")
                lines.flush()


def client(engine, memory, how, server, port):
    with socket.create_connection((server, port)) as connection, connection.makefile("rw") as lines:

        def ask(**what):
            lines.write(json.dumps(what) + "\n")
            lines.flush()
            return json.loads(lines.readline())

        there, busy = ask(where=True), 0
        for seed in range(ROUNDS):
            wanted = filled(memory, seed) if how == "write" else ask(fill=seed)
            began = time.monotonic()
            engine.move(how, there)
            busy += time.monotonic() - began
            check((ask(sum=True) if how == "write" else summed(memory)) == wanted, f"{how}: other bytes")
        print(f"right, {ROUNDS * BYTES / busy:.0f} bytes/s", flush=True)


def main():
    name, how, address, *rest = sys.argv[1:]
    space = ctypes.create_string_buffer(BYTES + 4096)
    memory = ctypes.addressof(space) + 4095 & ~4095
    engine = {"mooncake": Mooncake, "nixl": Nixl}[name](address, memory)
    if how == "serve":
        serve(engine, memory, address, int(rest[0]))
    client(engine, memory, how, rest[0], int(rest[1]))


if __name__ == "__main__":
    main()
