// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that create, modify and destroy memory regions.

use super::*;
use crate::memory::ring::Pages;
use crate::memory::tables::ContextSlot;
use crate::objects::mr::{check_terms, index, Mr};
use crate::objects::window::release;
use verbena_abi::ctx::{mr_flags, MemoryEntry, MrState};

/// Checks all attributes in a request and makes the region from them.
fn describe(request: &ModifyMr, context_slot: ContextSlot) -> Result<Mr, CmdError> {
    let (flags, rights) = (request.flags.get(), request.access.get());
    if flags & !(mr_flags::FAST_REG | mr_flags::PRIVILEGED | mr_flags::WINDOW) != 0 {
        return Err(ATTRIBUTE);
    }
    let is_window = flags & mr_flags::WINDOW != 0;
    // A window has exactly one type, no other flag or right, and no memory before it is bound.
    if is_window
        && (!flags.is_power_of_two()
            || rights != 0
            || request.length.get() != 0
            || request.iova.get() != 0)
    {
        return Err(ATTRIBUTE);
    }
    let (iova, length) = (request.iova.get(), request.length.get());
    let page_offset = request.page_offset.get();
    let bytes = check_terms(rights, iova, length, page_offset)?;
    let state = if is_window || flags & mr_flags::FAST_REG != 0 {
        MrState::Free
    } else {
        MrState::Valid
    };
    Ok(Mr {
        key: request.key.get(),
        pdn: request.pdn.get(),
        access: rights,
        flags,
        iova,
        length,
        page_offset,
        // A key for fast registration gets its pages with the registration, a window with its bind.
        pages: if state == MrState::Valid {
            Pages::new(&request.pages, bytes)?
        } else {
            Pages::none()
        },
        state,
        bound: None,
        windows: 0,
        context_slot,
    })
}

impl Device {
    pub(super) fn create_mr<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &CreateMr,
    ) -> Result<(), CmdError> {
        let number = index(request.key.get());
        if number == 0 || !self.shared.mrs.in_range(number) {
            return Err(NUMBER);
        }
        if self.shared.mrs.get(number).is_some() {
            return Err(IN_USE);
        }
        let request = ModifyMr {
            key: request.key,
            pdn: request.pdn,
            access: request.access,
            flags: request.flags,
            iova: request.iova,
            length: request.length,
            page_offset: request.page_offset,
            pages: request.pages,
        };
        let slot = self.shared.tables.slot(mem, Table::Mpt, number)?;
        let mut region = Box::new(describe(&request, slot)?);
        region.publish(mem);
        self.shared.mrs.put(number, region);
        Ok(())
    }

    pub(super) fn destroy_mr<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &DestroyMr,
    ) -> Result<(), CmdError> {
        // Fast registration may have changed the tag of the key, so only the index counts.
        let number = index(request.id.get());
        if self.shared.mrs.get(number).ok_or(NO_OBJECT)?.windows != 0 {
            return Err(BUSY);
        }
        let mut region = self.shared.mrs.take(number).ok_or(NO_OBJECT)?;
        region.context_slot.publish(mem, &MemoryEntry::default());
        release(&mut self.shared.mrs, mem, region.bound);
        Ok(())
    }

    pub(super) fn modify_mr<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ModifyMr,
    ) -> Result<(), CmdError> {
        let number = index(request.key.get());
        let region = self.shared.mrs.get(number).ok_or(NO_OBJECT)?;
        if (region.flags | request.flags.get()) & mr_flags::WINDOW != 0 {
            return Err(ATTRIBUTE);
        }
        if region.windows != 0 {
            return Err(BUSY);
        }
        let slot = self.shared.tables.slot(mem, Table::Mpt, number)?;
        let mut region = Box::new(describe(request, slot)?);
        region.publish(mem);
        self.shared.mrs.put(number, region);
        Ok(())
    }
}
