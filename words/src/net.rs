//! This host's address as others reach it, and the ports on which the host's programs listen.

use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, TcpListener, UdpSocket};

/// The first and the last port on which programs may listen, for firewalls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u16>")]
pub struct PortRange(pub u16, pub u16);

impl TryFrom<Vec<u16>> for PortRange {
    type Error = String;

    fn try_from(ports: Vec<u16>) -> Result<Self, String> {
        match ports[..] {
            [first, last] => Ok(Self(first, last)),
            _ => Err(format!(
                "a first and a last port are needed, not {} numbers",
                ports.len()
            )),
        }
    }
}

/// Listens on a free port of the range, or on any that is free.
///
/// # Errors
/// The operating system's; `AddrInUse` where the range has no free port.
pub fn listen(ip: IpAddr, range: Option<PortRange>) -> io::Result<TcpListener> {
    let Some(PortRange(first, last)) = range else {
        return TcpListener::bind((ip, 0));
    };
    // Programs that start together begin at different ports.
    let ports = usize::from(last.saturating_sub(first)) + 1;
    let begin = first.saturating_add(u16::try_from(std::process::id() as usize % ports).unwrap_or(0));
    let mut result = Err(io::ErrorKind::AddrInUse.into());
    for port in (begin..=last).chain(first..begin) {
        result = TcpListener::bind((ip, port));
        match &result {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            _ => break,
        }
    }
    result
}

/// Our address on the way to `peer` (`host:port`). Nothing is sent. `None` means that the host is unknown or
/// unreachable.
pub fn route_to(peer: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_free_port_of_the_range_is_taken_and_no_other() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        // Two ports beside each other that are free at present.
        let (first, second) = std::iter::repeat_with(|| {
            let first = TcpListener::bind((ip, 0)).ok()?;
            let port = first.local_addr().ok()?.port().checked_add(1)?;
            Some((first, TcpListener::bind((ip, port)).ok()?))
        })
        .take(100)
        .find_map(|pair| pair)
        .unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let range = Some(PortRange(port(&first), port(&second)));
        let none = listen(ip, range).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::AddrInUse);
        let free = port(&second);
        drop(second);
        assert_eq!(port(&listen(ip, range).unwrap()), free);
        assert_ne!(port(&listen(ip, None).unwrap()), 0);
    }
}
