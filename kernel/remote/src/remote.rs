//! Layout of a place, and single requests to it.

use crate::address::Name;
use crate::error::RemoteError;
use bytes::Bytes;
use futures_util::TryStreamExt;
use hop_blobs::{CHUNK_BYTES, ChunkId, Raw};
use hop_state::form::{Head, ReadError};
use object_store::path::Path;
use object_store::{
    Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Most requests under way at once.
pub(crate) const AT_ONCE: usize = 8;
/// Longest object of ours: a compressed chunk is kept only if it is shorter than its plain form.
const LONGEST: u64 = CHUNK_BYTES as u64;

/// States in an object store, below a prefix: `chunks/`, `states/NAME/` and `busy/`.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(crate) store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// Progress of a transfer, for display.
#[derive(Debug, Default)]
pub struct Progress {
    pub done_bytes: AtomicU64,
    /// 0 as long as that isn't known.
    pub of_bytes: AtomicU64,
    stop: Notify,
}

impl Progress {
    /// Ends saving or collecting in order, without leaving a mark: it fails with [`RemoteError::Stopped`].
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    pub(crate) async fn stopped(&self) {
        self.stop.notified().await;
    }

    pub(crate) fn more(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn begin(&self, bytes: u64) {
        self.done_bytes.store(0, Ordering::Relaxed);
        self.of_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// A chunk that is there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct There {
    /// Length of the plain form, if present.
    pub(crate) plain: Option<u64>,
    pub(crate) packed: Option<u64>,
}

impl There {
    /// Whether the whole chunk is there, by its length.
    pub(crate) fn holds(&self, len: u64) -> bool {
        self.plain == Some(len) || self.packed.is_some_and(|n| n > 0)
    }

    /// Bytes to fetch.
    pub(crate) fn bytes(&self, len: u64) -> u64 {
        self.packed.filter(|_| self.plain != Some(len)).unwrap_or(len)
    }
}

/// A stored head, with its version.
pub(crate) struct HeadThere {
    pub(crate) raw: Bytes,
    pub(crate) version: UpdateVersion,
}

impl Remote {
    /// States below `prefix` of `store`.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self { store, prefix }
    }

    pub(crate) fn chunks(&self) -> Path {
        self.prefix.clone().join("chunks")
    }

    pub(crate) fn states(&self) -> Path {
        self.prefix.clone().join("states")
    }

    pub(crate) fn busy(&self) -> Path {
        self.prefix.clone().join("busy")
    }

    fn chunk(&self, id: ChunkId, packed: bool) -> Path {
        let name = id.to_string();
        let end = if packed { ".z" } else { "" };
        self.chunks()
            .join(&name[..2])
            .join(format!("{}{end}", &name[2..]))
    }

    fn head(&self, name: &Name) -> Path {
        self.states().join(name.as_str()).join("head")
    }

    fn log_part(&self, name: &Name, mac: &str, part: usize) -> Path {
        let log = format!("log-{mac}");
        self.states().join(name.as_str()).join(log).join(part.to_string())
    }

    /// Which chunks are there.
    pub(crate) async fn there(&self) -> Result<HashMap<ChunkId, There>, RemoteError> {
        let mut found: HashMap<ChunkId, There> = HashMap::new();
        let mut listed = self.store.list(Some(&self.chunks()));
        while let Some(meta) = listed.try_next().await? {
            if let Some((id, packed)) = chunk_at(&meta) {
                let there = found.entry(id).or_default();
                *(if packed {
                    &mut there.packed
                } else {
                    &mut there.plain
                }) = Some(meta.size);
            }
        }
        Ok(found)
    }

    pub(crate) async fn put_chunk(&self, id: ChunkId, raw: Raw) -> Result<(), RemoteError> {
        let place = self.chunk(id, raw.packed);
        self.store.put(&place, PutPayload::from(raw.bytes)).await?;
        Ok(())
    }

    /// A stored chunk, not yet proven.
    pub(crate) async fn get_chunk(&self, id: ChunkId, packed: bool) -> Result<Raw, RemoteError> {
        let bytes = self.get(&self.chunk(id, packed), LONGEST).await?;
        let bytes = bytes.ok_or(RemoteError::Content(hop_blobs::GetError::Missing { id }))?;
        Ok(Raw {
            bytes: bytes.into(),
            packed,
        })
    }

    /// An object of at most this many bytes; none where there is none, and none of another's length.
    async fn get(&self, place: &Path, longest: u64) -> Result<Option<Bytes>, RemoteError> {
        match self.store.get(place).await {
            Ok(found) if found.meta.size > longest => Ok(None),
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(e) => absent(e).map(|()| None),
        }
    }

    pub(crate) async fn get_head(&self, name: &Name) -> Result<Option<HeadThere>, RemoteError> {
        let found = match self.store.get(&self.head(name)).await {
            Ok(found) => found,
            Err(e) => return absent(e).map(|()| None),
        };
        let version = UpdateVersion {
            e_tag: found.meta.e_tag.clone(),
            version: found.meta.version.clone(),
        };
        if found.meta.size != hop_state::form::HEAD as u64 {
            return Err(RemoteError::State(ReadError::Refused));
        }
        let raw = found.bytes().await?;
        Ok(Some(HeadThere { raw, version }))
    }

    /// Puts a head in the place of the one seen, if any; in a store without conditions, of any head. Returns whether
    /// the store had conditions.
    pub(crate) async fn put_head(
        &self,
        name: &Name,
        raw: &[u8],
        seen: Option<UpdateVersion>,
    ) -> Result<bool, RemoteError> {
        let place = self.head(name);
        let payload = PutPayload::from(raw.to_vec());
        let mode = match seen {
            Some(version) if version.e_tag.is_some() => PutMode::Update(version),
            Some(_) => PutMode::Overwrite,
            None => PutMode::Create,
        };
        let told = mode != PutMode::Overwrite;
        match self
            .store
            .put_opts(&place, payload.clone(), PutOptions::from(mode))
            .await
        {
            Ok(_) => Ok(told),
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
                // The stored head may be this request's own, if an answer was lost and the request sent again.
                let now = self.get_head(name).await?;
                let mine = now.is_some_and(|now| now.raw == raw);
                mine.then_some(true).ok_or(RemoteError::Changed)
            }
            Err(e) if unknown(&e) => {
                self.store.put(&place, payload).await?;
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// A remote log has parts as long as chunks: each fits into one request.
    pub(crate) async fn put_log(&self, name: &Name, head: &Head, log: &[u8]) -> Result<(), RemoteError> {
        for (at, part) in log.chunks(CHUNK_BYTES).enumerate() {
            let place = self.log_part(name, &head.mac, at);
            self.store.put(&place, PutPayload::from(part.to_vec())).await?;
        }
        Ok(())
    }

    /// The log of a proven head, itself not yet proven. `None` means that a part is missing.
    pub(crate) async fn get_log(&self, name: &Name, head: &Head) -> Result<Option<Vec<u8>>, RemoteError> {
        let mut log = Vec::new();
        for part in 0..head.length.div_ceil(CHUNK_BYTES) {
            match self.get(&self.log_part(name, &head.mac, part), LONGEST).await? {
                Some(bytes) => log.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
        Ok(Some(log))
    }

    /// Removes a log that no head names any more.
    pub(crate) async fn drop_log(&self, name: &Name, head: &Head) -> Result<(), RemoteError> {
        for part in 0..head.length.div_ceil(CHUNK_BYTES) {
            let gone = self.store.delete(&self.log_part(name, &head.mac, part)).await;
            gone.or_else(absent)?;
        }
        Ok(())
    }
}

/// The chunk in an object, and whether it is compressed.
pub(crate) fn chunk_at(meta: &ObjectMeta) -> Option<(ChunkId, bool)> {
    let parts: Vec<_> = meta.location.parts().map(|p| p.as_ref().to_owned()).collect();
    let [.., shelf, name] = &parts[..] else {
        return None;
    };
    let plain = name.strip_suffix(".z");
    let id = format!("{shelf}{}", plain.unwrap_or(name)).parse().ok()?;
    Some((id, plain.is_some()))
}

/// Passes any error but the absence of an object.
pub(crate) fn absent(error: Error) -> Result<(), RemoteError> {
    let is_absent = matches!(error, Error::NotFound { .. });
    match RemoteError::from(error) {
        RemoteError::NoBucket => Err(RemoteError::NoBucket),
        _ if is_absent => Ok(()),
        other => Err(other),
    }
}

/// Whether a store doesn't know requests with conditions.
fn unknown(error: &Error) -> bool {
    matches!(error, Error::NotImplemented { .. } | Error::NotSupported { .. })
        || error.to_string().contains("status code: 501")
}
