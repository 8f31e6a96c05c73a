// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What provider and module exchange through uverbs: the driver's part of requests (`*Req`) and responses (`*Resp`).
//!
//! Offsets for `mmap(2)` are those that the RDMA core handed out; each mapping is used with the length given beside it.
//! Sizes are multiples of 8; requests may be longer than the module knows if the rest is zero.

use super::{Le16, Le32, Le64};

/// Version of the user ABI, as `uverbs_abi_ver`.
pub const UVERBS_ABI_VERSION: u32 = 1;

layout! {
    /// How to map a doorbell area.
    pub struct AreaInfo: 32 {
        /// Index of the area (UAR); the same index is the same area, and is mapped once.
        0 => uar: Le32,
        4 => reserved: Le32,
        /// The part of the area that the device writes: [`super::doorbell::PART_SIZE`] bytes, for reading only.
        8 => device_offset: Le64,
        /// The part that the guest writes: as many bytes, for reading and writing.
        16 => guest_offset: Le64,
        /// The area's page in the doorbell BAR: one page. It is written to ring, and holds the clock.
        24 => ring_offset: Le64,
    }
}

layout! {
    /// Request of alloc_ucontext.
    pub struct AllocUcontextReq: 8 {
        /// The provider's [`super::ABI_VERSION`] and the oldest that it speaks.
        0 => abi_version: Le16,
        2 => abi_version_min: Le16,
        4 => reserved: Le32,
    }
}

layout! {
    /// Response of alloc_ucontext.
    pub struct AllocUcontextResp: 72 {
        /// The version that is spoken from here on.
        0 => abi_version: Le16,
        2 => reserved0: Le16,
        4 => max_inline_data: Le32,
        /// The context's first area.
        8 => area: AreaInfo,
        40 => max_send_sge: Le32,
        44 => max_recv_sge: Le32,
        48 => max_qp_wr: Le32,
        52 => max_cqe: Le32,
        56 => max_srq_wr: Le32,
        60 => reserved1: Le32,
        64 => reserved2: Le64,
    }
}

layout! {
    /// Response of alloc_pd.
    pub struct AllocPdResp: 8 {
        0 => pdn: Le32,
        4 => reserved: Le32,
    }
}

layout! {
    /// Response of create_cq.
    pub struct CreateCqResp: 64 {
        0 => cqn: Le32,
        4 => slot: Le16,
        6 => log_size: u8,
        7 => reserved0: u8,
        8 => area: AreaInfo,
        /// The ring, for reading only.
        40 => ring_offset: Le64,
        48 => ring_length: Le64,
        56 => reserved1: Le64,
    }
}

layout! {
    /// Request of resize_cq, which takes two steps, so that a provider that cannot map the new ring still has the old one.
    pub struct ResizeCqReq: 8 {
        /// 0: makes a new ring, in place of one that was made before. 1: moves the entries to it.
        0 => step: u8,
        1 => reserved0: u8,
        2 => reserved1: Le16,
        4 => reserved2: Le32,
    }
}

/// [`ResizeCqReq::step`]: make a new ring.
pub const RESIZE_PREPARE: u8 = 0;
/// [`ResizeCqReq::step`]: move to the new ring.
pub const RESIZE_MOVE: u8 = 1;

layout! {
    /// Response of both steps of resize_cq: the new ring. The old one stays mapped until the provider unmaps it.
    pub struct ResizeCqResp: 24 {
        0 => ring_offset: Le64,
        8 => ring_length: Le64,
        16 => log_size: u8,
        17 => reserved0: u8,
        18 => reserved1: Le16,
        20 => reserved2: Le32,
    }
}

layout! {
    /// Request of modify_srq for another number of work requests, in the same two steps.
    pub struct ResizeSrqReq: 16 {
        /// As [`ResizeCqReq::step`]. The provider copies the entries that the device has not taken between the two.
        0 => step: u8,
        1 => reserved0: u8,
        2 => reserved1: Le16,
        4 => reserved2: Le32,
        /// First step: where the process wants its [`ResizeSrqResp`], since the core's verb has no response.
        8 => response: Le64,
    }
}

layout! {
    /// What the process is told in the first step of modify_srq.
    pub struct ResizeSrqResp: 24 {
        0 => ring_offset: Le64,
        8 => ring_length: Le64,
        /// Work requests of the new ring.
        16 => max_wr: Le32,
        20 => log_size: u8,
        21 => reserved0: u8,
        22 => reserved1: Le16,
    }
}

layout! {
    /// Response of create_srq.
    pub struct CreateSrqResp: 64 {
        0 => srqn: Le32,
        4 => slot: Le16,
        6 => log_size: u8,
        7 => log_stride: u8,
        8 => area: AreaInfo,
        /// The ring.
        40 => ring_offset: Le64,
        48 => ring_length: Le64,
        56 => reserved: Le64,
    }
}

layout! {
    /// Response of create_qp. Capabilities come back in the core's part.
    pub struct CreateQpResp: 88 {
        0 => qpn: Le32,
        4 => slot: Le16,
        6 => reserved0: Le16,
        8 => log_sq_size: u8,
        9 => log_sq_stride: u8,
        10 => log_rq_size: u8,
        11 => log_rq_stride: u8,
        12 => reserved1: Le32,
        16 => area: AreaInfo,
        /// The send ring.
        48 => sq_offset: Le64,
        56 => sq_length: Le64,
        /// The receive ring; length 0 when there is none.
        64 => rq_offset: Le64,
        72 => rq_length: Le64,
        80 => reserved2: Le64,
    }
}

layout! {
    /// Response of create_ah: what only the kernel could resolve, or knows of a protection domain that was imported.
    pub struct CreateAhResp: 16 {
        0 => dmac: [u8; 6],
        6 => reserved0: Le16,
        8 => pdn: Le32,
        12 => reserved1: Le32,
    }
}

layouts! {
    structs: [
        AreaInfo, AllocUcontextReq, AllocUcontextResp, AllocPdResp, CreateCqResp, ResizeCqReq, ResizeCqResp,
        ResizeSrqReq, ResizeSrqResp,
        CreateSrqResp, CreateQpResp, CreateAhResp,
    ],
    codes: []
}
