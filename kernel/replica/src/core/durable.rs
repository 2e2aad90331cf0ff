//! A kernel outlives its process: its state is captured after each cell, written to the user's store, and brought back
//! into the next process (docs/replication.md). The messages are the `state.*` ones of docs/agent-wire.md.

use super::journal::{Answering, Journal};
use super::widgets::Widgets;
use super::{Core, Early};
use crate::agent::Parcel;
use bytes::Bytes;
use hop_api::message::{Bound, MoveCause, SeatPlan};
use hop_log::{CellNumber, Index, RecordNumber, Settled, State};
use hop_protocol::content::Stores;
use hop_words::id::{CellId, Incarnation, Tenure};
use hop_words::time::{Span, Timestamp};
use hop_zmtp::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};

/// How long the capture of a kernel with several replicas may hold up its cell's reply. Nine of ten captures take less,
/// and a reply that waits in vain still leaves within 25 ms (docs/promises.md).
const PATIENCE: Span = Span::from_millis(12);

/// Most captures in wait of their cell's reply.
pub(super) const CAPTURED_MAX: usize = 64;

/// Facts of a kernel with a log.
#[derive(Debug, Clone)]
pub struct Durably {
    /// The state in which the front has opened the kernel's tenure.
    pub state: State,
    /// The kernel's group has elected this replica, and the tenure's folder isn't open yet.
    pub elected: bool,
    /// The folder of all the kernel's tenures.
    pub folder: PathBuf,
    /// The user's content-addressed stores of chunks.
    pub stores: Stores,
    /// The reply of a cell waits until its effects are in the store, or in the log of the kernel's group.
    pub before_reply: bool,
    /// Why nothing can be captured in the kernel's process, if it can't.
    pub silent: Option<String>,
    /// The kernel belongs to a notebook whose next opening finds it.
    pub found_again: bool,
    /// The report of a process that followed the log and therefore has the state already ([`super::following`]).
    pub restored: Option<Value>,
}

/// An [`super::Output::Sync`] by its number: the answer to an earlier one says nothing of later records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SyncNumber(pub u64);

/// The conversation with the agent inside the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Talk {
    /// The agent hasn't said hello. After this time the kernel is used without captures.
    Silent {
        until: Option<Timestamp>,
    },
    Greeted,
    /// A request is under way, with this id: the store is named, the state is read, captures begin.
    Opening(u64),
    Restoring(u64),
    Beginning(u64),
    /// Captures come after each cell.
    Captures,
    /// The last capture is under way.
    Flushing(u64),
    /// Nothing is captured in this process.
    Off,
}

/// An end by the replica's own decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Farewell {
    /// The seat ends: the kernel goes on elsewhere.
    Leave(String),
    /// The kernel goes on in the waiting replica of this incarnation.
    Move(Incarnation),
    /// The kernel hibernates.
    Sleep(String),
}

#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) farewell: Farewell,
    /// The cell that runs, and then the last capture, is waited for until then. `None` means as long as it takes.
    pub(super) until: Option<Timestamp>,
    /// The kernel leaves in time, even without a capture: its seat ends, or nobody uses it any more.
    pub(super) in_haste: bool,
    /// When it has left at the latest. `None` means that nobody ends it.
    pub(super) by: Option<Timestamp>,
    /// All savable content is on its way to the store.
    pub(super) flushed: bool,
    /// The group was asked for another executor.
    pub(super) handed_over: bool,
}

/// Why the kernel is not saved, and the execution count of the first cell without a capture, if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unsaved {
    pub(super) why: String,
    pub(super) since: Option<i64>,
}

#[derive(Debug)]
pub(super) struct Durable {
    pub(super) folder: PathBuf,
    pub(super) stores: Stores,
    pub(super) before_reply: bool,
    pub(super) silent: Option<String>,
    pub(super) found_again: bool,
    pub(super) restored: Option<Value>,
    pub(super) journal: Journal,
    pub(super) grouped: Grouped,
    /// The last report of missing members. Some may have joined since.
    pub(super) lack: Option<Lack>,
    /// The tenure's folder is being opened: nothing can be read from it yet.
    pub(super) opening: bool,
    pub(super) talk: Talk,
    pub(super) last_request: u64,
    /// Captures whose cell hasn't been answered yet.
    pub(super) captured: VecDeque<(CellId, Parcel)>,
    /// Replies that wait for effects to be durable.
    pub(super) held_replies: VecDeque<HeldReply>,
    /// Replies to cells that never ran, behind earlier cells' replies.
    pub(super) unlogged: VecDeque<Unlogged>,
    /// Coming requests that waited behind another cell, and whether an error of that cell stops them.
    pub(super) behind: HashSet<CellId>,
    pub(super) stops: bool,
    /// Answered cells whose effects the newest tenure lacks, until the front is told.
    pub(super) lost: Vec<CellId>,
    pub(super) deaths: VecDeque<Timestamp>,
    pub(super) restore_deaths: u32,
    /// The last order to have all records on disk.
    pub(super) last_sync: SyncNumber,
    /// The next tenure is opened once this order is carried out.
    pub(super) reopens: Option<SyncNumber>,
    /// States on their way to the store, the oldest first: each with the last cell settled in it.
    pub(super) resting: VecDeque<CellNumber>,
    /// Since when the group has taken nothing, although something is proposed.
    pub(super) commits_since: Option<Timestamp>,
    pub(super) bound: Vec<String>,
    pub(super) moving: Option<Move>,
    pub(super) leaving: Option<Leaving>,
    /// Shell messages that came after the order for the last capture. The kernel gets them only if it stays.
    pub(super) kept_back: Early,
    /// The first failed capture since the last good one.
    pub(super) failed: Option<Unsaved>,
    /// [`Durable::unsaved`] as the user and `hopd` were told last.
    pub(super) told_unsaved: Option<Unsaved>,
    /// The user's last word on it says that the kernel isn't saved.
    pub(super) user_reads_unsaved: bool,
    /// Sentences for the user at the next cell.
    pub(super) notices: Vec<String>,
    pub(super) widgets: Widgets,
    /// Why nothing can be written to the store.
    pub(super) broken: Option<String>,
    pub(super) mending: Mending,
    /// A cell's end has the broken store tried again from then on.
    pub(super) tries_after: Timestamp,
    /// Orders that wait for the store. They are carried out once all is saved, and refused if the store stays broken.
    pub(super) awaiting: Vec<Awaiting>,
    /// The kernel's process has died, for this reason, while the store was broken. Its successor stays if the store can
    /// be written again.
    pub(super) died: Option<String>,
    /// The next record holds everything, and completes all earlier cells.
    pub(super) next_is_whole: bool,
}

/// The way back after a failure of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mending {
    No,
    /// The store is being tried again. A store without an answer until then counts as broken.
    Tried {
        until: Timestamp,
    },
    /// The store takes records again.
    Possible,
    /// The agent has been asked, with this id, for a record of everything.
    Asked(u64),
}

/// An order of `hopd`, to a kernel whose store is broken.
#[derive(Debug)]
pub(super) enum Awaiting {
    Sleep(String),
    Move {
        victim: Incarnation,
        seat: SeatPlan,
        cause: MoveCause,
    },
}

/// A reply that waits for effects to be durable.
#[derive(Debug)]
pub(super) struct HeldReply {
    pub(super) number: CellNumber,
    pub(super) cell: CellId,
    pub(super) answer: Answering,
    /// The cell's own effects are waited for. A lost cell has none: its reply waits behind the replies before alone.
    pub(super) has_effects: bool,
}

/// An answer that the log doesn't have, behind another cell's ([`super::unlogged`]).
#[derive(Debug)]
pub(super) struct Unlogged {
    /// The cell whose answer comes before this answer.
    pub(super) behind: CellId,
    pub(super) cell: CellId,
    pub(super) identity: Bytes,
    pub(super) message: Message,
}

/// The kernel's group, as far as the executor knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Grouped {
    /// One replica, and no group. After a failed founding, the next try is due then.
    Alone { again: Option<Timestamp> },
    /// The group is being founded.
    Founding,
    /// A group exists. Another member's vote counts once that member has the log.
    Yes(GroupStanding),
    /// Most members are out of reach. This replica saves the kernel by itself, and leaves.
    GivenUp,
}

/// The voters of the kernel's group, and how far its log is on their disks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupStanding {
    pub voters: BTreeSet<Incarnation>,
    /// The member that leads the log. `None`: the seat has not said.
    pub leader: Option<Incarnation>,
    /// Voters that lag, each with the number of entries that it lacks. `None` means that the voter has not answered
    /// the leader. Only the leader's seat knows them.
    pub lacking: BTreeMap<Incarnation, Option<u64>>,
}

impl GroupStanding {
    /// Entries that the member lacks. `me` is the member of this seat.
    pub(super) fn behind(&self, member: Incarnation, me: Incarnation) -> Option<u64> {
        if self.leader == Some(member) {
            return Some(0);
        }
        let leads = self.leader == Some(me);
        leads.then(|| self.lacking.get(&member).copied().unwrap_or(Some(0)))?
    }
}

/// The group lacks so many members; 0 withdraws the last report. The seats of `gone` are gone; those of `failed` live,
/// and keep no log any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    pub replicas: usize,
    pub gone: BTreeSet<Incarnation>,
    #[serde(default)]
    pub failed: BTreeSet<Incarnation>,
}

impl Lack {
    /// The part that is still lacking: members may have joined since the lack was told. `wanted` is the group's full
    /// number.
    pub(crate) fn left(&self, state: &State, wanted: usize) -> Option<Self> {
        let lost = |member: &Incarnation| self.gone.contains(member) || self.failed.contains(member);
        let here = state.members().keys().filter(|m| !lost(m)).count();
        let replicas = self.replicas.min(wanted.saturating_sub(here));
        (replicas > 0).then(|| Self {
            replicas,
            ..self.clone()
        })
    }
}

/// A move under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// The replica in the new seat.
    pub(super) to: Incarnation,
    pub(super) cause: MoveCause,
    /// The new seat has a member of the kernel's log, which is to be elected.
    pub(super) elects: bool,
    /// The latest time for the member's election. `None` means that nothing is being prepared for the move.
    pub(super) elects_at: Option<Timestamp>,
}

impl Durable {
    pub(super) fn new(given: Durably) -> Self {
        Self {
            journal: Journal::new(given.state),
            grouped: if given.elected {
                Grouped::Yes(GroupStanding::default())
            } else {
                Grouped::Alone { again: None }
            },
            lack: None,
            opening: false,
            folder: given.folder,
            stores: given.stores,
            before_reply: given.before_reply,
            silent: given.silent,
            found_again: given.found_again,
            talk: match given.restored {
                Some(_) => Talk::Greeted,
                None => Talk::Silent { until: None },
            },
            restored: given.restored,
            last_request: 0,
            captured: VecDeque::new(),
            held_replies: VecDeque::new(),
            unlogged: VecDeque::new(),
            behind: HashSet::new(),
            stops: false,
            lost: Vec::new(),
            deaths: VecDeque::new(),
            restore_deaths: 0,
            last_sync: SyncNumber::default(),
            reopens: None,
            resting: VecDeque::new(),
            commits_since: None,
            bound: Vec::new(),
            moving: None,
            leaving: None,
            kept_back: Early::new(),
            failed: None,
            told_unsaved: None,
            user_reads_unsaved: false,
            notices: Vec::new(),
            widgets: Widgets::default(),
            broken: None,
            mending: Mending::No,
            tries_after: Timestamp(0),
            awaiting: Vec::new(),
            died: None,
            next_is_whole: false,
        }
    }

    pub(super) fn tenure(&self) -> Tenure {
        self.journal.tenure()
    }

    /// Cells whose reply waits for the log.
    pub(super) fn answering(&self) -> Vec<CellId> {
        let held = self.held_replies.iter().map(|held| &held.cell);
        let unlogged = self.unlogged.iter().map(|u| &u.cell);
        let logged = self.journal.answering().chain(held);
        logged.chain(unlogged).cloned().collect()
    }

    pub(super) fn applied_index(&self) -> Index {
        self.journal.state().applied()
    }

    /// The time at which something is due.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let silent = match self.talk {
            Talk::Silent { until } => until,
            _ => None,
        };
        let leaving = self.leaving.as_ref().and_then(|l| l.until);
        let elects = self.moving.as_ref().and_then(|m| m.elects_at);
        let founds = match self.grouped {
            Grouped::Alone { again } => again,
            _ => None,
        };
        let tried = match self.mending {
            Mending::Tried { until } => Some(until),
            _ => None,
        };
        [silent, leaving, elects, founds, tried, self.commits_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the kernel could be another process without its user's noticing.
    pub(super) fn captures(&self) -> bool {
        matches!(self.talk, Talk::Captures | Talk::Flushing(_)) && self.broken.is_none()
    }

    /// Whether the kernel captures, and the last capture succeeded.
    pub(super) fn is_saved(&self) -> bool {
        self.captures() && self.failed.is_none()
    }

    /// Why nothing of the kernel reaches the store now, although it captures.
    pub(super) fn unsaved(&self) -> Option<Unsaved> {
        let broken = self.broken.clone().map(|why| Unsaved { why, since: None });
        broken.or_else(|| self.failed.clone())
    }

    pub(super) fn bound(&self) -> Bound {
        Bound {
            gpu: false,
            holds: self.bound.clone(),
        }
    }

    /// Whether the store has everything from which the kernel goes on.
    pub(super) fn may_restore(&self) -> bool {
        let waits = self.opening
            || self.reopens.is_some()
            || self.journal.has_proposed_tenure()
            || !self.journal.state().restore().records.is_empty();
        !waits || (self.broken.is_some() && self.died.is_none())
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// The kernel doesn't leave after the capture that was asked for: its answer is none to a later question.
    pub(super) fn forget_flush(&mut self) {
        if let Talk::Flushing(_) = self.talk {
            self.talk = Talk::Captures;
        }
    }

    /// Whether the kernel leaves this replica for certain.
    pub(super) fn is_at_its_end(&self) -> bool {
        let stays = |l: &Leaving| matches!(l.farewell, Farewell::Move(_)) && !l.in_haste;
        self.leaving.as_ref().is_some_and(|l| !stays(l))
    }

    pub(super) fn sanity_check(&self) {
        self.journal.sanity_check();
        let waits = self
            .unlogged
            .front()
            .is_none_or(|u| self.waits_for_log(&u.behind));
        assert!(waits, "a reply waits behind replies alone");
        assert!(self.captured.len() <= CAPTURED_MAX);
        let kept = |(cell, _): &(CellId, Parcel)| !self.journal.is_ahead(cell);
        assert!(self.captured.iter().all(kept), "a record follows its cell's end");
        assert!(
            self.broken.is_some() || self.mending == Mending::No,
            "only what is broken is mended"
        );
        let tried = matches!(self.mending, Mending::Tried { .. });
        assert!(self.died.is_none() || tried, "a dead process waits for the store");
        assert!(
            self.awaiting.is_empty() || self.mending != Mending::No,
            "an order waits for the store"
        );
    }
}

impl Core {
    /// How long a capture may hold up its cell's reply. In a group the captured effects go into the log with the cell's
    /// end, and are safe before the user reads the reply. A single replica writes them to the store: users would wait
    /// for too long.
    pub(super) fn patience(&self) -> Option<Span> {
        self.may_have_group().then_some(PATIENCE)
    }

    /// Time passes.
    pub(super) fn durable_tick(&mut self) {
        let now = self.now;
        self.give_up_group();
        self.found_again();
        self.elect_unprepared();
        self.try_is_over();
        let Some(durable) = &self.durable else {
            return;
        };
        if matches!(durable.talk, Talk::Silent { until: Some(at) } if at <= now) {
            self.without_captures("its agent doesn't answer");
            return;
        }
        if durable
            .leaving
            .as_ref()
            .and_then(|l| l.until)
            .is_some_and(|at| at <= now)
        {
            self.too_late();
        }
    }
}

/// The body of `state.begin` in a process that captures nothing.
pub(super) fn begin_standby(record: RecordNumber, stores: &Stores) -> Value {
    begin_with("nothing", None, record, stores)
}

/// The body of `state.begin`. `patience` is how long a capture may hold up its cell's reply.
pub(super) fn begin_with(
    capture: &str,
    patience: Option<Span>,
    record: RecordNumber,
    stores: &Stores,
) -> Value {
    json!({
        "capture": capture, "patience_ms": patience.map(Span::as_millis_f64), "record": record,
        "store": stores.store, "others": stores.others, "form": hop_state::form::VERSION,
    })
}

/// The body of `state.restore`. `folder` has all the kernel's tenures.
pub(super) fn restore_with(settled: &Settled, folder: &Path, lazy: bool) -> Value {
    let folder = hop_protocol::states::folder(folder, settled.tenure, settled.part);
    json!({"folder": folder, "length": settled.length, "mac": settled.mac, "lazy": lazy})
}
