//! Finds the front and keeps a connection to it. After a break, `front.json` is read again, because a new front may
//! have written it. If no front answers for a minute, and no front lives, the kernel has no owner any more.

use hop_protocol::file::FrontFile;
use hop_protocol::link::{Frame, Link};
use hop_protocol::message::{Hello, Welcome};
use hop_protocol::states;
use hop_protocol::tls::front_name;
use hop_words::error::{chain, system_words};
use hop_words::id::{Incarnation, Tenure};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;

/// How long a replica lives without a front.
pub const WITHOUT_FRONT: Duration = Duration::from_secs(60);
const EACH_TRY: Duration = Duration::from_secs(5);
/// The loss of a front is known so long after the connection's end.
pub const KNOWS_WITHIN: Duration = WITHOUT_FRONT.saturating_add(EACH_TRY).saturating_add(EACH_TRY);
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
        count: Option<i64>,
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
    let mut last = None;
    let gone = loop {
        let ended = match reach(&dir, me, standing, &mut last).await {
            Ok(link) => serve(link, &mut patience, &events).await,
            Err(failure) => Err(failure),
        };
        match ended {
            Ok(()) => {
                alone_since = Instant::now();
                if events.send(LinkEvent::Down).await.is_err() {
                    return;
                }
            }
            Err(Failure::Final(reason)) => break Gone::Superseded(reason),
            Err(Failure::Again(reason)) => {
                tracing::debug!(reason, "no front");
                if alone_since.elapsed() > WITHOUT_FRONT && !is_awaited(&dir, standing).await {
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
async fn is_awaited(dir: &Path, standing: Standing) -> bool {
    if !matches!(standing, Standing::Executes(_)) {
        return false;
    }
    let dir = dir.to_owned();
    let look = move || {
        let state = FrontFile::read(&dir).ok().and_then(|file| file.state);
        state.is_some_and(|s| states::has_owner(&s.kernel).unwrap_or(false))
    };
    spawn_blocking(look).await.unwrap_or(false)
}

/// Reads `front.json` in a thread: a home that hangs holds up the caller alone.
pub(crate) async fn read_front_file(dir: &Path) -> anyhow::Result<FrontFile> {
    let dir = dir.to_owned();
    Ok(spawn_blocking(move || FrontFile::read(&dir)).await??)
}

/// Whether another replica came after this one. A kernel's group may return to an earlier incarnation, so tenures
/// decide where a kernel has them.
pub(crate) fn is_followed(file: &FrontFile, me: Incarnation, standing: Standing) -> bool {
    match (&file.state, standing) {
        (_, Standing::Follows) => false,
        (Some(state), Standing::Executes(tenure)) => file.incarnation != me && state.tenure > tenure,
        _ => file.incarnation > me,
    }
}

/// A connection to the front of now. `last` is the host by which a front was last reached.
async fn reach(
    dir: &Path,
    me: Incarnation,
    standing: Standing,
    last: &mut Option<String>,
) -> Result<Link<TlsStream<TcpStream>>, Failure> {
    let file = read_front_file(dir).await;
    let file = file.map_err(|e| Failure::Again(chain(&*e)))?;
    if is_followed(&file, me, standing) {
        return Err(Failure::Final("a newer replica has taken its place".into()));
    }
    connect(&file, last).await.map(Link::new)
}

/// Serves a connection from its first word to its end.
async fn serve(
    mut link: Link<TlsStream<TcpStream>>,
    patience: &mut Duration,
    events: &mpsc::Sender<LinkEvent>,
) -> Result<(), Failure> {
    let again = |e: &dyn std::error::Error| Failure::Again(chain(e));
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
    let (epoch, taken, wanted, count) = match welcome {
        Welcome::Yes {
            epoch,
            taken,
            again,
            count,
            ..
        } => (epoch, taken, again, count),
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
        count,
        out: Outlet { frames, written },
        input,
    };
    events.send(up).await.map_err(|_| gone(()))?;
    if let Err(error) = link.pump(queue, tx, written_tx).await {
        tracing::info!(%error, "lost the front");
    }
    Ok(())
}

/// Connects to the front by one of its addresses, and notes the host.
async fn connect(file: &FrontFile, last: &mut Option<String>) -> Result<TlsStream<TcpStream>, Failure> {
    let connector = file.keys.connector().map_err(|e| Failure::Final(chain(&e)))?;
    let dial = |address: String| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            connector.connect(front_name(), stream).await
        }
    };
    let (address, stream) = first_of(in_order(&file.addresses, last.as_deref()), dial).await?;
    *last = Some(host_of(&address).to_owned());
    Ok(stream)
}

/// The addresses in the order of their dials: the last host comes first. The front's port may be another one.
fn in_order(addresses: &[String], last: Option<&str>) -> Vec<String> {
    let mut addresses = addresses.to_vec();
    addresses.sort_by_key(|address| Some(host_of(address)) != last);
    addresses
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Dials the addresses beside each other, each for [`EACH_TRY`] at most. Returns the first connection, with its address.
async fn first_of<S, F>(addresses: Vec<String>, dial: impl Fn(String) -> F) -> Result<(String, S), Failure>
where
    S: Send + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
{
    let dial = |address: String| {
        let dial = timeout(EACH_TRY, dial(address.clone()));
        async move {
            match dial.await {
                Ok(Ok(stream)) => Ok((address, stream)),
                Ok(Err(error)) => Err(format!("{address}: {}", system_words(&error))),
                Err(_) => Err(format!("{address}: no answer")),
            }
        }
    };
    let found = hop_api::dial::first_of(addresses, dial).await;
    found.map_err(|why| Failure::Again(why.unwrap_or_else(|| "front.json has no address".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::dial::STAGGER;
    use hop_protocol::content::Stores;
    use hop_protocol::file::StateFolder;
    use hop_protocol::message::VERSION;
    use hop_protocol::tls::KernelKeys;
    use std::fs::File;
    use std::sync::Mutex;
    use tokio::net::TcpListener;

    /// How a dial of each of these addresses ends: `None` never.
    async fn dialled(
        addresses: &[(&str, Option<bool>)],
    ) -> (Option<String>, Vec<(String, Duration)>, Duration) {
        let began = Instant::now();
        let tried = Mutex::new(Vec::new());
        let dial = |address: String| {
            let (_, end) = addresses.iter().find(|(name, _)| *name == address).unwrap();
            tried.lock().unwrap().push((address, began.elapsed()));
            let end = *end;
            async move {
                match end {
                    Some(true) => Ok(()),
                    Some(false) => Err(io::ErrorKind::ConnectionRefused.into()),
                    None => std::future::pending().await,
                }
            }
        };
        let names = addresses.iter().map(|(name, _)| (*name).to_owned()).collect();
        let found = first_of(names, dial).await;
        let tried = tried.into_inner().unwrap();
        (found.ok().map(|(address, ())| address), tried, began.elapsed())
    }

    fn tried(addresses: &[(&str, Duration)]) -> Vec<(String, Duration)> {
        addresses
            .iter()
            .map(|(name, at)| ((*name).to_owned(), *at))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_holds_up_the_next_for_a_moment_alone() {
        const NOW: Duration = Duration::ZERO;
        let (found, at, took) = dialled(&[("dead", None), ("deaf", None), ("good", Some(true))]).await;
        assert_eq!((found.as_deref(), took), (Some("good"), 2 * STAGGER));
        assert_eq!(
            at,
            tried(&[("dead", NOW), ("deaf", STAGGER), ("good", 2 * STAGGER)])
        );
        let (found, at, _) =
            dialled(&[("refuses", Some(false)), ("good", Some(true)), ("other", None)]).await;
        assert_eq!(
            (found.as_deref(), at),
            (Some("good"), tried(&[("refuses", NOW), ("good", NOW)]))
        );
        let (found, at, took) = dialled(&[("dead", None), ("refuses", Some(false))]).await;
        assert_eq!((found, at.len(), took), (None, 2, EACH_TRY));
        assert_eq!(dialled(&[]).await, (None, vec![], NOW));
    }

    #[test]
    fn the_host_that_answered_last_is_dialled_first() {
        let addresses = ["10.0.0.1:7", "[::1]:7", "login:7"].map(str::to_owned);
        assert_eq!(in_order(&addresses, None), addresses);
        assert_eq!(
            in_order(&addresses, Some("login")),
            ["login:7", "10.0.0.1:7", "[::1]:7"]
        );
        assert_eq!(host_of("[::1]:4711"), "[::1]");
    }

    #[tokio::test]
    async fn only_a_front_with_the_kernels_keys_is_a_front() {
        let (keys, others) = (KernelKeys::generate().unwrap(), KernelKeys::generate().unwrap());
        let mut addresses = Vec::new();
        for keys in [&others, &keys] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap().to_string());
            let acceptor = keys.acceptor().unwrap();
            tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                let _stream = acceptor.accept(stream).await;
                std::future::pending::<()>().await;
            });
        }
        let file = FrontFile {
            keys,
            addresses: addresses.clone(),
            ..crate::spare::tests::file("k", &[], &[])
        };
        let mut last = None;
        let stream = connect(&file, &mut last).await.ok().unwrap();
        let peer = stream.get_ref().0.peer_addr().unwrap().to_string();
        assert_eq!((peer, last.as_deref()), (addresses[1].clone(), Some("127.0.0.1")));
    }

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
                stores: Stores::only(tmp.path()),
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
