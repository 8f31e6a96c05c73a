# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A mirror that breaks off: relays the files of another server, and closes the connection in the middle of a chosen one.

usage: mirror.py UPSTREAM PORT-FILE BREAKS

Listens on 127.0.0.1, at a port that it writes to PORT-FILE. While the file BREAKS exists, its first line is a regular expression. A
request with a matching path gets half of the bytes; then the connection is closed, and every further connection is closed without an
answer until BREAKS changes, as if the network had failed. Runs until it is killed.
"""
import http.server
import os
import re
import shutil
import socketserver
import sys
import urllib.error
import urllib.request

upstream, port_file, breaks = sys.argv[1].rstrip("/"), sys.argv[2], sys.argv[3]
HEADERS = ("Content-Length", "Content-Range", "Last-Modified", "Content-Type")
cut = [None]  # the expression that has broken off a transfer


def rule():
    """Returns the expression in BREAKS, or None."""
    try:
        with open(breaks, encoding="utf-8") as file:
            return file.readline().strip() or None
    except FileNotFoundError:
        return None


class Relay(http.server.BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802 - the name is the library's
        """Relays a file, or half of it."""
        now = rule()
        if now is not None and cut[0] == now:
            self.close_connection = True
            return
        request = urllib.request.Request(upstream + self.path)
        for name in ("If-Modified-Since", "Range"):
            if name in self.headers:
                request.add_header(name, self.headers[name])
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            self.send_response(error.code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        except OSError as error:
            print(f"{self.path}: {error}", file=sys.stderr)
            self.close_connection = True
            return
        with answer:
            self.send_response(answer.status)
            for name in HEADERS:
                if answer.headers[name]:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            if now is None or not re.search(now, self.path):
                shutil.copyfileobj(answer, self.wfile, 1 << 20)
                return
            half = int(answer.headers["Content-Length"]) // 2
            self.wfile.write(answer.read(half))
            self.close_connection = True
            cut[0] = now
            print(f"cut in the middle of {self.path}", file=sys.stderr)

    def log_message(self, *_args):
        """Logs nothing about successful requests."""


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Serves several connections at the same time, because apt opens several."""

    daemon_threads = True


server = Server(("127.0.0.1", 0), Relay)
with open(port_file + ".new", "w", encoding="utf-8") as file:
    file.write(str(server.server_port))
os.rename(port_file + ".new", port_file)
server.serve_forever()
