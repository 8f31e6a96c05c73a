# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Captures the frames that a NIC sends and receives in a `with` block, as pcapng for Wireshark.

The NIC keeps up to 8192 frames and 16 MiB until the block ends. It drops and counts further frames.
`verbenactl capture` has no such limit.
"""
from __future__ import annotations

import os
import struct
from types import TracebackType
from typing import Iterator, NamedTuple, Optional, Type, Union

from .door import Tied

_WAYS = ("local", "local, lost on purpose", "sent", "received")
# Direction in the flags of a packet: 1 is inbound, 2 is outbound. A frame within the device has
# neither.
_DIRECTIONS = (0, 0, 2, 1)
_NO_QPN = 0xFFFFFFFF


class Frame(NamedTuple):
    """A frame of a capture."""

    way: str
    src_qpn: Optional[int]
    dst_qpn: Optional[int]
    time_ns: int
    data: bytes
    note: Optional[str]
    """The effect of a rule on the frame, or the action of a rule before it."""


class Capture:
    """A capture. At the end of its block, also after an exception, the file is written, `frames` has the captured
    frames, and `dropped` has the number of dropped ones.
    """

    def __init__(self, path: str, file: Union[str, os.PathLike[str]]) -> None:
        self.path, self.file = path, file
        self.frames: list[Frame] = []
        self.dropped = 0
        self.tied: Optional[Tied] = None

    def __enter__(self) -> Capture:
        self.tied = Tied(self.path).begin({"command": "capture-begin"})
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], wrong: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        tied = self.tied
        if not tied:
            return
        try:
            told = tied.ask({"command": "capture-end"})
        finally:
            self.tied = None
            tied.close()
        self._read(bytes.fromhex(told["records"]))
        with open(self.file, "wb") as to:
            # A NIC without InfiniBand ports may name no link layer.
            is_infiniband = told.get("link_layer") == "infiniband"
            for block in _blocks(self.frames, str(told["guest"]), is_infiniband):
                to.write(block)

    def _read(self, records: bytes) -> None:
        """Reads records of the control socket (tools/nic/protocol/src/capture.rs)."""
        at = 0
        while records[at] != 2:
            kind, way, src, dst, length, time = struct.unpack_from("<BBIIIQ", records, at)
            at += 22
            data, note = records[at : at + length], None
            at += length
            if kind == 3:
                (length,) = struct.unpack_from("<H", records, at)
                note = records[at + 2 : at + 2 + length].decode()
                at += 2 + length
            known = [None if qpn == _NO_QPN else qpn for qpn in (src, dst)]
            self.frames.append(Frame(_WAYS[way], known[0], known[1], time, data, note))
        _, self.dropped = struct.unpack_from("<QQ", records, at + 1)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


def _comment(frame: Frame, guest: str) -> str:
    src, dst = ("?" if qpn is None else f"{qpn:#x}" for qpn in (frame.src_qpn, frame.dst_qpn))
    text = f"guest {guest}, QP {src} -> {dst}, {frame.way}"
    return f"{text}, {frame.note}" if frame.note else text


def _erf(time_ns: int, packet: bytes) -> bytes:
    """Returns the ERF record of an InfiniBand packet (tools/nic/capture/src/erf.rs)."""
    seconds, fraction = divmod(time_ns, 10**9)
    stamp = seconds << 32 | -(-(fraction << 32) // 10**9)
    return struct.pack("<QBB", stamp, 21, 4) + struct.pack(">HHH", 16 + len(packet), 0, len(packet)) + packet


def _blocks(frames: list[Frame], guest: str, is_infiniband: bool) -> Iterator[bytes]:
    """Yields a section with one interface, Ethernet or ERF, with times in nanoseconds (pcapng, section 4)."""
    link = 197 if is_infiniband else 1
    yield _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    end = _option(0, b"")
    yield _block(1, struct.pack("<HHI", link, 0, 0) + _option(2, b"verbena") + _option(9, b"\x09") + end)
    for frame in frames:
        high, low = divmod(frame.time_ns, 1 << 32)
        record = _erf(frame.time_ns, frame.data) if is_infiniband else frame.data
        data = record + b"\0" * (-len(record) % 4)
        options = _option(1, _comment(frame, guest).encode())
        direction = _DIRECTIONS[_WAYS.index(frame.way)]
        if direction:
            options += _option(2, struct.pack("<I", direction))
        length = len(record)
        yield _block(6, struct.pack("<IIIII", 0, high, low, length, length) + data + options + end)
