//! A model of tenure, lease and epoch, explored in full: one kernel of two replicas, its front, `hopd`, the agents of two
//! nodes with a GPU each, and another kernel that wants the GPU of the first replica's node.
//!
//! The log's state machine is the real one, as each replica has applied it so far, and so is the core of the scheduler. The
//! replica, the front and the agent are their rules of docs/replication.md in a few lines each; what makes one of them
//! safe is a guard that can be left out.
//!
//! Any message may be late, for ever too; those of one connection keep their order. Entries are committed late, in any order
//! or never, and doubled. Anybody may be elected at any time, also by two leaders at once, and an executor goes on until it
//! has applied the next tenure. `hopd` restarts from its journal, and what was on its way to it is lost. Leases end by the
//! word of a user, by their linger's end, and by the loss of their executor's office.
//!
//! With all guards no property is broken. Without one of them the model finds:
//!
//! | guard left out | what breaks |
//! |---|---|
//! | the log refuses acts of another tenure | a result of a deposed tenure is accepted |
//! | a replica takes office by the log's word, and not by its own proposal | a cell begins twice |
//! | both that, and that the front hears the highest tenure alone | a cell begins twice in one attempt |
//! | a reply leaves once its entry is committed | an acknowledged cell is in no later executor's log |
//! | the front notes the tenure under which a cell may have begun | a cell begins twice |
//! | the front hears the highest tenure alone | a cell begins twice |
//! | an executor asks the log for the fate of a cell that was handed out before | a cell begins twice |
//! | a replica takes a lease only if the lease names it | a lease is taken by another than its executor |
//! | an agent ends those who have a device open before it says that the lease is over | a GPU is open in two kernels |
//! | the core knows the tenure in which a replica executes | `hopd` lends to an executor that it knows to be deposed |
//! | the highest tenure heard outlives a restart of `hopd` | `hopd` hears a tenure after a higher one |
//!
//! What is bounded, and how many states there are, is in docs/promises.md. Devices with several terms, epochs and a restarting
//! agent have a model of their own: scheduler/core/tests/model.rs.

mod hopd;
mod world;

use hopd::Said;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;
use world::{ALL, Answer, Guards, Logged, Scene, Stage, World, has_answer};

const ONE_ATTEMPT: &str = "no cell begins twice in one attempt";
const ONCE: &str = "no cell begins twice";
const ONE_KERNEL: &str = "no GPU is open in two kernels";
const OWN_LEASE: &str = "a lease is taken by no executor but its own";
const HIGHEST: &str = "hopd hears no tenure after a higher one";
const NOT_LENT: &str = "hopd lends nothing to an executor that it knows to be deposed";
const FENCED: &str = "no result of a deposed tenure is accepted";
const KEPT: &str = "an acknowledged cell is in every later executor's log";
/// What the model must reach, or it would prove nothing.
const SECOND: &str = "the second executor runs a cell";
const ALL_ANSWERED: &str = "the client has every reply";
const REACHED: [&str; 2] = [SECOND, ALL_ANSWERED];

/// How much happens.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// The client's cells; `true` means that the cell needs a lease.
    cells: &'static [bool],
    elections: u8,
    /// The replicas that may be elected.
    elected: &'static [u8],
    /// Entries that arrive twice.
    doubles: u8,
    rival: bool,
    restarts: u8,
    cancels: u8,
    /// How often time passes at `hopd`.
    dues: u8,
}

struct Kernel {
    guards: Guards,
    bounds: Bounds,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Action {
    Elect {
        tenure: u8,
        executor: u8,
    },
    Commit(Logged),
    /// The entry is committed, and comes once more.
    Double(Logged),
    Apply(u8),
    End(u8),
    ReplicaHearsHopd(u8),
    FrontHears(u8),
    HopdHears(u8),
    HopdHearsAgent(u8),
    AgentHears(u8),
    Say(Said),
    Restart,
}

impl Kernel {
    fn of_replica(&self, world: &World, replica: u8, actions: &mut Vec<Action>) {
        let r = &world.replicas[usize::from(replica)];
        if r.applied < world.log.entries.len() {
            actions.push(Action::Apply(replica));
        }
        let running = |o: &world::Office| o.cells.iter().any(|s| matches!(s, Stage::Running(_)));
        if r.office.as_ref().is_some_and(running) {
            actions.push(Action::End(replica));
        }
        let queues = [
            (r.events.is_empty(), Action::ReplicaHearsHopd(replica)),
            (r.to_front.is_empty(), Action::FrontHears(replica)),
            (r.to_hopd.is_empty(), Action::HopdHears(replica)),
        ];
        actions.extend(queues.into_iter().filter(|(empty, _)| !empty).map(|(_, a)| a));
        let agent = &world.agents[usize::from(replica)];
        if !agent.orders.is_empty() {
            actions.push(Action::AgentHears(replica));
        }
        if !agent.words.is_empty() {
            actions.push(Action::HopdHearsAgent(replica));
        }
    }

    fn of_hopd(&self, world: &World, actions: &mut Vec<Action>) {
        let (done, told) = (world.done, world.told());
        if self.bounds.rival && !done.rival {
            actions.push(Action::Say(Said::RivalWants));
        }
        if let Some(lease) = told.lease
            && done.cancels < self.bounds.cancels
        {
            actions.push(Action::Say(Said::Cancel(lease)));
        }
        if told.has_due && done.dues < self.bounds.dues {
            actions.push(Action::Say(Said::Due));
        }
        if done.restarts < self.bounds.restarts {
            actions.push(Action::Restart);
        }
    }
}

impl Model for Kernel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.guards, self.bounds.cells)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.done.elections < self.bounds.elections {
            for tenure in Scene::next_tenures(world) {
                let of = |executor: &u8| Action::Elect {
                    tenure,
                    executor: *executor,
                };
                actions.extend(self.bounds.elected.iter().map(of));
            }
        }
        actions.extend(world.proposals.iter().copied().map(Action::Commit));
        if world.done.doubles < self.bounds.doubles {
            actions.extend(world.proposals.iter().copied().map(Action::Double));
        }
        for replica in 0..2 {
            self.of_replica(world, replica, actions);
        }
        self.of_hopd(world, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut scene = Scene {
            guards: self.guards,
            leased: self.bounds.cells,
            late_orders: self.bounds.restarts > 0,
            world: last.clone(),
        };
        match action {
            Action::Elect { tenure, executor } => scene.elect(tenure, executor),
            Action::Commit(entry) => scene.commit(entry, false),
            Action::Double(entry) => scene.commit(entry, true),
            Action::Apply(replica) => scene.apply(replica),
            Action::End(replica) => scene.end(replica),
            Action::ReplicaHearsHopd(replica) => scene.replica_hears_hopd(replica),
            Action::FrontHears(replica) => scene.front_hears(replica),
            Action::HopdHears(replica) => scene.hopd_hears(replica),
            Action::HopdHearsAgent(node) => scene.hopd_hears_agent(node),
            Action::AgentHears(node) => scene.agent_hears(node),
            Action::Say(said) => scene.say(said),
            Action::Restart => scene.restart(),
        }
        scene.drop_stale();
        Some(scene.world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_ATTEMPT, |_, w: &World| {
                let twice = |i: usize, b: &world::Began| {
                    w.began[..i]
                        .iter()
                        .any(|a| (a.cell, a.tenure) == (b.cell, b.tenure))
                };
                !w.began.iter().enumerate().any(|(i, b)| twice(i, b))
            }),
            Property::always(ONCE, |_, w: &World| {
                let twice = |i: usize, b: &world::Began| w.began[..i].iter().any(|a| a.cell == b.cell);
                !w.began.iter().enumerate().any(|(i, b)| twice(i, b))
            }),
            Property::always(ONE_KERNEL, |_, w: &World| {
                w.agents.iter().all(|a| a.open != [true; 2])
            }),
            Property::always(OWN_LEASE, |_, w: &World| {
                let told = w.told();
                // A replica that is elected again, since its process died, goes on with what it was granted before.
                let own = |replica, tenure, lease| {
                    let granted = told.granted.get(&lease);
                    granted.is_some_and(|(executor, then)| *executor == replica && *then <= tenure)
                };
                let mut began = w
                    .began
                    .iter()
                    .filter_map(|b| Some((b.replica, b.tenure, b.lease?)));
                let mut held = w.held();
                began.all(|(r, t, lease)| own(r, t, lease)) && held.all(|(r, t, lease)| own(r, t, lease))
            }),
            Property::always(HIGHEST, |_, w: &World| !w.told().heard_lower),
            Property::always(NOT_LENT, |_, w: &World| !w.told().lent_to_deposed),
            Property::always(FENCED, |_, w: &World| !w.committed().unfenced),
            Property::always(KEPT, |_, w: &World| {
                let log = w.committed();
                let acknowledged = w.front.answers.iter().map(|a| *a == Answer::Replied);
                let kept = (0..)
                    .zip(acknowledged)
                    .all(|(cell, a)| !a || has_answer(log, cell).is_some());
                kept && log.lost == 0
            }),
            Property::sometimes(SECOND, |_, w: &World| w.began.iter().any(|b| b.replica == 1)),
            Property::sometimes(ALL_ANSWERED, |_, w: &World| {
                w.front.answers.iter().all(|a| *a == Answer::Replied)
            }),
        ]
    }
}

/// What was found of a model: properties that are broken, and those that must be reached.
fn explore(guards: Guards, bounds: Bounds, until: HasDiscoveries) -> (BTreeSet<&'static str>, usize) {
    let checker = Kernel { guards, bounds }
        .checker()
        .threads(2)
        .finish_when(until)
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    for (property, path) in &found {
        println!("{property}: {:?}", path.clone().into_actions());
    }
    (found.into_keys().collect(), checker.unique_state_count())
}

/// One cell on a lease, and one election.
const LEASED: Bounds = Bounds {
    cells: &[true],
    elections: 1,
    elected: &[0, 1],
    doubles: 0,
    rival: false,
    restarts: 0,
    cancels: 0,
    dues: 0,
};

/// One cell that needs no lease, and two leaders.
const PLAIN: Bounds = Bounds {
    cells: &[false],
    elections: 2,
    ..LEASED
};

fn holds(bounds: Bounds) {
    let (found, states) = explore(ALL, bounds, HasDiscoveries::AnyFailures);
    println!(
        "{states} states, {bounds:?}; hopd: {:?} lists of inputs and states",
        hopd::played()
    );
    assert_eq!(found, REACHED.into(), "only what must be reached");
}

/// Without this guard, this breaks.
fn breaks(guards: Guards, bounds: Bounds, property: &'static str) {
    let until = HasDiscoveries::AllOf([property].into());
    let (found, _) = explore(guards, bounds, until);
    assert!(found.contains(property), "{guards:?}: {found:?}");
}

#[test]
fn cells_with_and_without_a_lease() {
    holds(Bounds {
        cells: &[true, false],
        ..LEASED
    });
}

#[test]
fn two_elections_and_doubled_entries() {
    holds(Bounds { doubles: 1, ..PLAIN });
    holds(Bounds {
        elections: 2,
        elected: &[1],
        ..LEASED
    });
}

#[test]
fn another_kernel_wants_the_gpu() {
    holds(Bounds {
        rival: true,
        ..LEASED
    });
}

#[test]
fn time_passes_at_hopd() {
    holds(Bounds {
        rival: true,
        dues: 1,
        elected: &[1],
        ..LEASED
    });
}

#[test]
fn a_user_ends_a_lease() {
    holds(Bounds { cancels: 1, ..LEASED });
}

#[test]
fn hopd_restarts() {
    holds(Bounds {
        restarts: 1,
        elected: &[1],
        ..LEASED
    });
}

#[test]
fn without_the_fence_of_the_log_a_deposed_executor_answers() {
    let guards = Guards { fence: false, ..ALL };
    breaks(guards, LEASED, FENCED);
}

#[test]
fn an_executor_by_its_own_word_begins_a_cell_again() {
    let guards = Guards {
        elected: false,
        ..ALL
    };
    breaks(guards, PLAIN, ONCE);
}

/// One of the two guards is enough for this.
#[test]
fn two_executors_of_one_tenure_begin_a_cell_in_one_attempt() {
    let guards = Guards {
        elected: false,
        highest: false,
        ..ALL
    };
    breaks(guards, PLAIN, ONE_ATTEMPT);
}

#[test]
fn a_reply_before_its_entry_is_lost_with_the_executor() {
    let guards = Guards {
        committed: false,
        ..ALL
    };
    breaks(guards, LEASED, KEPT);
}

#[test]
fn a_cell_whose_beginning_nobody_notes_begins_again() {
    let guards = Guards { noted: false, ..ALL };
    breaks(guards, LEASED, ONCE);
}

#[test]
fn a_front_that_hears_lower_tenures_lets_a_cell_begin_twice() {
    let guards = Guards {
        highest: false,
        ..ALL
    };
    breaks(guards, LEASED, ONCE);
}

#[test]
fn an_executor_that_does_not_ask_the_log_begins_a_cell_again() {
    let guards = Guards { fate: false, ..ALL };
    breaks(guards, LEASED, ONCE);
}

#[test]
fn a_replica_that_takes_any_grant_uses_a_lease_of_another() {
    let guards = Guards { mine: false, ..ALL };
    breaks(guards, LEASED, OWN_LEASE);
}

#[test]
fn an_agent_that_ends_no_holder_leaves_a_gpu_with_two_kernels() {
    let guards = Guards {
        holders: false,
        ..ALL
    };
    let bounds = Bounds {
        rival: true,
        ..LEASED
    };
    breaks(guards, bounds, ONE_KERNEL);
}

#[test]
fn a_core_that_knows_no_tenure_lends_to_a_deposed_executor() {
    let guards = without_hopds(hopd::Guards {
        deposes: false,
        ..ALL.hopd
    });
    breaks(guards, LEASED, NOT_LENT);
}

#[test]
fn a_hopd_that_forgets_the_tenure_hears_a_deposed_executor() {
    let guards = without_hopds(hopd::Guards {
        journals: false,
        ..ALL.hopd
    });
    let bounds = Bounds {
        restarts: 1,
        ..LEASED
    };
    breaks(guards, bounds, HIGHEST);
}

fn without_hopds(hopd: hopd::Guards) -> Guards {
    Guards { hopd, ..ALL }
}
