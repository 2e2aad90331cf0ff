//! Greeting and READY of ZMTP 3.0 with the NULL mechanism. We announce 3.0; newer peers come down to it.

use crate::frame::{Decoder, FrameError, Item, encode_command};
use crate::stream::{ReadHalf, WriteHalf};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::io::IoSlice;

const GREETING: usize = 64;

/// Why a connection didn't come to be.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the connection broke during the handshake")]
    Io(#[from] io::Error),
    #[error("the peer doesn't speak ZMTP 3")]
    NotZmtp,
    #[error("the peer wants the security mechanism {0}, here is only NULL")]
    Mechanism(String),
    #[error("the peer's READY can't be read")]
    Ready,
    #[error("the peer's frames can't be read")]
    Frame(#[from] FrameError),
    #[error("a {peer} socket can't talk to a {ours} one")]
    SocketType { ours: &'static str, peer: String },
    #[error("the peer closed the connection during the handshake")]
    Closed,
    #[error("the peer said nothing for too long")]
    Timeout,
}

/// Facts on the peer after the handshake.
pub(crate) struct Ready {
    pub(crate) identity: Bytes,
    pub(crate) decoder: Decoder,
    /// Bytes that came after READY.
    pub(crate) rest: BytesMut,
}

/// Does our half of the handshake and reads the peer's. `ours` is our socket type, `accepts` the matching types of
/// peers.
pub(crate) async fn handshake(
    read: &mut ReadHalf,
    write: &WriteHalf,
    ours: &'static str,
    accepts: &[&str],
    identity: &[u8],
    max_frame: u64,
) -> Result<Ready, HandshakeError> {
    write_all(write, &hello(ours, identity)).await?;
    let mut buf = BytesMut::with_capacity(512);
    while buf.len() < GREETING {
        fill(read, &mut buf).await?;
    }
    check_greeting(&buf.split_to(GREETING))?;
    // The peer is still unknown: it may send little before READY.
    let mut decoder = Decoder::new(4096);
    loop {
        match decoder.next(&mut buf)? {
            None => fill(read, &mut buf).await?,
            Some(Item::Command { name, body }) if &name[..] == b"READY" => {
                let identity = check_ready(body, ours, accepts)?;
                let decoder = Decoder::new(max_frame);
                return Ok(Ready {
                    identity,
                    decoder,
                    rest: buf,
                });
            }
            Some(_) => return Err(HandshakeError::Ready),
        }
    }
}

async fn fill(read: &mut ReadHalf, buf: &mut BytesMut) -> Result<(), HandshakeError> {
    buf.reserve(512);
    match read.read_buf(buf).await? {
        0 => Err(HandshakeError::Closed),
        _ => Ok(()),
    }
}

async fn write_all(write: &WriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        write.writable().await?;
        match write.try_write_vectored(&[IoSlice::new(bytes)]) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Greeting and READY in one piece: NULL has no wait between them.
fn hello(ours: &str, identity: &[u8]) -> Vec<u8> {
    let mut out = vec![0u8; GREETING];
    out[0] = 0xff;
    out[9] = 0x7f;
    out[10] = 3;
    out[12..16].copy_from_slice(b"NULL");
    let mut ready = Vec::new();
    put_property(&mut ready, b"Socket-Type", ours.as_bytes());
    put_property(&mut ready, b"Identity", identity);
    out.extend_from_slice(&encode_command(b"READY", &ready));
    out
}

fn put_property(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}

fn check_greeting(greeting: &[u8]) -> Result<(), HandshakeError> {
    if greeting[0] != 0xff || greeting[9] & 1 != 1 || greeting[10] < 3 {
        return Err(HandshakeError::NotZmtp);
    }
    let mechanism = greeting[12..32].split(|b| *b == 0).next().unwrap_or(&[]);
    if mechanism != b"NULL" {
        return Err(HandshakeError::Mechanism(
            String::from_utf8_lossy(mechanism).into_owned(),
        ));
    }
    Ok(())
}

/// The peer's identity, if its socket type goes with ours.
fn check_ready(mut body: Bytes, ours: &'static str, accepts: &[&str]) -> Result<Bytes, HandshakeError> {
    let mut identity = Bytes::new();
    let mut socket_type = None;
    while !body.is_empty() {
        let (name, value) = take_property(&mut body).ok_or(HandshakeError::Ready)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            socket_type = Some(String::from_utf8_lossy(&value).into_owned());
        } else if name.eq_ignore_ascii_case(b"Identity") {
            identity = value;
        }
    }
    let peer = socket_type.ok_or(HandshakeError::Ready)?;
    if !accepts.contains(&peer.as_str()) {
        return Err(HandshakeError::SocketType { ours, peer });
    }
    if identity.len() > 255 {
        return Err(HandshakeError::Ready);
    }
    Ok(identity)
}

fn take_property(body: &mut Bytes) -> Option<(Bytes, Bytes)> {
    let name_size = usize::from(*body.first()?);
    if body.len() < 1 + name_size + 4 {
        return None;
    }
    body.advance(1);
    let name = body.split_to(name_size);
    let value_size = usize::try_from(body.get_u32()).ok()?;
    (body.len() >= value_size).then(|| (name, body.split_to(value_size)))
}
