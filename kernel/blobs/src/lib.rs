//! The content-addressed store of one user.
//!
//! Content is cut into chunks of [`CHUNK_BYTES`]. A chunk is named by the BLAKE3 hash of its plain content and lies
//! in `chunks/<2 hex>/<62 hex>`; a compressed chunk's name ends in `.z`. A chunk is whole or absent: it is written
//! under another name and renamed. Content read is checked against its name. References to chunks are unknown here:
//! [`local::Local::collect`] takes the set of needed ones. [`places::Places`] reads from several stores.

pub mod direct;
pub mod local;
mod patient;
pub mod places;
pub mod private;

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

/// A chunk as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    pub bytes: Vec<u8>,
    /// `true` for a zstd frame, `false` for plain content.
    pub packed: bool,
}

impl Raw {
    /// Compares the content with its name and with its plain length.
    ///
    /// # Errors
    /// [`GetError::Truncated`] or [`GetError::Tampered`].
    pub fn prove(&self, id: ChunkId, len: usize) -> Result<(), GetError> {
        if !self.packed {
            return prove(id, len, &self.bytes);
        }
        let plain = zstd::bulk::decompress(&self.bytes, len).map_err(|_| GetError::Tampered { id })?;
        prove(id, len, &plain)
    }
}

fn prove(id: ChunkId, len: usize, plain: &[u8]) -> Result<(), GetError> {
    if plain.len() != len {
        Err(GetError::Truncated { id })
    } else if ChunkId::of(plain) != id {
        Err(GetError::Tampered { id })
    } else {
        Ok(())
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
    #[error("{path} doesn't answer")]
    Hangs { path: PathBuf },
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
