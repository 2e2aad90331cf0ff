//! Folders and files for their owner alone, whatever the process's umask.
//!
//! A kernel writes to the user's store in the user's own process, where a cell may have set any umask. A folder or file made
//! under one that takes the owner's rights away is closed to the user's other kernels as well.

use rustix::fs::{Mode, OFlags};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const FOLDER: u32 = 0o700;
const FILE: u32 = 0o600;

/// Makes a folder, and those above it, if need be. An existing one of the caller's in which the caller may not write gets
/// its owner's rights, unless it lies above `top`.
///
/// # Errors
/// The file system's.
pub fn folder(top: &Path, path: &Path) -> io::Result<()> {
    match make(top, path) {
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            let above = path.parent().filter(|above| {
                e.kind() == io::ErrorKind::NotFound || (path != top && above.starts_with(top))
            });
            folder(top, above.ok_or(e)?)?;
            make(top, path)
        }
        other => other,
    }
}

fn make(top: &Path, path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(FOLDER).create(path) {
        Ok(()) => give(path, FOLDER, |_| FOLDER),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            if path.starts_with(top) {
                // Another's, or one that is a link, stays as it is: whoever writes there hears of it.
                let _ = give(path, FOLDER, |mode| mode | FOLDER);
            }
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// Gives a folder or file of the caller's other permissions, if its own lack some of the owner's. No link is followed, and
/// no entry changed that came into its place.
fn give(path: &Path, wanted: u32, mode: impl FnOnce(u32) -> u32) -> io::Result<()> {
    let held = File::from(rustix::fs::open(
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?);
    let found = held.metadata()?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw() && !found.is_symlink();
    if !is_ours || found.mode() & wanted == wanted {
        return Ok(());
    }
    let mode = Permissions::from_mode(mode(found.mode() & 0o7777));
    // A handle without rights to the content has no other way.
    std::fs::set_permissions(format!("/proc/self/fd/{}", held.as_raw_fd()), mode)
}

/// Opens a file with these options. A new one is its owner's alone, and open to the user's other processes under any
/// umask.
///
/// # Errors
/// The file system's.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.mode(FILE).open(path)?;
    if file.metadata()?.mode() & FILE != FILE {
        file.set_permissions(Permissions::from_mode(FILE))?;
    }
    Ok(file)
}

/// Gives a file of the caller's its owner's rights back.
///
/// # Errors
/// The file system's.
pub fn mend(path: &Path) -> io::Result<()> {
    give(path, FILE, |mode| mode | FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn folders_are_their_owners_under_any_umask() {
        let tmp = tempfile::tempdir().unwrap();
        let before = rustix::process::umask(Mode::from_raw_mode(0o777));
        let (top, path) = (tmp.path().join("a/b"), tmp.path().join("a/b/c/d"));
        let made = folder(&top, &path);
        rustix::process::umask(before);
        made.unwrap();
        assert_eq!(path.ancestors().take(4).map(mode).collect::<Vec<_>>(), [0o700; 4]);
    }

    #[test]
    fn a_closed_folder_is_mended_unless_it_is_above() {
        let tmp = tempfile::tempdir().unwrap();
        let (top, path) = (tmp.path().join("a/b"), tmp.path().join("a/b/c"));
        fs::create_dir_all(&path).unwrap();
        for closed in [&path, &top, &tmp.path().join("a")] {
            fs::set_permissions(closed, Permissions::from_mode(0o050)).unwrap();
        }
        let above = tmp.path().join("a");
        if rustix::process::geteuid().is_root() {
            folder(&top, &path).unwrap();
            folder(&top, &top).unwrap();
            assert_eq!([&path, &top, &above].map(|p| mode(p)), [0o750, 0o750, 0o050]);
        } else {
            assert!(folder(&top, &path).is_err());
        }
        fs::set_permissions(&above, Permissions::from_mode(0o700)).unwrap();
        folder(&top, &path.join("d")).unwrap();
    }

    #[test]
    fn a_link_stays_as_it_is() {
        let tmp = tempfile::tempdir().unwrap();
        let (link, file) = (tmp.path().join("link"), tmp.path().join("file"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        mend(&link).unwrap();
        assert_eq!(mode(&file), 0);
        mend(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
    }

    #[test]
    fn chunks_are_their_owners_under_any_umask() {
        let tmp = tempfile::tempdir().unwrap();
        let local = crate::local::Local::at(&tmp.path().join("chunks"));
        let content: Vec<u8> = (0..5 * crate::CHUNK_BYTES as u32 / 4)
            .flat_map(|i| i.wrapping_mul(0x9E37_79B9).to_le_bytes())
            .collect();
        let before = rustix::process::umask(Mode::from_raw_mode(0o777));
        let done = local.put_all(&content, None);
        rustix::process::umask(before);
        let ids = done.unwrap().0;
        for id in &ids {
            let path = local.file(*id).unwrap();
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        }
        // As a kernel of an earlier version left them; only another user than root is kept out.
        let path = local.file(ids[0]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o000)).unwrap();
        local.raw(ids[0]).unwrap();
        local.put(&content[..9]).unwrap();
    }
}
