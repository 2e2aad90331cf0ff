//! The port for replicas: TLS with the kernel's own keys, then a hello that the main loop answers.

use hop_api::handshakes::HandshakeLimit;
use hop_protocol::link::{Frame, Link, LinkError};
use hop_protocol::message::{Hello, Welcome};
use hop_words::id::Incarnation;
use hop_zmtp::strangers::Strangers;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// From accept to hello.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Connections that may be open without having shown the key.
const PORCH: usize = 64;

/// What comes from those who knock.
#[derive(Debug)]
pub enum Door {
    /// A replica with this kernel's key: let the replica in?
    Knock {
        hello: Hello,
        answer: oneshot::Sender<Welcome>,
    },
    /// It is in. `visit` tells its connections apart.
    In {
        visit: u64,
        out: mpsc::UnboundedSender<Frame>,
        input: mpsc::Receiver<Frame>,
    },
    /// A knocking replica hung up before its answer.
    Left { incarnation: Incarnation },
    /// The replica's connection ended. `silent` means too long a silence.
    Out { visit: u64, silent: bool },
}

/// Answers the door until the receiver is dropped.
pub async fn answer_door(listener: TcpListener, acceptor: TlsAcceptor, door: mpsc::Sender<Door>) {
    let mut visit = 0;
    let mut porch = HandshakeLimit::new(PORCH);
    let strangers = Arc::new(Strangers::default());
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                visit += 1;
                let shaking = shake_hands(stream, from, acceptor.clone(), strangers.clone());
                let door = door.clone();
                let greeting = tokio::spawn(async move {
                    if let Some((link, hello)) = shaking.await {
                        // Spawned separately: a peer with the key doesn't count as a stranger any more.
                        tokio::spawn(receive(link, hello, visit, door));
                    }
                });
                porch.begin(from.ip(), &greeting);
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
    strangers: Arc<Strangers>,
) -> Option<(Link<TlsStream<TcpStream>>, Hello)> {
    let shake = async {
        stream.set_nodelay(true)?;
        let mut link = Link::new(acceptor.accept(stream).await?);
        let frame = link.read().await.map_err(std::io::Error::other)?;
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
    if let Some(count) = strangers.another() {
        tracing::warn!(%from, count, "somebody knocked without the kernel's key: {why}");
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

async fn receive(mut link: Link<TlsStream<TcpStream>>, hello: Hello, visit: u64, door: mpsc::Sender<Door>) {
    let incarnation = hello.incarnation;
    let (tx, rx) = oneshot::channel();
    if door.send(Door::Knock { hello, answer: tx }).await.is_err() {
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
            let _ = door.send(Door::Left { incarnation }).await;
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
    if door.send(Door::In { visit, out, input }).await.is_err() {
        return;
    }
    let end = link.pump(queue, tx).await;
    if let Err(error) = &end {
        tracing::info!(%error, "lost the replica's connection");
    }
    let silent = matches!(end, Err(LinkError::Silent));
    // The main loop may have ended first.
    let _ = door.send(Door::Out { visit, silent }).await;
}
