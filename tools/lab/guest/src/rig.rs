// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Building blocks of tests: an open device, connected pairs, waiting, checking completions.
use crate::ffi::context::{AsyncEvent, Context, EventType, Pd};
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{mask, state, Qp, QpInit, RecvWr, Srq};
use crate::ffi::sys::Errno;
use crate::ffi::{AhAttr, Gid, QpAttr, QpCap, Wc};
use crate::outcome::ErrorContext as _;
use crate::{Fail, TestResult};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// `enum ibv_wc_status`.
pub mod status {
    use verbena_abi::cqe::WcStatus;

    pub const SUCCESS: u32 = 0;
    pub const LOC_LEN_ERR: u32 = 1;
    pub const LOC_QP_OP_ERR: u32 = 2;
    pub const LOC_PROT_ERR: u32 = 4;
    pub const WR_FLUSH_ERR: u32 = 5;
    pub const LOC_ACCESS_ERR: u32 = 8;
    pub const REM_INV_REQ_ERR: u32 = 9;
    pub const REM_ACCESS_ERR: u32 = 10;
    pub const REM_OP_ERR: u32 = 11;
    pub const RETRY_EXC_ERR: u32 = 12;
    pub const RNR_RETRY_EXC_ERR: u32 = 13;
    pub const REM_ABORT_ERR: u32 = 16;

    /// Returns the name of the status in C.
    pub fn name(status: u32) -> String {
        let known = u8::try_from(status).ok().and_then(WcStatus::from_raw);
        known.map_or_else(
            || format!("status {status}"),
            |known| known.verbs_name().into(),
        )
    }
}

/// `enum ibv_wc_opcode` and `enum ibv_wc_flags`.
pub mod wc {
    pub const SEND: u32 = 0;
    pub const RDMA_WRITE: u32 = 1;
    pub const RDMA_READ: u32 = 2;
    pub const BIND_MW: u32 = 5;
    pub const ATOMIC_WRITE: u32 = 9;
    pub const RECV: u32 = 1 << 7;
    pub const RECV_RDMA_WITH_IMM: u32 = RECV + 1;
    pub const WITH_IMM: u32 = 1 << 1;
    pub const WITH_INV: u32 = 1 << 3;
}

/// Returns the time for which a test waits for an event that must happen. It is long because a
/// guest may be emulated on a loaded machine and the link may lose packets on purpose. No test
/// concludes anything from a shorter wait.
pub fn event_timeout() -> Duration {
    Duration::from_secs(25 * slowness())
}

/// The time for which a test watches for an event that must not happen.
pub const QUIET: Duration = Duration::from_millis(300);

pub struct RunEnv {
    pub device: String,
    pub gid_index: u32,
}

static ENV: OnceLock<RunEnv> = OnceLock::new();

pub fn set_env(env: RunEnv) {
    let _ = ENV.set(env);
}

/// Returns the device and the GID index of this run.
///
/// # Panics
///
/// Panics if the program did not call [`set_env`] at its start.
pub fn env() -> &'static RunEnv {
    ENV.get().expect("set_env comes first")
}

/// An open device with a PD and the GID of this run.
pub struct Rig {
    pub ctx: Arc<Context>,
    pub pd: Arc<Pd>,
    pub gid: Gid,
}

impl Rig {
    pub fn new() -> Result<Rig, Fail> {
        let ctx = Context::open(&env().device).at("opening the device")?;
        let pd = ctx.alloc_pd().at("allocating a PD")?;
        let gid = ctx
            .query_gid(1, env().gid_index)
            .at("querying the GID")?
            .gid;
        Ok(Rig { ctx, pd, gid })
    }

    /// Creates a new connected pair.
    pub fn pair(&self, opts: &PairOpts) -> Result<QpPair, Fail> {
        let a = self.end(opts).at("making end A")?;
        let b = self.end(opts).at("making end B")?;
        connect(&a.qp, self.gid, b.qp.qpn(), &opts.conn_a).at("connecting A")?;
        connect(&b.qp, self.gid, a.qp.qpn(), &opts.conn_b).at("connecting B")?;
        Ok(QpPair { a, b })
    }

    /// Creates an unconnected end: CQs, a buffer and a QP in RESET.
    pub fn end(&self, opts: &PairOpts) -> Result<QpEndpoint, Fail> {
        let scq = match &opts.cq {
            Some(cq) => cq.clone(),
            None => Cq::new(&self.ctx, opts.cqe)?,
        };
        let rcq = match &opts.cq {
            Some(cq) => cq.clone(),
            None => Cq::new(&self.ctx, opts.cqe)?,
        };
        self.end_on(opts, scq, rcq)
    }

    /// Creates an unconnected end on the given CQs.
    pub fn end_on(&self, opts: &PairOpts, scq: Arc<Cq>, rcq: Arc<Cq>) -> Result<QpEndpoint, Fail> {
        let init = QpInit {
            send_cq: scq.clone(),
            recv_cq: rcq.clone(),
            srq: opts.srq.clone(),
            cap: opts.cap,
            sq_sig_all: opts.sig_all,
            qp_type: 2,
        };
        let qp = Qp::new(&self.pd, &init).at("creating a QP")?;
        let mr = Arc::new(Mr::new(&self.pd, opts.buf, opts.mr_access).at("registering")?);
        Ok(QpEndpoint { qp, scq, rcq, mr })
    }

    /// Creates a CQ with a channel of its own.
    pub fn cq_with_events(&self, cqe: i32) -> Result<(Arc<Cq>, Arc<Channel>), Fail> {
        let channel = Channel::new(&self.ctx).at("creating a channel")?;
        let cq = Cq::with_channel(&self.ctx, cqe, Some(&channel), 0).at("creating a CQ")?;
        Ok((cq, channel))
    }

    /// Waits for an asynchronous event.
    pub fn event(&self, what: &str) -> Result<AsyncEvent, Fail> {
        let ms = event_timeout().as_millis() as i32;
        self.ctx
            .async_event(ms)
            .ok_or_else(|| format!("no asynchronous event: {what}").into())
    }

    /// Waits for an asynchronous event and checks its kind and its object.
    pub fn expect_event(
        &self,
        kind: EventType,
        element: crate::ffi::context::EventElement,
    ) -> Result<AsyncEvent, Fail> {
        let event = self.event(&format!("{kind:?}"))?;
        ensure_eq!(event.kind(), kind, "kind of event");
        ensure_eq!(event.element(), element, "object of {kind:?}");
        Ok(event)
    }

    /// Checks that no further event arrives for `quiet`.
    pub fn expect_no_event(&self, quiet: Duration) -> TestResult {
        match self.ctx.async_event(quiet.as_millis() as i32) {
            None => Ok(()),
            Some(e) => Err(format!("unexpected event: {:?}", e.kind()).into()),
        }
    }
}

/// The parameters of a QP's connection.
#[derive(Clone)]
pub struct Conn {
    pub access: u32,
    /// Path MTU, `enum ibv_mtu`; 3 is 1024 bytes.
    pub mtu: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    /// Maximum number of READs and atomics that the QP has outstanding.
    pub rd_atomic: u8,
    /// Maximum number of READs and atomics that the QP accepts, or `None` for the same number as
    /// `rd_atomic`.
    pub dest_rd_atomic: Option<u8>,
    pub sq_psn: u32,
    pub rq_psn: u32,
}

impl Default for Conn {
    fn default() -> Conn {
        Conn {
            access: access::ALL,
            mtu: 3,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 6,
            rd_atomic: 4,
            dest_rd_atomic: None,
            sq_psn: 0x12_3456,
            rq_psn: 0x12_3456,
        }
    }
}

/// The parameters of a pair.
#[derive(Clone)]
pub struct PairOpts {
    pub cqe: i32,
    pub cap: QpCap,
    pub buf: usize,
    pub mr_access: u32,
    pub sig_all: bool,
    /// A CQ to use for all four queues, instead of four CQs.
    pub cq: Option<Arc<Cq>>,
    pub srq: Option<Arc<Srq>>,
    pub conn_a: Conn,
    pub conn_b: Conn,
}

impl Default for PairOpts {
    fn default() -> PairOpts {
        PairOpts {
            cqe: 64,
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 0,
            },
            buf: 64 * 1024,
            mr_access: access::ALL,
            sig_all: false,
            cq: None,
            srq: None,
            conn_a: Conn::default(),
            conn_b: Conn::default(),
        }
    }
}

impl PairOpts {
    /// Makes the same change at both ends.
    pub fn conn(mut self, f: impl Fn(&mut Conn)) -> PairOpts {
        f(&mut self.conn_a);
        f(&mut self.conn_b);
        self
    }

    pub fn with(mut self, f: impl FnOnce(&mut PairOpts)) -> PairOpts {
        f(&mut self);
        self
    }
}

/// One end of a connection. Fields are dropped in order, so the QP is destroyed first.
pub struct QpEndpoint {
    pub qp: Qp,
    pub scq: Arc<Cq>,
    pub rcq: Arc<Cq>,
    pub mr: Arc<Mr>,
}

impl QpEndpoint {
    /// Posts a receive over a part of the buffer.
    pub fn recv(&self, wr_id: u64, off: usize, len: usize) -> TestResult {
        self.qp
            .post_recv(&[RecvWr::new(wr_id, &[self.mr.sge(off, len)])])
            .at("posting a receive")
    }
}

pub struct QpPair {
    pub a: QpEndpoint,
    pub b: QpEndpoint,
}

pub const INIT_MASK: u32 = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
pub const RTR_MASK: u32 = mask::STATE
    | mask::AV
    | mask::PATH_MTU
    | mask::DEST_QPN
    | mask::RQ_PSN
    | mask::MAX_DEST_RD_ATOMIC
    | mask::MIN_RNR_TIMER;
pub const RTS_MASK: u32 = mask::STATE
    | mask::TIMEOUT
    | mask::RETRY_CNT
    | mask::RNR_RETRY
    | mask::SQ_PSN
    | mask::MAX_QP_RD_ATOMIC;

/// Returns the attributes for all the transitions of an RC QP; the mask selects among them.
pub fn attrs(gid: Gid, dest_qpn: u32, conn: &Conn) -> QpAttr {
    QpAttr {
        qp_access_flags: conn.access,
        port_num: 1,
        path_mtu: conn.mtu,
        dest_qp_num: dest_qpn,
        rq_psn: conn.rq_psn,
        sq_psn: conn.sq_psn,
        max_rd_atomic: conn.rd_atomic,
        max_dest_rd_atomic: conn.dest_rd_atomic.unwrap_or(conn.rd_atomic),
        min_rnr_timer: conn.min_rnr_timer,
        timeout: conn.timeout,
        retry_cnt: conn.retry_cnt,
        rnr_retry: conn.rnr_retry,
        ah_attr: AhAttr {
            grh: crate::ffi::GlobalRoute {
                dgid: gid.into(),
                sgid_index: env().gid_index as u8,
                hop_limit: 64,
                ..Default::default()
            },
            is_global: 1,
            port_num: 1,
            ..AhAttr::default()
        },
        ..QpAttr::default()
    }
}

/// Returns the mask of the ordinary transition to a state.
pub fn mask_to(state: u32) -> u32 {
    match state {
        state::INIT => INIT_MASK,
        state::RTR => RTR_MASK,
        state::RTS => RTS_MASK,
        _ => mask::STATE,
    }
}

/// Moves a QP to a state with exactly the attributes that the transition requires.
pub fn move_to(qp: &Qp, to: u32, gid: Gid, dest: u32, conn: &Conn) -> Result<(), Errno> {
    let attr = QpAttr {
        qp_state: to,
        ..attrs(gid, dest, conn)
    };
    qp.modify(&attr, mask_to(to))
}

/// Moves a QP from RESET to RTS.
pub fn connect(qp: &Qp, gid: Gid, dest_qpn: u32, conn: &Conn) -> TestResult {
    for to in [state::INIT, state::RTR, state::RTS] {
        move_to(qp, to, gid, dest_qpn, conn).at(state::NAMES[to as usize])?;
    }
    Ok(())
}

/// Moves a QP to ERR or RESET.
pub fn set_state(qp: &Qp, to: u32) -> Result<(), Errno> {
    qp.modify(
        &QpAttr {
            qp_state: to,
            ..QpAttr::default()
        },
        mask::STATE,
    )
}

/// Yields the CPU while polling: guests have few CPUs, and the device needs one too.
pub fn yield_cpu(spins: &mut u32) {
    *spins += 1;
    if *spins < 200 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Polls until `n` completions have arrived.
pub fn wait(cq: &Cq, n: usize, what: &str) -> Result<Vec<Wc>, Fail> {
    let deadline = Instant::now() + event_timeout();
    let mut all = Vec::with_capacity(n);
    let mut spins = 0;
    while all.len() < n {
        let got = cq.poll(n - all.len()).at("poll_cq")?;
        if !got.is_empty() {
            spins = 0;
            all.extend(got);
        } else if Instant::now() > deadline {
            return Err(format!(
                "{what}: only {} of {n} completions: {}",
                all.len(),
                describe(&all)
            )
            .into());
        } else {
            yield_cpu(&mut spins);
        }
    }
    Ok(all)
}

/// Waits for one completion.
pub fn wait_one(cq: &Cq, what: &str) -> Result<Wc, Fail> {
    Ok(wait(cq, 1, what)?[0])
}

/// Checks that nothing completes for `quiet`.
pub fn expect_quiet(cq: &Cq, quiet: Duration, what: &str) -> TestResult {
    let deadline = Instant::now() + quiet;
    loop {
        let got = cq.poll(8).at("poll_cq")?;
        ensure!(
            got.is_empty(),
            "{what}: unexpected completion: {}",
            describe(&got)
        );
        if Instant::now() > deadline {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, mut cond: impl FnMut() -> Result<bool, Fail>) -> TestResult {
    let deadline = Instant::now() + event_timeout();
    loop {
        if cond()? {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not reached in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the QP has reached a state without a modify by the test.
pub fn wait_state(qp: &Qp, want: u32) -> TestResult {
    wait_for(
        &format!("the QP is in {}", state::NAMES[want as usize]),
        || Ok(qp.state().at("query_qp")? == want),
    )
}

pub fn describe(wcs: &[Wc]) -> String {
    let mut s: Vec<String> = wcs
        .iter()
        .take(12)
        .map(|w| {
            format!(
                "{{wr_id {} {} vendor_err {:#x}}}",
                w.wr_id,
                status::name(w.status),
                w.vendor_err
            )
        })
        .collect();
    if wcs.len() > 12 {
        s.push(format!("... {} more", wcs.len() - 12));
    }
    if s.is_empty() {
        "none".into()
    } else {
        s.join(" ")
    }
}

/// Checks that a completion is the successful one of the given request.
pub fn expect_success(w: &Wc, wr_id: u64, opcode: u32) -> TestResult {
    ensure_eq!(
        status::name(w.status),
        status::name(status::SUCCESS),
        "status of WR {wr_id} (vendor_err {:#x})",
        w.vendor_err
    );
    ensure_eq!(w.wr_id, wr_id, "wr_id");
    ensure_eq!(w.opcode, opcode, "opcode of WR {wr_id}");
    Ok(())
}

/// True if the link loses packets on purpose (`VERBENA_LOSSY` in the environment). A responder in
/// ERR is silent, so if the NAK with the error is lost, the requester can only see that its retries
/// are exhausted.
pub fn is_lossy() -> bool {
    std::env::var_os("VERBENA_LOSSY").is_some()
}

/// Returns the factor by which this kernel is slower than the stock kernel (`VERBENA_SLOW` in the
/// environment): a kernel with checkers needs more time for everything.
pub fn slowness() -> u64 {
    let value = std::env::var("VERBENA_SLOW").ok();
    value
        .and_then(|v| v.parse().ok())
        .unwrap_or(1)
        .clamp(1, 100)
}

/// Checks a completion in error, with all the fields that are valid then (rule 1.5). Returns
/// `vendor_err`.
pub fn expect_error(w: &Wc, wr_id: u64, want: u32, qp: &Qp) -> Result<u32, Fail> {
    let from_nak = (status::REM_INV_REQ_ERR..=status::REM_OP_ERR).contains(&want);
    let want = if from_nak && w.status == status::RETRY_EXC_ERR && is_lossy() {
        status::RETRY_EXC_ERR
    } else {
        want
    };
    ensure_eq!(
        status::name(w.status),
        status::name(want),
        "status of WR {wr_id} (vendor_err {:#x})",
        w.vendor_err
    );
    ensure_eq!(
        w.wr_id,
        wr_id,
        "wr_id of the {} completion",
        status::name(want)
    );
    ensure_eq!(
        w.qp_num,
        qp.qpn(),
        "qp_num of the {} completion",
        status::name(want)
    );
    ensure!(
        w.vendor_err != 0,
        "vendor_err of {} is 0",
        status::name(want)
    );
    Ok(w.vendor_err)
}
