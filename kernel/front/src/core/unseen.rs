//! Outputs that the notebook's file may lack (docs/wiring.md, "A page that was away").
//!
//! A notebook's page may be closed, or lose its connection, while its cells run. The outputs of each cell are kept
//! until a page says that they are in the notebook's file. The notebook's next page asks for these outputs, replaces
//! the cell's own, and goes on with the later messages. Each change is recorded for the kernel's next front, which goes
//! on with all records.

mod outputs;
mod record;

use self::outputs::Outputs;
pub use self::record::Records;
pub(super) use self::record::{Account, Answer, Change, Request};
use self::record::{Came, Json, Log};
use super::{Front, Mark, Wire};
use bytes::Bytes;
use hop_protocol::comm::{ANNOUNCED_MAX, CommContent, PageWord};
use hop_protocol::jupyter::{Envelope, Header};
use hop_words::id::{CellId, Incarnation};
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{HashSet, VecDeque};

/// Most bytes of kept outputs and code for one kernel. The oldest outputs are dropped first.
const KEEP: usize = 8 << 20;

/// Most kept cells for one kernel. The oldest are dropped first.
const CELLS_MAX: usize = 1000;

/// Most bytes of a notebook's path. A page with a longer path is not served.
const PATH_MAX: usize = 4096;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Unseen {
    /// The notebooks' pages, the newest last.
    pages: Vec<Page>,
    /// The kept cells, in the order of their requests.
    cells: VecDeque<Cell>,
    kept: usize,
    /// The replica whose items come, and the number of the last item taken: a killed front's items come again.
    stream: Option<(Incarnation, u64)>,
    #[serde(skip)]
    log: Log,
}

/// A page, which says which cells are in the notebook's file.
#[derive(Debug, Serialize, Deserialize)]
struct Page {
    session: String,
    notebook: String,
}

/// A page that goes on with a cell of another page, or with a cell whose messages it may have missed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Follower {
    session: String,
    comm: String,
    /// The header of the page's question, the parent of each answer.
    header: Json,
}

/// A message to one page.
type Told = (Follower, Value);

/// One execution of a notebook's cell.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    id: CellId,
    header: Json,
    notebook: String,
    /// The notebook's id of the cell.
    cell_id: String,
    code: String,
    /// Number of messages published for the cell. A page with as many messages lacks none.
    heard: u64,
    outputs: Outputs,
    is_busy: bool,
    is_idle: bool,
    /// The content of the cell's reply.
    reply: Option<Json>,
    followers: Vec<Follower>,
}

impl Unseen {
    /// Notes the notebook that a page names. If the page names another path, its notebook was renamed.
    fn page(&mut self, session: &str, notebook: &str) {
        let known = self.pages.iter().position(|p| p.session == session);
        let known = known.map(|at| self.pages.remove(at));
        if let Some(old) = known.filter(|p| p.notebook != notebook) {
            for cell in self.cells.iter_mut().filter(|c| c.notebook == old.notebook) {
                notebook.clone_into(&mut cell.notebook);
            }
        }
        if self.pages.len() == ANNOUNCED_MAX {
            self.pages.remove(0);
        }
        let (session, notebook) = (session.to_owned(), notebook.to_owned());
        self.pages.push(Page { session, notebook });
    }

    /// Applies a change, and records it for the kernel's next front. Returns what pages are told.
    fn change(&mut self, change: Change) -> Vec<Told> {
        self.log.add(&change);
        let told = self.apply(change);
        self.enforce();
        told
    }

    fn apply(&mut self, change: Change) -> Vec<Told> {
        match change {
            // A process numbers its items from 1, even if it follows another process of the same member.
            Change::Stream(replica) => self.stream = Some((replica, 0)),
            Change::Page { session, notebook } => self.page(&session, &notebook),
            Change::Asked { session, cell } => return self.asked(&session, cell),
            Change::Came { cell, seq, what } => return self.came(&cell, seq, what),
            Change::Seen(seen) => self.seen(&seen),
            Change::Wanted {
                notebook,
                shown,
                page,
            } => return self.wanted(&notebook, &shown, &page),
            // These concern the front's requests and clients.
            Change::Open(_)
            | Change::Answered(_)
            | Change::Closed(_)
            | Change::Audience(_)
            | Change::Count(_)
            | Change::Account(_) => {}
        }
        Vec::new()
    }

    /// The notebook of the client's page. `None` means that the client is no page.
    fn notebook_of(&self, session: &str) -> Option<&str> {
        let page = self.pages.iter().find(|p| p.session == session);
        page.map(|p| &*p.notebook)
    }

    /// Keeps a page's new cell. Pages following the cell's previous execution now follow this one.
    fn asked(&mut self, session: &str, mut cell: Cell) -> Vec<Told> {
        // Only the last execution of a cell is kept.
        for old in &mut self.cells {
            if old.is_before(&cell) {
                let others = old.followers.drain(..).filter(|f| f.session != session);
                others.for_each(|page| cell.follow(page));
            }
        }
        self.forget(|c| c.is_before(&cell));
        let told = cell.followers.iter().cloned();
        let told = told.map(|f| (f, cell.told())).collect();
        self.kept += cell.size();
        self.cells.push_back(cell);
        if self.cells.len() > CELLS_MAX {
            self.forget_oldest();
        }
        told
    }

    /// The change by a message that is published for a kept cell, or answers it. `None` means a message for no kept
    /// cell.
    fn comes(&self, message: &Message, seq: Option<u64>, is_reply: bool) -> Option<Change> {
        if self.cells.is_empty() {
            return None;
        }
        let envelope = Envelope::parse(message).ok()?;
        let cell = CellId::from(envelope.parent()?.msg_id);
        // Most messages are for the newest cells.
        self.cells.iter().rev().find(|c| c.id == cell)?;
        let content = Json::copy(&envelope.content);
        let what = match is_reply {
            true => Came::Reply(content),
            false => Came::Published {
                msg_type: envelope.header().ok()?.msg_type,
                content,
            },
        };
        Some(Change::Came { cell, seq, what })
    }

    /// Adds a message to its cell. Returns the news of the cell's end, if the cell ends with this message.
    fn came(&mut self, cell: &CellId, seq: Option<u64>, what: Came) -> Vec<Told> {
        if let (Some(seq), Some((_, last))) = (seq, &mut self.stream) {
            // This item comes again: a killed front had taken it.
            if seq <= *last {
                return Vec::new();
            }
            *last = seq;
        }
        let Some(cell) = self.cells.iter_mut().rev().find(|c| c.id == *cell) else {
            return Vec::new();
        };
        let (before, ended) = (cell.size(), cell.has_ended());
        match what {
            Came::Published { msg_type, content } => {
                cell.heard += 1;
                cell.shows(msg_type, &content);
            }
            Came::Reply(content) => cell.reply = Some(content),
        }
        self.kept = self.kept + cell.size() - before;
        let mut told = Vec::new();
        if cell.has_ended() && !ended {
            let end = json!({"ended": {"id": cell.id, "reply": cell.reply_value()}});
            let followers = std::mem::take(&mut cell.followers);
            told.extend(followers.into_iter().map(|f| (f, end.clone())));
        }
        told
    }

    /// Forgets cells whose final state is in the notebook's file.
    fn seen(&mut self, seen: &[CellId]) {
        let seen: HashSet<&CellId> = seen.iter().collect();
        self.forget(|c| c.has_ended() && seen.contains(&c.id));
    }

    /// Returns the notebook's cells for the asking page, except the cells that the page has `shown` to their end. The
    /// page will be told of the end of each other cell.
    fn wanted(&mut self, notebook: &str, shown: &[CellId], page: &Follower) -> Vec<Told> {
        let shown: HashSet<&CellId> = shown.iter().collect();
        let mut wanted = Vec::new();
        for cell in self.cells.iter_mut().filter(|c| c.notebook == notebook) {
            if cell.has_ended() && shown.contains(&cell.id) {
                continue;
            }
            wanted.push((page.clone(), cell.told()));
            if !cell.has_ended() {
                cell.follow(page.clone());
            }
        }
        wanted
    }

    fn forget(&mut self, which: impl Fn(&Cell) -> bool) {
        let kept = &mut self.kept;
        self.cells.retain(|cell| {
            let goes = which(cell);
            if goes {
                *kept -= cell.size();
            }
            !goes
        });
    }

    fn forget_oldest(&mut self) {
        if let Some(cell) = self.cells.pop_front() {
            self.kept -= cell.size();
        }
    }

    fn enforce(&mut self) {
        while self.kept > KEEP {
            match self.cells.iter_mut().find_map(|c| c.outputs.drop_oldest()) {
                Some(size) => self.kept -= size,
                None => self.forget_oldest(),
            }
        }
    }

    pub(super) fn check(&self) {
        assert_eq!(self.kept, self.cells.iter().map(Cell::size).sum::<usize>());
        assert!(self.kept <= KEEP && self.cells.len() <= CELLS_MAX);
        assert!(self.pages.len() <= ANNOUNCED_MAX);
        for cell in &self.cells {
            assert!(cell.followers.is_empty() || !cell.has_ended());
            assert!(cell.followers.len() <= ANNOUNCED_MAX);
            cell.outputs.check();
        }
    }
}

impl Cell {
    /// `None` means that the request is not for a notebook's cell.
    fn of(header: &Header, request: &Envelope, notebook: String) -> Option<Self> {
        #[derive(Deserialize)]
        struct Metadata {
            #[serde(rename = "cellId")]
            cell_id: String,
        }
        #[derive(Deserialize)]
        struct Content {
            code: String,
            #[serde(default)]
            silent: bool,
        }
        let Metadata { cell_id } = serde_json::from_slice(&request.metadata).ok()?;
        let Content { code, silent } = serde_json::from_slice(&request.content).ok()?;
        (!silent).then(|| Self {
            id: header.msg_id.as_str().into(),
            header: Json::copy(&request.header),
            notebook,
            cell_id,
            code,
            heard: 0,
            outputs: Outputs::default(),
            is_busy: false,
            is_idle: false,
            reply: None,
            followers: Vec::new(),
        })
    }

    /// Whether `other`, a later cell, executes the same cell of the notebook.
    fn is_before(&self, other: &Self) -> bool {
        self.notebook == other.notebook && self.cell_id == other.cell_id
    }

    fn has_ended(&self) -> bool {
        self.is_idle && self.reply.is_some()
    }

    fn size(&self) -> usize {
        let reply = self.reply.as_ref().map_or(0, |r| r.len());
        self.header.len() + self.cell_id.len() + self.code.len() + self.outputs.size() + reply
    }

    fn follow(&mut self, page: Follower) {
        self.followers.retain(|f| f.session != page.session);
        if self.followers.len() == ANNOUNCED_MAX {
            self.followers.remove(0);
        }
        self.followers.push(page);
    }

    fn shows(&mut self, msg_type: String, content: &Bytes) {
        if msg_type != "status" {
            self.outputs.take(msg_type, content);
        } else if let Some(state) = state_in(content) {
            self.is_busy |= state == "busy";
            self.is_idle |= state == "idle";
        }
    }

    fn reply_value(&self) -> Option<Value> {
        let reply = self.reply.as_ref().filter(|_| self.has_ended())?;
        serde_json::from_slice(reply).ok()
    }

    /// The cell's message to a page.
    fn told(&self) -> Value {
        json!({"cell": {
            "id": self.id, "cell_id": self.cell_id, "code": self.code, "heard": self.heard,
            "dropped": self.outputs.dropped(), "outputs": self.outputs.values(), "reply": self.reply_value(),
        }})
    }
}

/// The `execution_state` in the content of a `status`.
pub(super) fn state_in(content: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Status {
        execution_state: String,
    }
    let status: Status = serde_json::from_slice(content).ok()?;
    Some(status.execution_state)
}

impl Front {
    /// Publishes a message after the messages that found no subscriber. Keeps it for the notebook's next page if it is
    /// an output of a cell. Returns false if there is no subscriber.
    pub(super) fn publish(
        &mut self,
        message: &Message,
        mark: Option<Mark>,
        at: Time,
        wire: &mut impl Wire,
    ) -> bool {
        self.flush(wire);
        let heard = if self.audience.is_awaited() && wire.subscribers() > 0 {
            self.keep(message.clone(), mark, wire);
            true
        } else {
            wire.publish(message, mark)
        };
        let seq = mark.and_then(|mark| self.marks.seq(mark));
        self.comes(message, seq, false, at, wire);
        heard
    }

    /// Keeps a reply, since its client may be away. `seq` is the replica's number of the reply.
    pub(super) fn has_answered(&mut self, reply: &Message, seq: Option<u64>, at: Time, wire: &mut impl Wire) {
        self.comes(reply, seq, true, at, wire);
    }

    fn comes(&mut self, message: &Message, seq: Option<u64>, is_reply: bool, at: Time, wire: &mut impl Wire) {
        if let Some(change) = self.unseen.comes(message, seq, is_reply) {
            self.changes(change, at, wire);
        }
    }

    fn changes(&mut self, change: Change, at: Time, wire: &mut impl Wire) {
        let told = self.unseen.change(change);
        self.tell_pages(told, at, wire);
    }

    /// Keeps the outputs of a requested cell from now on, if the client is a page.
    pub(super) fn cell_asked(&mut self, header: &Header, request: &Envelope, at: Time, wire: &mut impl Wire) {
        let Some(notebook) = self.unseen.notebook_of(&header.session) else {
            return;
        };
        if let Some(cell) = Cell::of(header, request, notebook.to_owned()) {
            let session = header.session.clone();
            self.changes(Change::Asked { session, cell }, at, wire);
        }
    }

    /// Begins with the items of another process. The process may be of the same replica as the one before.
    pub fn begins_with(&mut self, replica: Incarnation) {
        // No page is told of this change.
        drop(self.unseen.change(Change::Stream(replica)));
    }

    /// Goes on with the items of the earlier front's replica. Items that the earlier front has taken may come again.
    pub fn goes_on_with(&mut self, replica: Incarnation) {
        if self.unseen.stream.is_none_or(|(last, _)| last != replica) {
            self.begins_with(replica);
        }
    }

    /// Handles a page's message on its cells' outputs. Returns whether the message has no other purpose: then no
    /// replica needs it.
    pub(super) fn page_says(
        &mut self,
        header: &Header,
        message: &Envelope,
        content: &CommContent,
        at: Time,
        wire: &mut impl Wire,
    ) -> bool {
        let is_opening = header.msg_type == "comm_open";
        let Some(word) = content.of_page().filter(|_| !is_opening || content.announces()) else {
            return false;
        };
        let PageWord {
            notebook,
            seen,
            wanted,
            shown,
        } = word;
        if notebook.len() > PATH_MAX {
            return !is_opening;
        }
        let page = Change::Page {
            session: header.session.clone(),
            notebook: notebook.clone(),
        };
        self.changes(page, at, wire);
        if !seen.is_empty() {
            self.changes(Change::Seen(seen), at, wire);
        }
        if wanted {
            let page = Follower {
                session: header.session.clone(),
                comm: content.comm_id.clone(),
                header: Json::copy(&message.header),
            };
            let change = Change::Wanted {
                notebook: notebook.clone(),
                shown,
                page,
            };
            self.changes(change, at, wire);
            self.say_busy(&notebook, at, wire);
        }
        !is_opening
    }

    /// Publishes `busy` again while a cell of the notebook runs: a new page doesn't know that a cell runs.
    fn say_busy(&mut self, notebook: &str, at: Time, wire: &mut impl Wire) {
        let runs = |c: &&Cell| c.notebook == notebook && c.is_busy && !c.is_idle;
        if let Some(header) = self.unseen.cells.iter().find(runs).map(|c| c.header.clone()) {
            let busy = self.author.status(&header, "busy", &json!({}), at);
            self.publish(&busy, None, at, wire);
        }
    }

    fn tell_pages(&mut self, told: Vec<Told>, at: Time, wire: &mut impl Wire) {
        for (Follower { comm, header, .. }, what) in told {
            let content = json!({"comm_id": comm, "data": {"outputs": what}});
            let said = self.author.publish("comm_msg", &header, &json!({}), &content, at);
            wire.publish(&said, None);
        }
    }
}

#[cfg(test)]
mod tests;
