// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The protocol of the control socket of the NIC, for both of its ends.
//!
//! Each message is one line with a JSON object. A [`ControlRequest`] is answered by a
//! [`ReplyEnvelope`], which is
//! `"ok": true` with the answer, or `"ok": false` with an `"error"`. [`QueryReply`] ties each request
//! without parameters to the type of its answer.

mod capture;
mod contexts;
mod faults;
mod handle;
mod hex;
mod impair;
mod peers;
mod port;
mod recorder;
mod rules;
mod status;
mod strict;

pub use capture::{
    CaptureEndReply, CaptureLinkLayer, CaptureRecord, CaptureReply, FrameDirection, MAX_FRAME_BYTES,
};
pub use contexts::{ContextFields, ContextsReply, Cq, Eq, Mr, ObjectContext, Qp, Srq};
pub use faults::RulesReply;
pub use handle::{FaultHandle, Nic};
pub use impair::{Impairment, ImpairmentCounters, ImpairmentsReply, UplinkImpairment};
pub use peers::{PeerSummary, PeersReply, MAX_PEERS};
pub use port::{
    GidTableEntry, MulticastGroup, PortReply, PortStatus, QpDetails, QpReply, RefusedGid,
    UnreachableRam,
};
pub use recorder::{RecordFullReply, RecorderReply, RecordingReply};
pub use rules::{read_json, read_rules, read_toml};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
pub use status::{EngineCounters, NicStats, StatsReply, StatusReply};
use std::io::{self, BufRead, BufReader, Read, Write};
use verbena_faults::RuleSet;
pub use verbena_faults::{MAX_DELAY_NS, MILLION, MIN_RATE_BPS};

/// Longest request, in bytes.
pub const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// Names of all requests.
const COMMANDS: [&str; 19] = [
    "stats",
    "contexts",
    "status",
    "port",
    "peers",
    "capture",
    "capture-begin",
    "capture-end",
    "impairments",
    "impair",
    "qp",
    "faults",
    "fault-add",
    "fault-remove",
    "fault-clear",
    "recorder",
    "record",
    "recording",
    "record-full",
];

/// A request to the NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum ControlRequest {
    /// Asks for the counters. The answer is [`StatsReply`].
    Stats,
    /// Asks for the existing objects. The answer is [`ContextsReply`].
    Contexts,
    /// Asks for the state of the device. The answer is [`StatusReply`].
    Status,
    /// Asks for the port. The answer is [`PortReply`].
    Port,
    /// Asks for the peers of all QPs. The answer is [`PeersReply`].
    Peers,
    /// Starts a capture. The answer is [`CaptureReply`] and then [`CaptureRecord`]s.
    Capture,
    /// Starts a capture whose records the NIC keeps, for as long as this connection exists. The
    /// answer is [`CaptureReply`].
    #[serde(rename = "capture-begin")]
    CaptureBegin,
    /// Ends such a capture. The answer is [`CaptureEndReply`] with the kept records.
    #[serde(rename = "capture-end")]
    CaptureEnd,
    /// Asks for the impairments of uplinks. The answer is [`ImpairmentsReply`].
    Impairments,
    /// Sets the impairment of uplinks. The answer has the impairments afterwards.
    Impair {
        /// Number of the uplink; None for all of them.
        uplink: Option<u8>,
        /// The impairment; None removes it.
        with: Option<Impairment>,
    },
    /// Asks for one QP. The answer is [`QpReply`].
    Qp {
        /// Number of the QP.
        number: u32,
    },
    /// Asks for the fault rules. The answer is [`RulesReply`].
    Faults,
    /// Adds rules, all or none. The answer has the rules afterwards.
    #[serde(rename = "fault-add")]
    FaultAdd {
        /// The rules, in the form of a file.
        set: RuleSet,
        /// True if the rules are removed when this connection closes.
        #[serde(default)]
        while_connected: bool,
    },
    /// Removes a rule. The answer has the rules afterwards.
    #[serde(rename = "fault-remove")]
    FaultRemove {
        /// Name of the rule.
        name: String,
    },
    /// Removes all rules.
    #[serde(rename = "fault-clear")]
    FaultClear,
    /// Asks for the state of the flight recorder. The answer is [`RecorderReply`].
    Recorder,
    /// Switches the flight recorder on or off. The answer has the state afterwards.
    Record {
        /// Number of entries to keep; 0 switches the recorder off.
        entries: u64,
    },
    /// Asks for the recording. The answer is [`RecordingReply`].
    Recording,
    /// Starts a full recording of the device model. The answer is [`RecordFullReply`] and then the
    /// bytes of a file.
    #[serde(rename = "record-full")]
    RecordFull,
}

/// The answer to a request without parameters.
pub trait QueryReply: Serialize + DeserializeOwned {
    /// The request that this type answers.
    const REQUEST: ControlRequest;
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyEnvelope<T> {
    /// True if the request succeeded.
    pub ok: bool,
    /// The error, if the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The answer, if the request succeeded.
    #[serde(flatten)]
    pub answer: Option<T>,
}

impl<T> From<Result<T, String>> for ReplyEnvelope<T> {
    fn from(result: Result<T, String>) -> Self {
        let ok = result.is_ok();
        let (answer, error) = match result {
            Ok(answer) => (Some(answer), None),
            Err(error) => (None, Some(error)),
        };
        Self { ok, error, answer }
    }
}

impl<T: Serialize> ReplyEnvelope<T> {
    /// Returns the line with this reply.
    pub fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self)
            .unwrap_or_else(|e| format!("{{\"ok\":false,\"error\":\"{e}\"}}"));
        line.push('\n');
        line
    }
}

impl<T: DeserializeOwned> ReplyEnvelope<T> {
    /// Parses the line of a reply. Fails with the error of the NIC, or if the line is no such
    /// reply.
    pub fn from_line(line: &str) -> Result<T, String> {
        let reply: Self =
            serde_json::from_str(line).map_err(|e| format!("the answer is not JSON: {e}"))?;
        match (reply.ok, reply.answer) {
            (true, Some(answer)) => Ok(answer),
            (true, None) => Err(String::from(
                "the answer is of another kind: is the NIC of another version?",
            )),
            (false, _) => Err(reply
                .error
                .unwrap_or_else(|| String::from("the NIC gave no reason"))),
        }
    }
}

impl ControlRequest {
    /// Returns the line with this request.
    pub fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }

    /// Sends the request over a connection and waits for the line with the reply. The line is cut
    /// off or empty if the other end has closed the connection.
    ///
    /// # Errors
    ///
    /// The connection fails.
    pub fn exchange<C: Read + Write>(&self, over: &mut BufReader<C>) -> io::Result<String> {
        over.get_mut().write_all(self.to_line().as_bytes())?;
        let mut line = String::new();
        over.read_line(&mut line)?;
        Ok(line)
    }

    /// Parses the line of a request. The error names the fault of the line.
    pub fn from_line(line: &[u8]) -> Result<Self, String> {
        let strict::StrictJson(value) =
            serde_json::from_slice(line).map_err(|e| format!("not JSON: {e}"))?;
        let name = value["command"].as_str().unwrap_or_default();
        if !COMMANDS.contains(&name) {
            return Err(format!("\"command\" must be one of {COMMANDS:?}"));
        }
        let name = String::from(name);
        serde_json::from_value(value).map_err(|e| format!("{name:?}: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StatusReply {
        StatusReply {
            version: String::from("0.1.0"),
            abi_version: 4,
            ready: true,
            fatal: false,
            resetting: false,
            fatal_syndrome: None,
            bus_master: true,
            guest_ram: 1 << 31,
        }
    }

    #[test]
    fn requests_are_read_back_unchanged() {
        let all = [
            ControlRequest::Stats,
            ControlRequest::Contexts,
            ControlRequest::Status,
            ControlRequest::Port,
            ControlRequest::Peers,
            ControlRequest::Capture,
            ControlRequest::CaptureBegin,
            ControlRequest::CaptureEnd,
            ControlRequest::Impairments,
            ControlRequest::Impair {
                uplink: Some(1),
                with: Some(Impairment {
                    delay_ns: 7,
                    ..Impairment::default()
                }),
            },
            ControlRequest::Qp { number: 17 },
            ControlRequest::Faults,
            ControlRequest::FaultAdd {
                set: read_toml("version = 1\n[[rule]]\nname = \"x\"\naction = \"drop\"\n").unwrap(),
                while_connected: true,
            },
            ControlRequest::FaultRemove {
                name: String::from("x"),
            },
            ControlRequest::FaultClear,
            ControlRequest::Recorder,
            ControlRequest::Record { entries: 4096 },
            ControlRequest::Recording,
            ControlRequest::RecordFull,
        ];
        assert_eq!(all.len(), COMMANDS.len());
        for (request, name) in all.into_iter().zip(COMMANDS) {
            assert!(request.to_line().contains(name));
            assert_eq!(
                ControlRequest::from_line(request.to_line().as_bytes()),
                Ok(request)
            );
        }
        let off = ControlRequest::Impair {
            uplink: None,
            with: None,
        };
        assert_eq!(
            ControlRequest::from_line(b"{\"command\":\"impair\"}"),
            Ok(off)
        );
        let misspelt = b"{\"command\":\"impair\",\"with\":{\"los_ppm\":1}}";
        assert!(ControlRequest::from_line(misspelt)
            .unwrap_err()
            .contains("los_ppm"));
        let error = ControlRequest::from_line(b"{\"command\":\"qp\"}").unwrap_err();
        assert!(error.contains("number"), "{error}");
        assert_eq!(ControlRequest::Stats.to_line(), "{\"command\":\"stats\"}\n");
        assert!(ControlRequest::from_line(b"nonsense")
            .unwrap_err()
            .starts_with("not JSON"));
        assert!(ControlRequest::from_line(b"{\"command\":1}")
            .unwrap_err()
            .contains("must be"));
        assert!(ControlRequest::from_line(b"{}")
            .unwrap_err()
            .contains("must be"));
    }

    #[test]
    fn replies_are_read_back_unchanged() {
        let reply = ReplyEnvelope::from(Ok(status()));
        assert_eq!(
            ReplyEnvelope::<StatusReply>::from_line(&reply.to_line()),
            Ok(status())
        );
        let refused = ReplyEnvelope::<StatusReply>::from(Err(String::from(
            "too many requests are waiting: try again",
        )));
        assert_eq!(
            refused.to_line(),
            "{\"ok\":false,\"error\":\"too many requests are waiting: try again\"}\n"
        );
        assert_eq!(
            ReplyEnvelope::<StatusReply>::from_line(&refused.to_line()),
            Err(String::from("too many requests are waiting: try again"))
        );
    }

    #[test]
    fn a_reply_of_another_kind_is_an_error() {
        let reply = ReplyEnvelope::from(Ok(status())).to_line();
        assert!(ReplyEnvelope::<ContextsReply>::from_line(&reply)
            .unwrap_err()
            .contains("another kind"));
        assert!(ReplyEnvelope::<StatusReply>::from_line("{\"ok\":false}")
            .unwrap_err()
            .contains("no reason"));
        assert!(ReplyEnvelope::<StatusReply>::from_line("")
            .unwrap_err()
            .contains("not JSON"));
    }

    #[test]
    fn counters_of_port_and_process_are_one_object() {
        let stats = NicStats {
            port: [(String::from("rx_packets"), 5)].into(),
            engine: EngineCounters {
                engine_slices: 7,
                ..EngineCounters::default()
            },
        };
        let line = ReplyEnvelope::from(Ok(ContextsReply { contexts: vec![] })).to_line();
        assert_eq!(line, "{\"ok\":true,\"contexts\":[]}\n");
        let reply = ReplyEnvelope::from(Ok(StatsReply { stats }));
        let value: serde_json::Value = serde_json::from_str(&reply.to_line()).unwrap();
        assert_eq!(value["stats"]["rx_packets"], 5);
        assert_eq!(value["stats"]["engine_slices"], 7);
        assert_eq!(
            ReplyEnvelope::from_line(&reply.to_line()),
            Ok(reply.answer.unwrap())
        );
    }
}
