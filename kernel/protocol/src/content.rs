//! The user's store of chunks, shared by all of the user's kernels: where it lies, and whether the user's variables may
//! be written there. The store's layout is `kernel/blobs`'s.

use crate::file::data_dir;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The user's own choice of a store.
pub const VARIABLE: &str = "GRESSHOPPER_STORE";

/// Who chose the place of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The user, by [`VARIABLE`].
    ByUser,
    /// The site, by its configuration.
    BySite,
    /// Nobody: the user's data folder.
    ByDefault,
}

/// A user's stores, chosen by [`choose`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stores {
    /// The store in which content is kept, and looked for first.
    pub store: PathBuf,
    pub chosen: Chosen,
    /// Stores in which content is looked for next, in this order: kernels may keep theirs there since before the choice.
    pub others: Vec<PathBuf>,
}

impl Stores {
    /// All of them, in the order in which content is looked for.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.store).chain(&self.others)
    }
}

/// The user's stores; `site` is the site's. `None` means that neither `XDG_DATA_HOME` nor `HOME` is set.
pub fn stores(site: Option<PathBuf>) -> Option<Stores> {
    choose(std::env::var_os(VARIABLE).map(PathBuf::from), site, data_dir())
}

/// The user's choice comes before the site's, and both before the home. `data` is the user's data folder
/// ([`data_dir`]). `None` means that there is none of the three.
pub fn choose(user: Option<PathBuf>, site: Option<PathBuf>, data: Option<PathBuf>) -> Option<Stores> {
    let user = user.filter(|path| path.is_absolute());
    let mut all = [
        user.map(|path| (path, Chosen::ByUser)),
        site.map(|path| (path, Chosen::BySite)),
        data.map(|path| (path.join("store"), Chosen::ByDefault)),
    ]
    .into_iter()
    .flatten();
    let (store, chosen) = all.next()?;
    let others = all.map(|(path, _)| path).filter(|path| *path != store).collect();
    Some(Stores {
        store,
        chosen,
        others,
    })
}

/// Why variables can't be written to a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{} is missing: its file system may not be mounted on this host", path.display())]
    Missing { path: PathBuf },
    #[error("{} is not a folder", path.display())]
    NotAFolder { path: PathBuf },
    #[error("{} belongs to another user", path.display())]
    Foreign { path: PathBuf },
    #[error("{} is open to other users (mode {mode:o}): chmod 700 {}", path.display(), path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("other users may replace what is in {} (mode {mode:o})", path.display())]
    Replaceable { path: PathBuf, mode: u32 },
    #[error("{} doesn't answer", path.display())]
    Hangs { path: PathBuf },
    #[error("{} can't be made or looked at", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Has the store be a private folder of the user's, and makes it where it isn't there yet. Folders above it are made
/// only within the user's own: where a file system is not mounted, nothing is written beneath its mount point.
///
/// # Errors
/// The store can't be made, or other users could read or replace it.
pub fn prepare(store: &Path) -> Result<(), StoreError> {
    let uid = rustix::process::geteuid().as_raw();
    let found = match look(store)? {
        Some(found) => found,
        None => made(store, uid)?,
    };
    check(store, &found, uid)
}

fn check(store: &Path, found: &Metadata, uid: u32) -> Result<(), StoreError> {
    let path = || store.to_owned();
    let mode = found.mode() & 0o7777;
    if !found.is_dir() {
        return Err(StoreError::NotAFolder { path: path() });
    }
    if found.uid() != uid {
        return Err(StoreError::Foreign { path: path() });
    }
    if mode & 0o077 != 0 {
        return Err(StoreError::Open { path: path(), mode });
    }
    // The folder above may be reached by a link of the site's.
    let above = store.parent().unwrap_or(store).to_owned();
    match std::fs::metadata(&above).map(|found| found.mode() & 0o7777) {
        Ok(mode) if mode & 0o1002 == 0o002 => Err(StoreError::Replaceable { path: above, mode }),
        Ok(_) => Ok(()),
        Err(source) => Err(StoreError::Io { path: above, source }),
    }
}

/// A link at the store's place is not followed: another user could have put it there.
fn look(path: &Path) -> Result<Option<Metadata>, StoreError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

fn made(store: &Path, uid: u32) -> Result<Metadata, StoreError> {
    let above = store.parent().unwrap_or_else(|| Path::new("/"));
    // The folder above may be reached by a link of the site's.
    if !above.is_dir() {
        let nearest = above.ancestors().find(|path| path.exists());
        let is_own = nearest.is_some_and(|path| path.metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid));
        if !is_own {
            return Err(StoreError::Missing {
                path: above.to_owned(),
            });
        }
    }
    let failed = |source| StoreError::Io {
        path: store.to_owned(),
        source,
    };
    // Another kernel of the user's may be making it now.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(store)
        .map_err(failed)?;
    std::fs::symlink_metadata(store).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn with_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_users_choice_comes_before_the_sites_and_both_before_the_home() {
        let path = |text: &str| Some(PathBuf::from(text));
        let of = |user, site| {
            let stores = choose(user, site, path("/home/a/data")).unwrap();
            let all: Vec<_> = stores.all().map(|path| path.display().to_string()).collect();
            (stores.chosen, all.join(" "))
        };
        let told = |chosen, all: &str| (chosen, all.to_owned());
        let home = "/home/a/data/store";
        assert_eq!(
            of(path("/mine"), path("/site")),
            told(Chosen::ByUser, &format!("/mine /site {home}"))
        );
        assert_eq!(
            of(path("mine"), path("/site")),
            told(Chosen::BySite, &format!("/site {home}"))
        );
        assert_eq!(of(path(home), None), told(Chosen::ByUser, home));
        assert_eq!(of(None, None), told(Chosen::ByDefault, home));
        assert_eq!(choose(None, None, None), None);
    }

    #[test]
    fn a_store_is_made_private_within_a_folder_of_the_users() {
        let tmp = tempfile::tempdir().unwrap();
        let store = tmp.path().join("gresshopper/store");
        prepare(&store).unwrap();
        assert_eq!(std::fs::metadata(&store).unwrap().mode() & 0o777, 0o700);
        prepare(&store).unwrap();
        let link = tmp.path().join("link");
        symlink(tmp.path().join("gresshopper"), &link).unwrap();
        prepare(&link.join("store")).unwrap();
    }

    #[test]
    fn nothing_is_made_beneath_the_mount_point_of_a_missing_file_system() {
        // The folder is another user's, as a mount point is root's.
        let tmp = tempfile::tempdir().unwrap();
        let store = tmp.path().join("alice/store");
        let error = made(&store, rustix::process::geteuid().as_raw() + 1).unwrap_err();
        assert!(error.to_string().contains("alice is missing"), "{error}");
        assert!(!tmp.path().join("alice").exists());
    }

    #[test]
    fn a_folder_that_other_users_can_reach_is_refused_with_its_reason() {
        let tmp = tempfile::tempdir().unwrap();
        let store = tmp.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let refused = || prepare(&store).unwrap_err().to_string();
        for mode in [0o777, 0o1777, 0o750, 0o705] {
            with_mode(&store, mode);
            assert!(
                refused().contains(&format!("(mode {mode:o}): chmod 700")),
                "{mode:o}"
            );
        }
        with_mode(&store, 0o700);
        prepare(&store).unwrap();
        with_mode(tmp.path(), 0o777);
        assert!(refused().contains("other users may replace"), "{}", refused());
        with_mode(tmp.path(), 0o1777);
        prepare(&store).unwrap();

        let own = std::fs::symlink_metadata(&store).unwrap();
        let foreign = check(&store, &own, own.uid() + 1).unwrap_err();
        assert!(foreign.to_string().ends_with("belongs to another user"));
        let (file, link) = (tmp.path().join("file"), tmp.path().join("link"));
        std::fs::write(&file, "").unwrap();
        symlink(&store, &link).unwrap();
        for path in [file, link] {
            assert!(matches!(prepare(&path), Err(StoreError::NotAFolder { .. })));
        }
    }
}
