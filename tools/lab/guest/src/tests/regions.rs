// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the kinds of memory regions.
use crate::ffi::context::EventType;
use crate::ffi::destroy::Destroy;
use crate::ffi::mr::{access, register_with_bad_response, Mr};
use crate::ffi::qp::{op, SendWr};
use crate::ffi::sys::{Buf, Errno};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::Arc;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("7/zero-based", zero_based),
    GuestTest::new("7/regions-of-no-bytes", no_bytes),
    GuestTest::new("7/huge-pages", huge_pages).alone(),
    GuestTest::new("7/failed-registration-pins-nothing", pins_nothing),
    GuestTest::new("7/no-region-without-a-response", answered_first).alone(),
    GuestTest::new("7/deregistered-memory-stays-untouched", untouched),
];

/// Returns the number of commands that the device has received.
fn commands() -> Result<u64, Fail> {
    let text = std::fs::read_to_string(super::faults::debugfs("commands")?)?;
    let number = text.split("commands so far ").nth(1);
    let number = number.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    Ok(number.ok_or("no number of commands")?)
}

/// The kernel must not create a region if its response cannot be written: the process could bind a
/// window to that region, which then could not be destroyed.
fn answered_first(rig: &Rig) -> TestResult {
    let buf = Buf::new(4096)?;
    let before = commands()?;
    let registered = register_with_bad_response(&rig.pd, &buf);
    ensure_eq!(
        registered,
        Err(Errno::EFAULT),
        "a response that cannot be written"
    );
    ensure_eq!(commands()?, before, "commands to the device");
    drop(Mr::new(&rig.pd, 4096, access::ALL)?);
    ensure!(
        commands()? > before,
        "a region with a response caused no command"
    );
    Ok(())
}

/// Work requests address the bytes of the region from 0 on, at both ends.
fn zero_based(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let p = rig.pair(&opts)?;
    let len = 3 * 4096 + 100;
    let buf = Arc::new(Buf::new(5 * 4096)?);
    // The region does not begin at the start of a page.
    let target = Mr::of(&rig.pd, &buf, 200, len, access::ALL | access::ZERO_BASED)?;
    let source = Mr::new(&rig.pd, len, access::ALL | access::ZERO_BASED)?;
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
    source.buf.write(0, &bytes);
    let sge = |offset: usize, len: usize| {
        let mut sge = source.sge(0, len);
        sge.addr = offset as u64;
        sge
    };
    let wr = SendWr::new(op::WRITE, 1, &[sge(0, len)]);
    p.a.qp.post_send(&[wr.remote(0, target.rkey())])?;
    expect_success(&wait_one(&p.a.scq, "the whole region")?, 1, wc::RDMA_WRITE)?;
    ensure!(buf.read(200, len) == bytes, "the bytes of a WRITE");
    ensure!(buf.read(0, 200).iter().all(|b| *b == 0), "bytes before it");
    ensure!(
        buf.read(200 + len, 100).iter().all(|b| *b == 0),
        "bytes after it"
    );
    source.buf.write(0, &vec![0; len]);
    let wr = SendWr::new(op::READ, 2, &[sge(5000, 1000)]);
    p.a.qp.post_send(&[wr.remote(5000, target.rkey())])?;
    expect_success(&wait_one(&p.a.scq, "a READ")?, 2, wc::RDMA_READ)?;
    ensure!(
        source.buf.read(5000, 1000) == bytes[5000..6000],
        "the bytes of a READ"
    );
    // The virtual addresses of the buffer are outside of the region.
    let wr = SendWr::new(op::WRITE, 3, &[sge(0, 1)]);
    p.a.qp
        .post_send(&[wr.remote(buf.addr() + 200, target.rkey())])?;
    let refused = wait_one(&p.a.scq, "by address")?;
    expect_error(&refused, 3, status::REM_ACCESS_ERR, &p.a.qp)?;
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, p.b.qp.element())?);
    let q = rig.pair(&opts)?;
    let wr = SendWr::new(op::WRITE, 4, &[sge(0, 1)]);
    q.a.qp.post_send(&[wr.remote(len as u64, target.rkey())])?;
    let refused = wait_one(&q.a.scq, "one beyond the end")?;
    expect_error(&refused, 4, status::REM_ACCESS_ERR, &q.a.qp)?;
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, q.b.qp.element())?);
    Ok(())
}

/// Regions of no bytes can be used for messages of no bytes, and for no others.
fn no_bytes(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let buf = Arc::new(Buf::new(4096)?);
    for offset in [0, 200] {
        let p = rig.pair(&opts)?;
        let mr = Mr::of(&rig.pd, &buf, offset, 0, access::ALL)?;
        let at = buf.addr() + offset as u64;
        let mut sge = mr.sge(0, 0);
        sge.addr = at;
        for (wr_id, opcode, wc_opcode) in
            [(1, op::WRITE, wc::RDMA_WRITE), (2, op::READ, wc::RDMA_READ)]
        {
            let wr = SendWr::new(opcode, wr_id, &[sge]);
            p.a.qp.post_send(&[wr.remote(at, mr.rkey())])?;
            expect_success(
                &wait_one(&p.a.scq, "a message of no bytes")?,
                wr_id,
                wc_opcode,
            )?;
        }
        let source = Mr::new(&rig.pd, 8, access::ALL)?;
        let wr = SendWr::new(op::WRITE, 3, &[source.sge(0, 1)]);
        p.a.qp.post_send(&[wr.remote(at, mr.rkey())])?;
        let refused = wait_one(&p.a.scq, "a byte")?;
        expect_error(&refused, 3, status::REM_ACCESS_ERR, &p.a.qp)?;
        drop(rig.expect_event(EventType::QP_ACCESS_ERR, p.b.qp.element())?);
        let q = rig.pair(&opts)?;
        sge.length = 1;
        let wr = SendWr::new(op::WRITE, 4, &[sge]);
        q.a.qp
            .post_send(&[wr.remote(source.buf.addr(), source.rkey())])?;
        let refused = wait_one(&q.a.scq, "a byte of a region without bytes")?;
        expect_error(&refused, 4, status::LOC_PROT_ERR, &q.a.qp)?;
    }
    Ok(())
}

/// Returns the size of this process' pinned pages in kB.
fn pinned() -> Result<u64, Fail> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kb = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kb.ok_or_else(|| "no VmPin".into())
}

/// A failed registration must leave no pages pinned, whether the memory ends too early or the
/// addresses wrap, which is detected after all pages are pinned.
fn pins_nothing(rig: &Rig) -> TestResult {
    let before = pinned()?;
    let buf = Arc::new(Buf::new(64 * 4096)?);
    for _ in 0..20 {
        let wraps = Mr::at_iova(&rig.pd, &buf, u64::MAX - 4095, access::ALL);
        ensure!(wraps.is_err(), "a region whose addresses wrap");
        ensure_eq!(pinned()?, before, "pinned after addresses that wrap");
    }
    let good = Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL).at("the whole region")?;
    ensure_eq!(pinned()?, before + 64 * 4, "pinned with a region");
    drop(good);
    ensure_eq!(pinned()?, before, "pinned without it");
    buf.forbid_from(40 * 4096);
    for _ in 0..20 {
        let ends = Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL);
        ensure!(ends.is_err(), "a region of which a part is not mapped");
        ensure_eq!(
            pinned()?,
            before,
            "pinned after memory that is partly unmapped"
        );
    }
    Ok(())
}

/// A WRITE may succeed or fail because the region does not exist; after the region is deregistered,
/// no WRITE may change its memory.
fn untouched(rig: &Rig) -> TestResult {
    const LEN: usize = 1 << 20;
    for round in 0..30u64 {
        let opts = PairOpts {
            buf: LEN,
            ..PairOpts::default()
        };
        let p = rig.pair(&opts)?;
        p.a.mr.buf.fill(0, LEN, 0xaa);
        let mr = Mr::new(&rig.pd, LEN, access::ALL)?;
        let buf = mr.buf.clone();
        for wr_id in 0..4 {
            let wr = SendWr::new(op::WRITE, wr_id, &[p.a.mr.sge(0, LEN)]);
            p.a.qp.post_send(&[wr.remote(mr.at(0), mr.rkey())])?;
        }
        std::thread::sleep(std::time::Duration::from_micros(20 * round));
        mr.destroy().map_err(|e| e.0).at("the region")?;
        buf.fill(0, LEN, 0x55);
        wait(&p.a.scq, 4, "the WRITEs")?;
        ensure!(
            buf.read(0, LEN).iter().all(|b| *b == 0x55),
            "written after its deregistration, round {round}"
        );
    }
    // Discard the events of the WRITEs that failed.
    while rig.ctx.async_event(0).is_some() {}
    Ok(())
}

fn huge_pages(rig: &Rig) -> TestResult {
    const HUGE: usize = 2 << 20;
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";
    std::fs::write(COUNT, "4").at("reserving huge pages")?;
    let run = || -> TestResult {
        let buf = Arc::new(Buf::huge(3 * HUGE).at("three huge pages")?);
        let p = rig.pair(&PairOpts::default())?;
        // The WRITEs cross page boundaries, with and without the flag for huge pages.
        for flags in [access::HUGETLB, 0] {
            let mr = Mr::of(&rig.pd, &buf, 4096, 3 * HUGE - 8192, access::ALL | flags)?;
            let bytes: Vec<u8> = (0..30_000).map(|i| (i % 251) as u8 ^ flags as u8).collect();
            p.a.mr.buf.write(0, &bytes);
            for at in [4096, HUGE - 15_000, 2 * HUGE - 1, 3 * HUGE - 4096 - 30_000] {
                let wr = SendWr::new(op::WRITE, at as u64, &[p.a.mr.sge(0, 30_000)]);
                let wr = wr.remote(buf.addr() + at as u64, mr.rkey());
                p.a.qp.post_send(&[wr])?;
                expect_success(&wait_one(&p.a.scq, "a WRITE")?, at as u64, wc::RDMA_WRITE)?;
                ensure!(
                    buf.read(at, 30_000) == bytes,
                    "the bytes at {at}, flags {flags}"
                );
            }
        }
        Ok(())
    };
    let ran = run();
    std::fs::write(COUNT, "0").at("releasing the huge pages")?;
    ran
}
