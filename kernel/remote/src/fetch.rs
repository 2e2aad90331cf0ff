//! Carries a state from an object store to the local one. Everything is proven before it counts.

use crate::address::Name;
use crate::error::RemoteError;
use crate::remote::{AT_ONCE, Progress, Remote};
use crate::send::{Wanted, blocking, wanted};
use futures_util::{StreamExt, TryStreamExt, stream};
use hop_blobs::local::Local;
use hop_blobs::{ChunkId, GetError};
use hop_state::form::{self, ReadError, Saved};
use std::sync::Arc;
use std::time::Duration;

/// Reads of a state replaced meanwhile.
const AGAIN: usize = 3;

/// How often content that came is asked for again: no record names it yet, and a collection takes what is an hour old.
const FRESH: Duration = Duration::from_mins(20);

/// What a fetch fetched.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    /// Chunks that weren't in the local store.
    pub chunks: usize,
    /// Bytes fetched, with the log.
    pub bytes: u64,
}

impl Remote {
    /// Reads and proves a state's head and log.
    ///
    /// # Errors
    /// [`RemoteError::NoState`], [`RemoteError::State`] for an unproven state, or the reason why the state can't be
    /// read.
    pub async fn read(&self, name: &Name, key: &[u8; 32]) -> Result<Saved, RemoteError> {
        for _ in 0..AGAIN {
            let found = self.get_head(name).await?.ok_or(RemoteError::NoState)?;
            let head = form::prove_head(&found.raw, key).map_err(RemoteError::State)?;
            if let Some(log) = self.get_log(name, &head).await? {
                return form::prove(&found.raw, log, key).map_err(RemoteError::State);
            }
        }
        Err(RemoteError::State(ReadError::Refused))
    }

    /// Brings a state's chunks to the local store, after a check that all of them exist.
    ///
    /// # Errors
    /// [`RemoteError`]; chunks before the error are proven, and aren't fetched again.
    pub async fn fetch(
        &self,
        saved: &Saved,
        local: &Arc<Local>,
        progress: &Progress,
    ) -> Result<Fetched, RemoteError> {
        let wanted = Arc::new(wanted(saved)?);
        let there = self.there().await?;
        let mut missing: Vec<(Wanted, bool)> = Vec::new();
        let mut bytes = 0;
        for &(id, len) in wanted.iter() {
            let length = usize::try_from(len).unwrap_or(usize::MAX);
            if local.keeps(id, length) {
                continue;
            }
            let found = there.get(&id).copied().unwrap_or_default();
            if !found.holds(len) {
                let error = match (found.plain, found.packed) {
                    (None, None) => GetError::Missing { id },
                    _ => GetError::Truncated { id },
                };
                return Err(RemoteError::Content(error));
            }
            bytes += found.bytes(len);
            missing.push(((id, len), found.plain != Some(len)));
        }
        progress.begin(bytes);
        let chunks = missing.len();
        let coming = stream::iter(missing)
            .map(|((id, len), packed)| self.fetch_chunk(id, len, packed, local, progress))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>();
        tokio::pin!(coming);
        loop {
            tokio::select! {
                done = &mut coming => break done?,
                () = tokio::time::sleep(FRESH) => keep(local, &wanted).await?,
            }
        }
        Ok(Fetched {
            chunks,
            bytes: bytes + saved.log.len() as u64,
        })
    }

    async fn fetch_chunk(
        &self,
        id: ChunkId,
        len: u64,
        packed: bool,
        local: &Arc<Local>,
        progress: &Progress,
    ) -> Result<(), RemoteError> {
        let raw = self.get_chunk(id, packed).await?;
        progress.more(raw.bytes.len() as u64);
        let local = Arc::clone(local);
        blocking(move || {
            raw.prove(id, usize::try_from(len).unwrap_or(usize::MAX))
                .map_err(RemoteError::Content)?;
            local.adopt(id, &raw).map_err(RemoteError::Put)
        })
        .await
    }
}

/// Counts the chunks that are here as used now.
async fn keep(local: &Arc<Local>, wanted: &Arc<Vec<Wanted>>) -> Result<(), RemoteError> {
    let (local, wanted) = (Arc::clone(local), Arc::clone(wanted));
    blocking(move || {
        for &(id, len) in wanted.iter() {
            local.keeps(id, usize::try_from(len).unwrap_or(usize::MAX));
        }
        Ok(())
    })
    .await
}
