// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of a second fault after a first one without a reload of the driver: the effects of the
//! second must not depend on the first.
use super::events::checked_exchange;
use super::faults::{device_fatal, function_reset, inject};
use crate::ffi::context::EventType;
use crate::ffi::qp::{op, state, SendWr};
use crate::outcome::ErrorContext as _;
use crate::pattern::PatternRng;
use crate::rig::*;
use crate::{GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("4/device-fatal-again-and-again", device)
        .limit(240)
        .alone(),
    GuestTest::new("3/faults-one-after-the-other", sends).limit(120),
];

/// The device fails by a fault of the driver, then by a reset from outside, then by a fault of the
/// driver again.
fn device(_rig: &Rig) -> TestResult {
    for round in 0..3 {
        let at = format!("death {round}");
        let rig = Rig::new().at(&at)?;
        if round == 1 {
            function_reset(&rig).at(&at)?;
        } else {
            device_fatal(&rig, || inject("device"), || Ok(())).at(&at)?;
        }
    }
    Ok(())
}

/// The cause of a connection's error, and its effects at both ends.
#[derive(Clone, Copy)]
struct FaultCase {
    name: &'static str,
    status: u32,
    event: Option<EventType>,
    /// True if the driver makes the next send complete with `status`.
    injected: bool,
}

const fn fault_case(name: &'static str, status: u32, event: Option<EventType>) -> FaultCase {
    FaultCase {
        name,
        status,
        event,
        injected: false,
    }
}

const FAULTS: &[FaultCase] = &[
    fault_case(
        "another key",
        status::REM_ACCESS_ERR,
        Some(EventType::QP_ACCESS_ERR),
    ),
    fault_case(
        "an atomic that is not aligned",
        status::REM_INV_REQ_ERR,
        Some(EventType::QP_REQ_ERR),
    ),
    fault_case("no memory of its own", status::LOC_PROT_ERR, None),
    fault_case("no receive", status::RNR_RETRY_EXC_ERR, None),
    fault_case("a peer in ERR", status::RETRY_EXC_ERR, None),
    FaultCase {
        injected: true,
        ..fault_case("a bad response", 7, None)
    },
    FaultCase {
        injected: true,
        ..fault_case("a general error", 21, None)
    },
];

/// A QP has one error after the other, in an order drawn from a seed, and works in between.
fn sends(rig: &Rig) -> TestResult {
    let seed = std::env::var("VERBENA_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut rng = PatternRng::new(seed);
    let opts = PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    };
    let opts = opts.conn(|c| {
        c.access = crate::ffi::mr::access::ALL | crate::ffi::mr::access::REMOTE_ATOMIC;
        (c.timeout, c.retry_cnt, c.rnr_retry) = (10, 1, 1);
        c.min_rnr_timer = 1;
    });
    // A link that loses packets on purpose needs more retries than this test has.
    if is_lossy() {
        return Err(crate::Fail::Skipped(
            "with one retry each loss counts".into(),
        ));
    }
    let p = rig.pair(&opts)?;
    for step in 0..16 {
        let fault = FAULTS[rng.below(FAULTS.len() as u64) as usize];
        let at = format!("seed {seed}, step {step}, {}", fault.name);
        // Requests posted after the failing one are flushed in both queues.
        p.a.recv(50, 0, 8).at(&at)?;
        let mut wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]);
        wr = wr.remote(p.b.mr.at(0), p.b.mr.rkey());
        match fault.status {
            status::REM_ACCESS_ERR => wr.rkey = !wr.rkey,
            status::REM_INV_REQ_ERR => {
                (wr.opcode, wr.remote_addr) = (op::FETCH_ADD, wr.remote_addr + 1);
            }
            status::LOC_PROT_ERR => wr.sges[0].lkey = !wr.sges[0].lkey,
            status::RNR_RETRY_EXC_ERR => wr.opcode = op::SEND,
            status::RETRY_EXC_ERR => set_state(&p.b.qp, state::ERR).at(&at)?,
            other => {
                ensure!(fault.injected, "{at}: a fault by itself");
                inject(&format!("send {} {other}", p.a.qp.qpn()))?;
            }
        }
        let next = SendWr::new(op::WRITE, 2, &[]).remote(p.b.mr.at(0), p.b.mr.rkey());
        p.a.qp.post_send(&[wr]).at(&at)?;
        p.a.qp.post_send(&[next]).at(&at)?;
        let sends = wait(&p.a.scq, 2, &at)?;
        expect_error(&sends[0], 1, fault.status, &p.a.qp).at(&at)?;
        expect_error(&sends[1], 2, status::WR_FLUSH_ERR, &p.a.qp).at(&at)?;
        let receive = wait_one(&p.a.rcq, "the receive").at(&at)?;
        expect_error(&receive, 50, status::WR_FLUSH_ERR, &p.a.qp).at(&at)?;
        if let Some(kind) = fault.event {
            drop(rig.expect_event(kind, p.b.qp.element()).at(&at)?);
        }
        wait_state(&p.a.qp, state::ERR).at(&at)?;
        for end in [&p.a, &p.b] {
            set_state(&end.qp, state::RESET).at(&at)?;
        }
        connect(&p.a.qp, rig.gid, p.b.qp.qpn(), &opts.conn_a).at(&at)?;
        connect(&p.b.qp, rig.gid, p.a.qp.qpn(), &opts.conn_b).at(&at)?;
        checked_exchange(&p, step).at(&at)?;
    }
    rig.expect_no_event(QUIET).at(&format!("seed {seed}"))
}
