//! Segments: files of one size, filled with zeros and synced before their use.

use crate::memory::SegmentNumber;
use bytes::{BufMut, Bytes, BytesMut};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes before a segment's first frame: `HOPWAL01` and the segment's number.
pub(crate) const HEADER: u64 = 16;
const MAGIC: &[u8; 8] = b"HOPWAL01";

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: SegmentNumber,
    pub(crate) file: Arc<File>,
    pub(crate) size: u64,
}

pub(crate) fn path(dir: &Path, number: SegmentNumber) -> PathBuf {
    dir.join(format!("{number:012}.wal"))
}

/// The segments in the folder, the oldest first.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<SegmentNumber>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|n| n.strip_suffix(".wal"));
        numbers.extend(number.and_then(|n| n.parse::<SegmentNumber>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A file of zeros, for a later segment.
#[derive(Debug)]
pub(crate) struct Blank {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Blank {
    /// Fills a new file: afterwards neither writing nor syncing needs space or metadata.
    pub(crate) fn create(dir: &Path, size: u64) -> io::Result<Self> {
        let path = dir.join("blank");
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.mode(0o600).open(&path)?;
        let filled = fill(&file, size);
        if filled.is_err() {
            // A part of a segment would only keep the disk full.
            let _ = std::fs::remove_file(&path);
        }
        filled?;
        Ok(Self { path, file, size })
    }

    /// An old segment's file. The old frames don't count under the new number.
    pub(crate) fn recycle(dir: &Path, number: SegmentNumber, size: u64) -> io::Result<Option<Self>> {
        let old = path(dir, number);
        let file = OpenOptions::new().read(true).write(true).open(&old)?;
        if file.metadata()?.len() != size {
            std::fs::remove_file(&old)?;
            return Ok(None);
        }
        let path = dir.join("blank");
        std::fs::rename(&old, &path)?;
        Ok(Some(Self { path, file, size }))
    }

    /// Gives the file a number, and the name by the number.
    pub(crate) fn into_segment(self, dir: &Path, number: SegmentNumber) -> io::Result<Segment> {
        let mut header = BytesMut::new();
        header.put_slice(MAGIC);
        header.put_u64_le(number);
        self.file.write_all_at(&header, 0)?;
        self.file.sync_data()?;
        std::fs::rename(&self.path, path(dir, number))?;
        File::open(dir)?.sync_all()?;
        Ok(Segment {
            number,
            file: Arc::new(self.file),
            size: self.size,
        })
    }
}

fn fill(file: &File, size: u64) -> io::Result<()> {
    let zeros = vec![0; 64 << 10];
    let mut at = 0;
    while at < size {
        let n = (size - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..n as usize], at)?;
        at += n;
    }
    file.sync_all()
}

/// Opens a segment and reads its frames' bytes. `None` means a file of another version.
pub(crate) fn open(dir: &Path, number: SegmentNumber) -> io::Result<Option<(Segment, Bytes)>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path(dir, number))?;
    let size = file.metadata()?.len();
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let known = bytes.get(..8) == Some(MAGIC) && bytes.get(8..16) == Some(&number.to_le_bytes());
    if !known {
        return Ok(None);
    }
    let segment = Segment {
        number,
        file: Arc::new(file),
        size,
    };
    Ok(Some((segment, Bytes::from(bytes).slice(HEADER as usize..))))
}
