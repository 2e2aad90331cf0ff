//! The store for the content of a kernel's variables: the user's, the site's, or the home's. A site's store that can't be
//! used is told before the kernel starts, and the kernel's home is not filled in its stead.

use crate::owner::Start;
use hop_api::config::Config;
use hop_api::identity::user_name;
use hop_protocol::content::{self, Chosen, StoreError, Stores};
use hop_protocol::file::{Durable, FrontFile, data_dir, kernel_dir};
use hop_words::deadline;
use hop_words::error::chain;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time for the site's store to answer. The kernel's owner takes the front for dead after 30 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// A kernel's stores, settled once: the configuration may change afterwards, and what it then names is unchecked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// `None` means a kernel without a log, a user without a home, or a kernel that runs with its own.
    pub(crate) stores: Option<Stores>,
    /// Sentences for the user.
    pub(crate) told: Vec<String>,
}

/// Chooses the stores of a kernel that starts, and has it start unsaved where its store can't be used. A kernel that
/// runs is saved as it began.
pub(crate) fn settle(start: &mut Start) -> Settled {
    if !start.launch.has_log() {
        return Settled::default();
    }
    if start.resume
        && let Some(file) = kernel_dir(&start.kernel).and_then(|dir| FrontFile::read(&dir).ok())
    {
        if file.state.is_some() {
            return Settled::default();
        }
        start.launch.durable = file.launch.durable;
        if !start.launch.has_log() {
            return Settled::default();
        }
    }
    let local = start.launch.local;
    let (user, relative) = match content::by_user(std::env::var_os(content::VARIABLE)) {
        Ok(user) => (user, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let mut told: Vec<String> = relative.into_iter().collect();
    let stores = usable(user, local).unwrap_or_else(|sentence| {
        start.launch.durable = Durable::No;
        told.push(sentence);
        None
    });
    Settled { stores, told }
}

/// The kernel's stores, or a sentence for the user of a kernel that can't be saved.
fn usable(user: Option<PathBuf>, local: bool) -> Result<Option<Stores>, String> {
    let site = known(of_site(local), user.is_some())?;
    let Some((stores, chosen)) = content::choose(user, site, data_dir()) else {
        return Ok(None);
    };
    match unusable(&stores.store, chosen, PATIENCE, content::prepare) {
        None => Ok(Some(stores)),
        Some(sentence) => Err(sentence),
    }
}

/// The site's store for this user. A kernel without Slurm is no kernel of the site's.
///
/// # Errors
/// Whether the site names a store, or which one is this user's, isn't known: for this reason.
fn of_site(local: bool) -> Result<Option<PathBuf>, String> {
    if local {
        return Ok(None);
    }
    let config = Config::load().map_err(|error| chain(&error))?;
    // Most sites name no store, and a user's name may be far away.
    if config.seat.store.is_none() {
        return Ok(None);
    }
    let uid = rustix::process::geteuid().as_raw();
    let user = user_name(uid).map_err(|error| chain(&error))?;
    let user = user.ok_or_else(|| format!("this host knows no user with uid {uid}"))?;
    Ok(config.seat.store_of(&user))
}

/// The site's store, or a sentence for a user whose kernel would be saved elsewhere, as if the site named none. A kernel
/// whose user has chosen a store runs without what lies in the site's.
fn known(site: Result<Option<PathBuf>, String>, is_chosen: bool) -> Result<Option<PathBuf>, String> {
    match site {
        Err(_) if is_chosen => Ok(None),
        known => known.map_err(|why| unsaved(&why, "a place that isn't known now")),
    }
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
    Some(unsaved(&chain(&error), &store.display().to_string()))
}

fn unsaved(why: &str, place: &str) -> String {
    format!(
        "this kernel is not saved, and no saved kernel of this notebook is brought back: {why}; your site keeps variables \
         in {place}. Ask the operators, then shut this kernel down and open the notebook again: saved kernels are kept"
    )
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
    fn a_site_that_can_not_be_asked_for_its_store_is_not_taken_for_one_without() {
        let site = || Ok(Some(PathBuf::from("/site")));
        let silent = || Err("this host's user database does not answer".to_owned());
        assert_eq!(known(site(), false), site());
        assert_eq!(known(Ok(None), false), Ok(None));
        let said = known(silent(), false).unwrap_err();
        assert!(
            said.starts_with("this kernel is not saved") && said.contains("does not answer; your site"),
            "{said}"
        );
        assert_eq!(known(silent(), true), Ok(None));
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
