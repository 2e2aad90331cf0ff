//! The same chunks in any object store: another file system, or S3 with the feature `s3`.
//!
//! Layout and names are those of [`crate::local`], so a directory that one writes the other reads.

use crate::{CHUNK_BYTES, ChunkId, GetError};
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::collections::HashSet;
use std::sync::Arc;

/// Chunks in an object store, below a prefix.
#[derive(Debug, Clone)]
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// Why an object store can't take or give a chunk.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("the object store failed")]
    Store(#[from] object_store::Error),
    #[error("what the object store gave can't be used")]
    Content(#[source] GetError),
}

impl Remote {
    /// Chunks below `prefix` of `store`.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self { store, prefix }
    }

    fn path(&self, id: ChunkId) -> Path {
        let name = id.to_string();
        self.prefix.clone().join(&name[..2]).join(&name[2..])
    }

    /// Stores content in chunks; those that are there aren't sent.
    ///
    /// # Errors
    /// [`RemoteError::Store`].
    pub async fn put_all(&self, content: Bytes) -> Result<Vec<ChunkId>, RemoteError> {
        let mut ids = Vec::new();
        for at in (0..content.len()).step_by(CHUNK_BYTES) {
            let chunk = content.slice(at..(at + CHUNK_BYTES).min(content.len()));
            let id = ChunkId::of(&chunk);
            let there = self.store.head(&self.path(id)).await;
            if !there.is_ok_and(|found| found.size == chunk.len() as u64) {
                self.store.put(&self.path(id), PutPayload::from(chunk)).await?;
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Reads one chunk and checks it.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub async fn get(&self, id: ChunkId) -> Result<Bytes, RemoteError> {
        let content = match self.store.get(&self.path(id)).await {
            Ok(found) => found.bytes().await?,
            Err(object_store::Error::NotFound { .. }) => {
                return Err(RemoteError::Content(GetError::Missing { id }));
            }
            Err(e) => return Err(e.into()),
        };
        if ChunkId::of(&content) == id {
            Ok(content)
        } else {
            Err(RemoteError::Content(GetError::Tampered { id }))
        }
    }

    /// Removes the chunks that are in nobody's `live`. Nothing may be writing meanwhile.
    ///
    /// # Errors
    /// [`RemoteError::Store`].
    pub async fn collect(&self, live: &HashSet<ChunkId>) -> Result<u64, RemoteError> {
        let there: Vec<_> = self.store.list(Some(&self.prefix)).try_collect().await?;
        let mut removed = 0;
        for found in there {
            let parts: Vec<_> = found.location.parts().map(|p| p.as_ref().to_owned()).collect();
            let name = parts[parts.len().saturating_sub(2)..].concat();
            if name.parse::<ChunkId>().is_ok_and(|id| !live.contains(&id)) {
                self.store.delete(&found.location).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Local;
    use object_store::local::LocalFileSystem;

    #[tokio::test]
    async fn shares_its_layout_with_the_local_store() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(&dir.path().join("chunks")).unwrap();
        let remote = Remote::new(
            Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap()),
            Path::from("chunks"),
        );
        let content = Bytes::from(vec![9; CHUNK_BYTES + 1]);
        let ids = remote.put_all(content.clone()).await.unwrap();
        let mut back = vec![0; content.len()];
        local.get_all(&ids, &mut back).unwrap();
        assert_eq!(back, content);
        let (id, _) = local.put(b"of the local one").unwrap();
        assert_eq!(&remote.get(id).await.unwrap()[..], b"of the local one");
        assert_eq!(remote.collect(&HashSet::from([id])).await.unwrap(), 2);
        assert!(matches!(
            remote.get(ids[0]).await,
            Err(RemoteError::Content(GetError::Missing { .. }))
        ));
        std::fs::write(local.path(id), b"of the local on!").unwrap();
        assert!(matches!(
            remote.get(id).await,
            Err(RemoteError::Content(GetError::Tampered { .. }))
        ));
    }
}
