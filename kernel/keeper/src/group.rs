//! The task of one group: stands for election when due, and carries out the steward's deeds as the leader.

use crate::election::{self, View};
use crate::event::{Event, Need};
use crate::hearing::Heard;
use crate::links::{Links, Wire};
use crate::lock::lock;
use crate::patience::Patience;
use crate::wire::Frame;
use hop_log::steward::{self, Deed};
use hop_log::{Entry, State};
use hop_protocol::wait;
use hop_raft::{Feed, Group as _, Member, News, Standing};
use hop_words::id::{Incarnation, JobId};
use hop_words::time::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The pause before a deed that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Time without an entry after which the voters accept another leader: their lease is 500 ms (docs/replication.md).
const QUIET: Duration = Duration::from_millis(700);

type Doing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A group that this seat keeps.
pub(crate) struct Group {
    pub(crate) links: Arc<Links>,
    pub(crate) name: String,
    pub(crate) me: Incarnation,
    pub(crate) member: Arc<Member<Wire>>,
    pub(crate) seats: Arc<Mutex<BTreeMap<Incarnation, JobId>>>,
    pub(crate) wanted: usize,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) patience: Patience,
}

/// What the task remembers between two wakings.
struct Memory {
    state: Option<State>,
    /// The seats up at the last waking.
    up: BTreeSet<JobId>,
    /// The next attempt to be elected.
    stands_at: Option<Instant>,
    /// The host looks whether the group is over then, while no leader is in sight.
    looks_at: Option<Instant>,
    /// Members that are far from the log's end, and since when the leader waits for them.
    lagging: BTreeMap<Incarnation, Instant>,
    /// Members that have left and were not told, and their seats.
    parted: BTreeMap<Incarnation, JobId>,
    /// The time to leave, while all others are gone.
    leaves_at: Option<Instant>,
    /// The voters' lease is over then.
    quiet_at: Instant,
    /// The next look at who should lead.
    leads_at: Option<Instant>,
    /// The deed under way.
    doing: Option<Doing>,
    /// The last report of missing replicas: their number, the highest incarnation then, and the members lost.
    told: Option<(usize, Incarnation, BTreeSet<Incarnation>)>,
}

impl Group {
    /// Runs until the member is closed.
    pub(crate) async fn run(self) {
        let Feed { state, mut news } = self.member.subscribe();
        let mut heard = self.links.heard();
        let mut memory = Memory {
            state,
            up: BTreeSet::new(),
            stands_at: None,
            looks_at: None,
            lagging: BTreeMap::new(),
            parted: BTreeMap::new(),
            leaves_at: None,
            quiet_at: Instant::now() + QUIET,
            leads_at: None,
            doing: None,
            told: None,
        };
        self.follow_seats(&memory);
        loop {
            let standing = self.member.standing();
            let now_heard = heard.borrow_and_update().clone();
            self.act(&mut memory, &standing, &now_heard).await;
            self.notice_abandonment(&mut memory, &now_heard);
            let (stands_at, leaves_at, leads_at) = (memory.stands_at, memory.leaves_at, memory.leads_at);
            let (lags_at, looks_at) = (memory.lags_at(self.patience.lags), memory.looks_at);
            let mut done = false;
            tokio::select! {
                item = news.recv() => match item {
                    Some(item) => {
                        self.learn(&mut memory, item);
                        while let Ok(item) = news.try_recv() {
                            self.learn(&mut memory, item);
                        }
                        self.follow_seats(&memory);
                    }
                    None => return,
                },
                changed = self.member.standing_changed(&standing) => if !changed {
                    return;
                },
                changed = heard.changed() => if changed.is_err() {
                    return;
                },
                () = wait::at(stands_at) => {}
                () = wait::at(leads_at) => {}
                () = wait::at(lags_at) => {}
                () = wait::at(looks_at) => {}
                () = wait::at(leaves_at) => {
                    let group = self.name.clone();
                    // Without a listening host, the seat ends by its job's limit.
                    let _ = self.events.send(Event::Closed { group });
                    return;
                }
                () = finished(&mut memory.doing) => done = true,
            }
            if done {
                memory.doing = None;
            }
        }
    }

    /// Takes in the log's news. A member that has left gets no entries any more: the leader tells its seat.
    fn learn(&self, memory: &mut Memory, item: News) {
        let left = match &item {
            News::Applied {
                entry: Entry::Left { incarnation },
                effect: Ok(_),
                ..
            } => Some(*incarnation),
            _ => None,
        };
        memory.learn(item);
        let seat = left.and_then(|left| lock(&self.seats).get(&left).copied());
        memory.parted.extend(left.zip(seat));
    }

    /// Tells, as the leader, which members have left. A member that still has a vote is told after losing it.
    fn tell_who_left(&self, memory: &mut Memory) {
        memory.parted.retain(|left, seat| {
            let has_left = self.member.has_left(*left);
            if has_left {
                self.send(*seat, |group| Frame::Left { group, member: *left });
            }
            !has_left
        });
    }

    /// Asks the others whether this member still belongs: the member may have been replaced while no message came.
    fn ask_whether_a_member(&self) {
        let others = lock(&self.seats).clone().into_values();
        for seat in others.filter(|seat| *seat != self.links.me()) {
            self.send(seat, |group| Frame::Asks {
                group,
                member: self.me,
            });
        }
    }

    /// Sends a frame about this group.
    fn send(&self, seat: JobId, frame: impl FnOnce(String) -> Frame) {
        self.links.send(seat, &frame(self.name.clone()));
    }

    fn follow_seats(&self, memory: &Memory) {
        let Some(state) = &memory.state else { return };
        let seats: BTreeMap<_, _> = state.members().iter().map(|(id, m)| (*id, m.seat)).collect();
        let mut known = lock(&self.seats);
        if *known == seats {
            return;
        }
        known.clone_from(&seats);
        drop(known);
        self.links.share(&self.name, seats.into_values().collect());
    }

    /// A group whose other members have all gone can do nothing any more.
    fn notice_abandonment(&self, memory: &mut Memory, heard: &Heard) {
        let me = self.links.me();
        let seats = lock(&self.seats);
        let mut others = seats.values().filter(|s| **s != me).peekable();
        let abandoned = others.peek().is_some() && others.all(|s| heard.gone.contains(s));
        memory.leaves_at = match abandoned {
            true => memory
                .leaves_at
                .or_else(|| Some(Instant::now() + self.patience.abandoned)),
            false => None,
        };
    }

    async fn act(&self, memory: &mut Memory, standing: &Standing, heard: &Heard) {
        let new = !heard.up.is_subset(&memory.up);
        memory.up.clone_from(&heard.up);
        memory.leads_at = None;
        if let Some(why) = &standing.stopped {
            self.say_failed(why);
        }
        let goes_on = standing.stopped.is_none();
        self.have_the_host_look(memory, standing, heard);
        if standing.leader == Some(self.me) && goes_on {
            memory.stands_at = None;
            if new {
                self.member.remind().await;
            }
            memory.wait_for(standing);
            self.tell_who_left(memory);
            if memory.doing.is_none() {
                memory.doing = self.next_deed(memory, standing, heard);
            }
            return;
        }
        memory.doing = None;
        // Another leader may have told the executor of missing replicas. This member tells it again once it leads.
        self.withdraw_need(memory);
        memory.lagging.clear();
        memory.parted.clear();
        if new {
            self.ask_whether_a_member();
        }
        if goes_on {
            self.stand(memory, standing, heard).await;
        }
    }

    /// Tells the other seats that this member can't go on. The others go on without it, and have it replaced.
    fn say_failed(&self, why: &str) {
        if self.links.fail(&self.name, self.me) {
            tracing::error!(
                group = self.name,
                "this seat's replica can't go on, the others go on without it: {why}"
            );
        }
    }

    /// A group without a leader may be over, with nobody left to say so. The same is true for a member that has no vote
    /// yet, or whose vote can't win, and for a leader that hears too few of the others.
    fn have_the_host_look(&self, memory: &mut Memory, standing: &Standing, heard: &Heard) {
        let seats = lock(&self.seats);
        let is_up = |member: &Incarnation| seats.get(member).is_some_and(|seat| heard.up.contains(seat));
        let goes_on = match standing.leader {
            Some(leader) if leader == self.me => {
                let up = standing.voters.iter().filter(|v| **v == self.me || is_up(v));
                up.count() * 2 > standing.voters.len()
            }
            Some(leader) => is_up(&leader),
            None => false,
        };
        if goes_on {
            memory.looks_at = None;
            return;
        }
        let now = Instant::now();
        let at = *memory.looks_at.get_or_insert(now + self.patience.leaderless);
        if at <= now {
            memory.looks_at = Some(now + self.patience.leaderless);
            let group = self.name.clone();
            // Without a listening host, the seat ends by its job's limit.
            let _ = self.events.send(Event::Leaderless { group });
        }
    }

    async fn stand(&self, memory: &mut Memory, standing: &Standing, heard: &Heard) {
        let seats = lock(&self.seats).clone();
        let view = View {
            me: self.me,
            executor: memory.state.as_ref().and_then(State::executor),
            standing,
            seats: &seats,
            heard,
            failed: &self.failed(heard),
        };
        let Some((first, again)) = election::stands(view) else {
            memory.stands_at = None;
            return;
        };
        let now = Instant::now();
        let at = *memory.stands_at.get_or_insert_with(|| now + duration(first));
        if at <= now {
            tracing::info!(group = self.name, "stands for election");
            self.member.campaign().await;
            self.ask_whether_a_member();
            memory.stands_at = Some(now + duration(again));
        }
    }

    fn next_deed(&self, memory: &mut Memory, standing: &Standing, heard: &Heard) -> Option<Doing> {
        let member = Arc::clone(&self.member);
        // An earlier leader has begun this change.
        if let Some(next) = standing.next_voters.clone() {
            return Some(Box::pin(async move {
                pause_after(member.set_voters(next).await).await
            }));
        }
        let state = memory.state.as_ref()?;
        let late = memory.late(self.patience.lags);
        let Some(deed) = self.deed(state, standing, heard, &late) else {
            self.withdraw_need(memory);
            return None;
        };
        match deed {
            Deed::Propose(entry) => Some(Box::pin(
                async move { pause_after(member.propose(entry).await).await },
            )),
            Deed::Learner(learner) => Some(Box::pin(async move {
                pause_after(member.add_learner(learner).await).await
            })),
            Deed::Voters(voters) => Some(Box::pin(async move {
                pause_after(member.set_voters(voters).await).await
            })),
            // The others would refuse the candidate, and the group would have no leader until they don't.
            Deed::Lead(_) if Instant::now() < memory.quiet_at => {
                memory.leads_at = Some(memory.quiet_at);
                None
            }
            Deed::Lead(to) => {
                let seat = state.members().get(&to)?.seat;
                self.send(seat, |group| Frame::Stand { group, to });
                Some(Box::pin(tokio::time::sleep(AGAIN_AFTER)))
            }
            Deed::Grow(count) => {
                let gone = self.members_in(&heard.gone);
                let failed = &(&self.failed(heard) | &late) - &gone;
                let told = Some((count, state.highest_incarnation(), &gone | &failed));
                if memory.told != told {
                    memory.told = told;
                    // Without a listening host, kernels run with fewer replicas.
                    let _ = self.events.send(Event::Need(Need {
                        group: self.name.clone(),
                        replicas: count,
                        gone,
                        failed,
                    }));
                }
                None
            }
        }
    }

    /// Takes back what was told of missing replicas: a lost member may have recovered.
    fn withdraw_need(&self, memory: &mut Memory) {
        if memory.told.take().is_some() {
            // As for the need itself.
            let _ = self.events.send(Event::Need(Need {
                group: self.name.clone(),
                replicas: 0,
                gone: BTreeSet::new(),
                failed: BTreeSet::new(),
            }));
        }
    }

    /// Members that can't go on, though their seats are up.
    fn failed(&self, heard: &Heard) -> BTreeSet<Incarnation> {
        heard.failed.get(&self.name).cloned().unwrap_or_default()
    }

    /// The members in these seats.
    fn members_in(&self, seats: &BTreeSet<JobId>) -> BTreeSet<Incarnation> {
        let known = lock(&self.seats);
        let here = known.iter().filter(|(_, seat)| seats.contains(seat));
        here.map(|(member, _)| *member).collect()
    }

    /// `late` are members whose seats don't take the log.
    fn deed(
        &self,
        state: &State,
        standing: &Standing,
        heard: &Heard,
        late: &BTreeSet<Incarnation>,
    ) -> Option<Deed> {
        let failed = self.failed(heard);
        let gone = &(&self.members_in(&heard.gone) | late) | &failed;
        let mut up = self.members_in(&heard.up);
        up.extend(self.members_in(&BTreeSet::from([self.links.me()])));
        // An executor that is out of sight for a moment may run a cell.
        let mut lost = self.members_in(&heard.lost);
        let rested = heard
            .resting
            .iter()
            .filter(|(_, groups)| groups.contains(&self.name));
        lost.extend(self.members_in(&rested.map(|(seat, _)| *seat).collect()));
        up.extend(state.executor().filter(|e| !lost.contains(e)));
        up.retain(|member| !failed.contains(member));
        let unfit = lock(&self.seats)
            .keys()
            .filter(|m| !up.contains(m))
            .copied()
            .collect();
        steward::next(
            state,
            &steward::View {
                me: self.me,
                voters: &standing.voters,
                learners: &standing.learners,
                changing: standing.is_changing(),
                gone: &gone,
                unfit: &unfit,
                leaving: &BTreeSet::new(),
                died: None,
                wanted: self.wanted,
            },
        )
    }
}

impl Memory {
    /// Notes since when members lag. The executor is left out: it gives up by itself a group that takes no entries.
    fn wait_for(&mut self, standing: &Standing) {
        let new = standing.learners.iter().filter(|(_, caught_up)| !**caught_up);
        let mut lags: BTreeSet<Incarnation> = new.map(|(member, _)| *member).collect();
        let executor = self.state.as_ref().and_then(State::executor);
        lags.extend(standing.behind.iter().filter(|v| executor != Some(**v)));
        self.lagging.retain(|member, _| lags.contains(member));
        let now = Instant::now();
        for member in lags {
            self.lagging.entry(member).or_insert(now);
        }
    }

    fn late(&self, after: Duration) -> BTreeSet<Incarnation> {
        let late = self.lagging.iter().filter(|(_, since)| since.elapsed() >= after);
        late.map(|(member, _)| *member).collect()
    }

    /// The next time at which a member is late.
    fn lags_at(&self, after: Duration) -> Option<Instant> {
        let times = self.lagging.values().map(|since| *since + after);
        times.filter(|at| *at > Instant::now()).min()
    }

    fn learn(&mut self, news: News) {
        self.quiet_at = Instant::now() + QUIET;
        match news {
            News::State(state) => self.state = Some(*state),
            News::Applied { index, entry, .. } => {
                if let Some(state) = &mut self.state {
                    // A refused entry is no news to the leader's duties.
                    let _ = state.apply(index, &entry);
                }
            }
        }
    }
}

/// Pauses after a failed deed. A successful deed shows in the next news.
async fn pause_after<T, E: std::fmt::Display>(done: Result<T, E>) {
    if let Err(error) = done {
        tracing::debug!(%error, "a deed for a group failed");
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

async fn finished(doing: &mut Option<Doing>) {
    match doing {
        Some(doing) => doing.as_mut().await,
        None => std::future::pending().await,
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_micros(span.0)
}
