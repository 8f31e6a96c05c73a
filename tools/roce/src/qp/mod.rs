// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A queue pair: attributes, state, and the calls that drive it.
//!
//! One call order serves all. Every call is told the time, in nanoseconds of a clock that never goes back. When something
//! happened (a producer index moved, a packet came, a deadline passed, the state changed) the owner makes the call that tells so,
//! then calls [`Qp::poll`] until it returns false, then sleeps until the next thing happens or [`Qp::next_deadline`] passes.
//!
//! | call | says |
//! | --- | --- |
//! | [`Qp::handle_modify`], [`Qp::handle_failure`] | the driver, or a dead CQ or SRQ, changes the state |
//! | [`Qp::handle_posts`] | the producer index of the send queue moved |
//! | [`Qp::handle_receives_posted`] | receives were posted |
//! | [`Qp::handle_packet`] | a packet came for this queue pair |
//! | [`Qp::handle_source_fault`] | a packet could not be turned into a frame: the sender's memory is gone |
//! | [`Qp::poll`] | time goes on: send, answer, flush, expire timers |
//!
//! A queue pair has two sides. The requester (`requester.rs`, its parts in `requester/`) is the send queue: requests go out,
//! responses come in. The responder (`responder.rs`, `responder/`) is the receive queue: requests come in, responses go out.
//! `notify.rs` answers what routers have marked.
//! `uc.rs` is the responder of an unreliable connection; `ud.rs` is both sides of datagrams. The rest belongs to both: `config.rs`, `state.rs`
//! and the codes of `timers.rs` and `credits.rs`.

mod config;
pub mod credits;
pub mod notify;
mod outgoing;
mod owed;
mod requester;
mod responder;
pub mod state;
mod store;
pub mod timers;
mod uc;
mod ud;

use crate::allowance::Allowance;
use crate::counters::{CongestionCounters, Counters};
use crate::host::{Completion, EventType, Host, Syndrome, WcStatus};
use crate::packet::{Kind, Packet, Transport};
use crate::prefetch;
use crate::psn;
use alloc::rc::Rc;
pub use config::Config;
use core::mem;
use notify::Notifier;
use requester::Requester;
use responder::Responder;
pub use state::QpState;
pub use verbena_abi::cmd::QpType;

/// Attributes, as the driver has set them. The owner changes a copy and hands it to [`Qp::handle_modify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// The peer's QPN.
    pub dest_qpn: u32,
    /// First PSN to send; taken on RTR to RTS.
    pub sq_psn: u32,
    /// First PSN to expect; taken on INIT to RTR.
    pub rq_psn: u32,
    /// `verbena_abi::ctx::access`: what the peer may do.
    pub access_flags: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Partition key, from the port's table.
    pub pkey: u16,
    /// READs and atomics that may be outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics that are accepted at once as responder.
    pub max_dest_rd_atomic: u8,
    /// Code of the RNR timer to ask for.
    pub min_rnr_timer: u8,
    /// Code of the local ACK timeout; 0: none.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 7: for ever.
    pub rnr_retry: u8,
    /// Report SQ_DRAINED when SQD is reached.
    pub sqd_notify: bool,
    /// The peer is a queue pair of the same engine, reached without a wire: messages go as super-packets.
    pub local_peer: bool,
}

impl Default for Attr {
    fn default() -> Self {
        Self {
            path_mtu: 1024,
            dest_qpn: 0,
            sq_psn: 0,
            rq_psn: 0,
            access_flags: 0,
            qkey: 0,
            pkey: 0xffff,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            sqd_notify: false,
            local_peer: false,
        }
    }
}

/// How much one call of [`Qp::poll`] may do, so that one queue pair does not starve the others. Shared over several
/// calls if the owner likes.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Packets (a super-packet is one), work requests that send none, and completions of flushed ones.
    pub packets: u32,
    /// Payload bytes.
    pub bytes: u64,
}

impl Budget {
    /// A budget.
    pub const fn new(packets: u32, bytes: u64) -> Self {
        Self { packets, bytes }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes == 0
    }

    pub(crate) fn spend(&mut self, bytes: u32) {
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u64::from(bytes));
    }
}

/// Live figures for the queue pair context (QPC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// State.
    pub state: QpState,
    /// Sends drain: SQD is not reached yet.
    pub sq_draining: bool,
    /// What brought it to ERR or SQE.
    pub syndrome: Option<Syndrome>,
    /// Producer index of the send queue as last told.
    pub sq_producer: u32,
    /// Send WQEs started.
    pub sq_next: u32,
    /// Send WQEs completed.
    pub sq_consumer: u32,
    /// Next PSN to send.
    pub next_psn: u32,
    /// Oldest PSN that is not acknowledged.
    pub una_psn: u32,
    /// PSN expected.
    pub expected_psn: u32,
    /// Message sequence number of the responder.
    pub msn: u32,
    /// Retries left.
    pub retry_left: u8,
    /// RNR retries left.
    pub rnr_left: u8,
    /// Packets that may be under way.
    pub window: u32,
    /// Packets that are: sent and not acknowledged.
    pub in_flight: u32,
    /// Round trip, smoothed, and its mean deviation, in nanoseconds. None: not measured, as between queue pairs of one device.
    pub round_trip: Option<(u64, u64)>,
}

/// What requester and responder share: what every packet needs in the first two cache lines, the rarer counters after it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) attr: Attr,
    pub(crate) state: QpState,
    /// A completion was lost with its CQ: the owner is about to call [`Qp::handle_failure`].
    pub(crate) doomed: bool,
    /// First cause of ERR or SQE.
    pub(crate) syndrome: Option<Syndrome>,
    pub(crate) counters: Counters,
}

impl Core {
    pub(crate) fn transport(&self) -> Transport {
        match self.config.qp_type {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud | QpType::Gsi => Transport::Ud,
            QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
        }
    }

    /// Whether it has the side that a packet is for: of an extended connection, the initiator has no responder, and the target no
    /// requester (A14).
    pub(crate) fn takes(&self, packet: &Packet) -> bool {
        packet.transport == self.transport()
            && match self.config.qp_type {
                QpType::XrcIni => !packet.kind.is_request(),
                QpType::XrcTgt => packet.kind.is_request(),
                _ => true,
            }
    }

    pub(crate) fn window(&self) -> u32 {
        if self.attr.local_peer {
            self.config.window
        } else {
            self.config.wire_window
        }
    }

    /// Whether it answers what routers mark, and has fewer packets under way when it is told of that.
    pub(crate) fn controls_congestion(&self) -> bool {
        self.config.congestion_control
            && self.config.recovers
            && self.transport().is_reliable()
            && !self.attr.local_peer
    }

    /// Most responses that one READ request asks for. Behind a wire, half a window: the next part is asked for while this one
    /// comes. Between local peers nothing bounds it but the protocol.
    pub(crate) fn read_part(&self) -> u32 {
        if self.attr.local_peer {
            psn::PSN_WINDOW
        } else {
            (self.config.wire_window / 2).max(1)
        }
    }

    /// Packets of a super-packet.
    pub(crate) fn super_packets(&self) -> u32 {
        if self.attr.local_peer {
            (self.config.super_bytes / self.attr.path_mtu).max(1)
        } else {
            u32::from(self.config.wire_super_packets.max(1))
        }
    }

    /// Whether a completion was lost, and the owner has not yet moved the queue pair to ERR for that.
    pub(crate) fn is_doomed(&self) -> bool {
        self.doomed && self.state != QpState::Err
    }

    pub(crate) fn complete<H: Host>(&mut self, host: &mut H, completion: &Completion) {
        if completion.status == WcStatus::WrFlushErr {
            self.counters.flushed += 1;
        } else {
            self.counters.completed += 1;
        }
        self.doomed |= !host.complete(completion);
    }
}

/// A queue pair.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Qp {
    core: Core,
    req: Requester,
    resp: Responder,
    notifier: Notifier,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(config: Config) -> Self {
        Self {
            core: Core {
                config,
                attr: Attr::default(),
                state: QpState::Reset,
                doomed: false,
                counters: Counters::default(),
                syndrome: None,
            },
            req: Requester::new(),
            resp: Responder::new(),
            notifier: Notifier::default(),
        }
    }

    /// What it was created as.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// What is kept of requests that come ahead of a gap is taken from this account from now on.
    pub fn set_allowance(&mut self, allowance: Rc<Allowance>) {
        self.core.config.allowance = Some(allowance);
    }

    /// Present attributes.
    pub fn attr(&self) -> &Attr {
        &self.core.attr
    }

    /// Present state.
    pub fn state(&self) -> QpState {
        self.core.state
    }

    /// Whether its responder has refused a request and goes to ERR once it has answered those before.
    pub fn is_ending(&self) -> bool {
        self.resp.is_ending()
    }

    /// Counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// What it has met of congestion since creation.
    pub fn congestion(&self) -> CongestionCounters {
        self.notifier.counters(self.req.spurious_retransmits())
    }

    /// The receive that was taken and has not completed: its index and `wr_id`. There is at most one.
    pub fn held_recv(&self) -> Option<(u32, u64)> {
        self.resp.held_recv()
    }

    /// Live figures for the QPC.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            state: self.core.state,
            sq_draining: self.core.state == QpState::Sqd && !self.req.is_drained(),
            syndrome: self.core.syndrome,
            sq_producer: self.req.producer(),
            sq_next: self.req.next_index(),
            sq_consumer: self.req.oldest_index(),
            next_psn: self.req.next_psn(),
            una_psn: self.req.una_psn(),
            expected_psn: self.resp.expected_psn(),
            msn: self.resp.msn(),
            retry_left: self.req.retry_left(),
            rnr_left: self.req.rnr_left(),
            window: self.req.window(&self.core),
            in_flight: self.req.in_flight(&self.core),
            round_trip: self.req.round_trip(),
        }
    }

    /// Moves the queue pair to state `to` (which may be the present one) with new attributes. On an error nothing has
    /// changed. Which attributes a transition must and may set is checked by the owner; their ranges are checked here.
    ///
    /// Entering RESET drops everything without a completion, and no buffer is touched any more when this returns.
    /// Entering ERR stops all use of buffers at once too; the completions follow in [`Qp::poll`].
    pub fn handle_modify<H: Host>(
        &mut self,
        host: &mut H,
        now: u64,
        to: QpState,
        attr: &Attr,
    ) -> Result<(), Syndrome> {
        let from = self.core.state;
        if !state::is_allowed(self.core.config.qp_type, from, to) {
            return Err(Syndrome::CmdTransition);
        }
        if !matches!(to, QpState::Reset | QpState::Err) {
            state::check_attr(attr)?;
            // Nothing of a datagram's is under way: it goes by the MTU that the port has now.
            if self.core.transport() != Transport::Ud {
                state::check_mtu(from, &self.core.attr, attr)?;
            }
        }
        match to {
            QpState::Reset => {
                self.core.attr = *attr;
                self.core.state = to;
                self.core.syndrome = None;
                self.core.doomed = false;
                self.notifier.keep_spurious(self.req.reset());
                self.resp.reset();
                return Ok(());
            }
            QpState::Err => {
                self.enter_error(Syndrome::ModifiedToErr);
                return Ok(());
            }
            _ => {}
        }
        let old = mem::replace(&mut self.core.attr, *attr);
        self.core.state = to;
        self.req.change(&self.core, now, &old);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.resp.start(&self.core),
            (QpState::Rtr, QpState::Rts) => self.req.start(&self.core),
            (QpState::Rts, QpState::Sqd) => self.req.drain(),
            (QpState::Sqe, QpState::Rts) => {
                self.core.syndrome = None;
                // Nothing of before may be taken for what is posted from now on.
                let mut all = Budget::new(u32::MAX, u64::MAX);
                self.req.flush(&mut self.core, host, &mut all);
                self.req.resume();
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves the queue pair to ERR for no work request's fault: its CQ or SRQ died, its ring is corrupt. `event` is
    /// reported once (QP_FATAL), or not at all if the queue pair was in ERR or RESET already.
    pub fn handle_failure<H: Host>(
        &mut self,
        host: &mut H,
        _now: u64,
        event: Option<EventType>,
        cause: Syndrome,
    ) {
        if matches!(self.core.state, QpState::Reset | QpState::Err) {
            return;
        }
        self.enter_error(cause);
        if let Some(event) = event {
            host.event(event, Some(cause));
        }
    }

    /// Tells the producer index of the send queue (free-running; the owner has checked that it is at most the ring's
    /// size ahead of [`Snapshot::sq_consumer`]).
    pub fn handle_posts(&mut self, _now: u64, producer: u32) {
        // A target has no send queue.
        if self.core.config.qp_type != QpType::XrcTgt {
            self.req.set_producer(producer);
        }
    }

    /// Tells that receives may have been posted since the last call. Cheap when the peer is not waiting to hear of them.
    /// An owner that never calls it costs a peer without credits the time of a request that is refused.
    pub fn handle_receives_posted<H: Host>(&mut self, host: &mut H, _now: u64) {
        self.resp.receives_posted(&mut self.core, host);
    }

    /// Handles a packet for this queue pair. Answers, completions and events go to the host at once, except READ
    /// responses, which [`Qp::poll`] sends.
    pub fn handle_packet<H: Host>(&mut self, host: &mut H, now: u64, packet: Packet) {
        let core = &mut self.core;
        core.counters.rx_packets += u64::from(packet.psns);
        core.counters.rx_bytes += u64::from(packet.payload.len());
        if core.is_doomed() {
            core.counters.dropped_state += 1;
            return;
        }
        // A CNP is of no service.
        let is_cnp = packet.kind == Kind::Cnp;
        if !is_cnp && !core.takes(&packet) {
            core.counters.dropped_transport += 1;
            return;
        }
        if !pkey_matches(packet.pkey, core.attr.pkey) {
            core.counters.dropped_pkey += 1;
            return;
        }
        if packet.marked {
            self.notifier.note_marked(core, host, &packet, now);
        }
        if is_cnp {
            let runs = matches!(core.state, QpState::Rts | QpState::Sqd);
            let is_heeded = runs && self.req.notified(now);
            self.notifier.note_cnp(is_heeded);
            return;
        }
        if packet.transport == Transport::Ud {
            if let Some(cause) = ud::receive(core, &mut self.resp, host, packet) {
                self.enter_error(cause);
            }
        } else if packet.kind.is_request() {
            let cause = match packet.transport {
                Transport::Uc => uc::receive(core, &mut self.resp, host, packet),
                _ => self.resp.receive(core, host, packet),
            };
            if let Some(cause) = cause {
                self.enter_error(cause);
            }
        } else if let Some(cause) = self.req.receive(core, host, now, packet) {
            self.enter_error(cause);
        }
    }

    /// Tells that the payload of a packet that this queue pair sent could not be read when a frame was made of it. A
    /// work request of its own fails with LOC_PROT_ERR once those before it are done; of a READ response, the peer is
    /// told that its access failed.
    pub fn handle_source_fault<H: Host>(
        &mut self,
        host: &mut H,
        now: u64,
        packet: &Packet,
        cause: Syndrome,
    ) {
        if packet.kind.is_request() {
            self.req.source_fault(&self.core, now, packet.psn, cause);
        } else if let Some(cause) = self
            .resp
            .source_fault(&mut self.core, host, packet.psn, cause)
        {
            self.enter_error(cause);
        }
    }

    /// Does what can be done now within the budget. True: there is more to do at once.
    pub fn poll<H: Host>(&mut self, host: &mut H, now: u64, budget: &mut Budget) -> bool {
        match self.core.state {
            QpState::Reset | QpState::Init => return false,
            QpState::Err => return self.flush(host, budget),
            _ if self.core.doomed => return false,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => {}
        }
        let mut more = false;
        match self.resp.run(&mut self.core, host, budget) {
            Ok(busy) => more |= busy,
            Err(cause) => {
                self.enter_error(cause);
                return true;
            }
        }
        if self.core.state == QpState::Sqe {
            return self.req.flush(&mut self.core, host, budget);
        }
        let sent = match self.core.transport() {
            Transport::Ud => ud::run(&mut self.core, &mut self.req, host, budget),
            Transport::Rc | Transport::Xrc | Transport::Uc => {
                self.req.run(&mut self.core, host, now, budget)
            }
        };
        match sent {
            Ok(busy) => more |= busy,
            Err(cause) => {
                self.send_error(cause);
                return true;
            }
        }
        self.req.report_drained(&self.core, host);
        more
    }

    /// When [`Qp::poll`] has to be called again if nothing else happens.
    pub fn next_deadline(&self) -> Option<u64> {
        match self.core.state {
            QpState::Rts | QpState::Sqd if !self.core.doomed => self.req.deadline(),
            _ => None,
        }
    }

    /// Has the cache lines fetched that the next call needs. A NIC with thousands of queue pairs calls this some turns before
    /// the queue pair's own, [`Qp::prefetch_work`] a turn later and [`Qp::prefetch_buffers`] after that: each goes by
    /// addresses that the one before has brought.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::line(&self.core.config);
        prefetch::line(&self.core.counters);
        self.req.prefetch();
        self.resp.prefetch();
    }

    /// The same for the work request that is next.
    #[inline]
    pub fn prefetch_work(&self) {
        self.req.prefetch_work();
    }

    /// The same for its list of buffers.
    #[inline]
    pub fn prefetch_buffers(&self) {
        self.req.prefetch_buffers();
    }

    /// A work request failed. On unreliable services only the send queue is in error: SQE (IBTA 10.3.1).
    fn send_error(&mut self, cause: Syndrome) {
        if self.core.transport().is_reliable() {
            self.enter_error(cause);
        } else {
            self.core.state = QpState::Sqe;
            self.core.syndrome = Some(cause);
            self.req.abandon();
        }
    }

    fn enter_error(&mut self, cause: Syndrome) {
        if self.core.state == QpState::Err {
            return;
        }
        self.core.state = QpState::Err;
        self.core.syndrome = Some(cause);
        self.req.abandon();
        self.resp.abandon();
    }

    /// In ERR: completes everything outstanding, each once and in order. Called again for what is posted later.
    fn flush<H: Host>(&mut self, host: &mut H, budget: &mut Budget) -> bool {
        let sends = self.req.flush(&mut self.core, host, budget);
        let receives = self.resp.flush(&mut self.core, host, budget);
        sends || receives
    }
}

/// Partition keys match when their lower 15 bits do and at least one side is a full member (IBTA 10.9.3).
fn pkey_matches(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0
}
