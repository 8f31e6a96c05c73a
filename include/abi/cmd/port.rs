// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters, GIDs, port attributes, management datagrams, multicast.

use super::{Command, Empty, Le16, Le32, Le64, Opcode, PAYLOAD_SIZE};

codes! {
    /// Whose counters QUERY_STATS reads.
    pub enum StatsKind: u8 {
        /// A port's, indexed by [`super::super::stats::Counter`].
        Port = 0,
        /// A queue pair's, numbered in the same way; those that no queue pair has are 0.
        Qp = 1,
    }
}

layout! {
    /// Asks for counters. The device writes them, [`Le64`] each, before it replies: no more than it has, and no more than
    /// there is room for.
    pub struct QueryStats: 32 {
        /// [`StatsKind`].
        0 => kind: u8,
        /// Of a port: its number.
        1 => port: u8,
        2 => reserved0: Le16,
        /// Of an object: its number.
        4 => id: Le32,
        /// DMA address of where they go, aligned to 8.
        8 => addr: Le64,
        /// How many have room there.
        16 => count: Le32,
        20 => reserved1: Le32,
        24 => reserved2: Le64,
    }
}
layout! {
    /// How many counters were written.
    pub struct Stats: 8 {
        0 => count: Le32,
        4 => reserved: Le32,
    }
}
command!(QueryStats, QueryStats, Stats);

layout! {
    /// Sets or clears an entry of a port's GID table. The host may refuse an entry: [`super::CmdStatus::Denied`], before version
    /// 12 [`super::CmdStatus::Invalid`].
    pub struct SetGid: 32 {
        0 => index: Le16,
        /// 1: set, 0: clear.
        2 => valid: u8,
        3 => reserved0: u8,
        /// VLAN id, or [`NO_VLAN`].
        4 => vlan: Le16,
        /// MAC address of the GID's net device: the source of what is sent from this GID.
        6 => mac: [u8; 6],
        /// The GID in network order (IPv4: ::ffff:a.b.c.d).
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
    /// Tells the device what a port's netdev is like.
    pub struct SetPort: 8 {
        /// 1: the netdev is up with carrier. While it is down nothing leaves or enters the port, loopback included.
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
    /// Asks for the attributes of a port. Ports whose netdev says all of it (RoCE) do not have the command.
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
    /// Asks for an entry of a port's P_Key table.
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
        /// 0 where the entry is not valid.
        0 => pkey: Le16,
        2 => reserved: [u8; 6],
    }
}
command!(QueryPkey, QueryPkey, Pkey);

layout! {
    /// Changes the attributes of a port, as `struct ib_port_modify` does.
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

/// Bytes of a management datagram (IBTA 13.4.2).
pub const MAD_SIZE: usize = 256;

layout! {
    /// Hands a management datagram to the device's agents, with what is known of how it came. Works as soon as the
    /// command queue runs.
    pub struct ProcessMad: 64 {
        0 => port: u8,
        /// `enum ib_mad_flags`.
        1 => flags: u8,
        2 => pkey_index: Le16,
        4 => src_qp: Le32,
        8 => slid: Le32,
        12 => sl: u8,
        13 => dlid_path_bits: u8,
        /// 1: there is a GRH at [`Self::grh_addr`].
        14 => has_grh: u8,
        15 => reserved0: u8,
        /// DMA address of the datagram, [`MAD_SIZE`] bytes.
        16 => in_addr: Le64,
        /// DMA address of where the answer goes, as many bytes.
        24 => out_addr: Le64,
        /// DMA address of its GRH, 40 bytes.
        32 => grh_addr: Le64,
        40 => reserved1: [Le64; 3],
    }
}
layout! {
    /// What became of a management datagram.
    pub struct MadResult: 8 {
        /// `enum ib_mad_result`.
        0 => result: Le32,
        4 => out_pkey_index: Le16,
        6 => reserved: Le16,
    }
}
command!(ProcessMad, ProcessMad, MadResult);

layout! {
    /// Attaches a queue pair for datagrams to a multicast group; once more changes nothing. It leaves its groups when it is
    /// destroyed.
    pub struct AttachMcast: 24 {
        0 => qpn: Le32,
        /// InfiniBand only: the group's LID.
        4 => mlid: Le16,
        6 => port: u8,
        7 => reserved: u8,
        /// The group's GID in network order.
        8 => mgid: [u8; 16],
    }
}
command!(AttachMcast, AttachMcast, Empty);

layout! {
    /// Detaches a queue pair from a multicast group: all fields as in [`AttachMcast`].
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
        QueryStats, Stats, SetGid, SetPort, QueryPort, PortAttr, QueryPkey, Pkey, ModifyPort, ProcessMad, MadResult, AttachMcast,
        DetachMcast,
    ],
    codes: [StatsKind]
}
