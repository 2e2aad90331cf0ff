//! Reads a kernel's state ahead on the node to which the kernel moves, while its cells go on elsewhere. On a network
//! file system the new process then finds the state in this node's memory.

use hop_protocol::file::StateFolder;
use hop_protocol::states;
use hop_state::ahead;
use hop_state::log::Key;
use hop_words::error::chain;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// Bytes that are asked for in one call. Linux reads no more for a call than the device's read-ahead (128 KiB unless its
/// administrator has changed it) or largest request, and drops the rest.
const WINDOW: NonZeroU64 = NonZeroU64::new(128 * 1024).expect("it isn't zero");

/// Reads the state in a thread of its own, so that a file system that hangs holds nobody up. A failure is only logged:
/// the new process will meet it again, and tells its user.
pub(crate) fn read(folder: StateFolder) {
    std::thread::spawn(move || match ask_for(&folder) {
        Ok(files) => tracing::info!(files, "the kernel's state is read ahead"),
        Err(error) => tracing::info!(error = chain(&*error), "the kernel's state is not read ahead"),
    });
}

/// Has the file system read the state's files; returns their number.
fn ask_for(folder: &StateFolder) -> anyhow::Result<usize> {
    let Some(log) = log_of(&folder.kernel)? else {
        return Ok(0);
    };
    let stores: Vec<PathBuf> = folder.stores.all().cloned().collect();
    let files = ahead::files(&log, &stores, &Key::of_owner()?)?;
    // A collection may have removed a file meanwhile.
    let asked = files.iter().filter(|path| ask_for_file(path).is_ok());
    Ok(asked.count())
}

fn ask_for_file(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    for at in windows(file.metadata()?.len()) {
        fadvise(&file, at, Some(WINDOW), Advice::WillNeed)?;
    }
    Ok(())
}

/// The beginnings of the windows of a file of this length.
fn windows(len: u64) -> impl Iterator<Item = u64> {
    (0..len.div_ceil(WINDOW.get())).map(|n| n * WINDOW.get())
}

/// The folder of the newest log. A tenure without a record yet goes on from the log of an earlier one.
fn log_of(kernel: &Path) -> Result<Option<PathBuf>, states::ReadError> {
    let Some(newest) = states::newest_folder(kernel)? else {
        return Ok(None);
    };
    if newest.join("head").exists() {
        return Ok(Some(newest));
    }
    let settled = states::read(&newest)?.restore().settled.cloned();
    Ok(settled.map(|s| states::folder(kernel, s.tenure, s.part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_file_is_asked_for_by_windows_that_linux_reads_whole() {
        let all = |len| windows(len).collect::<Vec<_>>();
        assert_eq!(all(0), [0; 0]);
        assert_eq!(all(1), [0]);
        assert_eq!(all(128 * 1024), [0]);
        assert_eq!(all(128 * 1024 + 1), [0, 128 * 1024]);
        assert_eq!(all(4 << 20).len(), 32);
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("chunk");
        std::fs::write(&file, [0; 300_000]).unwrap();
        ask_for_file(&file).unwrap();
        assert!(ask_for_file(&tmp.path().join("none")).is_err());
    }
}
