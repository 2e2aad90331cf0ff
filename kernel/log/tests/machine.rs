//! What each entry does, and what is refused: tables over the state machine.

use crate::common::*;
use bytes::Bytes;
use hop_log::{
    CellNumber, Effect, End, Fate, Generation, Ledger, Office, Payload, Record, RecordNumber, Refusal,
    Sequence, State,
};
use hop_words::id::{CellId, Incarnation, Tenure};
use hop_words::replica::ReplicaRole;

fn lost_cells(log: &Log) -> Vec<Vec<CellId>> {
    log.state.losses().map(|l| l.cells.clone()).collect()
}

fn answered(number: u64, recorded: bool) -> Effect {
    Effect::Answered {
        number: CellNumber(number),
        recorded,
    }
}

mod members {
    use super::*;
    use hop_log::Entry;

    #[test]
    fn an_incarnation_joins_once_and_never_comes_back() {
        let mut log = Log::new();
        assert_eq!(log.does(&join(2)), Effect::Joined);
        log.again(&join(2));
        assert_eq!(log.does(&left(2)), Effect::Left { executor: false });
        log.again(&left(2));
        assert_eq!(log.refuses(&join(2)), Refusal::UsedIncarnation(Incarnation(2)));
        assert_eq!(log.refuses(&left(9)), Refusal::NoMember(Incarnation(9)));
        assert!(log.state.has_left(Incarnation(2)) && !log.state.has_left(Incarnation(1)));
        log.does(&join(5));
        assert_eq!(log.state.highest_incarnation(), Incarnation(5));
    }

    #[test]
    fn replicas_that_start_together_join_in_any_order() {
        let mut log = Log::new();
        log.does(&join(3));
        log.does(&join(1));
        log.does(&left(1));
        assert_eq!(log.refuses(&join(1)), Refusal::UsedIncarnation(Incarnation(1)));
        log.does(&join(100));
        log.does(&join(99));
        assert_eq!(log.refuses(&join(50)), Refusal::UsedIncarnation(Incarnation(50)));
        log.does(&join(110));
        assert_eq!(log.refuses(&join(90)), Refusal::UsedIncarnation(Incarnation(90)));
    }

    #[test]
    fn a_member_becomes_hot_but_changes_neither_seat_nor_node() {
        let mut log = Log::new();
        log.does(&join(1));
        let mut change = join(1);
        if let Entry::Join { hot, .. } = &mut change {
            *hot = true;
        }
        log.does(&change);
        assert_eq!(log.state.role(Incarnation(1)), Some(ReplicaRole::Hot));
        log.does(&tenure(1, 1));
        assert_eq!(log.state.role(Incarnation(1)), Some(ReplicaRole::Executor));
        assert_eq!(log.state.role(Incarnation(2)), None);
        log.does(&join(2));
        log.does(&tenure(2, 2));
        let role = log.state.role(Incarnation(1));
        assert_eq!(role, Some(ReplicaRole::Warm), "its process is gone");
        if let Entry::Join { node, .. } = &mut change {
            *node = "elsewhere".into();
        }
        log.refuses(&change);
    }
}

mod hot_standby {
    use super::*;

    #[test]
    fn a_standby_that_is_hot_stays_so_else_the_first_is_chosen() {
        let mut log = Log::new();
        assert_eq!(log.state.hot_standby(), None);
        log.does(&join(1));
        log.does(&tenure(1, 1));
        assert_eq!(
            log.state.hot_standby(),
            None,
            "the executor has the variables itself"
        );
        log.does(&join(2));
        log.does(&join(3));
        assert_eq!(log.state.hot_standby(), Some(Incarnation(2)));
        let third = Incarnation(3);
        let hot = log.state.members()[&third].entry(third, true);
        log.does(&hot);
        assert_eq!(log.state.hot_standby(), Some(third));
        log.does(&tenure(2, 3));
        assert_eq!(log.state.hot_standby(), Some(Incarnation(1)), "it executes now");
        // Its word came after its election, and changes nothing.
        log.again(&hot);
        log.does(&tenure(3, 2));
        assert_eq!(log.state.role(third), Some(ReplicaRole::Warm));
    }
}

mod tenures {
    use super::*;

    #[test]
    fn tenures_follow_one_another_and_only_members_hold_them() {
        let mut log = Log::of_three();
        log.again(&tenure(1, 1));
        let not_next = Refusal::NotNextTenure {
            named: Tenure(1),
            current: Tenure(1),
        };
        assert_eq!(log.refuses(&tenure(1, 2)), not_next);
        assert!(matches!(
            log.refuses(&tenure(3, 2)),
            Refusal::NotNextTenure { .. }
        ));
        assert_eq!(log.refuses(&tenure(2, 4)), Refusal::NoMember(Incarnation(4)));
        log.does(&tenure(2, 3));
        assert_eq!(log.state.executor(), Some(Incarnation(3)));
    }

    #[test]
    fn everything_of_another_tenure_is_refused() {
        let mut log = Log::of_three();
        log.does(&tenure(2, 2));
        let late = [
            ended(1, 1),
            record(1, inline(1), 1),
            lost(1, 1),
            settled(1, 0),
            fresh(1),
            moved(1, 3),
            hibernated(1),
        ];
        for entry in late {
            let refusal = log.refuses(&entry);
            assert!(
                matches!(refusal, Refusal::OtherTenure { .. }),
                "{entry:?}: {refusal}"
            );
        }
        assert!(matches!(log.refuses(&ended(3, 1)), Refusal::OtherTenure { .. }));
        assert_eq!(log.state.sequence(), Sequence(0), "no place is taken");
    }

    #[test]
    fn acts_are_evaluated_once_and_in_order() {
        let mut log = Log::of_three();
        let out_of_order = Refusal::OutOfOrder {
            named: Sequence(2),
            next: Sequence(1),
        };
        assert_eq!(log.refuses(&at(2, ended(1, 2))), out_of_order);
        log.does(&at(1, ended(1, 1)));
        log.does(&at(2, fresh(1)));
        log.again(&at(1, ended(1, 1)));
        log.again(&at(1, ended(1, 7)));
        log.again(&at(2, fresh(1)));
        // A refused act has had its place, too.
        log.does(&at(3, ended(1, 2)));
        assert_eq!(log.refuses(&at(4, moved(1, 2))), Refusal::NotDurable(1));
        log.does(&at(5, record(1, inline(1), 2)));
        log.again(&at(4, moved(1, 2)));
        assert_eq!(log.state.executor(), Some(Incarnation(1)));
    }

    #[test]
    fn without_its_executor_a_tenure_is_over() {
        let mut log = Log::of_three();
        assert_eq!(log.does(&left(1)), Effect::Left { executor: true });
        assert_eq!(log.state.office(), &Office::Vacant { last: Tenure(1) });
        assert_eq!(log.refuses(&ended(1, 1)), Refusal::Vacant { current: Tenure(1) });
        log.does(&tenure(2, 2));
    }

    #[test]
    fn the_same_replica_goes_on_in_a_new_tenure() {
        let mut log = Log::of_three();
        log.does(&ended(1, 1));
        let opened = Effect::Opened {
            tenure: Tenure(2),
            executor: Incarnation(1),
            lost: vec![cell(1)],
        };
        assert_eq!(log.does(&tenure(2, 1)), opened);
        log.does(&at(1, ended(2, 2)));
    }

    #[test]
    fn a_hand_over_loses_nothing_or_is_refused() {
        let mut log = Log::of_three();
        log.does(&ended(1, 1));
        assert_eq!(log.refuses(&moved(1, 2)), Refusal::NotDurable(1));
        log.does(&record(1, in_folder(1), 1));
        assert_eq!(log.refuses(&moved(1, 2)), Refusal::NotDurable(1));
        log.does(&settled(1, 1));
        log.does(&ended_with(1, 2, inline(2)));
        assert_eq!(log.refuses(&moved(1, 4)), Refusal::NoMember(Incarnation(4)));
        let opened = log.does(&moved(1, 2));
        assert!(matches!(opened, Effect::Opened { tenure: Tenure(2), lost, .. } if lost.is_empty()));
        log.repeats();
    }
}

mod cells {
    use super::*;

    #[test]
    fn a_cell_is_answered_once_and_kept_until_it_is_heard() {
        let mut log = Log::of_three();
        assert_eq!(log.does(&ended(1, 1)), answered(1, false));
        log.repeats();
        log.again(&ended(1, 1));
        log.again(&lost(1, 1));
        let answer = log.state.answer(&cell(1)).unwrap();
        assert!(matches!(&answer.end, End::Ended { reply, last_output: 2, .. } if reply == "reply 1"));
        assert!(matches!(log.refuses(&heard(2, 1)), Refusal::HeardAhead { .. }));
        assert!(matches!(log.refuses(&heard(1, 2)), Refusal::HeardAhead { .. }));
        assert_eq!(log.does(&heard(1, 1)), Effect::Heard);
        log.again(&heard(1, 1));
        assert_eq!(log.state.answers().len(), 0);
    }

    #[test]
    fn a_request_of_an_older_tenure_is_lost_in_the_middle() {
        let mut log = Log::of_three();
        assert_eq!(log.state.fate(&cell(1), Tenure(1)), Fate::Run);
        log.does(&ended_with(1, 1, inline(1)));
        log.does(&tenure(2, 2));
        let first = Tenure(1);
        assert!(matches!(log.state.fate(&cell(1), first), Fate::Answered(_)));
        assert_eq!(log.state.fate(&cell(2), first), Fate::LostInTheMiddle);
        assert_eq!(log.state.fate(&cell(3), Tenure(2)), Fate::Run);
        assert_eq!(log.does(&lost(2, 2)), answered(2, false));
        let fate = log.state.fate(&cell(2), first);
        assert!(matches!(fate, Fate::Answered(a) if a.end == End::Lost { why: "node n1 is gone".into() }));
    }
}

mod records {
    use super::*;

    /// Its reply may never have reached the client, who would take the reply's word for the effects.
    #[test]
    fn an_answer_whose_effects_are_lost_is_lost_with_them() {
        let mut log = Log::of_three();
        log.does(&ended_with(1, 1, inline(1)));
        log.does(&ended(1, 2));
        log.does(&tenure(2, 2));
        assert_eq!(lost_cells(&log), [[cell(2)]]);
        assert!(log.state.answer(&cell(1)).is_some() && log.state.answer(&cell(2)).is_none());
        assert_eq!(log.state.fate(&cell(2), Tenure(1)), Fate::LostInTheMiddle);
        assert_eq!(log.does(&lost(2, 2)), answered(3, false), "by another number");
        let waits = |c: &CellId| *c == cell(2);
        assert!(
            Ledger::default().reopened(&log.state, waits).is_empty(),
            "the reply says so"
        );
        assert_eq!(Ledger::default().reopened(&log.state, |_| false), [cell(2)]);
    }

    #[test]
    fn what_is_answered_and_not_durable_is_named_as_lost() {
        let mut log = Log::of_three();
        assert_eq!(log.does(&ended_with(1, 1, inline(1))), answered(1, true));
        log.does(&ended(1, 2));
        log.does(&ended(1, 3));
        assert_eq!(log.state.durable_through(), CellNumber(1));
        log.does(&tenure(2, 2));
        assert_eq!(lost_cells(&log), [[cell(2), cell(3)]]);
        assert_eq!(log.state.restore().records, [&inline(1)]);
        assert_eq!(log.does(&heard(0, 2)), Effect::Heard);
        assert!(lost_cells(&log).is_empty());
        log.does(&tenure(3, 3));
        assert!(lost_cells(&log).is_empty(), "told once");
    }

    #[test]
    fn a_later_record_makes_the_cells_up_to_its_own_durable() {
        let mut log = Log::of_three();
        for number in 1..=3 {
            log.does(&ended(1, number));
        }
        log.does(&record(1, inline(1), 2));
        log.repeats();
        assert_eq!(log.state.durable_through(), CellNumber(2));
        for number in [1, 3] {
            let refusal = log.refuses(&record(1, inline(number), 3));
            assert!(matches!(refusal, Refusal::NotNextRecord { .. }), "{refusal}");
        }
        log.does(&record(1, inline(2), 1));
        assert_eq!(
            log.state.durable_through(),
            CellNumber(2),
            "an audit completes no cell"
        );
        log.does(&tenure(2, 2));
        assert_eq!(lost_cells(&log), [[cell(3)]]);
    }

    #[test]
    fn records_of_the_folder_count_once_they_are_settled() {
        let mut log = Log::of_three();
        log.does(&ended_with(1, 1, in_folder(1)));
        log.does(&ended_with(1, 2, in_folder(2)));
        let through = CellNumber(1);
        assert_eq!(log.does(&settled(1, 1)), Effect::Settled { through });
        assert_eq!(log.state.durable_through(), through);
        log.does(&tenure(2, 2));
        assert_eq!(lost_cells(&log), [[cell(2)]]);
        let restore = log.state.restore();
        assert_eq!((restore.settled.unwrap().upto.0, restore.records.len()), (1, 0));
        assert_eq!(log.state.records(), RecordNumber(2), "numbers are given once");
    }

    #[test]
    fn inline_records_behind_one_of_the_folder_go_with_it() {
        let mut log = Log::of_three();
        log.does(&ended_with(1, 1, in_folder(1)));
        log.does(&ended_with(1, 2, inline(2)));
        assert_eq!(log.state.durable_through(), CellNumber(0));
        log.does(&tenure(2, 2));
        assert_eq!(lost_cells(&log), [[cell(1), cell(2)]]);
        assert!(log.state.restore().records.is_empty());
    }

    #[test]
    fn the_settled_state_only_moves_forward() {
        let mut log = Log::of_three();
        log.does(&ended_with(1, 1, inline(1)));
        log.does(&ended_with(1, 2, inline(2)));
        assert!(matches!(
            log.refuses(&settled(1, 3)),
            Refusal::SettledAhead { .. }
        ));
        log.does(&settled(1, 2));
        log.again(&settled(1, 2));
        log.again(&settled(1, 1));
        log.does(&tenure(2, 2));
        assert_eq!(log.state.settled().unwrap().tenure, Tenure(1));
        log.does(&settled(2, 2));
        assert_eq!(log.state.settled().unwrap().tenure, Tenure(2));
        assert_eq!(log.state.unsettled_records().len(), 0);
    }

    #[test]
    fn a_hanging_store_fills_nobodys_memory() {
        let mut log = Log::of_three();
        let big = Record {
            payload: Payload::Inline {
                text: Bytes::from(vec![b'x'; hop_log::TAIL_MAX]),
                body: Bytes::new(),
            },
            ..inline(1)
        };
        assert_eq!(log.does(&ended_with(1, 1, big)), answered(1, true));
        // The end counts, and its record comes again once the store has caught up.
        assert_eq!(log.does(&ended_with(1, 2, inline(2))), answered(2, false));
        assert_eq!(
            log.refuses(&record(1, inline(2), 2)),
            Refusal::TailFull(hop_log::TAIL_MAX)
        );
        log.does(&settled(1, 1));
        log.does(&record(1, inline(2), 2));
        assert_eq!(log.state.durable_through(), CellNumber(2));
    }

    #[test]
    fn no_record_counts_that_builds_upon_a_refused_one() {
        let mut log = Log::of_three();
        assert_eq!(log.does(&ended_with(1, 1, inline(2))), answered(1, false));
        assert_eq!(log.does(&ended_with(1, 2, inline(3))), answered(2, false));
        log.does(&record(1, inline(1), 1));
        assert_eq!(log.state.durable_through(), CellNumber(1));
    }
}

mod restarts {
    use super::*;

    #[test]
    fn a_restart_empties_the_namespace() {
        let mut log = Log::of_three();
        log.does(&ended_with(1, 1, inline(1)));
        log.does(&settled(1, 1));
        log.does(&ended_with(1, 2, inline(2)));
        log.does(&ended(1, 3));
        assert_eq!(log.does(&fresh(1)), Effect::Fresh);
        assert_eq!(log.state.fresh_after(), RecordNumber(2));
        let restore = log.state.restore();
        assert_eq!((restore.settled, restore.records.len()), (None, 0));
        log.does(&ended_with(1, 4, inline(3)));
        log.does(&tenure(2, 2));
        assert!(lost_cells(&log).is_empty(), "the user gave them up");
        assert_eq!(log.state.restore().records, [&inline(3)]);
    }
}

mod hibernation {
    use super::*;

    #[test]
    fn a_kernel_sleeps_once_all_is_settled() {
        let mut log = Log::of_three();
        log.does(&ended(1, 1));
        assert_eq!(log.refuses(&hibernated(1)), Refusal::NotDurable(1));
        log.does(&record(1, inline(1), 1));
        assert_eq!(log.refuses(&hibernated(1)), Refusal::NotSettled(1));
        log.does(&settled(1, 1));
        assert_eq!(log.does(&hibernated(1)), Effect::Asleep);
        assert!(log.state.members().is_empty());
        assert!(matches!(log.refuses(&ended(1, 2)), Refusal::Vacant { .. }));
        let mut log = Log::from(log.state.at_rest());
        assert!(matches!(log.state.office(), Office::Asleep { .. }));
        log.does(&join(4));
        log.does(&tenure(2, 4));
        assert_eq!(log.state.restore().settled.unwrap().upto.0, 1);
        assert!(lost_cells(&log).is_empty());
    }
}

mod the_store {
    use super::*;

    #[test]
    fn a_lost_majority_loses_what_was_not_settled_by_name() {
        let mut log = Log::of_three();
        log.does(&ended_with(1, 1, inline(1)));
        log.does(&settled(1, 1));
        log.does(&ended_with(1, 2, inline(2)));
        let stored = log.state.at_rest();
        stored.sanity_check().unwrap();
        let mut ledger = Ledger::default();
        for number in 1..=3 {
            ledger.answered(CellNumber(number), cell(number));
        }
        ledger.settled(CellNumber(1));
        assert_eq!(ledger.len(), 2);

        let mut log = Log::from(stored.reopened(Generation(1), Incarnation(7)));
        assert_eq!(log.state.generation(), Generation(1));
        assert!(matches!(log.refuses(&join(7)), Refusal::UsedIncarnation(_)));
        log.does(&join(8));
        assert!(matches!(
            log.refuses(&tenure(2, 8)),
            Refusal::NotNextTenure { .. }
        ));
        log.does(&tenure(1_000_001, 8));
        assert_eq!(lost_cells(&log), [[cell(2)]], "its record went with the group");
        let lost = ledger.reopened(&log.state, |_| false);
        assert_eq!(lost, [cell(3), cell(2)], "the store has not heard of cell 3");
        assert!(ledger.is_empty());
        ledger.answered(CellNumber(2), cell(2));
        assert!(ledger.reopened(&log.state, |_| false).is_empty(), "named once");
        assert!(ledger.is_empty());
        assert_eq!(log.state.restore().settled.unwrap().upto.0, 1);
    }

    #[test]
    fn a_generation_takes_no_tenure_of_the_next() {
        let mut json = serde_json::to_value(State::new()).unwrap();
        json["office"]["last"] = 999_999.into();
        let mut log = Log::from(serde_json::from_value(json).unwrap());
        log.does(&join(1));
        assert_eq!(log.refuses(&tenure(1_000_000, 1)), Refusal::GenerationSpent);
    }
}
