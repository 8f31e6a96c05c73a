// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands of the port and of doorbell areas.

use super::*;
use crate::mem::Area;
use crate::uar::Uar;
use verbena_abi::doorbell::{self, Words};

impl Device {
    pub(super) fn set_gid(&mut self, request: &SetGid) -> Result<(), CmdError> {
        if request.valid > 1 {
            return Err(ATTRIBUTE);
        }
        if !self.shared.port.set_gid(request) {
            return Err(NUMBER);
        }
        Ok(())
    }

    pub(super) fn set_port(&mut self, request: &SetPort) -> Result<(), CmdError> {
        if request.up > 1 || !(1..=5).contains(&request.mtu) {
            return Err(ATTRIBUTE);
        }
        self.shared.port.up = request.up != 0;
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
        self.awake.push(uar);
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
        self.shared.uars.take(number);
        self.awake.retain(|&u| u != number);
        Ok(())
    }
}
