# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: sockets of RDS, whose addresses Python's socket module does not support. For `infiniband-consumers`."""
import ctypes
import errno
import os
import socket
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
# include/uapi/linux/rds.h
SO_RDS_TRANSPORT, RDS_TRANS_IB = 8, 0
# include/uapi/asm-generic/socket.h
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
BUFFER = 8 << 20


def packed(address):
    """Returns a struct sockaddr_in."""
    host, port = address
    return struct.pack("=H2s4s8x", socket.AF_INET, struct.pack("!H", port), socket.inet_aton(host))


class Rds:
    """A socket of RDS over InfiniBand. Messages between two sockets arrive once and in order."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
        self.socket.setsockopt(socket.SOL_RDS, SO_RDS_TRANSPORT, RDS_TRANS_IB)
        for option in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            self.socket.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        # A call that waits returns after one second.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 1, 0))
        self.room = ctypes.create_string_buffer(1 << 20)
        self.source = ctypes.create_string_buffer(16)
        self._call(LIBC.bind, packed(address), 16)

    def _call(self, function, *arguments):
        done = function(self.socket.fileno(), *arguments)
        if done < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return done

    def _waits(self, function, *arguments):
        """Calls a function that may wait. Returns None if it has waited in vain."""
        try:
            return self._call(function, *arguments)
        except OSError as e:
            if e.errno in (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
                return None
            raise

    def send(self, message, to):
        """Sends a message to a packed address. Returns false if there was no room within a second."""
        return self._waits(LIBC.sendto, message, len(message), 0, to, 16) is not None

    def receive(self):
        """Returns the next message and its packed source, or None if no message came within a second."""
        length = ctypes.c_uint(16)
        count = self._waits(LIBC.recvfrom, self.room, len(self.room), 0, self.source, ctypes.byref(length))
        return None if count is None else (self.room.raw[:count] if count < len(self.room) else self.room.raw, self.source.raw)

    def close(self):
        self.socket.close()
