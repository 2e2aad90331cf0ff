//! A connected socket, TCP or unix, and its two halves.

use std::io;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream, tcp, unix};

/// Where an endpoint binds or connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Tcp(SocketAddr),
    /// ZeroMQ's `ipc://`.
    Ipc(PathBuf),
}

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
pub(crate) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

#[derive(Debug)]
pub(crate) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl Stream {
    pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp(addr) => {
                let stream = TcpStream::connect(addr).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Endpoint::Ipc(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
        }
    }

    pub(crate) fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Tcp(s) => {
                let (r, w) = s.into_split();
                (ReadHalf::Tcp(r), WriteHalf::Tcp(w))
            }
            Self::Unix(s) => {
                let (r, w) = s.into_split();
                (ReadHalf::Unix(r), WriteHalf::Unix(w))
            }
        }
    }
}

impl ReadHalf {
    pub(crate) async fn read_buf(&mut self, buf: &mut bytes::BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(r) => r.read_buf(buf).await,
            Self::Unix(r) => r.read_buf(buf).await,
        }
    }
}

impl WriteHalf {
    pub(crate) fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(w) => w.try_write_vectored(bufs),
            Self::Unix(w) => w.try_write_vectored(bufs),
        }
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(w) => w.writable().await,
            Self::Unix(w) => w.writable().await,
        }
    }

    /// Ends the connection for both halves, and wakes the reader.
    pub(crate) fn shutdown(&self) {
        let how = rustix::net::Shutdown::Both;
        // An error means that the connection is closed already.
        let _ = match self {
            Self::Tcp(w) => rustix::net::shutdown(w.as_ref(), how),
            Self::Unix(w) => rustix::net::shutdown(w.as_ref(), how),
        };
    }
}
