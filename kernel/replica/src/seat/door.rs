//! Commands of the user's from other nodes, led to the door of the kernel's process on this node.

use hop_door::{Doors, folders};
use hop_keeper::visit::Visitor;
use hop_words::error::chain;
use hop_words::id::KernelId;
use std::io;
use std::time::Duration;
use tokio::net::UnixStream;

/// Most time for a process to say its purpose.
const HELLO: Duration = Duration::from_secs(5);

/// Leads a command to the process that runs the kernel's cells here. Without such a process, the command sees a
/// hang-up.
pub(super) async fn lead(visitor: Visitor) {
    let kernel = visitor.kernel.clone();
    let found = tokio::task::spawn_blocking(move || find(&kernel)).await;
    let led = match found.map_err(io::Error::other).flatten() {
        Ok(door) => visitor.lead_to(door).await,
        Err(error) => Err(error),
    };
    if let Err(error) = led {
        tracing::debug!(error = chain(&error), "a command has left");
    }
}

fn find(kernel: &KernelId) -> io::Result<UnixStream> {
    let uid = rustix::process::geteuid().as_raw();
    let dirs = folders::of(uid);
    let executor = Doors::open(uid, &dirs, HELLO).executor(kernel.as_str());
    let pid = executor.ok_or(io::ErrorKind::NotFound)?;
    let door = hop_door::client::connect(pid, uid, &dirs).map_err(io::Error::other)?;
    door.set_nonblocking(true)?;
    UnixStream::from_std(door)
}
