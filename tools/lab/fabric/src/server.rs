// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sockets of ibsim: one for control messages, and one for the MADs of each program.

use crate::protocol::{control, ControlMessage, PacketMessage, PACKET_LEN};
use crate::subnet::{Delivery, Subnet};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use verbena_fabric::mad::attribute::{NodeInfo, PortInfo};
use verbena_fabric::mad::{attribute_id, class, method, Fields, Mad};
use verbena_fabric::{PortId, ProcessMad};

/// The most programs at a time, as in ibsim.
pub const PROGRAMS: usize = 10;
/// Longest wait for a message, after which commands of the standard input are read.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// ETIMEDOUT: the status of a request without a response.
const TIMED_OUT: u32 = 110;
/// The longest time in which a program has to answer another program.
const RESPONSE_TIME: Duration = Duration::from_secs(2);

/// A request to another program. The kernel would report its timeout.
struct Waiting {
    program: usize,
    request: PacketMessage,
    deadline: Duration,
}

/// The server.
pub struct Server {
    name: String,
    control: UnixDatagram,
    /// The socket of each place of a program.
    packets: Vec<UnixDatagram>,
    subnet: Subnet,
    waiting: Vec<Waiting>,
    shows_events: bool,
    start: Instant,
    commands: Receiver<String>,
}

/// Returns the abstract address of a name. umad2sim counts the zero at the end of the name too.
fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name([name.as_bytes(), &[0]].concat())
}

/// Returns the transaction of a MAD without the bits that name the program.
fn transaction(mad: &Mad) -> u64 {
    mad.get(Mad::TRANSACTION_ID) & u64::MAX >> 16
}

impl Server {
    /// Opens the sockets.
    pub fn new(name: &str, subnet: Subnet, shows_events: bool) -> io::Result<Self> {
        let open = |name: String| {
            let socket = UnixDatagram::bind_addr(&address(&name)?)?;
            socket.set_nonblocking(true)?;
            io::Result::Ok(socket)
        };
        let (lines, commands) = mpsc::channel();
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            control: open(format!("{name}:ctl"))?,
            packets: (0..PROGRAMS)
                .map(|place| open(format!("{name}:out{place}")))
                .collect::<io::Result<_>>()?,
            name: name.to_string(),
            subnet,
            waiting: Vec::new(),
            shows_events,
            start: Instant::now(),
            commands,
        })
    }

    /// Serves until the program is ended.
    pub fn run(&mut self) -> io::Result<()> {
        println!(
            "ready: {} nodes, {} links",
            self.subnet.topology.nodes.len(),
            self.subnet.topology.links.len()
        );
        io::stdout().flush()?;
        loop {
            self.wait()?;
            let mut bytes = [0; 512];
            while let Ok((length, from)) = self.control.recv_from(&mut bytes) {
                self.control_message(&bytes[..length], &from);
            }
            for place in 0..PROGRAMS {
                while let Ok(length) = self.packets[place].recv(&mut bytes) {
                    self.packet(place, &bytes[..length.min(PACKET_LEN)]);
                }
            }
            while let Ok(line) = self.commands.try_recv() {
                self.command(&line);
            }
            let deliveries = self.subnet.poll(self.now());
            self.deliver(deliveries);
            self.report_timeouts();
            self.show_events();
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits for a message or the next trap.
    fn wait(&self) -> io::Result<()> {
        let deadline = self.subnet.fabric.next_deadline();
        let wait = deadline.map_or(LONGEST_WAIT, |at| {
            at.saturating_sub(self.now()).min(LONGEST_WAIT)
        });
        let sockets = self.packets.iter().chain([&self.control]);
        let mut places: Vec<PollFd> = sockets
            .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        poll(&mut places, PollTimeout::from(wait.as_millis() as u8))?;
        Ok(())
    }

    /// Answers a control message.
    fn control_message(&mut self, bytes: &[u8], from: &SocketAddr) {
        let Some(mut message) = ControlMessage::decode(bytes) else {
            return eprintln!(
                "a control message of {} bytes is none of umad2sim",
                bytes.len()
            );
        };
        if self.execute(&mut message).is_none() {
            message.kind = control::ERROR;
        }
        if let Err(error) = self.control.send_to_addr(&message.encode(), from) {
            eprintln!("a program did not take the answer to its control message: {error}");
        }
    }

    /// Executes a control message, and replaces its data by the answer.
    fn execute(&mut self, message: &mut ControlMessage) -> Option<()> {
        let (program, now) = (message.client as usize, self.now());
        match message.kind {
            control::CONNECT => self.connect(message)?,
            control::DISCONNECT => {
                self.waiting.retain(|waiting| waiting.program != program);
                self.subnet.detach(program, now);
            }
            control::SET_IS_SM => self.subnet.set_is_sm(program, message.word(0) != 0, now),
            _ => self.query(message)?,
        }
        Some(())
    }

    fn connect(&mut self, message: &mut ControlMessage) -> Option<()> {
        let place = self.subnet.free_place()?;
        let peer = address(&format!("{}:in{}", self.name, message.word(0))).ok()?;
        let node = self.subnet.attach(place, &message.node_name())?;
        if let Err(error) = self.packets[place].connect_addr(&peer) {
            eprintln!("cannot connect to program {}: {error}", message.word(0));
            self.subnet.detach(place, self.now());
            return None;
        }
        message.put(0, &(place as u32).to_ne_bytes());
        let name = self.subnet.topology.nodes.get(node)?.name.clone();
        message.set_node_name(&name);
        Some(())
    }

    /// Answers a question about the port of a program.
    fn query(&mut self, message: &mut ControlMessage) -> Option<()> {
        let at = self.subnet.port_of(message.client as usize)?;
        let info = self.subnet.fabric.port_info(at)?;
        let node = NodeInfo(self.attribute(at, attribute_id::NODE_INFO)?);
        let data = match message.kind {
            control::GET_PORT => {
                let mut data = info.get(PortInfo::LID).to_ne_bytes().to_vec();
                data.push(info.get(PortInfo::PORT_STATE));
                data
            }
            control::GET_VENDOR => {
                let numbers = [
                    node.get(NodeInfo::VENDOR_ID),
                    u32::from(node.get(NodeInfo::DEVICE_ID)),
                    node.get(NodeInfo::REVISION),
                    0,
                ];
                let mut data: Vec<u8> = numbers
                    .iter()
                    .flat_map(|number| number.to_ne_bytes())
                    .collect();
                data.extend(1u64.to_ne_bytes());
                data
            }
            control::GET_GID => [
                info.0[8..16].to_vec(),
                node.get(NodeInfo::PORT_GUID).to_be_bytes().to_vec(),
            ]
            .concat(),
            control::GET_GUID => node.get(NodeInfo::NODE_GUID).to_be_bytes().to_vec(),
            control::GET_NODE_INFO => node.0.to_vec(),
            control::GET_PORT_INFO => info.0.to_vec(),
            control::GET_P_KEYS => self.attribute(at, attribute_id::P_KEY_TABLE)?.to_vec(),
            _ => return None,
        };
        message.put(0, &data);
        Some(())
    }

    /// Reads an attribute of the port of a program, as its driver does.
    fn attribute(&mut self, at: PortId, attribute: u16) -> Option<[u8; 64]> {
        let mad = Mad::smp(class::SUBNET_LID_ROUTED, method::GET, attribute, 0);
        match self.subnet.fabric.process_mad(at, &mad, false, self.now()) {
            ProcessMad::Reply(reply) => Some(reply.data()),
            _ => None,
        }
    }

    /// A program sends a MAD.
    fn packet(&mut self, place: usize, bytes: &[u8]) {
        let Some(message) = PacketMessage::decode(bytes) else {
            return eprintln!("a packet of {} bytes is none of umad2sim", bytes.len());
        };
        let deliveries = self.subnet.send(
            place,
            message.destination_lid,
            message.source_qp,
            message.mad,
            self.now(),
        );
        let waits = !message.mad.get(Mad::RESPONSE)
            && [method::GET, method::SET].contains(&message.mad.get(Mad::METHOD));
        let is_under_way = deliveries
            .iter()
            .any(|delivery| transaction(&delivery.datagram.mad) == transaction(&message.mad));
        if waits {
            let wait = if is_under_way {
                RESPONSE_TIME
            } else {
                Duration::ZERO
            };
            let deadline = self.now() + wait;
            self.waiting.push(Waiting {
                program: place,
                request: message,
                deadline,
            });
        }
        self.deliver(deliveries);
        self.report_timeouts();
    }

    /// Reports requests without a response to their programs.
    fn report_timeouts(&mut self) {
        let now = self.now();
        let (over, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.deadline <= now);
        self.waiting = waiting;
        for Waiting {
            program, request, ..
        } in over
        {
            self.write(
                program,
                &PacketMessage {
                    status: TIMED_OUT,
                    ..request
                },
            );
        }
    }

    fn deliver(&mut self, deliveries: Vec<Delivery>) {
        for Delivery { program, datagram } in deliveries {
            if datagram.mad.get(Mad::RESPONSE) {
                let is_answered = |waiting: &Waiting| {
                    waiting.program == program
                        && transaction(&waiting.request.mad) == transaction(&datagram.mad)
                };
                self.waiting.retain(|waiting| !is_answered(waiting));
            }
            let message = PacketMessage {
                destination_lid: datagram.destination_lid,
                source_lid: datagram.source_lid,
                destination_qp: datagram.destination_qp,
                source_qp: datagram.source_qp,
                status: 0,
                mad: *datagram.mad,
            };
            self.write(program, &message);
        }
    }

    /// Passes a MAD to a program. A program that does not exist any more is detached.
    fn write(&mut self, program: usize, message: &PacketMessage) {
        match self.packets[program].send(&message.encode()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                eprintln!("program {program} takes no MADs: one is dropped")
            }
            Err(error) => {
                eprintln!("program {program} is gone: {error}");
                self.subnet.detach(program, self.now());
            }
        }
    }

    fn show_events(&mut self) {
        for (port, event) in std::mem::take(&mut self.subnet.events) {
            if self.shows_events {
                println!(
                    "event {} {}: {event:?}",
                    self.subnet.topology.nodes[port.node].name, port.port
                );
            }
        }
    }

    /// Executes a command of the standard input.
    fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (["cable", name, port, state @ ("on" | "off")], now) = (&words[..], self.now()) else {
            return eprintln!(
                "`{line}` is not a command: write cable NODE PORT on, or cable NODE PORT off"
            );
        };
        match (self.subnet.topology.find(name), port.parse()) {
            (Some(node), Ok(port)) => {
                self.subnet
                    .fabric
                    .set_cable(PortId { node, port }, *state == "on", now)
            }
            _ => eprintln!("`{line}` names a node or a port that does not exist"),
        }
    }
}
