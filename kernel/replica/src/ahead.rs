//! Reads a kernel's state ahead on the node to which the kernel moves, while its cells go on elsewhere: on a network file
//! system the new process then finds the state in this node's memory.

use hop_protocol::file::{StateFolder, data_dir};
use hop_protocol::states;
use hop_state::ahead;
use hop_state::log::Key;
use hop_words::error::chain;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::path::{Path, PathBuf};

/// In a thread of its own: a file system that hangs holds nobody up. What fails here fails again, and is told, when the
/// kernel is here.
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
    let home = data_dir().map(|data| data.join("store"));
    let stores: Vec<PathBuf> = std::iter::once(folder.store.clone()).chain(home).collect();
    let files = ahead::files(&log, &stores, &Key::of_owner()?)?;
    let asked = files.iter().filter(|path| {
        // A collection may have taken it meanwhile.
        let file = File::open(path);
        file.is_ok_and(|file| fadvise(&file, 0, None, Advice::WillNeed).is_ok())
    });
    Ok(asked.count())
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
