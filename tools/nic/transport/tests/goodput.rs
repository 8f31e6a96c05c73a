// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The goodput for combinations of loss, delay, MTU and window: a table of figures on a virtual
//! clock, compared with `goodput.txt` beside this file. The figures are no promise, but the test
//! shows every change of them. If a change is intended, run
//!
//! ```text
//! VERBENA_REWRITE=1 cargo test -p verbena-transport --test goodput; git diff tools/nic/transport/tests/goodput.txt
//! ```
//!
//! look at the difference, and commit the new table with the change.

use verbena_lab_transport::{LinkMode, PairSetup, PairSide, QpPair, SendPost};
use verbena_transport::host::WcStatus;
use verbena_transport::Attr;

const TABLE: &str = include_str!("goodput.txt");
/// Path of the table.
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goodput.txt");
/// Number of messages of a run, and bytes of each message.
const MESSAGES: u64 = 24;
const BYTES: usize = 16 << 10;
/// Number of runs whose figures a row adds up.
const SEEDS: u64 = 2;

const HEAD: &str = "\
# 24 messages of 16 KiB over a link of 100 Gbit/s; up to 16 READs at a time. Each row adds up 2 runs with different seeds.
# The ACK timer is 67 ms, its minimum 4 ms. goodput: million bytes per second of virtual time. sent: requests (packets,
# without acknowledgements) and, for READs, responses. again: packets sent again by the requester (a READ counts as its
# responses). Written by the test in goodput.rs.
";

#[derive(Clone, Copy)]
enum GoodputOp {
    Send,
    Write,
    Read,
}

struct GoodputCell {
    op: GoodputOp,
    mtu: u32,
    window: u32,
    delay_us: u64,
    loss: u32,
}

impl GoodputCell {
    fn run(&self, seed: u64) -> QpPair {
        let mut pair = QpPair::new(PairSetup {
            mode: LinkMode::Split,
            seed,
            window: self.window,
            min_timeout_ns: 4_000_000,
            attr: Attr {
                path_mtu: self.mtu,
                timeout: 14,
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                ..PairSetup::default().attr
            },
            ..PairSetup::default()
        });
        pair.link.bits_per_ns = 100;
        pair.link.delay_ns = self.delay_us * 1_000;
        pair.link.loss = self.loss;
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at >> 3) as u8 ^ at as u8).collect();
        let (from, to) = match self.op {
            GoodputOp::Read => (PairSide::B, PairSide::A),
            _ => (PairSide::A, PairSide::B),
        };
        let (source, target) = (pair.buffer(from, &bytes), pair.zeros(to, BYTES));
        for wr_id in 0..MESSAGES {
            pair.post_recv(PairSide::B, wr_id, &[target.sge()]);
            let post = match self.op {
                GoodputOp::Send => SendPost::send(wr_id, &[source.sge()]),
                GoodputOp::Write => SendPost::write(wr_id, &[source.sge()], target),
                GoodputOp::Read => SendPost::read(wr_id, &[target.sge()], source),
            };
            pair.post(PairSide::A, post);
        }
        pair.settle();
        assert_eq!(pair.adapter.bytes(target), bytes);
        pair
    }

    fn line(&self) -> String {
        let (mut time, mut done) = (0, 0);
        let (mut ours, mut theirs) = (
            verbena_transport::Counters::default(),
            verbena_transport::Counters::default(),
        );
        for seed in 0..SEEDS {
            let mut pair = self.run(1 + seed);
            let statuses = pair.statuses(PairSide::A);
            done += statuses
                .iter()
                .filter(|(_, status)| *status == WcStatus::Success)
                .count();
            time += pair.now_ns;
            ours.add(pair.qps[0].counters());
            theirs.add(pair.qps[1].counters());
        }
        let all = (SEEDS * MESSAGES) as usize;
        // The unit is a tenth of a million bytes per second.
        let goodput = (done * BYTES) as u64 * 10_000 / time.max(1);
        let (name, sent) = match self.op {
            GoodputOp::Send => ("SEND", ours.tx_packets),
            GoodputOp::Write => ("WRITE", ours.tx_packets),
            GoodputOp::Read => ("READ", ours.tx_packets + theirs.tx_packets),
        };
        let broken = if done == all {
            String::new()
        } else {
            format!("  {done} of {all} messages, then retries are exceeded")
        };
        format!(
            "{name:<5} {:>4} {:>6} {:>5} {:>4} {:>6}.{} {sent:>6} {:>6} {:>8} {:>6} {:>4} {:>7}{broken}\n",
            self.mtu,
            self.window,
            self.delay_us,
            self.loss,
            goodput / 10,
            goodput % 10,
            ours.retransmitted,
            ours.timeouts,
            ours.probes,
            ours.sequence_naks_received,
            ours.implied_naks,
        )
    }
}

fn table() -> String {
    let mut table = String::from(HEAD);
    for op in [GoodputOp::Send, GoodputOp::Write, GoodputOp::Read] {
        table.push_str(
            "\nop     MTU window delay loss  goodput   sent  again timeouts probes NAKs implied\n",
        );
        table.push_str("           packets    us    %     MB/s\n");
        // A SEND costs as much as a WRITE, so one MTU is enough.
        let mtus = match op {
            GoodputOp::Send => &[1024][..],
            _ => &[256, 1024, 4096],
        };
        for mtu in mtus {
            for window in [16, 128] {
                for delay_us in [1, 50] {
                    for loss in [0, 1, 5, 20] {
                        let cell = GoodputCell {
                            op,
                            mtu: *mtu,
                            window,
                            delay_us,
                            loss,
                        };
                        table.push_str(&cell.line());
                    }
                }
            }
        }
    }
    table
}

#[test]
fn goodput_is_that_of_the_table() {
    let table = table();
    if std::env::var_os("VERBENA_REWRITE").is_some() {
        std::fs::write(PATH, &table).unwrap();
        return;
    }
    for (number, (now, then)) in table.lines().zip(TABLE.lines()).enumerate() {
        let line = number + 1;
        assert_eq!(
            now, then,
            "{PATH}:{line} differs (VERBENA_REWRITE=1 writes the new table)"
        );
    }
    assert_eq!(table.lines().count(), TABLE.lines().count());
}
