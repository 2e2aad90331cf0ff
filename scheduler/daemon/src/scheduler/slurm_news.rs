//! Periodic queries of Slurm's queue, nodes, limits and shares, and what follows from the answers.

use super::records::{JournalKey, JournalValue};
use super::{Due, Report, Scheduler};
use crate::admission::Rules;
use crate::pilot_jobs::{Seen, SeenJob, tells_why};
use crate::slurm::{Facts, Queue, WaitingSeat};
use crate::supply::Rooms;
use hop_core::config::{Limits, Shares};
use hop_core::{Input, NodeFacts, Room};
use hop_words::clock::Skew;
use hop_words::id::{JobId, NodeName, PoolName, UserName};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tracing::{info, warn};

/// Until the next try after Slurm or slurmdbd gave no answer.
const SOON: Span = Span::from_secs(5);
/// The longest pause between two looks at the queue while Slurm is away.
const LOOK_LAST: Span = Span::from_secs(60);

/// The least difference between `hopd`'s clock and its host's that is a problem.
const CLOCKS_APART: Span = Span::from_secs(5);

/// At least this long the journal's copy of usage in fair share is good: with a half-life of days little is added to
/// it.
const KEEP_EVERY: Span = Span::from_secs(3600);

/// What is known of Slurm.
#[derive(Debug)]
pub(super) struct SlurmNews {
    pub(super) stepmgr: bool,
    /// What Slurm doesn't show us (`PrivateData`).
    hidden: Vec<String>,
    /// The limits that the core was told. `None` means that Slurm has never said.
    pub(super) limits: Option<Limits>,
    /// Whom each pool's partition takes. `None` means that Slurm has never said.
    pub(super) rules: Option<BTreeMap<PoolName, Rules>>,
    /// The shares that are in the journal. `None` means that Slurm has never said.
    pub(super) shares: Option<Shares>,
    /// The nodes with room taken by the jobs of others, as the core was told.
    rooms: BTreeMap<NodeName, Room>,
    /// Seats that Slurm has not started, by the last look.
    seats: Vec<WaitingSeat>,
    look_pause: Span,
    /// Since when Slurm's queue is being read. `None` means that nobody reads it now.
    looking: Option<Timestamp>,
    problems: BTreeMap<&'static str, String>,
}

impl SlurmNews {
    pub(super) fn new(
        look_pause: Span,
        limits: Option<Limits>,
        rules: Option<BTreeMap<PoolName, Rules>>,
        shares: Option<Shares>,
    ) -> Self {
        Self {
            stepmgr: false,
            hidden: Vec::new(),
            limits,
            rules,
            shares,
            rooms: BTreeMap::new(),
            seats: Vec::new(),
            look_pause,
            looking: None,
            problems: BTreeMap::new(),
        }
    }

    /// Whether an invisible job may exist all the same.
    pub(super) fn hides_jobs(&self) -> bool {
        self.hidden.iter().any(|word| word == "jobs")
    }

    /// What is wrong, in sentences.
    pub(super) fn problems(&self) -> Vec<String> {
        self.problems.values().cloned().collect()
    }

    /// Whether Slurm's queue could not be read at the last look.
    pub(super) fn is_away(&self) -> bool {
        self.problems.contains_key("queue")
    }

    /// How long Slurm has not answered the present look. `None` means that nothing is asked.
    pub(super) fn silent_for(&self, now: Timestamp) -> Option<Span> {
        self.looking.map(|since| now.since(since))
    }

    /// The user's seats that Slurm has not started.
    pub(super) fn waiting_seats(&self, user: &UserName) -> impl Iterator<Item = &WaitingSeat> {
        self.seats.iter().filter(move |seat| seat.user == *user)
    }

    /// Notes a problem; `true` means a new problem.
    pub(super) fn trouble(&mut self, about: &'static str, text: String) -> bool {
        self.problems.insert(about, text).is_none()
    }

    /// Clears a problem; `true` means that the problem was noted.
    pub(super) fn relief(&mut self, about: &'static str) -> bool {
        self.problems.remove(about).is_some()
    }

    #[cfg(test)]
    pub(super) fn is_looking(&self) -> bool {
        self.looking.is_some()
    }

    #[cfg(test)]
    pub(super) fn look_began(&mut self, at: Timestamp) {
        self.looking = Some(at);
    }
}

fn room_of(node: &NodeName, room: Room) -> Input {
    let node = node.clone();
    Input::NodeRoom { node, room }
}

impl Scheduler {
    // --- the queue ---

    pub(super) fn look_soon(&mut self) {
        let soon = Span::from_millis(500).min(self.news.look_pause);
        self.look_in(soon);
    }

    /// Schedules the next look; an earlier schedule is dropped.
    fn look_in(&mut self, pause: Span) {
        self.due.retain(|(_, due)| *due != Due::Look);
        self.due.insert((self.clock.now() + pause, Due::Look));
    }

    /// One look at a time. A job missing from two answers must have been missing for as long as the second took; two
    /// looks begun before a submission would both miss it. The answer to the present look brings the next.
    pub(super) fn look(&mut self) {
        if self.news.looking.is_some() {
            return;
        }
        self.news.looking = Some(self.clock.now());
        let users = self.seated_users();
        let known = self.pilot_jobs.known_jobs(self.live_pilots());
        let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
        tokio::spawn(async move {
            let answer = slurm.queue(users.into_iter().collect(), &known).await;
            let _ = reports.send(Report::Looked(answer));
        });
    }

    /// The users whose seats Slurm is asked for: those who have some, those whose kernels wait for one, and those whose
    /// kernels may have none left.
    pub(super) fn seated_users(&self) -> BTreeSet<UserName> {
        let up = self.registry.kernels();
        let starting = self.connections.heard().filter(|kernel| !up.contains(kernel));
        let owners = starting.filter_map(|kernel| self.owner_of(kernel).cloned());
        let bare = self.core.bare_kernels().map(|k| k.user.clone());
        let seated = self.seats.users().into_iter();
        seated.chain(owners).chain(bare).collect()
    }

    pub(super) fn looked(&mut self, answer: Result<Queue, String>) {
        self.news.looking = None;
        let now = self.clock.now();
        match answer {
            Err(reason) => {
                self.abandoned.unanswered();
                self.news.look_pause = Span((self.news.look_pause.0 * 2).min(LOOK_LAST.0));
                if self
                    .news
                    .trouble("queue", format!("Slurm does not answer: {reason}."))
                {
                    warn!("Slurm's queue can't be read: {reason}; what runs goes on");
                }
                // With step managers leases start without slurmctld.
                let away = !self.news.stepmgr;
                self.todo.push_back(Input::SlurmAway { away });
            }
            Ok(mut queue) => {
                self.news.look_pause = Span::from_secs(self.config.hopd.poll_s.into());
                if self.news.relief("queue") {
                    info!("Slurm answers again");
                }
                self.todo.push_back(Input::SlurmAway { away: false });
                self.connections.doubt();
                let pilots = self.live_pilots();
                self.say_what_pilots_wait_for(&queue.pilots);
                self.rooms(queue.rooms);
                self.news.seats = queue.seats;
                let before = self.pilot_jobs.delays();
                let acts = self.pilot_jobs.looked(&queue.pilots, &pilots, now);
                self.act(acts);
                self.tell_of_delays(&before);
                self.seats_gone(&queue.alive);
                self.forget_abandoned(&queue.alive, now);
                self.drained(queue.drained);
                let skew = self.clock.skew();
                self.compare_clocks(skew);
                for end in queue.ends.values_mut() {
                    end.at = skew.of_wall(end.at);
                }
                self.fit_before_reservations(queue.held_up, skew.wall);
                self.pilots_end(&queue.ends);
                self.seats_end(&queue.ends);
            }
        }
        self.look_in(self.news.look_pause);
    }

    /// The wall clock may be set while `hopd` runs, as by the first answer of a time server after a boot. `hopd`'s
    /// waits keep their length, and Slurm's times are converted; only the times told by `hopd` are off.
    fn compare_clocks(&mut self, skew: Skew) {
        let (behind, ahead) = (skew.wall.since(skew.own), skew.own.since(skew.wall));
        if behind.max(ahead) < CLOCKS_APART {
            self.news.relief("clock");
            return;
        }
        let (by, where_to) = if behind > ahead {
            (behind, "behind")
        } else {
            (ahead, "ahead of")
        };
        let text = format!(
            "The clock of this host was set since hopd's start: hopd is {:.0} s {where_to} it, and so are the times in \
             hop acct; restart hopd (what runs goes on).",
            by.as_secs_f64()
        );
        if self.news.trouble("clock", text.clone()) {
            warn!("{text}");
        }
    }

    /// The jobs of others come and go all the time: the core is told what has changed for its pilots and seats.
    fn rooms(&mut self, rooms: Rooms) {
        let before = &self.news.rooms;
        let is_news = |node: &NodeName, room: &Room| before.get(node).copied().unwrap_or_default() != *room;
        let told = rooms.of.iter().filter(|(node, room)| is_news(node, room));
        self.todo.extend(told.map(|(node, room)| room_of(node, *room)));
        self.pilot_jobs.set_full(rooms.full);
        // A node missing from the look keeps the room told to the core.
        self.news.rooms.extend(rooms.of);
        self.news.rooms.retain(|_, room| *room != Room::default());
    }

    /// Reports pilots that Slurm doesn't start: `hop info` shows them as the reason why cells wait.
    fn say_what_pilots_wait_for(&mut self, jobs: &[SeenJob]) {
        let waiting = jobs.iter().filter(|j| j.state == Seen::Waiting);
        let said: Vec<String> = waiting
            .filter(|j| tells_why(&j.reason))
            .map(|j| format!("{} ({})", j.job, j.reason))
            .collect();
        if said.is_empty() {
            self.news.relief("pilots");
        } else {
            let text = format!("Pilots wait in Slurm's queue: {}.", said.join(", "));
            self.news.trouble("pilots", text);
        }
    }

    /// Drops seats that Slurm shows no more. A seat learnt since this look began is left to the next look.
    fn seats_gone(&mut self, alive: &[JobId]) {
        let gone = self.seats.missing_from(alive).into_iter();
        let gone: Vec<JobId> = gone.filter(|job| !self.registry.is_seated(*job)).collect();
        for job in gone {
            self.seats.forget(job);
            self.write_seat(job, None);
            self.todo.push_back(Input::SeatGone { job });
            for id in self.registry.in_seat(job) {
                self.replica_away(&id);
            }
        }
    }

    // --- limits, shares, nodes and settings ---

    fn refresh(&self) -> Span {
        Span::from_secs(self.config.hopd.refresh_s.into())
    }

    /// Asks Slurm before anybody is served for limits, and for whom the pools' partitions take, where no earlier `hopd`
    /// has written these down. After `patience` it goes on without.
    pub(crate) async fn learn_limits(&mut self, patience: Duration) {
        let silent = || "no answer".to_owned();
        if self.news.limits.is_none() {
            let asked = tokio::time::timeout(patience, self.slurm.limits()).await;
            self.limits(asked.unwrap_or_else(|_| Err(silent())));
        }
        if !self.without_rules().is_empty() {
            let asked = tokio::time::timeout(patience, self.slurm.facts()).await;
            self.facts(asked.unwrap_or_else(|_| Err(silent())));
        }
    }

    /// The configured pools of which Slurm has never said whom their partitions take.
    fn without_rules(&self) -> Vec<&PoolName> {
        let known = |pool: &PoolName| self.news.rules.as_ref().is_some_and(|r| r.contains_key(pool));
        self.config.pool.keys().filter(|pool| !known(pool)).collect()
    }

    pub(super) fn ask_limits(&mut self) {
        let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
        tokio::spawn(async move {
            let limits = slurm.limits().await;
            let _ = reports.send(Report::Limits(Box::new(limits)));
        });
    }

    pub(super) fn limits(&mut self, answer: Result<Limits, String>) {
        let now = self.clock.now();
        self.due.retain(|(_, due)| *due != Due::Limits);
        match answer {
            Err(reason) => {
                let known = match &self.news.limits {
                    Some(_) => "those known last are kept",
                    None => "nobody is held to any until they can be read",
                };
                let text = format!("Slurm's limits can't be read ({known}): {reason}.");
                if self.news.trouble("limits", text.clone()) {
                    warn!("{text}");
                }
                self.due.insert((now + SOON, Due::Limits));
            }
            Ok(limits) => {
                if self.news.relief("limits") {
                    info!("Slurm's limits can be read again");
                }
                self.due.insert((now + self.refresh(), Due::Limits));
                if self.news.limits.as_ref() == Some(&limits) {
                    return;
                }
                info!(limits = limits.limits.len(), "Slurm's limits have changed");
                let value = JournalValue::Limits(Box::new(limits.clone()));
                self.records
                    .write(vec![(JournalKey::Limits, Some(value))], Vec::new());
                self.todo.push_back(Input::Limits(limits.clone()));
                self.news.limits = Some(limits);
            }
        }
    }

    pub(super) fn ask_shares(&mut self) {
        let (slurm, reports, now) = (self.slurm.clone(), self.reports.clone(), self.clock.now());
        tokio::spawn(async move {
            let shares = slurm.shares(now).await;
            let _ = reports.send(Report::Shares(Box::new(shares)));
        });
    }

    pub(super) fn shares(&mut self, answer: Result<Shares, String>) {
        let next = match answer {
            Err(reason) => {
                let text = format!("Slurm's fair shares can't be read, those known last count: {reason}.");
                if self.news.trouble("shares", text.clone()) {
                    warn!("{text}");
                }
                SOON
            }
            Ok(shares) => {
                self.news.relief("shares");
                self.keep_shares(&shares);
                self.todo.push_back(Input::Shares(shares));
                self.refresh()
            }
        };
        self.due.insert((self.clock.now() + next, Due::Shares));
    }

    /// The next `hopd` knows the shares, though Slurm be away. Usage differs at each reading: it is written now and
    /// then.
    fn keep_shares(&mut self, shares: &Shares) {
        let weights = |shares: &Shares| {
            let users = shares.users.iter().map(|(_, share)| share.weight);
            let accounts = shares.accounts.iter().map(|(_, share)| share.weight);
            users.chain(accounts).map(f64::to_bits).collect::<Vec<_>>()
        };
        let is_kept =
            self.news.shares.as_ref().is_some_and(|kept| {
                shares.at.since(kept.at) < KEEP_EVERY && weights(kept) == weights(shares)
            });
        if !is_kept {
            let value = JournalValue::Shares(Box::new(shares.clone()));
            self.records
                .write(vec![(JournalKey::Shares, Some(value))], Vec::new());
            self.news.shares = Some(shares.clone());
        }
    }

    pub(super) fn ask_all(&mut self) {
        let asks = [Due::Facts, Due::Limits, Due::Shares];
        self.due.retain(|(_, due)| !asks.contains(due));
        self.due.extend(asks.map(|due| (self.clock.now(), due)));
    }

    pub(super) fn ask_facts(&mut self) {
        let (slurm, reports) = (self.slurm.clone(), self.reports.clone());
        tokio::spawn(async move {
            let facts = slurm.facts().await;
            let _ = reports.send(Report::Facts(Box::new(facts)));
        });
    }

    /// The next `hopd` knows whom the partitions take, though Slurm be away. Without slurmdbd the rules known last hold.
    fn rules(&mut self, answer: Result<BTreeMap<PoolName, Rules>, String>) {
        let rules = match answer {
            Err(reason) => {
                let without: Vec<&str> = self.without_rules().into_iter().map(PoolName::as_str).collect();
                let known = match without.join(", ") {
                    none if none.is_empty() => "the rules known last are kept".to_owned(),
                    pools => format!("new cells get no GPU of pool {pools} until they can be read"),
                };
                let text =
                    format!("The accounts under the partitions' rules can't be read ({known}): {reason}.");
                if self.news.trouble("rules", text.clone()) {
                    warn!("{text}");
                }
                return;
            }
            Ok(rules) => rules,
        };
        if self.news.relief("rules") {
            info!("the accounts under the partitions' rules can be read again");
        }
        if self.news.rules.as_ref() != Some(&rules) {
            let value = JournalValue::Rules(rules.clone());
            self.records
                .write(vec![(JournalKey::Rules, Some(value))], Vec::new());
            self.news.rules = Some(rules);
        }
    }

    /// Slurm hides facts needed for leases from the service account, or no longer does.
    fn hidden(&mut self, hidden: Vec<String>) {
        self.news.hidden = hidden;
        let words = self.news.hidden.join(", ");
        if words.is_empty() {
            self.news.relief("hidden");
            return;
        }
        let text = format!(
            "Slurm hides {words} from hopd (PrivateData), which can't lend as it should without; \
             `sacctmgr -i modify user {} set adminlevel=Operator` shows them.",
            self.config.service_user
        );
        if self.news.trouble("hidden", text.clone()) {
            warn!("{text}");
        }
    }

    /// Each node is told once: a node both of a pool's own partition and of a burst partition counts as the latter's.
    fn nodes(&mut self, own: Vec<NodeFacts>, burst: Vec<(NodeFacts, String)>) {
        let burst = burst.into_iter().enumerate();
        let burst: Vec<(usize, (NodeFacts, String))> = burst.collect();
        let last = burst.iter().map(|(i, (facts, _))| (facts.node.clone(), *i));
        let last: BTreeMap<NodeName, usize> = last.collect();
        let own = own.into_iter().filter(|facts| !last.contains_key(&facts.node));
        self.todo.extend(own.map(Input::Node));
        let burst = burst
            .into_iter()
            .filter(|(i, (facts, _))| last[&facts.node] == *i);
        self.todo
            .extend(burst.map(|(_, (facts, partition))| Input::BurstNode { facts, partition }));
    }

    /// Nodes that the core knows from a journal or an earlier answer, and that are in no pool's partition now.
    fn nodes_gone(&mut self, members: &BTreeSet<NodeName>) {
        let gone = self.core.nodes().filter(|n| !members.contains(*n));
        let gone = gone.map(|node| Input::NodeGone { node: node.clone() });
        self.todo.extend(gone);
    }

    /// Pilots of pools that must not be lent end after their leases.
    fn drain_refused(&mut self) {
        let pilots = self.core.pilots().into_iter();
        let refused = pilots.filter(|p| self.pilot_jobs.refusal(&p.pool).is_some());
        self.todo
            .extend(refused.map(|p| Input::PilotDraining { pilot: p.pilot }));
    }

    pub(super) fn facts(&mut self, facts: Result<Facts, String>) {
        let now = self.clock.now();
        self.due.retain(|(_, due)| *due != Due::Facts);
        match facts {
            Err(reason) => {
                warn!("Slurm's nodes and settings can't be read: {reason}");
                self.news
                    .trouble("facts", format!("Slurm's settings can't be read: {reason}."));
                self.due.insert((now + SOON, Due::Facts));
            }
            Ok(facts) => {
                self.news.relief("facts");
                self.news.stepmgr = facts.stepmgr;
                self.hidden(facts.hidden);
                self.nodes(facts.nodes, facts.burst);
                // The core may not have known the node at the last look.
                let rooms = self.news.rooms.iter();
                self.todo.extend(rooms.map(|(node, room)| room_of(node, *room)));
                self.rules(facts.rules);
                self.todo.extend(facts.offers.into_iter().map(Input::PoolOffers));
                // A look at the queue may have seen a drain since these facts were asked for.
                let down = facts.down.into_iter().chain(self.drains.nodes().cloned());
                let down: BTreeSet<NodeName> = down.collect();
                self.todo
                    .extend(down.into_iter().map(|node| Input::NodeDown { node }));
                if let Some(members) = facts.members {
                    self.nodes_gone(&members);
                }
                let acts = self.pilot_jobs.facts(facts.usable, facts.refused, now);
                self.act(acts);
                self.drain_refused();
                self.refuse_waiting();
                let next = match self.without_rules().is_empty() {
                    true => self.refresh(),
                    false => SOON,
                };
                self.due.insert((now + next, Due::Facts));
            }
        }
    }
}
