// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A queue pair: its attributes, its state, and the calls that drive it.
//!
//! Every owner calls in the same order, and passes the time in nanoseconds of a clock that never
//! goes back. After an event (a producer index moved, a packet arrived, a deadline passed, the
//! state changed) the owner makes the call for that event. Then the owner calls [`Qp::poll`] until
//! it returns false, and sleeps until the next event or until [`Qp::next_deadline`] passes.
//!
//! | call | occasion |
//! | --- | --- |
//! | [`Qp::handle_modify`], [`Qp::handle_failure`] | driver, CQ or SRQ changes the state |
//! | [`Qp::handle_posts`] | the producer index of the send queue moved |
//! | [`Qp::handle_receives_posted`] | receives were posted |
//! | [`Qp::handle_packet`] | a packet arrived for this queue pair |
//! | [`Qp::handle_source_fault`] | the payload of a packet could not be read |
//! | [`Qp::poll`] | time passed: send, answer, flush, expire timers |
//!
//! A queue pair has two sides. The requester (`requester.rs` and `requester/`) is the send queue:
//! it sends requests and receives responses. The responder (`responder.rs` and `responder/`) is the
//! receive queue: it receives requests and sends responses. `uc.rs` is the responder of unreliable
//! connections, `ud.rs` both sides of datagrams. `cnp.rs` answers packets that routers marked.
//! `config.rs`, `state.rs`, `partition.rs` and the codes of `timers.rs` and `credits.rs` belong to
//! both sides.

pub mod cnp;
mod config;
pub mod credits;
mod outgoing;
mod partition;
mod pending_completion;
mod reassembly_buffer;
mod requester;
mod responder;
pub mod state;
pub mod timers;
mod uc;
mod ud;

use crate::counters::{CongestionCounters, Counters};
use crate::host::{EventType, Host, Syndrome, WcStatus, WorkCompletion};
use crate::packet::{Packet, PacketKind, Transport};
use crate::prefetch;
use crate::psn;
use crate::reassembly_quota::ReassemblyQuota;
use alloc::rc::Rc;
use cnp::CnpGenerator;
pub use config::QpConfig;
use core::mem;
use requester::Requester;
use responder::Responder;
pub use state::QpState;
pub use verbena_abi::cmd::QpType;

/// Attributes as the driver set them. The owner passes a changed copy to [`Qp::handle_modify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// Queue pair number (QPN) of the peer.
    pub dest_qpn: u32,
    /// First PSN that the requester sends; taken on RTR to RTS.
    pub sq_psn: u32,
    /// First PSN that the responder expects; taken on INIT to RTR.
    pub rq_psn: u32,
    /// Operations that the peer may request, as flags of `verbena_abi::ctx::access`.
    pub access_flags: u32,
    /// Q_Key of received datagrams, and of sent ones that ask for it (IBTA 10.2.5).
    pub qkey: u32,
    /// Partition key (P_Key) from the port's table.
    pub pkey: u16,
    /// Maximum number of READs and atomics that the requester has outstanding.
    pub max_rd_atomic: u8,
    /// Maximum number of READs and atomics that the responder accepts at once.
    pub max_dest_rd_atomic: u8,
    /// Code of the RNR timer in the RNR NAKs that the responder sends.
    pub min_rnr_timer: u8,
    /// Code of the local ACK timeout; 0 disables the timer.
    pub timeout: u8,
    /// Number of retries after timeouts and sequence errors, 0 to 7.
    pub retry_cnt: u8,
    /// Number of retries after RNR NAKs, 0 to 7; 7 retries for ever.
    pub rnr_retry: u8,
    /// True if SQ_DRAINED is reported when the last send in SQD is done.
    pub sqd_notify: bool,
    /// True if the peer is in the same engine: messages need no wire and go as super-packets.
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

/// Limit for one or more calls of [`Qp::poll`], so that no queue pair starves the others.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Packets (a super-packet is one), work requests without packets, and flushed completions.
    pub packets: u32,
    /// Payload bytes that may still be sent.
    pub bytes: u64,
}

impl Budget {
    /// Creates a budget of `packets` packets and `bytes` payload bytes.
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

/// Present figures for the queue pair context (QPC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSnapshot {
    /// Present state of the queue pair.
    pub state: QpState,
    /// True if sends drain: the state is SQD, and not every started send is complete.
    pub sq_draining: bool,
    /// First cause of ERR or SQE.
    pub syndrome: Option<Syndrome>,
    /// Producer index of the send queue, as last set.
    pub sq_producer: u32,
    /// Free-running index of the next send WQE to decode.
    pub sq_next: u32,
    /// Free-running index of the oldest send WQE that is not complete.
    pub sq_consumer: u32,
    /// First PSN of the next work request to start.
    pub next_psn: u32,
    /// Oldest PSN that is not acknowledged.
    pub una_psn: u32,
    /// PSN that the responder expects next.
    pub expected_psn: u32,
    /// Message sequence number (MSN) of the responder.
    pub msn: u32,
    /// Retries left after timeouts and sequence errors.
    pub retry_left: u8,
    /// Retries left after RNR NAKs.
    pub rnr_left: u8,
    /// Maximum number of packets in flight.
    pub window: u32,
    /// Packets in flight: sent and not acknowledged.
    pub in_flight: u32,
    /// Smoothed round trip and its mean deviation in ns. None if not measured, as in one device.
    pub round_trip_ns: Option<(u64, u64)>,
}

/// State that both sides share. The first two cache lines have the fields that every packet needs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Core {
    pub(crate) config: QpConfig,
    pub(crate) attr: Attr,
    pub(crate) state: QpState,
    /// True if a completion was lost with its CQ: the owner will call [`Qp::handle_failure`].
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
            QpType::Ud | QpType::Gsi | QpType::Smi => Transport::Ud,
            QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
        }
    }

    /// True if the queue pair has the side that a packet is for. In an extended connection (A14),
    /// the initiator has no responder and the target has no requester.
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

    /// True if the queue pair answers marked packets and reduces its own window for CNPs.
    pub(crate) fn controls_congestion(&self) -> bool {
        self.config.congestion_control
            && self.config.recovers
            && self.transport().is_reliable()
            && !self.attr.local_peer
    }

    /// Returns the most responses of one READ request: half a window over a wire, so that one part
    /// arrives while the next is requested, and the protocol's limit between local peers.
    pub(crate) fn read_part(&self) -> u32 {
        if self.attr.local_peer {
            psn::PSN_WINDOW
        } else {
            (self.config.wire_window / 2).max(1)
        }
    }

    pub(crate) fn super_packets(&self) -> u32 {
        if self.attr.local_peer {
            (self.config.super_bytes / self.attr.path_mtu).max(1)
        } else {
            u32::from(self.config.wire_super_packets.max(1))
        }
    }

    /// True if a completion was lost and the owner has not yet moved the queue pair to ERR.
    pub(crate) fn is_doomed(&self) -> bool {
        self.doomed && self.state != QpState::Err
    }

    pub(crate) fn complete<H: Host>(&mut self, host: &mut H, completion: &WorkCompletion) {
        if completion.status == WcStatus::WrFlushErr {
            self.counters.flushed += 1;
        } else {
            self.counters.completed += 1;
        }
        self.doomed |= !host.complete(completion);
    }
}

/// A queue pair: requester, responder and the state that they share.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Qp {
    core: Core,
    req: Requester,
    resp: Responder,
    notifier: CnpGenerator,
}

impl Qp {
    /// Creates a queue pair in RESET.
    pub fn new(config: QpConfig) -> Self {
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
            notifier: CnpGenerator::default(),
        }
    }

    /// Returns the configuration of the queue pair.
    pub fn config(&self) -> &QpConfig {
        &self.core.config
    }

    /// Charges packets that are kept ahead of a gap to this account from now on.
    pub fn set_reassembly_quota(&mut self, allowance: Rc<ReassemblyQuota>) {
        self.core.config.reassembly_quota = Some(allowance);
    }

    /// Returns the present attributes.
    pub fn attr(&self) -> &Attr {
        &self.core.attr
    }

    /// Returns the present state.
    pub fn state(&self) -> QpState {
        self.core.state
    }

    /// True if the responder refused a request and enters ERR after answering the earlier ones.
    pub fn is_refusal_pending(&self) -> bool {
        self.resp.is_refusal_pending()
    }

    /// Returns the counters since creation.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Returns the congestion counters since creation.
    pub fn congestion(&self) -> CongestionCounters {
        self.notifier.counters(self.req.spurious_retransmits())
    }

    /// Returns the index and `wr_id` of the one receive that was taken and is not complete.
    pub fn held_recv(&self) -> Option<(u32, u64)> {
        self.resp.held_recv()
    }

    /// Returns the present figures for the QPC.
    pub fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
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
            round_trip_ns: self.req.round_trip_ns(),
        }
    }

    /// Moves the queue pair to state `to`, which may be the present one, with new attributes. An
    /// error changes nothing. The owner checks which attributes a transition requires and permits;
    /// this function checks their ranges.
    ///
    /// RESET drops all work without completions. In ERR the completions follow in [`Qp::poll`].
    /// Both end all access to buffers before this function returns.
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
            // A datagram leaves at once, so it follows the present MTU of the port.
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
                self.notifier.add_spurious(self.req.reset());
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
        self.req.update_attr(&self.core, now, &old);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.resp.start(&self.core),
            (QpState::Rtr, QpState::Rts) => self.req.start(&self.core),
            (QpState::Rts, QpState::Sqd) => self.req.drain(),
            (QpState::Sqe, QpState::Rts) => {
                self.core.syndrome = None;
                // Old work requests are flushed now, or they would be sent with the new ones.
                let mut all = Budget::new(u32::MAX, u64::MAX);
                self.req.flush(&mut self.core, host, &mut all);
                self.req.resume();
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves the queue pair to ERR because its CQ, SRQ or ring failed, not because of a work
    /// request. Reports `event` (QP_FATAL) once, or not at all if the state was ERR or RESET.
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

    /// Sets the producer index of the send queue (free-running). The owner has checked that the
    /// index is at most the size of the ring ahead of [`QpSnapshot::sq_consumer`].
    pub fn handle_posts(&mut self, _now: u64, producer: u32) {
        // An XRC target has no send queue.
        if self.core.config.qp_type != QpType::XrcTgt {
            self.req.set_producer(producer);
        }
    }

    /// Handles receives that may have been posted since the last call. If the owner never calls it,
    /// a peer that waits for receives loses the time of a refused request.
    pub fn handle_receives_posted<H: Host>(&mut self, host: &mut H, _now: u64) {
        self.resp.on_receives_posted(&mut self.core, host);
    }

    /// Handles a packet for this queue pair. Acknowledgements, completions and events go to the
    /// host at once; [`Qp::poll`] sends the responses to READs and atomics.
    pub fn handle_packet<H: Host>(&mut self, host: &mut H, now: u64, packet: Packet) {
        let core = &mut self.core;
        core.counters.rx_packets += u64::from(packet.psns);
        core.counters.rx_bytes += u64::from(packet.payload.len());
        if core.is_doomed() {
            core.counters.dropped_state += 1;
            return;
        }
        // A CNP belongs to no transport service.
        let is_cnp = packet.kind == PacketKind::Cnp;
        if !is_cnp && !core.takes(&packet) {
            core.counters.dropped_transport += 1;
            return;
        }
        if !core.is_in_partition(host, packet.pkey) {
            core.drop_for_pkey(host, &packet);
            return;
        }
        if packet.marked {
            self.notifier.on_marked_packet(core, host, &packet, now);
        }
        if is_cnp {
            let runs = matches!(core.state, QpState::Rts | QpState::Sqd);
            let is_heeded = runs && self.req.on_cnp(now);
            self.notifier.on_cnp(is_heeded);
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

    /// Handles a packet of this queue pair that could not become a frame because its payload could
    /// not be read. If it is a request, its work request fails with LOC_PROT_ERR after the earlier
    /// ones are done. If it is a READ response, the peer gets a NAK for its access.
    pub fn handle_source_fault<H: Host>(
        &mut self,
        host: &mut H,
        now: u64,
        packet: &Packet,
        cause: Syndrome,
    ) {
        if packet.kind.is_request() {
            self.req.on_source_fault(&self.core, now, packet.psn, cause);
        } else if let Some(cause) =
            self.resp
                .on_source_fault(&mut self.core, host, packet.psn, cause)
        {
            self.enter_error(cause);
        }
    }

    /// Does the work that is possible now within the budget. True if more can be done at once.
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

    /// Returns the time at which [`Qp::poll`] has to be called if no event precedes it.
    pub fn next_deadline(&self) -> Option<u64> {
        match self.core.state {
            QpState::Rts | QpState::Sqd if !self.core.doomed => self.req.deadline_ns(),
            _ => None,
        }
    }

    /// Prefetches the cache lines that the next call needs. A NIC with thousands of queue pairs
    /// calls this some turns before the queue pair's own, [`Qp::prefetch_work`] a turn later, and
    /// then [`Qp::prefetch_buffers`]: each call needs addresses that the one before has fetched.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::line(&self.core.config);
        prefetch::line(&self.core.counters);
        self.req.prefetch();
        self.resp.prefetch();
    }

    /// Prefetches the slot of the next work request.
    #[inline]
    pub fn prefetch_work(&self) {
        self.req.prefetch_work();
    }

    /// Prefetches the list of buffers of the next work request.
    #[inline]
    pub fn prefetch_buffers(&self) {
        self.req.prefetch_buffers();
    }

    /// Handles a failed work request. On unreliable services only sends stop: SQE (IBTA 10.3.1).
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

    /// Completes all outstanding work in ERR, once and in order; later posts need another call.
    fn flush<H: Host>(&mut self, host: &mut H, budget: &mut Budget) -> bool {
        let sends = self.req.flush(&mut self.core, host, budget);
        let receives = self.resp.flush(&mut self.core, host, budget);
        sends || receives
    }
}
