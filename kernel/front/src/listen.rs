//! The port for replicas: TLS with the kernel's own keys, then a hello that the main loop answers.

use hop_api::handshakes::HandshakeLimit;
use hop_protocol::link::{Frame, Link, LinkError};
use hop_protocol::message::{Hello, Welcome};
use hop_words::id::Incarnation;
use hop_zmtp::log_sampler::LogSampler;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Time from accept to hello.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The most connections that may be open without having shown the key.
const HANDSHAKES: usize = 64;

/// An event of a replica's connection.
#[derive(Debug)]
pub enum ReplicaConnection {
    /// A replica with this kernel's key has connected and waits for `answer`.
    Asks {
        hello: Hello,
        answer: oneshot::Sender<Welcome>,
    },
    /// A replica was let in. `visit` numbers the connections.
    Up {
        visit: u64,
        out: mpsc::UnboundedSender<Frame>,
        input: mpsc::Receiver<Frame>,
    },
    /// A replica hung up before its answer.
    HungUp { incarnation: Incarnation },
    /// The replica's connection ended. `silent` means too long a silence.
    Down { visit: u64, silent: bool },
}

/// Accepts connections of replicas until the receiver of `replicas` is dropped.
pub async fn accept_replicas(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    replicas: mpsc::Sender<ReplicaConnection>,
) {
    let mut visit = 0;
    let mut handshakes = HandshakeLimit::new(HANDSHAKES);
    let refused = Arc::new(LogSampler::default());
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                visit += 1;
                let shaking = shake_hands(stream, from, acceptor.clone(), refused.clone());
                let replicas = replicas.clone();
                let greeting = tokio::spawn(async move {
                    if let Some((link, hello)) = shaking.await {
                        // Spawned separately: a peer with the key doesn't count as a stranger any more.
                        tokio::spawn(receive(link, hello, visit, replicas));
                    }
                });
                handshakes.begin(from.ip(), greeting.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "can't accept a replica's connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn shake_hands(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: TlsAcceptor,
    refused: Arc<LogSampler>,
) -> Option<(Link<TlsStream<TcpStream>>, Hello)> {
    let shake = async {
        stream.set_nodelay(true)?;
        let mut link = Link::new(acceptor.accept(stream).await?);
        let frame = link.read().await.map_err(|error| match error {
            LinkError::Io(error) => error,
            // A replica dials all addresses, and lets go of all connections but one.
            LinkError::Closed => ErrorKind::UnexpectedEof.into(),
            other => std::io::Error::other(other),
        })?;
        Ok::<_, std::io::Error>((link, frame))
    };
    let why = match timeout(HANDSHAKE, shake).await {
        Ok(Ok((link, Frame::Hello(hello)))) => return Some((link, hello)),
        Ok(Ok(_)) | Err(_) => "no hello".to_owned(),
        // A replica at its end, or of a leaving front, in the middle of a dial: a stranger who hung up has tried no key
        // either.
        Ok(Err(error)) if hung_up(error.kind()) => return None,
        Ok(Err(error)) => error.to_string(),
    };
    if let Some(count) = refused.count() {
        tracing::warn!(%from, count, "refused a connection without the kernel's key: {why}");
    }
    None
}

fn hung_up(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

async fn receive(
    mut link: Link<TlsStream<TcpStream>>,
    hello: Hello,
    visit: u64,
    replicas: mpsc::Sender<ReplicaConnection>,
) {
    let incarnation = hello.incarnation;
    let (tx, rx) = oneshot::channel();
    if replicas
        .send(ReplicaConnection::Asks { hello, answer: tx })
        .await
        .is_err()
    {
        return;
    }
    let welcome = tokio::select! {
        answer = rx => match answer {
            Ok(welcome) => welcome,
            Err(_) => return,
        },
        // A replica says nothing before its answer: any read means a hang-up.
        _ = link.read() => {
            // The main loop may have ended first.
            let _ = replicas.send(ReplicaConnection::HungUp { incarnation }).await;
            return;
        }
    };
    let welcomed = matches!(welcome, Welcome::Yes { .. });
    if link.write(&Frame::Welcome(welcome)).await.is_err() || !welcomed {
        return;
    }
    let (out, queue) = mpsc::unbounded_channel();
    // The main loop never waits: the channel only decouples the tasks.
    let (tx, input) = mpsc::channel(256);
    if replicas
        .send(ReplicaConnection::Up { visit, out, input })
        .await
        .is_err()
    {
        return;
    }
    // Requests are as large as their clients make them, and none is dropped.
    let (written, _) = watch::channel(0);
    let end = link.pump(queue, tx, written).await;
    if let Err(error) = &end {
        tracing::info!(%error, "lost the replica's connection");
    }
    let silent = matches!(end, Err(LinkError::Silent));
    // The main loop may have ended first.
    let _ = replicas.send(ReplicaConnection::Down { visit, silent }).await;
}
