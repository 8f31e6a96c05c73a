// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of every operation at many sizes and alignments. Every byte is compared, and bytes outside
//! of the target must not change.
use crate::ffi::mr::access;
use crate::ffi::qp::{flag, op, RecvWr, SendWr};
use crate::ffi::Sge;
use crate::outcome::ErrorContext as _;
use crate::pattern::{self, PatternRng};
use crate::rig::*;
use crate::{GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("ops/send", |r| sweep(r, op::SEND, SIZES)).limit(120),
    GuestTest::new("ops/send-imm", |r| sweep(r, op::SEND_IMM, SIZES)).limit(120),
    GuestTest::new("ops/write", |r| sweep(r, op::WRITE, SIZES)).limit(120),
    GuestTest::new("ops/write-imm", |r| sweep(r, op::WRITE_IMM, SIZES)).limit(120),
    GuestTest::new("ops/read", |r| sweep(r, op::READ, SIZES)).limit(120),
    GuestTest::new("ops/large", large).limit(180),
    GuestTest::new("ops/odd-alignments", alignments).limit(120),
    GuestTest::new("ops/multi-sge", multi_sge),
    GuestTest::new("ops/inline", |rig| inline(rig, 64)),
    GuestTest::new("ops/inline-without-max-inline-data", |rig| inline(rig, 0)),
    GuestTest::new("ops/zero-length", zero_length),
    GuestTest::new("ops/fence", fence),
    GuestTest::new("ops/write-then-send-is-ordered", ordered),
    GuestTest::new("ops/unsignaled-ring-wraps", unsignaled_wrap),
    GuestTest::new("ops/lists-of-requests", lists),
    GuestTest::new("ops/qp-to-itself", itself),
    GuestTest::new("ops/both-directions-at-once", both_ways).limit(120),
    GuestTest::new("ops/relaxed-ordering-mr", relaxed),
];

/// Sizes around every boundary of a packet at path MTU 1024, and of a page.
const SIZES: &[usize] = &[
    0, 1, 2, 3, 7, 8, 15, 63, 64, 65, 255, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096,
    4097, 10_000, 65_535, 65_536, 65_537, 131_072,
];

/// Bytes before and after each target that must not change.
const MARGIN: usize = 64;

/// Executes an operation of `len` bytes between the given offsets, and compares source, target and
/// margins.
fn one(p: &QpPair, opcode: u32, len: usize, from: usize, to: usize, seed: u64) -> TestResult {
    let (a, b) = (&p.a, &p.b);
    let imm = (seed as u32).to_be();
    let data = pattern::bytes(seed, len);
    // A READ transfers from B to A.
    let (src, dst) = if opcode == op::READ {
        (&b.mr, &a.mr)
    } else {
        (&a.mr, &b.mr)
    };
    src.buf.write(from, &data);
    dst.buf.fill(to - MARGIN, len + 2 * MARGIN, 0x5a);
    let takes_recv = matches!(opcode, op::SEND | op::SEND_IMM | op::WRITE_IMM);
    if opcode == op::WRITE_IMM {
        b.qp.post_recv(&[RecvWr::new(seed, &[])])?;
    } else if takes_recv {
        b.recv(seed, to, len)?;
    }
    let sge = if opcode == op::READ {
        a.mr.sge(to, len)
    } else {
        a.mr.sge(from, len)
    };
    let remote_addr = if opcode == op::READ {
        b.mr.at(from)
    } else {
        b.mr.at(to)
    };
    let wr = SendWr::new(opcode, seed, &[sge])
        .imm(imm)
        .remote(remote_addr, b.mr.rkey());
    a.qp.post_send(&[wr])?;
    let done = match opcode {
        op::READ => wc::RDMA_READ,
        op::WRITE | op::WRITE_IMM => wc::RDMA_WRITE,
        _ => wc::SEND,
    };
    expect_success(&wait_one(&a.scq, "completion")?, seed, done)?;
    if takes_recv {
        let w = wait_one(&b.rcq, "receive")?;
        let kind = if opcode == op::WRITE_IMM {
            wc::RECV_RDMA_WITH_IMM
        } else {
            wc::RECV
        };
        expect_success(&w, seed, kind)?;
        ensure_eq!(w.byte_len as usize, len, "byte_len");
        if opcode != op::SEND {
            ensure_eq!(w.imm_data, imm, "immediate");
        }
    }
    let mut want = vec![0x5a; MARGIN];
    want.extend_from_slice(&data);
    want.resize(len + 2 * MARGIN, 0x5a);
    pattern::compare(
        "target",
        &dst.buf.read(to - MARGIN, len + 2 * MARGIN),
        &want,
    )?;
    pattern::compare("source", &src.buf.read(from, len), &data)?;
    Ok(())
}

fn sweep(rig: &Rig, opcode: u32, sizes: &[usize]) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    })?;
    for (i, &len) in sizes.iter().enumerate() {
        one(&p, opcode, len, 4096, 524_288, i as u64).at(&format!("{len} bytes"))?;
    }
    Ok(())
}

fn large(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 18 << 20,
        ..PairOpts::default()
    })?;
    for (i, len) in [1 << 20, (1 << 20) + 1, 3_000_001, 8 << 20]
        .into_iter()
        .enumerate()
    {
        for opcode in [op::SEND, op::WRITE, op::READ, op::WRITE_IMM] {
            one(&p, opcode, len, 4097, 9 << 20, i as u64)
                .at(&format!("{len} bytes, opcode {opcode}"))?;
        }
    }
    Ok(())
}

fn alignments(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    })?;
    let mut rng = PatternRng::new(77);
    for i in 0..250u64 {
        let opcode = [op::SEND, op::WRITE, op::READ, op::SEND_IMM, op::WRITE_IMM][i as usize % 5];
        let len = match i % 3 {
            0 => rng.below(16),
            1 => rng.below(5000),
            _ => rng.below(60_000),
        } as usize;
        let from = rng.below(8192) as usize;
        let to = 500_000 + rng.below(8192) as usize;
        one(&p, opcode, len, from, to, i)
            .at(&format!("opcode {opcode}, {len} bytes from {from} to {to}"))?;
    }
    Ok(())
}

/// Cuts `len` bytes into at most `max` pieces of random lengths, some of which may be empty.
fn pieces(rng: &mut PatternRng, len: usize, max: u64) -> Vec<usize> {
    let n = 1 + rng.below(max) as usize;
    let mut cuts: Vec<usize> = (1..n).map(|_| rng.below(len as u64 + 1) as usize).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| w[1] - w[0]).collect()
}

/// Returns SGEs over separate pieces of a buffer, the last piece first, with their offsets.
fn scattered(e: &QpEndpoint, lens: &[usize]) -> Vec<(usize, Sge)> {
    let mut off = 300_000;
    lens.iter()
        .map(|&len| {
            off -= len + 37;
            (off, e.mr.sge(off, len))
        })
        .collect()
}

fn gather(e: &QpEndpoint, parts: &[(usize, Sge)]) -> Vec<u8> {
    parts
        .iter()
        .flat_map(|(off, sge)| e.mr.buf.read(*off, sge.length as usize))
        .collect()
}

fn multi_sge(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    })?;
    let mut rng = PatternRng::new(9);
    for i in 0..120u64 {
        let len = rng.below(20_000) as usize;
        let (al, bl) = (pieces(&mut rng, len, 4), pieces(&mut rng, len, 4));
        let (ap, bp) = (scattered(&p.a, &al), scattered(&p.b, &bl));
        let asges: Vec<Sge> = ap.iter().map(|x| x.1).collect();
        let bsges: Vec<Sge> = bp.iter().map(|x| x.1).collect();
        let data = pattern::bytes(i, len);
        let mut rest = &data[..];
        for (off, sge) in &ap {
            let (head, tail) = rest.split_at(sge.length as usize);
            p.a.mr.buf.write(*off, head);
            rest = tail;
        }
        let what = format!("{al:?} to {bl:?}");
        // Send from pieces into pieces.
        p.b.qp.post_recv(&[RecvWr::new(i, &bsges)])?;
        p.a.qp.post_send(&[SendWr::new(op::SEND, i, &asges)])?;
        expect_success(&wait_one(&p.b.rcq, "receive")?, i, wc::RECV)?;
        expect_success(&wait_one(&p.a.scq, "send")?, i, wc::SEND)?;
        pattern::compare("sent", &gather(&p.b, &bp), &data).at(&what)?;
        // Write from pieces, and read back into pieces.
        let remote = (p.b.mr.at(500_000), p.b.mr.rkey());
        p.a.qp
            .post_send(&[SendWr::new(op::WRITE, i, &asges).remote(remote.0, remote.1)])?;
        expect_success(&wait_one(&p.a.scq, "write")?, i, wc::RDMA_WRITE)?;
        pattern::compare("written", &p.b.mr.buf.read(500_000, len), &data).at(&what)?;
        for (off, sge) in &ap {
            p.a.mr.buf.fill(*off, sge.length as usize, 0);
        }
        p.a.qp
            .post_send(&[SendWr::new(op::READ, i, &asges).remote(remote.0, remote.1)])?;
        expect_success(&wait_one(&p.a.scq, "read")?, i, wc::RDMA_READ)?;
        pattern::compare("read", &gather(&p.a, &ap), &data).at(&what)?;
    }
    Ok(())
}

/// The provider must grant the requested inline data. A program that requests none can still send
/// as much as fits into the place of an SGE.
fn inline(rig: &Rig, requested: u32) -> TestResult {
    let p = rig.pair(&PairOpts::default().with(|o| o.cap.max_inline_data = requested))?;
    let max = p.a.qp.cap.max_inline_data as usize;
    ensure!(
        max >= requested.max(16) as usize,
        "asked for {requested} bytes of inline data, got {max}"
    );
    for len in 0..=max {
        let data = pattern::bytes(len as u64, len);
        let id = len as u64;
        p.b.recv(id, 0, max)?;
        let (x, y) = data.split_at(len / 3);
        // The source does not exist any more when the post returns: `inline` owns copies for the
        // call only.
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, id, &[]).inline(&[x, y])])?;
        expect_success(&wait_one(&p.b.rcq, "inline receive")?, id, wc::RECV)?;
        expect_success(&wait_one(&p.a.scq, "inline send")?, id, wc::SEND)?;
        pattern::compare("inline send", &p.b.mr.buf.read(0, len), &data).at(&format!("{len}"))?;
        let wr = SendWr::new(op::WRITE, id, &[]).inline(&[&data]);
        p.a.qp
            .post_send(&[wr.remote(p.b.mr.at(4097), p.b.mr.rkey())])?;
        expect_success(&wait_one(&p.a.scq, "inline write")?, id, wc::RDMA_WRITE)?;
        pattern::compare("inline write", &p.b.mr.buf.read(4097, len), &data)
            .at(&format!("{len}"))?;
    }
    Ok(())
}

fn zero_length(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    // A transfer of no bytes requires no valid key (rule 7).
    for (i, opcode) in [op::WRITE, op::READ, op::WRITE, op::READ]
        .into_iter()
        .enumerate()
    {
        let sges = if i < 2 {
            vec![]
        } else {
            vec![p.a.mr.sge(0, 0)]
        };
        p.a.qp
            .post_send(&[SendWr::new(opcode, i as u64, &sges).remote(0xdead_0000, 0xdead)])?;
        let w = wait_one(&p.a.scq, "zero-length request")?;
        ensure_eq!(status::name(w.status), "IBV_WC_SUCCESS", "request {i}");
    }
    for (i, opcode) in [op::SEND, op::SEND_IMM, op::WRITE_IMM]
        .into_iter()
        .enumerate()
    {
        p.b.recv(i as u64, 0, 64)?;
        p.a.qp.post_send(&[SendWr::new(opcode, i as u64, &[])])?;
        let w = wait_one(&p.b.rcq, "receive of an empty message")?;
        ensure_eq!(status::name(w.status), "IBV_WC_SUCCESS", "receive {i}");
        ensure_eq!(w.byte_len, 0, "byte_len");
        ensure_eq!(
            status::name(wait_one(&p.a.scq, "send of an empty message")?.status),
            "IBV_WC_SUCCESS",
            "send"
        );
    }
    Ok(())
}

fn fence(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    })?;
    for i in 0..60u64 {
        let len = 1 + (i as usize * 977) % 40_000;
        let data = pattern::bytes(i, len);
        p.b.mr.buf.write(0, &data);
        p.a.mr.buf.fill(0, len, 0);
        p.b.recv(i, 500_000, len)?;
        // The SEND transmits the data of the READ, which is correct only with a fence.
        p.a.qp.post_send(&[
            SendWr::new(op::READ, 1, &[p.a.mr.sge(0, len)])
                .remote(p.b.mr.at(0), p.b.mr.rkey())
                .flags(0),
            SendWr::new(op::SEND, i, &[p.a.mr.sge(0, len)]).flags(flag::SIGNALED | flag::FENCE),
        ])?;
        expect_success(&wait_one(&p.a.scq, "fenced send")?, i, wc::SEND)?;
        expect_success(&wait_one(&p.b.rcq, "receive")?, i, wc::RECV)?;
        pattern::compare("fenced", &p.b.mr.buf.read(500_000, len), &data)?;
    }
    Ok(())
}

fn ordered(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    })?;
    for i in 0..100u64 {
        let len = 1 + (i as usize * 1999) % 100_000;
        let data = pattern::bytes(i, len);
        p.a.mr.buf.write(0, &data);
        p.b.recv(i, 900_000, 8)?;
        p.a.qp.post_send(&[
            SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, len)])
                .remote(p.b.mr.at(0), p.b.mr.rkey())
                .flags(0),
            SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 8)]).flags(flag::SIGNALED),
        ])?;
        // The receive completes only after the earlier WRITE is in memory.
        expect_success(&wait_one(&p.b.rcq, "receive")?, i, wc::RECV)?;
        pattern::compare("write before a send", &p.b.mr.buf.read(0, len), &data)?;
        expect_success(&wait_one(&p.a.scq, "send")?, i, wc::SEND)?;
    }
    Ok(())
}

fn unsignaled_wrap(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let depth = u64::from(p.a.qp.cap.max_send_wr);
    for i in 0..depth * 20 {
        let last = (i + 1) % depth == 0;
        let len = 1 + (i as usize % 1500);
        let wr = SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, len)])
            .remote(p.b.mr.at(0), p.b.mr.rkey())
            .flags(if last { flag::SIGNALED } else { 0 });
        p.a.qp.post_send(&[wr]).at(&format!("write {i}"))?;
        if last {
            expect_success(
                &wait_one(&p.a.scq, "the last of a full queue")?,
                i,
                wc::RDMA_WRITE,
            )?;
        }
    }
    Ok(())
}

fn lists(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let mut rng = PatternRng::new(1);
    let mut id = 0u64;
    for _ in 0..200 {
        let n = 1 + rng.below(16);
        let recvs: Vec<RecvWr> = (0..n)
            .map(|i| RecvWr::new(id + i, &[p.b.mr.sge(64 * i as usize, 64)]))
            .collect();
        let sends: Vec<SendWr> = (0..n)
            .map(|i| SendWr::new(op::SEND, id + i, &[p.a.mr.sge(64 * i as usize, 64)]))
            .collect();
        let data = pattern::bytes(id, 64 * n as usize);
        p.a.mr.buf.write(0, &data);
        p.b.qp.post_recv(&recvs)?;
        p.a.qp.post_send(&sends)?;
        for (i, w) in wait(&p.a.scq, n as usize, "sends")?.iter().enumerate() {
            expect_success(w, id + i as u64, wc::SEND)?;
        }
        for (i, w) in wait(&p.b.rcq, n as usize, "receives")?.iter().enumerate() {
            expect_success(w, id + i as u64, wc::RECV)?;
        }
        pattern::compare("list", &p.b.mr.buf.read(0, data.len()), &data)?;
        id += n;
    }
    Ok(())
}

fn itself(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let e = rig.end(&opts)?;
    connect(&e.qp, rig.gid, e.qp.qpn(), &opts.conn_a)?;
    for i in 0..50u64 {
        let len = 1 + (i as usize * 311) % 20_000;
        let data = pattern::bytes(i, len);
        e.mr.buf.write(0, &data);
        e.recv(i, 32_768, len)?;
        e.qp.post_send(&[SendWr::new(op::SEND, 1000 + i, &[e.mr.sge(0, len)])])?;
        expect_success(&wait_one(&e.rcq, "receive from itself")?, i, wc::RECV)?;
        expect_success(&wait_one(&e.scq, "send to itself")?, 1000 + i, wc::SEND)?;
        pattern::compare("to itself", &e.mr.buf.read(32_768, len), &data)?;
        let wr = SendWr::new(op::READ, 1, &[e.mr.sge(32_768, len)]);
        e.mr.buf.fill(32_768, len, 0);
        e.qp.post_send(&[wr.remote(e.mr.at(0), e.mr.rkey())])?;
        expect_success(&wait_one(&e.scq, "read from itself")?, 1, wc::RDMA_READ)?;
        pattern::compare("read from itself", &e.mr.buf.read(32_768, len), &data)?;
    }
    Ok(())
}

fn both_ways(rig: &Rig) -> TestResult {
    const N: u64 = 400;
    const LEN: usize = 3000;
    let p = rig.pair(&PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    })?;
    let one_way = |from: &QpEndpoint, to: &QpEndpoint, seed: u64| -> TestResult {
        // Each direction has slots of its own in both buffers: up to 16 messages are in flight.
        let slot = |i: u64| (i % 8) as usize * 4096;
        let (mut sent, mut got, mut done) = (0, 0, 0);
        let mut spins = 0;
        while got < N || done < N {
            if sent < N && sent - got < 8 && sent - done < 8 {
                from.mr
                    .buf
                    .write(slot(sent) + 65536, &pattern::bytes(seed + sent, LEN));
                to.recv(sent, slot(sent), LEN)?;
                let wr = SendWr::new(op::SEND, sent, &[from.mr.sge(slot(sent) + 65536, LEN)]);
                from.qp.post_send(&[wr])?;
                sent += 1;
            }
            for w in to.rcq.poll(4).at("poll_cq")? {
                expect_success(&w, got, wc::RECV)?;
                let data = to.mr.buf.read(slot(got), LEN);
                pattern::compare("message", &data, &pattern::bytes(seed + got, LEN))?;
                got += 1;
                spins = 0;
            }
            for w in from.scq.poll(4).at("poll_cq")? {
                expect_success(&w, done, wc::SEND)?;
                done += 1;
                spins = 0;
            }
            yield_cpu(&mut spins);
            ensure!(
                spins < 100_000,
                "stuck: sent {sent}, received {got}, completed {done}"
            );
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let other = s.spawn(|| one_way(&p.b, &p.a, 1 << 32).at("B to A"));
        one_way(&p.a, &p.b, 1 << 33).at("A to B")?;
        other.join().map_err(|_| "the other thread panicked")?
    })
}

fn relaxed(rig: &Rig) -> TestResult {
    // The device must accept optional access bits, because common programs request relaxed
    // ordering.
    let opts = PairOpts {
        mr_access: access::ALL | access::RELAXED_ORDERING,
        ..PairOpts::default()
    };
    let p = rig.pair(&opts)?;
    one(&p, op::WRITE, 5000, 0, 30_000, 1)
}
