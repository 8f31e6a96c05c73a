// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The session of nodes that stay: boots the guests, keeps them until a client asks for their end,
//! and judges them.

use crate::agent_link::AgentLink;
use crate::boot::{self, Guests, Outcome, Progress};
use crate::complaints::first_complaint;
use crate::guest::{Guest, GuestEnd, Shared};
use crate::node_request::{NodeState, NodeStatus};
use crate::node_server::NodeServer;
use crate::node_set::SOCKET;
use crate::signals::Signals;
use std::io;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for guests to switch themselves off.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// What the session does.
enum Phase {
    Booting,
    Up,
    Ending(Instant),
}

/// Boots the guests, and returns when they have ended. `report` is called while they boot, and at
/// last with [`Progress::Done`] when all take commands. If it fails, nobody waits for the nodes any
/// more, and they end.
///
/// # Errors
///
/// A guest cannot be started.
pub fn stay(
    shared: &Shared<'_>,
    signals: &Signals,
    mut report: impl FnMut(&Progress) -> io::Result<()>,
) -> Result<Outcome, String> {
    boot::prepare(shared)?;
    let links = shared
        .run
        .numbers()
        .map(|number| AgentLink::listen(&shared.places_of(number).agent_socket()));
    let links = links.collect::<Result<Vec<_>, _>>()?;
    let socket = shared.places.sockets.join(SOCKET);
    let server = NodeServer::listen(&socket, links, shared.run.shares.clone())?;
    let mut guests = boot::start_all(shared, None)?;
    let powered_on = Instant::now();
    let mut phase = Phase::Booting;
    loop {
        let states = look(shared, &mut guests, &server)?;
        let ended = states
            .iter()
            .filter(|s| s.state == NodeState::Ended)
            .count();
        let up = states.iter().filter(|s| s.state == NodeState::Up).count();
        server.set_states(states);
        if let Some(signal) = signals.received() {
            guests.each.iter_mut().for_each(Guest::abort);
            return Ok(Outcome::aborted(128 + signal as u8));
        }
        if ended == guests.each.len() && !matches!(phase, Phase::Up) {
            break;
        }
        let wants_end = match phase {
            Phase::Booting if ended > 0 => true,
            Phase::Booting => {
                let all = guests.each.len();
                let progress = match up == all {
                    true => Progress::Done,
                    false => shared.booting(powered_on, up),
                };
                let is_alone = report(&progress).is_err();
                if up == all && !is_alone {
                    phase = Phase::Up;
                }
                is_alone || server.is_end_wanted()
            }
            Phase::Up => server.is_end_wanted(),
            Phase::Ending(since) if since.elapsed() > END_PATIENCE => {
                for guest in &mut guests.each {
                    guest.switch_off("it did not switch itself off");
                }
                false
            }
            Phase::Ending(_) => false,
        };
        if wants_end {
            phase = Phase::Ending(Instant::now());
            end_all(&mut guests, &server);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let outcome = boot::conclude(shared, guests);
    let lines = [outcome.errors.clone(), outcome.summary.clone()].concat();
    server.finish(outcome.status, &lines);
    Ok(outcome)
}

/// Asks all guests to switch themselves off. Those that cannot are switched off.
fn end_all(guests: &mut Guests<'_>, server: &NodeServer) {
    for guest in guests.each.iter_mut().filter(|guest| guest.end.is_none()) {
        if !server.link(guest.number).shut_down() {
            guest.switch_off("it did not answer, so it was switched off");
        }
    }
}

/// Looks at all guests, and returns their states.
fn look(
    shared: &Shared<'_>,
    guests: &mut Guests<'_>,
    server: &NodeServer,
) -> Result<Vec<NodeStatus>, String> {
    let trouble_of_all = guests.nic_of_all.as_mut().and_then(|nic| nic.trouble());
    let mut states = Vec::new();
    for guest in &mut guests.each {
        let had_ended = guest.end.is_some();
        guest.look()?;
        let link = server.link(guest.number);
        if let (Some(end), false) = (&guest.end, had_ended) {
            let reason = describe_end(shared, guest, end);
            link.end(&format!("vm{} has ended: {reason}", guest.number));
            guest.reason = Some(reason);
        }
        let nic = guest.nic_trouble().or_else(|| trouble_of_all.clone());
        states.push(match (&guest.reason, link.answers()) {
            (Some(reason), _) => NodeStatus {
                state: NodeState::Ended,
                trouble: Some(reason.clone()),
            },
            (None, is_up) => NodeStatus {
                state: if is_up {
                    NodeState::Up
                } else {
                    NodeState::Booting
                },
                trouble: nic.map(|nic| format!("its NIC {nic}, so its RDMA device does not work")),
            },
        });
    }
    Ok(states)
}

/// Says why a guest has ended.
fn describe_end(shared: &Shared<'_>, guest: &Guest<'_>, end: &GuestEnd) -> String {
    let timeout_s = shared.run.timeout_s.unwrap_or_default();
    match end {
        GuestEnd::Failed(reason) => reason.clone(),
        GuestEnd::TimedOut => format!("it was ended after {timeout_s} s (--timeout)"),
        GuestEnd::Ended(_) => {
            let log = guest.places.logs.join("kernel.log");
            let excuses: Vec<_> = shared.run.expected().into_iter().collect();
            match first_complaint(&std::fs::read(log).unwrap_or_default(), &excuses) {
                Some(line) => format!("its kernel complained: {line}"),
                None => String::from("it was switched off"),
            }
        }
    }
}
