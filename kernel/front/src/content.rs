//! The store for the content of a kernel's variables: the user's, the site's, or the home's. A site's store that can't be
//! used is told before the kernel starts, and the kernel's home is not filled in its stead.

use crate::owner::Start;
use hop_api::config::Config;
use hop_api::identity::user_name;
use hop_protocol::content::{self, Chosen, StoreError};
use hop_protocol::file::{Durable, FrontFile, kernel_dir};
use hop_words::deadline;
use hop_words::error::chain;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time for the site's store to answer. The kernel's owner takes the front for dead after 30 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// The store of kernels that start now. `None` means that the user has no home.
pub(crate) fn place(local: bool) -> Option<PathBuf> {
    content::stores(of_site(local)).map(|stores| stores.store)
}

/// The site's store for this user. A kernel without Slurm is no kernel of the site's.
fn of_site(local: bool) -> Option<PathBuf> {
    let config = (!local).then(Config::load)?.ok()?;
    // Most sites name no store, and a user's name may be far away.
    config.seat.store.as_ref()?;
    let user = user_name(rustix::process::geteuid().as_raw())?;
    config.seat.store_of(&user)
}

/// Has a kernel whose store can't be used start unsaved, and returns the sentence for its user. A kernel that runs is
/// saved as it began.
pub(crate) fn settle(start: &mut Start) -> Option<String> {
    if !start.launch.has_log() {
        return None;
    }
    if start.resume
        && let Some(file) = kernel_dir(&start.kernel).and_then(|dir| FrontFile::read(&dir).ok())
    {
        if file.state.is_none() {
            start.launch.durable = file.launch.durable;
        }
        return None;
    }
    let stores = content::stores(of_site(start.launch.local))?;
    let sentence = unusable(&stores.store, stores.chosen, PATIENCE, content::prepare)?;
    start.launch.durable = Durable::No;
    Some(sentence)
}

/// Sentence for a user whose kernel can't be saved in the site's store. The kernel itself says what is wrong with
/// another store, and is saved once that is mended.
fn unusable(
    store: &Path,
    chosen: Chosen,
    patience: Duration,
    prepare: impl FnOnce(&Path) -> Result<(), StoreError> + Send + 'static,
) -> Option<String> {
    if chosen != Chosen::BySite {
        return None;
    }
    let path = store.to_owned();
    let error = deadline::within(patience, move || prepare(&path))
        .unwrap_or_else(|| {
            Err(StoreError::Hangs {
                path: store.to_owned(),
            })
        })
        .err()?;
    Some(format!(
        "this kernel is not saved, and no saved kernel of this notebook is brought back: {}; your site keeps variables \
         in {}. Ask the operators, then shut this kernel down and open the notebook again: saved kernels are kept",
        chain(&error),
        store.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_store_of_the_sites_that_others_can_read_is_told_and_the_users_own_is_the_kernels_affair() {
        let tmp = tempfile::tempdir().unwrap();
        let store = tmp.path().join("store");
        let unusable = |store: &Path, chosen| unusable(store, chosen, PATIENCE, content::prepare);
        assert_eq!(unusable(&store, Chosen::BySite), None);
        std::fs::set_permissions(&store, Permissions::from_mode(0o777)).unwrap();
        let said = unusable(&store, Chosen::BySite).unwrap();
        assert!(said.starts_with("this kernel is not saved"), "{said}");
        assert!(said.contains(&format!("chmod 700 {}", store.display())), "{said}");
        for chosen in [Chosen::ByUser, Chosen::ByDefault] {
            assert_eq!(unusable(&store, chosen), None);
        }
    }

    #[test]
    fn a_store_of_the_sites_that_hangs_holds_no_kernel_up() {
        let (store, asked) = (Path::new("/scratch/alice"), std::time::Instant::now());
        // An answer that comes after the test is over comes too late.
        let hangs = |_: &Path| {
            std::thread::sleep(Duration::from_secs(20));
            Ok(())
        };
        let said = unusable(store, Chosen::BySite, Duration::from_millis(50), hangs).unwrap();
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        assert!(said.contains("this kernel is not saved"), "{said}");
        assert!(
            said.contains("/scratch/alice doesn't answer; your site keeps"),
            "{said}"
        );
    }
}
