//! Reading chunks that may lie in any of a user's stores: a site names a place while kernels run that keep theirs
//! elsewhere. Writes and collections have one store, [`Local`].

use crate::local::Local;
use crate::{ChunkId, GetError, Raw};
use std::path::PathBuf;

/// Stores in the order in which content is looked for.
#[derive(Debug, Clone)]
pub struct Places(Vec<Local>);

impl Places {
    /// Reads from these stores, in this order. A store need not exist.
    pub fn at(stores: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(
            stores
                .into_iter()
                .map(|store| Local::at(&store.join("chunks")))
                .collect(),
        )
    }

    /// The file that holds a chunk, packed or not. `None` means that there is none.
    pub fn file(&self, id: ChunkId) -> Option<PathBuf> {
        self.0.iter().find_map(|place| place.file(id))
    }

    /// A chunk of this length as it lies, from the first store that has it whole.
    ///
    /// # Errors
    /// The first [`GetError`] of a store that has the chunk, else [`GetError::Missing`].
    pub fn proven(&self, id: ChunkId, len: usize) -> Result<Raw, GetError> {
        let mut failed = None;
        for place in &self.0 {
            let raw = place.raw(id).and_then(|raw| raw.prove(id, len).map(|()| raw));
            match raw {
                Err(GetError::Missing { .. }) => {}
                Err(error) => {
                    failed.get_or_insert(error);
                }
                Ok(raw) => return Ok(raw),
            }
        }
        Err(failed.unwrap_or(GetError::Missing { id }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_from_the_first_store_that_has_it_whole() {
        let tmp = tempfile::tempdir().unwrap();
        let roots = ["site", "home"].map(|name| tmp.path().join(name));
        let places = Places::at(roots.clone());
        let [site, home] = roots.map(|root| Local::at(&root.join("chunks")));
        let (id, _) = home.put(b"content").unwrap();
        assert_eq!(places.proven(id, 7).unwrap().bytes, b"content");
        assert_eq!(places.file(id), Some(home.path(id)));
        site.put(b"content").unwrap();
        assert_eq!(places.file(id), Some(site.path(id)));
        std::fs::write(site.path(id), "con").unwrap();
        assert_eq!(places.proven(id, 7).unwrap().bytes, b"content");
        std::fs::write(home.path(id), "contend").unwrap();
        let error = places.proven(id, 7).unwrap_err();
        assert!(
            matches!(error, GetError::Truncated { .. }),
            "the first store's: {error}"
        );
        let other = ChunkId::of(b"other");
        assert!(matches!(
            places.proven(other, 5).unwrap_err(),
            GetError::Missing { id } if id == other
        ));
    }
}
