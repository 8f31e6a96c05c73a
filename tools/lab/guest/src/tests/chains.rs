// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of chains of changes to the same objects, drawn from a seed. CQs, SRQs, regions and QPs
//! are modified many times. After each change, attributes are queried, peers use the objects, and
//! the results are compared with a model. A verb that fails must have changed nothing.
//!
//! `VERBENA_SEED=N` runs the chain of one seed; a failure names the seed and the step.
use crate::ffi::context::{EventElement, EventType, Pd};
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{state, SendWr, Srq};
use crate::ffi::sys::Buf;
use crate::outcome::ErrorContext as _;
use crate::pattern::PatternRng;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::collections::VecDeque;
use std::sync::Arc;

mod pairs;
mod queues;
mod regions;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("7/chains-of-rereg", |r| chains(r, REGIONS, 3, 60)).limit(120),
    GuestTest::new("1/chains-of-modify-srq", |r| chains(r, SRQS, 3, 60)).limit(120),
    GuestTest::new("6/chains-of-modify-qp", |r| chains(r, QPS, 3, 60)).limit(120),
    GuestTest::new("1/chains-of-resize-cq", |r| chains(r, CQS, 3, 60)).limit(120),
    GuestTest::new("res/chains-of-all-changes", |r| chains(r, ALL, 3, 80)).limit(120),
    GuestTest::new("long/chains-of-all-changes", |r| chains(r, ALL, 60, 400))
        .limit(1200)
        .long(),
];

type ChainStep = (&'static str, fn(&mut ChainFixture) -> TestResult);

const REGIONS: &[ChainStep] = &[
    ("rereg_mr", |w| w.rereg()),
    ("remote access", |w| w.remote()),
    ("remote access", |w| w.remote()),
    ("local access", |w| w.local()),
];
const SRQS: &[ChainStep] = &[
    ("modify_srq", |w| w.modify_srq()),
    ("receives", |w| w.receives()),
    ("messages", |w| w.messages()),
];
const QPS: &[ChainStep] = &[
    ("modify_qp in RTS", |w| w.modify_in_rts()),
    ("modify_qp in SQD", |w| w.modify_in_sqd()),
    ("RESET and RTS", |w| w.reconnect()),
    ("remote access", |w| w.remote()),
    ("writes", |w| w.writes()),
    ("polls", |w| w.polls()),
];
const CQS: &[ChainStep] = &[
    ("resize_cq", |w| w.resize()),
    ("modify_cq", |w| w.moderate()),
    ("writes", |w| w.writes()),
    ("polls", |w| w.polls()),
    ("a completion event", |w| w.notified()),
];
const ALL: &[ChainStep] = &[
    REGIONS[0], REGIONS[1], REGIONS[3], SRQS[0], SRQS[1], SRQS[2], QPS[0], QPS[1], QPS[2], CQS[0],
    CQS[1], CQS[2], CQS[3], CQS[4],
];

/// Runs chains of `steps` steps, one for each seed.
fn chains(rig: &Rig, kinds: &[ChainStep], seeds: u64, steps: usize) -> TestResult {
    let reported = std::env::var("VERBENA_SEED").ok();
    let reported = reported.and_then(|seed| seed.parse().ok());
    for seed in reported.map_or(0..seeds, |seed| seed..seed + 1) {
        let mut fixture = ChainFixture::new(rig, seed).at(&format!("seed {seed}"))?;
        for number in 0..steps {
            let (name, step) = *fixture.one_of(kinds);
            step(&mut fixture)
                .and_then(|()| fixture.verify())
                .at(&format!("seed {seed}, step {number}, {name}"))?;
        }
        rig.expect_no_event(QUIET).at(&format!("seed {seed}"))?;
    }
    Ok(())
}

/// Maximum number of send requests, and of completions that are not polled.
const DEPTH: u32 = 128;
/// Sizes in bytes of the buffers of the region; the last buffer cannot be registered.
const SIZES: [usize; 4] = [4096, 8192 + 4096, 1 << 20, 8192];
const UNREGISTRABLE: usize = SIZES.len() - 1;
const RIGHTS: [u32; 9] = [
    access::NONE,
    access::LOCAL_WRITE,
    access::REMOTE_READ,
    access::LOCAL_WRITE | access::REMOTE_WRITE,
    access::LOCAL_WRITE | access::REMOTE_READ,
    access::LOCAL_WRITE | access::REMOTE_ATOMIC,
    EVERYTHING,
    // No region can have these rights, because remote writes require local writes.
    access::REMOTE_WRITE,
    access::REMOTE_ATOMIC,
];
const EVERYTHING: u32 = access::ALL | access::REMOTE_ATOMIC;
/// Offset in the buffer of either end to which marks are read; messages begin at `MESSAGES`.
const MARK: usize = 4096;
const MESSAGES: usize = 8192;

fn is_possible(rights: u32) -> bool {
    let writes = rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    !writes || rights & access::LOCAL_WRITE != 0
}

/// The objects, and the state that the model expects of them.
struct ChainFixture<'r> {
    rig: &'r Rig,
    rng: PatternRng,
    a: QpEndpoint,
    b: QpEndpoint,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    srq: Arc<Srq>,
    pds: [Arc<Pd>; 2],
    bufs: Vec<Arc<Buf>>,
    _between: Vec<Buf>,
    mr: Mr,
    /// The number of the last work request.
    next: u64,
    /// Buffer, domain and rights of the region, by index.
    region: (usize, usize, u32),
    /// Number of entries of A's send CQ, and in `completed` the requests whose completions are in
    /// that CQ.
    cqe: usize,
    completed: VecDeque<u64>,
    /// Number of work requests of the SRQ, its limit, and the receives that wait in it.
    max_wr: u32,
    srq_limit: u32,
    waiting: VecDeque<u64>,
    /// The attributes of A and of B as they were set last. `fresh` is true while nothing has been
    /// sent since then.
    conns: [Conn; 2],
    fresh: bool,
    /// Events that must arrive.
    events: Vec<(EventType, EventElement)>,
}

impl<'r> ChainFixture<'r> {
    fn new(rig: &'r Rig, seed: u64) -> Result<ChainFixture<'r>, Fail> {
        let (cq, channel) = rig.cq_with_events(DEPTH as i32)?;
        let srq = Srq::new(&rig.pd, 16, 1).at("an SRQ")?;
        let mut opts = PairOpts::default();
        opts.cap.max_send_wr = DEPTH;
        let a = rig.end_on(&opts, cq.clone(), Cq::new(&rig.ctx, 16)?)?;
        opts.srq = Some(srq.clone());
        opts.cqe = 2 * DEPTH as i32;
        let b = rig.end(&opts)?;
        // Other memory between the buffers, so that the end of one buffer is never the beginning of
        // another.
        let (mut bufs, mut between) = (Vec::new(), Vec::new());
        for size in SIZES {
            bufs.push(Arc::new(Buf::new(size)?));
            between.push(Buf::new(4096)?);
        }
        bufs[UNREGISTRABLE].forbid();
        let mr = Mr::of(&rig.pd, &bufs[0], 0, SIZES[0], access::ALL)?;
        // The two limits of outstanding READs are separate attributes.
        let first = Conn {
            dest_rd_atomic: Some(4),
            ..Conn::default()
        };
        let mut fixture = ChainFixture {
            rig,
            rng: PatternRng::new(seed),
            pds: [rig.pd.clone(), rig.ctx.alloc_pd()?],
            cqe: cq.cqe(),
            max_wr: srq.query()?.max_wr,
            a,
            b,
            cq,
            channel,
            srq,
            bufs,
            _between: between,
            mr,
            next: 0,
            region: (0, 0, access::ALL),
            completed: VecDeque::new(),
            srq_limit: 0,
            waiting: VecDeque::new(),
            conns: [first.clone(), first],
            fresh: true,
            events: Vec::new(),
        };
        fixture.connect()?;
        Ok(fixture)
    }

    fn one_of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.rng.below(all.len() as u64) as usize]
    }

    fn chance(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Moves both QPs through RESET to RTS with the attributes of the model. The earlier
    /// completions in A's CQ are discarded.
    fn connect(&mut self) -> TestResult {
        for qp in [&self.a.qp, &self.b.qp] {
            set_state(qp, state::RESET).at("RESET")?;
        }
        let gid = self.rig.gid;
        connect(&self.a.qp, gid, self.b.qp.qpn(), &self.conns[0]).at("A")?;
        connect(&self.b.qp, gid, self.a.qp.qpn(), &self.conns[1]).at("B")?;
        self.completed.clear();
        self.fresh = true;
        Ok(())
    }

    /// Checks that all queries of the objects, and the events, agree with the model.
    fn verify(&mut self) -> TestResult {
        let srq = self.srq.query().at("query_srq")?;
        ensure_eq!(srq.max_wr, self.max_wr, "max_wr");
        ensure_eq!(srq.srq_limit, self.srq_limit, "srq_limit");
        ensure_eq!(self.cq.cqe(), self.cqe, "cqe");
        for (name, end, conn) in [
            ("A", &self.a, &self.conns[0]),
            ("B", &self.b, &self.conns[1]),
        ] {
            let (q, _) = end.qp.query().at("query_qp")?;
            ensure_eq!(q.qp_state, state::RTS, "state of {name}");
            ensure_eq!(q.qp_access_flags, conn.access, "qp_access_flags of {name}");
            let reported = (q.path_mtu, q.timeout, q.retry_cnt, q.rnr_retry);
            let set = (conn.mtu, conn.timeout, conn.retry_cnt, conn.rnr_retry);
            ensure_eq!(reported, set, "MTU, timeout, retries of {name}");
            let reported = (q.min_rnr_timer, q.max_rd_atomic, q.max_dest_rd_atomic);
            let taken = conn.dest_rd_atomic.unwrap_or(conn.rd_atomic);
            let set = (conn.min_rnr_timer, conn.rd_atomic, taken);
            ensure_eq!(reported, set, "RNR timer, reads of {name}");
            if self.fresh {
                ensure_eq!(q.sq_psn, conn.sq_psn, "sq_psn of {name}");
                ensure_eq!(q.rq_psn, conn.rq_psn, "rq_psn of {name}");
            }
        }
        while !self.events.is_empty() {
            let event = self.rig.event(&format!("one of {:?}", self.events))?;
            let one = (event.kind(), event.element());
            let at = self.events.iter().position(|&e| e == one);
            let at = at.ok_or_else(|| format!("{one:?}, where {:?} wait", self.events))?;
            self.events.swap_remove(at);
        }
        match self.rig.ctx.async_event(0) {
            None => Ok(()),
            Some(e) => Err(format!("unexpected event: {:?}", e.kind()).into()),
        }
    }

    /// Executes `wr` at A while nothing else is outstanding, and returns the status of its
    /// completion.
    fn alone(&mut self, wr: SendWr) -> Result<u32, Fail> {
        self.poll_all()?;
        self.fresh = false;
        let id = wr.wr_id;
        self.a.qp.post_send(&[wr]).at("a post")?;
        let done = wait_one(&self.cq, "a request")?;
        ensure_eq!(done.wr_id, id, "wr_id");
        Ok(done.status)
    }

    /// Checks that the status `got` is `want`, or RETRY_EXC_ERR if `want` is an error of the peer
    /// and packets are lost. After an error, both QPs are connected again.
    fn check_status(&mut self, what: &str, got: u32, want: u32) -> TestResult {
        let hidden = is_lossy() && want >= status::REM_INV_REQ_ERR && got == status::RETRY_EXC_ERR;
        if !hidden {
            ensure_eq!(status::name(got), status::name(want), "{what}");
        }
        let cause = match want {
            status::SUCCESS => return Ok(()),
            status::REM_ACCESS_ERR => Some(EventType::QP_ACCESS_ERR),
            status::REM_INV_REQ_ERR => Some(EventType::QP_REQ_ERR),
            _ => None,
        };
        if let Some(cause) = cause {
            let b = self.b.qp.element();
            self.events.push((cause, b));
            self.events.push((EventType::QP_LAST_WQE_REACHED, b));
            wait_state(&self.b.qp, state::ERR)?;
        }
        wait_state(&self.a.qp, state::ERR)?;
        self.connect()
    }

    fn poll(&mut self, count: usize) -> TestResult {
        for one in wait(&self.cq, count, "completions")? {
            let id = self.completed.pop_front().ok_or("the model is empty")?;
            expect_success(&one, id, wc::RDMA_WRITE)?;
        }
        Ok(())
    }

    fn poll_all(&mut self) -> TestResult {
        self.poll(self.completed.len())?;
        let more = self.cq.poll(4)?;
        ensure!(
            more.is_empty(),
            "unexpected completions: {}",
            describe(&more)
        );
        Ok(())
    }
}
