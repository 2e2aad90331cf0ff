//! The conversation of [`super`] for tasks.

use super::{LineError, Pending, decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

/// Writes one line, and flushes.
///
/// # Errors
/// JSON can't say the value, and nothing is written; or writing failed.
pub async fn write<T: Serialize + ?Sized>(
    to: &mut (impl AsyncWrite + Unpin),
    value: &T,
) -> Result<(), LineError> {
    let line = encode(value)?;
    to.write_all(&line).await.map_err(LineError::Io)?;
    to.flush().await.map_err(LineError::Io)
}

/// Reads lines of a bounded length. After a dropped read, the next read goes on within the line.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    pending: Pending,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// `bound`: the longest line, in bytes and with its newline.
    pub fn new(from: R, bound: usize) -> Self {
        Self {
            from,
            pending: Pending::new(bound),
        }
    }

    /// The next line without its newline. `None` means the end.
    ///
    /// # Errors
    /// Reading failed, or the line is too long.
    pub async fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            let chunk = self.from.fill_buf().await.map_err(LineError::Io)?;
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
    /// As [`Lines::next_line`], or the line is not the JSON of a `T`. The next line can still be read.
    pub async fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        self.next_line().await?.map(|line| decode(&line)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::BufReader;

    #[tokio::test]
    async fn a_read_that_is_dropped_loses_nothing() {
        let (mut here, there) = tokio::io::duplex(64);
        let mut lines = Lines::new(BufReader::new(there), 64);
        here.write_all(b"12").await.unwrap();
        let dropped = tokio::time::timeout(std::time::Duration::from_millis(20), lines.next_line()).await;
        assert!(dropped.is_err());
        write(&mut here, &34).await.unwrap();
        drop(here);
        assert_eq!(lines.read::<u32>().await.unwrap(), Some(1234));
        assert_eq!(lines.read::<u32>().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_line_without_end_is_refused() {
        let mut lines = Lines::new(BufReader::new(tokio::io::repeat(b'1')), 1 << 20);
        assert!(matches!(
            lines.read::<u32>().await,
            Err(LineError::TooLong { .. })
        ));
        assert_eq!(lines.pending.bytes.capacity(), 0);
    }
}
