//! The kernel in the model: its log, its replicas, its front, and the agents of their nodes.

use crate::hopd::{self, Event, Order, Said, Told, name};
use hop_log::{Act, Effect, End, Entry, Fate, Index, Refusal, Sequence, State};
use hop_words::id::{Incarnation, JobId, Tenure};
use hop_words::lease::Outcome;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex};

pub(crate) const REPLICAS: usize = 2;

/// Which guards there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Guards {
    /// The log refuses acts of another tenure than the one in office.
    pub fence: bool,
    /// A replica takes office by the log's word, and not by its own proposal.
    pub elected: bool,
    /// A reply leaves once its entry is committed.
    pub committed: bool,
    /// The front notes the tenure under which a cell may have begun.
    pub noted: bool,
    /// The front hears the highest tenure alone.
    pub highest: bool,
    /// An executor asks the log for the fate of a cell that was handed out before.
    pub fate: bool,
    /// A replica uses a lease that names itself.
    pub mine: bool,
    /// An agent ends those who have a device open before it says that the lease is over.
    pub holders: bool,
    pub hopd: hopd::Guards,
}

pub(crate) const ALL: Guards = Guards {
    fence: true,
    elected: true,
    committed: true,
    noted: true,
    highest: true,
    fate: true,
    mine: true,
    holders: true,
    hopd: hopd::Guards {
        deposes: true,
        journals: true,
    },
};

/// An entry, as small as the model can have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Logged {
    Tenure { tenure: u8, executor: u8 },
    Ended { tenure: u8, sequence: u8, cell: u8 },
    Lost { tenure: u8, sequence: u8, cell: u8 },
}

pub(crate) fn incarnation(replica: u8) -> Incarnation {
    Incarnation(u32::from(replica) + 1)
}

/// The state after some entries, and the effect of the last.
#[derive(Debug)]
pub(crate) struct View {
    pub state: State,
    pub effect: Option<Result<Effect, Refusal>>,
    /// Acts that changed something though their tenure was not in office.
    pub unfenced: bool,
    /// Cells that a tenure began without, though they had been answered.
    pub lost: usize,
}

type Views = HashMap<(bool, Vec<Logged>), Arc<View>>;
static VIEWS: LazyLock<Mutex<Views>> = LazyLock::new(Mutex::default);

/// The real state machine after these entries.
pub(crate) fn view(fence: bool, log: &[Logged]) -> Arc<View> {
    let key = (fence, log.to_vec());
    if let Some(view) = VIEWS.lock().expect("nobody panics with it").get(&key) {
        return Arc::clone(view);
    }
    let view = match log.split_last() {
        None => View {
            state: members(),
            effect: None,
            unfenced: false,
            lost: 0,
        },
        Some((last, before)) => next(fence, &view(fence, before), *last),
    };
    let view = Arc::new(view);
    VIEWS
        .lock()
        .expect("nobody panics with it")
        .insert(key, Arc::clone(&view));
    view
}

fn members() -> State {
    let mut state = State::new();
    for replica in 0..REPLICAS as u8 {
        let join = Entry::Join {
            incarnation: incarnation(replica),
            seat: JobId(u32::from(replica) + 200),
            node: format!("n{replica}").as_str().into(),
            hot: false,
        };
        apply(&mut state, &join).expect("a new member");
    }
    state
}

fn apply(state: &mut State, entry: &Entry) -> Result<Effect, Refusal> {
    let effect = state.apply(Index(state.applied().0 + 1), entry);
    state.sanity_check().expect("the log's invariants hold");
    effect
}

fn next(fence: bool, before: &View, last: Logged) -> View {
    let mut state = before.state.clone();
    let named = match last {
        Logged::Tenure { .. } => None,
        Logged::Ended { tenure, .. } | Logged::Lost { tenure, .. } => Some(tenure),
    };
    let stale = named.is_some_and(|t| Tenure(u64::from(t)) != state.tenure());
    let effect = apply(&mut state, &entry(fence, &before.state, last));
    let unfenced = stale && matches!(effect, Ok(Effect::Answered { .. }));
    let lost = match &effect {
        Ok(Effect::Opened { lost, .. }) => lost.len(),
        _ => 0,
    };
    View {
        state,
        effect: Some(effect),
        unfenced: before.unfenced || unfenced,
        lost: before.lost + lost,
    }
}

fn entry(fence: bool, state: &State, logged: Logged) -> Entry {
    let (tenure, sequence, act) = match logged {
        Logged::Tenure { tenure, executor } => {
            return Entry::Tenure {
                tenure: Tenure(u64::from(tenure)),
                executor: incarnation(executor),
            };
        }
        Logged::Ended {
            tenure,
            sequence,
            cell,
        } => (tenure, sequence, ended(state, cell)),
        Logged::Lost {
            tenure,
            sequence,
            cell,
        } => {
            let (cell, why) = (name(cell), "lost".to_owned());
            (tenure, sequence, Act::Lost { cell, why })
        }
    };
    if fence {
        return Entry::Act {
            tenure: Tenure(u64::from(tenure)),
            sequence: Sequence(u64::from(sequence)),
            act,
        };
    }
    Entry::Act {
        tenure: state.tenure(),
        sequence: state.sequence().next(),
        act,
    }
}

/// The end of a cell, with its effects in the same entry: the cell is durable.
fn ended(state: &State, cell: u8) -> Act {
    Act::Ended {
        cell: name(cell),
        outcome: Outcome::Ok,
        reply: bytes::Bytes::new(),
        last_output: 0,
        record: Some(hop_log::Record {
            number: state.records().next(),
            payload: hop_log::Payload::Inline {
                text: bytes::Bytes::from_static(b"{}"),
                body: bytes::Bytes::new(),
            },
        }),
    }
}

/// How far an executor is with a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    /// The front has not handed it out here.
    Away,
    Waiting,
    /// `hopd` was asked for a lease.
    Asked,
    Held(u8),
    /// On this lease, if it needs one.
    Running(Option<u8>),
    /// Its end, or its loss, is on its way into the log.
    Proposed,
    Done,
}

/// A replica's process, from its election on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Office {
    pub tenure: u8,
    pub cells: Vec<Stage>,
    /// Cells that the front was told of, and cells that it let begin.
    announced: BTreeSet<u8>,
    permitted: BTreeSet<u8>,
    /// Acts proposed so far.
    acts: u8,
    ended: Option<u8>,
    /// The lease that is over once the running cell has ended.
    revoked: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ToFront {
    Hello {
        tenure: u8,
    },
    Begins {
        tenure: u8,
        cell: u8,
    },
    Reply {
        tenure: u8,
        cell: u8,
    },
    /// The cell was refused a lease: it has not run.
    Error {
        tenure: u8,
        cell: u8,
    },
}

impl ToFront {
    fn tenure(self) -> u8 {
        match self {
            Self::Hello { tenure }
            | Self::Begins { tenure, .. }
            | Self::Reply { tenure, .. }
            | Self::Error { tenure, .. } => tenure,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum FromFront {
    Request { cell: u8, first: Option<u8> },
    MayBegin { cell: u8 },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Replica {
    /// Entries that it has applied.
    pub applied: usize,
    pub office: Option<Office>,
    pub to_hopd: VecDeque<Said>,
    pub events: VecDeque<Event>,
    pub to_front: VecDeque<ToFront>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Open,
    /// The client has a reply.
    Replied,
    /// The client has an error of the scheduler's.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Front {
    pub tenure: u8,
    pub answers: Vec<Answer>,
    first: Vec<Option<u8>>,
    may_have_begun: Vec<bool>,
}

/// A node's agent and its one device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Agent {
    /// The lease that the device is out on, and whether it is our kernel's.
    out: Option<(u8, bool)>,
    /// Our kernel, and the rival, have the device open.
    pub open: [bool; 2],
    /// A lease that ended, until `hopd` knows.
    over: Option<u8>,
    pub orders: VecDeque<Order>,
    pub words: VecDeque<Said>,
}

/// The inputs of `hopd`, and what follows from them.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub said: Vec<Said>,
    told: Arc<Told>,
}

/// The committed entries, and the state after each.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub entries: Vec<Logged>,
    views: Vec<Arc<View>>,
}

/// What follows from the rest takes no part in comparisons.
macro_rules! compare {
    ($type:ty, $field:ident) => {
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                self.$field == other.$field
            }
        }
        impl Eq for $type {}
        impl Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.$field.hash(state);
            }
        }
    };
}
compare!(Heard, said);
compare!(Log, entries);

/// A beginning of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Began {
    pub cell: u8,
    pub tenure: u8,
    pub replica: u8,
    pub lease: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub log: Log,
    /// Entries on their way into the log.
    pub proposals: BTreeSet<Logged>,
    pub replicas: [Replica; REPLICAS],
    pub front: Front,
    pub hopd: Heard,
    pub agents: [Agent; REPLICAS],
    pub began: Vec<Began>,
    pub done: Done,
}

/// How much has happened of what happens a few times only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Done {
    pub elections: u8,
    pub doubles: u8,
    pub rival: bool,
    pub cancels: u8,
    pub dues: u8,
    pub restarts: u8,
}

/// A world with its guards, in which something happens.
pub(crate) struct Scene<'a> {
    pub guards: Guards,
    /// For each cell, whether it needs a lease.
    pub leased: &'a [bool],
    /// An order may be lost on its way. Otherwise it arrives as it is given: a late one would be one that is given later.
    pub late_orders: bool,
    pub world: World,
}

impl World {
    /// The first replica is in office, in tenure 1, and has the client's cells.
    pub(crate) fn new(guards: Guards, leased: &[bool]) -> Self {
        let first = Logged::Tenure {
            tenure: 1,
            executor: 0,
        };
        let cells = leased.len();
        let mut replicas = [Replica::default(), Replica::default()];
        for replica in &mut replicas {
            replica.applied = 1;
        }
        replicas[0].office = Some(Office::new(1, vec![Stage::Waiting; cells]));
        let up = Said::Up {
            replica: 0,
            tenure: 1,
            holds: None,
            waits: None,
            ended: None,
        };
        let world = Self {
            log: Log {
                entries: vec![first],
                views: vec![view(guards.fence, &[first])],
            },
            proposals: BTreeSet::new(),
            replicas,
            front: Front {
                tenure: 1,
                answers: vec![Answer::Open; cells],
                first: vec![None; cells],
                may_have_begun: vec![false; cells],
            },
            hopd: Heard {
                said: vec![up],
                told: hopd::told(guards.hopd, &[up]),
            },
            agents: [Agent::default(), Agent::default()],
            began: Vec::new(),
            done: Done::default(),
        };
        let mut scene = Scene {
            guards,
            leased,
            late_orders: false,
            world,
        };
        scene.go_on(0);
        scene.world
    }

    pub(crate) fn told(&self) -> &Told {
        &self.hopd.told
    }

    /// The leases that replicas believe to have, with the replicas' tenures.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u8, u8, u8)> {
        let offices = (0..)
            .zip(&self.replicas)
            .filter_map(|(r, replica)| Some((r, replica.office.as_ref()?)));
        offices.flat_map(|(r, office)| {
            let lease = move |s: &Stage| match s {
                Stage::Held(lease) | Stage::Running(Some(lease)) => Some((r, office.tenure, *lease)),
                _ => None,
            };
            office.cells.iter().filter_map(lease)
        })
    }

    /// The log as committed so far.
    pub(crate) fn committed(&self) -> &View {
        self.log.views.last().expect("a view for each entry")
    }
}

impl Office {
    fn new(tenure: u8, cells: Vec<Stage>) -> Self {
        Self {
            tenure,
            cells,
            announced: BTreeSet::new(),
            permitted: BTreeSet::new(),
            acts: 0,
            ended: None,
            revoked: None,
        }
    }

    /// What a replica says of itself on a new connection to `hopd`.
    fn report(&self, replica: u8) -> Said {
        let mut holds = None;
        let mut waits = None;
        for (cell, stage) in (0..).zip(&self.cells) {
            match stage {
                Stage::Held(lease) | Stage::Running(Some(lease)) => holds = Some((*lease, cell)),
                Stage::Asked => waits = Some(cell),
                _ => {}
            }
        }
        Said::Up {
            replica,
            tenure: self.tenure,
            holds,
            waits,
            ended: self.ended,
        }
    }
}

impl Scene<'_> {
    fn view(&self, replica: u8) -> Arc<View> {
        let world = &self.world;
        Arc::clone(&world.log.views[world.replicas[usize::from(replica)].applied - 1])
    }

    fn replica(&mut self, replica: u8) -> &mut Replica {
        &mut self.world.replicas[usize::from(replica)]
    }

    // The log.

    /// The tenures that a leader might open: leaders may lag behind.
    pub(crate) fn next_tenures(world: &World) -> BTreeSet<u8> {
        let applied = world.replicas.iter().map(|r| &world.log.views[r.applied - 1]);
        applied.map(|v| v.state.tenure().0 as u8 + 1).collect()
    }

    /// A leader, which may be wrong about anything, gives the kernel an executor.
    pub(crate) fn elect(&mut self, tenure: u8, executor: u8) {
        self.world.done.elections += 1;
        self.world.proposals.insert(Logged::Tenure { tenure, executor });
        if !self.guards.elected {
            self.take_office(executor, tenure);
        }
    }

    pub(crate) fn commit(&mut self, entry: Logged, stays: bool) {
        if stays {
            self.world.done.doubles += 1;
        } else {
            self.world.proposals.remove(&entry);
        }
        let log = &mut self.world.log;
        log.entries.push(entry);
        log.views.push(view(self.guards.fence, &log.entries));
        self.catch_up();
    }

    /// A replica that isn't in office does nothing with an entry but for a tenure's: when it applies others makes no difference.
    fn catch_up(&mut self) {
        let entries = &self.world.log.entries;
        for replica in self.world.replicas.iter_mut().filter(|r| r.office.is_none()) {
            let ahead = &entries[replica.applied..];
            let others = ahead.iter().take_while(|e| !matches!(e, Logged::Tenure { .. }));
            replica.applied += others.count();
        }
    }

    /// The replica applies the next entry.
    pub(crate) fn apply(&mut self, replica: u8) {
        self.replica(replica).applied += 1;
        let view = self.view(replica);
        let entry = self.world.log.entries[self.world.replicas[usize::from(replica)].applied - 1];
        let Some(Ok(effect)) = &view.effect else {
            return self.catch_up();
        };
        match effect {
            Effect::Opened { tenure, executor, .. } => match *executor == incarnation(replica) {
                true if self.guards.elected => self.take_office(replica, tenure.0 as u8),
                // It believed so before.
                true => {}
                false => self.depose(replica),
            },
            Effect::Answered { .. } => self.answered(replica, entry),
            _ => {}
        }
        self.catch_up();
    }

    fn answered(&mut self, replica: u8, entry: Logged) {
        let (Logged::Ended { tenure, cell, .. } | Logged::Lost { tenure, cell, .. }) = entry else {
            return;
        };
        let r = &mut self.world.replicas[usize::from(replica)];
        let Some(office) = r.office.as_mut().filter(|o| o.tenure == tenure) else {
            return;
        };
        office.cells[usize::from(cell)] = Stage::Done;
        if self.guards.committed {
            r.to_front.push_back(ToFront::Reply { tenure, cell });
        }
    }

    fn take_office(&mut self, replica: u8, tenure: u8) {
        self.depose(replica);
        let cells = vec![Stage::Away; self.leased.len()];
        let office = Office::new(tenure, cells);
        let r = self.replica(replica);
        r.to_hopd.push_back(office.report(replica));
        r.to_front.push_back(ToFront::Hello { tenure });
        r.office = Some(office);
    }

    /// The replica's process ends, and what it had open is closed.
    fn depose(&mut self, replica: u8) {
        let r = self.replica(replica);
        r.office = None;
        r.events.clear();
        self.world.agents[usize::from(replica)].open[0] = false;
    }

    fn propose(&mut self, replica: u8, cell: u8, lost: bool) {
        let committed = self.guards.committed;
        let r = &mut self.world.replicas[usize::from(replica)];
        let Some(office) = &mut r.office else { return };
        office.acts += 1;
        office.cells[usize::from(cell)] = Stage::Proposed;
        let (tenure, sequence) = (office.tenure, office.acts);
        if !committed {
            r.to_front.push_back(ToFront::Reply { tenure, cell });
        }
        self.world.proposals.insert(if lost {
            Logged::Lost {
                tenure,
                sequence,
                cell,
            }
        } else {
            Logged::Ended {
                tenure,
                sequence,
                cell,
            }
        });
    }

    // The executor.

    /// The executor goes on with its first cell that isn't through.
    fn go_on(&mut self, replica: u8) {
        let r = &mut self.world.replicas[usize::from(replica)];
        let Some(office) = &mut r.office else { return };
        let tenure = office.tenure;
        let through = |s: &Stage| matches!(s, Stage::Proposed | Stage::Done);
        let Some(at) = office.cells.iter().position(|s| !through(s)) else {
            return;
        };
        let (cell, stage) = (at as u8, office.cells[at]);
        let lease = match stage {
            Stage::Waiting if self.leased[at] => {
                office.cells[at] = Stage::Asked;
                r.to_hopd.push_back(Said::Submit {
                    replica,
                    tenure,
                    cell,
                });
                return;
            }
            Stage::Waiting => None,
            Stage::Held(lease) => Some(lease),
            _ => return,
        };
        if office.announced.insert(cell) {
            r.to_front.push_back(ToFront::Begins { tenure, cell });
        }
        if office.permitted.contains(&cell) {
            office.cells[at] = Stage::Running(lease);
            self.world.began.push(Began {
                cell,
                tenure,
                replica,
                lease,
            });
        }
    }

    /// The running cell ends.
    pub(crate) fn end(&mut self, replica: u8) {
        let r = &mut self.world.replicas[usize::from(replica)];
        let Some(office) = &mut r.office else { return };
        let tenure = office.tenure;
        let running = |s: &Stage| matches!(s, Stage::Running(_));
        let Some(at) = office.cells.iter().position(running) else {
            return;
        };
        let cell = at as u8;
        if let Stage::Running(Some(lease)) = office.cells[at] {
            office.ended = Some(cell);
            r.to_hopd.push_back(Said::Used {
                replica,
                tenure,
                cell,
                lease,
            });
            if let Some(lease) = office.revoked.take() {
                r.to_hopd.push_back(Said::Release {
                    replica,
                    tenure,
                    lease,
                });
            }
        }
        self.propose(replica, cell, false);
        self.go_on(replica);
    }

    pub(crate) fn replica_hears_hopd(&mut self, replica: u8) {
        let mine = self.guards.mine;
        let r = &mut self.world.replicas[usize::from(replica)];
        let (Some(event), Some(office)) = (r.events.pop_front(), &mut r.office) else {
            return;
        };
        let tenure = office.tenure;
        match event {
            Event::Granted {
                cell,
                lease,
                executor,
            } => {
                let stage = &mut office.cells[usize::from(cell)];
                if *stage == Stage::Asked {
                    if executor == replica || !mine {
                        *stage = Stage::Held(lease);
                    } else {
                        r.to_hopd.push_back(Said::Release {
                            replica,
                            tenure,
                            lease,
                        });
                        r.to_hopd.push_back(office.report(replica));
                    }
                }
            }
            Event::Refused { cell } => {
                let stage = &mut office.cells[usize::from(cell)];
                if *stage == Stage::Asked {
                    *stage = Stage::Done;
                    r.to_front.push_back(ToFront::Error { tenure, cell });
                }
            }
            Event::Revoked { lease } => {
                let holds = |s: &Stage| *s == Stage::Held(lease);
                if let Some(at) = office.cells.iter().position(holds) {
                    office.cells[at] = Stage::Waiting;
                }
                if office.cells.contains(&Stage::Running(Some(lease))) {
                    office.revoked = Some(lease);
                } else {
                    r.to_hopd.push_back(Said::Release {
                        replica,
                        tenure,
                        lease,
                    });
                }
            }
        }
        self.go_on(replica);
    }

    /// The front's word arrives at once. A late permission would be a cell that begins late, and nothing rests on when it does.
    fn replica_hears_front(&mut self, replica: u8, tenure: u8, message: FromFront) {
        let view = self.view(replica);
        let asks = self.guards.fate;
        let r = &mut self.world.replicas[usize::from(replica)];
        let Some(office) = r.office.as_mut().filter(|o| o.tenure == tenure) else {
            return;
        };
        match message {
            FromFront::MayBegin { cell } => {
                office.permitted.insert(cell);
            }
            FromFront::Request { cell, first } => {
                let first = first.filter(|_| asks).map(|t| Tenure(u64::from(t)));
                let fate = first.map_or(Fate::Run, |t| view.state.fate(&name(cell), t));
                match fate {
                    Fate::Run => office.cells[usize::from(cell)] = Stage::Waiting,
                    Fate::Answered(_) => {
                        office.cells[usize::from(cell)] = Stage::Done;
                        r.to_front.push_back(ToFront::Reply { tenure, cell });
                    }
                    Fate::LostInTheMiddle => self.propose(replica, cell, true),
                }
            }
        }
        self.go_on(replica);
    }

    // The front.

    pub(crate) fn front_hears(&mut self, replica: u8) {
        let fenced = self.guards.highest;
        let Some(message) = self.replica(replica).to_front.pop_front() else {
            return;
        };
        let front = &mut self.world.front;
        let counts = |tenure: u8| tenure == front.tenure || !fenced;
        match message {
            ToFront::Hello { tenure } if tenure > front.tenure || !fenced => {
                self.next_tenure(replica, tenure)
            }
            ToFront::Begins { tenure, cell } if counts(tenure) => {
                front.may_have_begun[usize::from(cell)] = true;
                self.replica_hears_front(replica, tenure, FromFront::MayBegin { cell });
            }
            ToFront::Reply { tenure, cell } if counts(tenure) => self.answer(cell, Answer::Replied),
            ToFront::Error { tenure, cell } if counts(tenure) => self.answer(cell, Answer::Refused),
            _ => {}
        }
    }

    /// The front drops what comes of lower tenures, whenever it comes.
    pub(crate) fn drop_stale(&mut self) {
        if self.guards.highest {
            let highest = self.world.front.tenure;
            for replica in &mut self.world.replicas {
                replica.to_front.retain(|m| m.tenure() >= highest);
            }
        }
    }

    fn answer(&mut self, cell: u8, answer: Answer) {
        let known = &mut self.world.front.answers[usize::from(cell)];
        if *known == Answer::Open {
            *known = answer;
        }
    }

    fn next_tenure(&mut self, replica: u8, tenure: u8) {
        let noted = self.guards.noted;
        let front = &mut self.world.front;
        let last = std::mem::replace(&mut front.tenure, tenure);
        let mut handed = Vec::new();
        for cell in 0..front.answers.len() {
            if front.answers[cell] != Answer::Open {
                continue;
            }
            if front.may_have_begun[cell] && noted {
                front.first[cell].get_or_insert(last);
            }
            front.may_have_begun[cell] = false;
            let (cell, first) = (cell as u8, front.first[cell]);
            handed.push(FromFront::Request { cell, first });
        }
        for request in handed {
            self.replica_hears_front(replica, tenure, request);
        }
    }

    // hopd and the agents.

    pub(crate) fn say(&mut self, said: Said) {
        let done = &mut self.world.done;
        match said {
            Said::RivalWants => done.rival = true,
            Said::Cancel(_) => done.cancels += 1,
            Said::Due => done.dues += 1,
            Said::Restart => done.restarts += 1,
            _ => {}
        }
        let guards = self.guards.hopd;
        let mut inputs = self.world.hopd.said.clone();
        inputs.push(said);
        let told = hopd::told(guards, &inputs);
        let (said, standing) = hopd::standing(guards, &inputs);
        self.world.hopd = Heard { said, told: standing };
        for (node, order) in &told.orders {
            self.world.agents[usize::from(*node)].orders.push_back(*order);
            if !self.late_orders {
                self.agent_hears(*node);
            }
        }
        for (r, registered) in self.world.replicas.iter_mut().zip(told.registered) {
            if registered && r.office.is_some() {
                r.events.extend(told.events.iter().copied());
            }
        }
    }

    pub(crate) fn hopd_hears(&mut self, replica: u8) {
        if let Some(said) = self.replica(replica).to_hopd.pop_front() {
            self.say(said);
        }
    }

    pub(crate) fn hopd_hears_agent(&mut self, node: u8) {
        if let Some(said) = self.world.agents[usize::from(node)].words.pop_front() {
            self.say(said);
        }
    }

    pub(crate) fn agent_hears(&mut self, node: u8) {
        let in_office = self.world.replicas[usize::from(node)].office.is_some();
        let agent = &mut self.world.agents[usize::from(node)];
        let Some(order) = agent.orders.pop_front() else {
            return;
        };
        match order {
            Order::Start { lease, .. } if agent.out.is_some() => {
                agent.words.push_back(Said::Failed { node, lease });
            }
            Order::Start { lease, ours } => {
                agent.out = Some((lease, ours));
                // A kernel opens a device as soon as it may, and never closes it.
                agent.open[usize::from(!ours)] |= in_office || !ours;
                agent.words.push_back(Said::Started { node, lease });
            }
            Order::End { lease } => {
                if agent.out.is_some_and(|(out, _)| out == lease) {
                    agent.out = None;
                    if self.guards.holders {
                        agent.open = [false; 2];
                    }
                }
                agent.over = Some(lease);
                agent.words.push_back(Said::Over { node, lease });
            }
            Order::Forget { lease } => {
                agent.over.take_if(|over| *over == lease);
            }
        }
    }

    /// Another `hopd` goes on. What was on its way to or from the old one is lost; all report themselves anew.
    pub(crate) fn restart(&mut self) {
        for agent in &mut self.world.agents {
            agent.orders.clear();
            agent.words.clear();
        }
        for r in &mut self.world.replicas {
            r.to_hopd.clear();
            r.events.clear();
        }
        self.say(Said::Restart);
        for (node, agent) in (0..).zip(&mut self.world.agents) {
            let (live, over) = (agent.out, agent.over);
            agent.words.push_back(Said::Agent { node, live, over });
        }
        for (replica, r) in (0..).zip(&mut self.world.replicas) {
            if let Some(office) = &r.office {
                r.to_hopd.push_back(office.report(replica));
            }
        }
    }
}

/// Whether the log has the cell's answer, by its end or by its loss.
pub(crate) fn has_answer(view: &View, cell: u8) -> Option<bool> {
    let answer = view.state.answer(&name(cell))?;
    Some(matches!(answer.end, End::Ended { .. }))
}
