// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::{Budget, Core};
use crate::host::{Host, Syndrome};
use crate::packet::Packet;

#[derive(Debug)]
pub(crate) struct Responder {}
#[allow(unused_variables)]
impl Responder {
    pub(crate) fn new() -> Self {
        Self {}
    }
    pub(crate) fn expected_psn(&self) -> u32 {
        0
    }
    pub(crate) fn msn(&self) -> u32 {
        0
    }
    pub(crate) fn reset(&mut self) {}
    pub(crate) fn start(&mut self, core: &Core) {}
    pub(crate) fn abandon(&mut self) {}
    pub(crate) fn receive<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: Packet,
    ) -> Option<Syndrome> {
        None
    }
    pub(crate) fn run<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        Ok(false)
    }
    pub(crate) fn flush<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> bool {
        false
    }
}
