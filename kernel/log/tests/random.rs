//! Whatever entries come in whatever order: the state stays sane, and what is promised only moves forward.

use crate::common::*;
use hop_log::{Effect, Entry, Form, Index, State};
use hop_words::id::{Incarnation, Tenure};
use proptest::prelude::*;

/// Entries whose numbers are near those that the state would accept.
fn entries() -> impl Strategy<Value = Vec<(u8, u64, u64, u64)>> {
    proptest::collection::vec((0u8..13, 0u64..3, 0u64..3, 0u64..4), 1..120)
}

fn entry(state: &State, (kind, a, b, c): (u8, u64, u64, u64)) -> Entry {
    let tenure_now = state.tenure().0.saturating_sub(u64::from(a == 2));
    let (cells, records) = (state.cells().0 + b, state.records().0 + b);
    let replica = 1 + c as u32;
    let entry = match kind {
        0 | 1 => join(state.highest_incarnation().0 + a as u32),
        2 => left(replica),
        3 | 4 => tenure(state.tenure().0 + b, replica),
        5 => moved(tenure_now, replica),
        6 => ended(tenure_now, cells),
        7 => ended_with(tenure_now, cells, inline(records)),
        8 if c == 0 => record(tenure_now, in_folder(records), state.cells().0),
        8 => record(tenure_now, inline(records), state.cells().0.saturating_sub(b)),
        9 => lost(tenure_now, cells),
        10 => settled(tenure_now, state.records().0.saturating_sub(c)),
        11 if c == 0 => fresh(tenure_now),
        11 => hibernated(tenure_now),
        _ => heard(state.cells().0.saturating_sub(b), state.tenure().0),
    };
    at((state.sequence().0 + 2).saturating_sub(a.min(c)), entry)
}

/// Who executes what.
fn who(state: &State) -> (Tenure, Option<Incarnation>) {
    (state.tenure(), state.executor())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_state_stays_sane_and_moves_forward(steps in entries()) {
        let mut state = Log::of_three().state;
        for (i, step) in steps.iter().enumerate() {
            let entry = entry(&state, *step);
            let before = state.clone();
            let result = state.apply(Index(i as u64 + 5), &entry);
            state.sanity_check().unwrap();
            state.at_rest().sanity_check().unwrap();
            prop_assert!(state.tenure() >= before.tenure());
            prop_assert!(state.cells() >= before.cells() && state.records() >= before.records());
            prop_assert!(state.settled_through() >= before.settled_through());
            prop_assert!(state.highest_incarnation() >= before.highest_incarnation());
            if matches!(result, Ok(Effect::Again) | Err(_)) {
                prop_assert_eq!(state.answers().len(), before.answers().len());
                prop_assert_eq!(who(&state), who(&before));
            } else {
                // The same entry once more, late or doubled, changes nothing.
                let mut twice = state.clone();
                let repeated = twice.apply(Index(i as u64 + 6), &entry);
                prop_assert!(matches!(repeated, Ok(Effect::Again) | Err(_)), "{:?}: {:?}", entry, repeated);
                prop_assert_eq!(who(&twice), who(&state));
            }
        }
        prop_assert_eq!(&State::decode(state.encode()).unwrap(), &state);
    }
}
