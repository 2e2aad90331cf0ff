//! The end of a cell whose Jupyter server had gone. Its outputs, or the news of its loss, are kept beside the kernel's
//! state and shown at the first cell of the notebook's next opening. The front keeps them or, if the front is lost with
//! its server, the replica.

use crate::jupyter::Envelope;
use hop_words::id::CellId;
use hop_zmtp::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use std::path::Path;

const FILE: &str = "meanwhile";

/// Bytes of outputs to keep; everything behind is dropped, with a note.
const KEEP: usize = 8 << 20;

/// Characters of a lost cell's first line, used as its name.
const NAME: usize = 60;

/// What happened after the server had gone.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meanwhile {
    pub outputs: Vec<Output>,
    /// First lines of the cells that were in their middle when the kernel was saved.
    pub lost: Vec<String>,
    /// First lines of the unbegun cells.
    pub not_run: Vec<String>,
    /// Answered cells whose effects were not saved, the oldest first.
    #[serde(default)]
    pub unsaved: Vec<Unsaved>,
    /// The store has the effects of each answered cell.
    #[serde(default)]
    pub is_whole: bool,
    /// Outputs that were not kept.
    pub dropped: u64,
    #[serde(skip)]
    size: usize,
}

/// An answered cell whose effects were not saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unsaved {
    pub cell: CellId,
    /// The cell as its user knows it.
    pub name: String,
    /// The loss is certain: the notebook was opened since, and its user has not read of it.
    #[serde(default)]
    pub is_lost: bool,
}

/// One output of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Output {
    pub cell: CellId,
    pub msg_type: String,
    pub metadata: Value,
    pub content: Value,
}

impl Meanwhile {
    /// So many outputs are dropped already.
    pub fn lacking(dropped: u64) -> Self {
        Self {
            dropped,
            ..Self::default()
        }
    }

    /// With this word on the kernel's state. Cells that were not saved deny the word.
    #[must_use]
    pub fn whole(mut self, is_whole: bool) -> Self {
        self.is_whole = is_whole && self.unsaved.is_empty();
        self
    }

    /// Keeps a message of the kernel's, if it is a cell's output. Returns whether it is one.
    pub fn keep(&mut self, message: &Message) -> bool {
        let Some(output) = output_of(message) else {
            return false;
        };
        if self.size + message.size() > KEEP {
            self.dropped += 1;
        } else {
            self.size += message.size();
            self.outputs.push(output);
        }
        true
    }

    fn is_empty(&self) -> bool {
        let told = self.lost.is_empty() && self.not_run.is_empty() && self.unsaved.is_empty();
        told && self.outputs.is_empty() && !self.is_whole
    }

    /// Writes the news beside the kernel's state, if any.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, kernel: &Path) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let mut file = tempfile::NamedTempFile::new_in(kernel)?;
        serde_json::to_writer(&mut file, self)?;
        file.persist(kernel.join(FILE)).map_err(|e| e.error)?;
        Ok(())
    }

    /// Whether cells were lost for certain, and the notebook's user has not read of it.
    pub fn has_losses(&self) -> bool {
        self.unsaved.iter().any(|unsaved| unsaved.is_lost)
    }

    /// The kept news, if any.
    pub fn read(kernel: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(kernel.join(FILE)).ok()?).ok()
    }

    /// Takes the kept news out, so that the news is told once.
    pub fn take(kernel: &Path) -> Option<Self> {
        let kept = Self::read(kernel);
        // A file that can't be removed would be told at each opening: nothing worse.
        let _ = std::fs::remove_file(kernel.join(FILE));
        kept
    }
}

fn output_of(message: &Message) -> Option<Output> {
    let envelope = Envelope::parse(message).ok()?;
    let parent = envelope.parent().filter(|p| p.msg_type == "execute_request")?;
    let header = envelope.header().ok()?;
    let kinds = ["stream", "display_data", "execute_result", "error"];
    Some(Output {
        cell: parent.msg_id.into(),
        msg_type: kinds.contains(&&*header.msg_type).then_some(header.msg_type)?,
        metadata: serde_json::from_slice(&envelope.metadata).ok()?,
        content: serde_json::from_slice(&envelope.content).ok()?,
    })
}

/// The first line of a cell's code, as known to its user.
pub fn name_of(request: &Message) -> String {
    let content = Envelope::parse(request).ok().map(|e| e.content);
    let content = content.and_then(|c| serde_json::from_slice::<Value>(&c).ok());
    let code = content
        .as_ref()
        .and_then(|c| c["code"].as_str())
        .unwrap_or_default();
    let line = code.trim_start().lines().next().unwrap_or_default();
    line.chars().take(NAME).collect()
}
