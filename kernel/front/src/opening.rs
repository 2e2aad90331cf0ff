//! The first state of a tenure that a front opens, and the number that it gets. A tenure's number decides whom front,
//! seats and `hopd` follow, so it is above each one that the kernel is known to have had, whatever the clock says. Pure:
//! [`crate::launch`] reads and writes the store, and collects the known numbers.

use hop_log::{Act, Entry, Generation, Refusal, Sequence, State};
use hop_words::id::{Incarnation, JobId, NodeName, Tenure};
use hop_words::replica::Replicas;
use hop_words::time::Timestamp;

/// The state from which a tenure goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From the state of this front's earlier replica. The front may wait for that replica's answers.
    MyReplica,
    /// From the state of a kernel whose front has gone. Nobody waits for earlier answers, and clients may count their
    /// requests from the beginning.
    Before,
    /// From no state: the user restarted the kernel.
    Nothing,
}

/// Why a tenure has no first state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotOpened {
    #[error("the kernel has no number left for another group of replicas")]
    Spent,
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The facts that decide a tenure's number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) origin: Origin,
    pub(crate) replicas: Replicas,
    /// The highest tenure of the kernel that is known beside the store. 0 means that none is known.
    pub(crate) known: Tenure,
    pub(crate) now: Timestamp,
}

/// A place for a replica: a seat's job and node.
#[derive(Debug, Clone)]
pub struct Place {
    pub incarnation: Incarnation,
    pub(crate) job: JobId,
    pub(crate) node: NodeName,
}

impl Opening {
    /// The state with the replica of this place in office. `stored` is the store's state, if the kernel has one.
    ///
    /// # Errors
    /// No number is left.
    pub(crate) fn open(self, stored: Option<State>, place: &Place) -> Result<State, NotOpened> {
        let before = match stored {
            Some(stored) => self.at_rest(stored)?,
            None => self.beginning()?,
        };
        in_office(before, place, self.origin)
    }

    /// The first state of a kernel that has no state in the store.
    ///
    /// A restart may remove the kernel's folders, and with them the number of its group's generation. Members of that
    /// group may live on behind a cut link, and `known` may be a number of an earlier group. For a kernel with three
    /// replicas the clock's seconds count as well.
    fn beginning(self) -> Result<State, NotOpened> {
        let clock = match (self.origin, self.replicas) {
            // The kernel's state is gone. The front recognises the loss by a tenure not above its own, and ends.
            (Origin::MyReplica, _) => return Ok(State::new()),
            (Origin::Nothing, Replicas::Three) => self.now.0 / 1_000_000,
            (Origin::Nothing | Origin::Before, Replicas::One) => return self.beginning_alone(),
            (Origin::Before, Replicas::Three) if self.known == Tenure(0) => return Ok(State::new()),
            (Origin::Before, Replicas::Three) => 0,
        };
        self.above(Generation::default(), clock).map(State::begun_again)
    }

    /// A kernel with one replica has no group, and goes on in its generation.
    fn beginning_alone(self) -> Result<State, NotOpened> {
        let known = Generation::of(self.known).ok_or(NotOpened::Spent)?;
        if self.known < known.last_tenure() {
            return Ok(State::begun_after(known, self.known));
        }
        self.above(known, 0).map(State::begun_again)
    }

    /// The state without replicas. If the kernel may have a group, a new group begins: living members of the old group
    /// may have opened tenures unknown to the store.
    fn at_rest(self, state: State) -> Result<State, NotOpened> {
        let alone = self.replicas == Replicas::One && state.generation() == Generation::default();
        if alone && (self.origin == Origin::MyReplica || self.known <= state.tenure()) {
            return Ok(state.at_rest());
        }
        let generation = self.above(state.generation(), 0)?;
        let highest = state.highest_incarnation();
        Ok(state.reopened(generation, highest))
    }

    /// Returns a generation above `last` and above each known one, and not below `clock`. After an earlier replica of
    /// this front, only `last` counts: that replica left the store's state. In a store that was set back, the number
    /// is then too low, and the front recognises the loss.
    fn above(self, last: Generation, clock: u64) -> Result<Generation, NotOpened> {
        let known = match self.origin {
            Origin::MyReplica => Some(last),
            Origin::Before | Origin::Nothing => Generation::of(self.known),
        };
        let last = known.map(|known| known.max(last));
        last.and_then(|last| Generation::above(last, clock))
            .ok_or(NotOpened::Spent)
    }
}

/// Whether the group that the fronts of the kernel opened last can have elected an executor in this tenure. `last` is the
/// last tenure that they opened or followed, 0 before the first. Only a front opens a generation: an executor of any
/// other one is of a group that was left behind, whatever the numbers say.
pub(crate) fn may_be_elected(tenure: Tenure, last: Tenure) -> bool {
    last > Tenure(0) && tenure >= last && Generation::of(tenure) == Generation::of(last)
}

/// The lowest number that the next replica may have: above each one in the store, and `least` at least.
pub(crate) fn next_incarnation(stored: Option<&State>, least: Incarnation) -> Incarnation {
    let highest = stored.map_or(Incarnation(0), State::highest_incarnation);
    least.max(Incarnation(highest.0 + 1))
}

fn in_office(mut state: State, place: &Place, origin: Origin) -> Result<State, NotOpened> {
    let incarnation = place.incarnation;
    let apply = |state: &mut State, entry: &Entry| state.apply(state.applied().next(), entry);
    apply(
        &mut state,
        &Entry::Join {
            incarnation,
            seat: place.job,
            node: place.node.clone(),
            hot: false,
        },
    )?;
    let tenure = Tenure(state.tenure().0 + 1);
    apply(
        &mut state,
        &Entry::Tenure {
            tenure,
            executor: incarnation,
        },
    )?;
    if origin != Origin::MyReplica {
        // A user who asked for a fresh kernel knows that the former one's effects are gone.
        let losses = match origin {
            Origin::Nothing => tenure,
            Origin::MyReplica | Origin::Before => Tenure(0),
        };
        let cells = state.cells();
        apply(&mut state, &Entry::Heard { cells, losses })?;
    }
    if origin == Origin::Nothing {
        let sequence = Sequence(1);
        apply(
            &mut state,
            &Entry::Act {
                tenure,
                sequence,
                act: Act::Fresh,
            },
        )?;
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hop_log::{Payload, Record, RecordNumber, Settled};
    use hop_words::lease::Outcome;

    const TODAY: Timestamp = Timestamp(1_800_000_000_000_000);
    const YEAR: u64 = 31_536_000;

    /// A day ago, a year ago, and at 1970.
    const SET_BACK: [Timestamp; 3] = [
        Timestamp(TODAY.0 - 86_400_000_000),
        Timestamp(TODAY.0 - YEAR * 1_000_000),
        Timestamp(0),
    ];

    fn opening(origin: Origin, replicas: Replicas, known: Tenure, now: Timestamp) -> Opening {
        Opening {
            origin,
            replicas,
            known,
            now,
        }
    }

    /// What a front opens.
    fn opened(opening: Opening, stored: Option<State>) -> State {
        let place = Place {
            incarnation: next_incarnation(stored.as_ref(), Incarnation(1)),
            job: JobId(1),
            node: "n1".into(),
        };
        let state = opening.open(stored, &place).unwrap();
        state.sanity_check().unwrap();
        state
    }

    /// The same group, after it has elected other executors.
    fn elects(mut state: State, elections: u64) -> State {
        for _ in 0..elections {
            let entry = Entry::Tenure {
                tenure: Tenure(state.tenure().0 + 1),
                executor: state.executor().unwrap(),
            };
            state.apply(state.applied().next(), &entry).unwrap();
        }
        state
    }

    #[test]
    fn a_first_group_has_the_first_generation() {
        for replicas in [Replicas::One, Replicas::Three] {
            let first = opened(opening(Origin::Before, replicas, Tenure(0), TODAY), None);
            assert_eq!(first.tenure(), Tenure(1));
        }
        let restarted = opened(opening(Origin::Nothing, Replicas::Three, Tenure(1), TODAY), None);
        assert_eq!(restarted.tenure(), Tenure(1_800_000_000_000_001));
    }

    /// A restart removes a kernel's folders where nothing was saved, and leaves them else.
    #[test]
    fn a_restarted_kernel_is_above_all_that_it_had_by_any_clock() {
        for replicas in [Replicas::One, Replicas::Three] {
            for now in SET_BACK.into_iter().chain([TODAY, Timestamp(u64::MAX)]) {
                let mut last = opened(opening(Origin::Before, replicas, Tenure(0), TODAY), None);
                for (round, by) in [TODAY, now, now, TODAY, now].into_iter().enumerate() {
                    let told = elects(last.clone(), 3);
                    let is_saved = round % 2 == 1;
                    // Either the owner knows the tenure, by the front before, or the store has it.
                    let known = if is_saved { Tenure(0) } else { told.tenure() };
                    let stored = is_saved.then(|| told.clone());
                    let next = opened(opening(Origin::Nothing, replicas, known, by), stored);
                    assert!(next.tenure() > told.tenure(), "{replicas:?} {now:?} {round}");
                    let unseen = told.generation().last_tenure();
                    assert!(
                        replicas == Replicas::One || next.tenure() > unseen,
                        "{now:?} {round}"
                    );
                    last = next;
                }
            }
        }
    }

    /// The kernel died, or its server was lost: Jupyter starts the kernel again under the same id.
    #[test]
    fn a_kernel_without_a_state_begins_above_what_is_known() {
        for replicas in [Replicas::One, Replicas::Three] {
            for known in [Tenure(3), Tenure(999_999), Tenure(1_800_000_000_000_004)] {
                let next = opened(opening(Origin::Before, replicas, known, Timestamp(0)), None);
                assert!(next.tenure() > known, "{replicas:?} {known}");
            }
        }
    }

    /// The user's home was restored from a backup.
    #[test]
    fn a_state_that_was_set_back_is_opened_above_what_is_known() {
        for replicas in [Replicas::One, Replicas::Three] {
            let stored = opened(opening(Origin::Before, replicas, Tenure(0), TODAY), None);
            for known in [Tenure(7), Tenure(5_000_007)] {
                for origin in [Origin::Before, Origin::Nothing] {
                    let next = opened(opening(origin, replicas, known, TODAY), Some(stored.clone()));
                    assert!(next.tenure() > known, "{replicas:?} {origin:?} {known}");
                }
            }
        }
    }

    /// The front ends the kernel, since the number is not above its own: its user would not hear of the loss.
    #[test]
    fn a_loss_of_the_state_under_its_front_is_seen_by_the_number() {
        for replicas in [Replicas::One, Replicas::Three] {
            let known = Tenure(5_000_007);
            let mine = opening(Origin::MyReplica, replicas, known, TODAY);
            assert!(opened(mine, None).tenure() < known);
            let before = opened(opening(Origin::Before, replicas, Tenure(0), TODAY), None);
            assert!(opened(mine, Some(before)).tenure() < known);
        }
    }

    #[test]
    fn a_kernel_that_slept_wakes_above_the_tenure_that_slept() {
        for replicas in [Replicas::One, Replicas::Three] {
            let slept = opened(opening(Origin::Before, replicas, Tenure(0), TODAY), None).at_rest();
            for origin in [Origin::MyReplica, Origin::Before] {
                let woken = opened(
                    opening(origin, replicas, slept.tenure(), Timestamp(0)),
                    Some(slept.clone()),
                );
                assert!(woken.tenure() > slept.tenure());
            }
        }
    }

    /// Members of the group that was left may live on, and have opened tenures unknown to the store.
    #[test]
    fn a_kernel_that_may_have_had_a_group_wakes_above_all_of_the_groups_tenures() {
        let grouped = opened(opening(Origin::Nothing, Replicas::Three, Tenure(0), TODAY), None);
        let first = opened(opening(Origin::Before, Replicas::Three, Tenure(0), TODAY), None);
        for (slept, replicas) in [
            (&grouped, Replicas::One),
            (&grouped, Replicas::Three),
            (&first, Replicas::Three),
        ] {
            let slept = slept.clone().at_rest();
            for origin in [Origin::MyReplica, Origin::Before] {
                let waking = opening(origin, replicas, slept.tenure(), TODAY);
                let woken = opened(waking, Some(slept.clone()));
                assert!(woken.tenure() > slept.generation().last_tenure(), "{replicas:?}");
            }
        }
        let alone = opened(opening(Origin::Before, Replicas::One, Tenure(0), TODAY), None).at_rest();
        let waking = opening(Origin::Before, Replicas::One, alone.tenure(), TODAY);
        let woken = opened(waking, Some(alone.clone()));
        assert_eq!(woken.generation(), alone.generation(), "it had no group");
    }

    /// A kernel whose front has heard nothing. Cell `gone` had lost its effects, `lost` was lost in its middle, and `last`
    /// has ended without a saved effect.
    fn unheard() -> State {
        let mut state = opened(opening(Origin::Before, Replicas::One, Tenure(0), TODAY), None);
        let ended = |cell: &str, record| Act::Ended {
            cell: cell.into(),
            outcome: Outcome::Ok,
            reply: Bytes::new(),
            last_output: 0,
            record,
        };
        let record = Record {
            number: RecordNumber(1),
            payload: Payload::Folder,
        };
        let settled = Settled {
            tenure: state.tenure(),
            part: 0,
            upto: record.number,
            length: 10,
            mac: "mac".into(),
        };
        does(&mut state, ended("kept", Some(record)));
        state
            .apply(state.applied().next(), &Entry::Settled { settled })
            .unwrap();
        does(&mut state, ended("gone", None));
        let mut state = elects(state, 1);
        let why = "its node was lost".into();
        let cell = "lost".into();
        does(&mut state, Act::Lost { cell, why });
        does(&mut state, ended("last", None));
        state.at_rest()
    }

    fn does(state: &mut State, act: Act) {
        let entry = Entry::Act {
            tenure: state.tenure(),
            sequence: state.sequence().next(),
            act,
        };
        state.apply(state.applied().next(), &entry).unwrap();
    }

    /// Clients of a front that is gone count their requests from the beginning: an earlier answer is none to them.
    #[test]
    fn answers_losses_and_variables_are_kept_for_those_who_wait_for_them() {
        for replicas in [Replicas::One, Replicas::Three] {
            for (origin, answers, losses, has_variables) in [
                (
                    Origin::MyReplica,
                    &["kept", "lost"][..],
                    &["gone", "last"][..],
                    true,
                ),
                (Origin::Before, &[], &["gone", "last"], true),
                (Origin::Nothing, &[], &[], false),
            ] {
                let stored = unheard();
                let known = stored.tenure();
                let state = opened(opening(origin, replicas, known, TODAY), Some(stored));
                let answered: Vec<&str> = state.answers().map(|a| a.cell.as_str()).collect();
                assert_eq!(answered, answers, "{origin:?} {replicas:?}");
                let lost = state.losses().flat_map(|l| &l.cells);
                let lost: Vec<&str> = lost.map(|cell| cell.as_str()).collect();
                assert_eq!(lost, losses, "{origin:?} {replicas:?}");
                assert_eq!(state.restore().settled.is_some(), has_variables, "{origin:?}");
            }
        }
    }

    #[test]
    fn no_opening_gives_an_incarnation_out_again() {
        for replicas in [Replicas::One, Replicas::Three] {
            for origin in [Origin::MyReplica, Origin::Before, Origin::Nothing] {
                let stored = unheard();
                let known = stored.tenure();
                let mut state = opened(opening(origin, replicas, known, TODAY), Some(stored.clone()));
                let join = Entry::Join {
                    incarnation: stored.highest_incarnation(),
                    seat: JobId(2),
                    node: "n2".into(),
                    hot: false,
                };
                let joined = state.apply(state.applied().next(), &join);
                assert!(joined.is_err(), "{origin:?} {replicas:?} {joined:?}");
            }
        }
    }

    #[test]
    fn the_next_replica_has_a_number_above_all_in_the_store() {
        let stored = opened(opening(Origin::Before, Replicas::One, Tenure(0), TODAY), None);
        assert_eq!(stored.highest_incarnation(), Incarnation(1));
        for (stored, least, next) in [(None, 1, 1), (Some(&stored), 1, 2), (Some(&stored), 7, 7)] {
            assert_eq!(next_incarnation(stored, Incarnation(least)), Incarnation(next));
        }
    }

    #[test]
    fn numbers_end_with_an_error() {
        let last = Generation(u32::MAX).last_tenure();
        for known in [last, Tenure(u64::MAX)] {
            for replicas in [Replicas::One, Replicas::Three] {
                let place = Place {
                    incarnation: Incarnation(1),
                    job: JobId(1),
                    node: "n1".into(),
                };
                let spent = opening(Origin::Nothing, replicas, known, TODAY).open(None, &place);
                assert!(matches!(spent, Err(NotOpened::Spent)), "{replicas:?} {known}");
            }
        }
    }

    #[test]
    fn only_the_group_that_was_opened_last_elects() {
        let last = Tenure(5_000_003);
        for elected in [last, Tenure(5_000_009), Tenure(5_999_999)] {
            assert!(may_be_elected(elected, last), "{elected}");
        }
        let deposed = [Tenure(5_000_002)];
        let left_behind = [Tenure(1), Tenure(4_000_009), Tenure(6_000_001), Tenure(u64::MAX)];
        for other in deposed.into_iter().chain(left_behind) {
            assert!(!may_be_elected(other, last), "{other}");
        }
        // This front's first replica is being started, and has founded no group.
        assert!(!may_be_elected(Tenure(1), Tenure(0)));
    }
}
