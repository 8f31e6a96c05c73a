// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The effects of rules: what a hook does when a rule fires.

use crate::names;
use crate::rule::{Action, Corruption, QpQueue, Rule};
use verbena_abi::cmd::CmdStatus;
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;

/// Target of an action without a packet or send. With a packet or a send, its QP is the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActionTarget {
    /// QP by its number.
    pub qp: Option<u32>,
    /// QP by its order of creation ([`QpIdentity::created`](crate::QpIdentity::created)).
    pub created: Option<u64>,
}

/// The fault to inject.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Effect of [`Action::Drop`].
    Drop,
    /// Effect of [`Action::DelayUs`], in nanoseconds.
    Delay(u64),
    /// Effect of [`Action::Duplicate`].
    Duplicate(u32),
    /// Effect of [`Action::Reorder`].
    Reorder(u32),
    /// Effect of [`Action::Corrupt`].
    Corrupt(Corruption),
    /// Effect of [`Action::MarkEcn`].
    MarkEcn,
    /// Effect of [`Action::Nak`] and [`Action::Rnr`]: the syndrome byte of the AETH.
    Nak(u8),
    /// Effect of [`Action::Complete`].
    Complete(WcStatus, Syndrome),
    /// Effect of [`Action::QpError`].
    QpError(ActionTarget),
    /// Effect of [`Action::Fatal`].
    Fatal,
    /// Effect of [`Action::Errno`].
    Fail(CmdStatus),
    /// Effect of [`Action::PortDown`]: a duration in nanoseconds if there is one, and the number of
    /// the rule. The effect ends with the rule ([`RuleTable::has`](crate::RuleTable::has)).
    PortDown(Option<u64>, u64),
    /// Effect of [`Action::PortUp`].
    PortUp,
    /// Effect of [`Action::CqOverflow`].
    CqOverflow(QpQueue, ActionTarget),
    /// Effect of [`Action::KillSrq`].
    KillSrq(ActionTarget),
    /// Effect of [`Action::KillSrq`] on the SRQ with this number.
    SrqFault(u32),
    /// Effect of [`Action::KillCq`] on the CQ with this number.
    CqFault(u32),
    /// Effect of [`Action::StallMs`]: nanoseconds, and the number of the rule, with which it ends.
    Stall(u64, u64, ActionTarget),
    /// Effect of [`Action::StallDeviceMs`], with the same values.
    StallDevice(u64, u64),
    /// Effect of [`Action::Withhold`].
    Withhold,
    /// Effect of [`Action::Repeat`].
    Repeat(u32),
    /// Effect of [`Action::Misbehave`]: the name of the misbehaviour, its number, and the number of
    /// the rule, with which it ends.
    Misbehave(&'static str, u32, u64),
    /// Effect of [`Action::Impair`]. The uplink has the random stream, which the seed of the rule
    /// begins.
    Impair,
}

/// Returns the effect of a rule. `created` is the number of QPs that were created before the rule
/// was added. None if a name of the action is not known.
pub(crate) fn effect(id: u64, rule: &Rule, created: u64) -> Option<Effect> {
    let m = &rule.matches;
    let target = ActionTarget {
        qp: m.qp,
        created: m.qp_created.map(|n| created.saturating_add(n)),
    };
    let ns = |ms: &u64| ms.saturating_mul(1_000_000);
    Some(match &rule.action {
        Action::Drop => Effect::Drop,
        Action::DelayUs(us) => Effect::Delay(us.saturating_mul(1000)),
        Action::Duplicate(n) => Effect::Duplicate(*n),
        Action::Reorder(n) => Effect::Reorder(*n),
        Action::Corrupt(how) => Effect::Corrupt(how.clone()),
        Action::MarkEcn => Effect::MarkEcn,
        Action::Nak(code) => Effect::Nak(names::nak_syndrome(code)?),
        Action::Rnr(timer) => Effect::Nak(0x20 | timer & 0x1f),
        Action::Complete(how) => Effect::Complete(names::wc_status(how.status())?, how.cause()?),
        Action::QpError => Effect::QpError(target),
        Action::Fatal => Effect::Fatal,
        Action::Errno(errno) => Effect::Fail(names::status_of_errno(errno)?),
        Action::PortDown => Effect::PortDown(None, id),
        Action::PortDownMs(ms) => Effect::PortDown(Some(ns(ms)), id),
        Action::PortUp => Effect::PortUp,
        Action::CqOverflow(queue) => Effect::CqOverflow(*queue, target),
        Action::KillSrq => match m.srq {
            Some(number) => Effect::SrqFault(number),
            None => Effect::KillSrq(target),
        },
        Action::KillCq => Effect::CqFault(m.cq?),
        Action::StallMs(ms) => Effect::Stall(ns(ms), id, target),
        Action::StallDeviceMs(ms) => Effect::StallDevice(ns(ms), id),
        Action::Withhold => Effect::Withhold,
        Action::Repeat(n) => Effect::Repeat(*n),
        Action::Misbehave(text) => {
            let (kind, number) = names::misbehaviour(text).ok()?;
            Effect::Misbehave(kind, number, id)
        }
        Action::Impair(_) => Effect::Impair,
    })
}
