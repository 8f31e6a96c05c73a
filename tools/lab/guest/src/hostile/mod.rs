// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `verbena-guest-hostile [SECONDS [SEED]]`: a process that gives the device forged data through
//! its own queues.
//!
//! The program creates QPs through the ordinary verbs, finds the mappings that the provider made of
//! the device file, and then bypasses the provider: it forges work queue entries that are valid
//! except for one or two fields ([`forge`]), producer indexes, consumer indexes and arm words. At
//! the same time a second process, the bystander, moves data and compares every byte. The run fails
//! if the bystander notices anything, if the device stops serving this process, or if a syndrome
//! that a work queue entry can raise never occurred (then the forged entries test too little).
//!
//! Forged data may confuse this process's own provider, which is not an error.
mod forge;
mod queues;

use crate::pattern::PatternRng;
use crate::peer::PeerProcess;
use crate::rig::{self, Rig};
use crate::tests::checked_exchange;
use crate::{ensure, ensure_eq, runner, Fail};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use verbena_abi::syndrome::Syndrome;

/// The syndromes that entries of a connected QP can raise in completions.
const EXPECTED: &[Syndrome] = &[
    Syndrome::Flushed,
    Syndrome::RecvTooSmall,
    Syndrome::MessageTooLong,
    Syndrome::WqeOpcodeUnknown,
    Syndrome::WqeFlags,
    Syndrome::WqeSgeCount,
    Syndrome::WqeInline,
    Syndrome::Privilege,
    Syndrome::LkeyUnknown,
    Syndrome::LkeyPd,
    Syndrome::LkeyBounds,
    Syndrome::LkeyAccess,
    Syndrome::NakInvalidRequest,
    Syndrome::NakRemoteAccess,
    Syndrome::NakRemoteOperational,
    Syndrome::RnrRetryExceeded,
    Syndrome::RecvWqeMalformed,
];

/// The number of times that each syndrome was seen.
pub type SyndromeCounts = BTreeMap<u32, u64>;

/// Runs the program `verbena-guest-hostile`.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.iter().any(|a| a == "--peer") {
        return runner::main();
    }
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok());
    if args.get(1).is_some() && number(1).is_none() {
        eprintln!(
            "usage: verbena-guest-hostile [SECONDS [SEED]]   device: $VERBENA_DEVICE or verbena0"
        );
        return ExitCode::from(2);
    }
    if let Err(why) = runner::set_env(std::env::var("VERBENA_DEVICE").ok(), None) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let (seconds, seed) = (number(1).unwrap_or(60), number(2).unwrap_or(1));
    let result = run(Duration::from_secs(seconds), seed);
    runner::report("hostile", result.map(|()| 1))
}

fn run(time: Duration, seed: u64) -> Result<(), Fail> {
    let mut bystander = PeerProcess::start("bystander")?;
    ensure_eq!(bystander.read_line()?, "ready", "the bystander's answer");
    let mut counts = SyndromeCounts::new();
    let mut rng = PatternRng::new(seed);
    let (mut episodes, mut forged) = (0u64, 0u64);
    let begun = Instant::now();
    // A slow guest forges fewer entries in the same time, so the run continues up to a limit while
    // syndromes are missing.
    let most = time * (1 + rig::slowness() as u32);
    let result = (|| -> Result<(), Fail> {
        while begun.elapsed() < time || begun.elapsed() < most && !missing(&counts).is_empty() {
            // Every 12 episodes have a context of their own, whose doorbell area is torn down in
            // any state.
            let rig = Rig::new()?;
            let area = queues::AreaMapping::find().ok_or("no doorbell area among the mappings")?;
            for _ in 0..12 {
                forged += queues::episode(&rig, &area, &mut rng, &mut counts)?;
                episodes += 1;
                while rig.ctx.async_event(0).is_some() {}
            }
        }
        Ok(())
    })();
    println!("{episodes} episodes, {forged} forged entries, seed {seed}");
    report(&counts);
    result?;
    // An ordinary connection of this process must still work.
    let rig = Rig::new()?;
    let p = rig.pair(&rig::PairOpts {
        buf: 1 << 17,
        ..Default::default()
    })?;
    checked_exchange(&p, seed)?;
    bystander.send_line("stop")?;
    println!(
        "bystander: {} exchanges, every byte compared",
        bystander.read_line()?
    );
    bystander.finish()?;
    let missing = missing(&counts);
    ensure!(missing.is_empty(), "never seen: {}", missing.join(", "));
    Ok(())
}

/// Returns the names of the expected syndromes that have not been seen yet.
fn missing(counts: &SyndromeCounts) -> Vec<&'static str> {
    EXPECTED
        .iter()
        .filter(|s| !counts.contains_key(&u32::from(s.to_raw())))
        .map(|s| s.name())
        .collect()
}

fn report(counts: &SyndromeCounts) {
    println!("{:<24} {:>8}", "syndrome", "seen");
    for (&code, &count) in counts {
        let known = u16::try_from(code).ok().and_then(Syndrome::from_raw);
        println!("{:<24} {count:>8}", known.map_or("(unknown)", |s| s.name()));
    }
}
