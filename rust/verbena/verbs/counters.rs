// SPDX-License-Identifier: GPL-2.0

//! Counters of the device: for the port, and for queue pairs that are bound to a counter
//! (`rdma statistic qp`).

use super::{
    Verbena,
    VerbsDevice, //
};
use crate::{
    abi::{
        cmd::{
            QueryStats,
            StatsKind, //
        },
        stats::{
            Counter,
            NUM_COUNTERS, //
        },
        Le32,
        Le64, //
    },
    cmdq::{
        lent::{
            Borrowed,
            Lent, //
        },
        Lender, //
    }, //
};
use base::dma::{
    Chunk,
    Payer, //
};
use core::num::NonZeroU32;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
};
use rdma::{
    mad::{
        Cleared,
        PortCounters, //
    },
    qp::Qp,
    stats::{
        self,
        StatDesc, //
    }, //
};

/// Names of the counters, in the order of [`Counter`].
pub(crate) const NAMES: [StatDesc; NUM_COUNTERS] = [
    StatDesc::new(c"tx_packets"),
    StatDesc::new(c"rx_packets"),
    StatDesc::new(c"tx_bytes"),
    StatDesc::new(c"rx_bytes"),
    StatDesc::new(c"rx_write_requests"),
    StatDesc::new(c"rx_read_requests"),
    StatDesc::new(c"rx_atomic_requests"),
    StatDesc::new(c"rx_sends"),
    StatDesc::new(c"duplicate_request"),
    StatDesc::new(c"out_of_sequence"),
    StatDesc::new(c"packet_seq_err"),
    StatDesc::new(c"local_ack_timeout_err"),
    StatDesc::new(c"rnr_nak_sent"),
    StatDesc::new(c"rnr_nak_retry_err"),
    StatDesc::new(c"retransmits"),
    StatDesc::new(c"req_transport_retries_exceeded"),
    StatDesc::new(c"req_rnr_retries_exceeded"),
    StatDesc::new(c"req_cqe_error"),
    StatDesc::new(c"resp_cqe_error"),
    StatDesc::new(c"req_cqe_flush_error"),
    StatDesc::new(c"resp_cqe_flush_error"),
    StatDesc::new(c"rx_icrc_encapsulated"),
    StatDesc::new(c"rx_malformed"),
    StatDesc::new(c"rx_drops_ud"),
    StatDesc::new(c"cq_overflow"),
    StatDesc::new(c"doorbells"),
    StatDesc::new(c"posts"),
    StatDesc::new(c"recvs"),
    StatDesc::new(c"interrupts"),
    StatDesc::new(c"commands"),
    StatDesc::new(c"out_of_buffer"),
    StatDesc::new(c"implied_nak_seq_err"),
    StatDesc::new(c"resp_local_length_error"),
    StatDesc::new(c"req_remote_invalid_request"),
    StatDesc::new(c"req_remote_access_errors"),
    StatDesc::new(c"resp_remote_access_errors"),
    StatDesc::new(c"tx_multicast_packets"),
    StatDesc::new(c"rx_multicast_packets"),
    StatDesc::new(c"rp_cnp_ignored"),
    StatDesc::new(c"tx_over_mtu"),
    StatDesc::new(c"link_downed"),
    StatDesc::new(c"rx_atomic_write_requests"),
    StatDesc::new(c"rx_flush_requests"),
    StatDesc::new(c"rx_no_qp"),
    StatDesc::new(c"spurious_retransmits"),
];

type CounterValues = [u64; NUM_COUNTERS];

/// Queries the counters of the port or of a queue pair. Counters that the device lacks are 0.
fn query(vdev: &VerbsDevice, kind: StatsKind, number: u32) -> Result<CounterValues> {
    let memory = Chunk::alloc(&vdev.dma, Payer::Kernel, size_of::<CounterValues>())?;
    let memory = Lent::new(Arc::new(memory, GFP_KERNEL)?, &vdev.health);
    let request = |to: &Lender| QueryStats {
        kind: kind.to_raw(),
        port: 1,
        id: Le32::new(number),
        addr: Le64::new(memory.lend(to).addr()),
        // CAST: There are only a few counters.
        count: Le32::new(NUM_COUNTERS as u32),
        ..Default::default()
    };
    let reported = vdev.cmdq.exec_with(request, &[&memory as &dyn Borrowed])?;
    let mut values = [0; NUM_COUNTERS];
    let reported = reported.count.get() as usize;
    for (index, value) in values.iter_mut().take(reported).enumerate() {
        *value = memory.read::<Le64>(index * size_of::<Le64>())?.get();
    }
    Ok(values)
}

/// Returns all that the port has counted, including queue pairs that are bound to counters.
pub(super) fn query_port(vdev: &VerbsDevice) -> Result<PortCounters> {
    let values = query(vdev, StatsKind::Port, 0)?;
    let count = |counter: Counter| values[usize::from(counter.to_raw())];
    let (xmit_packets, multicast_xmit) = (
        count(Counter::TxPackets),
        count(Counter::TxMulticastPackets),
    );
    let (rcv_packets, multicast_rcv) = (
        count(Counter::RxPackets),
        count(Counter::RxMulticastPackets),
    );
    Ok(PortCounters {
        xmit_data: count(Counter::TxBytes) / 4,
        rcv_data: count(Counter::RxBytes) / 4,
        xmit_packets,
        rcv_packets,
        unicast_xmit_packets: xmit_packets.saturating_sub(multicast_xmit),
        unicast_rcv_packets: rcv_packets.saturating_sub(multicast_rcv),
        multicast_xmit_packets: multicast_xmit,
        multicast_rcv_packets: multicast_rcv,
        link_downed: count(Counter::LinkDowned),
        rcv_errors: count(Counter::RxIcrcEncapsulated).saturating_add(count(Counter::RxMalformed)),
        xmit_discards: count(Counter::TxOverMtu),
    })
}

/// A queue pair that is bound to a counter.
struct BoundQp {
    qpn: u32,
    /// Counter values of the queue pair when it was bound.
    before: CounterValues,
    /// Increase since then, as of the last query.
    since: CounterValues,
}

impl BoundQp {
    /// Queries the device. The last values remain if the device has died. A value that has
    /// decreased, which only a faulty device reports, counts as 0 and not as nearly 2^64.
    fn refresh(&mut self, vdev: &VerbsDevice) {
        if let Ok(now) = query(vdev, StatsKind::Qp, self.qpn) {
            for ((since, now), before) in self.since.iter_mut().zip(now).zip(self.before) {
                *since = now.saturating_sub(before);
            }
        }
    }
}

/// Time for which the values of a counter are not queried again. The core reads all values once for
/// each of them, and reads the port's values at this interval, too.
const MAX_AGE: Delta = Delta::from_millis(10);

/// A counter, and the queue pairs that are bound to it.
struct CounterSet {
    id: NonZeroU32,
    /// Sum for queue pairs that were bound to the counter and no longer are.
    unbound: CounterValues,
    bound: KVec<BoundQp>,
    /// Time of the last query, or `None` if queue pairs were bound since.
    queried: Option<Instant<Monotonic>>,
}

fn add(to: &mut CounterValues, more: &CounterValues) {
    for (to, more) in to.iter_mut().zip(more) {
        *to = to.saturating_add(*more);
    }
}

impl CounterSet {
    /// Queries all queue pairs of the counter.
    fn refresh(&mut self, vdev: &VerbsDevice) {
        for bound in &mut self.bound {
            bound.refresh(vdev);
        }
        self.queried = Some(Instant::now());
    }

    fn sum(&self) -> CounterValues {
        let mut sum = self.unbound;
        for bound in &self.bound {
            add(&mut sum, &bound.since);
        }
        sum
    }
}

struct CounterSets {
    last_id: u32,
    sets: KVec<CounterSet>,
    /// Sum of the counters that were deleted, which the core adds to the port's values.
    deleted: CounterValues,
}

impl CounterSets {
    fn find(&mut self, id: NonZeroU32) -> Option<&mut CounterSet> {
        self.sets.iter_mut().find(|set| set.id == id)
    }

    /// Returns a number that no counter has.
    fn new_id(&mut self) -> NonZeroU32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            match NonZeroU32::new(self.last_id) {
                Some(id) if self.find(id).is_none() => return id,
                _ => {}
            }
        }
    }
}

/// Counters to which queue pairs are bound.
#[pin_data]
pub(crate) struct QpCounters {
    #[pin]
    sets: Mutex<CounterSets>,
    #[pin]
    cleared: Mutex<Cleared>,
}

impl QpCounters {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            sets <- new_mutex!(CounterSets {
                last_id: 0,
                sets: KVec::new(),
                deleted: [0; NUM_COUNTERS],
            }),
            cleared <- new_mutex!(Cleared::default()),
        })
    }

    /// Returns the port's counter values at the time when performance management cleared them.
    pub(super) fn cleared(&self) -> &Mutex<Cleared> {
        &self.cleared
    }

    /// Fills in the port's values without those of the counters.
    pub(super) fn read_unbound(
        &self,
        vdev: &VerbsDevice,
        values: &mut stats::Values<'_>,
    ) -> Result {
        let all = query(vdev, StatsKind::Port, 0)?;
        let mut sets = self.sets.lock();
        let mut bound_sum = sets.deleted;
        for set in &mut sets.sets {
            // The present values are needed here. Subtracting older, smaller ones would make the
            // port's values too large now and let them decrease later.
            set.refresh(vdev);
            add(&mut bound_sum, &set.sum());
        }
        let rest = all.into_iter().zip(bound_sum);
        values.set(rest.map(|(all, bound_sum)| all.saturating_sub(bound_sum)));
        Ok(())
    }

    pub(super) fn bind(
        &self,
        vdev: &VerbsDevice,
        counter: Option<NonZeroU32>,
        qp: &Qp<Verbena>,
    ) -> Result<NonZeroU32> {
        let qpn = qp.qpn();
        let bound = BoundQp {
            qpn,
            before: query(vdev, StatsKind::Qp, qpn)?,
            since: [0; NUM_COUNTERS],
        };
        let mut sets = self.sets.lock();
        if let Some(id) = counter {
            let set = sets.find(id).ok_or(ENOENT)?;
            set.bound.push(bound, GFP_KERNEL)?;
            set.queried = None;
            return Ok(id);
        }
        let id = sets.new_id();
        let mut set = CounterSet {
            id,
            unbound: [0; NUM_COUNTERS],
            bound: KVec::new(),
            queried: None,
        };
        set.bound.push(bound, GFP_KERNEL)?;
        sets.sets.push(set, GFP_KERNEL)?;
        Ok(id)
    }

    pub(super) fn unbind(&self, vdev: &VerbsDevice, counter: NonZeroU32, qp: &Qp<Verbena>) {
        let mut sets = self.sets.lock();
        let Some(set) = sets.find(counter) else {
            return;
        };
        if let Some(at) = set.bound.iter().position(|bound| bound.qpn == qp.qpn()) {
            if let Ok(mut bound) = set.bound.remove(at) {
                bound.refresh(vdev);
                add(&mut set.unbound, &bound.since);
            }
        }
    }

    pub(super) fn read(
        &self,
        vdev: &VerbsDevice,
        counter: NonZeroU32,
        values: &mut stats::Values<'_>,
    ) -> Result {
        let mut sets = self.sets.lock();
        let set = sets.find(counter).ok_or(ENOENT)?;
        if set
            .queried
            .is_none_or(|queried| queried.elapsed() >= MAX_AGE)
        {
            set.refresh(vdev);
        }
        values.set(set.sum().into_iter());
        Ok(())
    }

    pub(super) fn dealloc(&self, counter: NonZeroU32) {
        let mut sets = self.sets.lock();
        if let Some(at) = sets.sets.iter().position(|set| set.id == counter) {
            if let Ok(set) = sets.sets.remove(at) {
                add(&mut sets.deleted, &set.unbound);
            }
        }
    }
}
