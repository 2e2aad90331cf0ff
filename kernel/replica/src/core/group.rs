//! A kernel with several replicas: its log is the log of a Raft group, and the group elects the executor. This replica
//! takes office with the logged state, hands over at the seat's end, and leaves once another replica is elected
//! (docs/replication.md).

use super::durable::{Durable, Farewell, GroupStanding, Grouped, Lack};
use super::{Core, Output, Phase, wording};
use bytes::Bytes;
use hop_api::message::{ReplicaRole, ReplicaRow};
use hop_log::{Entry, Office, Payload, State};
use hop_protocol::message::Note;
use hop_words::id::{Incarnation, JobId, NodeName};
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeSet;

/// Bytes of records in the log that wait for the store. Beyond them a record goes to the store alone: a hanging store
/// must not fill the log, which takes no more than `hop_log::TAIL_MAX`.
const TAIL_MAX: usize = hop_log::TAIL_MAX / 2;

/// After so long an uncommitted entry will never be in the log: most members are out of reach. Silent members are
/// noticed after 8 s, and another leader is elected within two.
const COMMITS_WITHIN: Span = Span::from_secs(15);

/// The pause before a group that couldn't be founded is founded again: the disk of the log may have room by then.
const FOUNDS_AGAIN: Span = Span::from_secs(60);
/// The pause while entries are on their way.
const SETTLES: Span = Span::from_secs(1);

/// A wake-up this late means that the process was stopped meanwhile.
const STOPPED: Span = Span::from_secs(5);

impl Core {
    /// Takes office: by the log this replica is the executor. The folder of its tenure is to be opened.
    pub(super) fn take_office(&mut self) {
        self.follows_another();
        if let Some(durable) = &mut self.durable {
            durable.opening = true;
            let state = durable.journal.state().clone();
            self.out.push(Output::OpenTenure { state });
        }
    }

    /// Founds the group of a kernel that should have further replicas.
    pub(super) fn found_group(&mut self) {
        let wanted = self.identity.launch.replicas.count();
        let can = self.may_have_group();
        let Some(durable) = self.durable.as_mut().filter(|_| can) else {
            return;
        };
        if matches!(durable.grouped, Grouped::Alone { .. }) && durable.captures() {
            durable.grouped = Grouped::Founding;
            let state = durable.journal.state().clone();
            self.out.push(Output::Found { wanted, state });
        }
    }

    /// Whether the kernel should have further replicas, and this seat has a keeper to found their group.
    pub(super) fn may_have_group(&self) -> bool {
        self.identity.launch.replicas.count() > 1 && self.identity.has_keeper
    }

    /// The kernel can't have a group now, and stays with one replica for a while.
    pub(super) fn not_founded(&mut self) {
        let again = Some(self.now + FOUNDS_AGAIN);
        if let Some(durable) = &mut self.durable {
            durable.grouped = Grouped::Alone { again };
        }
    }

    /// Founds the group after a failed attempt. The group begins with a state that has all of this replica's entries.
    pub(super) fn found_again(&mut self) {
        let (now, can) = (self.now, self.may_have_group());
        let Some(durable) = &mut self.durable else { return };
        let busy = durable.leaving.is_some() || !durable.captures();
        let settles = durable.journal.proposed().next().is_some();
        let Grouped::Alone { again: due } = &mut durable.grouped else {
            return;
        };
        if due.is_none_or(|at| at > now) {
            return;
        }
        *due = match (can, busy) {
            (false, _) => None,
            (true, true) => Some(now + FOUNDS_AGAIN),
            (true, false) if settles => Some(now + SETTLES),
            (true, false) => return self.found_group(),
        };
    }

    /// The group's state: the beginning of the log, or a state ahead of this seat's.
    pub(super) fn group_state(&mut self, state: State) {
        let me = self.identity.incarnation;
        let Some(durable) = &mut self.durable else {
            return;
        };
        let executes = state.executor() == Some(me);
        durable.journal.adopt(state);
        if let Grouped::Founding | Grouped::Alone { .. } = durable.grouped {
            durable.grouped = Grouped::Yes(GroupStanding {
                voters: BTreeSet::from([me]),
                ..GroupStanding::default()
            });
            self.founded_in_office();
        }
        self.forget_proof();
        if !executes {
            self.deposed();
        }
    }

    /// The front learns how many replicas could take over, and `hopd` which, who leads them, and how far each is
    /// behind.
    pub(super) fn group_standing(&mut self, now: GroupStanding) {
        let Some(durable) = &mut self.durable else { return };
        let Grouped::Yes(standing) = &mut durable.grouped else {
            return;
        };
        if *standing == now {
            return;
        }
        let voters = (standing.voters != now.voters).then_some(now.voters.len());
        *standing = now;
        if let Some(count) = voters {
            self.note(Note::Members { count });
        }
        self.register();
        if voters.is_some() {
            self.reconsider_election();
        }
    }

    /// The kernel's group, if it has one.
    pub(super) fn group(&self) -> Option<&GroupStanding> {
        match &self.durable.as_ref()?.grouped {
            Grouped::Yes(standing) => Some(standing),
            Grouped::Alone { .. } | Grouped::Founding | Grouped::GivenUp => None,
        }
    }

    /// `hopd` learns that a member keeps the kernel's variables, or doesn't any more.
    pub(super) fn standby_changed(&mut self, entry: &Entry) {
        if let Entry::Join { incarnation, .. } = entry
            && self.is_standby(*incarnation)
        {
            self.register();
        }
    }

    /// Members of the kernel's group; 0 without a group.
    pub fn members(&self) -> usize {
        self.group().map_or(0, |group| group.voters.len())
    }

    /// The members beside this one.
    pub(super) fn standbys(&self) -> Vec<ReplicaRow> {
        let me = self.identity.incarnation;
        let (Some(durable), Some(group)) = (&self.durable, self.group()) else {
            return Vec::new();
        };
        let state = durable.journal.state();
        let others = state
            .members()
            .iter()
            .filter(|(m, _)| **m != me && group.voters.contains(m));
        others
            .map(|(incarnation, member)| ReplicaRow {
                incarnation: *incarnation,
                role: state.role(*incarnation).unwrap_or(ReplicaRole::Warm),
                node: member.node.clone(),
                seat: member.seat,
                behind: group.behind(*incarnation, me),
            })
            .collect()
    }

    /// The group lacks members: the front finds seats for them, also on the nodes of members that are gone. The nodes of
    /// failed members are its last choice: their seats live, and another disk is better. A lack of none withdraws the
    /// report before.
    pub(super) fn lacks_members(&mut self, lack: Lack) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        if lack.replicas == 0 {
            durable.lack = None;
            return;
        }
        let lack = durable.lack.insert(lack);
        let state = durable.journal.state();
        let here = state
            .members()
            .iter()
            .filter(|(member, _)| !lack.gone.contains(member));
        let (last, here): (Vec<_>, Vec<_>) = here.partition(|(member, _)| lack.failed.contains(member));
        let nodes = |of: Vec<(_, &hop_log::Member)>| of.into_iter().map(|(_, m)| m.node.clone()).collect();
        let first = Incarnation(state.highest_incarnation().0 + 1);
        let grow = Note::Grow {
            count: lack.replicas,
            first,
            nodes: nodes(here),
            last: nodes(last),
        };
        self.note(grow);
    }

    /// The front before took its search for seats with it.
    pub(super) fn lacks_members_still(&mut self) {
        let wanted = self.identity.launch.replicas.count();
        let Some(durable) = &mut self.durable else {
            return;
        };
        let lack = durable.lack.take();
        if let Some(lack) = lack.and_then(|l| l.left(durable.journal.state(), wanted)) {
            self.lacks_members(lack);
        }
    }

    /// The front has found a seat for a new member.
    pub(super) fn grown(&mut self, incarnation: Incarnation, seat: JobId, node: NodeName) {
        if self.group().is_some() {
            self.propose(Entry::Join {
                incarnation,
                seat,
                node,
                hot: false,
            });
        }
    }

    /// The kernel is over: its group goes.
    pub(super) fn disband(&mut self) {
        if self
            .durable
            .as_ref()
            .is_some_and(|d| !matches!(d.grouped, Grouped::Alone { .. }))
        {
            self.out.push(Output::Disband);
        }
    }

    /// Another replica executes, or this replica is no member any more: further words wouldn't count, and the
    /// replica leaves without a word.
    pub(super) fn deposed(&mut self) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.phase = Phase::Over;
        self.out.push(Output::KillKernel);
        self.out.push(Output::Leave);
    }

    /// Whether another replica goes on with the kernel, or is about to, as far as this one knows.
    pub fn has_successor(&self) -> bool {
        let me = self.identity.incarnation;
        let state = self.durable.as_ref().map(|d| d.journal.state());
        state.is_some_and(|state| match state.office() {
            Office::Held { executor, .. } => *executor != me,
            Office::Vacant { .. } => !state.members().is_empty() && state.has_left(me),
            Office::Asleep { .. } => false,
        })
    }

    /// Notes since when an entry has been on its way into the group's log.
    pub(super) fn watch_commits(&mut self) {
        let (now, shows) = (self.now, self.awaits_proof());
        if let Some(durable) = &mut self.durable {
            let waits = durable.is_grouped() && (shows || !durable.journal.is_settled());
            durable.commits_since = match waits {
                true => Some(durable.commits_since.unwrap_or(now)),
                false => None,
            };
        }
    }

    /// Leaves a group that takes no entries, with all of this replica's knowledge in the store. The front opens the
    /// next tenure from there, in another group. Answers that are not in the log are not told to clients here: the next
    /// replica answers, unless another member has been elected after all.
    pub(super) fn give_up_group(&mut self) {
        let Some(durable) = &mut self.durable else {
            return;
        };
        let Some(due) = durable.commits_due().filter(|due| *due <= self.now) else {
            return;
        };
        if self.now.since(due) > STOPPED {
            durable.commits_since = Some(self.now);
            return;
        }
        durable.grouped = Grouped::GivenUp;
        durable.journal.take_in_replies();
        self.out.push(Output::GoAlone);
        self.out
            .extend(durable.journal.proposed().map(|e| Output::Propose(e.clone())));
        self.give_up_move(wording::MOST_REPLICAS_GONE);
        let farewell = Farewell::Leave(wording::MOST_REPLICAS_GONE.to_owned());
        self.bid_farewell(farewell, None, None);
    }

    /// Copies the records in the log but not in the store to the folder of this tenure: the namespace is read from
    /// there.
    pub(super) fn carry_over(&mut self) {
        let Some(durable) = &self.durable else {
            return;
        };
        let restore = durable.journal.state().restore();
        let behind = restore.settled.cloned();
        let mut carried = Vec::new();
        for record in &restore.records {
            if let Payload::Inline { text, body } = &record.payload {
                carried.push(Output::Append {
                    number: record.number,
                    text: text.clone(),
                    body: body.clone(),
                    behind: behind.clone(),
                });
            }
        }
        if !carried.is_empty() {
            self.out.append(&mut carried);
            self.sync();
        }
    }

    /// The member to get the kernel from a leaving executor.
    pub(super) fn heir(&self, farewell: &Farewell) -> Option<Incarnation> {
        match farewell {
            Farewell::Leave(_) => self.chosen().or_else(|| self.first_standby()),
            Farewell::Move(to) => Some(*to).filter(|to| self.is_standby(*to)),
            Farewell::Sleep(_) => None,
        }
    }

    /// The standby with the quickest start: a hot one, else the member of longest standing.
    fn first_standby(&self) -> Option<Incarnation> {
        let standbys = self.standbys().into_iter();
        standbys
            .min_by_key(|s| (s.role != ReplicaRole::Hot, s.incarnation))
            .map(|s| s.incarnation)
    }

    pub(super) fn is_hot(&self, member: Incarnation) -> bool {
        self.standby(member).is_some_and(|s| s.role == ReplicaRole::Hot)
    }

    pub(super) fn is_standby(&self, member: Incarnation) -> bool {
        self.standby(member).is_some()
    }

    fn standby(&self, member: Incarnation) -> Option<ReplicaRow> {
        self.standbys().into_iter().find(|s| s.incarnation == member)
    }
}

impl Durable {
    pub(super) fn is_grouped(&self) -> bool {
        matches!(self.grouped, Grouped::Yes(_))
    }

    /// When an entry has been on its way for too long.
    pub(super) fn commits_due(&self) -> Option<Timestamp> {
        self.commits_since.map(|since| since + COMMITS_WITHIN)
    }

    /// The form in which a record goes into the log. A group's log has it whole, as far as there is room.
    pub(super) fn payload(&self, text: &Bytes, body: &Bytes) -> Payload {
        let waiting: usize = self.journal.unsettled_bytes();
        if self.is_grouped() && waiting + text.len() + body.len() <= TAIL_MAX {
            return Payload::Inline {
                text: text.clone(),
                body: body.clone(),
            };
        }
        Payload::Folder
    }
}
