//! Records of outputs that a kernel's pages may lack, in memory that outlives a killed front. The front's owner holds
//! the memory, and names the memory to the next front. The records lie behind each other. The first eight bytes
//! hold the place of the first record: a single small write exchanges all records.

use crate::core::Records;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEAD: u64 = 8;

/// The memory, if the owner has named one.
#[derive(Debug)]
pub(crate) struct Heirs(Option<Memory>);

#[derive(Debug)]
struct Memory {
    file: File,
    end: u64,
}

impl Heirs {
    /// Opens the owner's memory. With `resume`, an earlier front's records are returned as well. `None` means that the
    /// owner has named no memory.
    pub(crate) fn open(path: Option<&Path>, resume: bool) -> (Self, Option<Vec<u8>>) {
        let opened = path.map(|path| Memory::open(path, resume)).transpose();
        let opened = opened.unwrap_or_else(|error| {
            tracing::warn!(%error, "what pages may lack won't outlive this front");
            None
        });
        let (memory, records) = opened.unzip();
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

impl Memory {
    fn open(path: &Path, resume: bool) -> io::Result<(Self, Vec<u8>)> {
        let mut file = File::options().read(true).write(true).open(path)?;
        let mut records = Vec::new();
        let mut head = [0; HEAD as usize];
        if !resume {
            file.set_len(0)?;
        } else if file.read_exact_at(&mut head, 0).is_ok() {
            file.seek(SeekFrom::Start(u64::from_le_bytes(head)))?;
            file.read_to_end(&mut records)?;
        }
        let end = file.metadata()?.len().max(HEAD);
        Ok((Self { file, end }, records))
    }

    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let begin = self.end;
        self.add(bytes)?;
        self.file.write_all_at(&begin.to_le_bytes(), 0)?;
        // Gives back the memory of the earlier ones.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if begin > HEAD {
            fallocate(&self.file, hole, HEAD, begin - HEAD)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
