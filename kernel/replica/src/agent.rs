//! The channel to the agent inside the kernel: `docs/agent-wire.md`. A pair of connected sockets, one end inherited by
//! the kernel.

use bytes::BytesMut;
use hop_door::wire::{Decoded, decode, encode};
pub use hop_door::wire::{Parcel, VERSION};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Where the kernel finds the descriptor's number.
pub const FD_VARIABLE: &str = "GRESSHOPPER_AGENT_FD";

/// Our end. Dropping it closes the channel.
#[derive(Debug)]
pub struct Agent {
    pub out: mpsc::UnboundedSender<Parcel>,
    pub input: mpsc::Receiver<Parcel>,
}

/// Opens a channel: our end, and the end inherited by the kernel.
pub fn open() -> io::Result<(Agent, OwnedFd)> {
    let (ours, theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let (read, write) = UnixStream::from_std(ours)?.into_split();
    let (out, queue) = mpsc::unbounded_channel();
    // The main loop answers at once, so a few messages are enough.
    let (tx, input) = mpsc::channel(64);
    tokio::spawn(async move {
        if let Err(error) = receive(read, tx).await {
            tracing::warn!(%error, "the in-kernel agent's channel broke");
        }
    });
    tokio::spawn(send(write, queue));
    Ok((Agent { out, input }, theirs.into()))
}

async fn receive(mut read: tokio::net::unix::OwnedReadHalf, tx: mpsc::Sender<Parcel>) -> io::Result<()> {
    let mut buf = BytesMut::new();
    loop {
        match decode(&mut buf)? {
            Decoded::Parcel(parcel) => {
                if tx.send(parcel).await.is_err() {
                    return Ok(());
                }
            }
            Decoded::Wants(more) => {
                buf.reserve(more.max(4096));
                if read.read_buf(&mut buf).await? == 0 {
                    return Ok(());
                }
            }
        }
    }
}

async fn send(mut write: tokio::net::unix::OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<Parcel>) {
    while let Some(parcel) = queue.recv().await {
        for chunk in encode(&parcel) {
            if write.write_all(&chunk).await.is_err() {
                return;
            }
        }
    }
}
