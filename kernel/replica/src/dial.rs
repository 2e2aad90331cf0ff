//! Finds the front and keeps a connection to it. After a break, `front.json` is read again, because a new front may
//! have written it. If no front answers for a minute, and no front lives, the kernel has no owner any more.

use hop_protocol::file::FrontFile;
use hop_protocol::link::{Frame, Link};
use hop_protocol::message::{Hello, Welcome};
use hop_protocol::states;
use hop_protocol::tls::front_name;
use hop_words::error::{chain, system_words};
use hop_words::id::{Incarnation, Tenure};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;

/// How long a replica lives without a front.
pub const WITHOUT_FRONT: Duration = Duration::from_secs(60);
const EACH_TRY: Duration = Duration::from_secs(5);
const BETWEEN_TRIES: Duration = Duration::from_millis(300);

/// Events and questions of the dialler for the replica.
#[derive(Debug)]
pub enum LinkEvent {
    /// A connection stands: what do we say?
    WantsHello(oneshot::Sender<Hello>),
    Up {
        epoch: u64,
        taken: u64,
        again: Vec<u64>,
        out: Outlet,
        input: mpsc::Receiver<Frame>,
    },
    Down,
    /// The replica has no front any more.
    Over(Gone),
}

/// The way to the front, by one connection.
#[derive(Debug)]
pub struct Outlet {
    pub frames: mpsc::UnboundedSender<Frame>,
    /// The weight of all items that were written to the connection.
    pub written: watch::Receiver<usize>,
}

/// Why there is no front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gone {
    /// The front has another replica, or is of another release.
    Superseded(String),
    /// Nobody answered for [`WITHOUT_FRONT`], and no front lives.
    Alone(String),
}

/// The standing of a replica that dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The replica executes, and began in this tenure.
    Executes(Tenure),
    /// The replica waits for its turn, and is welcomed then, be that after hours.
    Waits,
    /// The same for a member of the kernel's group. The member may have executed before others did.
    Follows,
}

/// Dials as long as the replica has a front.
pub async fn dial(dir: PathBuf, me: Incarnation, standing: Standing, events: mpsc::Sender<LinkEvent>) {
    let mut alone_since = Instant::now();
    let mut patience = match standing {
        Standing::Executes(_) => EACH_TRY,
        Standing::Waits | Standing::Follows => Duration::MAX,
    };
    let gone = loop {
        match attempt(&dir, me, standing, &mut patience, &events).await {
            Ok(()) => {
                alone_since = Instant::now();
                if events.send(LinkEvent::Down).await.is_err() {
                    return;
                }
            }
            Err(Failure::Final(reason)) => break Gone::Superseded(reason),
            Err(Failure::Again(reason)) => {
                tracing::debug!(reason, "no front");
                if alone_since.elapsed() > WITHOUT_FRONT && !is_awaited(&dir, standing) {
                    let reason = format!("its front was gone for {} s", WITHOUT_FRONT.as_secs());
                    break Gone::Alone(reason);
                }
                sleep(BETWEEN_TRIES).await;
            }
        }
    };
    // The replica may be gone first.
    let _ = events.send(LinkEvent::Over(gone)).await;
}

enum Failure {
    Again(String),
    Final(String),
}

/// Whether the front lives all the same, but stands still or is cut off. The cells for this front then run on, until
/// the front comes back or has another replica.
fn is_awaited(dir: &std::path::Path, standing: Standing) -> bool {
    let state = FrontFile::read(dir).ok().and_then(|file| file.state);
    matches!(standing, Standing::Executes(_))
        && state.is_some_and(|s| states::has_owner(&s.kernel).unwrap_or(false))
}

/// Whether another replica came after this one. A kernel's group may return to an earlier incarnation, so tenures
/// decide where a kernel has them.
fn is_followed(file: &FrontFile, me: Incarnation, standing: Standing) -> bool {
    match (&file.state, standing) {
        (_, Standing::Follows) => false,
        (Some(state), Standing::Executes(tenure)) => file.incarnation != me && state.tenure > tenure,
        _ => file.incarnation > me,
    }
}

/// One connection, from dialling to its end.
async fn attempt(
    dir: &std::path::Path,
    me: Incarnation,
    standing: Standing,
    patience: &mut Duration,
    events: &mpsc::Sender<LinkEvent>,
) -> Result<(), Failure> {
    let again = |e: &dyn std::error::Error| Failure::Again(chain(e));
    let file = FrontFile::read(dir).map_err(|e| again(&e))?;
    if is_followed(&file, me, standing) {
        return Err(Failure::Final("a newer replica has taken its place".into()));
    }
    let mut link = Link::new(connect(&file).await?);
    let (tx, rx) = oneshot::channel();
    let gone = |_| Failure::Final("the replica ends".into());
    events
        .send(LinkEvent::WantsHello(tx))
        .await
        .map_err(|_| gone(()))?;
    let hello = rx.await.map_err(|_| gone(()))?;
    let shake = async {
        link.write(&Frame::Hello(hello)).await?;
        link.read().await
    };
    let answer = timeout(*patience, shake)
        .await
        .map_err(|e| again(&e))?
        .map_err(|e| again(&e))?;
    let Frame::Welcome(welcome) = answer else {
        return Err(Failure::Again("the front didn't answer the hello".into()));
    };
    let (epoch, taken, wanted) = match welcome {
        Welcome::Yes {
            epoch, taken, again, ..
        } => (epoch, taken, again),
        Welcome::No { reason, .. } => return Err(Failure::Final(reason)),
    };
    *patience = EACH_TRY;
    let (frames, queue) = mpsc::unbounded_channel();
    let (written_tx, written) = watch::channel(0);
    // A busy replica stops reading from its front, not from its kernel.
    let (tx, input) = mpsc::channel(256);
    let up = LinkEvent::Up {
        epoch,
        taken,
        again: wanted,
        out: Outlet { frames, written },
        input,
    };
    events.send(up).await.map_err(|_| gone(()))?;
    if let Err(error) = link.pump(queue, tx, written_tx).await {
        tracing::info!(%error, "lost the front");
    }
    Ok(())
}

async fn connect(file: &FrontFile) -> Result<TlsStream<TcpStream>, Failure> {
    let connector = file.keys.connector().map_err(|e| Failure::Final(chain(&e)))?;
    let mut last = "front.json has no address".to_owned();
    for address in &file.addresses {
        let dial = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            connector.connect(front_name(), stream).await
        };
        match timeout(EACH_TRY, dial).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = format!("{address}: {}", system_words(&error)),
            Err(_) => last = format!("{address}: no answer"),
        }
    }
    Err(Failure::Again(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_protocol::file::StateFolder;
    use hop_protocol::message::VERSION;
    use std::fs::File;

    #[tokio::test(start_paused = true)]
    async fn a_front_that_lives_is_waited_for_beyond_a_minute() {
        let tmp = tempfile::tempdir().unwrap();
        let owner = File::create(tmp.path().join(states::OWNER)).unwrap();
        owner.lock().unwrap();
        let file = FrontFile {
            version: VERSION,
            state: Some(StateFolder {
                kernel: tmp.path().to_owned(),
                tenure: Tenure(1),
                store: tmp.path().to_owned(),
                hash_seed: 0,
            }),
            ..crate::spare::tests::file("k", &[], &[])
        };
        file.write(tmp.path()).unwrap();
        let (tx, mut events) = mpsc::channel(8);
        let standing = Standing::Executes(Tenure(1));
        tokio::spawn(dial(tmp.path().to_owned(), Incarnation(1), standing, tx));
        let long = 3 * WITHOUT_FRONT;
        assert!(timeout(long, events.recv()).await.is_err(), "it holds its lock");
        drop(owner);
        let said = timeout(long, events.recv()).await.unwrap();
        assert!(matches!(said, Some(LinkEvent::Over(Gone::Alone(_)))), "{said:?}");
    }
}
