//! Who may connect. On a node that many share, a listening socket is open to all of them; Jupyter's signatures protect
//! requests, but not what iopub publishes to whoever subscribes.

use crate::stream::Stream;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

mod diag;

/// Whose connections are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Peers of our own uid, or of root. On TCP only connections over loopback reveal their uid; others are refused.
    SameUser,
    Anyone,
}

impl Admit {
    pub(crate) fn check(self, stream: &Stream) -> io::Result<()> {
        if self == Self::Anyone {
            return Ok(());
        }
        let uid = match stream {
            Stream::Unix(s) => s.peer_cred()?.uid(),
            Stream::Tcp(s) => loopback_owner(s.peer_addr()?, s.local_addr()?)?,
        };
        if uid == rustix::process::getuid().as_raw() || uid == 0 {
            return Ok(());
        }
        let text = format!("uid {uid} connected to a socket of another user");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

/// The uid of the process at the other end of a loopback connection, from the kernel's table of sockets.
fn loopback_owner(peer: SocketAddr, local: SocketAddr) -> io::Result<u32> {
    let denied = |text: &str| io::Error::new(io::ErrorKind::PermissionDenied, text.to_owned());
    let (IpAddr::V4(peer_ip), IpAddr::V4(local_ip)) = (peer.ip(), local.ip()) else {
        return Err(denied(
            "only IPv4 connections over loopback can be attributed to a user",
        ));
    };
    if !peer_ip.is_loopback() && peer_ip != local_ip {
        return Err(denied("the connection comes from another host"));
    }
    let (peer, local) = ((peer_ip, peer.port()), (local_ip, local.port()));
    let found = match diag::find(peer, local) {
        Ok(found) => {
            let _ = ASKED.set(());
            found
        }
        // Without sock_diag Linux tells no more about an ended connection.
        Err(_) if ASKED.get().is_none() => {
            find_owner(&std::fs::read_to_string("/proc/net/tcp")?, peer, local)
        }
        Err(_) => None,
    };
    let owner = found.filter(|owner| owner.is_there());
    owner
        .map(|owner| owner.uid)
        .ok_or_else(|| denied("the connection's other end is gone"))
}

/// The kernel has answered a question about one connection. From then on the table of all is not read: a read takes
/// milliseconds with many entries, and knocking strangers would hold up the owner.
static ASKED: OnceLock<()> = OnceLock::new();

/// Whose a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    uid: u32,
    inode: u32,
    /// As in linux/tcp_states.h.
    state: u8,
}

impl Owner {
    /// Whether a process has the connection, or is about to accept it. A closed connection has no inode, isn't
    /// established, and is listed with root's uid.
    fn is_there(self) -> bool {
        const ESTABLISHED: u8 = 1;
        self.inode != 0 || self.state == ESTABLISHED
    }
}

/// The socket bound to `from` and connected to `to` in a `/proc/net/tcp` table.
fn find_owner(table: &str, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Option<Owner> {
    let (from, to) = (hex(from), hex(to));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (a, b) = (fields.nth(1)?, fields.next()?);
        if a != from || b != to {
            return None;
        }
        Some(Owner {
            state: u8::from_str_radix(fields.next()?, 16).ok()?,
            uid: fields.nth(3)?.parse().ok()?,
            inode: fields.nth(1)?.parse().ok()?,
        })
    })
}

/// An address as `/proc/net/tcp` writes it: the IP as a number of the machine's byte order.
fn hex((ip, port): (Ipv4Addr, u16)) -> String {
    format!("{:08X}:{port:04X}", u32::from_ne_bytes(ip.octets()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_live_loopback_connection_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let uid = loopback_owner(server.peer_addr().unwrap(), server.local_addr().unwrap()).unwrap();
        assert_eq!(uid, rustix::process::getuid().as_raw());
        // A thousand knocks must not read the table of all connections a thousand times.
        assert!(ASKED.get().is_some(), "the kernel wasn't asked");
        let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        drop(client);
        // A closed connection stays in Linux's table with root's uid.
        loopback_owner(peer, local).unwrap_err();
    }

    #[test]
    fn the_kernel_tells_of_one_connection_what_the_table_says() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let at = |a: SocketAddr| (Ipv4Addr::LOCALHOST, a.port());
        let (from, to) = (at(client.local_addr().unwrap()), at(client.peer_addr().unwrap()));
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let owner = find_owner(&table, from, to);
        assert!(owner.is_some_and(|o| o.inode != 0));
        assert_eq!(diag::find(from, to).unwrap(), owner);
        assert!(diag::find((from.0, 1), to).is_err());
    }

    #[test]
    fn the_uid_column_is_read_from_the_socket_that_connects_here() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     7        0 1 1\n\
             1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 2 1\n";
        let ip = Ipv4Addr::LOCALHOST;
        let owner = Owner {
            uid: 1001,
            inode: 2,
            state: 1,
        };
        assert_eq!(find_owner(table, (ip, 50000), (ip, 8080)), Some(owner));
        assert_eq!(find_owner(table, (ip, 50001), (ip, 8080)), None);
    }
}
