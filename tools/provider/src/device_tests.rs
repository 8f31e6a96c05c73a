// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The provider's data path with the device model: each must understand the entries of the other.
//! The device's mock driver creates the objects. The process and the device have separate memory,
//! and the test copies what one side has written before the other side runs.

use crate::cq::{Cq, WorkCompletion, LOG_STRIDE};
use crate::errno::Errno;
use crate::ffi::lock::Sharing;
use crate::ffi::memory::{DoorbellMapping, MappedRing};
use crate::ffi::mock::{self, MockMemory};
use crate::ffi::object::{Ah, ObjectDraft};
use crate::ffi::pabi::{ibv_ah, ibv_send_wr, ibv_sge};
use crate::qp::{Qp, ReceiveSource};
use crate::recv::{RecvConfig, RecvQueue};
use crate::send::{SendConfig, SendQueue};
use std::sync::Arc;
use verbena_abi::cmd::QpType;
use verbena_abi::cqe::{WcOpcode, WcStatus};
use verbena_abi::ctx::{qp_mask, QpAttr, QpState};
use verbena_abi::doorbell;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_device::memory::GuestMemory;
use verbena_device::mock::{CqHandle, Driver, QpHandle};

const LOG_CQ: u8 = 4;

/// Memory of the process that is copied to or from memory of the device.
struct CopiedRange {
    memory: MockMemory,
    addr: u64,
    offset: usize,
    length: usize,
}

impl CopiedRange {
    fn write_to_device(&self, driver: &Driver) {
        let bytes = self.memory.read(self.offset, self.length);
        let at = self.addr + self.offset as u64;
        driver.ram.write(at, &bytes).unwrap();
    }

    fn read_from_device(&self, driver: &Driver) {
        let bytes = driver.bytes(self.addr + self.offset as u64, self.length);
        self.memory.write(self.offset, &bytes);
    }
}

struct FixtureQp {
    qp: Arc<Qp>,
    handle: QpHandle,
    cq: Arc<Cq>,
}

struct DeviceFixture {
    driver: Driver,
    area: Arc<DoorbellMapping>,
    sides: [FixtureQp; 2],
    /// Memory that the process writes, and memory that the device writes.
    written: Vec<CopiedRange>,
    read: Vec<CopiedRange>,
    /// Memory of the area, which the views in `written` and `read` use.
    _words: MockMemory,
}

impl DeviceFixture {
    fn new() -> Self {
        Self::of(QpType::Rc)
    }

    fn of(qp_type: QpType) -> Self {
        let mut driver = Driver::new();
        let words = MockMemory::new(doorbell::AREA_SIZE);
        let area = Arc::new(DoorbellMapping::with_words(words.view()));
        let view = |offset| CopiedRange {
            memory: words.alias(),
            addr: driver.area,
            offset,
            length: doorbell::PART_SIZE,
        };
        let mut written = vec![view(doorbell::GUEST_PART)];
        let mut read = vec![view(doorbell::DEVICE_PART)];
        let mut qps = Vec::new();
        for _ in 0..2 {
            let cq_handle = driver.create_cq(LOG_CQ);
            let cq = Self::cq(&cq_handle, &area, &mut read);
            let mut request = driver.qp_request(&cq_handle, &cq_handle);
            request.qp_type = qp_type.to_raw();
            let handle = driver.create_qp_by(&request).unwrap();
            let mut ring = |addr: u64, log_size: u8, log_stride: u8| {
                let length = (1usize << log_size) << log_stride;
                let memory = MockMemory::new(length);
                let view = memory.view();
                written.push(CopiedRange {
                    memory,
                    addr,
                    offset: 0,
                    length,
                });
                view
            };
            let (log_size, log_stride) = (request.log_sq_size, request.log_sq_stride);
            let sq = ring(handle.sq, log_size, log_stride);
            let sends = SendQueue::new(
                MappedRing::new(sq, log_size, log_stride).unwrap(),
                area.clone(),
                SendConfig {
                    max_wr: 1 << log_size,
                    max_sge: request.max_send_sge.into(),
                    max_inline: request.max_inline.get().into(),
                    datagram: qp_type == QpType::Ud,
                    xrc: false,
                    signal_all: false,
                    sharing: Sharing::THREADS,
                    slot: handle.slot.into(),
                },
            );
            let (log_size, log_stride) = (request.log_rq_size, request.log_rq_stride);
            let rq = ring(handle.rq, log_size, log_stride);
            let receives = RecvQueue::new(
                MappedRing::new(rq, log_size, log_stride).unwrap(),
                area.clone(),
                RecvConfig {
                    max_wr: 1 << log_size,
                    max_sge: request.max_recv_sge.into(),
                    slot: handle.slot.into(),
                    shared: false,
                    sharing: Sharing::THREADS,
                },
            );
            let receives = ReceiveSource::Own(receives);
            let qp = Qp::new(handle.qpn, sends, receives, cq.clone(), cq.clone());
            let qp = Arc::new(qp);
            qp.attach();
            qps.push(FixtureQp { qp, handle, cq });
        }
        let sides: [FixtureQp; 2] = qps.try_into().ok().unwrap();
        let mut rig = Self {
            driver,
            area,
            sides,
            written,
            read,
            _words: words,
        };
        if qp_type == QpType::Rc {
            rig.connect();
        } else {
            rig.open();
        }
        rig
    }

    fn cq(handle: &CqHandle, area: &Arc<DoorbellMapping>, read: &mut Vec<CopiedRange>) -> Arc<Cq> {
        let length = (1usize << LOG_CQ) << LOG_STRIDE;
        let memory = MockMemory::new(length);
        let ring = MappedRing::new(memory.view(), LOG_CQ, LOG_STRIDE).unwrap();
        read.push(CopiedRange {
            memory,
            addr: handle.ring,
            offset: 0,
            length,
        });
        Arc::new(Cq::new(ring, LOG_CQ, area.clone(), handle.slot.into()))
    }

    fn connect(&mut self) {
        self.copy_to_device();
        let [a, b] = &self.sides;
        self.driver.connect(&a.handle, &b.handle);
        for side in &self.sides {
            side.qp.set_state(QpState::Rts);
        }
        self.copy_to_process();
    }

    /// Moves UD queue pairs to RTS.
    fn open(&mut self) {
        for side in &self.sides {
            let qpn = side.handle.qpn;
            let attr = |state: QpState| QpAttr {
                qp_state: state.to_raw(),
                port_num: 1,
                qkey: QKEY.into(),
                ..QpAttr::default()
            };
            let init = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::QKEY;
            let rts = qp_mask::STATE | qp_mask::SQ_PSN;
            for (mask, state) in [
                (init, QpState::Init),
                (qp_mask::STATE, QpState::Rtr),
                (rts, QpState::Rts),
            ] {
                self.driver.modify(qpn, mask, attr(state)).unwrap();
            }
            side.qp.set_state(QpState::Rts);
        }
        self.copy_to_process();
    }

    fn copy_to_device(&self) {
        for one in &self.written {
            one.write_to_device(&self.driver);
        }
    }

    fn copy_to_process(&self) {
        for one in &self.read {
            one.read_from_device(&self.driver);
        }
    }

    /// Copies the process' memory to the device, runs the device, and copies its memory back.
    fn run(&mut self) {
        self.copy_to_device();
        if self.area.is_rung() {
            self.area.clear_ring();
            self.driver.device.ring(0);
        }
        self.driver.pass(1_000_000_000);
        self.copy_to_process();
    }

    fn poll(&self, side: usize) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        self.sides[side].cq.poll(100, |_, one| all.push(*one));
        all
    }

    fn send(&self, side: usize, wr: ibv_send_wr) {
        let qp = &self.sides[side].qp;
        mock::with_sends(&mut [wr], |first| qp.post_send(first)).unwrap();
    }

    fn receive(&self, side: usize, wr_id: u64, sges: &mut [ibv_sge]) {
        let qp = &self.sides[side].qp;
        let mut wrs = [mock::recv_wr(wr_id, sges)];
        mock::with_recvs(&mut wrs, |first| qp.post_recv(first)).unwrap();
    }
}

fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}

fn wr(wr_id: u64, opcode: u32, flags: u32, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = mock::send_wr(sges);
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr
}

const SIGNALED: u32 = 2;
const QKEY: u32 = 0x1234;

#[test]
fn a_send_with_immediate_reaches_its_receive() {
    let mut rig = DeviceFixture::new();
    let (from, from_key) = rig.driver.region(300, 1);
    let (to, to_key) = rig.driver.region(400, 2);
    rig.receive(
        1,
        11,
        &mut [sge(to, 100, to_key), sge(to + 200, 200, to_key)],
    );
    let mut sges = [sge(from, 250, from_key), sge(from + 260, 5, from_key)];
    let mut send = wr(7, 3, SIGNALED, &mut sges);
    mock::set_rdma(&mut send, 0, 0, 0x1234_5678);
    rig.send(0, send);
    rig.run();
    let [sent] = rig.poll(0)[..] else {
        panic!("one completion of the send");
    };
    assert_eq!((sent.wr_id, sent.status(), sent.opcode()), (7, 0, 0));
    assert_eq!(sent.qpn(), rig.sides[0].qp.qpn);
    let [received] = rig.poll(1)[..] else {
        panic!("one completion of the receive");
    };
    assert_eq!((received.wr_id, received.status()), (11, 0));
    assert_eq!(received.opcode(), WcOpcode::Recv.to_raw());
    assert_eq!((received.byte_len(), received.imm()), (255, 0x1234_5678));
    assert_eq!(received.wc_flags(), 2);
    let mut expected = rig.driver.bytes(from, 250);
    expected.extend(rig.driver.bytes(from + 260, 5));
    let mut found = rig.driver.bytes(to, 100);
    found.extend(rig.driver.bytes(to + 200, 155));
    assert_eq!(found, expected);
}

#[test]
fn writes_inline_writes_and_reads_move_the_bytes() {
    let mut rig = DeviceFixture::new();
    let (local, local_key) = rig.driver.region(4096, 1);
    let (remote, rkey) = rig.driver.region(4096, 2);
    let mut sges = [sge(local, 1000, local_key)];
    let mut write = wr(1, 0, 0, &mut sges);
    mock::set_rdma(&mut write, remote, rkey, 0);
    rig.send(0, write);
    let text = *b"these bytes lie in the process";
    let mut inline_sges = [
        sge(text.as_ptr() as u64, 5, 0),
        sge(text.as_ptr() as u64 + 5, 25, 0),
    ];
    let mut inline = wr(2, 0, 8, &mut inline_sges);
    mock::set_rdma(&mut inline, remote + 2000, rkey, 0);
    rig.send(0, inline);
    let mut read_sges = [
        sge(local + 2000, 7, local_key),
        sge(local + 3000, 23, local_key),
    ];
    let mut read = wr(3, 4, SIGNALED, &mut read_sges);
    mock::set_rdma(&mut read, remote + 2000, rkey, 0);
    rig.send(0, read);
    rig.run();
    let polled = rig.poll(0);
    assert_eq!(polled.len(), 1, "only the READ is signaled");
    assert_eq!((polled[0].wr_id, polled[0].status()), (3, 0));
    assert_eq!(polled[0].opcode(), WcOpcode::RdmaRead.to_raw());
    assert_eq!(polled[0].byte_len(), 30);
    assert_eq!(
        rig.driver.bytes(local, 1000),
        rig.driver.bytes(remote, 1000)
    );
    assert_eq!(rig.driver.bytes(remote + 2000, 30), text);
    assert_eq!(rig.driver.bytes(local + 2000, 7), text[..7]);
    assert_eq!(rig.driver.bytes(local + 3000, 23), text[7..]);
    // All three requests have completed, so none is outstanding.
    assert!(rig.sides[0].qp.sends.flush_one().is_none());
}

#[test]
fn queues_wrap_around_many_times() {
    let mut rig = DeviceFixture::new();
    let (from, from_key) = rig.driver.region(64, 1);
    let (to, to_key) = rig.driver.region(64, 2);
    for round in 0..100u64 {
        for number in 0..3 {
            rig.receive(1, round * 10 + number, &mut [sge(to, 64, to_key)]);
        }
        for number in 0..3 {
            let mut sges = [sge(from, 64, from_key)];
            rig.send(0, wr(round * 10 + number, 2, SIGNALED, &mut sges));
        }
        rig.run();
        let expected: Vec<u64> = (0..3).map(|number| round * 10 + number).collect();
        for side in 0..2 {
            let ids: Vec<u64> = rig.poll(side).iter().map(|one| one.wr_id).collect();
            assert_eq!(ids, expected);
        }
    }
}

#[test]
fn an_error_flushes_all_requests_and_a_reset_discards_them() {
    let mut rig = DeviceFixture::new();
    let (local, local_key) = rig.driver.region(64, 1);
    rig.receive(0, 21, &mut [sge(local, 64, local_key)]);
    let mut sges = [sge(local, 64, local_key)];
    let mut write = wr(1, 0, 0, &mut sges);
    mock::set_rdma(&mut write, 0x5000, 0xbad, 0);
    rig.send(0, write);
    let mut sges = [sge(local, 8, local_key)];
    rig.send(0, wr(2, 2, 0, &mut sges));
    rig.run();
    let polled = rig.poll(0);
    let ids: Vec<_> = polled.iter().map(|one| (one.wr_id, one.status())).collect();
    let flushed = WcStatus::WrFlushErr.to_raw();
    assert_eq!(
        ids,
        [
            (1, WcStatus::RemAccessErr.to_raw()),
            (2, flushed),
            (21, flushed)
        ]
    );
    assert_eq!(
        polled[0].vendor_err(),
        u32::from(Syndrome::NakRemoteAccess.to_raw())
    );
    // Sends and receives that are posted in ERR are flushed too.
    rig.receive(0, 22, &mut [sge(local, 64, local_key)]);
    let mut sges = [sge(local, 8, local_key)];
    rig.send(0, wr(3, 2, 0, &mut sges));
    rig.run();
    let mut ids: Vec<u64> = rig.poll(0).iter().map(|one| one.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [3, 22]);
    // This receive is flushed, but not polled before the RESET, so its completion is discarded.
    rig.receive(0, 23, &mut [sge(local, 64, local_key)]);
    rig.run();
    for side in &rig.sides {
        rig.driver.move_to(side.handle.qpn, QpState::Reset).unwrap();
        side.qp.reset();
    }
    let mut sges = [sge(local, 8, local_key)];
    let mut early = [wr(4, 2, 0, &mut sges)];
    let qp = &rig.sides[0].qp;
    let refused = mock::with_sends(&mut early, |first| qp.post_send(first));
    assert_eq!(refused, Err((Errno::INVAL, 0)));
    rig.connect();
    let (remote, rkey) = rig.driver.region(64, 3);
    let mut sges = [sge(local, 64, local_key)];
    let mut write = wr(5, 0, SIGNALED, &mut sges);
    mock::set_rdma(&mut write, remote, rkey, 0);
    rig.send(0, write);
    rig.run();
    let polled = rig.poll(0);
    assert_eq!(polled.len(), 1, "no stale completion");
    assert_eq!((polled[0].wr_id, polled[0].status()), (5, 0));
    assert!(rig.poll(1).iter().all(|one| one.status() == flushed));
}

#[test]
fn an_arm_causes_one_event_and_a_solicited_arm_waits_for_a_solicited_completion() {
    let mut rig = DeviceFixture::new();
    let (local, local_key) = rig.driver.region(64, 1);
    let exchange = |rig: &mut DeviceFixture, flags: u32| {
        rig.receive(1, 1, &mut [sge(local, 64, local_key)]);
        let mut sges = [sge(local, 8, local_key)];
        rig.send(0, wr(1, 2, flags, &mut sges));
        rig.run();
    };
    let events = |rig: &mut DeviceFixture| {
        let events = rig.driver.events(1);
        assert!(events.iter().all(|one| one.kind == EventType::Completion));
        events.len()
    };
    rig.sides[1].cq.arm(true);
    rig.run();
    exchange(&mut rig, 0);
    assert_eq!(events(&mut rig), 0);
    exchange(&mut rig, 4);
    assert_eq!(events(&mut rig), 1);
    exchange(&mut rig, 4);
    assert_eq!(events(&mut rig), 0);
    // There are completions that were not polled and that no event has reported, so the arm causes
    // an event.
    rig.sides[1].cq.arm(false);
    rig.run();
    assert_eq!(events(&mut rig), 1);
    assert_eq!(rig.poll(1).len(), 3);
    rig.sides[1].cq.arm(false);
    rig.run();
    assert_eq!(events(&mut rig), 0);
    exchange(&mut rig, 0);
    assert_eq!(events(&mut rig), 1);
}

#[test]
fn datagrams_carry_their_address() {
    let mut rig = DeviceFixture::of(QpType::Ud);
    let (from, from_key) = rig.driver.region(64, 1);
    let (to, to_key) = rig.driver.region(128, 2);
    for pdn in [7, 8] {
        rig.receive(1, 31, &mut [sge(to, 128, to_key)]);
        let mut vector = Driver::path(0, 1);
        vector.pdn = pdn.into();
        let handle = ObjectDraft::<ibv_ah, Ah>::new().finish(Ah::new(vector, None));
        let mut sges = [sge(from, 50, from_key)];
        let mut send = wr(7, 3, SIGNALED, &mut sges);
        mock::set_datagram(&mut send, handle, rig.sides[1].qp.qpn, QKEY, 0x55aa);
        rig.send(0, send);
        mock::free_ah(handle);
        rig.run();
        let [sent] = rig.poll(0)[..] else {
            panic!("one completion of the send");
        };
        if pdn == 8 {
            // The device checks the PD of the address handle, and completes the send with an error.
            assert_eq!(sent.status(), WcStatus::LocQpOpErr.to_raw());
            continue;
        }
        assert_eq!((sent.wr_id, sent.status()), (7, 0));
        let [received] = rig.poll(1)[..] else {
            panic!("one completion of the receive");
        };
        assert_eq!((received.wr_id, received.status()), (31, 0));
        assert_eq!((received.byte_len(), received.imm()), (90, 0x55aa));
        assert_eq!(received.src_qp(), rig.sides[0].qp.qpn);
        assert_eq!(rig.driver.bytes(to + 40, 50), rig.driver.bytes(from, 50));
    }
}

#[test]
fn the_device_refuses_an_rdma_write_of_a_ud_queue_pair() {
    let mut rig = DeviceFixture::of(QpType::Ud);
    let (from, from_key) = rig.driver.region(64, 1);
    let mut sges = [sge(from, 50, from_key)];
    let mut write = wr(7, 0, SIGNALED, &mut sges);
    // The provider must not use this address as the pointer to an address handle.
    mock::set_rdma(&mut write, 0x10, 0x77, 0);
    rig.send(0, write);
    rig.run();
    let [sent] = rig.poll(0)[..] else {
        panic!("one completion of the write");
    };
    let status = WcStatus::LocQpOpErr.to_raw();
    assert_eq!((sent.wr_id, sent.status()), (7, status));
    let cause = Syndrome::WqeOpcodeTransport.to_raw();
    assert_eq!(sent.vendor_err(), u32::from(cause));
}
