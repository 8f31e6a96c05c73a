# SPDX-License-Identifier: GPL-2.0 OR MIT
"""PNG files with at most 256 colours. `smaller(png, keep)` makes a smaller picture of a page, in which the colours of `keep` and the most
frequent colours are unchanged. The other colours, at the edges of letters, are replaced by the nearest of these.
"""
import collections
import struct
import zlib

COLOURS = 256


def chunks(data):
    at = 8
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8:at + 8 + length]
        at += length + 12


def paeth(left, above, corner):
    guess = left + above - corner
    return min((abs(guess - left), 0, left), (abs(guess - above), 1, above), (abs(guess - corner), 2, corner))[2]


def unfiltered(kind, line, above, wide):
    """Returns a line of bytes before its filter was applied; a pixel has `wide` bytes."""
    if kind == 2:
        return bytearray((byte + up) & 255 for byte, up in zip(line, above))
    for n in range(len(line) if kind else 0):
        left, corner = (line[n - wide], above[n - wide]) if n >= wide else (0, 0)
        line[n] = line[n] + (left, 0, (left + above[n]) // 2, paeth(left, above[n], corner))[kind - 1] & 255
    return line


def pixels(png):
    """Returns the width of a browser's picture, and its lines of pixels of three bytes."""
    parts = list(chunks(png))
    width, height, depth, colour = struct.unpack_from(">IIBB", parts[0][1])
    wide = {2: 3, 6: 4}[colour]
    assert depth == 8
    data, size = zlib.decompress(b"".join(part for kind, part in parts if kind == b"IDAT")), width * wide + 1
    lines, above = [], bytes(size - 1)
    for n in range(height):
        above = unfiltered(data[n * size], bytearray(data[n * size + 1:(n + 1) * size]), above, wide)
        lines.append([bytes(above[at:at + 3]) for at in range(0, size - 1, wide)])
    return width, lines


def smaller(png, keep):
    width, lines = pixels(png)
    counts = collections.Counter(pixel for line in lines for pixel in line)
    kept = [colour for colour in keep if colour in counts]
    kept += [colour for colour, _ in counts.most_common(COLOURS) if colour not in kept][:COLOURS - len(kept)]
    numbers = {colour: number for number, colour in enumerate(kept)}
    for colour in counts:
        if colour not in numbers:
            numbers[colour] = min(range(len(kept)), key=lambda n, c=colour: sum((a - b) ** 2 for a, b in zip(c, kept[n])))
    data = b"".join(b"\0" + bytes(numbers[pixel] for pixel in line) for line in lines)
    out = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", width, len(lines), 8, 3, 0, 0, 0)
    for kind, part in (b"IHDR", head), (b"PLTE", b"".join(kept)), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""):
        out += struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
    return out, set(kept)
