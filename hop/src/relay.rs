//! The way to a kernel's process on another node: through the user's seats, with the keys in the user's home
//! (`docs/agent-wire.md`).

use hop_door::{AskError, Door};
use hop_keeper::{Book, visit};
use hop_protocol::file::{FrontFile, data_dir, kernel_dir, seats_dir};
use hop_words::id::KernelId;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;

/// Why no seat leads to the kernel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("there is no seat")]
    NoSeat,
    #[error("none of them has its process")]
    NotThere,
    #[error("they can't be asked")]
    Io(#[from] io::Error),
    #[error("the process doesn't answer")]
    Ask(#[from] AskError),
}

/// Opens the door of the process that runs the cells of kernel `id`, or of the only kernel whose messages are signed by
/// `key`. A notebook opened anew goes on with a kernel of another id.
pub(crate) fn door(id: &str, key: Option<&str>, deadline: Duration) -> Result<Door, RelayError> {
    let dir = seats_dir().filter(|dir| dir.is_dir()).ok_or(RelayError::NoSeat)?;
    let book = Book::open(&dir)?;
    let kernel = in_home(id, key);
    // The door speaks to a plain socket, and a thread carries the bytes to the seat and back.
    let (ours, theirs) = StdStream::pair()?;
    theirs.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut seat = runtime
        .block_on(visit::visit(&book, &kernel))
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => RelayError::NotThere,
            _ => error.into(),
        })?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let mut theirs = UnixStream::from_std(theirs)?;
            copy_bidirectional(&mut theirs, &mut seat).await
        })
    });
    let door = Door::over(ours, None, deadline)?;
    match door.hello.kernel.as_deref() == Some(kernel.as_str()) {
        true => Ok(door),
        false => Err(RelayError::NotThere),
    }
}

/// The user's kernels with a file in their home, with their notebooks' names. Some may have ended.
pub(crate) fn names_in_home() -> Vec<(KernelId, String)> {
    let files = data_dir().map(|data| front_files(&data.join("kernels")));
    let files = files.into_iter().flatten();
    files.map(|file| (file.kernel, file.launch.name)).collect()
}

/// The kernel's own id, by the files of the user's kernels.
fn in_home(id: &str, key: Option<&str>) -> KernelId {
    let kernel = KernelId::from(id);
    if kernel_dir(&kernel).is_some_and(|dir| FrontFile::is_in(&dir)) {
        return kernel;
    }
    let signed = key.filter(|key| !key.is_empty()).and_then(|key| {
        let dir = data_dir()?.join("kernels");
        signed_by(key, &dir)
    });
    signed.unwrap_or(kernel)
}

/// The only kernel in `dir` whose messages are signed by this key. A site may give all kernels the same key.
fn signed_by(key: &str, dir: &Path) -> Option<KernelId> {
    let mut found = front_files(dir)
        .filter(|file| file.signing_key == key)
        .map(|file| file.kernel);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn front_files(kernels: &Path) -> impl Iterator<Item = FrontFile> + use<> {
    let folders = fs::read_dir(kernels).into_iter().flatten();
    folders.filter_map(|entry| FrontFile::read(&entry.ok()?.path()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kernel_is_known_by_its_key_where_no_other_has_the_same() {
        let tmp = tempfile::tempdir().unwrap();
        let identity = json!({"cert": "", "key": ""});
        for (kernel, key) in [("a", "one"), ("b", "shared"), ("c", "shared")] {
            let file: FrontFile = serde_json::from_value(json!({
                "version": hop_protocol::message::VERSION, "kernel": kernel, "incarnation": 1, "epoch": 1,
                "addresses": [], "keys": {"authority": "", "front": identity, "replica": identity},
                "signing_key": key, "launch": {"argv": [], "cwd": null},
            }))
            .unwrap();
            file.write(&tmp.path().join(kernel)).unwrap();
        }
        fs::create_dir(tmp.path().join("empty")).unwrap();
        assert_eq!(signed_by("one", tmp.path()), Some("a".into()));
        assert_eq!(signed_by("shared", tmp.path()), None);
        assert_eq!(signed_by("other", tmp.path()), None);
        assert_eq!(signed_by("one", &tmp.path().join("nowhere")), None);
    }
}
