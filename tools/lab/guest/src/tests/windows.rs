// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of memory windows: the rights that a bind grants to which QP, and the errors of binds.
use crate::ffi::context::EventType;
use crate::ffi::destroy::Destroy;
use crate::ffi::mr::{access, Mr};
use crate::ffi::mw::{mw_type, Mw, MwBind};
use crate::ffi::qp::{op, state, SendWr};
use crate::ffi::sys::Errno;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("7/windows-of-type-1", type_1),
    GuestTest::new("7/windows-of-type-2", type_2),
    GuestTest::new("3/mw-bind-err", bind_errors),
    GuestTest::new("3.6/failed-remote-invalidate", remote_invalidate),
    GuestTest::new("7/region-with-windows-is-busy", busy),
    GuestTest::new("7/windows-churn", churn).limit(180),
    GuestTest::new("long/a-window-never-gets-the-key-of-another", not_again)
        .limit(300)
        .long(),
];

const MW_BIND_ERR: u32 = 6;
const WRITE: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE;

/// Creates a pair, and a region of B that windows can be bound to and that grants the peer nothing.
fn rig_of(rig: &Rig) -> Result<(QpPair, Mr), Fail> {
    let pair = rig.pair(&PairOpts::default())?;
    let mr = Mr::new(&rig.pd, 8192, access::LOCAL_WRITE | access::MW_BIND)?;
    Ok((pair, mr))
}

fn whole(mr: &Mr, access: u32) -> MwBind<'_> {
    MwBind {
        mr: Some(mr),
        addr: mr.buf.addr(),
        length: mr.buf.len() as u64,
        access,
    }
}

/// Returns the status of a WRITE of one byte by A. After an error, takes B's event and connects the
/// pair again.
fn write(rig: &Rig, pair: &QpPair, addr: u64, rkey: u32) -> Result<u32, Fail> {
    let wr = SendWr::new(op::WRITE, 1, &[pair.a.mr.sge(0, 1)]);
    pair.a.qp.post_send(&[wr.remote(addr, rkey)])?;
    let status = wait_one(&pair.a.scq, "a WRITE")?.status;
    if status != status::SUCCESS {
        drop(rig.expect_event(EventType::QP_ACCESS_ERR, pair.b.qp.element())?);
        reset_and_connect(rig, pair)?;
    }
    Ok(status)
}

/// Moves both QPs to RESET and back to RTS.
fn reset_and_connect(rig: &Rig, pair: &QpPair) -> TestResult {
    for qp in [&pair.a.qp, &pair.b.qp] {
        set_state(qp, state::RESET)?;
    }
    connect(&pair.a.qp, rig.gid, pair.b.qp.qpn(), &Conn::default())?;
    connect(&pair.b.qp, rig.gid, pair.a.qp.qpn(), &Conn::default())
}

/// Binds by a work request of B and returns the status of its completion.
fn bind(pair: &QpPair, mw: &Mw, key: u32, to: MwBind<'_>) -> Result<u32, Fail> {
    pair.b.qp.bind(9, mw, key, to).at("posting a bind")?;
    let done = wait_one(&pair.b.scq, "a bind")?;
    if done.status == status::SUCCESS {
        ensure_eq!(done.opcode, wc::BIND_MW, "opcode");
    }
    Ok(done.status)
}

fn type_1(rig: &Rig) -> TestResult {
    let (pair, mr) = rig_of(rig)?;
    let mw = Mw::new(&rig.pd, mw_type::TYPE_1).at("a window")?;
    let at = mr.buf.addr();
    ensure_eq!(
        write(rig, &pair, at, mw.rkey())?,
        status::REM_ACCESS_ERR,
        "before a bind"
    );
    let mut keys = Vec::new();
    for round in 0..3 {
        let to = MwBind {
            addr: at + 16 * round,
            length: 16,
            ..whole(&mr, WRITE)
        };
        pair.b.qp.bind_1(9, &mw, to).at("ibv_bind_mw")?;
        expect_success(&wait_one(&pair.b.scq, "a bind")?, 9, wc::BIND_MW)?;
        ensure!(!keys.contains(&mw.rkey()), "the key stays {:#x}", mw.rkey());
        let last = to.addr + 15;
        ensure_eq!(
            write(rig, &pair, last, mw.rkey())?,
            status::SUCCESS,
            "the last byte"
        );
        for (addr, key) in [
            (last + 1, mw.rkey()),
            (last, *keys.last().unwrap_or(&mr.rkey())),
        ] {
            ensure_eq!(
                write(rig, &pair, addr, key)?,
                status::REM_ACCESS_ERR,
                "beyond it, or by the former key"
            );
        }
        keys.push(mw.rkey());
    }
    let nothing = MwBind {
        mr: None,
        addr: 0,
        length: 0,
        access: 0,
    };
    pair.b.qp.bind_1(9, &mw, nothing).at("to nothing")?;
    expect_success(&wait_one(&pair.b.scq, "a bind")?, 9, wc::BIND_MW)?;
    ensure_eq!(
        write(rig, &pair, at + 32, mw.rkey())?,
        status::REM_ACCESS_ERR,
        "bound to nothing"
    );
    // These binds are invalid in themselves.
    let wrong = MwBind {
        mr: None,
        addr: at,
        length: 8,
        access: WRITE,
    };
    ensure_eq!(
        pair.b.qp.bind_1(9, &mw, wrong),
        Err(Errno::EINVAL),
        "no region"
    );
    let posted = pair.b.qp.bind(9, &mw, mw.rkey(), whole(&mr, WRITE));
    ensure_eq!(
        posted.map_err(|e| e.errno),
        Err(Errno::EINVAL),
        "type 1 by a work request"
    );
    for unknown in [0, 3] {
        let made = Mw::new(&rig.pd, unknown).map(|_| ());
        ensure_eq!(made, Err(Errno::EINVAL), "type {unknown}");
    }
    // If a bind is not posted, the window keeps its key (ibv_bind_mw(3)).
    set_state(&pair.b.qp, state::RESET)?;
    let key = mw.rkey();
    let refused = pair.b.qp.bind_1(9, &mw, whole(&mr, WRITE));
    ensure_eq!(refused, Err(Errno::EINVAL), "a bind in RESET");
    ensure_eq!(mw.rkey(), key, "the key after a refused bind");
    rig.expect_no_event(QUIET)
}

fn invalidate(pair: &QpPair, key: u32) -> Result<u32, Fail> {
    let wr = SendWr::new(op::LOCAL_INV, 7, &[]).imm(key);
    pair.b.qp.post_send(&[wr]).at("a local invalidate")?;
    Ok(wait_one(&pair.b.scq, "a local invalidate")?.status)
}

fn type_2(rig: &Rig) -> TestResult {
    let (pair, mr) = rig_of(rig)?;
    let other = rig.pair(&PairOpts::default())?;
    let mw = Mw::new(&rig.pd, mw_type::TYPE_2).at("a window")?;
    let at = mr.buf.addr();
    let key = (mw.rkey() & !0xff) | 0x42;
    ensure_eq!(
        bind(&pair, &mw, key, whole(&mr, WRITE))?,
        status::SUCCESS,
        "a bind"
    );
    ensure_eq!(
        write(rig, &pair, at, key)?,
        status::SUCCESS,
        "by its own queue pair"
    );
    ensure_eq!(
        write(rig, &other, at, key)?,
        status::REM_ACCESS_ERR,
        "by another queue pair"
    );
    ensure_eq!(
        invalidate(&pair, key)?,
        status::SUCCESS,
        "a local invalidate"
    );
    ensure_eq!(
        write(rig, &pair, at, key)?,
        status::REM_ACCESS_ERR,
        "invalidated"
    );
    let next = key + 1;
    ensure_eq!(
        bind(&pair, &mw, next, whole(&mr, WRITE))?,
        status::SUCCESS,
        "bound again"
    );
    ensure_eq!(
        write(rig, &pair, at, next)?,
        status::SUCCESS,
        "by the next key"
    );
    pair.b.recv(5, 0, 64)?;
    let wr = SendWr::new(op::SEND_INV, 6, &[]).imm(next);
    pair.a.qp.post_send(&[wr]).at("a SEND with invalidate")?;
    expect_success(&wait_one(&pair.a.scq, "the SEND")?, 6, wc::SEND)?;
    let received = wait_one(&pair.b.rcq, "the receive")?;
    expect_success(&received, 5, wc::RECV)?;
    ensure!(
        received.wc_flags & wc::WITH_INV != 0,
        "flags {:#x}",
        received.wc_flags
    );
    ensure_eq!(received.imm_data, next, "the key that was invalidated");
    ensure_eq!(
        write(rig, &pair, at, next)?,
        status::REM_ACCESS_ERR,
        "invalidated by the peer"
    );
    // The program chooses only the tag of the key; the window then has the whole key.
    ensure_eq!(
        bind(&pair, &mw, 0x0700_0007, whole(&mr, WRITE))?,
        status::SUCCESS,
        "bound with a tag"
    );
    ensure_eq!(mw.rkey(), (key & !0xff) | 7, "the key");
    ensure_eq!(
        write(rig, &pair, at, mw.rkey())?,
        status::SUCCESS,
        "by the key with that tag"
    );
    rig.expect_no_event(QUIET)
}

/// Each of these binds moves the QP to ERR, with one completion and no event.
fn bind_errors(rig: &Rig) -> TestResult {
    let (pair, mr) = rig_of(rig)?;
    let plain = Mr::new(&rig.pd, 4096, access::LOCAL_WRITE)?;
    let read_only = Mr::new(&rig.pd, 4096, access::MW_BIND)?;
    let pd = rig.ctx.alloc_pd()?;
    let foreign = Mr::new(&pd, 4096, access::LOCAL_WRITE | access::MW_BIND)?;
    let mw = Mw::new(&rig.pd, mw_type::TYPE_2)?;
    let foreign_mw = Mw::new(&pd, mw_type::TYPE_2)?;
    let beyond = MwBind {
        length: 8193,
        ..whole(&mr, WRITE)
    };
    let mut causes = Vec::new();
    for (what, mw, to) in [
        ("without MW_BIND", &mw, whole(&plain, WRITE)),
        ("of another domain", &mw, whole(&foreign, WRITE)),
        ("beyond the region", &mw, beyond),
        ("writing what is read only", &mw, whole(&read_only, WRITE)),
        ("a window of another domain", &foreign_mw, whole(&mr, WRITE)),
    ] {
        pair.b.qp.bind(9, mw, mw.rkey() + 1, to).at(what)?;
        let done = wait_one(&pair.b.scq, what)?;
        ensure_eq!(status::name(done.status), "IBV_WC_MW_BIND_ERR", "{what}");
        ensure!(done.vendor_err != 0, "{what}: no vendor_err");
        if !causes.contains(&done.vendor_err) {
            causes.push(done.vendor_err);
        }
        wait_state(&pair.b.qp, state::ERR).at(what)?;
        reset_and_connect(rig, &pair).at(what)?;
    }
    ensure_eq!(causes.len(), 4, "distinct causes");
    for (what, key) in [("an unbound window", mw.rkey()), ("a region", mr.rkey())] {
        let status = invalidate(&pair, key)?;
        ensure_eq!(
            status::name(status),
            "IBV_WC_MW_BIND_ERR",
            "{what} invalidated"
        );
        reset_and_connect(rig, &pair).at(what)?;
    }
    ensure_eq!(
        bind(&pair, &mw, mw.rkey() + 1, whole(&mr, WRITE))?,
        status::SUCCESS,
        "after all errors"
    );
    rig.expect_no_event(QUIET)
}

/// The SEND itself is valid and completes with success; only the receive reports the invalid key.
fn remote_invalidate(rig: &Rig) -> TestResult {
    let (pair, mr) = rig_of(rig)?;
    let mw = Mw::new(&rig.pd, mw_type::TYPE_2)?;
    for (what, key) in [("an unbound window", mw.rkey()), ("a region", mr.rkey())] {
        pair.b.recv(5, 0, 64)?;
        let wr = SendWr::new(op::SEND_INV, 6, &[]).imm(key);
        pair.a.qp.post_send(&[wr]).at(what)?;
        let received = wait_one(&pair.b.rcq, what)?;
        expect_error(&received, 5, MW_BIND_ERR, &pair.b.qp).at(what)?;
        wait_state(&pair.b.qp, state::ERR).at(what)?;
        // If the acknowledgement is lost, the responder in ERR does not repeat it.
        if !is_lossy() {
            expect_success(&wait_one(&pair.a.scq, what)?, 6, wc::SEND).at(what)?;
            ensure_eq!(
                pair.a.qp.state()?,
                state::RTS,
                "{what}: state of the sender"
            );
        }
        reset_and_connect(rig, &pair).at(what)?;
    }
    rig.expect_no_event(QUIET)
}

fn busy(rig: &Rig) -> TestResult {
    let (pair, mr) = rig_of(rig)?;
    let mw = Mw::new(&rig.pd, mw_type::TYPE_2)?;
    let key = mw.rkey() + 1;
    ensure_eq!(
        bind(&pair, &mw, key, whole(&mr, WRITE))?,
        status::SUCCESS,
        "a bind"
    );
    let Err((errno, mr)) = mr.destroy() else {
        return Err("a region with a window bound to it was deregistered".into());
    };
    ensure_eq!(errno, Errno::EBUSY, "deregistering it");
    let rereg = mr.change(None, None, Some(access::LOCAL_WRITE));
    ensure_eq!(rereg, Err(Errno::EBUSY), "registering it anew");
    let at = mr.buf.addr();
    ensure_eq!(write(rig, &pair, at, key)?, status::SUCCESS, "as before");
    mw.destroy().map_err(|e| e.0).at("a window that is bound")?;
    ensure_eq!(
        write(rig, &pair, at, key)?,
        status::REM_ACCESS_ERR,
        "the key of a deallocated window"
    );
    mr.destroy()
        .map_err(|e| e.0)
        .at("a region without windows")?;
    rig.expect_no_event(QUIET)
}

/// A bind changes the tag of a window's key. After all other indexes were used, the same index is
/// allocated again, and a peer may still have the old key.
fn not_again(rig: &Rig) -> TestResult {
    let (pair, mr) = rig_of(rig)?;
    let mw = Mw::new(&rig.pd, mw_type::TYPE_2).at("a window")?;
    let key = (mw.rkey() & !0xff) | (mw.rkey().wrapping_add(1) & 0xff);
    ensure_eq!(
        bind(&pair, &mw, key, whole(&mr, WRITE))?,
        status::SUCCESS,
        "a bind"
    );
    mw.destroy().map_err(|e| e.0).at("the window")?;
    for _ in 0..1 << 17 {
        let mw = Mw::new(&rig.pd, mw_type::TYPE_2).at("a window")?;
        let new = mw.rkey();
        mw.destroy().map_err(|e| e.0).at("a window")?;
        if new >> 8 == key >> 8 {
            ensure!(new != key, "another window has got the key {key:#x}");
            return Ok(());
        }
    }
    Err("no other window has got the index".into())
}

/// Two threads, each with QPs of its own, allocate, bind, use, invalidate and deallocate windows
/// over one region.
pub(super) fn churn(rig: &Rig) -> TestResult {
    const ROUNDS: u32 = 300;
    let mr = Mr::new(&rig.pd, 8192, access::LOCAL_WRITE | access::MW_BIND)?;
    std::thread::scope(|s| {
        let all: Vec<_> = (0..2u64)
            .map(|t| {
                let mr = &mr;
                s.spawn(move || -> TestResult {
                    let pair = rig.pair(&PairOpts::default())?;
                    let to = MwBind {
                        addr: mr.buf.addr() + 4096 * t,
                        length: 4096,
                        ..whole(mr, WRITE)
                    };
                    for round in 0..ROUNDS {
                        let mw = Mw::new(&rig.pd, mw_type::TYPE_2)?;
                        let key = (mw.rkey() & !0xff) | (round & 0xff);
                        ensure_eq!(bind(&pair, &mw, key, to)?, status::SUCCESS, "round {round}");
                        let at = to.addr + u64::from(round);
                        pair.a.mr.buf.write(0, &[round as u8]);
                        ensure_eq!(
                            write(rig, &pair, at, key)?,
                            status::SUCCESS,
                            "round {round}"
                        );
                        let place = (at - mr.buf.addr()) as usize;
                        ensure_eq!(mr.buf.read(place, 1), [round as u8], "round {round}");
                        if round % 2 == 0 {
                            ensure_eq!(invalidate(&pair, key)?, status::SUCCESS, "round {round}");
                        }
                        mw.destroy().map_err(|e| e.0).at("a window")?;
                    }
                    Ok(())
                })
            })
            .collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| Fail::from("a thread panicked"))?)
    })?;
    mr.destroy().map_err(|e| e.0).at("the region")?;
    rig.expect_no_event(QUIET)
}
