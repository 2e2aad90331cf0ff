//! A command's way to a kernel's process on another node: by the keeper of the seat there.
//!
//! The keys in the user's home admit the command, as they admit the user's own keepers. The keeper's greeting says that
//! the process's door is open; from then on bytes go both ways. A seat without the kernel's process hangs up.

use crate::book::Book;
use crate::wire::{Frame, Hello, PATIENCE, VERSION, Visit, greeted};
use hop_protocol::tls::front_name;
use hop_words::id::{JobId, KernelId};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, client, server};

/// A seat asks all of the user's processes on its node for their identity, and some may be silent.
const GREETS_WITHIN: Duration = Duration::from_secs(20);
/// TCP asks a command's machine for a sign of life after this time without data.
const QUIET: Duration = Duration::from_secs(60);

/// A command that waits for a door.
#[derive(Debug)]
pub struct Visitor {
    pub kernel: KernelId,
    seat: JobId,
    stream: Box<server::TlsStream<TcpStream>>,
}

impl Visitor {
    pub(crate) fn received(
        seat: JobId,
        visit: Visit,
        stream: server::TlsStream<TcpStream>,
    ) -> io::Result<Self> {
        if visit.version != VERSION {
            let text = format!("a command speaks version {}", visit.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        // Without a word of a lost machine its connection would stay for as long as the seat.
        let socket = stream.get_ref().0;
        rustix::net::sockopt::set_socket_keepalive(socket, true)?;
        rustix::net::sockopt::set_tcp_keepidle(socket, QUIET)?;
        Ok(Self {
            kernel: visit.kernel,
            seat,
            stream: Box::new(stream),
        })
    }

    /// Lets the command in at this door, until one of the two ends hangs up.
    ///
    /// # Errors
    /// A connection broke.
    pub async fn lead_to(mut self, mut door: UnixStream) -> io::Result<()> {
        let hello = Hello {
            version: VERSION,
            seat: self.seat,
        };
        self.stream.write_all(&Frame::Hello(hello).encode()).await?;
        self.stream.flush().await?;
        copy_bidirectional(&mut self.stream, &mut door).await.map(|_| ())
    }
}

/// Asks the user's seats for the process running this kernel's cells. Returns a connection to the process's door.
///
/// # Errors
/// No seat has it, or none can be asked.
pub async fn visit(book: &Book, kernel: &KernelId) -> io::Result<client::TlsStream<TcpStream>> {
    let seats = book.seats()?;
    if seats.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let connector = book.keys()?.connector().map_err(io::Error::other)?;
    let mut asked = JoinSet::new();
    for seat in seats {
        if let Ok(Some(address)) = book.address(seat) {
            let stream = TcpStream::connect(address);
            asked.spawn(ask(connector.clone(), seat, stream, kernel.clone()));
        }
    }
    while let Some(answer) = asked.join_next().await {
        if let Ok(Ok(stream)) = answer {
            return Ok(stream);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

async fn ask(
    connector: TlsConnector,
    seat: JobId,
    stream: impl Future<Output = io::Result<TcpStream>>,
    kernel: KernelId,
) -> io::Result<client::TlsStream<TcpStream>> {
    let stream = timeout(PATIENCE, stream).await??;
    stream.set_nodelay(true)?;
    let mut stream = timeout(PATIENCE, connector.connect(front_name(), stream)).await??;
    let visit = Visit {
        version: VERSION,
        kernel,
    };
    stream.write_all(&Frame::Visit(visit).encode()).await?;
    stream.flush().await?;
    greeted(
        timeout(GREETS_WITHIN, Frame::read(&mut stream)).await??,
        Some(seat),
    )?;
    Ok(stream)
}
