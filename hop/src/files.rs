//! Files that users name.
//!
//! A symbolic link stands for the file that it leads to. A file is never put in the place of a pipe, a device, a socket
//! or a folder. What is written, and how, is left to the commands.

use std::io;
use std::os::unix::fs::FileTypeExt;
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
