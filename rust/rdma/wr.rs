// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel users, as `post_send` and `post_recv` get them.

use crate::{
    ah::Ah,
    base::errno::eopnotsupp,
    bindings,
    device::Operations,
    enums::{
        Access,
        QpType,
        SendFlags, //
    },
    mr::Mr, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// A list of work requests that is being posted.
pub(crate) trait Wrs {
    /// The core's request.
    type Raw;

    /// The one that was taken last: if posting failed, that is the bad one.
    fn bad(&self) -> *const Self::Raw;
}

/// Posts a list. A process posts by itself, so for its queues this is refused.
///
/// # Safety
///
/// `bad` must be valid, for the request that was not posted.
pub(crate) unsafe fn post<W: Wrs>(
    of_process: bool,
    mut wrs: W,
    bad: *mut *const W::Raw,
    post: impl FnOnce(&mut W) -> Result,
) -> c_int {
    let result = if of_process {
        Err(eopnotsupp())
    } else {
        post(&mut wrs)
    };
    result.map_or_else(
        |e| {
            // SAFETY: The caller says that it is valid.
            unsafe { *bad = wrs.bad() };
            e.to_errno()
        },
        |()| 0,
    )
}

/// A scatter/gather entry.
pub struct Sge(bindings::ib_sge);

impl Sge {
    /// DMA address; with [`SendFlags::INLINE`], the data's address in the kernel.
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Length.
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// Key.
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }
}

/// The scatter/gather list of a request. It is no slice, as its entries need not be aligned: `ib_iser` has
/// its own in a packed struct (drivers/infiniband/ulp/iser/iscsi_iser.h, `iser_rx_desc`).
pub struct Sges<'a> {
    /// Valid for `left` entries for `'a`, however aligned.
    next: *const bindings::ib_sge,
    left: usize,
    _list: PhantomData<&'a bindings::ib_sge>,
}

impl Sges<'_> {
    /// # Safety
    ///
    /// `list` must be valid for `num` entries for the lifetime, or null.
    unsafe fn new(list: *const bindings::ib_sge, num: c_int) -> Self {
        let left = if list.is_null() { 0 } else { num };
        Self {
            next: list,
            left: usize::try_from(left).unwrap_or(0),
            _list: PhantomData,
        }
    }
}

impl Iterator for Sges<'_> {
    type Item = Sge;

    fn next(&mut self) -> Option<Sge> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: It was not the end yet, so that this entry is valid, and one behind it is its end.
        unsafe {
            let sge = self.next.read_unaligned();
            self.next = self.next.add(1);
            Some(Sge(sge))
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Sges<'_> {}

/// Destination of a datagram.
pub struct Datagram<'a, D: Operations> {
    /// Address handle.
    pub ah: &'a Ah<D>,
    /// QPN.
    pub remote_qpn: u32,
    /// Q_Key.
    pub remote_qkey: u32,
    /// Index of the P_Key (GSI).
    pub pkey_index: u16,
    /// Port.
    pub port_num: u32,
}

/// Memory of the peer.
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

/// What a send work request does.
pub enum SendOp<'a, D: Operations> {
    /// SEND.
    Send,
    /// SEND with immediate data: four bytes, as on the wire.
    SendWithImm([u8; 4]),
    /// SEND that invalidates the peer's key.
    SendWithInv(u32),
    /// RDMA WRITE.
    RdmaWrite(Remote),
    /// RDMA WRITE with immediate data: four bytes, as on the wire.
    RdmaWriteWithImm(Remote, [u8; 4]),
    /// RDMA READ.
    RdmaRead {
        /// From where.
        from: Remote,
        /// Invalidate the local key afterwards.
        invalidate: bool,
    },
    /// Compare and swap.
    AtomicCmpAndSwp {
        /// Where.
        at: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to write.
        swap: u64,
    },
    /// Fetch and add.
    AtomicFetchAndAdd {
        /// Where.
        at: Remote,
        /// Value to add.
        add: u64,
    },
    /// Local invalidate of a key.
    LocalInv(u32),
    /// Fast registration.
    RegMr {
        /// The region.
        mr: &'a Mr<D>,
        /// Its new key.
        key: u32,
        /// Its access flags.
        access: Access,
    },
}

/// A send work request. It need not be aligned: `ib_isert` has its own in a packed struct
/// (drivers/infiniband/ulp/isert/ib_isert.h, `iser_tx_desc`). So what all have in common is a copy.
pub struct SendWr<'a, D: Operations> {
    /// In the struct of its opcode, valid for `'a`, however aligned.
    at: *const bindings::ib_send_wr,
    raw: bindings::ib_send_wr,
    qp_type: Option<QpType>,
    _list: PhantomData<&'a bindings::ib_send_wr>,
    _driver: PhantomData<fn(&D)>,
}

impl<'a, D: Operations> SendWr<'a, D> {
    /// `wr_id`.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Either variant is 64 bits without padding.
        unsafe { *self.raw.__bindgen_anon_1.wr_id }
    }

    /// Flags.
    pub fn flags(&self) -> SendFlags {
        // CAST: Bit flags.
        SendFlags::from_raw(self.raw.send_flags as u32)
    }

    /// Scatter/gather list.
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: The caller of the verb promises a valid list.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Length of the message. `EINVAL` if it does not fit into 32 bits.
    pub fn length(&self) -> Result<u32> {
        self.sges()
            .try_fold(0u32, |sum, sge| sum.checked_add(sge.length()))
            .ok_or(EINVAL)
    }

    fn is_datagram(&self) -> bool {
        matches!(self.qp_type, Some(QpType::Ud | QpType::Gsi | QpType::Smi))
    }

    /// Destination of a datagram; `None` for other queue pairs, for what is no SEND, and without an address
    /// handle.
    pub fn datagram(&self) -> Option<Datagram<'a, D>> {
        // Others are in other structs: the core's drain in one that is shorter.
        if !self.is_datagram() || !matches!(self.op(), Ok(SendOp::Send | SendOp::SendWithImm(_))) {
            return None;
        }
        // SAFETY: A SEND on these queue pairs is in an `ib_ud_wr`, whose first member it is.
        let ud = unsafe { self.at.cast::<bindings::ib_ud_wr>().read_unaligned() };
        let ah = NonNull::new(ud.ah)?;
        Some(Datagram {
            // SAFETY: A handle of our device, which the caller keeps until the request completes.
            ah: unsafe { Ah::from_raw(ah.as_ptr()) },
            remote_qpn: ud.remote_qpn,
            remote_qkey: ud.remote_qkey,
            pkey_index: ud.pkey_index,
            port_num: ud.port_num,
        })
    }

    /// What it does; `EINVAL` if that is unknown, or nothing for this type of queue pair.
    pub fn op(&self) -> Result<SendOp<'a, D>> {
        // SAFETY: Either variant is 32 bits; `__be32` is kept in its byte order.
        let (imm, invalidate) = unsafe {
            (
                self.raw.ex.imm_data.to_ne_bytes(),
                *self.raw.ex.invalidate_rkey,
            )
        };
        match self.raw.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND => return Ok(SendOp::Send),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => return Ok(SendOp::SendWithImm(imm)),
            // Datagrams can do no more, and are in another struct than the following.
            _ if self.is_datagram() => return Err(EINVAL),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => {
                return Ok(SendOp::SendWithInv(invalidate))
            }
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV => return Ok(SendOp::LocalInv(invalidate)),
            _ => {}
        }
        // SAFETY: The caller of the verb embeds the request in the struct of its opcode, whose
        // first member it is; each arm reads only that of its own.
        unsafe {
            let remote = || {
                let wr = self.at.cast::<bindings::ib_rdma_wr>().read_unaligned();
                Remote {
                    addr: wr.remote_addr,
                    rkey: wr.rkey,
                }
            };
            let atomic = || {
                let wr = self.at.cast::<bindings::ib_atomic_wr>().read_unaligned();
                let at = Remote {
                    addr: wr.remote_addr,
                    rkey: wr.rkey,
                };
                (at, wr.compare_add, wr.swap)
            };
            Ok(match self.raw.opcode {
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => SendOp::RdmaWrite(remote()),
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                    SendOp::RdmaWriteWithImm(remote(), imm)
                }
                opcode @ (bindings::ib_wr_opcode_IB_WR_RDMA_READ
                | bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV) => SendOp::RdmaRead {
                    from: remote(),
                    invalidate: opcode == bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV,
                },
                bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => {
                    let (at, compare, swap) = atomic();
                    SendOp::AtomicCmpAndSwp { at, compare, swap }
                }
                bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => {
                    let (at, add, _) = atomic();
                    SendOp::AtomicFetchAndAdd { at, add }
                }
                bindings::ib_wr_opcode_IB_WR_REG_MR => {
                    let reg = self.at.cast::<bindings::ib_reg_wr>().read_unaligned();
                    SendOp::RegMr {
                        mr: Mr::from_raw(NonNull::new(reg.mr).ok_or(EINVAL)?.as_ptr()),
                        key: reg.key,
                        // CAST: Bit flags.
                        access: Access::from_raw(reg.access as u32),
                    }
                }
                _ => return Err(EINVAL),
            })
        }
    }

    /// Copies the data of a request with [`SendFlags::INLINE`]; returns its length. `EINVAL` if the
    /// request has not that flag or the data is longer than `to`.
    pub fn copy_inline(&self, to: &mut [u8]) -> Result<usize> {
        if !self.flags().contains(SendFlags::INLINE) {
            return Err(EINVAL);
        }
        let mut at = 0usize;
        for sge in self.sges() {
            let len = sge.length() as usize;
            let end = at.checked_add(len).ok_or(EINVAL)?;
            let to = to.get_mut(at..end).ok_or(EINVAL)?;
            if len != 0 {
                // SAFETY: With this flag the caller of the verb passes addresses of memory that it
                // can read (include/rdma/ib_verbs.h, IB_SEND_INLINE).
                unsafe {
                    core::ptr::copy_nonoverlapping(sge.addr() as *const u8, to.as_mut_ptr(), len)
                };
            }
            at = end;
        }
        Ok(at)
    }
}

/// Send work requests to post.
pub struct SendWrs<'a, D: Operations> {
    next: *const bindings::ib_send_wr,
    /// The last one taken, or the first.
    last: *const bindings::ib_send_wr,
    qp_type: Option<QpType>,
    _list: PhantomData<&'a ()>,
    _driver: PhantomData<fn(&D)>,
}

impl<'a, D: Operations> SendWrs<'a, D> {
    /// # Safety
    ///
    /// `wr` must be a list of requests for a queue pair of that type, valid for `'a`, however aligned.
    pub(crate) unsafe fn new(wr: *const bindings::ib_send_wr, qp_type: Option<QpType>) -> Self {
        Self {
            next: wr,
            last: wr,
            qp_type,
            _list: PhantomData,
            _driver: PhantomData,
        }
    }
}

impl<D: Operations> Wrs for SendWrs<'_, D> {
    type Raw = bindings::ib_send_wr;

    fn bad(&self) -> *const bindings::ib_send_wr {
        self.last
    }
}

impl<'a, D: Operations> Iterator for SendWrs<'a, D> {
    type Item = SendWr<'a, D>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next.is_null() {
            return None;
        }
        self.last = self.next;
        // SAFETY: A request of the list, however aligned.
        let raw = unsafe { self.next.read_unaligned() };
        self.next = raw.next;
        Some(SendWr {
            at: self.last,
            raw,
            qp_type: self.qp_type,
            _list: PhantomData,
            _driver: PhantomData,
        })
    }
}

/// A receive work request: a copy, for it need not be aligned either.
pub struct RecvWr<'a> {
    raw: bindings::ib_recv_wr,
    _list: PhantomData<&'a bindings::ib_recv_wr>,
}

impl<'a> RecvWr<'a> {
    /// `wr_id`.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Either variant is 64 bits without padding.
        unsafe { *self.raw.__bindgen_anon_1.wr_id }
    }

    /// Scatter/gather list.
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: The caller of the verb promises a valid list.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Bytes that its buffers have room for; no more than a `u32` holds.
    pub fn length(&self) -> u32 {
        let lengths = self.sges().map(|sge| sge.length());
        lengths.fold(0, u32::saturating_add)
    }
}

/// Receive work requests to post.
pub struct RecvWrs<'a> {
    next: *const bindings::ib_recv_wr,
    last: *const bindings::ib_recv_wr,
    _list: PhantomData<&'a ()>,
}

impl RecvWrs<'_> {
    /// # Safety
    ///
    /// `wr` must be a list of requests, valid for the lifetime, however aligned.
    pub(crate) unsafe fn new(wr: *const bindings::ib_recv_wr) -> Self {
        Self {
            next: wr,
            last: wr,
            _list: PhantomData,
        }
    }
}

impl Wrs for RecvWrs<'_> {
    type Raw = bindings::ib_recv_wr;

    fn bad(&self) -> *const bindings::ib_recv_wr {
        self.last
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = RecvWr<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next.is_null() {
            return None;
        }
        self.last = self.next;
        // SAFETY: A request of the list, however aligned.
        let raw = unsafe { self.next.read_unaligned() };
        self.next = raw.next;
        Some(RecvWr {
            raw,
            _list: PhantomData,
        })
    }
}
