//! Memory that outlives a killed front. The front's owner holds the memory, and names it to the next front. The first
//! eight bytes hold the place of the content, so that one small write exchanges all of it. No file system that hangs
//! holds up a write.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEAD: u64 = 8;

#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    end: u64,
}

impl Memory {
    /// Opens the memory that the owner has named, if any; see [`Memory::open`]. Without it the front goes on, with this
    /// warning.
    pub(crate) fn named(
        path: Option<&Path>,
        resume: bool,
        warning: &'static str,
    ) -> (Option<Self>, Option<Vec<u8>>) {
        let opened = path.map(|path| Self::open(path, resume)).transpose();
        let opened = opened.unwrap_or_else(|error| {
            tracing::warn!(%error, "{warning}");
            None
        });
        opened.unzip()
    }

    /// Opens the owner's memory. With `resume`, an earlier front's content is returned as well.
    fn open(path: &Path, resume: bool) -> io::Result<(Self, Vec<u8>)> {
        let mut file = File::options().read(true).write(true).open(path)?;
        let mut content = Vec::new();
        let mut head = [0; HEAD as usize];
        if !resume {
            file.set_len(0)?;
        } else if file.read_exact_at(&mut head, 0).is_ok() {
            file.seek(SeekFrom::Start(u64::from_le_bytes(head)))?;
            file.read_to_end(&mut content)?;
        }
        let end = file.metadata()?.len().max(HEAD);
        Ok((Self { file, end }, content))
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let begin = self.end;
        self.add(bytes)?;
        self.file.write_all_at(&begin.to_le_bytes(), 0)?;
        // Gives back the memory of the earlier content.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if begin > HEAD {
            fallocate(&self.file, hole, HEAD, begin - HEAD)?;
        }
        Ok(())
    }
}
