// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The interface between a queue pair and the NIC around it: rings, memory, completion queues and
//! outgoing packets.
//!
//! A [`Host`] is passed to each call of a [`Qp`](crate::Qp) and stands for the surroundings of
//! *that* queue pair, so its methods name no queue pair. A WQE is decoded into a snapshot once, so
//! that no guest memory is read twice.

pub use crate::copy::{CopyFault, CopySource, CopyTarget};
pub use crate::gather::Gather;
pub use crate::headers::AtomicOp;
use crate::headers::Feth;
use crate::packet::Packet;
use crate::pool::Pool;
pub use crate::sges::{LazyVec, Sge, SgeList};
use alloc::boxed::Box;
pub use verbena_abi::cqe::{WcOpcode, WcStatus};
use verbena_abi::ctx::access;
pub use verbena_abi::eqe::EventType;
pub use verbena_abi::syndrome::Syndrome;
pub use verbena_abi::wqe::WqeOpcode;

/// Header of a decoded send WQE; the data of the WQE is in a [`Gather`].
#[derive(Clone, Debug)]
pub struct DecodedSendWqe {
    /// Work request ID that the completion returns.
    pub wr_id: u64,
    /// Operation of the work request.
    pub opcode: WqeOpcode,
    /// True for `IBV_SEND_SIGNALED`, and for every WQE if the send queue signals all of them.
    pub signaled: bool,
    /// True for `IBV_SEND_SOLICITED` (solicited event).
    pub solicited: bool,
    /// True for `IBV_SEND_FENCE` (fence).
    pub fence: bool,
    /// Immediate data in network order, or the key to invalidate in little endian.
    pub imm: [u8; 4],
    /// RDMA and atomics: address at the peer.
    pub remote_addr: u64,
    /// RDMA and atomics: R_Key at the peer.
    pub rkey: u32,
    /// Atomics: value to compare with (CmpSwap), or to add (FetchAdd).
    pub compare_add: u64,
    /// Atomics: value to store (CmpSwap).
    pub swap: u64,
    /// Extended connections: number of the shared receive queue at the peer.
    pub srqn: u32,
    /// FLUSH: placement type and selectivity level, and the number of bytes to flush.
    pub flush: (Feth, u32),
    /// Datagrams: destination, set by [`DecodedSendWqe::set_datagram`].
    pub datagram: Option<Box<DatagramDest>>,
}

impl DecodedSendWqe {
    /// Sets the destination of a datagram, and reuses the allocation of an earlier destination.
    pub fn set_datagram(&mut self, dest: DatagramDest) {
        match &mut self.datagram {
            Some(place) => **place = dest,
            None => self.datagram = Some(Box::new(dest)),
        }
    }
}

impl Default for DecodedSendWqe {
    fn default() -> Self {
        Self {
            wr_id: 0,
            opcode: WqeOpcode::Send,
            signaled: false,
            solicited: false,
            fence: false,
            imm: [0; 4],
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            srqn: 0,
            flush: Default::default(),
            datagram: None,
        }
    }
}

/// Destination of a datagram, from the address vector of the WQE. The NIC has checked the PD and
/// the source GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramDest {
    /// Path from the sender to the receiver.
    pub path: crate::wire::Path,
    /// QPN of the destination.
    pub qpn: u32,
    /// P_Key of the datagram; None for that of the queue pair. Only the work requests of a GSI queue
    /// pair name a P_Key (IBTA 10.9.2).
    pub pkey: Option<u16>,
    /// Q_Key of the work request; if its top bit is set, the queue pair's own Q_Key is sent
    /// (IBTA 10.2.5).
    pub qkey: u32,
}

/// A shared receive queue for extended connections (A14) that a request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcSrq {
    /// Number of the shared receive queue.
    pub srqn: u32,
    /// Identity of the queue, which no other queue has or ever had; 0 means no queue.
    pub life: u64,
    /// Protection domain of the receives of the queue, and of the memory that its requests may
    /// access.
    pub pd: u32,
}

/// A decoded receive WQE.
#[derive(Clone, Debug, Default)]
pub struct DecodedRecvWqe {
    /// Targets of extended connections: the queue from which the receive is to be taken.
    pub xrc: XrcSrq,
    /// Work request ID that the completion returns.
    pub wr_id: u64,
    /// Free-running index of the WQE in the RQ or SRQ.
    pub index: u32,
    /// Protection domain that the SGEs are checked against; for an SRQ, its own.
    pub pd: u32,
    /// True if the QP may use the reserved DMA key.
    pub privileged: bool,
    /// SGEs of the receive buffer.
    pub sges: SgeList,
}

impl DecodedRecvWqe {
    /// Returns the number of bytes that the SGEs hold.
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.length)).sum()
    }
}

/// Result of [`Host::take_recv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvFetch {
    /// A receive was taken from the ring.
    Taken,
    /// No receive is posted.
    Empty,
    /// A receive was taken but cannot be used; its `wr_id` and `index` are valid. An RC queue pair
    /// completes it with LOC_QP_OP_ERR.
    Malformed(Syndrome),
    /// The ring cannot be read, or the SRQ is in error: no receive was taken, and none will be
    /// taken later.
    QueueError(Syndrome),
}

/// Reason for which a send WQE cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqeError {
    /// Status of the completion of the WQE.
    pub status: WcStatus,
    /// Cause of the error.
    pub syndrome: Syndrome,
}

impl WqeError {
    /// Returns an error with a status and a cause.
    pub const fn new(status: WcStatus, syndrome: Syndrome) -> Self {
        Self { status, syndrome }
    }
}

/// A use of a memory key that is to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// Protection domain of the queue pair or SRQ that uses the key.
    pub pd: u32,
    /// Queue pair that uses the key, by [`QpConfig::owner`](crate::qp::QpConfig::owner), because a
    /// memory window may be bound to one queue pair. Local keys are checked without it.
    pub owner: u64,
    /// True if the user of the key may use the reserved DMA key; only for local keys.
    pub privileged: bool,
    /// Key that is used.
    pub key: u32,
    /// First address of the access.
    pub addr: u64,
    /// Number of bytes; never 0, because an access of zero length needs no valid key (IBTA 9.7.4).
    pub length: u64,
    /// Kind of the access.
    pub access: KeyAccess,
}

/// Kind of an access by a key. It determines the family of syndromes that reports a failure
/// (`Lkey*` or `Rkey*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAccess {
    /// Gather of a SEND or WRITE, which needs no permission.
    LocalRead,
    /// Scatter of a receive, READ or atomic.
    LocalWrite,
    /// RDMA READ by the peer.
    RemoteRead,
    /// RDMA WRITE by the peer.
    RemoteWrite,
    /// Atomic by the peer.
    RemoteAtomic,
    /// FLUSH by the peer. For a FLUSH of a whole region, address and length are ignored.
    RemoteFlush(Feth),
}

impl KeyAccess {
    /// True if the access uses a local key.
    #[inline]
    pub fn is_local(self) -> bool {
        matches!(self, KeyAccess::LocalRead | KeyAccess::LocalWrite)
    }

    /// Returns the permission of `verbena_abi::ctx::access` that the memory region must have, or 0
    /// for a local read.
    #[inline]
    pub fn permission(self) -> u32 {
        match self {
            KeyAccess::LocalRead => 0,
            KeyAccess::LocalWrite => access::LOCAL_WRITE,
            KeyAccess::RemoteRead => access::REMOTE_READ,
            KeyAccess::RemoteWrite => access::REMOTE_WRITE,
            KeyAccess::RemoteAtomic => access::REMOTE_ATOMIC,
            KeyAccess::RemoteFlush(feth) => feth.permission(),
        }
    }
}

/// Returns the opcode that the completion of a send WQE has.
pub fn completes_as(opcode: WqeOpcode) -> WcOpcode {
    match opcode {
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => WcOpcode::RdmaWrite,
        WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv => WcOpcode::Send,
        WqeOpcode::RdmaRead => WcOpcode::RdmaRead,
        WqeOpcode::CompareSwap => WcOpcode::CompSwap,
        WqeOpcode::FetchAdd => WcOpcode::FetchAdd,
        WqeOpcode::LocalInv => WcOpcode::LocalInv,
        WqeOpcode::FastReg => WcOpcode::FastReg,
        WqeOpcode::BindMw => WcOpcode::BindMw,
        WqeOpcode::AtomicWrite => WcOpcode::AtomicWrite,
        WqeOpcode::Flush => WcOpcode::Flush,
    }
}

/// A completion of the queue pair on which the call was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Work request ID of the WQE.
    pub wr_id: u64,
    /// Free-running index of the WQE in its ring.
    pub wqe_index: u32,
    /// Status of the completion.
    pub status: WcStatus,
    /// Cause of the error if `status` is not SUCCESS.
    pub syndrome: Option<Syndrome>,
    /// Completed operation. It distinguishes the send from the receive queue also for errors
    /// ([`WcOpcode::Recv`] and above are receives).
    pub opcode: WcOpcode,
    /// Number of bytes received, or returned by a READ or atomic.
    pub byte_len: u32,
    /// Immediate data in network order.
    pub imm: Option<[u8; 4]>,
    /// Key that the peer's SEND invalidated.
    pub invalidated: Option<u32>,
    /// True if the completion counts as solicited (IBTA 11.4.2; errors always do).
    pub solicited: bool,
    /// Datagrams: sender of the datagram.
    pub source: Option<DatagramSource>,
    /// Receives of extended connections: shared receive queue that the receive was taken from, and
    /// whose CQ gets the completion.
    pub xrc: XrcSrq,
}

impl WorkCompletion {
    /// True if the completion belongs to the receive queue.
    pub fn is_recv(&self) -> bool {
        self.opcode as u8 & verbena_abi::cqe::WC_OPCODE_RECV != 0
    }
}

/// Sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSource {
    /// QPN of the sender.
    pub qpn: u32,
    /// Path of the datagram from the sender's point of view. If it has no GRH
    /// ([`Path::has_grh`](crate::wire::Path::has_grh)), the 40 bytes before the payload are
    /// undefined.
    pub path: crate::wire::Path,
    /// P_Key of the datagram.
    pub pkey: u16,
}

/// Key that a received packet violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolatedKey {
    /// The P_Key of the packet is not that of the queue pair (IBTA 10.9.3).
    PKey,
    /// The Q_Key of the datagram is not that of the queue pair (IBTA 9.6.1.4.1).
    QKey,
}

/// P_Key of a full member of the default partition (IBTA 10.9.1.2).
pub const DEFAULT_PKEY: u16 = 0xffff;

/// True if two P_Keys match: the lower 15 bits are equal and not 0, and at least one of the keys is
/// that of a full member (IBTA 10.9.3).
#[inline]
pub fn pkeys_match(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && a & 0x7fff != 0 && (a | b) & 0x8000 != 0
}

/// The surroundings of one queue pair.
pub trait Host {
    /// Decodes send WQE `index` into `wqe` and `gather`, once (`sges` and `inline` are empty
    /// before). Checks the WQE itself (opcode known, flags, SGE count, inline length, PD of the
    /// address handle); [`Host::check`] checks its keys later. For a datagram the host sets the
    /// destination in `wqe` anew, because `wqe` may still have an earlier one. On an error the host
    /// sets `wr_id` and `opcode` as far as it can decode them.
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut DecodedSendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError>;

    /// Returns the `wr_id` and opcode of send WQE `index`, to flush it. An unknown opcode reads as
    /// SEND.
    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode);

    /// Takes the next receive of the RQ or SRQ into `wqe` (whose `sges` are empty before). The
    /// queue pair completes a taken receive exactly once.
    fn take_recv(&mut self, wqe: &mut DecodedRecvWqe) -> RecvFetch;

    /// Returns the number of receives that are posted to the RQ and not yet taken. `None` if the
    /// receives are in an SRQ or the number is not known: the responder then advertises to the peer
    /// that credits are not used (IBTA 9.7.7.2).
    fn recv_credits(&mut self) -> Option<u32> {
        None
    }

    /// True if [`Host::take_recv`] would find a receive now. A queue pair calls this after it found
    /// none, when receives may have been posted.
    fn has_recv(&mut self) -> bool {
        self.recv_credits().is_some_and(|posted| posted != 0)
    }

    /// Finds the shared receive queue that a request of an extended connection names.
    ///
    /// # Errors
    ///
    /// No SRQ for extended connections has this number, or the SRQ belongs to another domain.
    /// `SrqDied` or `CqDied`: the SRQ or its CQ is in error and completes nothing any more.
    fn xrc_srq(&mut self, _srqn: u32) -> Result<XrcSrq, Syndrome> {
        Err(Syndrome::XrcSrq)
    }

    /// Checks whether a key allows an access.
    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome>;

    /// Copies all bytes of `source` to `target`, each exactly once. Checks the keys again, because
    /// memory regions may have changed since [`Host::check`].
    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault>;

    /// Executes an atomic on 8 aligned bytes of a memory region and returns the value before the
    /// operation, in the byte order of the machine.
    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome>;

    /// Writes 8 aligned bytes of a memory region at once, after all earlier writes.
    fn atomic_write(&mut self, key: &KeyUse, value: [u8; 8]) -> Result<(), Syndrome> {
        let target = CopyTarget::Region {
            pd: key.pd,
            owner: key.owner,
            key: key.key,
            addr: key.addr,
        };
        let copied = self.copy(target, CopySource::Bytes(&value));
        copied.map_err(|fault| match fault {
            CopyFault::Source(cause) | CopyFault::Target(cause) => cause,
        })
    }

    /// Invalidates a key, for the peer's SEND with invalidate (`remote`) or for a local invalidate.
    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome>;

    /// Executes the fast registration of send WQE `index`.
    fn fast_register(&mut self, index: u32) -> Result<(), Syndrome>;

    /// Executes the bind of a memory window of send WQE `index`, which was decoded into `wqe`.
    fn bind_window(&mut self, _index: u32, _wqe: &DecodedSendWqe) -> Result<(), Syndrome> {
        Err(Syndrome::BindWindow)
    }

    /// Writes a completion to the send or receive CQ ([`WorkCompletion::is_recv`]). Returns false if
    /// that CQ is in error and the completion is lost. The owner then calls `Qp::handle_failure`
    /// soon, and the queue pair answers and sends nothing before that call.
    fn complete(&mut self, completion: &WorkCompletion) -> bool;

    /// Reports an asynchronous event of the queue pair.
    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>);

    /// Sends a packet to the queue of a local peer or to the wire. The host must not deliver the
    /// packet before this call returns.
    fn transmit(&mut self, packet: Packet);

    /// True if the P_Key table of the port has an entry that matches a P_Key. A GSI queue pair receives
    /// datagrams of all partitions of its port (IBTA 10.9.3).
    fn has_pkey(&self, pkey: u16) -> bool {
        pkeys_match(pkey, DEFAULT_PKEY)
    }

    /// Reports a packet that the queue pair drops because of a key, so that the port counts the
    /// violation (IBTA 10.9.4). Packets that the state of the queue pair does not process violate no
    /// key.
    fn on_key_violation(&mut self, _key: ViolatedKey, _packet: &Packet) {}

    /// Informs observers that a request or response that was kept because it came out of order is
    /// about to be executed.
    fn on_reassembled(&mut self, _packet: &Packet) {}

    /// Returns the pool for buffers of copies: payloads of unreliable services. Without a pool,
    /// each buffer is allocated.
    fn pool(&mut self) -> Option<&mut Pool> {
        None
    }
}
