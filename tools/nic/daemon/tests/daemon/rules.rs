// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fault rules over the control socket, from clients that are correct, that disconnect at any time,
//! that send invalid requests, or that belong to another user.

use crate::client::Client;
use crate::dir::Dir;
use crate::process::NicProcess;
use crate::{command, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use verbena_abi::cmd::{CmdStatus, QueryDevice};
use verbena_lab_transport::Rng;
use verbena_protocol::{read_toml, ControlRequest, Nic};

/// A rule with which a command fails.
const FAILS: &str = r#"
version = 1
[[rule]]
name = "fails"
match = { on = "command", command = "QUERY_DEVICE" }
action = { errno = "ENOMEM" }
"#;

/// A rule that belongs to no connection, and must stay unchanged.
const STAYS: &str = r#"
version = 1
[[rule]]
name = "stays"
match = { opcode = "CmpSwap" }
action = "drop"
"#;

/// Starts a NIC with a running device. Returns also the path of its control socket, and a client of
/// the control socket.
fn start(name: &str) -> (Dir, NicProcess, Client, OwnedFd, Nic, PathBuf) {
    let dir = Dir::new(name);
    let process = NicProcess::start(&dir.0).listening();
    let stream = UnixStream::connect(dir.0.join("nic")).unwrap();
    let (client, interrupt) = run(Client::over(stream));
    let socket = dir.0.join("control");
    let nic = Nic::at(&socket);
    (dir, process, client, interrupt, nic, socket)
}

fn add(nic: &Nic, file: &str) {
    let request = ControlRequest::FaultAdd {
        set: read_toml(file).unwrap(),
        while_connected: false,
    };
    let _: verbena_protocol::RulesReply = nic.request(&request).unwrap();
}

/// Returns the request line for a rule of that name that ends with its connection.
fn tied(name: &str) -> String {
    let set = read_toml(&FAILS.replace("\"fails\"", &format!("{name:?}"))).unwrap();
    let while_connected = true;
    ControlRequest::FaultAdd {
        set,
        while_connected,
    }
    .to_line()
}

fn names(nic: &Nic) -> Vec<String> {
    let statuses = nic.rules().unwrap();
    statuses
        .into_iter()
        .map(|status| status.rule.name)
        .collect()
}

/// Requests the rules until they are as wanted. The NIC may not have noticed yet that clients have
/// disconnected, so at first it may have no place for a connection.
fn settle(nic: &Nic, wanted: &[&str]) {
    let mut last = Vec::new();
    for _ in 0..400 {
        if let Ok(statuses) = nic.rules() {
            last = statuses
                .into_iter()
                .map(|status| status.rule.name)
                .collect();
            if last == wanted {
                return;
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("rules are {last:?}, not {wanted:?}");
}

#[test]
fn a_rule_lasts_as_long_as_its_handle() {
    let (_dir, _process, mut client, interrupt, nic, _) = start("rules-handle");
    let mut query = |token| command(&mut client, &interrupt, token, QueryDevice::default());
    assert_eq!(query(1), 0);
    let mut fault = nic.fault(FAILS).unwrap();
    assert_eq!(query(2), CmdStatus::NoResources.to_raw());
    assert_eq!(fault.fired(), Ok(1));
    assert_eq!(query(3), CmdStatus::NoResources.to_raw());
    let statuses = fault.end().unwrap();
    assert_eq!((statuses.len(), statuses[0].fired), (1, 2));
    // The rule has ended when `end` returns.
    assert_eq!(query(4), 0);
    assert_eq!(names(&nic), [""; 0]);
    drop(nic.fault(FAILS).unwrap());
    assert_eq!(query(5), 0);
    let idle = nic.fault(FAILS).unwrap().end();
    assert_eq!(idle.unwrap_err(), "never fired: fails");
    // Two handles cannot have rules of one name, and the first stays.
    let first = nic.fault(FAILS).unwrap();
    assert!(nic.fault(FAILS).unwrap_err().contains("already"));
    assert_eq!(query(6), CmdStatus::NoResources.to_raw());
    first.end().unwrap();
}

/// Connects, and disconnects in one of several ways. Errors of the connection are ignored.
fn vanish(socket: &Path, way: usize, name: &str) {
    let Ok(mut stream) = UnixStream::connect(socket) else {
        return;
    };
    let line = tied(name);
    let mut answer = String::new();
    let _ = match way {
        // In the middle of a request, and before the last byte of a request.
        0 => stream.write_all(&line.as_bytes()[..line.len() / 2]),
        1 => stream.write_all(&line.as_bytes()[..line.len() - 1]),
        // Before the answer.
        2 => stream.write_all(line.as_bytes()),
        // In the middle of the answer.
        3 => stream
            .write_all(line.as_bytes())
            .and_then(|()| stream.read_exact(&mut [0; 9])),
        // After the answer.
        4 => stream
            .write_all(line.as_bytes())
            .and_then(|()| BufReader::new(&stream).read_line(&mut answer).map(drop)),
        // Without reading long replies, and with a kept capture.
        _ => (0..50).try_for_each(|_| {
            stream.write_all(b"{\"command\":\"contexts\"}\n{\"command\":\"capture-begin\"}\n")
        }),
    };
}

#[test]
fn clients_that_disconnect_at_any_time_leave_no_rule() {
    let (_dir, _process, mut client, interrupt, nic, socket) = start("rules-vanish");
    add(&nic, STAYS);
    let over = AtomicBool::new(false);
    let (passed, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut token = 0;
            while !over.load(Ordering::Relaxed) {
                token += 1;
                let status = command(&mut client, &interrupt, token, QueryDevice::default());
                if status == 0 {
                    passed.store(true, Ordering::Relaxed);
                } else {
                    // A rule of a client that is still connected was in force.
                    assert_eq!(status, CmdStatus::NoResources.to_raw());
                    failed.store(true, Ordering::Relaxed);
                }
            }
        });
        // True once a command has passed and another has failed. On a busy machine that may take
        // more than 60 rounds.
        let met = || passed.load(Ordering::Relaxed) && failed.load(Ordering::Relaxed);
        thread::scope(|scope| {
            for thread in 0..8 {
                let (socket, met) = (&socket, &met);
                scope.spawn(move || {
                    for round in (0..6000).take_while(|round| *round < 60 || !met()) {
                        vanish(socket, (thread + round) % 6, &format!("{thread}.{round}"));
                    }
                });
            }
        });
        settle(&nic, &["stays"]);
        over.store(true, Ordering::Relaxed);
        traffic.join().unwrap();
        assert!(met(), "passed {passed:?}, failed {failed:?}");
    });
    assert_eq!(
        command(&mut client, &interrupt, 1 << 20, QueryDevice::default()),
        0
    );
    let statuses = nic.rules().unwrap();
    assert_eq!(
        (statuses[0].matched, statuses[0].while_connected),
        (0, false)
    );
}

/// All sets of rules of a connection end with it, and none before.
#[test]
fn several_sets_of_rules_of_one_connection_end_together() {
    let (_dir, _process, mut client, interrupt, nic, socket) = start("rules-two");
    add(&nic, STAYS);
    for round in 0..3 {
        let stream = UnixStream::connect(&socket).unwrap();
        let mut answers = BufReader::new(&stream);
        let mut said = |line: &str| {
            (&stream).write_all(line.as_bytes()).unwrap();
            let mut answer = String::new();
            answers.read_line(&mut answer).unwrap();
            serde_json::from_str::<serde_json::Value>(&answer).unwrap()["ok"] == true
        };
        let sets = ["first", "second", "third"].map(|name| format!("{name}-{round}"));
        for set in &sets {
            assert!(said(&tied(set)), "{set}");
        }
        // A set that is refused, because its name is in use, removes nothing.
        assert!(!said(&tied(&sets[0])));
        // A set that is not tied to the connection stays, and the others remain tied.
        let free = format!("free-{round}");
        let set = read_toml(&STAYS.replace("\"stays\"", &format!("{free:?}"))).unwrap();
        let add = ControlRequest::FaultAdd {
            set,
            while_connected: false,
        };
        assert!(said(&add.to_line()));
        let mut wanted = vec!["stays"];
        wanted.extend(sets.iter().map(String::as_str));
        wanted.push(&free);
        assert_eq!(names(&nic), wanted);
        let status = command(
            &mut client,
            &interrupt,
            2 * round + 1,
            QueryDevice::default(),
        );
        assert_eq!(status, CmdStatus::NoResources.to_raw());
        drop(stream);
        settle(&nic, &["stays", &free]);
        let _: verbena_protocol::RulesReply = nic
            .request(&ControlRequest::FaultRemove { name: free })
            .unwrap();
        let status = command(
            &mut client,
            &interrupt,
            2 * round + 2,
            QueryDevice::default(),
        );
        assert_eq!(status, 0, "round {round}");
    }
}

/// Pseudo-random numbers, which are the same in each run.
struct RequestRng(Rng);

impl RequestRng {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }
}

/// Returns the request with random errors.
fn spoilt(rng: &mut RequestRng, line: &[u8]) -> Vec<u8> {
    let mut line = line.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(line.len());
        match rng.below(6) {
            0 => line[at] ^= 1 << rng.below(8),
            1 => line.truncate(at.max(1)),
            2 => drop(line.splice(at..at, b"9999999999999999999999e999".iter().copied())),
            3 => drop(line.splice(at..at, vec![b'['; 5000])),
            4 => drop(line.splice(at..at, [0xff, 0xfe, 0])),
            _ => {
                let to = at + rng.below(line.len() - at);
                let copy = line[at..to].to_vec();
                drop(line.splice(at..at, copy));
            }
        }
    }
    line.retain(|byte| *byte != b'\n');
    line.push(b'\n');
    line
}

#[test]
fn invalid_requests_get_a_reply_and_change_nothing() {
    let (_dir, _process, mut client, interrupt, nic, socket) = start("rules-nonsense");
    add(&nic, STAYS);
    let before = nic.rules().unwrap();
    let mut rng = RequestRng(Rng::new(12));
    let (mut refused, mut taken) = (0, 0);
    let two = FAILS.to_owned() + &STAYS.replace("version = 1", "");
    let set = read_toml(&two.replace("\"stays\"", "\"other\"")).unwrap();
    let while_connected = true;
    let line = ControlRequest::FaultAdd {
        set,
        while_connected,
    }
    .to_line();
    for _ in 0..40 {
        let stream = UnixStream::connect(&socket).unwrap();
        let mut answers = BufReader::new(&stream);
        for _ in 0..25 {
            (&stream)
                .write_all(&spoilt(&mut rng, line.as_bytes()))
                .unwrap();
            let mut answer = String::new();
            answers.read_line(&mut answer).unwrap();
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            if answer["ok"] == true {
                // The request is still valid: the error is in a name, or in a number with a range.
                taken += 1;
                (&stream)
                    .write_all(b"{\"command\":\"fault-clear\"}\n")
                    .unwrap();
                answers.read_line(&mut String::new()).unwrap();
                add(&nic, STAYS);
            } else {
                assert!(!answer["error"].as_str().unwrap().is_empty());
                refused += 1;
            }
            assert_eq!(nic.rules().unwrap(), before);
        }
    }
    assert!(
        refused > 500 && refused + taken == 1000,
        "{refused} {taken}"
    );
    assert_eq!(
        command(&mut client, &interrupt, 7, QueryDevice::default()),
        0
    );
}

/// Returns the reply that a program of another user gets. Every user may enter the directory of the
/// test's socket.
fn as_nobody(socket: &Path) -> String {
    let program = "import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except OSError as e:
    sys.exit(print(type(e).__name__))
try:
    s.sendall(sys.argv[2].encode())
except BrokenPipeError:
    pass  # The NIC has already refused the connection.
print(s.makefile().readline())";
    let output = Command::new("python3")
        .args(["-c", program])
        .arg(socket)
        .arg(tied("nobody's"))
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn other_users_cannot_add_rules() {
    let (dir, _process, _client, _interrupt, nic, socket) = start("rules-owner");
    assert!(
        rustix::process::geteuid().is_root(),
        "this test needs root, to run a program as another user"
    );
    let everybody = |path: &Path| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    };
    everybody(&dir.0);
    // The mode of the socket lets only its owner connect.
    assert_eq!(as_nobody(&socket).trim(), "PermissionError");
    // If every user can connect, the NIC checks the user.
    everybody(&socket);
    let reply = as_nobody(&socket);
    assert!(
        reply.contains("only root and the user who started the NIC may ask"),
        "{reply}"
    );
    assert_eq!(names(&nic), [""; 0]);
}
