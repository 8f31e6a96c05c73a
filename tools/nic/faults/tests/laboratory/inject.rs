// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules of the command INJECT_FAULT.

use super::rules;
use verbena_abi::cqe::WcStatus::GeneralErr;
use verbena_faults::{Effect, InjectedFault, Rule, RuleTable, MAX_RULES};

fn inject(table: &mut RuleTable, what: InjectedFault) -> (bool, Option<Effect>) {
    table.inject(&Rule::injected(what), 5)
}

#[test]
fn faults_are_bounded_and_those_that_have_happened_give_way() {
    let mut table = RuleTable::default();
    for n in 0..2 * MAX_RULES as u32 {
        let effect = Some(Effect::CqFault(n));
        assert_eq!(inject(&mut table, InjectedFault::Cq(n)), (true, effect));
    }
    assert_eq!(
        (table.statuses().len(), table.added_count()),
        (MAX_RULES, 0)
    );
    for n in 0..MAX_RULES as u32 {
        assert_eq!(
            inject(&mut table, InjectedFault::Send(n, GeneralErr)),
            (true, None)
        );
    }
    // All of them wait for a send.
    let one_more = InjectedFault::Send(MAX_RULES as u32, GeneralErr);
    assert_eq!(inject(&mut table, one_more), (false, None));
    // One of the same name takes its place, and users have room as before.
    assert!(inject(&mut table, InjectedFault::Send(7, GeneralErr)).0);
    table
        .add(
            &rules("[[rule]]\nname = \"x\"\naction = \"drop\"\n"),
            None,
            0,
            0,
        )
        .unwrap();
    assert_eq!(
        (table.statuses().len(), table.added_count()),
        (MAX_RULES + 1, 1)
    );
    table.reset();
    assert_eq!((table.statuses().len(), table.added_count()), (1, 1));
}

#[test]
fn each_kind_is_written_as_a_file_has_it() {
    let at_once = "match = { on = \"time\", after_ms = 0";
    for (what, file) in [
        (
            InjectedFault::Send(16, GeneralErr),
            "name = \"inject send 16\"\nmatch = { on = \"send\", qp = 16, limit = 1 }\n\
             action = { complete = \"IBV_WC_GENERAL_ERR\" }"
                .to_owned(),
        ),
        (
            InjectedFault::Srq(3),
            format!("name = \"inject srq 3\"\n{at_once}, srq = 3 }}\naction = \"kill_srq\""),
        ),
        (
            InjectedFault::Cq(4),
            format!("name = \"inject cq 4\"\n{at_once}, cq = 4 }}\naction = \"kill_cq\""),
        ),
        (
            InjectedFault::Device,
            format!("name = \"inject device\"\n{at_once} }}\naction = \"fatal\""),
        ),
    ] {
        let set = rules(&format!("[[rule]]\n{file}\noptional = true\n"));
        assert_eq!(set.rule, [Rule::injected(what)]);
        set.check().unwrap();
    }
}
