// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests that change the net device under QPs in use: MTU, link and addresses, in an order drawn
//! from a seed. Queries and events are compared with a model, and QPs are used after each change.
use super::events::checked_exchange;
use super::port::{ip, netdev};
use crate::ffi::context::EventType;
use crate::ffi::mr::access;
use crate::ffi::qp::{op, state, SendWr};
use crate::ffi::Gid;
use crate::outcome::ErrorContext as _;
use crate::pattern::PatternRng;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("4/net-device-changes-under-live-queue-pairs", |r| {
        changes(r, 24)
    })
    .limit(240)
    .alone(),
    GuestTest::new("long/net-device-changes-under-live-queue-pairs", |r| {
        changes(r, 400)
    })
    .limit(1500)
    .alone()
    .long(),
];

const DOWN: u32 = 1;
const ACTIVE: u32 = 4;
/// MTUs of the net device, each with the path MTU that RoCE can use then (`enum ibv_mtu`).
const MTUS: [(u32, u32); 4] = [(1500, 3), (700, 2), (2300, 4), (4300, 5)];
const ADDRESSES: [&str; 3] = ["10.78.0.1", "10.78.0.2", "fd78::1"];
/// Index of the IPv6 address in `ADDRESSES`. `IPV6_MTU` is the minimum MTU of a net device with
/// IPv6 (RFC 8200, 5).
const IPV6: usize = 2;
const IPV6_MTU: u32 = 1280;

/// Returns the GID of an address in RoCE v2.
fn gid_of(address: &str) -> Result<Gid, Fail> {
    let address: std::net::IpAddr = address.parse().map_err(|_| "an address")?;
    let raw = match address {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v6) => v6.octets(),
    };
    Ok(Gid { raw })
}

/// Returns the index of a RoCE v2 GID in the port's table.
fn index_of(rig: &Rig, gid: Gid) -> Option<u32> {
    const ROCE_V2: u32 = 2;
    let all = (0..256).filter_map(|i| rig.ctx.query_gid(1, i).ok());
    let mut those = all.filter(|entry| entry.gid == gid && entry.gid_type == ROCE_V2);
    those.next().map(|entry| entry.gid_index)
}

struct LinkFixture<'r> {
    rig: &'r Rig,
    netdev: String,
    /// A pair that exists during the whole test.
    pair: QpPair,
    mtu: usize,
    up: bool,
    has_address: [bool; ADDRESSES.len()],
    /// Numbers of PORT_ERR and PORT_ACTIVE events that have arrived, and in `expected` those that
    /// must arrive.
    ports: [u32; 2],
    expected: [u32; 2],
    seed: u64,
}

impl LinkFixture<'_> {
    fn set_link(&mut self, up: bool) -> TestResult {
        if self.up != up {
            self.expected[usize::from(up)] += 1;
        }
        ip(&["link", "set", &self.netdev, if up { "up" } else { "down" }])?;
        self.up = up;
        if !up {
            // The kernel removes IPv6 addresses when the link goes down, and does not restore them.
            self.has_address[IPV6] = false;
        }
        Ok(())
    }

    fn set_mtu(&mut self, which: usize) -> TestResult {
        self.mtu = which;
        // The kernel also removes IPv6 addresses when the MTU is too small.
        self.has_address[IPV6] &= MTUS[which].0 >= IPV6_MTU;
        ip(&[
            "link",
            "set",
            &self.netdev,
            "mtu",
            &MTUS[which].0.to_string(),
        ])
    }

    fn set_address(&mut self, which: usize, has_address: bool) -> TestResult {
        if self.has_address[which] == has_address {
            return Ok(());
        }
        let address = ADDRESSES[which];
        // Each address has a subnet of its own, because the kernel removes all addresses of a
        // subnet with the first of them.
        let bits = if address.contains(':') { 64 } else { 32 };
        let address = format!("{address}/{bits}");
        let verb = if has_address { "add" } else { "del" };
        let mut args = vec!["address", verb, &address, "dev", &self.netdev];
        // Without `nodad` an address is tentative for a second or more, and has no GID until then.
        if has_address && bits == 64 {
            args.push("nodad");
        }
        ip(&args)?;
        self.has_address[which] = has_address;
        Ok(())
    }

    /// Waits until queries and events agree with the model.
    fn verify(&mut self) -> TestResult {
        let (state, mtu) = (if self.up { ACTIVE } else { DOWN }, MTUS[self.mtu].1);
        wait_for(&format!("the port has state {state} and MTU {mtu}"), || {
            let port = self.rig.ctx.query_port(1)?;
            Ok((port.state, port.active_mtu) == (state, mtu))
        })?;
        for (address, has_address) in ADDRESSES.iter().zip(self.has_address) {
            let gid = gid_of(address)?;
            wait_for(
                &format!("whether {address} has a GID is {has_address}"),
                || Ok(index_of(self.rig, gid).is_some() == has_address),
            )?;
        }
        let (expected, ports) = (self.expected, &mut self.ports);
        wait_for(&format!("PORT_ERR and PORT_ACTIVE {expected:?}"), || {
            while let Some(event) = self.rig.ctx.async_event(0) {
                ports[0] += u32::from(event.kind() == EventType::PORT_ERR);
                ports[1] += u32::from(event.kind() == EventType::PORT_ACTIVE);
            }
            Ok(ports[0] >= expected[0] && ports[1] >= expected[1])
        })?;
        ensure_eq!(self.ports, expected, "PORT_ERR and PORT_ACTIVE");
        Ok(())
    }

    /// Uses the QP that exists during the whole test, a new QP with the current MTU, and a pair of
    /// QPs for each address.
    fn exchange(&mut self) -> TestResult {
        if !self.up {
            return Ok(());
        }
        self.seed += 1;
        checked_exchange(&self.pair, self.seed).at("the old queue pair")?;
        let opts = PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        };
        let opts = opts.conn(|c| c.mtu = MTUS[self.mtu].1);
        let new = self
            .rig
            .pair(&opts)
            .at("a new queue pair of the port's MTU")?;
        checked_exchange(&new, self.seed).at("a new queue pair")?;
        for (address, _) in ADDRESSES
            .iter()
            .zip(self.has_address)
            .filter(|(_, has_address)| *has_address)
        {
            self.by(address).at(&format!("by {address}"))?;
        }
        Ok(())
    }

    /// Executes a WRITE of a pair whose GIDs are those of the address.
    fn by(&self, address: &str) -> TestResult {
        let gid = gid_of(address)?;
        let index = index_of(self.rig, gid).ok_or("no GID")?;
        let opts = PairOpts::default();
        let (a, b) = (self.rig.end(&opts)?, self.rig.end(&opts)?);
        for (own, peer) in [(&a, &b), (&b, &a)] {
            for to in [state::INIT, state::RTR, state::RTS] {
                let mut attr = attrs(gid, peer.qp.qpn(), &opts.conn_a);
                (attr.qp_state, attr.path_mtu) = (to, 2);
                attr.ah_attr.grh.sgid_index = index as u8;
                attr.qp_access_flags = access::ALL;
                own.qp
                    .modify(&attr, mask_to(to))
                    .at(state::NAMES[to as usize])?;
            }
        }
        a.mr.buf.write(0, &self.seed.to_le_bytes());
        let wr = SendWr::new(op::WRITE, 1, &[a.mr.sge(0, 2048)]);
        a.qp.post_send(&[wr.remote(b.mr.at(0), b.mr.rkey())])?;
        expect_success(&wait_one(&a.scq, "a WRITE")?, 1, wc::RDMA_WRITE)?;
        ensure_eq!(b.mr.buf.read(0, 8), self.seed.to_le_bytes(), "data");
        Ok(())
    }
}

fn changes(rig: &Rig, steps: u64) -> TestResult {
    let seed = std::env::var("VERBENA_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut rng = PatternRng::new(seed);
    let opts = PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    };
    let mut fixture = LinkFixture {
        rig,
        netdev: netdev()?,
        // The pair's path MTU fits into each MTU of the net device.
        pair: rig.pair(&opts.conn(|c| c.mtu = 2))?,
        mtu: 0,
        up: true,
        has_address: [false; ADDRESSES.len()],
        ports: [0; 2],
        expected: [0; 2],
        seed,
    };
    let mut run = || -> TestResult {
        for step in 0..steps {
            let which = rng.below(3);
            let at = match which {
                0 => {
                    let mtu = rng.below(MTUS.len() as u64) as usize;
                    fixture.set_mtu(mtu)?;
                    format!("MTU {}", MTUS[mtu].0)
                }
                1 => {
                    let up = !fixture.up;
                    fixture.set_link(up)?;
                    format!("link up {up}")
                }
                _ => {
                    let n = rng.below(ADDRESSES.len() as u64) as usize;
                    // An IPv6 address that is added while the link is down takes effect only when
                    // the link is up.
                    let takes = n != IPV6 || fixture.up && MTUS[fixture.mtu].0 >= IPV6_MTU;
                    let has_address = !fixture.has_address[n] && takes;
                    fixture.set_address(n, has_address)?;
                    format!("address {} there {has_address}", ADDRESSES[n])
                }
            };
            let at = format!("seed {seed}, step {step}, {at}");
            // Some changes follow one another without a check in between.
            if rng.below(3) > 0 {
                fixture.verify().at(&at)?;
                fixture.exchange().at(&at)?;
            }
        }
        Ok(())
    };
    let ran = run();
    // The initial state is restored whether the test passed or not.
    let mut end = || -> TestResult {
        fixture.set_link(true)?;
        fixture.set_mtu(0)?;
        (0..ADDRESSES.len()).try_for_each(|n| fixture.set_address(n, false))
    };
    let ended = end();
    ran?;
    ended?;
    fixture.verify().at("as it was")?;
    fixture.exchange().at("as it was")
}
