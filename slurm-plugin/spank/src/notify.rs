//! Messages to the agent: a line over the agent's Unix socket, after a check that the service account listens.

use hop_handover::record::Agent;
use hop_handover::token::Confirmation;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// An agent silent for this time is as good as dead; the lease's holder will find out.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends `line` to the agent.
///
/// # Errors
/// No agent exists, the listener isn't the service account's, or the listener doesn't read.
pub(crate) fn send(agent: &Agent, line: &Confirmation) -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    connect(&socket, &SocketAddrUnix::new(&agent.socket)?)?;
    let peer = socket_peercred(&socket)?.uid.as_raw();
    if peer != agent.uid {
        return Err(io::Error::other(format!(
            "uid {peer} listens there, not the service account"
        )));
    }
    UnixStream::from(socket).write_all(&line.to_line())
}
