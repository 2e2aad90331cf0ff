//! The keeper as the seat's process sees it.

use crate::book::Book;
use crate::event::Event;
use crate::group::Group;
use crate::hearing::Heard;
use crate::links::{Hosted, Links, Wire};
use crate::lock::lock;
use crate::patience::Patience;
use hop_log::State;
use hop_protocol::tls::TlsError;
use hop_raft::{Member, OpenError, Opening, ProposeError};
use hop_wal::{Options, Wal};
use hop_words::id::{Incarnation, JobId, Tenure};
use hop_words::net::PortRange;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// The founding of a group is given up after this time for now: the cells of the kernel wait meanwhile.
const FOUNDS_WITHIN: Duration = Duration::from_secs(5);

/// A member is waited for so long until it is closed.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);

/// A keeper to start.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The seat.
    pub me: JobId,
    /// The address to listen on, and its ports; `None` means any free port.
    pub listen: IpAddr,
    pub ports: Option<PortRange>,
    /// The folder of the log, on a disk of the node.
    pub log: &'a Path,
    pub wal: Options,
    pub book: Book,
    pub patience: Patience,
}

/// The keeper can't be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the log of the user's kernels can't be opened")]
    Log(#[from] hop_wal::OpenError),
    #[error("the keys of the user's keepers can't be used")]
    Keys(#[source] io::Error),
    #[error("the keys of the user's keepers can't be used")]
    Tls(#[from] TlsError),
    #[error("the keeper can't listen on {address}")]
    Listen {
        address: IpAddr,
        #[source]
        source: io::Error,
    },
    #[error("the keeper's address can't be written to the user's home")]
    Book(#[source] io::Error),
}

/// A kernel's group can't be kept.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("group {0} is kept here already")]
    Known(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the group can't be founded")]
    Found(#[from] ProposeError),
}

/// A kernel to keep.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The group: kernel and generation.
    pub group: String,
    /// This seat's member.
    pub me: Incarnation,
    /// Number of replicas for the kernel: 1 or 3.
    pub wanted: usize,
}

/// The keeper of a seat. Dropping it ends all links and groups; the log stays.
#[derive(Debug)]
pub struct Keeper {
    links: Arc<Links>,
    wal: Wal,
    address: SocketAddr,
    events: mpsc::UnboundedSender<Event>,
    patience: Patience,
    /// Groups whose member is being closed: another one can't be opened yet.
    closing: Arc<Mutex<BTreeSet<String>>>,
}

impl Keeper {
    /// Opens the log, listens, and enters the address in the book. Events come by the receiver.
    ///
    /// # Errors
    /// If the log, the keys or the address can't be used.
    pub async fn start(settings: Settings<'_>) -> Result<(Self, mpsc::UnboundedReceiver<Event>), StartError> {
        let Settings {
            me,
            listen,
            ports,
            log,
            wal,
            book,
            patience,
        } = settings;
        let wal = Wal::open(log, wal)?;
        let (events, happened) = mpsc::unbounded_channel();
        let keys = book.keys().map_err(StartError::Keys)?;
        let links = Links::new(me, &keys, book.clone(), events.clone())?;
        let listen_error = |source| StartError::Listen {
            address: listen,
            source,
        };
        let listener = hop_words::net::listen(listen, ports).and_then(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        let listener = listener.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        book.enter(me, address).map_err(StartError::Book)?;
        links.spawn(Arc::clone(&links).accept(listener));
        links.spawn(Arc::clone(&links).ping());
        let keeper = Self {
            links,
            wal,
            address,
            events,
            patience,
            closing: Arc::default(),
        };
        Ok((keeper, happened))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a kernel's group here, with the kernel's present state.
    ///
    /// # Errors
    /// If the group is kept already, or can't be written.
    pub async fn found(&self, kernel: Kernel, state: &State) -> Result<Arc<Member<Wire>>, KernelError> {
        let name = kernel.group.clone();
        let (group, member) = self.open(kernel).await?;
        let founded = timeout(FOUNDS_WITHIN, member.found(state)).await;
        if let Err(error) = founded.unwrap_or(Err(ProposeError::Unknown)) {
            self.leave(&name).await;
            return Err(error.into());
        }
        self.links.spawn(group.run());
        Ok(member)
    }

    /// Joins a kernel's group. The leader learns of the member by a `Join` in the log.
    ///
    /// # Errors
    /// If the group is kept already, or can't be written.
    pub async fn join(&self, kernel: Kernel) -> Result<Arc<Member<Wire>>, KernelError> {
        let (group, member) = self.open(kernel).await?;
        self.links.spawn(group.run());
        Ok(member)
    }

    async fn open(&self, kernel: Kernel) -> Result<(Group, Arc<Member<Wire>>), KernelError> {
        let Kernel { group, me, wanted } = kernel;
        // `leave` notes the closing before it takes the member off the table.
        let hosted = lock(&self.links.hosted).contains_key(&group);
        if hosted || lock(&self.closing).contains(&group) {
            return Err(KernelError::Known(group));
        }
        let seats = Arc::new(Mutex::new(BTreeMap::new()));
        let wire = Wire {
            links: Arc::clone(&self.links),
            group: group.clone(),
            seats: Arc::clone(&seats),
        };
        let opening = Opening {
            wal: &self.wal,
            name: &group,
            me,
            transport: Arc::new(wire),
        };
        let member = Arc::new(Member::open(opening).await?);
        let hosted = Hosted {
            me,
            member: Arc::clone(&member),
        };
        lock(&self.links.hosted).insert(group.clone(), hosted);
        let group = Group {
            links: Arc::clone(&self.links),
            name: group,
            me,
            member: Arc::clone(&member),
            seats,
            wanted,
            events: self.events.clone(),
            patience: self.patience,
        };
        Ok((group, member))
    }

    /// Ends this seat's part of a group, because its member has left or the kernel is over. Removes its log.
    pub async fn leave(&self, group: &str) {
        let (closing, name) = (Arc::clone(&self.closing), group.to_owned());
        if !lock(&closing).insert(name.clone()) {
            return;
        }
        let Some(hosted) = self.links.leave(group) else {
            lock(&closing).remove(&name);
            return;
        };
        let closed = tokio::spawn(async move {
            hosted.member.close().await;
            // Leavings in an unwritable log end with the seat.
            let _ = hosted.member.forget();
            lock(&closing).remove(&name);
        });
        // A member on a hanging disk closes once the disk goes on.
        let _ = timeout(CLOSES_WITHIN, closed).await;
    }

    /// The executor here says whether its kernel is at rest: another member could go on, and the user would lose
    /// nothing.
    pub fn rests(&self, group: &str, rests: bool) {
        self.links.rests(group, rests);
    }

    /// The executor's process of this tenure, and of all before, has ended here. The group's other seats hear so.
    pub fn ended(&self, group: &str, tenure: Tenure) {
        self.links.ended(group, tenure);
    }

    /// The seats that are heard, and their words.
    pub fn heard(&self) -> watch::Receiver<Heard> {
        self.links.heard()
    }

    /// Tells the group's other seats that the kernel is over. A seat out of reach finds out by itself
    /// ([`Event::Leaderless`]).
    pub fn close(&self, group: &str) {
        self.links.tell_closed(group);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.links.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::{Act, Entry, Index, Sequence};
    use hop_raft::Group as _;
    use hop_words::id::{CellId, NodeName, Tenure};
    use hop_words::lease::Outcome;

    const LONG: Duration = Duration::from_secs(60);

    async fn keeper(dir: &Path) -> Keeper {
        seated(dir, 1).await.0
    }

    async fn seated(dir: &Path, id: u32) -> (Keeper, mpsc::UnboundedReceiver<Event>) {
        let settings = Settings {
            me: JobId(id),
            listen: "127.0.0.1".parse().unwrap(),
            ports: None,
            log: &dir.join(format!("log-{id}")),
            wal: Options::default(),
            book: Book::open(&dir.join("seats")).unwrap(),
            patience: Patience {
                lags: Duration::from_millis(500),
                ..Patience::default()
            },
        };
        Keeper::start(settings).await.unwrap()
    }

    /// Keeps the thread that syncs this log, as a hanging disk does, until the returned value is dropped.
    fn hang(wal: &Wal) -> std::sync::mpsc::Sender<()> {
        let (go_on, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let (tell, told) = std::sync::mpsc::channel();
        for n in 0.. {
            // A frame that is synced already calls back on the spot.
            let written = wal.group(format!("hangs-{n}").as_bytes()).unwrap().written();
            let (hangs, tell) = (Arc::clone(&hangs), tell.clone());
            wal.on_synced(written, move |_| {
                let here = std::thread::current().name() == Some("wal-sync");
                tell.send(here).unwrap();
                if here {
                    let _ = lock(&hangs).recv();
                }
            });
            if told.recv().unwrap() {
                break;
            }
        }
        go_on
    }

    fn kernel() -> (Kernel, State) {
        let mut state = State::new();
        let join = Entry::Join {
            incarnation: Incarnation(1),
            seat: JobId(1),
            node: NodeName::from("n1"),
            hot: false,
        };
        state.apply(Index(1), &join).unwrap();
        let kernel = Kernel {
            group: "kernel.0".to_owned(),
            me: Incarnation(1),
            wanted: 3,
        };
        (kernel, state)
    }

    #[tokio::test]
    async fn a_group_that_was_left_has_not_failed() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path()).await;
        let (kernel, state) = kernel();
        keeper.found(kernel, &state).await.unwrap();
        keeper.leave("kernel.0").await;
        // The group's task hears of its member's end.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(lock(&keeper.links.failed).is_empty());
        assert!(!keeper.links.fail("kernel.0", Incarnation(1)));
        assert!(
            lock(&keeper.links.failed).is_empty(),
            "the seat would say so for ever"
        );
    }

    #[tokio::test]
    async fn a_group_that_could_not_be_founded_is_founded_later() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path()).await;
        let (kernel, mut state) = kernel();
        let tenure = Entry::Tenure {
            tenure: Tenure(1),
            executor: Incarnation(1),
        };
        state.apply(Index(2), &tenure).unwrap();
        let act = Act::Ended {
            cell: CellId::from("large"),
            outcome: Outcome::Ok,
            reply: vec![7; 2 << 20].into(),
            last_output: 0,
            record: None,
        };
        let sequence = Sequence(1);
        let ended = Entry::Act {
            tenure: Tenure(1),
            sequence,
            act,
        };
        state.apply(Index(3), &ended).unwrap();
        // The state is larger than a segment, and no other can be made.
        let (folder, away) = (dir.path().join("log-1"), dir.path().join("away"));
        std::fs::rename(&folder, &away).unwrap();
        assert!(keeper.found(kernel.clone(), &state).await.is_err());
        std::fs::rename(&away, &folder).unwrap();
        keeper.found(kernel, &state).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_on_a_hanging_disk_is_not_founded_until_the_disk_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = keeper(dir.path()).await;
        let (kernel, state) = kernel();
        let disk = hang(&keeper.wal);
        let hour = Duration::from_secs(3600);
        let founded = timeout(hour, keeper.found(kernel.clone(), &state)).await;
        assert!(matches!(founded, Ok(Err(KernelError::Found(_)))), "{founded:?}");
        let again = timeout(hour, keeper.found(kernel.clone(), &state)).await;
        assert!(
            matches!(again, Ok(Err(KernelError::Known(_)))),
            "it is being closed: {again:?}"
        );
        tokio::time::resume();
        drop(disk);
        let founded = async {
            while keeper.found(kernel.clone(), &state).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, founded).await.unwrap();
    }

    fn join(id: u32) -> Entry {
        Entry::Join {
            incarnation: Incarnation(id),
            seat: JobId(id),
            node: format!("n{id}").as_str().into(),
            hot: false,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_voter_on_a_hanging_disk_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (first, mut events) = seated(dir.path(), 1).await;
        let (founding, mut state) = kernel();
        let (tenure, executor) = (Tenure(1), Incarnation(1));
        state
            .apply(Index(2), &Entry::Tenure { tenure, executor })
            .unwrap();
        let leader = first.found(founding.clone(), &state).await.unwrap();
        let mut others = Vec::new();
        for id in [2, 3] {
            let (keeper, _) = seated(dir.path(), id).await;
            let me = Incarnation(id);
            keeper
                .join(Kernel {
                    me,
                    ..founding.clone()
                })
                .await
                .unwrap();
            leader.propose(join(id)).await.unwrap();
            others.push(keeper);
        }
        let grown = async {
            loop {
                let standing = leader.standing();
                if standing.voters.len() == 3 && !standing.is_changing() {
                    return;
                }
                leader.standing_changed(&standing).await;
            }
        };
        timeout(LONG, grown).await.unwrap();
        let _disk = hang(&others[1].wal);
        // The majority goes on without it.
        for losses in 0..100 {
            let entry = Entry::Heard {
                cells: hop_log::CellNumber(0),
                losses: Tenure(losses % 2),
            };
            leader.propose(entry).await.unwrap();
        }
        let need = async {
            loop {
                if let Some(Event::Need(need)) = events.recv().await
                    && !need.failed.is_empty()
                {
                    return need;
                }
            }
        };
        let need = timeout(LONG, need).await.unwrap();
        assert_eq!((need.replicas, need.failed), (1, [Incarnation(3)].into()));
        assert!(need.gone.is_empty(), "its seat is heard");
    }
}
