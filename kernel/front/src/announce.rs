//! The front's address for its replicas, and the keys for mutual proof: all of `front.json` but the replica itself,
//! which [`crate::launch`] adds.

use crate::owner::Start;
use anyhow::{Context, Result};
use hop_api::config::Config;
use hop_protocol::file::{FileError, FrontFile};
use hop_protocol::message::VERSION;
use hop_protocol::tls::KernelKeys;
use hop_words::error::chain;
use hop_words::net::{listen, route_to};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Pause between two tries to write.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Listens for replicas. A front in takeover keeps the kernel's keys, incarnation and state, and has a later epoch than
/// the front before.
pub(crate) fn announce(start: &mut Start, dir: &Path) -> Result<(FrontFile, tokio::net::TcpListener)> {
    let ip = if start.launch.local {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    let before = match start.resume {
        true => Some(FrontFile::read(dir).context("can't take over: the front before left no keys")?),
        false => None,
    };
    // Without a configuration the kernel still starts, wherever Slurm has room.
    let range = Config::load().ok().and_then(|config| config.port_range);
    let anywhere = || listen(ip.into(), range.filter(|_| !start.launch.local));
    // At the port before, the replica finds this front though its file can't be written.
    let again = before.as_ref().and_then(port_of);
    let again = again.and_then(|port| TcpListener::bind((ip, port)).ok());
    let listener = again.map_or_else(anywhere, Ok).and_then(|listener| {
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener)
    });
    let listener = listener.context("can't listen for the replica")?;
    let port = listener.local_addr()?.port();
    let takeover = before.as_ref().and_then(|f| f.takeover.clone());
    // A Jupyter server counts its kernel's fronts from 1, even if the kernel also ran under an earlier server.
    start.epoch = start.epoch.max(before.as_ref().map_or(0, |f| f.epoch + 1));
    // The kernel's processes have the key for as long as there are any.
    let signing_key = before.as_ref().map_or(&start.key, |f| &f.signing_key).clone();
    let file = FrontFile {
        version: VERSION,
        kernel: start.kernel.clone(),
        incarnation: before.as_ref().map_or(start.incarnation, |f| f.incarnation),
        epoch: start.epoch,
        state: before.as_ref().and_then(|f| f.state.clone()),
        addresses: addresses(start.launch.local)
            .into_iter()
            .map(|host| format!("{host}:{port}"))
            .collect(),
        keys: match before {
            Some(file) => file.keys,
            None => KernelKeys::generate()?,
        },
        signing_key,
        launch: start.launch.clone(),
        takeover,
    };
    Ok((file, listener))
}

/// The port at which replicas have found the front before.
fn port_of(before: &FrontFile) -> Option<u16> {
    let (_, port) = before.addresses.first()?.rsplit_once(':')?;
    port.parse().ok()
}

/// Held by a thread that writes `front.json`: the file is read, changed and written as a whole.
static WRITES: Mutex<()> = Mutex::new(());

/// Waits for the right to write `front.json`. The caller's thread is one that may wait for the home.
pub(crate) fn writes() -> MutexGuard<'static, ()> {
    WRITES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes the file. The caller's thread is one that may wait for the home.
pub(crate) fn change(dir: &Path, change: impl FnOnce(&mut FrontFile)) -> Result<(), FileError> {
    let _writes = writes();
    let mut file = FrontFile::read(dir)?;
    change(&mut file);
    file.write(dir)
}

/// Writes down where replicas find a front in takeover. In a home without room this is tried again for as long as it
/// takes: the kernel's replica waits for the front.
pub(crate) fn write(file: FrontFile, dir: PathBuf) {
    let Err(error) = file.write(&dir) else {
        return;
    };
    let error = chain(&error);
    tracing::warn!(error, "the kernel's folder can't be written, and is tried again");
    tokio::spawn(async move {
        loop {
            sleep(TRY_AGAIN).await;
            let (file, dir) = (file.clone(), dir.clone());
            // A panic has been reported.
            if spawn_blocking(move || is_written(&file, &dir))
                .await
                .unwrap_or(true)
            {
                return;
            }
        }
    });
}

/// Tries again to write the file. Returns whether nothing is left to write.
fn is_written(file: &FrontFile, dir: &Path) -> bool {
    let _writes = writes();
    // The start of a replica writes the same file.
    let written = FrontFile::read(dir).is_ok_and(|there| there.epoch >= file.epoch);
    written || !FrontFile::is_in(dir) || file.write(dir).is_ok()
}

/// Names of this host for compute nodes, the likeliest first. A wrong name costs a replica a try: the listener under
/// that name doesn't have the kernel's key.
fn addresses(local: bool) -> Vec<String> {
    let mut hosts = Vec::new();
    if let Ok(host) = std::env::var("GRESSHOPPER_FRONT_HOST") {
        hosts.push(host);
    }
    if !local {
        let hopd = Config::load().ok().and_then(|c| c.hopd.connect.first().cloned());
        hosts.extend(hopd.and_then(|hopd| route_to(&hopd)).map(|ip| ip.to_string()));
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        hosts.push(name);
    }
    hosts.push(Ipv4Addr::LOCALHOST.to_string());
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(key: &str, resume: bool) -> Start {
        let launch = serde_json::json!({"argv": ["python"], "cwd": null, "local": true});
        let order = serde_json::json!({
            "version": crate::owner::VERSION, "kernel": "k", "incarnation": 1, "epoch": 1, "resume": resume, "key": key,
            "launch": launch,
        });
        serde_json::from_value(order).unwrap()
    }

    /// The replica reads the file of the front before, and finds the next one all the same.
    #[tokio::test]
    async fn the_next_front_listens_where_the_one_before_did() {
        let dir = tempfile::tempdir().unwrap();
        let (file, listener) = announce(&mut order("first", false), dir.path()).unwrap();
        file.write(dir.path()).unwrap();
        let (next, _beside) = announce(&mut order("second", true), dir.path()).unwrap();
        assert_ne!(next.addresses, file.addresses, "the port is in use");
        drop((listener, _beside));
        let (next, _) = announce(&mut order("second", true), dir.path()).unwrap();
        assert_eq!(next.addresses, file.addresses);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_can_not_be_written_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let (before, _) = announce(&mut order("first", false), dir.path()).unwrap();
        before.write(dir.path()).unwrap();
        let (file, _) = announce(&mut order("second", true), dir.path()).unwrap();
        let path = dir.path().join("front.json");
        std::fs::remove_file(&path).unwrap();
        // No file takes the place of a folder.
        std::fs::create_dir(&path).unwrap();
        write(file.clone(), dir.path().to_owned());
        sleep(Duration::from_secs(600)).await;
        assert!(path.is_dir());
        std::fs::remove_dir(&path).unwrap();
        before.write(dir.path()).unwrap();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(FrontFile::read(dir.path()).unwrap().epoch, file.epoch);
    }

    #[tokio::test]
    async fn the_front_of_another_owner_comes_after_the_one_before_and_keeps_the_kernels_key() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = order("first", false);
        let (file, _) = announce(&mut first, dir.path()).unwrap();
        file.write(dir.path()).unwrap();
        for epoch in [2, 3] {
            let mut next = order("second", true);
            let (file, _) = announce(&mut next, dir.path()).unwrap();
            write(file.clone(), dir.path().to_owned());
            assert_eq!((file.epoch, next.epoch), (epoch, epoch));
            assert_eq!((&*file.signing_key, &*next.key), ("first", "second"));
        }
    }
}
