//! The files of a replica whose last words no front takes.

use crate::dial::{Standing, is_followed};
use crate::link::FrontLink;
use hop_protocol::file::FrontFile;
use hop_protocol::states;
use hop_words::id::{Incarnation, Tenure};
use std::path::Path;

/// No front wants this replica. Removes the front's folder, left behind only if no front cleans up after itself.
/// Removes also the state of a kernel that nobody will find again. If the state will be found, the outputs that no
/// front has taken are kept beside it. A living front has another replica, or starts one from this very state.
pub(crate) fn see_to(dir: &Path, file: &FrontFile, (me, tenure): (Incarnation, Tenure), link: &FrontLink) {
    let state = file.state.as_ref();
    // Only a proven absence lets the folders go.
    let has_owner = state.is_some_and(|s| states::has_owner(&s.kernel).unwrap_or(true));
    if has_owner || !is_ours(dir, me, tenure) {
        return;
    }
    let found_again = keep(file, link);
    let _ = std::fs::remove_dir_all(dir);
    if let Some(state) = state.filter(|_| !found_again) {
        let _ = std::fs::remove_dir_all(&state.kernel);
    }
}

/// The front has not taken everything for a minute: it is gone, or at a standstill. The folder is left to the front.
pub(crate) fn see_to_words(
    dir: &Path,
    file: &FrontFile,
    (me, tenure): (Incarnation, Tenure),
    link: &FrontLink,
) {
    if is_ours(dir, me, tenure) {
        keep(file, link);
    }
}

/// Whether no later replica took the place of this one. The file of a front that is lost doesn't name the executors that
/// the group has elected since.
fn is_ours(dir: &Path, me: Incarnation, tenure: Tenure) -> bool {
    FrontFile::read(dir).is_ok_and(|file| !is_followed(&file, me, Standing::Executes(tenure)))
}

/// Returns whether the kernel's state is found again, by its notebook.
fn keep(file: &FrontFile, link: &FrontLink) -> bool {
    let state = file.state.as_ref();
    let Some(state) = state.filter(|s| states::is_found_again(&s.kernel)) else {
        return false;
    };
    if let Err(error) = link.meanwhile().write(&state.kernel) {
        tracing::warn!(%error, "what the last cell showed can't be kept for the notebook's next opening");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_protocol::content::Stores;
    use hop_protocol::file::StateFolder;
    use hop_protocol::message::VERSION;
    use hop_words::id::Tenure;
    use std::fs::File;

    /// The file of a kernel with its folder of states, which is made.
    fn file(kernel: &Path) -> FrontFile {
        std::fs::create_dir(kernel).unwrap();
        FrontFile {
            version: VERSION,
            state: Some(StateFolder {
                kernel: kernel.to_owned(),
                tenure: Tenure(1),
                stores: Stores::only(kernel),
                hash_seed: 0,
            }),
            ..crate::spare::tests::file("k", &[], &[])
        }
    }

    #[test]
    fn what_can_not_be_looked_at_is_kept() {
        for name in [states::OWNER, states::NOTEBOOK] {
            let tmp = tempfile::tempdir().unwrap();
            let (dir, kernel) = (tmp.path().join("dir"), tmp.path().join("state"));
            let file = file(&kernel);
            file.write(&dir).unwrap();
            // A link to itself fails each look, even by root.
            std::os::unix::fs::symlink(name, kernel.join(name)).unwrap();
            see_to(&dir, &file, (Incarnation(1), Tenure(1)), &FrontLink::new());
            assert!(kernel.exists(), "{name}");
        }
    }

    #[test]
    fn a_front_that_lives_keeps_its_folder_and_its_kernels_state() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, kernel) = (tmp.path().join("dir"), tmp.path().join("state"));
        let file = file(&kernel);
        let owner = File::create(kernel.join(states::OWNER)).unwrap();
        file.write(&dir).unwrap();
        let left = || {
            see_to(&dir, &file, (Incarnation(1), Tenure(1)), &FrontLink::new());
            (dir.exists(), kernel.exists())
        };
        owner.lock().unwrap();
        assert_eq!(left(), (true, true), "it stands still, or can't be reached");
        drop(owner);
        assert_eq!(left(), (false, false));
    }

    #[test]
    fn an_executor_elected_after_its_front_clears_away_and_one_before_the_file_does_not() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, kernel) = (tmp.path().join("dir"), tmp.path().join("state"));
        let file = FrontFile {
            incarnation: Incarnation(2),
            ..file(&kernel)
        };
        file.write(&dir).unwrap();
        let left = |me, tenure| {
            see_to(&dir, &file, (Incarnation(me), Tenure(tenure)), &FrontLink::new());
            (dir.exists(), kernel.exists())
        };
        assert_eq!(
            left(1, 0),
            (true, true),
            "another front has opened the next tenure"
        );
        assert_eq!(left(3, 2), (false, false));
    }
}
