//! The comm by which a client announces itself and gets notices (docs/wiring.md, "Notices").

use serde::Deserialize;
use serde_json::Value;

const TARGET: &str = "gresshopper";

/// The version of the messages on this comm.
pub const VERSION: u64 = 1;

/// Announcements that a front or a replica keeps. The oldest goes first.
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
}
