// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands of the port, its GIDs and counters, and of doorbell areas.

use super::*;
use crate::config::{MAX_GID, NUM_PORTS};
use crate::memory::Area;
use crate::objects::uar::Uar;
use verbena_abi::doorbell::{self, Words};

/// Writes counters to the address in a request. Returns a reply with their number.
pub(super) fn write_stats<M: GuestMemory>(
    mem: &M,
    request: &QueryStats,
    counters: &[u64],
) -> Result<Reply, CmdError> {
    let written = &counters[..counters.len().min(request.count.get() as usize)];
    let bytes: Vec<u8> = written.iter().flat_map(|n| n.to_le_bytes()).collect();
    mem.write(request.addr.get(), &bytes)
        .map_err(|_| bad(CmdStatus::BadAddress, Syndrome::CmdTranslation))?;
    Ok(reply_of(&Stats {
        count: (written.len() as u32).into(),
        ..Default::default()
    }))
}

/// Checks that the port exists.
fn check_port(port: u8) -> Result<(), CmdError> {
    if (1..=NUM_PORTS).contains(&port) {
        Ok(())
    } else {
        Err(NUMBER)
    }
}

impl Device {
    /// Begins to add up the counters of the port, or writes those of a QP at once.
    pub(super) fn query_stats<M: GuestMemory>(
        &self,
        mem: &M,
        request: &QueryStats,
    ) -> Result<Step, CmdError> {
        let kind = StatsKind::from_raw(request.kind)
            .ok_or(bad(CmdStatus::Unsupported, Syndrome::CmdAttribute))?;
        let addr = request.addr.get();
        let count = (request.count.get() as usize).min(Counter::ALL.len());
        if addr % 8 != 0 {
            return Err(bad(CmdStatus::Invalid, Syndrome::CmdTranslation));
        }
        if !mem.contains(addr, count as u64 * 8) {
            return Err(bad(CmdStatus::BadAddress, Syndrome::CmdTranslation));
        }
        match kind {
            StatsKind::Port => {
                check_port(request.port)?;
                let stats = (self.begin_survey(), *request);
                Ok(Step::Begun(Long::Stats(Box::new(stats))))
            }
            StatsKind::Qp => {
                let qp = self.qps.get(request.id.get()).ok_or(NO_OBJECT)?;
                write_stats(mem, request, &qp.counters().all()).map(Step::Done)
            }
        }
    }

    /// Checks a request to set or clear an entry of the GID table.
    pub(super) fn check_gid(&self, request: &SetGid) -> Result<(), CmdError> {
        check_port(request.port)?;
        if request.valid > 1 {
            return Err(ATTRIBUTE);
        }
        if request.gid_type != GID_TYPE_ROCE_V2 {
            return Err(bad(CmdStatus::Unsupported, Syndrome::CmdAttribute));
        }
        if u32::from(request.index.get()) >= MAX_GID {
            return Err(NUMBER);
        }
        Ok(())
    }

    pub(super) fn set_gid(&mut self, request: &SetGid) -> Result<(), CmdError> {
        if !self.shared.port.set_gid(request) {
            return Err(NUMBER);
        }
        self.addressing.note_gids();
        Ok(())
    }

    pub(super) fn set_port(&mut self, request: &SetPort) -> Result<(), CmdError> {
        check_port(request.port)?;
        if request.up > 1 || !(1..=5).contains(&request.mtu) {
            return Err(ATTRIBUTE);
        }
        let up = request.up != 0;
        if self.shared.port.up && !up {
            self.shared.report(DeviceEvent::PortDown);
        }
        self.shared.port.up = up;
        self.shared.port.mtu = request.mtu;
        Ok(())
    }

    pub(super) fn create_uar<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &CreateUar,
    ) -> Result<(), CmdError> {
        let (uar, addr) = (request.uar.get(), request.addr.get());
        if !self.shared.uars.in_range(uar) {
            return Err(NUMBER);
        }
        if self.shared.uars.get(uar).is_some() {
            return Err(IN_USE);
        }
        if addr % 4096 != 0 {
            return Err(bad(CmdStatus::Invalid, Syndrome::CmdTranslation));
        }
        if !mem.contains(addr, doorbell::AREA_SIZE as u64) {
            return Err(bad(CmdStatus::BadAddress, Syndrome::CmdTranslation));
        }
        let area = Area::new(mem, addr);
        area.store(doorbell::SLEEP, 0);
        area.store_release(doorbell::ALIVE, 1);
        self.shared.uars.put(uar, Box::new(Uar::new(addr)));
        self.areas.wake(uar);
        Ok(())
    }

    pub(super) fn destroy_uar<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &DestroyUar,
    ) -> Result<(), CmdError> {
        let number = request.id.get();
        let uar = self.shared.uars.get(number).ok_or(NO_OBJECT)?;
        if uar.is_used() {
            return Err(BUSY);
        }
        Area::new(mem, uar.base).store_release(doorbell::ALIVE, 0);
        if self.shared.uars.take(number).is_some_and(|uar| uar.awake) {
            self.areas.remove(number);
        }
        Ok(())
    }
}
