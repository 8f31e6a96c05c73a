// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Common parts of the flows: a device, two ends of a connection in one process, and the work
//! between them. The recovery itself is in the flows.
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbena_lab_guest::ffi::context::{device_names, Context, EventType, Pd};
use verbena_lab_guest::ffi::cq::Cq;
use verbena_lab_guest::ffi::mr::{access, Mr};
use verbena_lab_guest::ffi::qp::{mask, op, state, Qp, QpInit, RecvWr, SendWr, Srq};
use verbena_lab_guest::ffi::{AhAttr, Gid, GlobalRoute, QpAttr, QpCap, Wc};
use verbena_lab_guest::rig::status;

/// Number of pieces of the work; each piece goes from one end to the other.
pub const PIECES: usize = 64;
const PIECE: usize = 4096;
/// Values of `enum ibv_qp_type`.
pub const RC: u32 = 2;
pub const UC: u32 = 3;

/// Result whose error describes the operation that a verb has refused.
pub type Result<T> = std::result::Result<T, String>;

/// Adds the operation that was attempted to the error of a verb.
pub trait VerbError<T> {
    fn or_refused(self, what: &str) -> Result<T>;
}

impl<T, E: Debug> VerbError<T> for std::result::Result<T, E> {
    fn or_refused(self, what: &str) -> Result<T> {
        self.map_err(|errno| format!("cannot {what}: {errno:?}"))
    }
}

/// A device (`$DEVICE`, or the first one), and the GID of connections (the first valid GID from
/// index `$GID`, or from index 0).
pub struct OpenDevice {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    gid: Gid,
    gid_index: u32,
}

impl OpenDevice {
    /// Opens the device. This fails while a device that had a fatal error is not back yet.
    pub fn open() -> Result<OpenDevice> {
        let name = std::env::var("DEVICE").ok();
        let name = name.or_else(|| device_names().into_iter().next());
        let context = Context::open(&name.unwrap_or_default()).or_refused("open the device")?;
        let first = std::env::var("GID").ok().and_then(|gid| gid.parse().ok());
        let gid_at = |index| context.query_gid(1, index).ok().map(|found| found.gid);
        let is_set = |&(_, gid): &(u32, Gid)| gid != Gid::default();
        let mut gids = (first.unwrap_or(0)..256).filter_map(|n| Some((n, gid_at(n)?)));
        let (gid_index, gid) = gids.find(is_set).ok_or("the device has no GID")?;
        drop(gids);
        let pd = context.alloc_pd().or_refused("allocate a PD")?;
        Ok(OpenDevice {
            context,
            pd,
            gid,
            gid_index,
        })
    }

    /// Waits for an asynchronous event of this kind for at most `limits`. Returns true if it
    /// came. Acknowledges all events that come in the meantime, and ignores those of other kinds.
    pub fn wait_for_event(&self, kind: EventType, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.context.async_event(left.as_millis() as i32) {
                Some(event) if event.kind() == kind => return true,
                Some(_) => {}
                None => return false,
            }
        }
    }
}

/// A queue pair with its own CQ and memory, whose receives may come from an SRQ. The queue pair is
/// the first field, so that it is destroyed first.
pub struct Endpoint {
    pub qp: Qp,
    pub cq: Arc<Cq>,
    mr: Mr,
}

/// Retry limits of a queue pair, in the encoding of `ibv_modify_qp`.
#[derive(Clone, Copy)]
pub struct RetryLimits {
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

pub const MAX_RETRIES: RetryLimits = RetryLimits {
    timeout: 16,
    retry_cnt: 7,
    rnr_retry: 7,
};

impl Endpoint {
    pub fn new(
        device: &OpenDevice,
        kind: u32,
        cqe: usize,
        srq: Option<&Arc<Srq>>,
    ) -> Result<Endpoint> {
        let all = access::ALL | access::REMOTE_ATOMIC;
        let cq = Cq::new(&device.context, cqe as i32).or_refused("create a CQ")?;
        let mr = Mr::new(&device.pd, PIECES * PIECE, all).or_refused("register memory")?;
        let init = QpInit {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: srq.cloned(),
            cap: QpCap {
                max_send_wr: PIECES as u32,
                max_recv_wr: PIECES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
            qp_type: kind,
        };
        let qp = Qp::new(&device.pd, &init).or_refused("create a queue pair")?;
        Ok(Endpoint { qp, cq, mr })
    }

    /// Moves the queue pair to a state, with the attributes that the mask names.
    pub fn modify(&self, to: u32, attr: QpAttr, mask: u32) -> Result<()> {
        let attr = QpAttr {
            qp_state: to,
            ..attr
        };
        let what = format!("go to {}", state::NAMES[to as usize]);
        self.qp.modify(&attr, mask::STATE | mask).or_refused(&what)
    }

    /// Posts a piece of the work as an RDMA WRITE to the peer's memory.
    pub fn write(&self, piece: usize, to: &Endpoint) -> Result<()> {
        let at = piece * PIECE;
        let wr = SendWr::new(op::WRITE, piece as u64, &[self.mr.sge(at, PIECE)])
            .remote(to.mr.at(at), to.mr.rkey());
        self.qp.post_send(&[wr]).or_refused("post a WRITE")
    }

    /// Posts a piece of the work as a SEND.
    pub fn send(&self, piece: usize) -> Result<()> {
        let sge = self.mr.sge(piece * PIECE, PIECE);
        let wr = SendWr::new(op::SEND, piece as u64, &[sge]);
        self.qp.post_send(&[wr]).or_refused("post a SEND")
    }

    /// Returns a receive request for a piece.
    pub fn receive(&self, piece: usize) -> RecvWr {
        RecvWr::new(piece as u64, &[self.mr.sge(piece * PIECE, PIECE)])
    }

    /// Returns the next completion, or `None` after five seconds without one.
    pub fn completion(&self) -> Result<Option<Wc>> {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let found = self.cq.poll(1).or_refused("poll the CQ")?;
            if found.len() == 1 || Instant::now() > end {
                return Ok(found.first().copied());
            }
            std::thread::yield_now();
        }
    }
}

/// Moves both ends from any state through RESET to RTS.
pub fn connect(device: &OpenDevice, ends: [&Endpoint; 2], limits: RetryLimits) -> Result<()> {
    let is_reliable = ends[0].qp.init.qp_type == RC;
    let more = |mask| if is_reliable { mask } else { 0 };
    for end in ends {
        let attr = QpAttr {
            port_num: 1,
            qp_access_flags: access::REMOTE_WRITE | more(access::REMOTE_READ),
            ..QpAttr::default()
        };
        end.modify(state::RESET, QpAttr::default(), 0)?;
        let init = mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        end.modify(state::INIT, attr, init)?;
    }
    for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        let attr = QpAttr {
            path_mtu: 3, // IBV_MTU_1024
            dest_qp_num: peer.qp.qpn(),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ah_attr: AhAttr {
                is_global: 1,
                port_num: 1,
                grh: GlobalRoute {
                    dgid: device.gid.into(),
                    sgid_index: device.gid_index as u8,
                    hop_limit: 64,
                    ..GlobalRoute::default()
                },
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        let rtr = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        let reliable = more(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
        end.modify(state::RTR, attr, rtr | reliable)?;
    }
    for end in ends {
        let attr = QpAttr {
            timeout: limits.timeout,
            retry_cnt: limits.retry_cnt,
            rnr_retry: limits.rnr_retry,
            max_rd_atomic: 4,
            ..QpAttr::default()
        };
        let reliable = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        end.modify(state::RTS, attr, mask::SQ_PSN | more(reliable))?;
    }
    Ok(())
}

/// Fills the memory of one end, and clears that of the other.
pub fn prepare(from: &Endpoint, to: &Endpoint) {
    let bytes = (0..PIECES * PIECE).map(|i| (1 + i / PIECE + i % 13) as u8);
    from.mr.buf.write(0, &bytes.collect::<Vec<u8>>());
    to.mr.buf.fill(0, PIECES * PIECE, 0);
}

/// Returns the number of pieces that have arrived completely.
pub fn count_arrived(from: &Endpoint, to: &Endpoint) -> usize {
    let same = |n: &usize| from.mr.buf.read(n * PIECE, PIECE) == to.mr.buf.read(n * PIECE, PIECE);
    (0..PIECES).filter(same).count()
}

/// Outcome of a round of work.
#[derive(PartialEq, Eq, Debug)]
pub enum TransferStatus {
    /// Each work request completed with success.
    Done,
    /// Each work request completed; the value is the status of the first one that failed.
    Failed(u32),
    /// A completion was missing for five seconds.
    Silent,
}

/// Pieces that have completed with success.
#[derive(Default)]
pub struct Transfer {
    done: Vec<usize>,
}

impl Transfer {
    /// Waits until `posted` work requests have completed with any status, and records those that
    /// succeeded. Prints the first failure.
    pub fn wait(&mut self, end: &Endpoint, posted: usize) -> Result<TransferStatus> {
        let mut round = TransferStatus::Done;
        for _ in 0..posted {
            let Some(wc) = end.completion()? else {
                println!("no completion for five seconds");
                return Ok(TransferStatus::Silent);
            };
            if wc.status == status::SUCCESS {
                self.done.push(wc.wr_id as usize);
            } else if round == TransferStatus::Done {
                println!("{} at piece {}", status::name(wc.status), wc.wr_id);
                round = TransferStatus::Failed(wc.status);
            }
        }
        Ok(round)
    }

    /// Posts the pieces that have not completed with success, and waits for them.
    pub fn write_rest(&mut self, from: &Endpoint, to: &Endpoint) -> Result<TransferStatus> {
        let rest = (0..PIECES).filter(|piece| !self.done.contains(piece));
        let rest: Vec<usize> = rest.collect();
        for &piece in &rest {
            from.write(piece, to)?;
        }
        self.wait(from, rest.len())
    }
}
