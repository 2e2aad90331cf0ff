//! The outputs of one cell, as JupyterLab's output area would have them.

use super::KEEP;
use super::record::Json;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::VecDeque;

/// Bytes of text in one kept output. Text beyond them begins another output.
pub(super) const STREAM_MAX: usize = 64 << 10;

/// The memory of one kept output besides its content.
const OUTPUT: usize = 64;

/// The kept outputs, the newest last.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Outputs {
    list: VecDeque<Output>,
    /// The last state of each display that was updated, perhaps in another cell. They apply after `list`.
    updates: VecDeque<Update>,
    size: usize,
    /// The next output replaces all outputs before it.
    clears: bool,
    /// Number of dropped messages.
    dropped: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Output {
    Stream {
        name: String,
        text: String,
        /// Messages in it.
        messages: u64,
    },
    Other {
        msg_type: String,
        content: Json,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Update {
    display: String,
    content: Json,
}

impl Outputs {
    /// Bytes of memory.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Messages that were not kept.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// An output is shown, or changes earlier ones.
    pub(super) fn take(&mut self, msg_type: String, content: &Bytes) {
        match &*msg_type {
            "clear_output" => self.clear(waits(content)),
            "stream" => {
                if let Ok(stream) = serde_json::from_slice(content) {
                    self.stream(&stream);
                }
            }
            "display_data" | "execute_result" | "error" => self.add(msg_type, content),
            "update_display_data" => self.update(content),
            _ => {}
        }
    }

    fn stream(&mut self, stream: &Stream<'_>) {
        self.begin();
        if let Some(Output::Stream { name, text, messages }) = self.list.back_mut()
            && *name == stream.name
            && text.len() + stream.text.len() <= STREAM_MAX
        {
            let before = text.len();
            append(text, &stream.text);
            *messages += 1;
            self.size = self.size + text.len() - before;
            return;
        }
        let mut text = String::new();
        append(&mut text, &stream.text);
        let name = stream.name.clone().into_owned();
        self.push(Output::Stream {
            name,
            text,
            messages: 1,
        });
    }

    fn add(&mut self, msg_type: String, content: &Bytes) {
        self.begin();
        // A new display of an id changes the earlier ones as well.
        if !self.updates.is_empty()
            && let Some(display) = display_of(content)
        {
            self.forget_update(&display);
        }
        if let Some(content) = self.copy(content) {
            self.push(Output::Other { msg_type, content });
        }
    }

    /// Changes a display of this cell or of an earlier one. Only its last state is kept.
    fn update(&mut self, content: &Bytes) {
        let Some(display) = display_of(content) else {
            return;
        };
        self.forget_update(&display);
        if let Some(content) = self.copy(content) {
            let update = Update { display, content };
            self.size += update.size();
            self.updates.push_back(update);
        }
    }

    fn forget_update(&mut self, display: &str) {
        let at = self.updates.iter().position(|u| u.display == display);
        if let Some(update) = at.and_then(|at| self.updates.remove(at)) {
            self.size -= update.size();
        }
    }

    /// `None` means that the content is too large to keep.
    fn copy(&mut self, content: &Bytes) -> Option<Json> {
        if content.len() > KEEP {
            self.dropped += 1;
            return None;
        }
        Some(Json::copy(content))
    }

    /// An output comes.
    fn begin(&mut self) {
        if self.clears {
            self.clear(false);
        }
    }

    /// Clears the outputs, now or at the next output. Updates stay: they may be of a display in another cell.
    fn clear(&mut self, at_the_next: bool) {
        self.clears = at_the_next;
        if !at_the_next {
            self.dropped = 0;
            self.list.clear();
            self.size = self.updates.iter().map(Update::size).sum();
        }
    }

    fn push(&mut self, output: Output) {
        self.size += output.size();
        self.list.push_back(output);
    }

    /// The size of the dropped output. `None` means that there is none.
    pub(super) fn drop_oldest(&mut self) -> Option<usize> {
        let (messages, size) = match self.list.pop_front() {
            Some(output) => (output.messages(), output.size()),
            None => (1, self.updates.pop_front()?.size()),
        };
        self.dropped += messages;
        self.size -= size;
        Some(size)
    }

    /// The messages that give a new output area these outputs.
    pub(super) fn values(&self) -> Vec<Value> {
        let mut values: Vec<Value> = self.list.iter().map(Output::value).collect();
        let update = |u: &Update| as_message("update_display_data", parsed(&u.content));
        values.extend(self.updates.iter().map(update));
        if self.clears {
            values.push(as_message("clear_output", json!({"wait": true})));
        }
        values
    }

    pub(super) fn check(&self) {
        let outputs: usize = self.list.iter().map(Output::size).sum();
        let updates: usize = self.updates.iter().map(Update::size).sum();
        assert_eq!(self.size, outputs + updates);
    }
}

impl Output {
    fn size(&self) -> usize {
        let content = match self {
            Self::Stream { text, .. } => text.len(),
            Self::Other { content, .. } => content.len(),
        };
        content + OUTPUT
    }

    fn messages(&self) -> u64 {
        match self {
            Self::Stream { messages, .. } => *messages,
            Self::Other { .. } => 1,
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Stream { name, text, .. } => as_message("stream", json!({"name": name, "text": text})),
            Self::Other { msg_type, content } => as_message(msg_type, parsed(content)),
        }
    }
}

impl Update {
    fn size(&self) -> usize {
        self.display.len() + self.content.len() + OUTPUT
    }
}

fn as_message(msg_type: &str, content: Value) -> Value {
    json!({"msg_type": msg_type, "content": content})
}

fn parsed(content: &Bytes) -> Value {
    serde_json::from_slice(content).unwrap_or_default()
}

#[derive(Deserialize)]
struct Stream<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// Appends a text, without the parts of its lines that a carriage return overwrites. A progress bar of hours thus
/// becomes one line.
fn append(text: &mut String, more: &str) {
    if !more.contains('\r') {
        text.push_str(more);
        return;
    }
    let line = text.rfind('\n').map_or(0, |at| at + 1);
    let mut tail = text.split_off(line);
    tail.push_str(more);
    for line in tail.split_inclusive('\n') {
        let end = line.trim_end_matches('\n');
        // The kept output before this one may end in the middle of a line.
        let goes_on = text.is_empty();
        push_shown(text, end, goes_on);
        text.push_str(&line[end.len()..]);
    }
}

/// Appends a line. A later part of at least the same length overwrites an earlier part: the earlier one is left out. If
/// the line began earlier, the first part stays.
fn push_shown(text: &mut String, line: &str, goes_on: bool) {
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for part in line.split('\r') {
        // JupyterLab counts in UTF-16.
        let width = part.encode_utf16().count();
        while parts.len() > usize::from(goes_on) && parts.last().is_some_and(|(_, w)| *w <= width) {
            parts.pop();
        }
        parts.push((part, width));
    }
    // An empty part at the end is the cursor's return.
    let parts: Vec<&str> = parts.into_iter().map(|(part, _)| part).collect();
    text.push_str(&parts.join("\r"));
}

/// Whether the outputs stay until the next output comes.
fn waits(clear_output: &Bytes) -> bool {
    #[derive(Deserialize)]
    struct Clear {
        #[serde(default)]
        wait: bool,
    }
    serde_json::from_slice::<Clear>(clear_output).is_ok_and(|c| c.wait)
}

/// The id under which a display can be updated.
fn display_of(content: &Bytes) -> Option<String> {
    #[derive(Deserialize)]
    struct Content {
        transient: Transient,
    }
    #[derive(Deserialize)]
    struct Transient {
        display_id: String,
    }
    let content: Content = serde_json::from_slice(content).ok()?;
    Some(content.transient.display_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_overwritten_is_kept_once() {
        let shown = |parts: &[&str]| {
            let mut text = "before\n".to_owned();
            parts.iter().for_each(|part| append(&mut text, part));
            text.strip_prefix("before\n").unwrap().to_owned()
        };
        assert_eq!(shown(&["\r 1%", "\r 2%", "\r10%|█"]), "10%|█");
        assert_eq!(
            shown(&[" 1%\r", " 2%\r", "\n"]),
            " 2%\r\n",
            "it ends with the return"
        );
        assert_eq!(shown(&["long", "\rab"]), "long\rab", "its end is still seen");
        assert_eq!(shown(&["long", "\rab", "\rcde"]), "long\rcde");
        assert_eq!(shown(&["a\rbb\nc\r\nd", "\re"]), "bb\nc\r\ne");
        assert_eq!(shown(&["a", "b\n", "c"]), "ab\nc");
        let mut first = String::new();
        for part in ["x", "\r 1%", "\r 2%", "\r 3%\n", "\rab"] {
            append(&mut first, part);
        }
        assert_eq!(first, "x\r 3%\nab", "another output may come before it");
    }
}
