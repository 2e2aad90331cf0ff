//! Whole chunks to and from files without the page cache.
//!
//! Writes of many chunks are faster without the page cache. They evict no other program's data from memory, and don't
//! count against the kernel's seat. Direct writes need aligned memory: content passes through a buffer small enough for
//! a processor's cache. Callers write ordinarily if the file system has no direct writes.

use crate::{CHUNK_BYTES, private};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Largest alignment that a device's memory needs.
const PAGE: usize = 4096;

/// Bytes of one write. A slow device is seen to move on.
const STEP: usize = 1024 * 1024;

/// Memory for one chunk, aligned.
#[derive(Debug)]
pub struct Buffer {
    raw: Vec<u8>,
    start: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        let raw = vec![0; CHUNK_BYTES + PAGE];
        let start = raw.as_ptr().align_offset(PAGE);
        Self { raw, start }
    }
}

impl Buffer {
    /// The chunk in it.
    pub fn chunk(&self) -> &[u8] {
        &self.raw[self.start..self.start + CHUNK_BYTES]
    }

    pub(crate) fn chunk_mut(&mut self) -> &mut [u8] {
        &mut self.raw[self.start..self.start + CHUNK_BYTES]
    }

    /// Writes a whole chunk, as filled in by `fill`, to a new file, on disk on return. Each answer of the file system is
    /// a `step`. `None` if the file system can't; the file may exist then.
    ///
    /// # Errors
    /// The I/O error of a file system that does, and of `fill`.
    pub fn write(
        &mut self,
        path: &Path,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
        step: impl Fn(),
    ) -> io::Result<Option<()>> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
        let Some(mut file) = unless_unknown(private::open(&mut options, path))? else {
            return Ok(None);
        };
        // A hint for a single extent; a full disk shows when the file is written.
        let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, CHUNK_BYTES as u64);
        step();
        fill(self.chunk_mut())?;
        let written = self.chunk().chunks(STEP).try_for_each(|part| {
            let written = file.write_all(part);
            step();
            written
        });
        // The content is past the page cache; the device's own cache and the file's extents are not on disk yet.
        unless_unknown(written.and_then(|()| file.sync_data()))
    }

    /// Reads a file of a whole chunk into this buffer. `None` means that the file system doesn't support such reads.
    ///
    /// # Errors
    /// The I/O error of a file system that does; a file of another length is one (`UnexpectedEof`).
    pub fn read(&mut self, path: &Path) -> io::Result<Option<()>> {
        let Some(mut file) = unless_unknown(
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_DIRECT)
                .open(path),
        )?
        else {
            return Ok(None);
        };
        if length(&file)? != CHUNK_BYTES as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        unless_unknown(file.read_exact(self.chunk_mut()))
    }
}

fn length(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

/// `None` for the errors of a file system without direct writes.
fn unless_unknown<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_comes_back_and_another_length_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chunk");
        let content: Vec<u8> = (0..CHUNK_BYTES).map(|i| (i * 7 / 3) as u8).collect();
        let mut buffer = Buffer::default();
        assert_eq!(buffer.chunk().as_ptr().align_offset(PAGE), 0);
        let fill = |chunk: &mut [u8]| {
            chunk.copy_from_slice(&content);
            Ok(())
        };
        if buffer.write(&path, fill, || {}).unwrap().is_none() {
            eprintln!("skipped: this file system always uses its cache");
            return;
        }
        let mut other = Buffer::default();
        other.read(&path).unwrap().unwrap();
        assert!(other.chunk() == content);
        std::fs::write(&path, &content[1..]).unwrap();
        assert_eq!(
            other.read(&path).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(
            other.read(&dir.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
