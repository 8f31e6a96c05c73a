// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters, GIDs, port attributes, management datagrams, multicast.

use super::{Command, Empty, Le16, Le32, Le64, Opcode, PAYLOAD_SIZE};

codes! {
    /// Sets of counters that QUERY_STATS reads.
    pub enum StatsKind: u8 {
        /// Counters of a port, indexed by [`super::super::stats::Counter`].
        Port = 0,
        /// Counters of a queue pair, with the same indexes. Counters that only ports have are 0.
        Qp = 1,
    }
}

layout! {
    /// Requests counters. The device writes them before it replies, each as a [`Le64`]. It writes
    /// at most `count` counters, and at most as many as it has.
    pub struct QueryStats: 32 {
        /// [`StatsKind`].
        0 => kind: u8,
        /// [`StatsKind::Port`]: number of the port.
        1 => port: u8,
        2 => reserved0: Le16,
        /// [`StatsKind::Qp`]: QPN.
        4 => id: Le32,
        /// DMA address at which the device writes the counters, aligned to 8.
        8 => addr: Le64,
        /// Number of counters for which there is room.
        16 => count: Le32,
        20 => reserved1: Le32,
        24 => reserved2: Le64,
    }
}
layout! {
    /// Number of counters that the device has written.
    pub struct Stats: 8 {
        0 => count: Le32,
        4 => reserved: Le32,
    }
}
command!(QueryStats, QueryStats, Stats);

layout! {
    /// Sets or clears an entry of a port's GID table. If the host refuses an entry, the status is
    /// [`super::CmdStatus::Denied`], or [`super::CmdStatus::Invalid`] before version 12.
    pub struct SetGid: 32 {
        0 => index: Le16,
        /// 1: set, 0: clear.
        2 => valid: u8,
        3 => reserved0: u8,
        /// VLAN id, or [`NO_VLAN`].
        4 => vlan: Le16,
        /// MAC address of the GID's net device, which is the source address of frames from this
        /// GID.
        6 => mac: [u8; 6],
        /// GID in network order. For IPv4 it is ::ffff:a.b.c.d.
        12 => gid: [u8; 16],
        28 => port: u8,
        /// `enum ib_gid_type`; only [`GID_TYPE_ROCE_V2`] (UDP encapsulation) is accepted.
        29 => gid_type: u8,
        30 => reserved1: Le16,
    }
}
command!(SetGid, SetGid, Empty);

/// [`SetGid::gid_type`]: RoCE v2.
pub const GID_TYPE_ROCE_V2: u8 = 2;
/// [`SetGid::vlan`]: no VLAN tag.
pub const NO_VLAN: u16 = 0xffff;

layout! {
    /// Sets the state and the MTU of a port's net device.
    pub struct SetPort: 8 {
        /// 1 if the net device is up and has carrier, else 0. While it is 0, no packet leaves or
        /// enters the port, not even by loopback.
        0 => up: u8,
        /// Largest path MTU, as `enum ib_mtu` (1 to 5).
        1 => mtu: u8,
        2 => port: u8,
        3 => reserved0: u8,
        4 => reserved1: Le32,
    }
}
command!(SetPort, SetPort, Empty);

layout! {
    /// Requests the attributes of a port. Only InfiniBand ports have the command. The net device of
    /// a RoCE port has these attributes.
    pub struct QueryPort: 8 {
        0 => port: u8,
        1 => reserved: [u8; 7],
    }
}

layout! {
    /// Attributes of a port, named and coded as in `struct ib_port_attr`.
    pub struct PortAttr: 64 {
        /// `enum ib_port_state`.
        0 => state: u8,
        /// `enum ib_port_phys_state`.
        1 => phys_state: u8,
        /// `enum ib_mtu`.
        2 => max_mtu: u8,
        3 => active_mtu: u8,
        4 => lid: Le32,
        8 => sm_lid: Le32,
        12 => lmc: u8,
        13 => sm_sl: u8,
        14 => max_vl_num: u8,
        /// `enum ib_port_width`.
        15 => active_width: u8,
        /// `enum ib_port_speed`.
        16 => active_speed: Le16,
        18 => subnet_timeout: u8,
        19 => init_type_reply: u8,
        /// `enum ib_port_capability_mask_bits`.
        20 => port_cap_flags: Le32,
        24 => port_cap_flags2: Le16,
        26 => pkey_tbl_len: Le16,
        28 => gid_tbl_len: Le32,
        32 => max_msg_sz: Le32,
        36 => bad_pkey_cntr: Le32,
        40 => qkey_viol_cntr: Le32,
        44 => reserved0: Le32,
        48 => reserved1: [Le64; 2],
    }
}
command!(QueryPort, QueryPort, PortAttr);

layout! {
    /// Requests an entry of a port's P_Key table.
    pub struct QueryPkey: 8 {
        0 => port: u8,
        1 => reserved0: u8,
        2 => index: Le16,
        4 => reserved1: Le32,
    }
}
layout! {
    /// An entry of a port's P_Key table.
    pub struct Pkey: 8 {
        /// P_Key, or 0 if the entry is not valid.
        0 => pkey: Le16,
        2 => reserved: [u8; 6],
    }
}
command!(QueryPkey, QueryPkey, Pkey);

layout! {
    /// Requests an entry of a port's GID table. Only InfiniBand ports have the command. The subnet
    /// manager sets the prefix of their GIDs.
    pub struct QueryGid: 8 {
        0 => port: u8,
        1 => reserved0: u8,
        2 => index: Le16,
        4 => reserved1: Le32,
    }
}
layout! {
    /// An entry of a port's GID table.
    pub struct GidEntry: 16 {
        /// GID in network order; the last 8 bytes are 0 if the entry is not valid.
        0 => gid: [u8; 16],
    }
}
command!(QueryGid, QueryGid, GidEntry);

/// Size of the description of a node in bytes (IBTA 14.2.5.2).
pub const NODE_DESCRIPTION_SIZE: usize = 64;

layout! {
    /// Sets the description of the node, which the agents of an InfiniBand port report. Only
    /// InfiniBand ports have the command.
    pub struct SetNodeDescription: 64 {
        /// UTF-8, with zeros after the text.
        0 => description: [u8; 64],
    }
}
command!(SetNodeDescription, SetNodeDescription, Empty);

layout! {
    /// Changes the attributes of a port, as `ib_modify_port` does with a `struct ib_port_modify`.
    pub struct ModifyPort: 24 {
        0 => port: u8,
        1 => init_type: u8,
        2 => reserved0: Le16,
        /// `enum ib_port_modify_flags`.
        4 => mask: Le32,
        8 => set_port_cap_mask: Le32,
        12 => clr_port_cap_mask: Le32,
        16 => reserved1: Le64,
    }
}
command!(ModifyPort, ModifyPort, Empty);

/// Size of a management datagram in bytes (IBTA 13.4.2).
pub const MAD_SIZE: usize = 256;

layout! {
    /// Passes a management datagram, and the addresses with which it arrived, to the agents of the
    /// device. The command works as soon as the command queue is enabled. The addresses of a
    /// datagram that the kernel itself has made are 0, and its flags leave out all checks.
    pub struct ProcessMad: 64 {
        0 => port: u8,
        /// `enum ib_mad_flags`.
        1 => flags: u8,
        2 => pkey_index: Le16,
        4 => src_qp: Le32,
        8 => slid: Le32,
        12 => sl: u8,
        13 => dlid_path_bits: u8,
        /// 1 if there is a GRH at [`Self::grh_addr`], else 0.
        14 => has_grh: u8,
        15 => reserved0: u8,
        /// DMA address of the datagram, which has [`MAD_SIZE`] bytes.
        16 => in_addr: Le64,
        /// DMA address at which the device writes the response, which has as many bytes, before it
        /// replies. The response is complete: a response to a directed route SMP has the bit D of
        /// its status set (IBTA 14.2.1.2).
        24 => out_addr: Le64,
        /// DMA address of the datagram's GRH, which has 40 bytes.
        32 => grh_addr: Le64,
        40 => reserved1: [Le64; 3],
    }
}
layout! {
    /// Result of a management datagram.
    pub struct MadResult: 8 {
        /// `enum ib_mad_result`.
        0 => result: Le32,
        4 => out_pkey_index: Le16,
        6 => reserved: Le16,
    }
}
command!(ProcessMad, ProcessMad, MadResult);

layout! {
    /// Attaches a UD queue pair to a multicast group. If it is attached already, the command
    /// succeeds without effect. A queue pair leaves its groups when it is destroyed.
    pub struct AttachMcast: 24 {
        0 => qpn: Le32,
        /// InfiniBand only: LID of the group.
        4 => mlid: Le16,
        6 => port: u8,
        7 => reserved: u8,
        /// GID of the group in network order.
        8 => mgid: [u8; 16],
    }
}
command!(AttachMcast, AttachMcast, Empty);

layout! {
    /// Detaches a queue pair from a multicast group. All fields are as in [`AttachMcast`].
    pub struct DetachMcast: 24 {
        0 => qpn: Le32,
        4 => mlid: Le16,
        6 => port: u8,
        7 => reserved: u8,
        8 => mgid: [u8; 16],
    }
}
command!(DetachMcast, DetachMcast, Empty);

layouts! {
    structs: [
        QueryStats, Stats, SetGid, SetPort, QueryPort, PortAttr, QueryPkey, Pkey, QueryGid, GidEntry, SetNodeDescription, ModifyPort,
        ProcessMad, MadResult, AttachMcast, DetachMcast,
    ],
    codes: [StatsKind]
}
