//! The seat's batch step: it holds the job while replicas sit in it, and lets it end when none has for a while.
//!
//! Replicas keep a connection to an abstract socket that is named by the job, so that nothing lies on disk; who connects
//! is asked of the kernel.

use anyhow::{Context, Result};
use hop_api::client::{self, Item};
use hop_api::config::Config;
use hop_api::message::{Request, Role};
use hop_core::id::{JobId, NodeName};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a seat stays without a replica.
const EMPTY: Duration = Duration::from_secs(60);

/// How long a seat may take from its start to listening.
const LISTENS_WITHIN: Duration = Duration::from_secs(15);

/// Clusters for development may share a host and count their jobs alike, so the node is named, too: slurmd does so to
/// each step.
fn address(job: JobId) -> std::io::Result<SocketAddr> {
    let node = std::env::var("SLURMD_NODENAME").unwrap_or_default();
    SocketAddr::from_abstract_name(format!("gresshopper-seat-{node}-{job}"))
}

fn same_user(stream: &UnixStream) -> bool {
    stream
        .peer_cred()
        .is_ok_and(|c| c.uid() == rustix::process::getuid().as_raw())
}

/// Runs the seat until nobody has sat in it for a minute.
pub async fn run(config: Option<&Config>, job: JobId, node: NodeName, mem_mib: u64, cpus: u16) -> Result<()> {
    let listener = StdListener::bind_addr(&address(job)?)
        .context("the seat is taken: another process listens for it")?;
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let up = Request::SeatUp {
        job,
        node,
        mem_mib,
        cpus,
    };
    if let Some(config) = config {
        announce(config, up);
    }
    let (count, mut sitting) = watch::channel(0usize);
    let mut left = Instant::now();
    loop {
        let empty = *sitting.borrow_and_update() == 0;
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if same_user(&stream) => {
                    count.send_modify(|n| *n += 1);
                    tokio::spawn(sit(stream, count.clone()));
                }
                // Somebody else's: whoever knocks without end is not to keep the user's own replicas out.
                Ok(_) => {}
                // Out of descriptors: that doesn't end the seat.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            // Not from the last knock on: those of strangers would keep the job for ever.
            () = tokio::time::sleep_until(left + EMPTY), if empty => return Ok(()),
            _ = sitting.changed() => left = Instant::now(),
        }
    }
}

async fn sit(mut stream: UnixStream, count: watch::Sender<usize>) {
    let mut buf = [0u8; 64];
    while stream.read(&mut buf).await.is_ok_and(|n| n > 0) {}
    count.send_modify(|n| *n -= 1);
}

/// Tells `hopd` of the seat, again after every reconnection. A seat without `hopd` is still one.
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
            if matches!(item, Item::Connected(_)) && client.send(up.clone()).await.is_err() {
                return;
            }
        }
    });
}

/// Takes a place in a seat: it is held as long as the connection. A seat that has just begun gets a moment to listen.
pub async fn take_place(job: JobId) -> Result<UnixStream> {
    let since = Instant::now();
    let stream = loop {
        match StdStream::connect_addr(&address(job)?) {
            Ok(stream) => break stream,
            Err(_) if since.elapsed() < LISTENS_WITHIN => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => return Err(error).context("this seat has no hop-replica seat in it"),
        }
    };
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    anyhow::ensure!(same_user(&stream), "another user listens for this seat");
    Ok(stream)
}
