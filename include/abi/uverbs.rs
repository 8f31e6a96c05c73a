// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The driver's part of the requests (`*Req`) and responses (`*Resp`) between provider and module
//! in uverbs.
//!
//! Offsets for `mmap(2)` come from the RDMA core. A mapping has the length that its comment or the
//! next field gives. Sizes of structures are multiples of 8. A request may be longer than the
//! structure of the module if the rest is zero.

use super::{Le16, Le32, Le64};

/// Version of the user ABI (`uverbs_abi_ver`).
pub const UVERBS_ABI_VERSION: u32 = 1;

layout! {
    /// Offsets with which a process maps a doorbell area.
    pub struct AreaInfo: 32 {
        /// Index of the area (UAR). A provider maps an area once, and recognizes it by its index.
        0 => uar: Le32,
        4 => reserved: Le32,
        /// Part of the area that the device writes: [`super::doorbell::PART_SIZE`] bytes, mapped
        /// for reading only.
        8 => device_offset: Le64,
        /// Part that the guest writes: as many bytes, mapped for reading and writing.
        16 => guest_offset: Le64,
        /// Page of the area in the doorbell BAR. A write rings the doorbell, and a read at
        /// [`super::regs::DOORBELL_CLOCK`] returns the clock.
        24 => ring_offset: Le64,
    }
}

layout! {
    /// Request of alloc_ucontext.
    pub struct AllocUcontextReq: 8 {
        /// [`super::ABI_VERSION`] of the provider. The next field is the oldest version that it
        /// supports.
        0 => abi_version: Le16,
        2 => abi_version_min: Le16,
        4 => reserved: Le32,
    }
}

layout! {
    /// Response of alloc_ucontext.
    pub struct AllocUcontextResp: 72 {
        /// Version that provider and module use from now on.
        0 => abi_version: Le16,
        2 => reserved0: Le16,
        4 => max_inline_data: Le32,
        /// First area of the context.
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
        /// Ring, mapped for reading only.
        40 => ring_offset: Le64,
        48 => ring_length: Le64,
        56 => reserved1: Le64,
    }
}

layout! {
    /// Request of resize_cq, which has two steps. Therefore a provider that cannot map the new ring
    /// keeps the old one.
    pub struct ResizeCqReq: 8 {
        /// [`RESIZE_PREPARE`] creates a new ring, and drops one that was created before and not
        /// used. [`RESIZE_MOVE`] moves the entries to it.
        0 => step: u8,
        1 => reserved0: u8,
        2 => reserved1: Le16,
        4 => reserved2: Le32,
    }
}

/// [`ResizeCqReq::step`]: create a new ring.
pub const RESIZE_PREPARE: u8 = 0;
/// [`ResizeCqReq::step`]: move the entries to the new ring.
pub const RESIZE_MOVE: u8 = 1;

layout! {
    /// Response of both steps of resize_cq: the new ring. The old ring stays mapped until the
    /// provider unmaps it.
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
    /// Request of modify_srq that changes the number of work requests. It has the same two steps as
    /// resize_cq.
    pub struct ResizeSrqReq: 16 {
        /// As [`ResizeCqReq::step`]. Between the two steps, the provider copies the entries that
        /// the device has not taken.
        0 => step: u8,
        1 => reserved0: u8,
        2 => reserved1: Le16,
        4 => reserved2: Le32,
        /// First step: address in the process at which the module writes [`ResizeSrqResp`], because
        /// the core's verb has no response.
        8 => response: Le64,
    }
}

layout! {
    /// Result of the first step of modify_srq.
    pub struct ResizeSrqResp: 24 {
        0 => ring_offset: Le64,
        8 => ring_length: Le64,
        /// Number of work requests that the new ring can hold.
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
        /// Ring, mapped for reading and writing.
        40 => ring_offset: Le64,
        48 => ring_length: Le64,
        56 => reserved: Le64,
    }
}

layout! {
    /// Response of create_qp. The core's part of the response contains the capabilities.
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
        /// Send ring.
        48 => sq_offset: Le64,
        56 => sq_length: Le64,
        /// Receive ring. The length is 0 if there is none.
        64 => rq_offset: Le64,
        72 => rq_length: Le64,
        80 => reserved2: Le64,
    }
}

layout! {
    /// Response of create_ah: the destination MAC address, which only the kernel can resolve, and
    /// the number of the protection domain, which a process that has imported the domain does not
    /// know.
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
