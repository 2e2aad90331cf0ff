//! Removes what no state at a place refers to.

use crate::address::Name;
use crate::error::RemoteError;
use crate::marks::{Mark, Work, seconds};
use crate::remote::{Progress, Remote, chunk_at};
use crate::send::wanted;
use futures_util::{StreamExt, TryStreamExt, stream};
use hop_blobs::ChunkId;
use hop_blobs::local::Collected;
use object_store::ObjectMeta;
use object_store::path::Path;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// So many objects are removed between two looks at the mark.
const BATCH: usize = 500;

/// What the states at a place need.
#[derive(Default)]
struct Live {
    chunks: HashSet<ChunkId>,
    /// Log named by the head of each state.
    logs: BTreeMap<String, String>,
}

impl Remote {
    /// Removes chunks and logs older than `age` to which no state refers. Younger ones may belong to a broken upload,
    /// which can then go on.
    ///
    /// # Errors
    /// [`RemoteError::Unknown`] if a state isn't proven, [`RemoteError::Strange`] if there is more than states,
    /// [`RemoteError::Saving`] while one is being saved, or the
    /// store's own error. The rest is removed by the next call.
    pub async fn collect(
        &self,
        key: &[u8; 32],
        age: Duration,
        progress: &Progress,
    ) -> Result<Collected, RemoteError> {
        let mark = self.begin(Work::Collecting).await?;
        self.under(&mark, progress, self.collect_all(&mark, key, age))
            .await
    }

    async fn collect_all(
        &self,
        mark: &Mark,
        key: &[u8; 32],
        age: Duration,
    ) -> Result<Collected, RemoteError> {
        let states: Vec<ObjectMeta> = self.store.list(Some(&self.states())).try_collect().await?;
        let live = self.live(&states, key).await?;
        let chunks: Vec<ObjectMeta> = self.store.list(Some(&self.chunks())).try_collect().await?;
        let young = |meta: &ObjectMeta| mark.at.saturating_sub(seconds(meta)) < age.as_secs().cast_signed();
        let mut done = Collected::default();
        let mut dead = Vec::new();
        for meta in &chunks {
            let needed = chunk_at(meta).is_none_or(|(id, _)| live.chunks.contains(&id));
            if needed || young(meta) {
                done.kept += 1;
            } else {
                done.removed += 1;
                done.freed_bytes += meta.size;
                dead.push(meta.location.clone());
            }
        }
        for meta in &states {
            let Some((state, log)) = self.log_of(meta) else {
                continue;
            };
            if live.logs.get(&state) != Some(&log) && !young(meta) {
                done.freed_bytes += meta.size;
                dead.push(meta.location.clone());
            }
        }
        for batch in dead.chunks(BATCH) {
            self.still(mark).await?;
            let places = stream::iter(batch.to_vec()).map(Ok).boxed();
            self.store
                .delete_stream(places)
                .try_collect::<Vec<Path>>()
                .await?;
        }
        Ok(done)
    }

    /// All states with a head, proven. An unreadable state might still be mended, so its content must stay.
    async fn live(&self, states: &[ObjectMeta], key: &[u8; 32]) -> Result<Live, RemoteError> {
        let mut live = Live::default();
        for meta in states {
            let parts = self.below(&meta.location).unwrap_or_default();
            let state = match &parts[..] {
                [state, head] if head == "head" => state,
                _ if self.log_of(meta).is_some() => continue,
                // The object may be of another release: its chunks are unknown.
                _ => {
                    let place = meta.location.to_string();
                    return Err(RemoteError::Strange { place });
                }
            };
            let unknown = |source: RemoteError| match source {
                RemoteError::State(_) | RemoteError::NoState => RemoteError::Unknown {
                    name: state.clone(),
                    source: Box::new(source),
                },
                other => other,
            };
            let name: Name = state.parse().map_err(|_| unknown(RemoteError::NoState))?;
            let saved = self.read(&name, key).await.map_err(unknown)?;
            live.chunks.extend(wanted(&saved)?.into_iter().map(|(id, _)| id));
            live.logs.insert(state.clone(), saved.head.mac);
        }
        Ok(live)
    }

    /// The parts of a path below `states/`.
    fn below(&self, place: &Path) -> Option<Vec<String>> {
        let parts = place.prefix_match(&self.states())?;
        Some(parts.map(|part| part.as_ref().to_owned()).collect())
    }

    /// The state and the log that an object is a part of.
    fn log_of(&self, meta: &ObjectMeta) -> Option<(String, String)> {
        let parts = self.below(&meta.location)?;
        let [state, log, _part] = &parts[..] else {
            return None;
        };
        Some((state.clone(), log.strip_prefix("log-")?.to_owned()))
    }
}
