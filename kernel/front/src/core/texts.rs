//! The text at a cell that waits, for a client that shows no notices.
//!
//! An executor shows one while the cell waits for its lease, the front while the kernel has no replica. Both have the
//! cell's display id. A lost executor can't take its text away any more, and its successor doesn't know of the text.
//! The front outlives both, and takes the text away.

use super::{Front, Wire};
use hop_protocol::jupyter::{Envelope, Header};
use hop_words::id::CellId;
use hop_words::time::Timestamp as Time;
use hop_zmtp::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The text that a cell shows before it begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Text {
    /// The executor's text.
    executor: Option<String>,
    /// The front's text is shown, in the place of the executor's if there is one.
    front: bool,
}

impl Text {
    fn is_shown(&self) -> bool {
        self.front || self.executor.is_some()
    }
}

/// An executor's message that concerns a cell's text.
enum Said {
    /// The cell runs, under this number.
    Runs(Option<i64>),
    Shows(String),
    Clears,
}

/// The content of an `execute_input`.
#[derive(Deserialize)]
struct Input {
    execution_count: Option<i64>,
}

impl Said {
    /// Reads from a message of a cell how the cell's text changes. `None` means not at all.
    fn of(cell: &CellId, envelope: &Envelope) -> Option<Self> {
        match envelope.header().ok()?.msg_type.as_str() {
            "execute_input" => {
                let content = serde_json::from_slice::<Input>(&envelope.content);
                Some(Self::Runs(content.ok().and_then(|c| c.execution_count)))
            }
            "clear_output" => Some(Self::Clears),
            "display_data" | "update_display_data" => {
                let content: Value = serde_json::from_slice(&envelope.content).ok()?;
                let is_text = content["transient"]["display_id"] == display(cell);
                let text = content["data"]["text/plain"].as_str().filter(|_| is_text)?;
                Some(Self::Shows(text.to_owned()))
            }
            _ => None,
        }
    }
}

/// The display id of a cell's text, also in the replica.
fn display(cell: &CellId) -> String {
    format!("gresshopper-{cell}")
}

fn content(cell: &CellId, text: &str) -> Value {
    json!({"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": display(cell)}})
}

impl Front {
    /// An executor sends a message of a cell: the message may mean that the cell runs, or be the text of its wait.
    pub(super) fn hears_of_cell(&mut self, message: &Message) {
        if !self.open.iter().any(|o| o.is_cell && !o.runs) {
            return;
        }
        let Ok(envelope) = Envelope::parse(message) else {
            return;
        };
        // The outputs of a running cell may be large, and are none of this.
        let Some(parent) = envelope.parent() else {
            return;
        };
        let mut waiting = self.open.iter_mut().filter(|o| !o.runs);
        let Some(open) = waiting.find(|o| o.id.as_str() == parent.msg_id) else {
            return;
        };
        let Some(said) = Said::of(&open.id, &envelope) else {
            return;
        };
        let was_shown = open.text.is_shown();
        let mut count = None;
        if let Said::Runs(number) = said {
            (count, open.runs) = (number, true);
        }
        open.text = match said {
            Said::Shows(text) => Text {
                executor: Some(text),
                front: false,
            },
            Said::Clears | Said::Runs(_) => Text::default(),
        };
        if open.runs || open.text.is_shown() != was_shown {
            self.unseen.note(open.record(self.tenure));
        }
        self.clients_read(count);
    }

    /// Shows why the kernel has no replica at the first open cell that doesn't run, to a client that shows no notices.
    /// A text at a running cell could not be taken away again without the outputs before it.
    pub(super) fn tell_wait(&mut self, at: Time, wire: &mut impl Wire) {
        let Some(text) = self.seating.text() else {
            return;
        };
        let before = &self.before;
        let mut open = self.open.iter_mut();
        let Some(open) = open.find(|o| o.is_shown() && !o.runs && !before.has(&o.id)) else {
            return;
        };
        let header = serde_json::from_slice::<Header>(&open.header).ok();
        if header.is_none_or(|h| self.seating.has_announced(&h.session)) || open.is_unattended() {
            return;
        }
        let was_shown = open.text.is_shown();
        let kind = if was_shown {
            "update_display_data"
        } else {
            "display_data"
        };
        open.text.front = true;
        if !was_shown {
            self.unseen.note(open.record(self.tenure));
        }
        let content = content(&open.id, &text);
        let message = self.author.publish(kind, &open.header, &json!({}), &content, at);
        self.publish(&message, None, at, wire);
    }

    /// The replica is there: its own texts, if it has any, are shown again in the place of the front's.
    pub(super) fn hide_wait(&mut self, at: Time, wire: &mut impl Wire) {
        for i in 0..self.open.len() {
            let open = &mut self.open[i];
            if !std::mem::take(&mut open.text.front) {
                continue;
            }
            match &open.text.executor {
                Some(text) => {
                    let content = content(&open.id, text);
                    let kind = "update_display_data";
                    let message = self.author.publish(kind, &open.header, &json!({}), &content, at);
                    self.show(message, None, at, wire);
                }
                None => self.clear(i, at, wire),
            }
        }
    }

    /// Another executor gets the cells, and doesn't know of the last one's texts.
    pub(super) fn hide_executors_texts(&mut self, at: Time, wire: &mut impl Wire) {
        for i in 0..self.open.len() {
            let text = &mut self.open[i].text;
            if text.executor.take().is_some() && !text.front {
                self.clear(i, at, wire);
            }
        }
    }

    /// The front answers cells: no text may stay.
    pub(super) fn hide_texts(&mut self, at: Time, wire: &mut impl Wire) {
        for i in 0..self.open.len() {
            if std::mem::take(&mut self.open[i].text).is_shown() {
                self.clear(i, at, wire);
            }
        }
    }

    /// Takes the text of an open cell away. Sentences told before it are shown again.
    fn clear(&mut self, i: usize, at: Time, wire: &mut impl Wire) {
        let open = &self.open[i];
        self.unseen.note(open.record(self.tenure));
        let (header, cell) = (open.header.clone(), open.id.clone());
        let content = json!({"wait": false});
        let message = self
            .author
            .publish("clear_output", &header, &json!({}), &content, at);
        self.show(message, None, at, wire);
        if self.told.are_at(&cell) {
            self.tell_again(at, wire);
        }
    }
}
