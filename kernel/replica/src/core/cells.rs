//! Execute requests between their arrival and their reply, in order.
//!
//! A cell without a need goes straight to the kernel, which has a queue of its own, unless a cell with a lease comes
//! first. A cell with a need asks for its lease once all cells before are answered: no GPU is held while other code
//! runs. [`super::lease`] follows the lease itself.

use super::signs::Signs;
use crate::need::{self, Foreign, Unattended};
use bytes::Bytes;
use hop_protocol::jupyter::{Envelope, Header};
use hop_protocol::message::InFlight;
use hop_words::id::CellId;
use hop_words::need::Need;
use hop_words::time::Timestamp;
use hop_zmtp::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};

/// An execute request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) message: Message,
}

impl Request {
    /// The cell's text, for the `execute_input` if the supervisor answers in the kernel's stead.
    pub(super) fn code(&self) -> String {
        let envelope = Envelope::parse(&self.message).ok();
        let code = envelope.and_then(|e| e.execute().map(|e| e.code.into_owned()));
        code.unwrap_or_default()
    }
}

/// The place of a cell on its way. [`super::Place`] tells the state of the lease of a `Seeking` or `Running` cell.
#[derive(Debug)]
enum Stage {
    /// Waits for the cells before it. An unreadable need is told when the cell's turn comes.
    Held(Request, Result<Need, String>),
    /// The first cell not yet with the kernel: the lease is asked for, or on its way.
    Seeking(Request, Need),
    /// The kernel has it. The request is kept for the kernel's next process.
    Running(Request, Need),
    /// Outside of the order: a subshell's cell, or a request that only the kernel can refuse. The kernel has it.
    Free,
    /// The same, before the kernel takes requests.
    Early(Message),
}

/// The front's word, needed by each cell of a kernel with a log (docs/replication.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permit {
    /// The kernel keeps no log, or the cell is outside of the order.
    NotNeeded,
    Needed,
    /// The front was told of the cell's coming start.
    Asked,
    Given,
}

/// Most starts of a cell with `%%retry`.
const ATTEMPTS: u32 = 3;

/// An execute request without a reply.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) id: CellId,
    /// The client's routing identity.
    pub(crate) identity: Bytes,
    pub(crate) header: Bytes,
    /// `metadata.gresshopper` of the reply.
    metadata: Option<Value>,
    pub(crate) run: Unattended,
    /// The notebook's id of the cell, where the client gives an id and the cell has a need.
    pub(super) cell_id: Option<String>,
    stop_on_error: bool,
    /// A client's own request, of which its user sees nothing.
    pub(super) is_hidden: bool,
    permit: Permit,
    /// The front has heard of the cell's coming start.
    announced: bool,
    /// The kernel has begun the cell, by the agent's word; in the present process, and in any.
    begun: bool,
    ran: bool,
    /// The cell runs again after a loss during its run.
    retry: bool,
    attempts: u32,
    /// Of the present process.
    pub(super) signs: Signs,
    stage: Stage,
}

/// The stages as others see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StageName {
    Held,
    Seeking,
    Running,
    Free,
    Early,
}

/// The next thing to do with the first cell that the kernel hasn't got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait,
    Forward(CellId),
    Ask(CellId, Need),
    /// The cell's need is unreadable, for this reason.
    Refuse(CellId, String),
}

/// The fate of a cell whose process has died.
#[derive(Debug)]
pub(super) enum LostCell {
    /// The cell was lost during its run, and runs again at the request of its text (`%%retry`).
    Again(CellId),
    /// The cell ran to its end, and the log gets the answer; the kernel's own reply never came.
    Ended(Cell),
    /// The cell was in its middle.
    Lost(Cell),
    /// The cell waited in the process behind another one.
    Behind(Cell),
}

#[derive(Debug)]
pub(super) struct Cells {
    /// The oldest first.
    cells: VecDeque<Cell>,
    /// Each cell of the order begins with the front's word alone.
    by_permit: bool,
    /// The kernel is IPython, with our extension.
    pub(super) knows_magics: bool,
    /// When the process was last interrupted.
    interrupted: Option<Timestamp>,
    /// The kernel's last execution count.
    pub(super) count: i64,
    /// Cells of the present process that were answered in its place. A reply that comes all the same is dropped.
    given_up: BTreeSet<CellId>,
}

impl Cells {
    pub(super) fn new(by_permit: bool, knows_magics: bool) -> Self {
        Self {
            cells: VecDeque::new(),
            by_permit,
            knows_magics,
            interrupted: None,
            count: 0,
            given_up: BTreeSet::new(),
        }
    }

    /// The number for a cell that never reached the kernel: the last cell's. Notebooks show no number for 0, as if the
    /// cell had never run.
    pub(super) fn shown_count(&self) -> i64 {
        self.count.max(1)
    }

    /// The number for a cell that the process's end has struck: the kernel has announced a number for a begun cell,
    /// except for a hidden one.
    pub(super) fn count_of_lost(&self, cell: &Cell) -> i64 {
        match cell.begun && !cell.is_hidden {
            true => self.count + 1,
            false => self.shown_count(),
        }
    }

    /// Takes in an execute request. A repeated request is ignored: each request is answered once.
    pub(super) fn arrive(
        &mut self,
        identity: Bytes,
        message: Message,
        envelope: &Envelope,
        header: &Header,
        default_need: &Need,
        now: Timestamp,
    ) {
        let id: CellId = header.msg_id.as_str().into();
        if self.find(&id).is_some() {
            return;
        }
        // Clients may use an id again.
        self.given_up.remove(&id);
        let mut cell = Cell {
            id,
            identity,
            header: envelope.header.clone(),
            metadata: None,
            run: Unattended::default(),
            cell_id: None,
            // A cell outside of the order stops nothing.
            stop_on_error: false,
            is_hidden: false,
            permit: Permit::NotNeeded,
            announced: false,
            begun: false,
            ran: false,
            retry: false,
            attempts: 0,
            signs: Signs::default(),
            stage: Stage::Free,
        };
        let run = Unattended::of_request(&envelope.metadata);
        cell.run = run.clone().unwrap_or_default();
        let (Some(content), None) = (envelope.execute(), &header.subshell_id) else {
            cell.stage = Stage::Early(message);
            return self.cells.push_back(cell);
        };
        (cell.stop_on_error, cell.is_hidden) = (content.stop_on_error, content.is_hidden());
        let foreign = (!self.knows_magics).then(|| Foreign::of(&content.code)).flatten();
        let read = foreign.as_ref().map_or(&*content.code, |f| &f.read);
        cell.retry = need::is_retried(read, &envelope.metadata);
        let need = need::of_cell(read, &envelope.metadata, cell.is_hidden, default_need, now);
        let need = run.and_then(|run| need.map(|need| run.apply(need)));
        if !need.as_ref().is_ok_and(Need::is_none) {
            cell.cell_id = cell_id(&envelope.metadata);
        }
        cell.stage = Stage::Held(Request { message }, need.map_err(|e| e.to_string()));
        if self.by_permit {
            cell.permit = Permit::Needed;
        }
        self.cells.push_back(cell);
    }

    /// Gives the kernel the cells outside of the order. Returns their requests, each with its client.
    pub(super) fn send_early(&mut self) -> Vec<(Bytes, Message)> {
        let mut sent = Vec::new();
        for cell in &mut self.cells {
            match std::mem::replace(&mut cell.stage, Stage::Free) {
                Stage::Early(message) => sent.push((cell.identity.clone(), message)),
                other => cell.stage = other,
            }
        }
        sent
    }

    /// `alone` is the cell with a lease that runs, or may run: no other cell may run beside.
    pub(super) fn next(&self, alone: Option<&CellId>) -> Next {
        let mut running = false;
        for cell in &self.cells {
            let asked = cell.permit == Permit::Asked;
            match &cell.stage {
                Stage::Free | Stage::Early(_) => {}
                Stage::Running(..) => running = true,
                Stage::Seeking(..) if alone == Some(&cell.id) && !asked => {
                    return Next::Forward(cell.id.clone());
                }
                Stage::Seeking(..) => return Next::Wait,
                Stage::Held(..) if asked => return Next::Wait,
                // Only this cell is to be at stake if its process is ended ([`super::attempts`]).
                Stage::Held(..) if running && cell.retry => return Next::Wait,
                Stage::Held(_, Ok(need)) if need.is_none() => {
                    return match alone {
                        Some(_) => Next::Wait,
                        None => Next::Forward(cell.id.clone()),
                    };
                }
                Stage::Held(..) if running => return Next::Wait,
                Stage::Held(_, Ok(need)) => return Next::Ask(cell.id.clone(), need.clone()),
                Stage::Held(_, Err(problem)) => return Next::Refuse(cell.id.clone(), problem.clone()),
            }
        }
        Next::Wait
    }

    /// The cell's lease is asked for.
    pub(super) fn seek(&mut self, id: &CellId) {
        if let Some(cell) = self.find_mut(id) {
            cell.stage = match std::mem::replace(&mut cell.stage, Stage::Free) {
                Stage::Held(request, Ok(need)) => Stage::Seeking(request, need),
                other => other,
            };
        }
    }

    /// The cell's lease is over before the cell has begun.
    pub(super) fn unseek(&mut self, id: &CellId) {
        if let Some(cell) = self.find_mut(id) {
            cell.stage = match std::mem::replace(&mut cell.stage, Stage::Free) {
                Stage::Seeking(request, need) => Stage::Held(request, Ok(need)),
                other => other,
            };
            cell.needs_word_anew();
        }
    }

    /// The kernel may get the cell now. Returns whether the front has to be asked first.
    pub(super) fn must_ask(&mut self, id: &CellId) -> bool {
        match self.find_mut(id) {
            Some(cell) if cell.permit == Permit::Needed => {
                (cell.permit, cell.announced) = (Permit::Asked, true);
                true
            }
            _ => false,
        }
    }

    /// The front has given its word.
    pub(super) fn permit(&mut self, id: &CellId) {
        if let Some(cell) = self.find_mut(id).filter(|c| c.permit == Permit::Asked) {
            cell.permit = Permit::Given;
        }
    }

    /// The front that was asked is gone. A cell that asks twice begins once: only the first word counts.
    pub(super) fn ask_again(&mut self) {
        let asked = self.cells.iter_mut().filter(|c| c.permit == Permit::Asked);
        asked.for_each(|cell| cell.permit = Permit::Needed);
    }

    /// Cells taken for begun by the front, though no process of the kernel began them and this process has none of
    /// them. The front hears that the cells have not begun: a cell that runs here after all needs the front's word
    /// anew.
    pub(super) fn not_begun(&mut self) -> Vec<CellId> {
        let waits = |c: &&mut Cell| match c.stage {
            Stage::Held(..) | Stage::Seeking(..) => c.announced && !c.ran,
            // The front isn't asked for it.
            Stage::Early(_) => true,
            Stage::Running(..) | Stage::Free => false,
        };
        let waiting = self.cells.iter_mut().filter(waits);
        waiting
            .map(|cell| {
                cell.needs_word_anew();
                cell.id.clone()
            })
            .collect()
    }

    /// Gives the cell to the kernel. Returns the request, with its client; `None` means that the kernel already has the
    /// cell.
    pub(super) fn send(&mut self, id: &CellId, now: Timestamp) -> Option<(Bytes, Message)> {
        let strikes = self.knows_magics && self.interrupted.is_some_and(|at| now < at + Signs::IN_FLIGHT);
        let cell = self.find_mut(id)?;
        let (request, need) = match std::mem::replace(&mut cell.stage, Stage::Free) {
            Stage::Held(request, Ok(need)) | Stage::Seeking(request, need) => (request, need),
            other => {
                cell.stage = other;
                return None;
            }
        };
        cell.attempts += 1;
        cell.signs.struck |= strikes;
        let message = request.message.clone();
        cell.stage = Stage::Running(request, need);
        Some((cell.identity.clone(), message))
    }

    /// The process is interrupted. The interrupt strikes what the process has not ended; an ended cell without a reply
    /// is given up sooner if no other cell's code can hold its reply up.
    pub(super) fn note_interrupt(&mut self, now: Timestamp) {
        self.interrupted = Some(now);
        let alone = self.is_kernel_past_all();
        for cell in self.with_kernel_mut() {
            cell.signs.struck |= alone || cell.signs.idle.is_none();
        }
    }

    /// The kernel begins the cell: a death of the process from now on strikes the cell in its middle.
    pub(super) fn begun(&mut self, id: &CellId) {
        if let Some(cell) = self.find_mut(id) {
            (cell.begun, cell.ran) = (true, true);
        }
    }

    /// Takes out the cells begun by the dead process, the oldest first, and the cells aborted by an earlier error.
    /// Other cells stay and wait for their turn, as do cells with another run to come. `ended` tells whether a cell ran
    /// to its end, with its reply still missing.
    pub(super) fn take_sent(&mut self, ended: impl Fn(&CellId) -> bool) -> Vec<LostCell> {
        self.given_up.clear();
        let mut lost = Vec::new();
        let mut aborts = false;
        for mut cell in std::mem::take(&mut self.cells) {
            match std::mem::replace(&mut cell.stage, Stage::Free) {
                Stage::Running(..) if ended(&cell.id) => lost.push(LostCell::Ended(cell)),
                Stage::Running(..) if !cell.begun && aborts => lost.push(LostCell::Behind(cell)),
                Stage::Running(request, need) if !cell.begun => {
                    self.cells.push_back(cell.held_again(request, need));
                }
                Stage::Running(request, need) if cell.retry && cell.attempts < ATTEMPTS => {
                    lost.push(LostCell::Again(cell.id.clone()));
                    self.cells.push_back(cell.held_again(request, need));
                }
                Stage::Running(..) => {
                    aborts |= cell.stop_on_error;
                    lost.push(LostCell::Lost(cell));
                }
                Stage::Free => lost.push(LostCell::Lost(cell)),
                waiting => {
                    cell.stage = waiting;
                    self.cells.push_back(cell);
                }
            }
        }
        lost
    }

    /// Takes out a cell that the kernel never got.
    pub(super) fn take_unsent(&mut self, id: &CellId) -> Option<(Cell, Request)> {
        let at = self.position(id)?;
        let mut cell = self.cells.remove(at)?;
        match std::mem::replace(&mut cell.stage, Stage::Free) {
            Stage::Held(request, _) | Stage::Seeking(request, _) => Some((cell, request)),
            other => {
                cell.stage = other;
                self.cells.insert(at, cell);
                None
            }
        }
    }

    /// Takes out all cells in wait behind others.
    pub(super) fn take_held(&mut self) -> Vec<(Cell, Request)> {
        let ids: Vec<CellId> = self.held().cloned().collect();
        ids.iter().filter_map(|id| self.take_unsent(id)).collect()
    }

    /// The cells in wait behind others or for the kernel, the oldest first.
    pub(super) fn held(&self) -> impl Iterator<Item = &CellId> {
        let held = |c: &&Cell| matches!(c.stage, Stage::Held(..));
        self.cells.iter().filter(held).map(|c| &c.id)
    }

    /// Takes out a cell that was answered.
    pub(super) fn close(&mut self, id: &CellId) -> Option<Cell> {
        let at = self.position(id)?;
        self.cells.remove(at)
    }

    /// Takes out a cell that is answered in place of the process.
    pub(super) fn give_up(&mut self, id: &CellId) -> Option<Cell> {
        let cell = self.close(id)?;
        self.given_up.insert(cell.id.clone());
        Some(cell)
    }

    /// Whether the cell was answered in place of the process.
    pub(super) fn is_given_up(&self, id: &CellId) -> bool {
        self.given_up.contains(id)
    }

    pub(super) fn find(&self, id: &CellId) -> Option<&Cell> {
        self.cells.iter().find(|c| c.id == *id)
    }

    fn find_mut(&mut self, id: &CellId) -> Option<&mut Cell> {
        self.cells.iter_mut().find(|c| c.id == *id)
    }

    fn position(&self, id: &CellId) -> Option<usize> {
        self.cells.iter().position(|c| c.id == *id)
    }

    /// The header of a cell's request; `{}` for an unknown cell.
    pub(super) fn header(&self, id: &CellId) -> Bytes {
        self.find(id).map_or_else(no_header, |c| c.header.clone())
    }

    /// The cell that the kernel runs now: the cell sent first.
    pub(super) fn running(&self) -> Option<&CellId> {
        let mut sent = self
            .cells
            .iter()
            .filter(|c| matches!(c.stage, Stage::Running(..)));
        sent.next().map(|c| &c.id)
    }

    /// Whether the kernel has a cell: one of the order, or a subshell's.
    pub(super) fn is_any_with_kernel(&self) -> bool {
        self.cells.iter().any(Cell::is_with_kernel)
    }

    /// Whether the kernel has said `idle` for each cell that it has: at most replies are missing.
    pub(super) fn is_kernel_past_all(&self) -> bool {
        let mut sent = self.cells.iter().filter(|c| c.is_with_kernel());
        sent.all(|c| c.signs.is_idle())
    }

    /// The kernel's cells, the oldest first.
    pub(super) fn with_kernel_mut(&mut self) -> impl Iterator<Item = &mut Cell> {
        self.cells.iter_mut().filter(|c| c.is_with_kernel())
    }

    /// The cell whose lease is asked for.
    pub(super) fn seeking(&self) -> Option<&CellId> {
        let mut seeking = self
            .cells
            .iter()
            .filter(|c| matches!(c.stage, Stage::Seeking(..)));
        seeking.next().map(|c| &c.id)
    }

    pub(super) fn in_flight(&self) -> Vec<InFlight> {
        let in_flight = |c: &Cell| InFlight {
            identity: hex::encode(&c.identity),
            header: String::from_utf8_lossy(&c.header).into_owned(),
        };
        self.cells.iter().map(in_flight).collect()
    }

    /// Notes the lease for the cell's reply to report.
    pub(super) fn set_metadata(&mut self, id: &CellId, value: Value) {
        if let Some(cell) = self.find_mut(id) {
            cell.metadata = Some(value);
        }
    }

    /// Adds metadata to the cell's later reply.
    pub(super) fn add_metadata(&mut self, id: &CellId, key: &str, value: Value) {
        if let Some(cell) = self.find_mut(id) {
            match &mut cell.metadata {
                Some(Value::Object(map)) => drop(map.insert(key.to_owned(), value)),
                other => *other = Some(json!({key: value})),
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter()
    }
}

impl Cell {
    /// The cell's text; empty for a cell outside of the order.
    pub(super) fn code(&self) -> String {
        match &self.stage {
            Stage::Held(request, _) | Stage::Seeking(request, _) | Stage::Running(request, _) => {
                request.code()
            }
            Stage::Free | Stage::Early(_) => String::new(),
        }
    }

    pub(super) fn stage(&self) -> StageName {
        match self.stage {
            Stage::Held(..) => StageName::Held,
            Stage::Seeking(..) => StageName::Seeking,
            Stage::Running(..) => StageName::Running,
            Stage::Free => StageName::Free,
            Stage::Early(_) => StageName::Early,
        }
    }

    pub(super) fn is_with_kernel(&self) -> bool {
        matches!(self.stage, Stage::Running(..) | Stage::Free)
    }

    /// Earlier questions to the front, and its answers, don't count any more.
    fn needs_word_anew(&mut self) {
        if matches!(self.permit, Permit::Asked | Permit::Given) {
            self.permit = Permit::Needed;
        }
    }

    /// The cell as of before the kernel got the request.
    fn held_again(mut self, request: Request, need: Need) -> Self {
        if self.permit != Permit::NotNeeded {
            self.permit = Permit::Needed;
        }
        (self.begun, self.signs) = (false, Signs::default());
        self.stage = Stage::Held(request, Ok(need));
        self
    }

    /// Whether the kernel has begun the cell, by the agent's word.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether the cell begins again where it may have begun before.
    pub(super) fn is_retried(&self) -> bool {
        self.retry
    }

    /// Whether an error of this cell aborts the cells behind.
    pub(super) fn stops_on_error(&self) -> bool {
        self.stop_on_error
    }

    pub(super) fn into_metadata(self) -> Option<Value> {
        self.metadata
    }
}

/// `metadata.cellId`, which JupyterLab and VS Code send with a cell.
fn cell_id(metadata: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(rename = "cellId")]
        cell_id: Option<String>,
    }
    serde_json::from_slice::<Metadata>(metadata).ok()?.cell_id
}

/// The parent header of a message that belongs to no request.
pub(super) fn no_header() -> Bytes {
    Bytes::from_static(b"{}")
}
