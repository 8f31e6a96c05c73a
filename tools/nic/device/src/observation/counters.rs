// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The counters of the device and of each queue pair.

use crate::observation::event::{Call, DeviceEvent, DropReason, QpEvent};
use verbena_abi::eqe::EventType;
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_abi::syndrome::Syndrome;
use verbena_transport::host::{WcStatus, WorkCompletion};
use verbena_transport::packet::PacketKind;
use verbena_transport::Packet;

/// A set of counters, of the device or of a queue pair.
#[derive(Clone, Debug)]
pub struct Counters([u64; NUM_COUNTERS]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; NUM_COUNTERS])
    }
}

impl Counters {
    /// Adds `count` to a counter, which wraps.
    #[inline]
    fn add(&mut self, counter: Counter, count: u64) {
        let value = &mut self.0[counter as usize];
        *value = value.wrapping_add(count);
    }

    /// Counts an event of the device in the counters of the device.
    #[inline(always)]
    pub(super) fn on_event(&mut self, event: &DeviceEvent<'_>) {
        match *event {
            DeviceEvent::Called(Call::RingArea { .. }) => self.add(Counter::Doorbells, 1),
            DeviceEvent::Called(Call::CountDoorbells { more }) => {
                self.add(Counter::Doorbells, more);
            }
            DeviceEvent::CommandAccepted => self.add(Counter::Commands, 1),
            DeviceEvent::InterruptRaised => self.add(Counter::Interrupts, 1),
            DeviceEvent::MulticastSent => self.add(Counter::TxMulticastPackets, 1),
            DeviceEvent::PortDown => self.add(Counter::LinkDowned, 1),
            DeviceEvent::PacketDropped(reason) => self.add(
                match reason {
                    DropReason::NoQp => Counter::RxNoQp,
                    DropReason::Malformed => Counter::RxMalformed,
                    DropReason::Icrc => Counter::RxIcrcEncapsulated,
                    DropReason::OverMtu => Counter::TxOverMtu,
                },
                1,
            ),
            DeviceEvent::Async {
                kind: EventType::CqErr,
                cause: Some(Syndrome::CqOverflow),
                ..
            } => self.add(Counter::CqOverflow, 1),
            DeviceEvent::Qp(_, QpEvent::Destroyed { counters }) => self.add_all(counters),
            _ => {}
        }
    }

    /// Counts an event of a queue pair in the counters of the queue pair.
    #[inline(always)]
    pub(crate) fn on_qp_event(&mut self, event: &QpEvent<'_>) {
        match *event {
            QpEvent::SendTaken => self.add(Counter::Posts, 1),
            QpEvent::ReceiveTaken => self.add(Counter::Recvs, 1),
            QpEvent::PacketRefused => self.add(Counter::RxNoQp, 1),
            QpEvent::PacketReceived { packet, multicast } => {
                if multicast {
                    self.add(Counter::RxMulticastPackets, 1);
                }
                self.add_request(packet);
            }
            QpEvent::Completed {
                completion, recv, ..
            } => self.add_completion(completion, recv),
            _ => {}
        }
    }

    /// Counts a completion by its status and its cause.
    fn add_completion(&mut self, completion: &WorkCompletion, recv: bool) {
        let counter = match (completion.status, recv) {
            (WcStatus::Success, _) => None,
            (WcStatus::WrFlushErr, false) => Some(Counter::ReqCqeFlush),
            (WcStatus::WrFlushErr, true) => Some(Counter::RespCqeFlush),
            (_, false) => Some(Counter::ReqCqeError),
            (_, true) => Some(Counter::RespCqeError),
        };
        let status = match (completion.status, recv) {
            (WcStatus::LocLenErr, true) => Some(Counter::RespLocalLengthError),
            (WcStatus::RemInvReqErr, false) => Some(Counter::ReqRemoteInvalidRequest),
            (WcStatus::RemAccessErr, false) => Some(Counter::ReqRemoteAccessErrors),
            _ => None,
        };
        let gave_up = match completion.syndrome {
            Some(Syndrome::RetryExceeded | Syndrome::SequenceRetryExceeded) => {
                Some(Counter::ReqTransportRetriesExceeded)
            }
            Some(Syndrome::RnrRetryExceeded) => Some(Counter::ReqRnrRetriesExceeded),
            _ => None,
        };
        for counter in [counter, status, gave_up].into_iter().flatten() {
            self.add(counter, 1);
        }
    }

    /// Adds all counters of another set.
    pub fn add_all(&mut self, other: &Self) {
        for (value, more) in self.0.iter_mut().zip(other.0) {
            *value = value.wrapping_add(more);
        }
    }

    /// Adds the counters of a queue pair's transport.
    pub fn add_transport(&mut self, qp: &verbena_transport::Qp) {
        let congestion = qp.congestion();
        self.add(Counter::RpCnpIgnored, congestion.rp_cnp_ignored);
        self.add(
            Counter::SpuriousRetransmits,
            congestion.spurious_retransmits,
        );
        let qp = qp.counters();
        let dropped = qp.dropped_qkey
            + qp.dropped_pkey
            + qp.dropped_no_receive
            + qp.dropped_too_long
            + qp.dropped_invalid;
        for (counter, count) in [
            (Counter::TxPackets, qp.tx_packets),
            (Counter::RxPackets, qp.rx_packets),
            (Counter::TxBytes, qp.tx_bytes),
            (Counter::RxBytes, qp.rx_bytes),
            (Counter::DuplicateRequest, qp.duplicates),
            (Counter::OutOfSequence, qp.out_of_sequence),
            (Counter::PacketSeqErr, qp.sequence_naks_received),
            (Counter::LocalAckTimeoutErr, qp.timeouts),
            (Counter::RnrNakSent, qp.rnr_naks_sent),
            (Counter::RnrNakRetryErr, qp.rnr_naks_received),
            (Counter::Retransmits, qp.retransmitted),
            (Counter::RxDropsUd, dropped),
            (
                Counter::OutOfBuffer,
                qp.rnr_naks_sent + qp.dropped_no_receive,
            ),
            (Counter::ImpliedNakSeqErr, qp.implied_naks),
            (Counter::RespRemoteAccessErrors, qp.access_naks_sent),
        ] {
            self.add(counter, count);
        }
    }

    /// Returns the counters of a queue pair's transport that no counter of the port covers, by
    /// their names in the transport.
    pub fn beside(
        qp: &verbena_transport::Counters,
        congestion: &verbena_transport::CongestionCounters,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        let covered = [
            "tx_packets",
            "rx_packets",
            "tx_bytes",
            "rx_bytes",
            "duplicates",
            "out_of_sequence",
            "sequence_naks_received",
            "timeouts",
            "rnr_naks_sent",
            "rnr_naks_received",
            "retransmitted",
            "spurious_retransmits",
            "access_naks_sent",
            "implied_naks",
            "rp_cnp_ignored",
        ];
        let all: Vec<_> = qp.each().chain(congestion.each()).collect();
        all.into_iter()
            .filter(move |(name, _)| !covered.contains(name))
    }

    /// Counts a request that arrived. A SEND or WRITE is counted with its last packet.
    fn add_request(&mut self, packet: &Packet) {
        let counter = match packet.kind {
            PacketKind::Send(_) if packet.last => Counter::RxSends,
            PacketKind::Write { .. } if packet.last => Counter::RxWriteRequests,
            PacketKind::ReadRequest(_) => Counter::RxReadRequests,
            PacketKind::Atomic { .. } => Counter::RxAtomicRequests,
            PacketKind::AtomicWrite(_) => Counter::RxAtomicWriteRequests,
            PacketKind::Flush(..) => Counter::RxFlushRequests,
            _ => return,
        };
        self.add(counter, 1);
    }

    /// True if only the port has this counter and queue pairs do not.
    pub fn is_ports(counter: Counter) -> bool {
        matches!(
            counter,
            Counter::RxIcrcEncapsulated
                | Counter::RxMalformed
                | Counter::CqOverflow
                | Counter::Doorbells
                | Counter::Interrupts
                | Counter::Commands
                | Counter::TxMulticastPackets
                | Counter::TxOverMtu
                | Counter::LinkDowned
        )
    }

    /// Returns the values of all counters, indexed by number.
    pub fn all(&self) -> [u64; NUM_COUNTERS] {
        self.0
    }
}
