//! Cells of an earlier server. A kernel that outlived the server and the front may still run a cell without a
//! client. The cell's outputs are shown at the notebook's next cell, or at the cell in wait behind it.

use super::{Front, Notice, Open, Wire};
use bytes::Bytes;
use hop_protocol::jupyter::Envelope;
use hop_protocol::meanwhile::Meanwhile;
use hop_words::id::CellId;
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use std::collections::HashSet;

const CELL_LOST: &str = "gresshopper: a cell that ran on without a server was lost with the kernel's process or node; run it \
    again\n";

const CELL_ASKS: &str = "gresshopper: a cell that runs on from before this server waits for input, which nobody can give any more; \
    interrupt the kernel to go on\n";

/// The cells of an earlier server, and their outputs and sentences for the user.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Cells requested through this front. `None` means no earlier server of the kernel: all cells are the present
    /// server's.
    asked: Option<HashSet<CellId>>,
    /// Outputs and sentences that the notebook's user has not read yet.
    untold: Meanwhile,
    /// The user has read that a cell ran on.
    said: bool,
}

impl Before {
    /// A client asks for this cell.
    pub(super) fn asked(&mut self, cell: &CellId) {
        if let Some(asked) = &mut self.asked {
            asked.insert(cell.clone());
        }
    }

    /// Whether the cell is an earlier server's.
    pub(super) fn has(&self, cell: &CellId) -> bool {
        self.asked.as_ref().is_some_and(|asked| !asked.contains(cell))
    }

    /// Whether the message is an answer to an earlier server's cell, or an output of such a cell.
    pub(super) fn is_of(&self, message: &Message) -> bool {
        if self.asked.is_none() {
            return false;
        }
        let parent = Envelope::parse(message).ok().and_then(|e| e.parent());
        let cell = parent.filter(|p| p.msg_type == "execute_request");
        cell.is_some_and(|p| self.has(&p.msg_id.into()))
    }

    /// Keeps the message for the notebook's user, if it is an output. Returns whether it is one.
    pub(super) fn keep(&mut self, message: &Message) -> bool {
        self.untold.keep(message)
    }

    pub(super) fn take_untold(&mut self) -> Meanwhile {
        std::mem::take(&mut self.untold)
    }

    /// The sentences and outputs to show.
    pub(super) fn told(&mut self) -> Vec<Notice> {
        let untold = self.take_untold();
        let mut notices = Vec::new();
        let mut say = |text: String| notices.push(Notice::Text(format!("gresshopper: {text}\n")));
        for name in untold.lost {
            say(format!(
                "this cell had not ended when the notebook's server was gone and the kernel was saved, so it is \
                 lost; run it again: {name}"
            ));
        }
        for name in untold.not_run {
            say(format!(
                "this cell was not run before the kernel was saved: {name}"
            ));
        }
        if !untold.unsaved.is_empty() {
            let names: Vec<String> = untold.unsaved.into_iter().map(|cell| cell.name).collect();
            say(format!(
                "these cells had ended and were not saved, so their effects are gone: {}",
                names.join(", ")
            ));
        }
        if untold.dropped > 0 {
            let dropped = untold.dropped;
            say(format!(
                "{dropped} outputs of a cell that ran on without a server were too large to keep"
            ));
        }
        if !untold.outputs.is_empty() && !std::mem::replace(&mut self.said, true) {
            say("a cell ran on without a server; it showed:".to_owned());
        }
        notices.extend(untold.outputs.into_iter().map(Notice::Output));
        notices
    }
}

impl Front {
    /// The kernel may have outlived its server and its earlier front.
    #[must_use]
    pub fn after_a_loss(mut self) -> Self {
        self.before.asked = Some(HashSet::new());
        self
    }

    /// The notebook is opened again after this.
    pub fn tell_meanwhile(&mut self, meanwhile: Meanwhile) {
        let unsaved = meanwhile.unsaved.iter().map(|unsaved| unsaved.cell.clone());
        // The state may know some of them as lost, too: they are named once.
        self.ledger.lost(unsaved, |_| false);
        self.before.untold = meanwhile;
    }

    /// The oldest cell of an earlier server that has not ended.
    pub(super) fn runs_before(&self) -> Option<Bytes> {
        let open = self.open.iter().find(|o| o.is_cell && self.before.has(&o.id));
        open.map(|o| o.header.clone())
    }

    /// Shows an output of an earlier server's cell, now or at the next cell. Returns whether the message is such an
    /// output.
    pub(super) fn show_before(&mut self, message: &Message, at: Time, wire: &mut impl Wire) -> bool {
        let shows = self.meanwhile.is_none() && self.before.is_of(message) && self.before.keep(message);
        if shows {
            self.tell_at_open_cell(at, wire);
        }
        shows
    }

    /// An earlier server's cell asks for input, and its client is gone.
    pub(super) fn asks_before(&mut self, at: Time, wire: &mut impl Wire) {
        self.notices.push(Notice::Text(CELL_ASKS.to_owned()));
        self.tell_at_open_cell(at, wire);
    }

    /// An earlier server's cell can't be handed to another replica, and nobody waits for its answer. Returns whether
    /// the cell is of an earlier server.
    pub(super) fn loses_before(&mut self, open: &Open, at: Time, wire: &mut impl Wire) -> bool {
        let lost = self.before.has(&open.id);
        if lost {
            self.notices.push(Notice::Text(CELL_LOST.to_owned()));
            self.tell_at_open_cell(at, wire);
        }
        lost
    }
}
