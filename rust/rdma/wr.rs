// SPDX-License-Identifier: GPL-2.0

//! Work requests of kernel users, as `post_send` and `post_recv` get them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::{
    ah::Ah,
    bindings,
    device::Operations,
    enums::{
        Access,
        QpType,
        SendFlags, //
    },
    mr::Mr, //
};
use base::errno::eopnotsupp;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::prelude::*;

/// A list of work requests that is being posted.
pub(crate) trait Wrs {
    /// C struct of a request.
    type Raw;

    /// Returns the request that was taken last, which is the bad one if posting failed.
    fn bad(&self) -> *const Self::Raw;
}

/// Posts a list of work requests. Refuses to if the queue is of a process, which posts without the
/// kernel.
///
/// # Safety
///
/// `bad` must be valid for a write of the address of the request that was not posted.
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
            // SAFETY: The caller promises that `bad` is valid for writes.
            unsafe { *bad = wrs.bad() };
            e.to_errno()
        },
        |()| 0,
    )
}

/// A scatter/gather entry of a work request.
pub struct Sge(bindings::ib_sge);

impl Sge {
    /// Returns the DMA address or, with [`SendFlags::INLINE`], the address of the data in the
    /// kernel.
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// Returns the local key.
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }
}

/// The scatter/gather list of a request. This is no slice, because the entries need not be aligned:
/// those of `ib_iser` are in a packed struct (drivers/infiniband/ulp/iser/iscsi_iser.h,
/// `iser_rx_desc`).
///
/// # Invariants
///
/// `next` is valid for reads of `left` entries for `'a`, with any alignment.
pub struct Sges<'a> {
    /// Address of the next entry.
    next: *const bindings::ib_sge,
    left: usize,
    _list: PhantomData<&'a bindings::ib_sge>,
}

impl Sges<'_> {
    /// # Safety
    ///
    /// `list` must be `NULL`, or valid for reads of `num` entries for the lifetime, with any
    /// alignment.
    unsafe fn new(list: *const bindings::ib_sge, num: c_int) -> Self {
        let left = if list.is_null() { 0 } else { num };
        // INVARIANT: The caller promises that `list` is valid for `num` entries. For `NULL` `left`
        // is 0.
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
        // SAFETY: By the type invariant `next` is valid for at least one entry, as `left` was not
        // 0.
        let sge = unsafe { self.next.read_unaligned() };
        // SAFETY: By the type invariant the address after that entry is in the list or at its end.
        //
        // INVARIANT: `next` has moved by one entry, and `left` is smaller by one.
        self.next = unsafe { self.next.add(1) };
        Some(Sge(sge))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Sges<'_> {}

/// Destination of a datagram.
pub struct Datagram<'a, D: Operations> {
    /// Address handle of the destination.
    pub ah: &'a Ah<D>,
    /// QPN of the destination.
    pub remote_qpn: u32,
    /// Q_Key of the destination.
    pub remote_qkey: u32,
    /// Index of the P_Key, which only the GSI uses.
    pub pkey_index: u16,
    /// Port to send from.
    pub port_num: u32,
}

/// Memory of the peer that a request names.
pub struct Remote {
    /// Address in the memory region of the peer.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: u32,
}

/// Operation of a send work request, with its parameters.
pub enum SendOp<'a, D: Operations> {
    /// SEND without immediate data.
    Send,
    /// SEND with four bytes of immediate data, in wire byte order.
    SendWithImm([u8; 4]),
    /// SEND that invalidates this key of the peer.
    SendWithInv(u32),
    /// RDMA WRITE without immediate data.
    RdmaWrite(Remote),
    /// RDMA WRITE with four bytes of immediate data, in wire byte order.
    RdmaWriteWithImm(Remote, [u8; 4]),
    /// RDMA READ into the scatter list.
    RdmaRead {
        /// Memory to read from.
        from: Remote,
        /// True if the local key is to be invalidated afterwards.
        invalidate: bool,
    },
    /// Atomic compare and swap.
    AtomicCmpAndSwp {
        /// Memory of the operation.
        at: Remote,
        /// Value to compare the memory with.
        compare: u64,
        /// Value to write if the comparison succeeds.
        swap: u64,
    },
    /// Atomic fetch and add.
    AtomicFetchAndAdd {
        /// Memory of the operation.
        at: Remote,
        /// Value to add to the memory.
        add: u64,
    },
    /// Local invalidation of a key.
    LocalInv(u32),
    /// Fast registration of a memory region.
    RegMr {
        /// Region to be registered.
        mr: &'a Mr<D>,
        /// New key of the region.
        key: u32,
        /// Access flags of the region.
        access: Access,
    },
}

/// A send work request. The C struct need not be aligned: that of `ib_isert` is in a packed struct
/// (drivers/infiniband/ulp/isert/ib_isert.h, `iser_tx_desc`). So `raw` is a copy of the members
/// that all requests have.
///
/// # Invariants
///
/// `at` is the first member of the C struct that belongs to the opcode and the QP type, and that
/// struct is valid for reads for `'a`, with any alignment. `raw` is a copy of `*at`, and its
/// `sg_list` is `NULL` or valid for reads of `num_sge` entries for `'a`. Objects that the struct
/// names are STARTED and alive for `'a`.
pub struct SendWr<'a, D: Operations> {
    /// Address of the request in its C struct.
    at: *const bindings::ib_send_wr,
    raw: bindings::ib_send_wr,
    qp_type: Option<QpType>,
    _list: PhantomData<&'a bindings::ib_send_wr>,
    _driver: PhantomData<fn(&D)>,
}

impl<'a, D: Operations> SendWr<'a, D> {
    /// Returns the `wr_id` of the request.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both variants of the union are 64 bits without padding.
        unsafe { *self.raw.__bindgen_anon_1.wr_id }
    }

    /// Returns the flags of the request.
    pub fn flags(&self) -> SendFlags {
        // CAST: The send flags are bit flags.
        SendFlags::from_raw(self.raw.send_flags as u32)
    }

    /// Returns the scatter/gather list.
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: By the type invariant `sg_list` is `NULL` or valid for `num_sge` entries for
        // `'a`.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Returns the length of the message in bytes, or `EINVAL` if it does not fit into 32 bits.
    pub fn length(&self) -> Result<u32> {
        self.sges()
            .try_fold(0u32, |sum, sge| sum.checked_add(sge.length()))
            .ok_or(EINVAL)
    }

    fn is_datagram(&self) -> bool {
        matches!(self.qp_type, Some(QpType::Ud | QpType::Gsi | QpType::Smi))
    }

    /// Returns the destination of a datagram, or `None` if the QP does not send datagrams, the
    /// request is not a SEND, or it has no address handle.
    pub fn datagram(&self) -> Option<Datagram<'a, D>> {
        // Other requests are in other structs, and that of the core's drain is shorter.
        if !self.is_datagram() || !matches!(self.op(), Ok(SendOp::Send | SendOp::SendWithImm(_))) {
            return None;
        }
        // SAFETY: By the type invariant `at` is the first member of the struct of its opcode and QP
        // type, which is `ib_ud_wr` for a SEND on these QPs.
        let ud = unsafe { self.at.cast::<bindings::ib_ud_wr>().read_unaligned() };
        let ah = NonNull::new(ud.ah)?;
        Some(Datagram {
            // SAFETY: By the type invariant the address handle is STARTED and alive for `'a`, as
            // its user keeps it until the request completes.
            ah: unsafe { Ah::from_raw(ah.as_ptr()) },
            remote_qpn: ud.remote_qpn,
            remote_qkey: ud.remote_qkey,
            pkey_index: ud.pkey_index,
            port_num: ud.port_num,
        })
    }

    /// Returns the operation, or `EINVAL` if it is unknown or not possible for this type of QP.
    pub fn op(&self) -> Result<SendOp<'a, D>> {
        // SAFETY: Both variants of the union are 32 bits without padding.
        let invalidate = unsafe { *self.raw.ex.invalidate_rkey };
        // The bytes of a `__be32` are in wire byte order.
        let imm = invalidate.to_ne_bytes();
        match self.raw.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND => return Ok(SendOp::Send),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => return Ok(SendOp::SendWithImm(imm)),
            // Datagram QPs have no other operations, and their requests are in another struct than
            // those below.
            _ if self.is_datagram() => return Err(EINVAL),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => {
                return Ok(SendOp::SendWithInv(invalidate))
            }
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV => return Ok(SendOp::LocalInv(invalidate)),
            _ => {}
        }
        Ok(match self.raw.opcode {
            opcode @ (bindings::ib_wr_opcode_IB_WR_RDMA_WRITE
            | bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
            | bindings::ib_wr_opcode_IB_WR_RDMA_READ
            | bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV) => {
                // SAFETY: By the type invariant `at` is the first member of the struct of its
                // opcode.
                let wr = unsafe { self.at.cast::<bindings::ib_rdma_wr>().read_unaligned() };
                let remote = Remote {
                    addr: wr.remote_addr,
                    rkey: wr.rkey,
                };
                match opcode {
                    bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => SendOp::RdmaWrite(remote),
                    bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                        SendOp::RdmaWriteWithImm(remote, imm)
                    }
                    _ => SendOp::RdmaRead {
                        from: remote,
                        invalidate: opcode == bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV,
                    },
                }
            }
            opcode @ (bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP
            | bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD) => {
                // SAFETY: By the type invariant `at` is the first member of the struct of its
                // opcode.
                let wr = unsafe { self.at.cast::<bindings::ib_atomic_wr>().read_unaligned() };
                let at = Remote {
                    addr: wr.remote_addr,
                    rkey: wr.rkey,
                };
                if opcode == bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP {
                    SendOp::AtomicCmpAndSwp {
                        at,
                        compare: wr.compare_add,
                        swap: wr.swap,
                    }
                } else {
                    SendOp::AtomicFetchAndAdd {
                        at,
                        add: wr.compare_add,
                    }
                }
            }
            bindings::ib_wr_opcode_IB_WR_REG_MR => {
                // SAFETY: By the type invariant `at` is the first member of the struct of its
                // opcode.
                let reg = unsafe { self.at.cast::<bindings::ib_reg_wr>().read_unaligned() };
                let mr = NonNull::new(reg.mr).ok_or(EINVAL)?;
                SendOp::RegMr {
                    // SAFETY: By the type invariant the region, which the struct names, is STARTED
                    // and alive for `'a`.
                    mr: unsafe { Mr::from_raw(mr.as_ptr()) },
                    key: reg.key,
                    // CAST: The access flags are bit flags.
                    access: Access::from_raw(reg.access as u32),
                }
            }
            _ => return Err(EINVAL),
        })
    }

    /// Copies the data of a request with [`SendFlags::INLINE`] and returns its length in bytes.
    /// Returns `EINVAL` if the request does not have that flag or the data is longer than `to`.
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
                // SAFETY: With this flag the addresses in the list are kernel addresses of memory
                // that the caller of the verb can read (include/rdma/ib_verbs.h, IB_SEND_INLINE).
                // `to` has `len` bytes and is not that memory.
                unsafe {
                    core::ptr::copy_nonoverlapping(sge.addr() as *const u8, to.as_mut_ptr(), len)
                };
            }
            at = end;
        }
        Ok(at)
    }
}

/// The list of send work requests that a verb is to post.
///
/// # Invariants
///
/// `next` is `NULL` or a request of a list for a QP of type `qp_type`, and every request of that
/// list from `next` on fulfils the invariants of [`SendWr`] for `'a`. `last` is only compared and
/// returned.
pub struct SendWrs<'a, D: Operations> {
    next: *const bindings::ib_send_wr,
    /// Address of the request taken last or, before that, of the first.
    last: *const bindings::ib_send_wr,
    qp_type: Option<QpType>,
    _list: PhantomData<&'a ()>,
    _driver: PhantomData<fn(&D)>,
}

impl<'a, D: Operations> SendWrs<'a, D> {
    /// # Safety
    ///
    /// `wr` must be `NULL` or a list of requests for a QP of type `qp_type`, whose structs,
    /// scatter/gather lists and objects are valid for `'a`, with any alignment.
    pub(crate) unsafe fn new(wr: *const bindings::ib_send_wr, qp_type: Option<QpType>) -> Self {
        // INVARIANT: The caller promises that `wr` is such a list.
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
        // SAFETY: By the type invariant `next`, which is not `NULL`, is a request that is valid for
        // reads.
        let raw = unsafe { self.next.read_unaligned() };
        // INVARIANT: The successor is in the same list. The request fulfils the invariants of
        // `SendWr` by those of this type.
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

/// A copy of a receive work request, because the C struct need not be aligned.
///
/// # Invariants
///
/// The `sg_list` of `raw` is `NULL` or valid for reads of `num_sge` entries for `'a`, with any
/// alignment.
pub struct RecvWr<'a> {
    raw: bindings::ib_recv_wr,
    _list: PhantomData<&'a bindings::ib_recv_wr>,
}

impl<'a> RecvWr<'a> {
    /// Returns the `wr_id` of the request.
    pub fn wr_id(&self) -> u64 {
        // SAFETY: Both variants of the union are 64 bits without padding.
        unsafe { *self.raw.__bindgen_anon_1.wr_id }
    }

    /// Returns the scatter/gather list.
    pub fn sges(&self) -> Sges<'a> {
        // SAFETY: By the type invariant `sg_list` is `NULL` or valid for `num_sge` entries for
        // `'a`.
        unsafe { Sges::new(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Returns the size of the buffers in bytes, or `u32::MAX` if they are larger.
    pub fn length(&self) -> u32 {
        let lengths = self.sges().map(|sge| sge.length());
        lengths.fold(0, u32::saturating_add)
    }
}

/// The list of receive work requests that a verb is to post.
///
/// # Invariants
///
/// `next` is `NULL` or a request of a list, and every request of that list from `next` on, and its
/// scatter/gather list, is valid for reads for `'a`, with any alignment. `last` is only compared
/// and returned.
pub struct RecvWrs<'a> {
    next: *const bindings::ib_recv_wr,
    last: *const bindings::ib_recv_wr,
    _list: PhantomData<&'a ()>,
}

impl RecvWrs<'_> {
    /// # Safety
    ///
    /// `wr` must be `NULL` or a list of requests that, with their scatter/gather lists, are valid
    /// for reads for the lifetime, with any alignment.
    pub(crate) unsafe fn new(wr: *const bindings::ib_recv_wr) -> Self {
        // INVARIANT: The caller promises that `wr` is such a list.
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
        // SAFETY: By the type invariant `next`, which is not `NULL`, is a request that is valid for
        // reads.
        let raw = unsafe { self.next.read_unaligned() };
        // INVARIANT: The successor is in the same list. The scatter/gather list is valid by the
        // invariant.
        self.next = raw.next;
        Some(RecvWr {
            raw,
            _list: PhantomData,
        })
    }
}
