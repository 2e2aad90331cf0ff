//! The comm by which a client announces itself and gets notices (docs/wiring.md, "Notices").

use hop_words::id::CellId;
use serde::Deserialize;
use serde_json::Value;

const TARGET: &str = "gresshopper";

/// The version of the messages on this comm.
pub const VERSION: u64 = 1;

/// Most announcements kept by a front or a replica. The oldest goes first.
pub const ANNOUNCED_MAX: usize = 32;

/// The content of a `comm_open`, `comm_msg` or `comm_close`.
#[derive(Debug, Deserialize)]
pub struct CommContent {
    pub comm_id: String,
    #[serde(default)]
    target_name: String,
    #[serde(default)]
    pub data: Value,
}

impl CommContent {
    /// Whether a `comm_open` with this content announces a client. Other comms are widgets' and libraries'.
    pub fn announces(&self) -> bool {
        self.target_name == TARGET
    }

    /// The message of a notebook's page on its cells' outputs. `None` means that the message is about other things.
    pub fn of_page(&self) -> Option<PageWord> {
        PageWord::deserialize(self.data.get("outputs")?).ok()
    }
}

/// A notebook's page on its cells' outputs (docs/wiring.md, "A page that was away").
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PageWord {
    /// The notebook's path.
    pub notebook: String,
    /// Cells whose final state is in the notebook's file.
    #[serde(default)]
    pub seen: Vec<CellId>,
    /// The page asks for the outputs that it may lack.
    #[serde(default)]
    pub wanted: bool,
    /// Cells that the page has shown to their end, and lacks nothing of.
    #[serde(default)]
    pub shown: Vec<CellId>,
}
