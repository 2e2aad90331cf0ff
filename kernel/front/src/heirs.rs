//! Records of outputs that a kernel's pages may lack, in memory that outlives a killed front ([`Memory`]). The records
//! lie behind each other.

use crate::core::Records;
use crate::memory::Memory;
use std::path::Path;

/// The memory, if the owner has named one.
#[derive(Debug)]
pub(crate) struct Heirs(Option<Memory>);

impl Heirs {
    /// Opens the owner's memory. With `resume`, an earlier front's records are returned as well. `None` means that the
    /// owner has named no memory.
    pub(crate) fn open(path: Option<&Path>, resume: bool) -> (Self, Option<Vec<u8>>) {
        let (memory, records) = Memory::named(path, resume, "what pages may lack won't outlive this front");
        (Self(memory), records)
    }

    pub(crate) fn write(&mut self, records: &Records) {
        let written = self.0.as_mut().map(|memory| match records {
            Records::More(bytes) => memory.add(bytes),
            Records::All(bytes) => memory.replace(bytes),
        });
        if let Some(Err(error)) = written {
            tracing::warn!(%error, "what pages may lack can't be recorded any more");
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_successor_reads_what_its_predecessor_wrote_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory");
        File::create(&path).unwrap();
        let open = |resume| {
            let (heirs, records) = Heirs::open(Some(&path), resume);
            (heirs, records.unwrap())
        };
        let (mut first, none) = open(true);
        assert_eq!(none, b"");
        first.write(&Records::All(vec![b'x'; 1 << 20]));
        first.write(&Records::All(b"all\n".to_vec()));
        first.write(&Records::More(b"more\n".to_vec()));
        let (mut second, records) = open(true);
        assert_eq!(records, b"all\nmore\n");
        second.write(&Records::More(b"again\n".to_vec()));
        assert_eq!(open(true).1, b"all\nmore\nagain\n");
        let blocks = path.metadata().unwrap().blocks() * 512;
        assert!(blocks < 1 << 20, "the earlier records take {blocks} bytes");
        assert_eq!(open(false).1, b"");
        assert_eq!(open(true).1, b"");
        assert_eq!(Heirs::open(Some(&dir.path().join("none")), true).1, None);
    }
}
