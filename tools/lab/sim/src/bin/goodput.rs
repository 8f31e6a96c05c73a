// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `scripts/sim --goodput`: simulates the cost of loss on a link. Prints the goodput, its ratio to
//! the goodput without loss, and the number of packets sent for each packet needed.

use clap::{Parser, ValueEnum};
use verbena_lab_transport::flows::{FlowLoad, Flows};
use verbena_transport::host::WqeOpcode;
use verbena_transport::Counters;

/// Runs one sender over a lossy link, on a virtual clock.
#[derive(Parser)]
#[command(name = "goodput")]
struct GoodputArgs {
    /// Loss in each direction, in percent; several values give several runs.
    #[arg(long, value_name = "PERCENT", default_values_t = [0.1, 1.0, 5.0, 20.0])]
    loss: Vec<f64>,
    /// Rate of the link in Gbit/s.
    #[arg(long, value_name = "GBIT", default_value_t = 10.0)]
    rate: f64,
    /// Delay from end to end, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 5.0)]
    delay: f64,
    /// Path MTU in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    mtu: u32,
    /// Maximum number of unacknowledged packets.
    #[arg(long, value_name = "PACKETS", default_value_t = 128)]
    window: u32,
    /// Number of packets that the transfer needs without loss.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    packets: u64,
    /// Operation of the sender.
    #[arg(long, value_enum, default_value_t = GoodputOperation::Write)]
    op: GoodputOperation,
    /// Number of runs, each with its own seed. The figures are those of all runs together.
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u64,
    /// Side that recovers as the specification says: it sends everything again and keeps no
    /// packets.
    #[arg(long, value_enum, default_value_t = LegacySides::None)]
    old: LegacySides,
    /// Print the counters of both queue pairs.
    #[arg(long)]
    counters: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum LegacySides {
    None,
    Sender,
    Receiver,
    Both,
}

#[derive(Clone, Copy, ValueEnum)]
enum GoodputOperation {
    Send,
    Write,
    Read,
}

/// Nanoseconds, bytes and packets of all runs.
#[derive(Default)]
struct GoodputTotal {
    time_ns: u64,
    bytes: u64,
    sent: u64,
    failed: u64,
    counters: [Counters; 2],
}

impl GoodputTotal {
    /// Returns the goodput in bits per nanosecond, without headers.
    fn goodput(&self) -> f64 {
        (self.bytes * 8) as f64 / self.time_ns.max(1) as f64
    }
}

fn run(args: &GoodputArgs, percent: f64) -> GoodputTotal {
    let mut total = GoodputTotal::default();
    for run in 0..args.runs {
        let shape = FlowLoad {
            opcode: match args.op {
                GoodputOperation::Send => WqeOpcode::Send,
                GoodputOperation::Write => WqeOpcode::RdmaWrite,
                GoodputOperation::Read => WqeOpcode::RdmaRead,
            },
            mtu: args.mtu,
            message: 64 * args.mtu,
            window: args.window,
            rate: (args.rate * 1e3) as u64,
            delay_ns: (args.delay * 1e3) as u64,
            loss: (percent * 10.0).round() as u32,
            seed: 1 + run,
            ..FlowLoad::default()
        };
        let mut flows = Flows::new(shape, |end, config| {
            let own = [LegacySides::Sender, LegacySides::Receiver][end % 2];
            if args.old == own || args.old == LegacySides::Both {
                (config.recovers, config.reassembly_bytes) = (false, 0);
            }
        });
        flows.post(0, args.packets.div_ceil(64) as u32);
        while flows.is_done(0) == Ok(false) && flows.run_until(flows.now_ns + 10_000) {}
        total.failed += u64::from(flows.is_done(0) != Ok(true));
        total.time_ns += flows.now_ns;
        total.bytes += flows.arrived(0);
        total.sent += flows.sent();
        for (all, one) in total.counters.iter_mut().zip(flows.counters(0)) {
            all.add(one);
        }
    }
    total
}

fn main() {
    let args = GoodputArgs::parse();
    let clean = run(&args, 0.0);
    println!(
        "{:>7} {:>9} {:>8} {:>15}",
        "loss", "Gbit/s", "of clean", "sent per needed"
    );
    for percent in std::iter::once(&0.0).chain(&args.loss) {
        let lossy = run(&args, *percent);
        let needed = args.packets.div_ceil(64) * 64 * args.runs;
        let note = match lossy.failed {
            0 => String::new(),
            failed => format!("  {failed} of {} runs failed", args.runs),
        };
        println!(
            "{percent:>6}% {:>9.3} {:>8.3} {:>15.3}{note}",
            lossy.goodput(),
            lossy.goodput() / clean.goodput(),
            lossy.sent as f64 / needed as f64,
        );
        if args.counters {
            for (name, counters) in ["sender", "receiver"].iter().zip(&lossy.counters) {
                let counts = counters.each().filter(|(_, count)| *count > 0);
                let counts: Vec<_> = counts.map(|(what, n)| format!("{what} {n}")).collect();
                println!("        {name}: {}", counts.join(", "));
            }
        }
    }
}
