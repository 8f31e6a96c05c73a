// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An honest VM with a driver: its device, and the QPs that frames of strangers must not affect.

use verbena_abi::cmd::{AttachMcast, QpType};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{access, qp_mask, AddressVector, QpAttr, QpState};
use verbena_device::mock::{gid, CqHandle, Driver, QpHandle};
use verbena_device::Config;

/// MAC addresses of the VMs: two honest ones, and the third VM, which is hostile.
pub const MACS: [[u8; 6]; 3] = [
    [2, 0, 0, 0, 0, 0xa],
    [2, 0, 0, 0, 0, 0xb],
    [2, 0, 0, 0, 0, 0xc],
];
/// MAC address of another net device of the third VM.
pub const OTHER: [u8; 6] = [2, 0, 0, 0, 2, 0xc];
/// IP addresses of the VMs.
pub const IPS: [[u8; 4]; 3] = [[10, 0, 0, 1], [10, 0, 0, 3], [10, 0, 0, 5]];
/// A station at the first uplink: MAC address, IP address and QPN.
pub const FAR: ([u8; 6], [u8; 4], u32) = ([2, 0, 0, 0, 0, 0x99], [10, 0, 0, 9], 77);
/// A multicast group of which both honest VMs are members.
pub const GROUP: [u8; 4] = [239, 1, 2, 3];
/// Number of messages in a run.
pub const MESSAGES: usize = 8;
/// Number of bytes that each message has for itself: more than two packets.
pub const ROOM: usize = 3000;

/// An honest VM: driver, device and QPs.
pub struct End {
    /// Driver mock, which contains the device.
    pub d: Driver,
    /// CQ of the two QPs that are connected to the other VM.
    pub cq: CqHandle,
    /// Reliable connection to the other VM.
    pub rc: QpHandle,
    /// Unreliable connection to the other VM.
    pub uc: QpHandle,
    /// Reliable connection to [`FAR`], which does not answer.
    pub far: QpHandle,
    /// UD QP that takes the datagrams of all senders with its Q_Key.
    pub ud: QpHandle,
    /// Address and key of the region that messages are sent from and to.
    pub memory: (u64, u32),
}

/// Returns the path to a station.
pub fn path(mac: [u8; 6], ip: [u8; 4]) -> AddressVector {
    AddressVector {
        dgid: gid(ip),
        dmac: mac,
        ..Driver::path(0, 0)
    }
}

impl End {
    /// Returns one of the two honest VMs. With `neighbours`, packets to the other VM are passed by
    /// reference.
    pub fn new(number: usize, neighbours: bool) -> Self {
        let (mac, [a, b, c, last]) = (MACS[number], IPS[number]);
        let mut d = Driver::cold(Config {
            mac,
            neighbours,
            ..Config::default()
        });
        d.watch = u32::MAX;
        d.bring_up();
        d.set_gid_of(0, [a, b, c, last], mac);
        d.set_gid_of(1, [a, b, c, last + 20], mac);
        let (cq, other_cq) = (d.create_cq(6), d.create_cq(6));
        let rc = d.create_qp(&cq, &cq);
        let [uc, ud] = [(QpType::Uc, &cq), (QpType::Ud, &other_cq)].map(|(kind, cq)| {
            let mut request = d.qp_request(cq, cq);
            request.qp_type = kind.to_raw();
            d.create_qp_by(&request).expect("a queue pair")
        });
        let far = d.create_qp(&other_cq, &other_cq);
        let memory = d.region((MESSAGES * ROOM) as u32, number as u8 + 1);
        let mut end = Self {
            d,
            cq,
            rc,
            uc,
            far,
            ud,
            memory,
        };
        end.take_datagrams();
        end
    }

    fn take_datagrams(&mut self) {
        let qpn = self.ud.qpn;
        let attr = |state: QpState| QpAttr {
            qp_state: state.to_raw(),
            port_num: 1,
            qkey: 0x5eed.into(),
            ..QpAttr::default()
        };
        let init = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::QKEY;
        for (mask, state) in [
            (init, QpState::Init),
            (qp_mask::STATE, QpState::Rtr),
            (qp_mask::STATE | qp_mask::SQ_PSN, QpState::Rts),
        ] {
            let moved = self.d.modify(qpn, mask, attr(state));
            moved.expect("the next state");
        }
        self.d.must(&AttachMcast {
            qpn: qpn.into(),
            port: 1,
            mgid: gid(GROUP),
            ..AttachMcast::default()
        });
        let (at, key) = self.d.region(4096, 9);
        for n in 0..8 {
            let place = (at + n * 512, 512, key);
            self.d.post_recv(&mut self.ud, n, &[place]);
        }
    }

    /// Moves a QP to RTS, connected to a peer.
    pub fn connect(&mut self, qpn: u32, peer: u32, path: AddressVector, is_uc: bool) {
        if is_uc {
            let state = |state: QpState| QpAttr {
                qp_state: state.to_raw(),
                port_num: 1,
                path_mtu: 3,
                dest_qpn: peer.into(),
                rq_psn: 0xff_fffe.into(),
                sq_psn: 0xff_fffe.into(),
                qp_access_flags: access::REMOTE_WRITE.into(),
                ..QpAttr::default()
            };
            use qp_mask::{
                ACCESS_FLAGS, AV, DEST_QPN, PATH_MTU, PKEY_INDEX, PORT, RQ_PSN, SQ_PSN, STATE,
            };
            for (mask, to) in [
                (STATE | PKEY_INDEX | PORT | ACCESS_FLAGS, QpState::Init),
                (STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN, QpState::Rtr),
                (STATE | SQ_PSN, QpState::Rts),
            ] {
                let moved = self.d.modify_av(qpn, mask, state(to), path);
                moved.expect("the next state");
            }
        } else {
            self.d.to_init(qpn).expect("INIT");
            self.d.to_rtr(qpn, peer, path).expect("RTR");
            self.d.to_rts(qpn).expect("RTS");
        }
    }

    /// Returns the state of a QP, its expected PSN and the PSN of its oldest unacknowledged
    /// request.
    pub fn look(&mut self, qpn: u32) -> (u8, u32, u32) {
        let context = self.d.query_qp(qpn);
        let psns = (context.expected_psn.get(), context.una_psn.get());
        (context.attr.qp_state, psns.0, psns.1)
    }

    /// Returns the number of new completions. Panics if one of them is not a success.
    pub fn completed(&mut self) -> usize {
        let done = self.d.drain(&mut self.cq);
        let is_success = |&(_, status): &(u64, WcStatus)| status == WcStatus::Success;
        assert!(done.iter().all(is_success), "{done:?}");
        done.len()
    }
}
