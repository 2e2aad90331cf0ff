//! This host's address as others reach it.

use std::net::{IpAddr, UdpSocket};

/// Our address on the way to `peer` (`host:port`). Nothing is sent. `None` means that the host is unknown or
/// unreachable.
pub fn route_to(peer: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
