//! Files that users name.
//!
//! A symbolic link stands for the file that it leads to. A file is never put in the place of a pipe, a device, a socket
//! or a folder. The commands decide the content, and the way of writing it.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The most symbolic links followed one after another, as in Linux.
const LINKS: usize = 40;

/// The path behind its symbolic links. The file itself may be missing.
///
/// Links within a process's folder of descriptors name no path and are kept, as the last part of the path.
pub(crate) fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(path);
        };
        // A missing folder is reported by the one who writes.
        let Ok(folder) = folder.canonicalize() else {
            return Ok(path);
        };
        let here = folder.join(name);
        match here.read_link() {
            Ok(to) if !is_of_descriptors(&folder) => path = folder.join(to),
            _ => return Ok(here),
        }
    }
    Err(io::Error::other("too many symbolic links, one to another"))
}

fn is_of_descriptors(folder: &Path) -> bool {
    folder.starts_with("/proc") && folder.ends_with("fd")
}

/// Opens a regular file to read it. Fails for anything else, and doesn't wait for a pipe's writer.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    must_be_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Content of a regular file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    bounded(open(path)?, most)
}

/// As [`read`], for text.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::other("it is not UTF-8 text"))
}

/// All that a reader has, of at most `most` bytes.
pub(crate) fn bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes),
        false => Err(io::Error::other(format!("it has more than {} MiB", most >> 20))),
    }
}

/// Fails if anything but a regular file stands at the path. `Ok` if nothing stands there.
pub(crate) fn may_be_replaced(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(found) => must_be_regular(found.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn must_be_regular(kind: std::fs::FileType) -> io::Result<()> {
    let name = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "folder",
        kind if kind.is_fifo() => "pipe",
        kind if kind.is_socket() => "socket",
        _ => "device",
    };
    Err(io::Error::other(format!("it is a {name}, not a file")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_to_a_file_that_is_missing() {
        let tmp = tempfile::tempdir().unwrap();
        let folder = tmp.path().canonicalize().unwrap();
        std::fs::create_dir(folder.join("real")).unwrap();
        symlink("real/new", folder.join("second")).unwrap();
        symlink(folder.join("second"), folder.join("first")).unwrap();
        assert_eq!(
            behind_links(&folder.join("first")).unwrap(),
            folder.join("real/new")
        );
        symlink("circle", folder.join("circle")).unwrap();
        assert!(behind_links(&folder.join("circle")).is_err());
        assert_eq!(
            behind_links(&folder.join("none/x")).unwrap(),
            folder.join("none/x")
        );
    }

    #[test]
    fn a_descriptor_is_this_processs_own() {
        let own = format!("/proc/{}/fd/1", std::process::id());
        for path in ["/proc/self/fd/1", "/dev/stdout", "/dev/fd/1"] {
            assert_eq!(behind_links(Path::new(path)).unwrap(), Path::new(&own), "{path}");
        }
    }

    #[test]
    fn what_is_no_file_or_has_no_end_is_not_read() {
        let tmp = tempfile::tempdir().unwrap();
        let pipe = tmp.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let (done, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(read(&pipe, MIB).unwrap_err().to_string()));
        let told = told.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
        assert!(told.contains("it is a pipe"), "{told}");
        let told = read(Path::new("/dev/zero"), MIB).unwrap_err().to_string();
        assert!(told.contains("it is a device"), "{told}");
        let long = tmp.path().join("long");
        File::create(&long).unwrap().set_len(MIB).unwrap();
        assert!(read_text(&long, MIB).is_ok());
        let told = read(&long, MIB - 1).unwrap_err().to_string();
        assert!(told.contains("it has more than"), "{told}");
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn only_regular_files_may_be_replaced() {
        let tmp = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(tmp.path().join("s")).unwrap();
        std::fs::write(tmp.path().join("file"), "").unwrap();
        for path in ["none", "file"] {
            assert!(may_be_replaced(&tmp.path().join(path)).is_ok(), "{path}");
        }
        for (path, says) in [
            (tmp.path().join("s"), "a socket"),
            (tmp.path().to_owned(), "a folder"),
            ("/dev/null".into(), "a device"),
        ] {
            let told = may_be_replaced(&path).unwrap_err().to_string();
            assert!(told.contains(says), "{told}");
        }
    }
}
