// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Steps of chains that register a region again and use it.
use super::{is_possible, ChainFixture, RIGHTS, SIZES, UNREGISTRABLE};
use crate::ffi::mr::access;
use crate::ffi::qp::{op, SendWr};
use crate::rig::*;
use crate::TestResult;

impl ChainFixture<'_> {
    pub(super) fn rereg(&mut self) -> TestResult {
        let parts = 1 + self.rng.below(7);
        let (buf, pd) = (
            self.rng.below(SIZES.len() as u64) as usize,
            self.rng.below(2) as usize,
        );
        let rights = *self.one_of(&RIGHTS);
        let buf = (parts & 1 != 0).then_some(buf);
        let pd = (parts & 2 != 0).then_some(pd);
        let rights = (parts & 4 != 0).then_some(rights);
        let keys = (self.mr.lkey(), self.mr.rkey());
        let result = self.mr.change(
            buf.map(|at| &self.bufs[at]),
            pd.map(|at| &self.pds[at]),
            rights,
        );
        let possible = buf != Some(UNREGISTRABLE) && rights.is_none_or(is_possible);
        ensure_eq!(
            result.is_ok(),
            possible,
            "buffer {buf:?}, domain {pd:?}, rights {rights:x?}: {result:?}"
        );
        ensure_eq!((self.mr.lkey(), self.mr.rkey()), keys, "keys");
        if possible {
            let (was_buf, was_pd, were) = self.region;
            self.region = (
                buf.unwrap_or(was_buf),
                pd.unwrap_or(was_pd),
                rights.unwrap_or(were),
            );
        }
        Ok(())
    }

    /// Returns buffer and offset of a request of 8 bytes, and whether the request is inside the
    /// region.
    pub(super) fn place(&mut self) -> (usize, usize, bool) {
        let buf = if self.rng.below(4) == 0 {
            self.rng.below(UNREGISTRABLE as u64) as usize
        } else {
            self.region.0
        };
        let size = SIZES[buf];
        let middle = 8 * self.rng.below(size as u64 / 8) as usize;
        // The last offset but one crosses the end of the buffer, the last begins at the end.
        let at = *self.one_of(&[0, size - 8, middle, size - 4, size]);
        let inside = buf == self.region.0 && at <= size - 8;
        (buf, at, inside)
    }

    /// Checks that A can access B's region exactly where the model permits the access.
    pub(super) fn remote(&mut self) -> TestResult {
        let kinds = [
            (op::WRITE, access::REMOTE_WRITE),
            (op::READ, access::REMOTE_READ),
            (op::FETCH_ADD, access::REMOTE_ATOMIC),
        ];
        let (opcode, right) = *self.one_of(&kinds);
        let (buf, at, inside) = self.place();
        let (_, pd, rights) = self.region;
        let atomic = opcode == op::FETCH_ADD;
        let want = if self.conns[1].access & right == 0 || atomic && at % 8 != 0 {
            status::REM_INV_REQ_ERR
        } else if inside && pd == 0 && rights & right != 0 {
            status::SUCCESS
        } else {
            status::REM_ACCESS_ERR
        };
        let (id, remote) = (self.id(), self.bufs[buf].clone());
        let at_most = (SIZES[buf] - at).min(8);
        let before = if at_most == 8 {
            remote.read(at, 8)
        } else {
            vec![0; 8]
        };
        self.a.mr.buf.write(0, &id.to_le_bytes());
        let mut wr = SendWr::new(opcode, id, &[self.a.mr.sge(0, 8)]);
        wr.compare_add = id;
        let wr = wr.remote(remote.addr() + at as u64, self.mr.rkey());
        let got = self.alone(wr)?;
        let what = format!(
            "opcode {opcode} at {at} of buffer {buf}, region {:x?}, B {:x}",
            self.region, self.conns[1].access
        );
        self.check_status(&what, got, want)?;
        if at_most == 8 {
            let old = u64::from_le_bytes(before.clone().try_into().unwrap_or_default());
            let expected = match (want, opcode) {
                (status::SUCCESS, op::WRITE) => id,
                (status::SUCCESS, op::FETCH_ADD) => old.wrapping_add(id),
                _ => old,
            };
            ensure_eq!(
                remote.read(at, 8),
                expected.to_le_bytes(),
                "memory after {what}"
            );
            if want == status::SUCCESS && opcode != op::WRITE {
                ensure_eq!(self.a.mr.buf.read(0, 8), before, "what {what} brought");
            }
        }
        Ok(())
    }

    /// Uses the region as the local memory of A's own requests.
    pub(super) fn local(&mut self) -> TestResult {
        let (buf, at, inside) = self.place();
        let (_, pd, rights) = self.region;
        let reads = self.chance();
        let (opcode, right) = if reads {
            (op::READ, access::REMOTE_READ)
        } else {
            (op::WRITE, access::REMOTE_WRITE)
        };
        if self.conns[1].access & right == 0 {
            return Ok(());
        }
        let granted = inside && pd == 0 && (!reads || rights & access::LOCAL_WRITE != 0);
        let id = self.id();
        let (here, remote) = (self.bufs[buf].clone(), self.b.mr.buf.clone());
        if granted {
            let from = if reads { (&remote, 0) } else { (&here, at) };
            from.0.write(from.1, &id.to_le_bytes());
        }
        let mut sge = self.a.mr.sge(0, 8);
        (sge.addr, sge.lkey) = (here.addr() + at as u64, self.mr.lkey());
        let wr = SendWr::new(opcode, id, &[sge]);
        let wr = wr.remote(self.b.mr.at(0), self.b.mr.rkey());
        let got = self.alone(wr)?;
        let want = if granted {
            status::SUCCESS
        } else {
            status::LOC_PROT_ERR
        };
        let what = format!(
            "opcode {opcode} with memory at {at} of buffer {buf}, region {:x?}",
            self.region
        );
        self.check_status(&what, got, want)?;
        if granted {
            let now = if reads {
                here.read(at, 8)
            } else {
                remote.read(0, 8)
            };
            ensure_eq!(now, id.to_le_bytes(), "bytes of {what}");
        }
        Ok(())
    }
}
