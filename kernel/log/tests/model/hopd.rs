//! `hopd` in the model: the real core of the scheduler, and around it what the daemon does before the core hears anything.
//!
//! The core has no copies and no comparison. So the world has inputs of the core that lead to its state instead: each list of
//! inputs is played once, and of all lists that end in the same state the first one stands for it.

use hop_core::config::PoolConfig;
use hop_core::{
    CancelTarget, Config, Core, EndedCell, GpuSlot, Input, Output, PilotUp, ReplicaFacts, ReportedEnd,
    ReportedLease, Submit, WaitingCell,
};
use hop_words::id::{CellId, GpuIndex, Incarnation, JobId, KernelId, LeaseId, Tenure};
use hop_words::lease::{EndCause, Outcome};
use hop_words::need::{Class, Need};
use hop_words::time::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex};

/// Kernels: the one with a log, and another one that wants the GPU of the first replica's node.
pub(crate) const OURS: &str = "k";
pub(crate) const RIVAL: &str = "rival";

/// Something that `hopd` heard or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    Up {
        replica: u8,
        tenure: u8,
        holds: Option<(u8, u8)>,
        waits: Option<u8>,
        ended: Option<u8>,
    },
    Submit {
        replica: u8,
        tenure: u8,
        cell: u8,
    },
    Used {
        replica: u8,
        tenure: u8,
        cell: u8,
        lease: u8,
    },
    Release {
        replica: u8,
        tenure: u8,
        lease: u8,
    },
    /// Words of the agent of a node.
    Started {
        node: u8,
        lease: u8,
    },
    Failed {
        node: u8,
        lease: u8,
    },
    Over {
        node: u8,
        lease: u8,
    },
    Agent {
        node: u8,
        live: Option<(u8, bool)>,
        over: Option<u8>,
    },
    RivalWants,
    /// The user ends our kernel's lease.
    Cancel(u8),
    /// The next thing that is due comes due.
    Due,
    /// Another `hopd` goes on from the journal.
    Restart,
}

/// To the agent of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    Start { lease: u8, ours: bool },
    End { lease: u8 },
    Forget { lease: u8 },
}

/// To the replicas of our kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Granted { cell: u8, lease: u8, executor: u8 },
    Refused { cell: u8 },
    Revoked { lease: u8 },
}

/// What followed from the last input, and what is so since.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// All that the next input meets, in words.
    state: String,
    pub orders: Vec<(u8, Order)>,
    pub events: Vec<Event>,
    /// Replicas that have reported themselves and not been turned away.
    pub registered: [bool; 2],
    /// The replica and the tenure for which each of our kernel's leases was granted.
    pub granted: BTreeMap<u8, (u8, u8)>,
    /// Our kernel's lease that isn't over.
    pub lease: Option<u8>,
    pub has_due: bool,
    /// A lease of our kernel was started for another than the executor of the highest tenure heard.
    pub lent_to_deposed: bool,
    /// A tenure spoke after a higher one.
    pub heard_lower: bool,
}

/// The guards that are `hopd`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Guards {
    /// The core knows the tenure in which a replica executes, and the higher one takes the place of the lower.
    pub deposes: bool,
    /// The highest tenure heard outlives a restart.
    pub journals: bool,
}

type Known = HashMap<(Guards, Vec<Said>), Arc<Told>>;
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// What follows from the last of these inputs.
pub(crate) fn told(guards: Guards, said: &[Said]) -> Arc<Told> {
    let key = (guards, said.to_vec());
    if let Some(told) = KNOWN.lock().expect("nobody panics with it").get(&key) {
        return Arc::clone(told);
    }
    let told = Arc::new(Hopd::new(guards).play(said));
    KNOWN
        .lock()
        .expect("nobody panics with it")
        .insert(key, Arc::clone(&told));
    told
}

type Standing = HashMap<(Guards, String), Vec<Said>>;
static STANDING: LazyLock<Mutex<Standing>> = LazyLock::new(Mutex::default);

/// The inputs that stand for all that lead to the same state, and what follows from them.
pub(crate) fn standing(guards: Guards, said: &[Said]) -> (Vec<Said>, Arc<Told>) {
    let state = told(guards, said).state.clone();
    let mut standing = STANDING.lock().expect("nobody panics with it");
    let first = standing.entry((guards, state)).or_insert_with(|| said.to_vec());
    let first = first.clone();
    drop(standing);
    let told = told(guards, &first);
    (first, told)
}

/// How many lists of inputs were played, and how many states they ended in.
pub(crate) fn played() -> (usize, usize) {
    let played = KNOWN.lock().expect("nobody panics with it").len();
    (played, STANDING.lock().expect("nobody panics with it").len())
}

/// The core in words, without its indexes by name: they say nothing new, and have no order.
fn in_words(core: &Core) -> String {
    let mut text = format!("{core:?}");
    for index in [
        "pool_by_name",
        "node_by_name",
        "pilot_by_job",
        "user_by_name",
        "account_by_name",
        "kernel_by_id",
        "binding",
    ] {
        let begin = text
            .find(&format!("{index}: {{"))
            .expect("an index of the core's");
        let end = text[begin..].find('}').expect("the index's end");
        text.replace_range(begin..=begin + end, "");
    }
    text
}

fn config() -> Config {
    Config {
        journal: true,
        ..Config::default()
    }
}

fn pool() -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, 1, 8);
    // Those that the model brings up may stay.
    pool.max_pilots = 8;
    pool
}

fn pilot(node: u8) -> JobId {
    JobId(100 + u32::from(node))
}

pub(crate) fn name(cell: u8) -> CellId {
    format!("c{cell}").as_str().into()
}

fn number(cell: &CellId) -> u8 {
    cell.as_str()[1..].parse().expect("cells are c<number>")
}

fn small(lease: LeaseId) -> u8 {
    u8::try_from(lease.0).expect("few leases")
}

fn report(kernel: &str, replica: u8, tenure: Option<u8>) -> ReplicaFacts {
    ReplicaFacts {
        kernel: kernel.into(),
        incarnation: Incarnation(u32::from(replica) + 1),
        user: "ada".into(),
        account: None,
        pool: "main".into(),
        node: format!("n{replica}").as_str().into(),
        seat: JobId(u32::from(replica) + if kernel == OURS { 200 } else { 300 }),
        name: String::new(),
        holds: None,
        ended: None,
        waiting: Vec::new(),
        parked: None,
        fixed: None,
        standbys: Vec::new(),
        executes: tenure.map(|t| Tenure(u64::from(t))),
    }
}

struct Hopd {
    guards: Guards,
    core: Core,
    now: Timestamp,
    /// The highest tenure that has spoken.
    heard: u8,
    journal: Vec<hop_core::journal::Entry>,
    /// The executor of the highest tenure that ever spoke.
    executor: (u8, u8),
    told: Told,
}

impl Hopd {
    fn new(guards: Guards) -> Self {
        let now = Timestamp(1_000_000);
        let mut hopd = Self {
            guards,
            core: Core::new(config(), now),
            now,
            heard: 0,
            journal: Vec::new(),
            executor: (0, 0),
            told: Told::default(),
        };
        hopd.hear(Input::Pool(pool()));
        hopd.up();
        hopd
    }

    fn up(&mut self) {
        for node in 0..2 {
            self.agent(node, None, None);
        }
        self.hear(Input::ReplicaUp(report(RIVAL, 0, Some(0))));
    }

    fn play(mut self, said: &[Said]) -> Told {
        for said in said {
            self.told.orders.clear();
            self.told.events.clear();
            self.take(*said);
        }
        self.core.sanity_check().expect("the core's invariants hold");
        let ours = KernelId::from(OURS);
        let leases = self.core.leases();
        let live = leases.iter().find(|l| l.kernel == ours && l.state == "RUNNING");
        self.told.lease = live.map(|l| small(l.lease));
        self.told.has_due = self.core.next_wake().is_some();
        let Self { heard, executor, .. } = &self;
        let told = &self.told;
        let shell = (
            heard,
            executor,
            told.registered,
            &told.granted,
            told.lent_to_deposed,
            told.heard_lower,
        );
        let last: BTreeMap<_, _> = self.journal.iter().map(|e| (&e.key, &e.value)).collect();
        self.told.state = format!("{} {shell:?} {last:?}", in_words(&self.core));
        self.told
    }

    fn take(&mut self, said: Said) {
        match said {
            Said::Up { replica, tenure, .. } | Said::Submit { replica, tenure, .. } => {
                // The daemon hears the highest tenure alone.
                if tenure < self.heard {
                    return;
                }
                self.heard = tenure;
                self.told.heard_lower |= tenure < self.executor.0;
                self.executor = self.executor.max((tenure, replica));
                self.of_replica(said, replica, tenure);
            }
            Said::Used { replica, .. } | Said::Release { replica, .. }
                if self.told.registered[usize::from(replica)] =>
            {
                self.of_lease(said);
            }
            Said::Used { .. } | Said::Release { .. } => {}
            Said::Restart => self.restart(),
            Said::Due => {
                self.now = self.core.next_wake().map_or(self.now, |due| due.max(self.now));
                self.hear(Input::Tick);
            }
            Said::Cancel(lease) => {
                let lease = LeaseId(u64::from(lease));
                let target = CancelTarget::Lease { lease };
                self.hear(Input::Cancel {
                    target,
                    by: "ada".into(),
                });
            }
            Said::RivalWants => self.submit(RIVAL, 9),
            Said::Agent { node, live, over } => self.agent(node, live, over),
            Said::Started { .. } | Said::Failed { .. } | Said::Over { .. } => self.of_agent(said),
        }
    }

    fn of_replica(&mut self, said: Said, replica: u8, tenure: u8) {
        match said {
            Said::Up {
                holds, waits, ended, ..
            } => {
                self.told.registered[usize::from(replica)] = true;
                let waiting = waits.map(|cell| WaitingCell {
                    cell: name(cell),
                    need: Need::gpus(1),
                    class: Class::Interactive,
                    print: 0,
                });
                let ended = ended.map(|cell| EndedCell {
                    cell: name(cell),
                    outcome: Outcome::Ok,
                });
                self.hear(Input::ReplicaUp(ReplicaFacts {
                    holds: holds.map(|(lease, cell)| (LeaseId(u64::from(lease)), Some(name(cell)))),
                    waiting: waiting.into_iter().collect(),
                    ended,
                    ..report(OURS, replica, self.guards.deposes.then_some(tenure))
                }));
            }
            Said::Submit { cell, .. } if self.told.registered[usize::from(replica)] => {
                self.submit(OURS, cell)
            }
            _ => {}
        }
    }

    fn submit(&mut self, kernel: &str, cell: u8) {
        self.hear(Input::Submit(Submit {
            kernel: kernel.into(),
            cell: name(cell),
            need: Need::gpus(1),
            class: Class::Interactive,
            print: 0,
        }));
    }

    /// Words on a lease come from the replica that has it, in any tenure, or from the highest.
    fn of_lease(&mut self, said: Said) {
        let (Said::Used {
            replica,
            tenure,
            lease,
            ..
        }
        | Said::Release {
            replica,
            tenure,
            lease,
        }) = said
        else {
            return;
        };
        let lease = LeaseId(u64::from(lease));
        let its_own = |l: hop_core::LeaseView| l.executor == Incarnation(u32::from(replica) + 1);
        if tenure < self.heard && !self.core.lease(lease).is_some_and(its_own) {
            return;
        }
        self.heard = self.heard.max(tenure);
        let kernel = OURS.into();
        self.hear(match said {
            Said::Used { cell, .. } => Input::CellEnded {
                kernel,
                cell: name(cell),
                lease,
                outcome: Outcome::Ok,
            },
            _ => Input::ReleaseLease { kernel, lease },
        });
    }

    fn of_agent(&mut self, said: Said) {
        self.hear(match said {
            Said::Started { node, lease } => Input::LeaseStarted {
                lease: LeaseId(u64::from(lease)),
                pilot: pilot(node),
                devices: vec![GpuIndex(0)],
            },
            Said::Failed { node, lease } => Input::LeaseFailed {
                lease: LeaseId(u64::from(lease)),
                pilot: pilot(node),
                reason: "its GPU is out".into(),
                device_lost: false,
            },
            Said::Over { node, lease } => Input::LeaseEnded {
                pilot: pilot(node),
                ended: ReportedEnd {
                    lease: LeaseId(u64::from(lease)),
                    cause: EndCause::Done,
                    clean: true,
                    detail: String::new(),
                },
            },
            _ => return,
        });
    }

    fn agent(&mut self, node: u8, live: Option<(u8, bool)>, over: Option<u8>) {
        let live = live.map(|(lease, ours)| ReportedLease {
            lease: LeaseId(u64::from(lease)),
            kernel: if ours { OURS } else { RIVAL }.into(),
            devices: vec![GpuIndex(0)],
        });
        let over = over.map(|lease| ReportedEnd {
            lease: LeaseId(u64::from(lease)),
            cause: EndCause::Done,
            clean: true,
            detail: String::new(),
        });
        self.hear(Input::PilotUp(PilotUp {
            node: format!("n{node}").as_str().into(),
            pilot: pilot(node),
            pool: "main".into(),
            gpus: vec![GpuSlot {
                index: GpuIndex(0),
                gpu_type: "fake".into(),
                mem_mib: 1024,
                blocked: None,
            }],
            cpus: 8,
            ends: None,
            steps_left: 40_000,
            leases: live.into_iter().collect(),
            starting: Vec::new(),
            ended: over.into_iter().collect(),
            draining: false,
            node_drains: false,
        }));
    }

    fn restart(&mut self) {
        let mut out = Vec::new();
        let journal = self.journal.clone();
        self.core = Core::restore(config(), vec![pool()], journal, self.now, &mut out);
        self.told.registered = [false; 2];
        if !self.guards.journals {
            self.heard = 0;
        }
        self.carry_out(out);
        self.hear(Input::ReplicaUp(report(RIVAL, 0, Some(0))));
    }

    fn hear(&mut self, input: Input) {
        let mut out = Vec::new();
        self.core.handle(input, self.now, &mut out);
        self.carry_out(out);
    }

    fn carry_out(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Journal(entry) => self.journal.push(entry),
                Output::StartLease(start) => {
                    let ours = start.kernel == OURS.into();
                    let replica = (start.executor.0 - 1) as u8;
                    if ours && replica != self.executor.1 {
                        self.told.lent_to_deposed = true;
                    }
                    let lease = small(start.lease);
                    self.order(start.pilot, Order::Start { lease, ours });
                }
                Output::EndLease { lease, pilot, .. } => {
                    self.order(pilot, Order::End { lease: small(lease) });
                }
                Output::EndAcknowledged { lease, pilot } => {
                    self.order(pilot, Order::Forget { lease: small(lease) });
                }
                Output::Granted {
                    kernel,
                    cell,
                    lease,
                    executor,
                    ..
                } if kernel == OURS.into() => {
                    let (lease, executor) = (small(lease), (executor.0 - 1) as u8);
                    self.told.granted.insert(lease, (executor, self.executor.0));
                    let cell = number(&cell);
                    self.told.events.push(Event::Granted {
                        cell,
                        lease,
                        executor,
                    });
                }
                Output::Refused { kernel, cell, .. } if kernel == OURS.into() => {
                    self.told.events.push(Event::Refused { cell: number(&cell) });
                }
                Output::Revoked { kernel, lease, .. } if kernel == OURS.into() => {
                    self.told.events.push(Event::Revoked { lease: small(lease) });
                }
                _ => {}
            }
        }
    }

    fn order(&mut self, pilot: JobId, order: Order) {
        self.told.orders.push(((pilot.0 - 100) as u8, order));
    }
}
