//! A model of a process, a driver and an agent with faults at every call: whatever happens, the machine ends, and
//! what it says about where the data is holds in the model.

use super::*;
use proptest::prelude::*;

/// What the world does with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Says no, nothing happened.
    Refuse,
    /// Does it, and the answer is lost.
    LateButDone,
    /// Does nothing and doesn't answer.
    Hang,
    /// The driver loses the process.
    Ruin,
}

/// The truth: where the frameworks' data and the rest are.
#[derive(Debug, Clone)]
struct World {
    state: ProcessState,
    frameworks_in_host: bool,
    left_over: bool,
    calls: Vec<Call>,
}

impl World {
    fn new(parked: bool, inside: bool) -> Self {
        Self {
            state: if parked {
                ProcessState::Checkpointed
            } else {
                ProcessState::Running
            },
            frameworks_in_host: parked && inside,
            left_over: false,
            calls: Vec::new(),
        }
    }

    fn act(&mut self, call: Call) -> bool {
        use ProcessState as S;
        let next = match (call, self.state) {
            (Call::CopyOut, S::Running) => return self.move_frameworks(true),
            (Call::CopyIn, S::Running) => return self.move_frameworks(false),
            (Call::Reserve | Call::State, _) => return true,
            (Call::Prove, _) => return !self.left_over,
            (Call::Lock, S::Running) => S::Locked,
            (Call::Checkpoint, S::Locked) => S::Checkpointed,
            (Call::Restore, S::Checkpointed) => S::Locked,
            (Call::Unlock, S::Locked) => S::Running,
            _ => return false,
        };
        self.state = next;
        true
    }

    fn move_frameworks(&mut self, out: bool) -> bool {
        self.frameworks_in_host = out;
        true
    }

    fn answer(&mut self, call: Call, fault: Fault) -> Answer {
        self.calls.push(call);
        let driver_call = matches!(call, Call::Lock | Call::Checkpoint | Call::Restore | Call::Unlock);
        match fault {
            Fault::Refuse => Answer::Failed("refused".into()),
            Fault::Hang => Answer::TimedOut("hangs".into()),
            Fault::Ruin if driver_call => {
                self.state = ProcessState::Failed;
                Answer::Failed("ruined".into())
            }
            Fault::LateButDone => {
                self.act(call);
                Answer::TimedOut("late".into())
            }
            Fault::None | Fault::Ruin => match (call, self.act(call)) {
                (Call::State, _) => Answer::State(self.state),
                (_, true) => Answer::Done,
                (_, false) => Answer::Failed("not in this state".into()),
            },
        }
    }

    fn run(&mut self, (mut machine, mut next): (Machine, Next), faults: &[Fault]) -> Outcome {
        let mut faults = faults.iter().copied();
        for _ in 0..200 {
            match next {
                Next::End(outcome) => return outcome,
                Next::Call(call) => {
                    let answer = self.answer(call, faults.next().unwrap_or(Fault::None));
                    next = machine.next(answer);
                }
            }
        }
        panic!("no end after 200 calls: {:?}", self.calls);
    }

    /// What the outcome claims must be what is.
    fn check(&self, outcome: &Outcome, halves: Halves) {
        use ProcessState as S;
        let off = if halves.driver {
            S::Checkpointed
        } else {
            S::Running
        };
        match outcome {
            Outcome::Parked => {
                assert_eq!(self.state, off);
                assert_eq!(self.frameworks_in_host, halves.inside);
                assert!(!self.left_over);
            }
            Outcome::NotParked { .. } | Outcome::Unparked => {
                assert_eq!((self.state, self.frameworks_in_host), (S::Running, false));
            }
            Outcome::StillParked { .. } => {
                assert_eq!((self.state, self.frameworks_in_host), (off, halves.inside))
            }
            Outcome::HalfBack { .. } => assert_eq!(self.state, S::Running),
            Outcome::Broken {
                frameworks_in_host, ..
            } => {
                // Said only when the driver gave no way on; the claim about the host copy may only err by caution.
                assert!(!frameworks_in_host || self.frameworks_in_host || self.state == S::Running);
            }
        }
    }
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        6 => Just(Fault::None),
        2 => Just(Fault::Refuse),
        2 => Just(Fault::LateButDone),
        2 => Just(Fault::Hang),
        1 => Just(Fault::Ruin),
    ];
    proptest::collection::vec(fault, 0..24)
}

fn halves() -> impl Strategy<Value = Halves> {
    prop_oneof![
        Just(Halves {
            inside: true,
            driver: true
        }),
        Just(Halves {
            inside: false,
            driver: true
        }),
        Just(Halves {
            inside: true,
            driver: false
        }),
    ]
}

proptest! {
    #[test]
    fn a_park_ends_and_tells_the_truth(halves in halves(), faults in faults(), left_over in any::<bool>()) {
        let mut world = World::new(false, halves.inside);
        world.left_over = left_over;
        let outcome = world.run(Machine::park(halves), &faults);
        world.check(&outcome, halves);
    }

    #[test]
    fn an_unpark_ends_and_tells_the_truth(inside in any::<bool>(), faults in faults()) {
        let halves = Halves { inside, driver: true };
        let mut world = World::new(true, inside);
        let outcome = world.run(Machine::unpark(halves), &faults);
        world.check(&outcome, halves);
    }

    #[test]
    fn without_ruin_nothing_is_broken_by_one_fault(halves in halves(), at in 0_usize..6, hang in any::<bool>()) {
        let mut faults = vec![Fault::None; at];
        faults.push(if hang { Fault::Hang } else { Fault::Refuse });
        let mut world = World::new(false, halves.inside);
        let outcome = world.run(Machine::park(halves), &faults);
        let broken = matches!(outcome, Outcome::Broken { .. });
        prop_assert!(!broken, "{outcome:?}");
        world.check(&outcome, halves);
    }
}

const BOTH: Halves = Halves {
    inside: true,
    driver: true,
};

#[test]
fn the_straight_way_makes_these_calls_and_no_others() {
    let mut world = World::new(false, true);
    assert_eq!(world.run(Machine::park(BOTH), &[]), Outcome::Parked);
    assert_eq!(
        world.calls,
        [Call::CopyOut, Call::Lock, Call::Checkpoint, Call::Prove]
    );
    world.calls.clear();
    assert_eq!(world.run(Machine::unpark(BOTH), &[]), Outcome::Unparked);
    assert_eq!(
        world.calls,
        [Call::Reserve, Call::Restore, Call::Unlock, Call::CopyIn]
    );
}

#[test]
fn without_room_the_restore_is_never_called() {
    let mut world = World::new(true, true);
    let outcome = world.run(Machine::unpark(BOTH), &[Fault::Refuse]);
    assert_eq!(
        outcome,
        Outcome::StillParked {
            why: "refused".into()
        }
    );
    assert_eq!(world.calls, [Call::Reserve]);
}

#[test]
fn what_is_left_on_the_device_is_brought_back_whole() {
    let mut world = World::new(false, true);
    world.left_over = true;
    assert!(matches!(
        world.run(Machine::park(BOTH), &[]),
        Outcome::NotParked { .. }
    ));
    let back = [Call::Prove, Call::Restore, Call::Unlock, Call::CopyIn];
    assert_eq!(world.calls[3..], back);
}

#[test]
fn a_ruined_process_is_said_to_be_broken() {
    let mut world = World::new(false, true);
    let outcome = world.run(Machine::park(BOTH), &[Fault::None, Fault::None, Fault::Ruin]);
    assert!(
        matches!(
            outcome,
            Outcome::Broken {
                frameworks_in_host: true,
                ..
            }
        ),
        "{outcome:?}"
    );
}
