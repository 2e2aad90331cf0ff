//! Carries a state from the local store to an object store.

use crate::address::Name;
use crate::error::RemoteError;
use crate::marks::{Mark, Work};
use crate::remote::{AT_ONCE, Progress, Remote};
use futures_util::{StreamExt, TryStreamExt, stream};
use hop_blobs::ChunkId;
use hop_blobs::places::Places;
use hop_state::form::{self, Saved};
use std::sync::Arc;

/// What a save sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Chunks that weren't there.
    pub chunks: usize,
    /// Chunks that the state refers to.
    pub of: usize,
    /// Bytes sent, with the log.
    pub bytes: u64,
}

/// A chunk of a state, and the length of its plain content.
pub(crate) type Wanted = (ChunkId, u64);

pub(crate) fn wanted(saved: &Saved) -> Result<Vec<Wanted>, RemoteError> {
    let named = saved.snapshot.chunks.iter();
    named
        .map(|(name, len)| {
            let id = name
                .parse()
                .map_err(|_| RemoteError::State(form::ReadError::Kind))?;
            Ok((id, *len))
        })
        .collect()
}

impl Remote {
    /// Puts a state under this name: missing chunks, then the log, then the head.
    ///
    /// # Errors
    /// [`RemoteError`]; the former state is then whole, and a later call goes on where this one ended.
    pub async fn send(
        &self,
        name: &Name,
        saved: &Saved,
        key: &[u8; 32],
        from: &Arc<Places>,
        progress: &Progress,
    ) -> Result<Sent, RemoteError> {
        let mark = self.begin(Work::Saving).await?;
        self.under(
            &mark,
            progress,
            self.send_all(&mark, name, saved, key, from, progress),
        )
        .await
    }

    async fn send_all(
        &self,
        mark: &Mark,
        name: &Name,
        saved: &Saved,
        key: &[u8; 32],
        from: &Arc<Places>,
        progress: &Progress,
    ) -> Result<Sent, RemoteError> {
        let seen = self.get_head(name).await.map_err(|e| match e {
            RemoteError::State(why) => RemoteError::Foreign(why),
            other => other,
        })?;
        let before = match &seen {
            Some(seen) => Some(form::prove_head(&seen.raw, key).map_err(RemoteError::Foreign)?),
            None => None,
        };
        let wanted = wanted(saved)?;
        let there = self.there().await?;
        let missing: Vec<Wanted> = wanted
            .iter()
            .filter(|(id, len)| !there.get(id).is_some_and(|t| t.holds(*len)))
            .copied()
            .collect();
        let log = saved.log.len() as u64;
        progress.begin(missing.iter().map(|(_, len)| len).sum::<u64>() + log);
        let sizes: Vec<u64> = stream::iter(missing.iter().copied())
            .map(|(id, len)| self.send_chunk(id, len, from, progress))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        self.put_log(name, &saved.head, &saved.log).await?;
        progress.more(log);
        // Chunks found above are certain only if no collection ran.
        self.still(mark).await?;
        let version = seen.map(|seen| seen.version);
        let alone = self.put_head(name, &saved.head.raw, version).await?;
        if let Some(before) = before.filter(|before| alone && before.mac != saved.head.mac) {
            // An old log that stays is garbage, removed by a collection.
            let _ = self.drop_log(name, &before).await;
        }
        Ok(Sent {
            chunks: missing.len(),
            of: wanted.len(),
            bytes: sizes.iter().sum::<u64>() + log,
        })
    }

    async fn send_chunk(
        &self,
        id: ChunkId,
        len: u64,
        from: &Arc<Places>,
        progress: &Progress,
    ) -> Result<u64, RemoteError> {
        let from = Arc::clone(from);
        let raw = blocking(move || from.proven(id, usize::try_from(len).unwrap_or(usize::MAX)))
            .await
            .map_err(RemoteError::Get)?;
        let bytes = raw.bytes.len() as u64;
        self.put_chunk(id, raw).await?;
        progress.more(len);
        Ok(bytes)
    }
}

/// File and hash work, off the threads that wait for the network.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("reading and hashing chunks doesn't panic, and nobody cancels it")
}
