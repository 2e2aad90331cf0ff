//! JSON lines: a conversation of one value a line, over pipes and Unix sockets.
//!
//! A reader's memory is bounded: an over-long line is reported once and skipped up to its newline. [`Lines`] and
//! [`write`](fn@write) block; `line::tokio` has the same for tasks, behind the feature `tokio`: root's plugin doesn't
//! ask for it. Versions, time limits and the peer's identity are left to the callers.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, Write};

#[cfg(feature = "tokio")]
pub mod tokio;

/// Why a line could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error(transparent)]
    Io(io::Error),
    #[error("a line of more than {bound} bytes")]
    TooLong { bound: usize },
    /// A line that is not understood.
    #[error(transparent)]
    Json(serde_json::Error),
}

impl From<LineError> for io::Error {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Io(error) => error,
            LineError::TooLong { .. } => Self::other(error),
            LineError::Json(error) => error.into(),
        }
    }
}

/// Returns the value as a line, with its newline.
///
/// # Errors
/// JSON can't say the value.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, LineError> {
    let mut line = Vec::with_capacity(128);
    append(&mut line, value)?;
    Ok(line)
}

/// Appends the value to `lines`, as a line with its newline.
///
/// # Errors
/// JSON can't say the value, and `lines` is as before.
pub fn append<T: Serialize + ?Sized>(lines: &mut Vec<u8>, value: &T) -> Result<(), LineError> {
    let before = lines.len();
    serde_json::to_writer(&mut *lines, value)
        .map(|()| lines.push(b'\n'))
        .map_err(|error| {
            lines.truncate(before);
            LineError::Json(error)
        })
}

/// The value of a line, with or without its newline.
///
/// # Errors
/// The line is not the JSON of a `T`.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, LineError> {
    serde_json::from_slice(line).map_err(LineError::Json)
}

/// Writes one line at once, and flushes.
///
/// # Errors
/// JSON can't say the value, and nothing is written; or writing failed.
pub fn write<T: Serialize + ?Sized>(to: &mut impl Write, value: &T) -> Result<(), LineError> {
    let line = encode(value)?;
    to.write_all(&line)
        .and_then(|()| to.flush())
        .map_err(LineError::Io)
}

/// Reads lines of a bounded length. After a read that timed out, the next read goes on within the line.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    pending: Pending,
}

impl<R: BufRead> Lines<R> {
    /// `bound`: the longest line, in bytes and with its newline.
    pub fn new(from: R, bound: usize) -> Self {
        Self {
            from,
            pending: Pending::new(bound),
        }
    }

    /// The next line without its newline. `None` means the end.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            let chunk = match self.from.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(LineError::Io(error)),
            };
            if chunk.is_empty() {
                return Ok(self.pending.rest());
            }
            let (used, found) = self.pending.take(chunk);
            self.from.consume(used);
            if let Some(line) = found? {
                return Ok(Some(line));
            }
        }
    }

    /// The next line's value. `None` means the end.
    ///
    /// # Errors
    /// Reading failed, the line is too long, or it is not the JSON of a `T`. After a wrong line the next line can
    /// still be read.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        self.next_line()?.map(|line| decode(&line)).transpose()
    }
}

/// The bytes of a line that has not ended.
#[derive(Debug)]
struct Pending {
    bytes: Vec<u8>,
    bound: usize,
    /// The line is too long: the rest of it is dropped, up to its newline.
    skips: bool,
}

impl Pending {
    fn new(bound: usize) -> Self {
        Self {
            bytes: Vec::new(),
            bound,
            skips: false,
        }
    }

    /// How many bytes of the chunk belong to the line, and the line if it ends there.
    fn take(&mut self, chunk: &[u8]) -> (usize, Result<Option<Vec<u8>>, LineError>) {
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(chunk.len(), |at| at + 1);
        if self.skips {
            self.skips = end.is_none();
            return (used, Ok(None));
        }
        if self.bytes.len() + used > self.bound {
            self.bytes = Vec::new();
            self.skips = end.is_none();
            return (used, Err(LineError::TooLong { bound: self.bound }));
        }
        self.bytes.extend_from_slice(&chunk[..end.unwrap_or(used)]);
        let line = end.map(|_| std::mem::take(&mut self.bytes));
        (used, Ok(line))
    }

    /// A last line without its newline.
    fn rest(&mut self) -> Option<Vec<u8>> {
        (!self.bytes.is_empty()).then(|| std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Cursor, Read};

    /// Reads cut by timeouts: a `None` in the list is one.
    struct Pieces(Vec<Option<&'static [u8]>>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0).ok_or(io::ErrorKind::WouldBlock)?;
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn a_value_survives_as_one_line() {
        let line = encode("two\nlines").unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(decode::<String>(&line).unwrap(), "two\nlines");
    }

    #[test]
    fn a_value_that_json_cannot_say_leaves_no_half_line() {
        let mut lines = encode(&1).unwrap();
        let unsayable = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(matches!(append(&mut lines, &unsayable), Err(LineError::Json(_))));
        assert_eq!(lines, b"1\n");
    }

    #[test]
    fn a_line_is_written_through_and_a_failure_keeps_its_kind() {
        let mut buffered = io::BufWriter::new(Vec::new());
        write(&mut buffered, &1).unwrap();
        assert_eq!(buffered.get_ref(), b"1\n");
        let full = write(&mut &mut [0; 1][..], &1).unwrap_err();
        assert_eq!(io::Error::from(full).kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn a_signal_ends_no_read() {
        struct Interrupted(bool);
        impl Read for Interrupted {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if !std::mem::replace(&mut self.0, true) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                buffer[..2].copy_from_slice(b"7\n");
                Ok(2)
            }
        }
        let mut lines = Lines::new(BufReader::new(Interrupted(false)), 8);
        assert_eq!(lines.read::<u32>().unwrap(), Some(7));
    }

    #[test]
    fn lines_are_read_up_to_the_end_also_without_a_last_newline() {
        let mut lines = Lines::new(Cursor::new("1\n2\n3"), 8);
        let mut next = || lines.read::<u32>().unwrap();
        assert_eq!(
            [next(), next(), next(), next()],
            [Some(1), Some(2), Some(3), None]
        );
    }

    #[test]
    fn a_line_that_is_not_understood_costs_no_other() {
        let mut lines = Lines::new(Cursor::new("one\n2\n"), 8);
        assert!(matches!(lines.read::<u32>(), Err(LineError::Json(_))));
        assert_eq!(lines.read::<u32>().unwrap(), Some(2));
    }

    #[test]
    fn the_bound_counts_the_newline() {
        let mut lines = Lines::new(Cursor::new("1234\n12345\n5\n"), 5);
        assert_eq!(lines.read::<u32>().unwrap(), Some(1234));
        assert!(matches!(
            lines.read::<u32>(),
            Err(LineError::TooLong { bound: 5 })
        ));
        assert_eq!(lines.read::<u32>().unwrap(), Some(5));
    }

    #[test]
    fn a_line_without_end_is_refused_and_keeps_no_memory() {
        let mut lines = Lines::new(BufReader::new(io::repeat(b'1')), 1 << 20);
        assert!(matches!(lines.read::<u32>(), Err(LineError::TooLong { .. })));
        assert_eq!(lines.pending.bytes.capacity(), 0);
        let cut = BufReader::with_capacity(4, Cursor::new("123456789\n7\n"));
        let mut lines = Lines::new(cut, 5);
        assert!(matches!(lines.read::<u32>(), Err(LineError::TooLong { .. })));
        assert_eq!(lines.read::<u32>().unwrap(), Some(7));
    }

    #[test]
    fn a_read_that_times_out_loses_nothing() {
        let pieces = Pieces(vec![Some(b"12"), None, Some(b"34\n")]);
        let mut lines = Lines::new(BufReader::new(pieces), 64);
        let late = lines.read::<u32>().unwrap_err();
        assert!(matches!(late, LineError::Io(error) if error.kind() == io::ErrorKind::WouldBlock));
        assert_eq!(lines.read::<u32>().unwrap(), Some(1234));
    }
}
