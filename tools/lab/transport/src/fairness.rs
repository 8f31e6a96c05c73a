// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A measurement of how senders share a link that is too narrow for all of them, and of the queue
//! that they leave in front of it.

use super::flows::{FlowLoad, Flows, HEADERS};
use verbena_transport::{CongestionCounters, Counters};

/// Number of messages that each sender has posted and not completed.
const DEPTH: u32 = 8;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct FairnessResult {
    /// Payload bytes that have arrived, by sender.
    pub shares: Vec<u64>,
    /// Average number of bytes in the queue before the link.
    pub queue: u64,
    /// Highest number of bytes in that queue.
    pub longest: u64,
    /// Payload that has arrived, in thousandths of the link's capacity.
    pub goodput: u64,
    /// Counters of the queue pairs, summed over senders and over receivers.
    pub counters: [Counters; 2],
    /// Congestion counters of the queue pairs, summed over senders and over receivers.
    pub congestion: [CongestionCounters; 2],
}

impl FairnessResult {
    /// Returns the smallest and the largest share, in thousandths of an even share.
    pub fn spread(&self) -> (u64, u64) {
        let all: u64 = self.shares.iter().sum();
        let even = (all / self.shares.len().max(1) as u64).max(1);
        let least = self.shares.iter().min().copied().unwrap_or(0);
        let most = self.shares.iter().max().copied().unwrap_or(0);
        (least * 1000 / even, most * 1000 / even)
    }
}

/// Runs senders that always have messages to send for `duration` nanoseconds, with congestion
/// control (`controls`) or without. Each sender begins `stagger` nanoseconds after the one before
/// it. The measurement begins after all have begun.
pub fn run(shape: &FlowLoad, stagger: u64, duration: u64, controls: bool) -> FairnessResult {
    let mut flows = Flows::new(shape.clone(), |_, config| {
        config.congestion_control = controls;
    });
    for sender in 0..shape.senders {
        flows.post(sender, DEPTH);
        flows.keep_posting(sender);
        flows.run_until(flows.now_ns + stagger);
    }
    let begin = flows.now_ns;
    let arrived =
        |flows: &Flows| -> Vec<u64> { (0..shape.senders).map(|n| flows.arrived(n)).collect() };
    let before = arrived(&flows);
    flows.restart_measurement();
    flows.run_until(begin + duration);
    let shares: Vec<u64> = arrived(&flows)
        .iter()
        .zip(before)
        .map(|(now, then)| now - then)
        .collect();
    let (queue, longest) = flows.queue();
    let mtu = u64::from(shape.mtu);
    let room = shape.rate * (duration / 1000) * mtu / (mtu + HEADERS) / 8;
    let mut counters = [Counters::default(); 2];
    let mut congestion = [CongestionCounters::default(); 2];
    for sender in 0..shape.senders {
        for (all, one) in counters.iter_mut().zip(flows.counters(sender)) {
            all.add(one);
        }
        for (all, one) in congestion.iter_mut().zip(flows.congestion(sender)) {
            all.add(&one);
        }
    }
    FairnessResult {
        goodput: shares.iter().sum::<u64>() * 1000 / room.max(1),
        shares,
        queue,
        longest,
        counters,
        congestion,
    }
}
