// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Test of the driver's tracepoints.
use crate::ffi::qp::{op, state, SendWr};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::path::{Path, PathBuf};
use std::process::Command;

pub static TESTS: &[GuestTest] = &[GuestTest::new("ops/tracepoints", tracepoints).alone()];

const TRACING: &str = "/sys/kernel/tracing";

/// A tracing instance of the kernel in which only the driver's events are enabled.
struct TraceInstance(PathBuf);

impl TraceInstance {
    fn start() -> Result<TraceInstance, Fail> {
        if !Path::new(TRACING).join("events").exists() {
            let mount = ["-t", "tracefs", "tracefs", TRACING];
            let _ = Command::new("mount").args(mount).status();
        }
        if !Path::new(TRACING).join("events/verbena").exists() {
            return Err(Fail::Skipped("no tracepoints of this device".into()));
        }
        let this = TraceInstance(Path::new(TRACING).join("instances/verbena-guest-tests"));
        let _ = std::fs::remove_dir(&this.0);
        std::fs::create_dir(&this.0).at("an instance")?;
        this.enable("1")?;
        Ok(this)
    }

    fn enable(&self, on: &str) -> TestResult {
        std::fs::write(self.0.join("events/verbena/enable"), on).at("enable")
    }

    /// Returns the lines of the trace, each from the name of its event on.
    fn lines(&self) -> Result<Vec<String>, Fail> {
        let all = std::fs::read_to_string(self.0.join("trace")).at("trace")?;
        let lines = all.lines().filter(|line| !line.starts_with('#'));
        let traced = lines.filter_map(|line| Some(line[line.find("verbena_")?..].to_owned()));
        Ok(traced.collect())
    }
}

impl Drop for TraceInstance {
    fn drop(&mut self) {
        let _ = self.enable("0");
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Returns the value of a name in a line, or an empty string.
fn value<'a>(line: &'a str, name: &str) -> &'a str {
    let found = line.split_whitespace().find_map(|word| {
        let (key, value) = word.split_once('=')?;
        (key == name).then_some(value)
    });
    found.unwrap_or("")
}

/// Checks that the trace has each command, each state change and each event, in order.
fn tracepoints(rig: &Rig) -> TestResult {
    let tracing = TraceInstance::start()?;
    let p = rig.pair(&PairOpts::default())?;
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]);
    let wr = wr.remote(p.b.mr.at(0), !p.b.mr.rkey());
    p.a.qp.post_send(&[wr]).at("a WRITE")?;
    let failed = wait_one(&p.a.scq, "a wrong key")?;
    expect_error(&failed, 1, status::REM_ACCESS_ERR, &p.a.qp)?;
    rig.event("QP_ACCESS_ERR")?;
    set_state(&p.a.qp, state::RESET)?;
    let (a, b) = (p.a.qp.qpn().to_string(), p.b.qp.qpn().to_string());
    drop(p);
    let lines = tracing.lines()?;
    let of = |name: &str| -> Vec<&String> {
        let mine = lines.iter().filter(|line| line.starts_with(name));
        mine.collect()
    };
    let commands = of("verbena_command:");
    let count = |opcode: &str| {
        let such = commands
            .iter()
            .filter(|line| value(line, "opcode") == opcode);
        such.count()
    };
    for (opcode, want) in [
        ("CreateQp", 2),
        ("DestroyQp", 2),
        ("CreateMr", 2),
        ("ModifyQp", 7),
    ] {
        ensure_eq!(count(opcode), want, "{opcode}: {lines:?}");
    }
    for line in &commands {
        ensure_eq!(value(line, "error"), "0", "{line}");
        let ns: u64 = value(line, "ns").parse().unwrap_or(0);
        ensure!(ns > 0, "{line}");
        ensure!(value(line, "device").contains(':'), "{line}");
    }
    let moves = of("verbena_qp_state:");
    let of_one = |qpn: &str| -> Vec<String> {
        let mine = moves.iter().filter(|line| value(line, "qpn") == qpn);
        mine.map(|line| format!("{} {}", value(line, "from"), value(line, "to")))
            .collect()
    };
    ensure_eq!(
        of_one(&a),
        ["RESET INIT", "INIT RTR", "RTR RTS", "ERR RESET"],
        "moves of the first"
    );
    ensure_eq!(
        of_one(&b),
        ["RESET INIT", "INIT RTR", "RTR RTS"],
        "moves of the second"
    );
    let events = of("verbena_event:");
    let kinds: Vec<&str> = events.iter().map(|line| value(line, "type")).collect();
    ensure_eq!(kinds, ["IBV_EVENT_QP_ACCESS_ERR"], "events");
    ensure_eq!(
        value(events[0], "number"),
        b,
        "number of the event's object"
    );
    ensure!(value(events[0], "syndrome") != "0x0000", "{}", events[0]);
    // After the events are disabled, no lines are added.
    tracing.enable("0")?;
    let before = tracing.lines()?.len();
    drop(rig.pair(&PairOpts::default())?);
    ensure_eq!(tracing.lines()?.len(), before, "lines while tracing is off");
    Ok(())
}
