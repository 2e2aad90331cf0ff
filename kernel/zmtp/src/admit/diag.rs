//! Owner of a single connection, from Linux by sock_diag(7), however many others exist.

use super::Owner;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::net::Ipv4Addr;

/// `SOCK_DIAG_BY_FAMILY`, and the answer's type (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` (linux/netlink.h).
const REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct inet_diag_req_v2` behind it.
const ASK: usize = HEADER + 56;
/// Where `idiag_state` lies in the answer.
const STATE: usize = HEADER + 1;
/// Offset of `idiag_uid` in the answer (`struct inet_diag_msg`); `idiag_inode` follows.
const UID: usize = HEADER + 64;

/// The socket that is bound to `from` and connected to `to`.
///
/// # Errors
/// There is none, or the kernel can't be asked.
pub(super) fn find(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> io::Result<Option<Owner>> {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
    rustix::net::send(&socket, &question(from, to), SendFlags::empty())?;
    let mut answer = [0; 512];
    // The answer is ready when the question has been taken.
    let (_, length) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    let said = &answer[..length.min(answer.len())];
    let word = |at: usize| Some(u32::from_ne_bytes(said.get(at..at + 4)?.try_into().ok()?));
    let kind = said.get(4..6).map(|k| [k[0], k[1]]);
    if kind != Some(BY_FAMILY.to_ne_bytes()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let words = word(UID).zip(word(UID + 4)).zip(said.get(STATE));
    Ok(words.map(|((uid, inode), &state)| Owner { uid, inode, state }))
}

fn question(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Vec<u8> {
    let mut ask = Vec::with_capacity(ASK);
    ask.extend((ASK as u32).to_ne_bytes());
    ask.extend(BY_FAMILY.to_ne_bytes());
    ask.extend(REQUEST.to_ne_bytes());
    // Sequence number and port: a question, an answer.
    ask.extend([0; 8]);
    ask.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    // In any state.
    ask.extend(u32::MAX.to_ne_bytes());
    ask.extend(from.1.to_be_bytes());
    ask.extend(to.1.to_be_bytes());
    for ip in [from.0, to.0] {
        ask.extend(ip.octets());
        ask.extend([0; 12]);
    }
    // Any interface, any cookie.
    ask.extend([0; 4]);
    ask.extend([0xff; 8]);
    ask
}
