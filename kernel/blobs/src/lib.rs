//! The content-addressed store of one user.
//!
//! Content is cut into chunks of [`CHUNK_BYTES`]; a chunk is named by the BLAKE3 hash of its plain content and lies in
//! `chunks/<2 hex>/<62 hex>`, or in the same with `.z` when it is compressed. A chunk is whole or not there: it is
//! written beside and renamed. What is read is checked against its name. Who refers to which chunk is not known here:
//! [`local::Local::collect`] is told what is still needed.

pub mod direct;
pub mod local;
#[cfg(feature = "object")]
pub mod remote;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

/// Length of a chunk in bytes; the last of a content may be shorter.
pub const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// A chunk's name: the BLAKE3 hash of its plain content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub [u8; 32]);

impl ChunkId {
    /// The name of this content.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(self.0))
    }
}

/// Not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("not the name of a chunk")]
pub struct ChunkIdError;

impl FromStr for ChunkId {
    type Err = ChunkIdError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let mut raw = [0; 32];
        hex::decode_to_slice(s, &mut raw).map_err(|_| ChunkIdError)?;
        Ok(Self(raw))
    }
}

/// Why a chunk can't be stored.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    #[error("can't write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("can't synchronise {path}")]
    Sync {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Why a chunk can't be read.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    #[error("chunk {id:.12} is missing")]
    Missing { id: ChunkId },
    #[error("can't read chunk {id:.12}")]
    Read {
        id: ChunkId,
        #[source]
        source: io::Error,
    },
    #[error("chunk {id:.12} is truncated")]
    Truncated { id: ChunkId },
    #[error("chunk {id:.12} isn't what was stored")]
    Tampered { id: ChunkId },
}
