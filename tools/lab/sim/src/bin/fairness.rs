// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `scripts/sim --fairness`: simulates senders that share a link that is too narrow for all of
//! them. Prints the smallest and the largest share, the queue in front of the link, and the
//! goodput: without congestion control, with delay as its only signal, and with routers that mark
//! packets.

use clap::{Parser, ValueEnum};
use verbena_lab_transport::fairness::{run, FairnessResult};
use verbena_lab_transport::flows::FlowLoad;
use verbena_transport::host::WqeOpcode;

/// Runs senders that share one link, on a virtual clock.
#[derive(Parser)]
#[command(name = "fairness")]
struct FairnessArgs {
    /// Number of senders, each with a receiver of its own behind the link.
    #[arg(long, value_name = "N", default_value_t = 8)]
    senders: usize,
    /// Rate of the link in Gbit/s.
    #[arg(long, value_name = "GBIT", default_value_t = 10.0)]
    rate: f64,
    /// Delay from end to end, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 5.0)]
    delay: f64,
    /// Path MTU in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    mtu: u32,
    /// Maximum number of unacknowledged packets of each sender.
    #[arg(long, value_name = "PACKETS", default_value_t = 128)]
    window: u32,
    /// Loss in each direction, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// Number of bytes in the queue from which packets are marked.
    #[arg(long, value_name = "BYTES", default_value_t = 40_000)]
    mark: u64,
    /// Time between the starts of one sender and the next, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 0)]
    stagger: u64,
    /// Length of the measurement, in milliseconds of virtual time.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    time: u64,
    /// Operation of the senders [default: WRITE, then READ].
    #[arg(long, value_enum)]
    op: Option<FairnessOperation>,
    /// Print the counters of the queue pairs.
    #[arg(long)]
    counters: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum FairnessOperation {
    Send,
    Write,
    Read,
}

impl FairnessOperation {
    fn opcode(self) -> (&'static str, WqeOpcode) {
        match self {
            FairnessOperation::Send => ("SEND", WqeOpcode::Send),
            FairnessOperation::Write => ("WRITE", WqeOpcode::RdmaWrite),
            FairnessOperation::Read => ("READ", WqeOpcode::RdmaRead),
        }
    }
}

fn print(args: &FairnessArgs, op: &str, how: &str, outcome: &FairnessResult) {
    let (least, most) = outcome.spread();
    let thousandths = |n: u64| n as f64 / 1e3;
    println!(
        "{op:<5} {how:<7} {:>6.3} {:>6.3} {:>8.1} {:>8.1} {:>8.3}",
        thousandths(least),
        thousandths(most),
        thousandths(outcome.queue),
        thousandths(outcome.longest),
        thousandths(outcome.goodput),
    );
    if args.counters {
        let congestion = outcome.congestion.iter();
        let all = outcome.counters.iter().zip(congestion);
        for (name, (counters, congestion)) in ["senders", "receivers"].iter().zip(all) {
            let counts = counters.each().chain(congestion.each());
            let counts = counts.filter(|(_, count)| *count > 0);
            let counts: Vec<_> = counts.map(|(what, n)| format!("{what} {n}")).collect();
            println!("      {name}: {}", counts.join(", "));
        }
    }
}

fn main() {
    let args = FairnessArgs::parse();
    println!(
        "{} senders. Shares: relative to an even share. Queue: kB. Goodput: relative to the capacity of the link.",
        args.senders
    );
    println!("op    control  least   most    queue  longest  goodput");
    let ops = args.op.map_or(
        vec![FairnessOperation::Write, FairnessOperation::Read],
        |op| vec![op],
    );
    for op in ops {
        let (name, opcode) = op.opcode();
        for (how, controls, mark) in [
            ("none", false, 0),
            ("delay", true, 0),
            ("ECN", true, args.mark),
        ] {
            let shape = FlowLoad {
                senders: args.senders,
                opcode,
                mtu: args.mtu,
                message: 64 * args.mtu,
                window: args.window,
                rate: (args.rate * 1e3) as u64,
                delay_ns: (args.delay * 1e3) as u64,
                loss: (args.loss * 10.0).round() as u32,
                mark,
                ..FlowLoad::default()
            };
            let (stagger, time) = (args.stagger * 1000, args.time * 1_000_000);
            print(&args, name, how, &run(&shape, stagger, time, controls));
        }
    }
}
