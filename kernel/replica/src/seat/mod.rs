//! The seat's batch step: holds the job while replicas sit there, and lets the job end after a while without any. It
//! also keeps the logs of the user's kernels with three replicas ([`host`]).
//!
//! Replicas keep a connection to an abstract socket, so that no file is left on disk; Linux names the connecting user.
//! The socket's name comes from a key in the user's home, so other users can't foretell and take it.

mod door;
mod former;
mod host;
mod hot;
mod lag;
mod leftovers;
mod log_folder;
mod propose;
mod spares;
mod tend;
mod visits;
pub(crate) mod wire;

use crate::leases::AGAIN;
use anyhow::{Context, Result};
use hop_api::client::{self, Item};
use hop_api::config::Config;
use hop_api::message::{Request, Role};
use hop_protocol::file::make_private;
use hop_protocol::wait;
use hop_words::error::chain;
use hop_words::id::{JobId, NodeName};
use hop_words::net::route_to;
use host::{Busy, Host};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

/// This seat.
#[derive(Debug, Clone)]
struct Seat {
    pub job: JobId,
    pub node: NodeName,
    /// `hop-replica` on this node.
    pub program: PathBuf,
    /// Spare interpreters that are kept at most.
    pub spares: u32,
}

/// How long a seat stays without a replica.
const EMPTY: Duration = Duration::from_secs(60);

/// Between two starts of a process that a seat keeps beforehand.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The pause before the next start, after `failed` failures and this one: the first pause, and twice as long each time.
fn pause(first: Duration, failed: u32) -> Duration {
    (first * 2u32.pow(failed.min(8))).min(LONGEST_PAUSE)
}

/// Asks the srun of a step to end. srun passes the signal on to the step.
fn terminate(srun: &Child) {
    if let Some(pid) = srun.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // An error means that srun has ended.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Time for which an ending seat waits until the replicas have left. Slurm's own patience (`KillWait`) is 30 s by
/// default.
const FAREWELL: Duration = Duration::from_secs(25);

/// How long a seat may take from its start to listening.
const LISTENS_WITHIN: Duration = Duration::from_secs(15);

/// The names under which a seat may listen, the best first. The seat takes the first free name, a replica tries them
/// all. Without a home for the key, the only name is known to everybody.
fn names(job: JobId) -> Vec<String> {
    // Clusters for development may share a host and count their jobs alike, so the node is named, too: slurmd does so
    // to each step.
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_default();
    let known = format!("gresshopper-seat-{node}-{job}");
    let key = std::env::var_os("HOME").map(|home| key(&Path::new(&home).join(".local/share/gresshopper")));
    match key {
        Some(Ok(key)) => vec![secret(&key, &known), known],
        Some(Err(error)) => {
            tracing::warn!(%error, "the key of the user's seats can't be kept in their home");
            vec![known]
        }
        None => vec![known],
    }
}

fn secret(key: &[u8; 32], known: &str) -> String {
    let hash = blake3::keyed_hash(key, known.as_bytes()).to_hex();
    // Half of the hash is plenty; an abstract name has 107 bytes.
    format!("gresshopper-seat-{}", &hash[..32])
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// The key of all of this user's seats, made by the first process in need of a key.
fn key(dir: &Path) -> io::Result<[u8; 32]> {
    let path = dir.join("seat-key");
    let read = || {
        let bytes = std::fs::read(&path)?;
        <[u8; 32]>::try_from(bytes).map_err(|_| io::Error::other(format!("{} is damaged", path.display())))
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    make_private(dir)?;
    let id = Uuid::new_v4();
    let new = dir.join(format!(".seat-key.{}", id.simple()));
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let linked = file
        .write_all(&[*Uuid::new_v4().as_bytes(), *Uuid::new_v4().as_bytes()].concat())
        .and_then(|()| file.sync_all())
        // Only one process makes the link: the others find that process's key.
        .and_then(|()| std::fs::hard_link(&new, &path));
    std::fs::remove_file(&new)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => read(),
    }
}

fn same_user(stream: &UnixStream) -> bool {
    stream
        .peer_cred()
        .is_ok_and(|c| c.uid() == rustix::process::getuid().as_raw())
}

/// Runs the seat until nobody has sat in it for a minute.
pub async fn run(config: Option<&Config>, job: JobId, node: NodeName, mem_mib: u64, cpus: u16) -> Result<()> {
    let names = names(job);
    let name = names.first().context("a seat has a name")?;
    let listener = StdListener::bind_addr(&address(name)?)
        .context("the seat is taken: another process listens for it")?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let seat_node = node.clone();
    let up = Request::SeatUp {
        job,
        node,
        mem_mib,
        cpus,
    };
    if let Some(config) = config {
        announce(config, up);
    }
    // The folder goes at the end of this function, whatever tasks still run.
    let (groups, _log) = host(config, job, &seat_node).await.unzip();
    let (count, sitting) = watch::channel(Busy::default());
    let mut busy = groups.as_ref().map_or(sitting, |host| host.busy());
    let mut terminate = signal(SignalKind::terminate())?;
    let (mut left, mut ends) = (Instant::now(), None);
    loop {
        let now = *busy.borrow_and_update();
        let empty = now == Busy::default();
        if ends.is_some() && now.replicas == 0 {
            return Ok(());
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if same_user(&stream) => match &groups {
                    Some(host) => drop(tokio::spawn(Arc::clone(host).serve(stream))),
                    None => {
                        count.send_modify(|busy| busy.replicas += 1);
                        tokio::spawn(sit(stream, count.clone()));
                    }
                },
                // Somebody else's: whoever knocks without end is not to keep the user's own replicas out.
                Ok(_) => {}
                // Out of descriptors: the seat goes on.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            // Not from the last knock on: those of strangers would keep the job for ever.
            () = sleep_until(left + EMPTY), if empty => return Ok(()),
            // The replicas here hand their kernels over, and need this seat's part of the logs for the handover.
            _ = terminate.recv() => ends = Some(Instant::now() + FAREWELL),
            () = wait::at(ends) => return Ok(()),
            _ = busy.changed() => left = Instant::now(),
        }
    }
}

/// The keeper of this seat. `None` means that kernels with a replica here stay with a single replica.
async fn host(config: Option<&Config>, job: JobId, node: &NodeName) -> Option<(Arc<Host>, TempDir)> {
    let config = config?;
    let listen = config.hopd.connect.iter().find_map(|hopd| route_to(hopd))?;
    let seat = Seat {
        job,
        node: node.clone(),
        program: std::env::current_exe().ok()?,
        spares: config.seat.spares,
    };
    let (host, mut events, log) = match Host::start(seat, listen, config).await {
        Ok(started) => started,
        Err(error) => {
            tracing::warn!(error = chain(&error), "this seat keeps no logs of kernels");
            return None;
        }
    };
    let hosts = Arc::clone(&host);
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            hosts.handle(event).await;
        }
    });
    Some((host, log))
}

async fn sit(mut stream: UnixStream, count: watch::Sender<Busy>) {
    let mut buf = [0u8; 64];
    while stream.read(&mut buf).await.is_ok_and(|n| n > 0) {}
    count.send_modify(|busy| busy.replicas -= 1);
}

/// Tells `hopd` of the seat, again after every reconnection and refusal. A seat without `hopd` is still one.
fn announce(config: &Config, up: Request) {
    let options = match client::Options::from_config(config, Role::Seat) {
        Ok(options) => options,
        Err(error) => {
            tracing::warn!(%error, "hopd is not told of this seat");
            return;
        }
    };
    tokio::spawn(async move {
        let (client, mut items) = client::start(options);
        while let Some(item) = items.next().await {
            match item {
                Item::Connected(_) => {}
                Item::Refused { .. } => tokio::time::sleep(AGAIN).await,
                _ => continue,
            }
            // An error means that the connection is gone: the next connection repeats the words.
            let _ = client.send(up.clone()).await;
        }
    });
}

/// Takes a place in a seat: it is held as long as the connection. A seat that has just begun gets a moment to listen.
pub async fn take_place(job: JobId) -> Result<UnixStream> {
    let since = Instant::now();
    let names = names(job);
    loop {
        let mut trouble = None;
        for name in &names {
            match sit_down(name) {
                Ok(stream) => return Ok(stream),
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        if since.elapsed() >= LISTENS_WITHIN {
            let trouble = trouble.unwrap_or_else(|| io::ErrorKind::NotFound.into());
            return Err(trouble).context("this seat has no hop-replica seat in it");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn sit_down(name: &str) -> io::Result<UnixStream> {
    let stream = StdStream::connect_addr(&address(name)?)?;
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    if same_user(&stream) {
        Ok(stream)
    } else {
        Err(io::Error::other("another user listens for this seat"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_key_is_made_once_and_is_the_users_alone() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("gresshopper");
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| key(&dir).unwrap())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(made.iter().all(|k| *k == made[0] && *k != [0; 32]), "{made:?}");
        let left: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["seat-key"]);
        let mode = std::fs::metadata(dir.join("seat-key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(secret(&made[0], "seat-1"), secret(&made[0], "seat-2"));
        assert!(address(&secret(&made[0], &"long".repeat(50))).is_ok());
        std::fs::write(dir.join("seat-key"), "short").unwrap();
        assert!(key(&dir).is_err());
    }
}
