// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files with errors of every kind: they are refused with the line of the error, and never cause a
//! panic. Accepted files are checked.

use verbena_faults::{RuleSet, RuleTable};
use verbena_lab_daemon::{is_clear, is_good};
use verbena_lab_transport::Rng;
use verbena_protocol::{read_rules, read_toml};

/// A stream of random decisions, the same in each run.
struct FileRng(Rng);

impl FileRng {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n.max(1) as u64) as usize
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const TOML: &str = r#"version = 1
seed = 7

[[rule]]
name = "third packet"
match = { opcode = ["RDMA WRITE", "SEND"], packet_of_message = 3, limit = 1 }
action = "drop"

[[rule]]
name = "status"
optional = true
match = { on = "send", opcode = "RDMA_WRITE", nth = 2 }
action = { complete = { status = "GENERAL_ERR", vendor_err = 3073 } }

[[rule]]
name = "key"
action = { corrupt = { field = "rkey", value = 5, icrc = "right" } }
[rule.match]
opcode = "RDMA WRITE First"
probability = 0.5
while = "status"
"#;

fn json() -> String {
    serde_json::to_string_pretty(&read_toml(TOML).unwrap()).unwrap()
}

/// Malformed and large numbers, known and unknown names, deep nesting, and bytes of all kinds.
const PIECES: &[&str] = &[
    "99999999999999999999999999",
    "-1",
    "1e999",
    "nan",
    "inf",
    "0x10",
    "1_0",
    "0.0",
    "true",
    "null",
    "18446744073709551615",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "{",
    "}",
    "[",
    "]",
    ",",
    "=",
    ":",
    "#",
    "\n",
    "\r",
    "\t",
    " ",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "\\",
    "\\u0000",
    "\\ud800",
    "a.b.c",
    "1979-05-27T07:32:00Z",
    "[[rule]]\n",
    "[rule.match]\n",
    "name = \"third packet\"\n",
    "\"name\": \"key\",",
    "version = 1\n",
    "nth = 1",
    "qp = 16777216",
    "psn = 1, packet = 1",
    "on = \"time\"",
    "on = \"command\"",
    "action = \"fatal\"\n",
    "\"action\": \"fatal\",",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "{a={a={a={a={a={a={a={a=",
    "nht = 1",
    "{}",
    "[]",
];

fn spoilt(rng: &mut FileRng, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        let to = (at + rng.below(12)).min(bytes.len());
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            2 => drop(bytes.drain(at..to)),
            3 => drop(bytes.splice(at..at, [0xff, 0xc3])),
            4 => {
                let from = rng.below(bytes.len() + 1);
                let copy = bytes[from.min(to)..from.max(to)].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => drop(bytes.splice(at..to, rng.of(PIECES).bytes())),
        }
    }
    bytes
}

#[test]
fn randomly_damaged_files_are_refused_with_a_line() {
    let json = json();
    let mut rng = FileRng(Rng::new(12));
    let (mut good, mut bad) = (0, 0);
    for round in 0..30_000 {
        let file = spoilt(&mut rng, if round % 2 == 0 { TOML } else { &json });
        match read_rules(&file) {
            Ok(set) => {
                is_good(&set);
                good += 1;
            }
            Err(error) => {
                is_clear(&error, &file);
                bad += 1;
            }
        }
    }
    // Some files are accepted, and many are refused.
    assert!(good > 300 && bad > 10_000, "{good} {bad}");
}

#[test]
fn a_truncated_file_is_refused_or_has_fewer_rules() {
    for text in [TOML, &json()] {
        let whole = read_rules(text.as_bytes()).unwrap();
        for end in 0..text.len() {
            let file = &text.as_bytes()[..end];
            match read_rules(file) {
                Ok(set) => {
                    is_good(&set);
                    assert!(set.rule.len() <= whole.rule.len());
                }
                Err(error) => is_clear(&error, file),
            }
        }
    }
}

#[test]
fn a_refused_rule_changes_no_other_rules() {
    let json = json();
    let mut rng = FileRng(Rng::new(13));
    let mut table = RuleTable::default();
    let mut refused = 0;
    table.add(&read_toml(TOML).unwrap(), None, 0, 0).unwrap();
    let before = table.statuses();
    for _ in 0..5_000 {
        // The NIC gets rules as JSON in requests, without the checks of files.
        let Ok(set) = serde_json::from_slice::<RuleSet>(&spoilt(&mut rng, &json)) else {
            continue;
        };
        if table.add(&set, Some(1), 0, 0).is_err() {
            refused += 1;
        } else {
            table.remove_of_owner(1);
        }
        assert_eq!(table.statuses(), before);
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn deep_nesting_is_refused_without_a_stack_overflow() {
    let deep = |open: &str, n| open.repeat(n);
    for n in [150, 250, 1_000, 100_000] {
        for file in [
            format!("version = 1\nseed = {}", deep("[", n)),
            format!("version = 1\nseed = {}", deep("[\n", n)),
            format!("version = 1\nseed = {}", deep("{a=", n)),
            format!("version = 1\n[[rule]]\n{}b = 1", deep("a.", n)),
            format!("version = 1\n[{}b]", deep("a.", n)),
            format!(
                "version = 1\nseed = {}",
                deep("[\"\"\"\n[[rule]]\n\"\"\",", n)
            ),
            format!("version = 1\nseed = {}", deep("[[rule]]\n", n)),
            format!("{{\"version\": {}", deep("[", n)),
            format!("{{\"version\": {}", deep("{\"a\":", n)),
        ] {
            let error = read_rules(file.as_bytes()).unwrap_err();
            is_clear(&error, file.as_bytes());
        }
    }
    // Many rules are not deeply nested.
    let rules: Vec<String> = (0..256)
        .map(|n| format!("[[rule]] # {n}\nname = \"a.{n}\"\nmatch = {{ opcode = [\"SEND\"] }}\naction = {{ delay_us = 5 }}\n# ...\n"))
        .collect();
    let set = read_toml(&format!("version = 1\n{}", rules.concat())).unwrap();
    assert_eq!(set.rule.len(), 256);
    is_good(&set);
}

#[test]
fn repeated_fields_and_invalid_text_are_refused_with_their_line() {
    for (file, expected) in [
        (&b"version = 1\nversion = 1\n"[..], "line 2: "),
        (b"version = 1\n[[rule]]\nname = \"x\"\nname = \"y\"\naction = \"drop\"\n", "line 4: "),
        (b"version = 1\n[[rule]]\nname = \"x\"\naction = \"drop\"\n[[rule]]\nname = \"x\"\naction = \"drop\"\n", "line 6: "),
        (b"{\"version\": 1,\n\"seed\": 1,\n\"seed\": 2}", "line 3: seed: is there twice"),
        (b"{\"version\": 1, \"rule\": [{\"name\": \"x\",\n\"action\": \"drop\",\n\"match\": {\"nth\": 1,\n\"nth\": 2}}]}", "line 4: nth: is there twice"),
        (b"version = 1\nseed = 7\n# \xff\n", "line 3: is not UTF-8"),
        (b"version = 1\nseed = -1\n", "line 2: seed: "),
        (b"version = 1\nseed = 18446744073709551616\n", "line 2: "),
        (b"{\"version\": 1,\n\"seed\": 1e400}", "line 2: "),
        (b"", "line 1: "),
        (b"\0", "line 1: "),
        (b"{", "line 1: "),
    ] {
        let error = read_rules(file).unwrap_err();
        let text = String::from_utf8_lossy(file);
        assert!(error.starts_with(expected), "{text}: {error}");
        is_clear(&error, file);
    }
}
