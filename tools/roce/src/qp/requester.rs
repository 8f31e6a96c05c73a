// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::{Budget, Core};
use crate::host::{Host, Syndrome};
use crate::packet::Packet;

#[derive(Debug)]
pub(crate) struct Requester {}
#[allow(unused_variables)]
impl Requester {
    pub(crate) fn new() -> Self {
        Self {}
    }
    pub(crate) fn is_drained(&self) -> bool {
        true
    }
    pub(crate) fn producer(&self) -> u32 {
        0
    }
    pub(crate) fn next_index(&self) -> u32 {
        0
    }
    pub(crate) fn oldest_index(&self) -> u32 {
        0
    }
    pub(crate) fn next_psn(&self) -> u32 {
        0
    }
    pub(crate) fn una_psn(&self) -> u32 {
        0
    }
    pub(crate) fn retry_left(&self) -> u8 {
        0
    }
    pub(crate) fn rnr_left(&self) -> u8 {
        0
    }
    pub(crate) fn deadline(&self) -> Option<u64> {
        None
    }
    pub(crate) fn reset(&mut self) {}
    pub(crate) fn start(&mut self, core: &Core) {}
    pub(crate) fn drain(&mut self) {}
    pub(crate) fn abandon(&mut self) {}
    pub(crate) fn set_producer(&mut self, producer: u32) {}
    pub(crate) fn source_fault(&mut self, psn: u32, cause: Syndrome) {}
    pub(crate) fn fail_oldest_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
    ) -> Option<Syndrome> {
        None
    }
    pub(crate) fn receive<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        packet: Packet,
    ) -> Option<Syndrome> {
        None
    }
    pub(crate) fn run<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        Ok(false)
    }
    pub(crate) fn report_drained<H: Host>(&mut self, core: &Core, host: &mut H) {}
    pub(crate) fn flush<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> bool {
        false
    }
}
