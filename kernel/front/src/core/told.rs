//! Sentences and outputs that the front shows at a cell before the cell runs. The text of a wait may follow them, and the
//! `clear_output` that takes the text away takes them, too: they are shown again behind it.

use super::{Front, Notice, Wire};
use bytes::Bytes;
use hop_protocol::jupyter::{Envelope, Header};
use hop_words::id::CellId;
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;

/// Bytes to show again; what comes behind them is shown once.
const KEEP: usize = 8 << 20;

const LOST: &str =
    "gresshopper: the kernel was lost before these cells were saved, so their effects are gone";

/// Notices at a cell, until the cell runs.
#[derive(Debug, Default)]
pub(super) struct Told {
    at: Option<(CellId, Bytes)>,
    notices: Vec<Notice>,
    size: usize,
}

impl Told {
    /// Whether notices were shown at this cell.
    pub(super) fn are_at(&self, cell: &CellId) -> bool {
        self.at.as_ref().is_some_and(|(at, _)| at == cell)
    }

    /// Whether this message of an executor empties the cell before it runs. A running cell may clear its own outputs.
    pub(super) fn are_cleared_by(&mut self, message: &Message) -> bool {
        if self.at.is_none() {
            return false;
        }
        let Ok(envelope) = Envelope::parse(message) else {
            return false;
        };
        let of_cell = |e: &Envelope| e.parent().is_some_and(|p| self.are_at(&p.msg_id.into()));
        let header = envelope.header().ok().filter(|_| of_cell(&envelope));
        match header.as_ref().map(|h| &*h.msg_type) {
            Some("clear_output") => true,
            Some("execute_input") => {
                *self = Self::default();
                false
            }
            _ => false,
        }
    }

    fn keep(&mut self, header: &Bytes, notice: Notice, size: usize) {
        let Ok(Header { msg_id, .. }) = serde_json::from_slice(header) else {
            return;
        };
        let cell = CellId::from(msg_id);
        if !self.are_at(&cell) {
            *self = Self::default();
            self.at = Some((cell, header.clone()));
        }
        if self.size + size <= KEEP {
            self.size += size;
            self.notices.push(notice);
        }
    }
}

impl Front {
    /// Shows the user's notices at this cell.
    pub(super) fn tell_notices(&mut self, header: &Bytes, at: Time, wire: &mut impl Wire) {
        let mut notices = std::mem::take(&mut self.notices);
        notices.extend(self.before.told());
        let runs = self.open.iter().any(|o| o.header == *header && o.runs);
        for notice in notices {
            let size = self.show_notice(header, &notice, at, wire);
            self.has_read(&notice);
            if !runs {
                self.told.keep(header, notice, size);
            }
        }
    }

    /// Shows once more what a `clear_output` of ours has taken away.
    pub(super) fn tell_again(&mut self, at: Time, wire: &mut impl Wire) {
        let told = std::mem::take(&mut self.told);
        if let Some((_, header)) = &told.at {
            for notice in &told.notices {
                self.show_notice(header, notice, at, wire);
            }
        }
        self.told = told;
    }

    /// Returns the size of the message.
    fn show_notice(&mut self, header: &Bytes, notice: &Notice, at: Time, wire: &mut impl Wire) -> usize {
        let message = match notice {
            Notice::Text(text) => self.author.stderr(header, text, at),
            Notice::Lost(lost) => {
                let names: Vec<&str> = lost.iter().map(|cell| &*cell.name).collect();
                let text = format!("{LOST}: {}\n", names.join(", "));
                self.author.stderr(header, &text, at)
            }
            Notice::Output(o) => self
                .author
                .publish(&o.msg_type, header, &o.metadata, &o.content, at),
        };
        let size = message.size();
        self.show(message, None, at, wire);
        size
    }
}
