# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs in the guest: sockets of SMC-R, and the netlink messages that configure and show them. For `debug-consumers`."""
import os
import socket
import struct

AF_SMC = 43
# include/uapi/linux/netlink.h
NETLINK_SOCK_DIAG, NETLINK_GENERIC = 4, 16
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 1, 4, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
# include/uapi/linux/genetlink.h
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
# include/uapi/linux/smc.h
SMC_NETLINK_ADD_UEID, SMC_NLA_EID_TABLE_ENTRY, SMC_MAX_EID_LEN = 10, 1, 32
# include/uapi/linux/sock_diag.h and smc_diag.h
SOCK_DIAG_BY_FAMILY, SMC_DIAG_MODE_SMCR, SMC_DIAG_FALLBACK = 20, 0, 5
# net/smc/smc.h
SMC_ACTIVE = 1


def new():
    """Returns a socket of SMC. Its addresses are those of IPv4, which Python does not know of AF_SMC."""
    raw = socket.socket(AF_SMC, socket.SOCK_STREAM, 0)
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=raw.detach())


def ask(protocol, kind, flags, payload):
    """Sends a netlink message. Returns the payloads of the answers."""
    answers = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as netlink:
        netlink.send(struct.pack("=IHHII", 16 + len(payload), kind, NLM_F_REQUEST | flags, 1, 0) + payload)
        while True:
            data = netlink.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == NLMSG_ERROR and (code := -struct.unpack_from("=i", data, 16)[0]):
                    raise OSError(code, os.strerror(code))
                if kind in (NLMSG_ERROR, NLMSG_DONE):
                    return answers
                answers.append(data[16:length])
                data = data[(length + 3) & ~3 :]


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data):
    """Returns the values of attributes by their kinds."""
    found, at = {}, 0
    while at < len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        found[kind] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def family(name):
    """Returns the number of a family of generic netlink."""
    header = struct.pack("=BBH", CTRL_CMD_GETFAMILY, 1, 0)
    (answer,) = ask(NETLINK_GENERIC, GENL_ID_CTRL, NLM_F_ACK, header + attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0"))
    return struct.unpack("=H", attributes(answer[4:])[CTRL_ATTR_FAMILY_ID])[0]


def add_eid(name):
    """Adds an enterprise ID. SMC-Rv2, which uses RoCE v2, connects only hosts that share one."""
    value = name.encode().ljust(SMC_MAX_EID_LEN) + b"\0"
    header = struct.pack("=BBH", SMC_NETLINK_ADD_UEID, 1, 0)
    ask(NETLINK_GENERIC, family("SMC_GEN_NETLINK"), NLM_F_ACK, header + attribute(SMC_NLA_EID_TABLE_ENTRY, value))


def fallback(connection):
    """Returns None if a connection uses RDMA, or the reason why it does not."""
    inode = os.fstat(connection.fileno()).st_ino
    # struct smc_diag_req, and struct smc_diag_msg with its attributes
    for found in ask(NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, struct.pack("=B51x", AF_SMC)):
        if struct.unpack_from("=Q", found, 56)[0] != inode:
            continue
        state, mode = struct.unpack_from("=xBB", found)
        if state == SMC_ACTIVE and mode == SMC_DIAG_MODE_SMCR:
            return None
        reason, peer = struct.unpack("=II", attributes(found[64:])[SMC_DIAG_FALLBACK])
        return f"state {state}, mode {mode}, reason {reason:#010x}, of the peer {peer:#010x}"
    raise OSError(f"the kernel does not list the SMC socket with inode {inode}")
