//! The user's store of chunks, shared by all of the user's kernels: where it lies, and whether the user's variables may
//! be written there. Other stores of the user's are read as well. The store's layout is `kernel/blobs`'s.

use serde::{Deserialize, Serialize};
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

/// A user's stores, as [`choose`] has chosen them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stores {
    /// The store in which content is kept, and looked for first.
    pub store: PathBuf,
    /// Stores in which content is looked for next, in this order: kernels may keep theirs there since before the choice.
    #[serde(default)]
    pub others: Vec<PathBuf>,
}

impl Stores {
    /// A single store.
    #[must_use]
    pub fn only(store: impl Into<PathBuf>) -> Self {
        Self {
            store: store.into(),
            others: Vec::new(),
        }
    }

    /// All of them, in the order in which content is looked for.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.store).chain(&self.others)
    }

    /// The same for a kernel that keeps its content in another store, since before the choice.
    #[must_use]
    pub fn kept_in(&self, store: PathBuf) -> Self {
        let others = self.all().filter(|other| **other != store).cloned().collect();
        Self { store, others }
    }
}

/// The user's choice is no place: it depends on the folder in which a process runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE} is {}, which is no absolute path: it isn't used", path.display())]
pub struct RelativeError {
    pub path: PathBuf,
}

/// The user's own choice by the value of [`VARIABLE`], where an empty one counts as none.
///
/// # Errors
/// The choice isn't an absolute path. Every reader of the variable then goes on as without it, and tells it where a
/// person asks.
pub fn by_user(value: Option<impl Into<PathBuf>>) -> Result<Option<PathBuf>, RelativeError> {
    let path = value.map(Into::into).filter(|path| !path.as_os_str().is_empty());
    match path {
        Some(path) if !path.is_absolute() => Err(RelativeError { path }),
        path => Ok(path),
    }
}

/// The user's choice comes before the site's, and both before the home. `data` is the user's data folder
/// ([`crate::file::data_dir`]). `None` means that there is none of the three.
pub fn choose(
    user: Option<PathBuf>,
    site: Option<PathBuf>,
    data: Option<PathBuf>,
) -> Option<(Stores, Chosen)> {
    let mut all = [
        user.map(|path| (path, Chosen::ByUser)),
        site.map(|path| (path, Chosen::BySite)),
        data.map(|path| (path.join("store"), Chosen::ByDefault)),
    ]
    .into_iter()
    .flatten();
    let (store, chosen) = all.next()?;
    let others = all.map(|(path, _)| path).filter(|path| *path != store).collect();
    Some((Stores { store, others }, chosen))
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

/// Checks that the store is a private folder of the user's, and makes a missing one. Folders above it are made only
/// within the user's own: where a file system is not mounted, nothing is written beneath its mount point.
///
/// # Errors
/// The store can't be made, or other users could read or replace it.
pub fn prepare(store: &Path) -> Result<(), StoreError> {
    prepare_for(store, rustix::process::geteuid().as_raw())
}

fn prepare_for(store: &Path, uid: u32) -> Result<(), StoreError> {
    let found = match look(store)? {
        Some(found) => found,
        None => made(store, uid)?,
    };
    // Another user's link may lead elsewhere tomorrow.
    if found.is_symlink() && found.uid() == uid {
        check_above(store)?;
        let place = target(store)?;
        let found = std::fs::symlink_metadata(&place).map_err(io_error(&place))?;
        return check(&place, &found, uid);
    }
    check(store, &found, uid)
}

fn target(link: &Path) -> Result<PathBuf, StoreError> {
    std::fs::canonicalize(link).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing {
            path: std::fs::read_link(link).unwrap_or_else(|_| link.to_owned()),
        },
        _ => io_error(link)(error),
    })
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    |source| StoreError::Io { path, source }
}

fn check(store: &Path, found: &Metadata, uid: u32) -> Result<(), StoreError> {
    let path = || store.to_owned();
    let mode = found.mode() & 0o7777;
    if found.uid() != uid {
        return Err(StoreError::Foreign { path: path() });
    }
    if !found.is_dir() {
        return Err(StoreError::NotAFolder { path: path() });
    }
    if mode & 0o077 != 0 {
        return Err(StoreError::Open { path: path(), mode });
    }
    check_above(store)
}

/// The folder above may be reached by a link of the site's.
fn check_above(store: &Path) -> Result<(), StoreError> {
    let above = store.parent().unwrap_or(store).to_owned();
    let mode = std::fs::metadata(&above).map_err(io_error(&above))?.mode() & 0o7777;
    match mode & 0o1002 == 0o002 {
        true => Err(StoreError::Replaceable { path: above, mode }),
        false => Ok(()),
    }
}

/// Doesn't follow a link at the store's place.
fn look(path: &Path) -> Result<Option<Metadata>, StoreError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(io_error(path)),
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
    // Another kernel of the user's may be making it now.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(store)
        .map_err(io_error(store))?;
    std::fs::symlink_metadata(store).map_err(io_error(store))
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
            let (stores, chosen) = choose(user, site, path("/home/a/data")).unwrap();
            let all: Vec<_> = stores.all().map(|path| path.display().to_string()).collect();
            (chosen, all.join(" "))
        };
        let told = |chosen, all: &str| (chosen, all.to_owned());
        let home = "/home/a/data/store";
        assert_eq!(
            of(path("/mine"), path("/site")),
            told(Chosen::ByUser, &format!("/mine /site {home}"))
        );
        assert_eq!(
            of(None, path("/site")),
            told(Chosen::BySite, &format!("/site {home}"))
        );
        assert_eq!(of(path(home), None), told(Chosen::ByUser, home));
        assert_eq!(of(None, None), told(Chosen::ByDefault, home));
        assert_eq!(choose(None, None, None), None);
    }

    #[test]
    fn a_choice_that_depends_on_the_present_folder_is_none() {
        assert_eq!(by_user(Some("/mine")), Ok(Some("/mine".into())));
        assert_eq!(by_user(Some("")), Ok(None));
        assert_eq!(by_user(None::<PathBuf>), Ok(None));
        let told = by_user(Some("mine")).unwrap_err().to_string();
        assert_eq!(
            told,
            "GRESSHOPPER_STORE is mine, which is no absolute path: it isn't used"
        );
    }

    #[test]
    fn a_kernel_that_runs_keeps_its_store_and_reads_the_chosen_ones() {
        let chosen = Stores {
            store: "/site".into(),
            others: vec!["/home".into()],
        };
        let of = |store: &str| {
            let stores = chosen.kept_in(store.into());
            stores
                .all()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(of("/home"), ["/home", "/site"]);
        assert_eq!(of("/site"), ["/site", "/home"]);
        assert_eq!(of("/mine"), ["/mine", "/site", "/home"]);
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
        // The site's folder is there, also behind a link.
        let link = tmp.path().join("link");
        symlink(tmp.path(), &link).unwrap();
        made(&link.join("store"), rustix::process::geteuid().as_raw() + 1).unwrap();
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
        let file = tmp.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(prepare(&file), Err(StoreError::NotAFolder { .. })));
    }

    #[test]
    fn a_link_of_the_users_leads_to_a_store_and_another_users_does_not() {
        let tmp = tempfile::tempdir().unwrap();
        let (store, link) = (tmp.path().join("disk/store"), tmp.path().join("link"));
        symlink(&store, &link).unwrap();
        let error = prepare(&link).unwrap_err();
        assert!(error.to_string().contains("disk/store is missing"), "{error}");
        prepare(&store).unwrap();
        prepare(&link).unwrap();
        let own = std::fs::symlink_metadata(&link).unwrap().uid();
        assert!(matches!(
            prepare_for(&link, own + 1),
            Err(StoreError::Foreign { .. })
        ));
        with_mode(&store, 0o755);
        assert!(matches!(prepare(&link), Err(StoreError::Open { .. })));
        with_mode(&store, 0o700);
        for above in [tmp.path().to_owned(), tmp.path().join("disk")] {
            with_mode(&above, 0o777);
            assert!(matches!(prepare(&link), Err(StoreError::Replaceable { path, .. }) if path == above));
            with_mode(&above, 0o700);
        }
    }
}
