// SPDX-License-Identifier: GPL-2.0 OR MIT
use super::{requester::Requester, responder::Responder, Budget, Core};
use crate::host::Host;
use crate::packet::Packet;
pub(crate) fn receive<H: Host>(
    _core: &mut Core,
    _resp: &mut Responder,
    _host: &mut H,
    _packet: Packet,
) {
}
pub(crate) fn run<H: Host>(
    _core: &mut Core,
    _req: &mut Requester,
    _host: &mut H,
    _budget: &mut Budget,
) -> bool {
    false
}
