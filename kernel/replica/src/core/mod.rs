//! The decisions of a kernel's supervisor: the order of cells, their lease, the GPU memory that comes and goes with
//! leases, the kernel's beginning and end. Pure: no socket, no process, no clock, no randomness.
//!
//! [`Core::handle`] is the whole interface. The shell passes each event with its time, carries out the outputs, and
//! comes back at [`Core::due`] with [`Input::Tick`]. The shell (`crate::run`) owns sockets and processes; the front
//! decides for clients; `hopd` decides who gets which GPU.

mod answers;
mod asked;
mod attempts;
mod block;
mod cells;
mod check;
mod durable;
mod effects;
pub(crate) mod following;
mod group;
mod interrupts;
mod journal;
mod lease;
mod leasing;
mod leaving;
mod lifetime;
mod memory;
mod mending;
mod moving;
mod notices;
mod replacing;
mod replies;
mod restoring;
mod signs;
mod standing;
mod storing;
#[cfg(test)]
mod tests;
mod unlogged;
mod widgets;
mod wording;

use crate::agent::Parcel;
use crate::leases::News;
use crate::models::Models;
use crate::need::Foreign;
use answers::Verdict;
use asked::Asked;
use attempts::Attempts;
use bytes::Bytes;
use cells::{Cells, Next};
use durable::Durable;
use hop_api::message::{Bound, EndedCell, Event, ReplicaUp, Request as ToHopd, SeatStep};
use hop_log::{CellNumber, Entry, Index, RecordNumber, Settled, State};
use hop_protocol::file::{Interrupt, Launch};
use hop_protocol::jupyter::{Author, Channel, Envelope, Header, with_key};
use hop_protocol::link::Item;
use hop_protocol::message::{Behind, Hello, Note};
use hop_words::id::{CellId, Incarnation, JobId, KernelId, NodeName, Tenure};
use hop_words::time::{Span, Timestamp};
use hop_zmtp::Message;
use lease::Lease;
use memory::Gpu;
use notices::Notices;
use serde_json::Value;
use std::path::PathBuf;

pub use check::Place;
pub use durable::{Durably, GroupStanding, Lack, SyncNumber};
pub use memory::{Errand, ErrandEnd, Left, Returned};

/// Silence after which a started kernel is given up.
pub(crate) const START: Span = Span::from_secs(120);

/// Between asking a kernel to go and ending it.
const SHUTDOWN: Span = Span::from_secs(5);

/// Facts of one replica that never change.
#[derive(Debug, Clone)]
pub struct Identity {
    pub kernel: KernelId,
    pub incarnation: Incarnation,
    pub node: NodeName,
    pub seat: SeatStep,
    pub launch: Launch,
    /// The replica sits in a seat, whose keeper can keep the kernel's group.
    pub has_keeper: bool,
    /// Whether this node's programs can park a cell during its run.
    pub can_park: bool,
    /// Names of the node's GPUs.
    pub models: Models,
}

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// A client's request, through the front.
    Request {
        channel: Channel,
        identity: Bytes,
        message: Message,
    },
    /// The user interrupts the kernel as with a signal.
    Interrupt,
    /// The front wants the kernel ended.
    End,
    /// Slurm ends the seat's step. `grace` is the time until Slurm kills it.
    Terminated {
        grace: Span,
    },
    /// The kernel's iopub is known to be heard: it takes requests.
    KernelUp {
        pid: u32,
    },
    /// The kernel published something for its clients.
    Published(Message),
    /// The kernel answered a client, or asks the client for input.
    FromKernel {
        channel: Channel,
        identity: Bytes,
        message: Message,
    },
    /// A message of the kernel's was too large, and was dropped. `head` has its first frames.
    Oversized {
        channel: Channel,
        identity: Bytes,
        head: Message,
    },
    /// This request couldn't be given to the process.
    Unreached(Channel, Bytes, Message),
    /// The living process is heard again, after a lost connection to its iopub.
    HeardAgain,
    /// The living process can't be heard any more.
    Deaf,
    /// The kernel's process has ended. Its last messages were told before.
    Exited(Exit),
    /// The agent inside the kernel said something.
    Agent(Parcel),
    /// A message of `hopd`, or a change of its connection.
    Hopd(News),
    /// An errand of `hop gpu` has ended.
    Errand(ErrandEnd),
    /// An entry of the log is committed.
    Applied {
        index: Index,
        entry: Entry,
    },
    /// The log in its tenure's folder is on disk up to there.
    Synced(Settled),
    /// The [`Output::Sync`] of this number is carried out: an [`Input::Synced`] has told of the written part, if
    /// any.
    InSync(SyncNumber),
    /// The oldest of the states on their way is on disk.
    Rested,
    /// The folder of this tenure is open.
    TenureOpened(Tenure),
    /// The store can't be written, for this reason.
    StoreFailed(String),
    /// The store can be written again. Records are missing in the store: the next record must hold everything.
    StoreMended,
    /// [`Output::TryStore`] has failed, for this reason.
    StoreStillFails(String),
    /// The front has the answers up to `cells`, and has told the losses up to `losses`.
    Heard {
        cells: u64,
        losses: Tenure,
    },
    /// The front has handed out this request before, first under `tenure`. It `lacks` the cell's last outputs, perhaps.
    HandedBefore {
        cell: CellId,
        tenure: Tenure,
        behind: Option<Behind>,
        lacks: bool,
    },
    /// The front lets a cell begin.
    MayBegin {
        cell: CellId,
    },
    /// The replica of the kernel's next seat is ready there.
    MoveReady {
        incarnation: Incarnation,
    },
    /// A move has failed, as the front knows.
    MoveFailed {
        incarnation: Incarnation,
        reason: String,
    },
    /// A new front. It knows nothing of the earlier front's preparations and questions.
    FrontChanged,
    /// The user calls the notebook so from now on.
    Renamed(String),
    /// Nobody uses the kernel any more. A kernel with a kept state hibernates.
    Orphaned {
        reason: String,
    },
    /// The kernel's group has elected this replica. Its state was given at the beginning.
    Elected,
    /// The group's state: the group is founded, or this seat was behind.
    GroupState(Box<State>),
    /// The kernel can't have a group now.
    NotFounded,
    /// The seat has no keeper any more: no group can be founded.
    KeeperGone,
    /// The processes of all earlier executors have ended, by the seat's word after [`Output::AskFormer`].
    FormerGone,
    GroupStanding(GroupStanding),
    Lacks(Lack),
    /// A new member has a seat.
    Grown {
        incarnation: Incarnation,
        seat: JobId,
        node: NodeName,
    },
    Tick,
}

/// The end of the kernel's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// A sentence for the user.
    pub reason: String,
    /// A SIGKILL whose sender is unknown.
    pub killed: bool,
}

/// Something to do.
#[derive(Debug, Clone)]
pub enum Output {
    ToKernel {
        channel: Channel,
        identity: Bytes,
        message: Message,
    },
    ToFront(Item),
    ToHopd(Box<ToHopd>),
    ToAgent(Parcel),
    /// Run `hop gpu` for these device files. The end is an [`Input::Errand`].
    Gpu(Errand, Vec<PathBuf>),
    /// Have the seat say when no process of an earlier executor runs any more: [`Input::FormerGone`].
    AskFormer,
    /// Have the system end this process and the kernel's at that time, even if both stand still. `None`: not any more.
    Guard(Option<Timestamp>),
    /// Signal the kernel as Ctrl-C would.
    InterruptKernel {
        /// The sentence for the interrupted code. `None` means that the user interrupts.
        why: Option<String>,
    },
    KillKernel,
    /// Start the kernel's process anew: the old process has ended.
    StartKernel,
    /// Have the log take in this entry. After its commit comes [`Input::Applied`].
    Propose(Entry),
    /// Write a record behind the others in the tenure's folder. The first follows the state that was restored, if any.
    Append {
        number: RecordNumber,
        text: Bytes,
        body: Bytes,
        behind: Option<Settled>,
    },
    /// Have the records on disk now, and not within a second: [`Input::InSync`], or [`Input::StoreFailed`].
    Sync(SyncNumber),
    /// Try the broken store at once: [`Input::StoreMended`], or [`Input::StoreStillFails`].
    TryStore,
    /// Replace the state beside the log: [`Input::Rested`].
    WriteState {
        state: Bytes,
    },
    /// Open the folder of this state's tenure: [`Input::TenureOpened`].
    OpenTenure {
        state: State,
    },
    /// Leave this folder, of a state that can't be brought back, to the user.
    KeepState(PathBuf),
    /// Found the kernel's group, with this state as its beginning: [`Input::GroupState`], or [`Input::NotFounded`].
    Found {
        wanted: usize,
        state: State,
    },
    /// Kernel and group are over.
    Disband,
    /// The group takes no entries any more: from now on this replica alone decides on proposals.
    GoAlone,
    /// The replica ends, once the front has taken everything.
    Leave,
}

/// The connection to `hopd`.
#[derive(Debug)]
enum Hopd {
    Up,
    /// There is none, for this reason.
    Down(String),
}

#[derive(Debug)]
enum Phase {
    /// The kernel isn't heard yet. Cells wait in their order, other requests here.
    Starting {
        early: Early,
        until: Timestamp,
    },
    /// The kernel is heard, and gets its state.
    Preparing {
        early: Early,
        pid: u32,
    },
    Up,
    Over,
}

/// Requests that wait for the kernel.
type Early = Vec<(Channel, Bytes, Message)>;

impl Phase {
    fn take_early(&mut self) -> Early {
        match self {
            Self::Starting { early, .. } | Self::Preparing { early, .. } => std::mem::take(early),
            Self::Up | Self::Over => Vec::new(),
        }
    }
}

#[derive(Debug)]
pub struct Core {
    identity: Identity,
    author: Author,
    now: Timestamp,
    out: Vec<Output>,
    phase: Phase,
    cells: Cells,
    lease: Lease,
    gpu: Gpu,
    hopd: Hopd,
    /// The last ended cell with a lease, for a `hopd` that was away.
    ended: Option<EndedCell>,
    /// `None` means a kernel without a log.
    durable: Option<Durable>,
    /// The last failed move, for `hopd` to know.
    not_moved: Option<Box<ToHopd>>,
    notices: Notices,
    asked: Asked,
    attempts: Attempts,
    /// Numbers the blocks of a kernel.
    blocks: u64,
    shutting_down: bool,
    /// Why the replica ended the kernel, where the kernel's own end doesn't tell.
    ended_by: Option<String>,
    kill_at: Option<Timestamp>,
}

impl Core {
    /// A kernel that is being started now.
    pub fn new(identity: Identity, durably: Option<Durably>, author: Author, now: Timestamp) -> Self {
        let knows_magics = identity.launch.is_ipykernel();
        Self {
            identity,
            author,
            now,
            out: Vec::new(),
            phase: Phase::Starting {
                early: Vec::new(),
                until: now + START,
            },
            cells: Cells::new(durably.is_some(), knows_magics),
            lease: Lease::None,
            gpu: Gpu::default(),
            hopd: Hopd::Down("hopd has not answered yet".into()),
            ended: None,
            durable: durably.map(Durable::new),
            not_moved: None,
            notices: Notices::default(),
            asked: Asked::default(),
            attempts: Attempts::default(),
            blocks: 0,
            shutting_down: false,
            ended_by: None,
            kill_at: None,
        }
    }

    /// Takes in an input; returns the outputs that follow, in order.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Output> {
        self.now = self.now.max(now);
        // Outputs come by the thousand, and change nothing that is told.
        let silent = matches!(input, Input::Published(_));
        let kept_back = self.keeps_back();
        match input {
            Input::Request {
                channel,
                identity,
                message,
            } => self.request(channel, identity, message),
            Input::Interrupt => self.interrupt(),
            Input::End => {
                self.shutting_down = true;
                self.out.push(Output::KillKernel);
            }
            Input::Terminated { grace } => self.terminated(grace),
            Input::KernelUp { pid } => self.kernel_up(pid),
            Input::Published(message) => self.published(message),
            Input::FromKernel {
                channel,
                identity,
                message,
            } => self.answer(channel, identity, message),
            Input::Oversized {
                channel,
                identity,
                head,
            } => self.oversized(channel, identity, &head),
            Input::Unreached(channel, identity, message) => self.unreached(channel, identity, message),
            Input::HeardAgain => self.heard_again(),
            Input::Deaf => self.deaf(),
            Input::Exited(exit) => self.exited(exit),
            Input::Agent(parcel) => self.agent(parcel),
            Input::Hopd(news) => self.news(news),
            Input::Errand(end) => self.errand_ended(end),
            Input::Applied { index, entry } => self.applied(index, &entry),
            Input::Synced(at) => self.synced(at),
            Input::InSync(number) => self.in_sync(number),
            Input::Rested => self.rested(),
            Input::TenureOpened(tenure) => self.tenure_opened(tenure),
            Input::StoreFailed(why) => self.store_failed(why),
            Input::StoreMended => self.store_mended(),
            Input::StoreStillFails(why) => self.store_still_fails(why),
            Input::Heard { cells, losses } => self.heard(cells, losses),
            Input::HandedBefore {
                cell,
                tenure,
                behind,
                lacks,
            } => self.handed_before(cell, (tenure, lacks), behind),
            Input::MayBegin { cell } => self.cells.permit(&cell),
            Input::MoveReady { incarnation } => self.move_ready(incarnation),
            Input::MoveFailed { incarnation, reason } => self.move_failed(incarnation, reason),
            Input::FrontChanged => self.front_changed(),
            Input::Renamed(name) => self.renamed(name),
            Input::Orphaned { reason } => self.orphaned(reason),
            Input::Elected => self.take_office(),
            Input::GroupState(state) => self.group_state(*state),
            Input::NotFounded => self.not_founded(),
            Input::KeeperGone => self.keeper_gone(),
            Input::FormerGone => self.former_gone(),
            Input::GroupStanding(standing) => self.group_standing(standing),
            Input::Lacks(lack) => self.lacks_members(lack),
            Input::Grown {
                incarnation,
                seat,
                node,
            } => self.grown(incarnation, seat, node),
            Input::Tick => self.tick(),
        }
        self.follow_up(kept_back);
        if !silent {
            self.tell_clients();
        }
        std::mem::take(&mut self.out)
    }

    /// Goes on with whatever an input has made possible.
    fn follow_up(&mut self, kept_back: bool) {
        self.answer_unreached();
        self.go_on_or_leave(kept_back);
        self.advance();
        self.settle_attempts();
        self.watch_commits();
        self.send_unlogged();
    }

    /// The time of the next [`Input::Tick`].
    pub fn due(&self) -> Option<Timestamp> {
        let start = match &self.phase {
            Phase::Starting { until, .. } => Some(*until),
            Phase::Preparing { .. } | Phase::Up | Phase::Over => None,
        };
        let durable = self.durable.as_ref().and_then(Durable::due);
        let standing = match &self.lease {
            Lease::Standing(standing) => standing.due(),
            _ => None,
        };
        [
            start,
            durable,
            standing,
            self.lease.tell_at(),
            self.text_at(),
            self.asked.due(),
            self.attempts_due(),
            self.missing_due(),
            self.kill_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The hello to a front, with the requests in work.
    pub fn introduces(&self, hello: Hello) -> Hello {
        let answered = self.durable.as_ref().map_or_else(Vec::new, Durable::answering);
        Hello {
            tenure: self.tenure(),
            name: Some(self.identity.launch.name.clone()),
            in_flight: self.cells.in_flight(),
            answered: Some(answered),
            members: self.members(),
            ..hello
        }
    }

    /// The tenure in which this replica executes; zero without a log.
    pub fn tenure(&self) -> Tenure {
        self.office().1
    }

    /// The last applied entry of the log.
    pub fn applied_index(&self) -> Index {
        self.durable.as_ref().map_or(Index(0), Durable::applied_index)
    }

    /// The last cell whose effects can't be lost; zero without a log.
    pub fn durable_through(&self) -> CellNumber {
        self.durable
            .as_ref()
            .map_or(CellNumber(0), |d| d.journal.state().durable_through())
    }

    /// Whether the kernel's sockets are still being listened for.
    pub fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. })
    }

    /// The kernel and the tenure in whose name this replica speaks to `hopd`.
    fn office(&self) -> (KernelId, Tenure) {
        let tenure = self.durable.as_ref().map_or(Tenure(0), Durable::tenure);
        (self.identity.kernel.clone(), tenure)
    }

    fn tell_hopd(&mut self, request: ToHopd) {
        self.out.push(Output::ToHopd(Box::new(request)));
    }

    // Requests.

    fn execute_request(&mut self, identity: Bytes, message: Message, envelope: &Envelope, header: &Header) {
        if self.was_answered(&identity, envelope, header) {
            return;
        }
        let own = self.notices.default_need.as_ref();
        let need = own.unwrap_or(&self.identity.launch.default_need);
        self.cells
            .arrive(identity, message, envelope, header, need, self.now);
        if matches!(self.phase, Phase::Up | Phase::Over) && !self.keeps_back() {
            self.send_early();
        }
    }

    /// Gives the kernel the cells outside of the order.
    fn send_early(&mut self) {
        for (identity, message) in self.cells.send_early() {
            let message = self.for_process(message);
            self.out.push(Output::ToKernel {
                channel: Channel::Shell,
                identity,
                message,
            });
        }
    }

    /// Goes on with the first cell not yet in the kernel, and later cells, as far as they may go.
    fn advance(&mut self) {
        // Requests to a leaving replica are for the next one.
        while matches!(self.phase, Phase::Up) && !self.holds_back() {
            match self.cells.next(self.lease.running_cell()) {
                Next::Wait => return,
                Next::Forward(cell) | Next::Ask(cell, _) if self.attempt_waits(&cell) => return,
                Next::Forward(cell) => self.forward(&cell),
                Next::Refuse(cell, problem) => self.fail(&cell, Verdict::Usage(problem)),
                Next::Ask(cell, need) => match self.in_the_way() {
                    Some(reason) => self.fail(&cell, Verdict::Refused(reason)),
                    None => self.ask_for_cell(cell, need),
                },
            }
        }
    }

    /// The kernel gets the cell. The request of a cell with a lease says so to the agent in the kernel.
    fn forward(&mut self, cell: &CellId) {
        if self.cells.must_ask(cell) {
            return self.note(Note::Begins { cell: cell.clone() });
        }
        let Some((identity, mut message)) = self.cells.send(cell, self.now) else {
            return;
        };
        self.guard();
        self.tell_notices(cell);
        if !self.cells.knows_magics {
            message = self.without_magic(message);
        }
        if let Lease::Held(holder) = &self.lease
            && holder.seeker.as_cell() == Some(cell)
        {
            message = self.with_lease(message, holder.described.clone());
        }
        self.out.push(Output::ToKernel {
            channel: Channel::Shell,
            identity,
            message,
        });
    }

    fn without_magic(&self, message: Message) -> Message {
        let Ok(mut envelope) = Envelope::parse(&message) else {
            return message;
        };
        let content = serde_json::from_slice::<Value>(&envelope.content).unwrap_or_default();
        let Some(code) = content["code"].as_str().and_then(Foreign::of) else {
            return message;
        };
        envelope.content = with_key(&envelope.content, "code", code.sent.into());
        self.author.signer().sign(&mut envelope);
        envelope.message()
    }

    fn with_lease(&self, message: Message, lease: Value) -> Message {
        let Ok(mut envelope) = Envelope::parse(&message) else {
            return message;
        };
        let metadata = serde_json::from_slice::<Value>(&envelope.metadata).unwrap_or_default();
        let mut ours = metadata["gresshopper"].as_object().cloned().unwrap_or_default();
        ours.insert("lease".to_owned(), lease);
        envelope.metadata = with_key(&envelope.metadata, "gresshopper", ours.into());
        self.author.signer().sign(&mut envelope);
        envelope.message()
    }

    // The scheduler.

    fn news(&mut self, news: News) {
        match news {
            News::Up => {
                self.hopd = Hopd::Up;
                self.register();
            }
            News::Down { reason } => {
                self.update_wait(wording::scheduler_away(&reason));
                self.hopd = Hopd::Down(reason);
                self.linger_ends_unknown();
            }
            News::Unheard { reason } => self.update_wait(wording::scheduler_deaf(&reason)),
            News::Event(event) => self.event(event),
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Queued {
                cell,
                position,
                reason,
                estimate,
                range,
                ..
            } => {
                self.queued(&cell, position, &reason, (estimate, range));
            }
            Event::Granted { cell, grant, .. } if self.is_ours(&grant) => self.granted(&cell, grant),
            Event::Granted { cell, grant, .. } => self.granted_elsewhere(&cell, &grant),
            Event::Refused { cell, reason, .. } => self.refused(&cell, reason),
            Event::Revoked {
                lease,
                reason,
                grace,
                may_hold,
                ..
            } => {
                self.gpu.may_hold = may_hold.then_some(lease);
                self.lease_over(lease, grace, &reason);
            }
            Event::Held {
                lease,
                wanted,
                within,
                ..
            } => self.held(lease, wanted.as_deref(), within),
            Event::Kept { lease, until, .. } => self.linger_ends(lease, until),
            Event::Park {
                lease, cell, reason, ..
            } => self.asked_to_park(&cell, lease, reason),
            Event::Close { reason, .. } => self.end_kernel(format!("the kernel was closed: {reason}")),
            Event::Hibernate { reason, .. } => self.asked_to_sleep(reason),
            Event::Move {
                victim, seat, cause, ..
            } => self.asked_to_move(victim, seat, cause),
            Event::MoveWithdrawn { incarnation, .. } => self.move_withdrawn(incarnation),
            // The front's.
            Event::Wake { .. } => {}
        }
    }

    /// Tells `hopd` this replica's identity, lease and waiting cell: a projection of the state.
    fn register(&mut self) {
        let Identity {
            kernel,
            incarnation,
            node,
            seat,
            launch,
            can_park,
            ..
        } = &self.identity;
        let holds = self.lease.granted().map(|(lease, id)| (lease, Some(id.clone())));
        let standing = match &self.lease {
            Lease::Standing(standing) if standing.grant.is_none() => Some(standing),
            _ => None,
        };
        let seeker = match &self.lease {
            Lease::Asked(seeker, _) => Some(seeker),
            _ => standing.map(|s| &s.seeker),
        };
        let report = ReplicaUp {
            kernel: kernel.clone(),
            incarnation: *incarnation,
            tenure: self.office().1,
            account: launch.account.clone(),
            pool: launch.pool.clone(),
            node: node.clone(),
            seat: seat.clone(),
            name: launch.name.clone(),
            holds,
            ended: self.ended.clone(),
            waiting: seeker.map(lease::Seeker::as_waiting).into_iter().collect(),
            parks: *can_park,
            parked: standing.map(|s| s.as_reported()),
            captured: self.durable.as_ref().is_some_and(Durable::is_saved),
            unsaved: self.durable.as_ref().and_then(Durable::unsaved).map(|u| u.why),
            bound: self.durable.as_ref().map_or_else(Bound::default, Durable::bound),
            wanted: launch.replicas.count() as u16,
            standbys: self.standbys(),
            leader: self.group().and_then(|group| group.leader),
        };
        self.tell_hopd(ToHopd::ReplicaUp(Box::new(report)));
        if let Some(said) = self.not_moved.clone() {
            self.tell_hopd(*said);
        }
    }
}
