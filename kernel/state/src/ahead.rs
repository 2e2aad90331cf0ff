//! The files that a restoration of a state will read, for a node that reads them ahead.

use crate::form::{self, ReadError};
use crate::log::{Key, own_uid};
use hop_blobs::ChunkId;
use hop_blobs::places::Places;
use std::path::{Path, PathBuf};

/// Returns the files with the content that the state in this folder has now, from these stores in their order. Reads the
/// log itself. A missing chunk is left to the restoration.
///
/// # Errors
/// The log can't be read or proven.
pub fn files(folder: &Path, stores: &[PathBuf], key: &Key) -> Result<Vec<PathBuf>, ReadError> {
    let snapshot = form::read(folder, key.bytes(), own_uid())?;
    let places = Places::at(stores.iter().cloned());
    let names = snapshot.live().into_iter();
    let ids = names.filter_map(|name| name.parse::<ChunkId>().ok());
    Ok(ids.filter_map(|id| places.file(id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::Writer;
    use hop_blobs::local::Local;
    use std::fs;

    #[test]
    fn the_present_content_is_named_wherever_it_lies_packed_or_not() {
        let tmp = tempfile::tempdir().unwrap();
        let folder = tmp.path().join("1.0");
        fs::create_dir(&folder).unwrap();
        let roots = ["site", "home"].map(|name| tmp.path().join(name));
        let [local, home] = roots.each_ref().map(|root| Local::at(&root.join("chunks")));
        let put = |text: &str| local.put(text.as_bytes()).unwrap().0;
        let long = "the same again ".repeat(100_000);
        let (replaced, plain) = (put("before"), put("now"));
        let packed = home.put(long.as_bytes()).unwrap().0;
        // Content like this is packed at once.
        assert!(!home.path(packed).exists());
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
        let mut found = files(&folder, &roots, &key).unwrap();
        found.sort();
        let mut wanted = vec![local.path(plain), home.path(packed).with_extension("z")];
        wanted.sort();
        assert_eq!(found, wanted);
        assert!(files(tmp.path(), &roots, &key).is_err());
    }
}
