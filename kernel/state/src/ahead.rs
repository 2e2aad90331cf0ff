//! The files that a restoration of a state will read, for a node that reads them ahead.

use crate::form::{self, ReadError};
use crate::log::{Key, own_uid};
use hop_blobs::ChunkId;
use hop_blobs::local::Local;
use std::path::{Path, PathBuf};

/// Returns the files of the store with the content that the state in this folder has now. Reads the log itself. A
/// missing chunk is left to the restoration.
///
/// # Errors
/// The log can't be read or proven.
pub fn files(folder: &Path, store: &Path, key: &Key) -> Result<Vec<PathBuf>, ReadError> {
    let uid = own_uid().map_err(|source| ReadError::Missing {
        path: folder.to_owned(),
        source,
    })?;
    let snapshot = form::read(folder, key.bytes(), uid)?;
    let local = Local::at(&store.join("chunks"));
    let names = snapshot.live().into_iter();
    let ids = names.filter_map(|name| name.parse::<ChunkId>().ok());
    Ok(ids.filter_map(|id| local.file(id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::Writer;
    use std::fs;

    #[test]
    fn the_present_versions_content_is_named_packed_or_not() {
        let tmp = tempfile::tempdir().unwrap();
        let (store, folder) = (tmp.path().join("store"), tmp.path().join("1.0"));
        fs::create_dir(&folder).unwrap();
        let local = Local::open(&store.join("chunks")).unwrap();
        let put = |text: &str| local.put(text.as_bytes()).unwrap().0;
        let long = "the same again ".repeat(100_000);
        let (replaced, plain, packed) = (put("before"), put("now"), put(&long));
        // Content like this is packed at once.
        assert!(!local.path(packed).exists());
        let key = Key::new([7; 32]);
        let mut log = Writer::create(&folder, &key).unwrap();
        for (chunk, stream) in [
            (replaced, serde_json::json!({"in": [0, 0]})),
            (
                plain,
                serde_json::json!({"n": long.len(), "c": [packed.to_string()]}),
            ),
        ] {
            let record = serde_json::json!({
                "at": 1.0, "gone": [], "process": {}, "inputs": {}, "env": null, "cell": null,
                "units": [{"u": 1, "m": ["n:a"], "s": stream, "b": [[4, 0, [chunk.to_string()]]], "f": [],
                    "c": [], "t": [], "gone": [], "notes": [], "types": [], "sec": 0.0, "dig": ""}],
            });
            log.append(record.to_string().as_bytes(), b"").unwrap();
        }
        log.commit().unwrap();
        let mut found = files(&folder, &store, &key).unwrap();
        found.sort();
        let mut wanted = vec![local.path(plain), local.path(packed).with_extension("z")];
        wanted.sort();
        assert_eq!(found, wanted);
        assert!(files(tmp.path(), &store, &key).is_err());
    }
}
