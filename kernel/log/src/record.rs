//! A record of the namespace: the difference made by cells, in the form of `docs/state-format.md`.

use crate::id::RecordNumber;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One record, committed when its entry is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The predecessor's number plus one: each record builds upon all earlier ones.
    pub number: RecordNumber,
    pub payload: Payload,
}

/// The place of the record's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    /// In the entry: the record is as safe as the log.
    Inline {
        /// The record's JSON, as the in-kernel agent wrote it.
        #[serde(skip)]
        text: Bytes,
        /// Small streams; `text` refers to them by offset.
        #[serde(skip)]
        body: Bytes,
    },
    /// In the log of the tenure's folder alone: the record is safe once it is settled. For kernels with one replica.
    Folder,
}

impl Record {
    /// Bytes that the record keeps in memory.
    pub fn weight(&self) -> usize {
        match &self.payload {
            Payload::Inline { text, body } => text.len() + body.len(),
            Payload::Folder => 0,
        }
    }

    /// Whether the record survives the loss of its executor before it is settled.
    pub fn is_inline(&self) -> bool {
        matches!(self.payload, Payload::Inline { .. })
    }
}
