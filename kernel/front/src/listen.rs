//! Where replicas knock: TLS with the kernel's own keys, then a hello that the main loop answers.

use hop_protocol::link::{Frame, Link};
use hop_protocol::message::{Hello, Welcome};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// From accept to hello.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Those who may be at the door without having shown the key. The newest takes the place of the oldest: a replica takes
/// milliseconds, so a flood of strangers keeps none out, nor uses up our descriptors.
const PORCH: usize = 64;

/// What comes from those who knock.
#[derive(Debug)]
pub enum Door {
    /// A replica with this kernel's key: let it in?
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
    /// It left.
    Out { visit: u64 },
}

/// Answers the door until the receiver is dropped.
pub async fn answer_door(listener: TcpListener, acceptor: TlsAcceptor, door: mpsc::Sender<Door>) {
    let mut visit = 0;
    let mut porch = VecDeque::new();
    let strangers = Arc::new(AtomicU64::new(0));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                visit += 1;
                make_room(&mut porch);
                let shaking = shake_hands(stream, from, acceptor.clone(), strangers.clone());
                let door = door.clone();
                let greeting = tokio::spawn(async move {
                    if let Some((link, hello)) = shaking.await {
                        // A task of its own: who has the key isn't shown the door any more.
                        tokio::spawn(receive(link, hello, visit, door));
                    }
                });
                porch.push_back(greeting.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "can't accept a replica's connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Shows the oldest of those who haven't shown the key the door, if there are as many as may be.
fn make_room(porch: &mut VecDeque<AbortHandle>) {
    if porch.len() >= PORCH {
        porch.retain(|task| !task.is_finished());
    }
    if porch.len() >= PORCH
        && let Some(oldest) = porch.pop_front()
    {
        oldest.abort();
    }
}

async fn shake_hands(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: TlsAcceptor,
    strangers: Arc<AtomicU64>,
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
        // A replica whose front leaves while it dials.
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return None,
        Ok(Err(error)) => error.to_string(),
    };
    // Strangers are not to fill the log: it says so of the first, the tenth, the hundredth ...
    let count = strangers.fetch_add(1, Ordering::Relaxed) + 1;
    if 10u64.pow(count.ilog10()) == count {
        tracing::warn!(%from, count, "somebody knocked without the kernel's key: {why}");
    }
    None
}

async fn receive(mut link: Link<TlsStream<TcpStream>>, hello: Hello, visit: u64, door: mpsc::Sender<Door>) {
    let (tx, rx) = oneshot::channel();
    if door.send(Door::Knock { hello, answer: tx }).await.is_err() {
        return;
    }
    let Ok(welcome) = rx.await else {
        return;
    };
    let welcomed = matches!(welcome, Welcome::Yes { .. });
    if link.write(&Frame::Welcome(welcome)).await.is_err() || !welcomed {
        return;
    }
    let (out, queue) = mpsc::unbounded_channel();
    // The main loop never waits, so this only decouples the tasks.
    let (tx, input) = mpsc::channel(256);
    if door.send(Door::In { visit, out, input }).await.is_err() {
        return;
    }
    if let Err(error) = link.pump(queue, tx).await {
        tracing::info!(%error, "lost the replica's connection");
    }
    // The main loop may have ended first.
    let _ = door.send(Door::Out { visit }).await;
}
