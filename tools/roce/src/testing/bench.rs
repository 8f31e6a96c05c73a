// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The transport's own cost: two queue pairs of one engine, a host that does next to nothing, no link.

use crate::host::*;
use crate::packet::Packet;
use crate::testing::pair::Setup;
use crate::{Attr, Budget, Config, Qp, QpState, QpType};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use verbena_abi::ctx::access;

/// Memory of both ends and the work to do: `count` work requests of the same kind.
#[derive(Debug)]
struct BenchHost {
    memory: [Vec<u8>; 2],
    side: usize,
    size: u32,
    inline: bool,
    opcode: WqeOpcode,
    completed: u64,
    queue: VecDeque<(usize, Packet)>,
}

impl Host for BenchHost {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut SendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        wqe.wr_id = u64::from(index);
        wqe.opcode = self.opcode;
        wqe.signaled = index % 64 == 63;
        if self.inline {
            gather
                .inline
                .extend_from_slice(&self.memory[0][..self.size as usize]);
        } else {
            gather.sges.push(Sge {
                addr: 0,
                length: self.size,
                lkey: 0,
            });
        }
        Ok(())
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        (u64::from(index), WcOpcode::Send)
    }

    fn take_recv(&mut self, wqe: &mut RecvWqe) -> Take {
        wqe.sges.push(Sge {
            addr: 0,
            length: self.size,
            lkey: 0,
        });
        Take::Taken
    }

    fn check(&mut self, _key: &KeyUse) -> Result<(), Syndrome> {
        Ok(())
    }

    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault> {
        let [mine, theirs] = &mut self.memory;
        let from = match source {
            Source::Bytes(bytes) => bytes,
            Source::Gather { offset, length, .. } => &mine[offset as usize..][..length as usize],
            Source::Region { addr, length, .. } => &mine[addr as usize..][..length as usize],
        };
        let at = match target {
            Target::Buffer(buffer) => {
                buffer.copy_from_slice(from);
                return Ok(());
            }
            Target::Scatter { offset, .. } => u64::from(offset),
            Target::Region { addr, .. } => addr,
        };
        theirs[at as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn atomic(&mut self, _key: &KeyUse, _op: AtomicOp) -> Result<u64, Syndrome> {
        Ok(0)
    }

    fn invalidate(&mut self, _key: u32, _remote: bool) -> Result<(), Syndrome> {
        Ok(())
    }

    fn fast_register(&mut self, _index: u32) -> Result<(), Syndrome> {
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) {
        assert_eq!(completion.status, WcStatus::Success);
        self.completed += u64::from(!completion.is_recv());
    }

    fn event(&mut self, _event: EventType, _syndrome: Option<Syndrome>) {}

    fn transmit(&mut self, packet: Packet) {
        self.queue.push_back((1 - self.side, packet));
    }
}

/// Sends `count` messages of `size` bytes from one queue pair to another and returns how many completions came. The
/// caller measures the time.
pub fn run(opcode: WqeOpcode, size: u32, inline: bool, count: u32) -> u64 {
    let attr = Attr {
        path_mtu: 4096,
        local_peer: true,
        ..Setup::default().attr
    };
    let mut host = BenchHost {
        memory: [vec![1; size as usize], vec![0; size as usize]],
        side: 0,
        size,
        inline,
        opcode,
        completed: 0,
        queue: VecDeque::new(),
    };
    let mut qps = [0u32, 1].map(|n| {
        let mut qp = Qp::new(Config::new(n + 2, QpType::Rc, 1));
        let attr = Attr {
            dest_qpn: 3 - n,
            access_flags: access::REMOTE_WRITE | access::REMOTE_READ,
            ..attr
        };
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            assert_eq!(qp.handle_modify(&mut host, to, &attr), Ok(()));
        }
        qp
    });
    qps[0].handle_posts(count);
    while qps[0].snapshot().sq_consumer != count {
        for (side, qp) in qps.iter_mut().enumerate() {
            host.side = side;
            qp.poll(&mut host, 0, &mut Budget::new(64, 1 << 20));
        }
        while let Some((side, packet)) = host.queue.pop_front() {
            host.side = side;
            qps[side].handle_packet(&mut host, 0, packet);
        }
    }
    host.completed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::println;
    use std::time::Instant;

    #[test]
    fn messages_complete() {
        for opcode in [WqeOpcode::RdmaWrite, WqeOpcode::Send, WqeOpcode::RdmaRead] {
            assert_eq!(run(opcode, 8, false, 1024), 16);
            assert_eq!(run(opcode, 1 << 20, false, 64), 1);
        }
    }

    /// `cargo test --release -p verbena-roce -- --ignored --nocapture rates`
    #[test]
    #[ignore = "a measurement, not a test"]
    fn rates() {
        for (opcode, size, inline, count) in [
            (WqeOpcode::RdmaWrite, 8, false, 4_000_000),
            (WqeOpcode::RdmaWrite, 8, true, 4_000_000),
            (WqeOpcode::Send, 8, false, 4_000_000),
            (WqeOpcode::Send, 64, true, 4_000_000),
            (WqeOpcode::RdmaRead, 8, false, 2_000_000),
            (WqeOpcode::RdmaWrite, 65_536, false, 50_000),
        ] {
            let start = Instant::now();
            run(opcode, size, inline, count);
            let seconds = start.elapsed().as_secs_f64();
            let (rate, bytes) = (
                f64::from(count) / seconds / 1e6,
                f64::from(size) * f64::from(count) / seconds / 1e9,
            );
            println!("{opcode:?} {size} B inline {inline}: {rate:.2} M/s, {bytes:.2} GB/s");
        }
    }
}
