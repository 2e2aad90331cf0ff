//! The folder of a seat's log, on a disk of the node: each reply waits for the log. Files in the folder are the keeper's.

use crate::scratch;
use hop_protocol::mount::{Kind, kind_of};
use hop_words::error::chain;
use hop_words::id::NodeName;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Why a seat's log can't lie in a folder.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("it is on {0}: each reply would wait for another machine")]
    Network(&'static str),
    #[error("its mode is {0:04o}: others may remove what lies there (chmod +t)")]
    Open(u32),
    #[error("it can't be used")]
    Unusable(#[from] io::Error),
}

/// None of these folders can hold the seat's log.
#[derive(Debug, thiserror::Error)]
#[error("no folder on this node can hold the seat's log: name one with seat.log_dir (tried {})", list(.0))]
pub(super) struct Nowhere(Vec<PathBuf>);

fn list(tried: &[PathBuf]) -> String {
    let tried = tried.iter().map(|path| path.display().to_string());
    tried.collect::<Vec<_>>().join(", ")
}

/// The site's folder, the job's (`TMPDIR`), and `/tmp`.
pub(super) fn candidates(of_site: Option<&Path>) -> Vec<PathBuf> {
    let of_job = std::env::var_os("TMPDIR").map(PathBuf::from);
    let named = of_site.map(Path::to_owned).into_iter().chain(of_job);
    let mut candidates: Vec<PathBuf> = named.chain([PathBuf::from("/tmp")]).collect();
    candidates.dedup();
    candidates
}

/// Makes a folder in the first fit candidate. The seat's output has the reasons against the others. Folders of killed
/// seats of this node are removed.
///
/// # Errors
/// If none is fit.
pub(super) fn make(candidates: Vec<PathBuf>, node: &NodeName) -> Result<TempDir, Nowhere> {
    for parent in &candidates {
        match make_in(parent, kind_of(parent), node) {
            Ok(folder) => return Ok(folder),
            Err(unfit) => {
                tracing::warn!(folder = %parent.display(), why = chain(&unfit), "the seat's log can't lie here");
            }
        }
    }
    Err(Nowhere(candidates))
}

fn make_in(parent: &Path, kind: io::Result<Kind>, node: &NodeName) -> Result<TempDir, Unfit> {
    match kind? {
        Kind::Network(name) => return Err(Unfit::Network(name)),
        Kind::Memory => {
            tracing::warn!(
                folder = %parent.display(),
                "the seat's log is in memory: cells are lost where the nodes of most replicas fail at once",
            );
        }
        Kind::Local => {}
    }
    let mode = parent.metadata()?.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(Unfit::Open(mode));
    }
    // Nodes may share the parent, and a process is known on its own node alone.
    let prefix = format!("gresshopper-seat-{node}-");
    scratch::sweep(parent, &prefix);
    let prefix = format!("{prefix}{}.", scratch::own_name());
    // The log has the results and answers of the user's cells.
    let folder = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o700))
        .prefix(&prefix)
        .tempdir_in(parent)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_local(parent: &Path, node: &NodeName) -> Result<TempDir, Unfit> {
        make_in(parent, Ok(Kind::Local), node)
    }

    #[test]
    fn the_log_of_a_killed_seat_is_removed_by_the_nodes_next_seat() {
        let tmp = tempfile::tempdir().unwrap();
        let (here, there): (NodeName, NodeName) = ("n1".into(), "n1-2".into());
        let names = || {
            let entries = std::fs::read_dir(tmp.path()).unwrap();
            let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
            names.collect::<Vec<_>>()
        };
        // No process has this pid.
        for killed in [
            "gresshopper-seat-n1-4194305-7.x",
            "gresshopper-seat-n1-2-4194305-7.x",
        ] {
            std::fs::create_dir(tmp.path().join(killed)).unwrap();
        }
        let living = make_local(tmp.path(), &here).unwrap();
        assert_eq!(names().len(), 2, "{:?}", names());
        assert!(
            names().contains(&"gresshopper-seat-n1-2-4194305-7.x".to_owned()),
            "it is another node's"
        );
        let next = make_local(tmp.path(), &there).unwrap();
        assert_eq!(names().len(), 2, "{:?}", names());
        assert!(living.path().exists() && next.path().exists());
        let mode = next.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn no_log_lies_on_another_machine_or_where_others_may_remove_it() {
        let tmp = tempfile::tempdir().unwrap();
        let node: NodeName = "n1".into();
        let on = make_in(tmp.path(), Ok(Kind::Network("Lustre")), &node).unwrap_err();
        assert!(on.to_string().starts_with("it is on Lustre"), "{on}");
        for mode in [0o777, 0o770, 0o702] {
            std::fs::set_permissions(tmp.path(), Permissions::from_mode(mode)).unwrap();
            let open = make_local(tmp.path(), &node).unwrap_err();
            assert!(open.to_string().contains(&format!("0{mode:o}")), "{open}");
        }
        std::fs::set_permissions(tmp.path(), Permissions::from_mode(0o1777)).unwrap();
        make_local(tmp.path(), &node).unwrap();
        make_in(tmp.path(), Ok(Kind::Memory), &node).unwrap();
        assert_eq!(
            std::fs::read_dir(tmp.path()).unwrap().count(),
            0,
            "each is removed"
        );
    }

    #[test]
    fn the_next_folder_is_taken_where_the_first_is_unfit() {
        let tmp = tempfile::tempdir().unwrap();
        let node: NodeName = "n1".into();
        let missing = tmp.path().join("missing");
        let made = make(vec![missing.clone(), tmp.path().to_owned()], &node).unwrap();
        assert_eq!(made.path().parent(), Some(tmp.path()));
        let nowhere = make(vec![missing], &node).unwrap_err().to_string();
        assert!(
            nowhere.contains("seat.log_dir") && nowhere.contains("missing"),
            "{nowhere}"
        );
    }

    #[test]
    fn the_sites_folder_comes_first_and_tmp_last() {
        let candidates = candidates(Some(Path::new("/scratch")));
        assert_eq!(candidates.first(), Some(&PathBuf::from("/scratch")));
        assert_eq!(candidates.last(), Some(&PathBuf::from("/tmp")));
    }
}
