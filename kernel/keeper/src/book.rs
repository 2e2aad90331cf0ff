//! The address of each seat and the keys of all, in the user's home.
//!
//! A keeper in service writes the file `seats/<job>`; another keeper reads the file before a dial. The keys are made by
//! the first keeper of the user, and admit the user's own keepers alone.

use hop_protocol::file::make_private;
use hop_protocol::tls::KernelKeys;
use hop_words::id::JobId;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The folder with addresses and keys.
#[derive(Debug, Clone)]
pub struct Book {
    dir: PathBuf,
}

impl Book {
    /// Opens the book in this folder, private to its owner.
    ///
    /// # Errors
    /// If the folder can't be made, or belongs to another user.
    pub fn open(dir: &Path) -> io::Result<Self> {
        make_private(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn path(&self, seat: JobId) -> PathBuf {
        self.dir.join(seat.to_string())
    }

    /// Writes this seat's address.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn enter(&self, seat: JobId, address: SocketAddr) -> io::Result<()> {
        let new = self.dir.join(format!(".{seat}.{}", std::process::id()));
        write(&new, address.to_string().as_bytes())?;
        std::fs::rename(&new, self.path(seat))
    }

    /// Removes this seat's address. A missing file is fine.
    pub fn strike(&self, seat: JobId) {
        // A stale address only costs a dial.
        let _ = std::fs::remove_file(self.path(seat));
    }

    /// The same, unless the seat has another address by now.
    pub fn strike_address(&self, seat: JobId, address: SocketAddr) {
        if self.address(seat).is_ok_and(|now| now == Some(address)) {
            self.strike(seat);
        }
    }

    /// The seat's address. `None`: the seat doesn't listen, or its file isn't visible here yet.
    ///
    /// # Errors
    /// If the address can't be read. The seat may listen all the same.
    pub fn address(&self, seat: JobId) -> io::Result<Option<SocketAddr>> {
        let text = match std::fs::read_to_string(self.path(seat)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        text.trim().parse().map(Some).map_err(damaged)
    }

    /// The seats with an address. Some may have ended.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn seats(&self) -> io::Result<Vec<JobId>> {
        let mut seats = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            seats.extend(name.to_str().and_then(|name| name.parse().ok()).map(JobId));
        }
        Ok(seats)
    }

    /// The keys of all of the user's keepers, made by the first one.
    ///
    /// # Errors
    /// If they can't be made or read.
    pub fn keys(&self) -> io::Result<KernelKeys> {
        let path = self.dir.join("keys");
        let read = || {
            let bytes = std::fs::read(&path)?;
            serde_json::from_slice(&bytes).map_err(io::Error::from)
        };
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let keys = KernelKeys::generate().map_err(io::Error::other)?;
        // Keepers on two nodes may have the same process id.
        let host = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let new = self.dir.join(format!(".keys.{}", host.trim()));
        write(&new, &serde_json::to_vec(&keys)?)?;
        // Only one keeper makes the link; the others read its keys.
        let linked = std::fs::hard_link(&new, &path);
        std::fs::remove_file(&new)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => read(),
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_made_once_and_addresses_are_found() {
        let tmp = tempfile::tempdir().unwrap();
        let book = Book::open(&tmp.path().join("seats")).unwrap();
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|_| scope.spawn(|| book.keys().unwrap().authority))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(made.iter().all(|k| *k == made[0]));
        let mode = std::fs::metadata(tmp.path().join("seats/keys"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(book.address(JobId(7)).unwrap(), None);
        let address = "127.0.0.1:4711".parse().unwrap();
        book.enter(JobId(7), address).unwrap();
        assert_eq!(book.address(JobId(7)).unwrap(), Some(address));
        assert_eq!(book.seats().unwrap(), [JobId(7)], "the keys are no seat");
        book.strike_address(JobId(7), "127.0.0.1:4712".parse().unwrap());
        assert_eq!(book.address(JobId(7)).unwrap(), Some(address), "it has moved");
        book.strike_address(JobId(7), address);
        assert_eq!(book.address(JobId(7)).unwrap(), None);
        // No read of a folder as a file succeeds.
        std::fs::create_dir(tmp.path().join("seats/7")).unwrap();
        assert!(book.address(JobId(7)).is_err(), "it is not taken for absent");
    }
}
