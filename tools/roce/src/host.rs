// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a queue pair needs from the NIC around it: its rings, memory, completion queues and the way out.
//!
//! A [`Host`] is handed to each call of a [`Qp`](crate::Qp) and stands for *that* queue pair's surroundings, so its
//! methods name no queue pair. Nothing here reads guest memory twice: a WQE is decoded into a snapshot once.

mod sges;

use crate::packet::{Feth, Packet};
use crate::pool::Pool;
use alloc::boxed::Box;
use core::cell::Cell;
pub use sges::{Rare, Sge, SgeList};
pub use verbena_abi::cqe::{WcOpcode, WcStatus};
use verbena_abi::ctx::access;
pub use verbena_abi::eqe::EventType;
pub use verbena_abi::syndrome::Syndrome;
pub use verbena_abi::wqe::WqeOpcode;

/// Header of a decoded send WQE; its data is a [`Gather`].
#[derive(Clone, Debug)]
pub struct SendWqe {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Operation.
    pub opcode: WqeOpcode,
    /// `IBV_SEND_SIGNALED`, or the queue signals everything.
    pub signaled: bool,
    /// `IBV_SEND_SOLICITED`.
    pub solicited: bool,
    /// `IBV_SEND_FENCE`.
    pub fence: bool,
    /// Immediate data in network order, or the key to invalidate (little endian).
    pub imm: [u8; 4],
    /// RDMA and atomics: address at the peer.
    pub remote_addr: u64,
    /// RDMA and atomics: key at the peer.
    pub rkey: u32,
    /// Atomics: value to compare with, or to add.
    pub compare_add: u64,
    /// Atomics: value to store.
    pub swap: u64,
    /// Extended connections: the shared receive queue at the peer.
    pub srqn: u32,
    /// FLUSH: what, and how many bytes.
    pub flush: (Feth, u32),
    /// Datagrams: where to. Set by [`SendWqe::set_datagram`].
    pub datagram: Option<Box<DatagramDest>>,
}

impl SendWqe {
    /// Sets where a datagram goes, in the memory that an earlier one has left here.
    pub fn set_datagram(&mut self, dest: DatagramDest) {
        match &mut self.datagram {
            Some(place) => **place = dest,
            None => self.datagram = Some(Box::new(dest)),
        }
    }
}

impl Default for SendWqe {
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

/// Destination of a datagram, from the WQE's address vector. The NIC has checked PD and source GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramDest {
    /// The path.
    pub path: crate::wire::Path,
    /// Destination QPN.
    pub qpn: u32,
    /// Q_Key; with the top bit set the queue pair's own is sent (IBTA 10.2.5).
    pub qkey: u32,
}

/// Data of one work request: where the bytes are. Shared with packets in flight to local peers, and read when such a
/// packet arrives. Once the work request is completed, flushed or dropped, `alive` is false: a packet that still
/// refers to it counts as lost, so no buffer is touched after its completion.
#[derive(Debug, Default)]
pub struct Gather {
    /// Protection domain that the SGEs are checked against.
    pub pd: u32,
    /// SGEs; empty when inline.
    pub sges: SgeList,
    /// Inline data.
    pub inline: Rare<u8>,
    /// The QP may use the reserved DMA key.
    pub privileged: bool,
    /// Bytes of the message. Computed by the transport when the WQE starts.
    pub(crate) length: u32,
    pub(crate) alive: Cell<bool>,
    /// Why the sender's memory could not be read, when a copy found that.
    pub(crate) fault: Cell<Option<Syndrome>>,
}

impl Gather {
    /// Empties it for reuse; capacity stays.
    pub(crate) fn recycle(&mut self) {
        self.sges.clear();
        self.inline.clear();
        self.length = 0;
        self.alive.set(false);
        self.fault.set(None);
    }

    /// Whether the work request still owns its buffers.
    pub fn is_alive(&self) -> bool {
        self.alive.get()
    }

    /// Bytes `offset..offset + length` as a source for [`Host::copy`].
    pub fn source(&self, offset: u32, length: u32) -> Source<'_> {
        if self.inline.is_empty() {
            Source::Gather {
                pd: self.pd,
                privileged: self.privileged,
                sges: &self.sges,
                offset,
                length,
            }
        } else {
            Source::Bytes(part(&self.inline, offset, length))
        }
    }
}

/// Bytes `offset..offset + length`, as far as there are any.
pub(crate) fn part(bytes: &[u8], offset: u32, length: u32) -> &[u8] {
    let rest = bytes.get(offset as usize..).unwrap_or(&[]);
    rest.get(..length as usize).unwrap_or(rest)
}

/// A shared receive queue for extended connections (A14), as a request names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcSrq {
    /// Number.
    pub srqn: u32,
    /// No other queue has, or ever had, the same; 0 is none.
    pub life: u64,
    /// Protection domain of its receives, and of what its requests may access.
    pub pd: u32,
}

/// A decoded receive WQE.
#[derive(Clone, Debug, Default)]
pub struct RecvWqe {
    /// Targets of extended connections: which queue it is to be taken from.
    pub xrc: XrcSrq,
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Free-running index in the RQ or SRQ.
    pub index: u32,
    /// Protection domain that the SGEs are checked against (an SRQ's own).
    pub pd: u32,
    /// The QP may use the reserved DMA key.
    pub privileged: bool,
    /// SGEs.
    pub sges: SgeList,
}

impl RecvWqe {
    /// Bytes that the SGEs hold.
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.length)).sum()
    }
}

/// What [`Host::take_recv`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// A receive was taken from the ring.
    Taken,
    /// None is posted.
    Empty,
    /// One was taken, and cannot be used: `wr_id` and `index` are valid. RC completes it with LOC_QP_OP_ERR.
    Malformed(Syndrome),
    /// The ring cannot be read or the SRQ is dead: no receive was taken and none ever will be.
    Dead(Syndrome),
}

/// Why a send WQE cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqeError {
    /// Status of its completion.
    pub status: WcStatus,
    /// Cause.
    pub syndrome: Syndrome,
}

impl WqeError {
    /// An error with a status and a cause.
    pub const fn new(status: WcStatus, syndrome: Syndrome) -> Self {
        Self { status, syndrome }
    }
}

/// A use of a memory key, to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// Protection domain of the user.
    pub pd: u32,
    /// The user, by [`Config::owner`](crate::qp::Config::owner): a memory window may be bound to one queue pair. Nothing of local keys.
    pub owner: u64,
    /// The user may use the reserved DMA key (only ever for local keys).
    pub privileged: bool,
    /// Key.
    pub key: u32,
    /// First address.
    pub addr: u64,
    /// Bytes; never 0: an access of zero length needs no valid key (IBTA 9.7.4).
    pub length: u64,
    /// What it is to be used for.
    pub access: Access,
}

/// What a key is used for. The kind tells which family of syndromes a failure is named by (`Lkey*` or `Rkey*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Gather of a SEND or WRITE: always allowed.
    LocalRead,
    /// Scatter of a receive, READ or atomic.
    LocalWrite,
    /// RDMA READ by the peer.
    RemoteRead,
    /// RDMA WRITE by the peer.
    RemoteWrite,
    /// Atomic by the peer.
    RemoteAtomic,
    /// FLUSH by the peer. Of a whole region, neither address nor length count.
    RemoteFlush(Feth),
}

impl Access {
    /// Whether it is by a local key.
    #[inline]
    pub fn is_local(self) -> bool {
        matches!(self, Access::LocalRead | Access::LocalWrite)
    }

    /// The permission that it needs of the memory region: of `verbena_abi::ctx::access`; none to read locally.
    #[inline]
    pub fn permission(self) -> u32 {
        match self {
            Access::LocalRead => 0,
            Access::LocalWrite => access::LOCAL_WRITE,
            Access::RemoteRead => access::REMOTE_READ,
            Access::RemoteWrite => access::REMOTE_WRITE,
            Access::RemoteAtomic => access::REMOTE_ATOMIC,
            Access::RemoteFlush(feth) => feth.permission(),
        }
    }
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Bytes of a frame or a WQE.
    Bytes(&'a [u8]),
    /// A part of what SGEs describe (access: [`Access::LocalRead`]).
    Gather {
        /// Protection domain.
        pd: u32,
        /// The reserved DMA key is allowed.
        privileged: bool,
        /// All SGEs of the message.
        sges: &'a [Sge],
        /// First byte, counted over all SGEs.
        offset: u32,
        /// Number of bytes.
        length: u32,
    },
    /// A part of a memory region that a READ asked for (access: [`Access::RemoteRead`]).
    Region {
        /// Protection domain.
        pd: u32,
        /// As in [`KeyUse::owner`].
        owner: u64,
        /// Key.
        key: u32,
        /// First address.
        addr: u64,
        /// Number of bytes.
        length: u32,
    },
}

/// Where bytes go.
#[derive(Debug)]
pub enum Target<'a> {
    /// A buffer of the engine's own, of exactly the source's size.
    Buffer(&'a mut [u8]),
    /// A part of what SGEs describe (access: [`Access::LocalWrite`]); as many bytes as the source has.
    Scatter {
        /// Protection domain.
        pd: u32,
        /// The reserved DMA key is allowed.
        privileged: bool,
        /// All SGEs of the message.
        sges: &'a [Sge],
        /// First byte, counted over all SGEs.
        offset: u32,
    },
    /// A part of a memory region that a WRITE names (access: [`Access::RemoteWrite`]).
    Region {
        /// Protection domain.
        pd: u32,
        /// As in [`KeyUse::owner`].
        owner: u64,
        /// Key.
        key: u32,
        /// First address.
        addr: u64,
    },
}

/// Which side of a copy failed, and why. Bytes before the failure may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFault {
    /// The source.
    Source(Syndrome),
    /// The target.
    Target(Syndrome),
}

/// An atomic operation on 8 aligned bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// What a completion of a send WQE is called.
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

/// A completion, of the queue pair that the call was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// From the WQE.
    pub wr_id: u64,
    /// Free-running index of the WQE in its ring.
    pub wqe_index: u32,
    /// Status.
    pub status: WcStatus,
    /// Cause when `status` is not SUCCESS.
    pub syndrome: Option<Syndrome>,
    /// What completed; tells send and receive queue apart also in error ([`WcOpcode::Recv`] and above are receives).
    pub opcode: WcOpcode,
    /// Bytes received, or returned by a READ or atomic.
    pub byte_len: u32,
    /// Immediate data in network order.
    pub imm: Option<[u8; 4]>,
    /// Key that the peer's SEND invalidated.
    pub invalidated: Option<u32>,
    /// The completion counts as solicited (IBTA 11.4.2; errors always do).
    pub solicited: bool,
    /// Datagrams: the source.
    pub source: Option<DatagramSource>,
    /// Receives of extended connections: where it was taken from, and whose CQ is told.
    pub xrc: XrcSrq,
}

impl Completion {
    /// Whether it belongs to the receive queue.
    pub fn is_recv(&self) -> bool {
        self.opcode as u8 & verbena_abi::cqe::WC_OPCODE_RECV != 0
    }
}

/// Who sent a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSource {
    /// Its QPN.
    pub qpn: u32,
    /// The path it came by, seen from the sender.
    pub path: crate::wire::Path,
}

/// The surroundings of one queue pair.
pub trait Host {
    /// Decodes send WQE `index`, once, into `wqe` and `gather` (which come empty: `sges` and `inline` have length 0).
    /// Checks what is wrong in the WQE itself (opcode known, flags, SGE count, inline length, PD of the address
    /// handle); keys are checked by [`Host::check`] later. Of a datagram, `wqe` may still have an earlier destination; it is to
    /// be set anew. On an error `wr_id` and `opcode` have to be as good as can be.
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut SendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError>;

    /// The `wr_id` and opcode of send WQE `index`, to flush it. An unknown opcode reads as SEND.
    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode);

    /// Takes the next receive of the RQ or SRQ into `wqe` (whose `sges` come empty). A taken receive is the queue
    /// pair's to complete, exactly once.
    fn take_recv(&mut self, wqe: &mut RecvWqe) -> Take;

    /// How many receives are posted to the RQ and not taken. None: they are in an SRQ, or it is not known, and the peer is
    /// told that credits are not used (IBTA 9.7.7.2).
    fn recv_credits(&mut self) -> Option<u32> {
        None
    }

    /// Finds the shared receive queue that a request of an extended connection names.
    ///
    /// # Errors
    ///
    /// None of this number for extended connections, or one of another domain; SRQ_DIED or CQ_DIED: one that completes nothing
    /// any more.
    fn xrc_srq(&mut self, _srqn: u32) -> Result<XrcSrq, Syndrome> {
        Err(Syndrome::XrcSrq)
    }

    /// Checks a key for a use.
    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome>;

    /// Copies all bytes of `source` to `target`, each exactly once, checking keys again: memory regions may have
    /// changed since [`Host::check`].
    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault>;

    /// Executes an atomic on 8 aligned bytes of a memory region and returns the value before (in the machine's order).
    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome>;

    /// Writes 8 aligned bytes of a memory region at once, after all that was written before.
    fn atomic_write(&mut self, key: &KeyUse, value: [u8; 8]) -> Result<(), Syndrome> {
        let target = Target::Region {
            pd: key.pd,
            owner: key.owner,
            key: key.key,
            addr: key.addr,
        };
        let copied = self.copy(target, Source::Bytes(&value));
        copied.map_err(|fault| match fault {
            CopyFault::Source(cause) | CopyFault::Target(cause) => cause,
        })
    }

    /// Invalidates a key: for the peer's SEND with invalidate (`remote`), or for a local invalidate.
    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome>;

    /// Executes the fast registration of send WQE `index`.
    fn fast_register(&mut self, index: u32) -> Result<(), Syndrome>;

    /// Executes the bind of a memory window of send WQE `index`, which was decoded into `wqe`.
    fn bind_window(&mut self, _index: u32, _wqe: &SendWqe) -> Result<(), Syndrome> {
        Err(Syndrome::BindWindow)
    }

    /// Writes a completion to the send or receive CQ ([`Completion::is_recv`]). False: that CQ is dead and the completion is lost, and
    /// the owner calls `Qp::handle_failure` soon; until then the queue pair answers and sends nothing.
    fn complete(&mut self, completion: &Completion) -> bool;

    /// Reports an asynchronous event of the queue pair.
    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>);

    /// Sends a packet: to the queue of a local peer, or out. It must not be delivered before this call returns.
    fn transmit(&mut self, packet: Packet);

    /// A request or response that had come ahead of a gap and was kept is about to be executed. For those who watch.
    fn executes_kept(&mut self, _packet: &Packet) {}

    /// Where buffers for copies come from: payloads of unreliable services. Without one, each is allocated.
    fn pool(&mut self) -> Option<&mut Pool> {
        None
    }
}
