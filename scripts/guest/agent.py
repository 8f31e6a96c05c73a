# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: an agent that starts programs for another guest (`Agent`), and its client (`Peer`)."""
import concurrent.futures
import os
import socket
import subprocess
import sys
import threading
import time
import xmlrpc.client
import xmlrpc.server
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import perftest

# If a guest runs several agents, each has its own port: `all-to-all` sets this.
PORT = 7470


def script(name):
    """Loads another script of this directory as a module."""
    spec = spec_from_loader(name, SourceFileLoader(name, f"{os.path.dirname(__file__)}/{name}"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Agent:
    """The methods that the other guest may call: programs by number. `serve` may register another object."""

    def __init__(self):
        self.processes = []
        # Output is read all the time, because a full pipe would stop the program.
        self.written = concurrent.futures.ThreadPoolExecutor(max_workers=1000)
        self.outputs = []

    def address(self):
        return os.environ["ADDRESS"]

    def listening(self, port, tcp=False):
        return perftest.listening_here(port, tcp)

    def start(self, command):
        process = perftest.start(*command)
        self.processes.append(process)
        self.outputs.append(self.written.submit(process.stdout.read))
        return len(self.processes) - 1

    def poll(self, number):
        """Returns the exit status of a program, or None while it runs."""
        return self.processes[number].poll()

    def output(self, number):
        """Returns the output of a program, after waiting for its end."""
        return self.outputs[number].result()

    def kill(self, number):
        self.processes[number].kill()
        return self.processes[number].wait()


def until_alone():
    """Ends the agent when vm1 has ended."""
    while not os.path.exists("/run/together/ended.vm1"):
        time.sleep(0.2)
    os._exit(0)


def serve(more=None):
    """Serves until vm1 has ended."""
    threading.Thread(target=until_alone, daemon=True).start()
    server = xmlrpc.server.SimpleXMLRPCServer(("", PORT), allow_none=True, logRequests=False)
    server.register_instance(more or Agent())
    server.serve_forever()


class Remote:
    """A program in the other guest, with the part of Popen's interface that `perftest` uses."""

    def __init__(self, agent, command):
        self.agent, self.args, self.stdout = agent, command, self
        self.number = agent.start([str(c) for c in command])
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            self.returncode = self.agent.poll(self.number)
        return self.returncode

    def read(self):
        return self.agent.output(self.number)

    def communicate(self, timeout=None):
        deadline = time.monotonic() + (timeout or 60)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.05)
        return self.read(), None

    def kill(self):
        self.returncode = self.agent.kill(self.number)


class Peer:
    """The agent of a guest; the constructor waits until it answers."""

    def __init__(self, name, patience=300):
        self.agent = xmlrpc.client.ServerProxy(f"http://{name}:{PORT}", allow_none=True)
        deadline = time.monotonic() + patience * perftest.SLOW
        while True:
            try:
                self.address = self.agent.address()
                return
            except (OSError, socket.gaierror) as e:
                if time.monotonic() > deadline:
                    raise perftest.Failed(f"no agent at {name}: {e}") from None
                time.sleep(0.2)

    def start(self, *command):
        return Remote(self.agent, command)

    def listening(self, port, tcp=False):
        return self.agent.listening(port, tcp)


if __name__ == "__main__":
    sys.exit(serve())
