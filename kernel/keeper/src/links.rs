//! The links to other seats: dialling, accepting, asking, answering, pinging.

use crate::book::Book;
use crate::event::Event;
use crate::hearing::{Heard, Hearing, PING_EVERY};
use crate::link::Link;
use crate::lock::lock;
use crate::visit::Visitor;
use crate::wire::{Frame, Hello, PATIENCE, Says, VERSION, Word, greeted};
use bytes::Bytes;
use hop_api::handshakes::HandshakeLimit;
use hop_protocol::tls::{KernelKeys, TlsError, front_name};
use hop_raft::{Member, Transport, Unreachable};
use hop_words::id::{Incarnation, JobId, Tenure};
use hop_words::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The pause after a dial that failed.
const REDIAL_AFTER: Duration = Duration::from_millis(200);
/// The pause after a refusal, before the next dial confirms the refusal: a kernel may wait for its next executor.
const CONFIRMS_AFTER: Duration = Duration::from_millis(50);
/// Links with a seat: both sides may dial at once, beside a link fallen silent. Beyond them the oldest ends.
const LINKS_MAX: usize = 3;
/// The most connections that may be open without having shown the user's key.
const HANDSHAKES: usize = 64;

/// The time for which a kernel is at rest before the others hear so: cell after cell costs no message.
const TOLD_AFTER_REST: Span = Span::from_millis(500);

/// For so long the others hear that an executor's process has ended, or that a kernel is over: nobody waits any longer
/// for the word.
const TOLD_AFTER_END: Span = Span::from_secs(15);

/// A kernel that runs no cell.
#[derive(Debug)]
struct Resting {
    since: Timestamp,
    told: bool,
}

/// A member hosted by this seat.
#[derive(Debug, Clone)]
pub(crate) struct Hosted {
    pub(crate) me: Incarnation,
    pub(crate) member: Arc<Member<Wire>>,
}

/// All links of one seat.
pub(crate) struct Links {
    me: JobId,
    connector: TlsConnector,
    acceptor: TlsAcceptor,
    book: Book,
    began: Instant,
    table: Mutex<BTreeMap<JobId, Vec<Arc<Link>>>>,
    hearing: Mutex<Hearing>,
    heard: watch::Sender<Heard>,
    /// Seats with which each group is shared.
    shared: Mutex<BTreeMap<String, BTreeSet<JobId>>>,
    pub(crate) hosted: Mutex<BTreeMap<String, Hosted>>,
    dialing: Mutex<BTreeSet<JobId>>,
    /// Groups whose kernels rest here, by what their executors say.
    resting: Mutex<BTreeMap<String, Resting>>,
    /// Members here whose log can't be written.
    pub(crate) failed: Mutex<BTreeMap<String, Incarnation>>,
    /// Tenures whose executor's process has ended here, and since when.
    ended: Mutex<BTreeMap<String, (Tenure, Timestamp)>>,
    /// Groups that are over by this seat's word, with the seats that hear so, and since when.
    closed: Mutex<BTreeMap<String, (BTreeSet<JobId>, Timestamp)>>,
    /// Wakes the task that follows peers, dials them, and reports peers no longer heard.
    wake: Notify,
    events: mpsc::UnboundedSender<Event>,
    tasks: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

impl Links {
    pub(crate) fn new(
        me: JobId,
        keys: &KernelKeys,
        book: Book,
        events: mpsc::UnboundedSender<Event>,
    ) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self {
            me,
            connector: keys.connector()?,
            acceptor: keys.acceptor()?,
            book,
            began: Instant::now(),
            table: Mutex::default(),
            hearing: Mutex::new(Hearing::new(me)),
            heard: watch::Sender::new(Heard::default()),
            shared: Mutex::default(),
            hosted: Mutex::default(),
            dialing: Mutex::default(),
            resting: Mutex::default(),
            failed: Mutex::default(),
            ended: Mutex::default(),
            closed: Mutex::default(),
            wake: Notify::new(),
            events,
            tasks: Mutex::default(),
        }))
    }

    pub(crate) fn me(&self) -> JobId {
        self.me
    }

    pub(crate) fn heard(&self) -> watch::Receiver<Heard> {
        self.heard.subscribe()
    }

    fn now(&self) -> Timestamp {
        let micros =
            u64::try_from(self.began.elapsed().as_micros()).expect("a seat ends within 500,000 years");
        // Far from zero: a peer that was never heard isn't silent since the start of time.
        Timestamp(micros + 1)
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    /// Ends all tasks and forgets all members: no message is answered any more.
    pub(crate) fn close(&self) {
        lock(&self.tasks).abort_all();
        lock(&self.hosted).clear();
        lock(&self.table).clear();
        self.book.strike(self.me);
    }

    /// The group is shared with these seats. None: the group isn't kept here any more.
    pub(crate) fn share(&self, group: &str, seats: BTreeSet<JobId>) {
        let all = {
            let mut shared = lock(&self.shared);
            if seats.is_empty() {
                shared.remove(group);
            } else {
                shared.insert(group.to_owned(), seats);
            }
            shared.values().flatten().copied().collect()
        };
        let now = self.now();
        self.hear(|hearing| hearing.follow(&all, now));
        self.wake.notify_one();
    }

    /// Changes the detector's state, and tells the groups if the heard seats change.
    fn hear<R>(&self, change: impl FnOnce(&mut Hearing) -> R) -> R {
        let (changed, heard) = {
            let mut hearing = lock(&self.hearing);
            let changed = change(&mut hearing);
            (changed, hearing.heard(self.now()))
        };
        self.heard.send_if_modified(|before| {
            let differs = *before != heard;
            if differs {
                *before = heard;
            }
            differs
        });
        changed
    }

    /// Accepts links until the keeper ends.
    pub(crate) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut handshakes = HandshakeLimit::new(HANDSHAKES);
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let links = Arc::clone(&self);
                    let shaking = self.spawn(async move {
                        match links.greeted(stream).await {
                            // Spawned separately: a peer with the key doesn't count as a stranger any more.
                            Ok((stream, theirs)) => links.begin(Arc::clone(&links).accepted(stream, theirs)),
                            Err(error) => tracing::debug!(%error, "no link to this seat"),
                        }
                    });
                    handshakes.begin(from.ip(), shaking);
                }
                // Out of descriptors: existing links go on.
                Err(_) => tokio::time::sleep(REDIAL_AFTER).await,
            }
        }
    }

    /// Has the caller prove the user's key, and reads its first frame.
    async fn greeted(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Frame)> {
        stream.set_nodelay(true)?;
        let mut stream = timeout(PATIENCE, self.acceptor.accept(stream)).await??;
        let theirs = timeout(PATIENCE, Frame::read(&mut stream)).await??;
        Ok((stream, theirs))
    }

    fn begin(&self, link: impl Future<Output = io::Result<()>> + Send + 'static) {
        self.spawn(async move {
            if let Err(error) = link.await {
                tracing::debug!(%error, "a link to this seat ended");
            }
        });
    }

    async fn accepted(self: Arc<Self>, mut stream: TlsStream<TcpStream>, theirs: Frame) -> io::Result<()> {
        if let Frame::Visit(visit) = theirs {
            let visitor = Visitor::received(self.me, visit, stream)?;
            self.tell(Event::Visited(visitor));
            return Ok(());
        }
        stream.write_all(&self.hello().encode()).await?;
        stream.flush().await?;
        let seat = greeted(theirs, None)?;
        self.carry(stream, seat).await
    }

    async fn dial(self: Arc<Self>, seat: JobId) -> io::Result<()> {
        let book = self.book.clone();
        // The home may hang.
        let address = tokio::task::spawn_blocking(move || book.address(seat)).await??;
        let address = address.ok_or(io::ErrorKind::NotFound)?;
        let stream = timeout(PATIENCE, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        let mut stream = timeout(PATIENCE, self.connector.connect(front_name(), stream)).await??;
        stream.write_all(&self.hello().encode()).await?;
        stream.flush().await?;
        let theirs = timeout(PATIENCE, Frame::read(&mut stream)).await??;
        let seat = greeted(theirs, Some(seat))?;
        self.carry(stream, seat).await
    }

    fn hello(&self) -> Frame {
        Frame::Hello(Hello {
            version: VERSION,
            seat: self.me,
        })
    }

    /// Carries frames until the link breaks.
    async fn carry<S: AsyncRead + AsyncWrite + Send>(
        self: &Arc<Self>,
        stream: S,
        seat: JobId,
    ) -> io::Result<()> {
        let (read, write) = tokio::io::split(stream);
        let link = Arc::new(Link::default());
        let _table = InTable::enter(self, seat, &link);
        let reading = async {
            let mut read = BufReader::new(read);
            loop {
                self.take(Frame::read(&mut read).await?, seat, &link);
            }
        };
        tokio::select! {
            ended = link.write(write) => ended,
            ended = reading => ended,
            () = link.superseded.notified() => Ok(()),
        }
    }

    fn take(self: &Arc<Self>, frame: Frame, seat: JobId, link: &Arc<Link>) {
        match frame {
            Frame::Ping { hears, word } => {
                let now = self.now();
                self.hear(|hearing| {
                    hearing.pinged(seat, hears, now);
                    if let Some(Word { group, says }) = word {
                        hearing.said(seat, group, says);
                    }
                });
            }
            Frame::Ask {
                number,
                group,
                to,
                message,
            } => {
                let hosted = lock(&self.hosted).get(&group).filter(|h| h.me == to).cloned();
                if hosted.is_none() {
                    self.tell(Event::Invited { group, me: to });
                }
                let link = Arc::clone(link);
                self.spawn(async move {
                    let answer = match hosted {
                        Some(hosted) => hosted.member.receive(message).await.ok(),
                        None => None,
                    };
                    link.send(&match answer {
                        Some(message) => Frame::Answer { number, message },
                        None => Frame::Refused { number },
                    });
                });
            }
            Frame::Answer { number, message } => link.answered(number, Some(message)),
            Frame::Refused { number } => link.answered(number, None),
            Frame::Stand { group, to } => {
                let hosted = lock(&self.hosted).get(&group).filter(|h| h.me == to).cloned();
                if let Some(hosted) = hosted {
                    self.spawn(async move { hosted.member.campaign().await });
                }
            }
            Frame::Close { group } => self.tell(Event::Closed { group }),
            Frame::Asks { group, member } => {
                let hosted = lock(&self.hosted).get(&group).cloned();
                if hosted.is_some_and(|h| h.member.has_left(member)) {
                    link.send(&Frame::Left { group, member });
                }
            }
            Frame::Left { group, member } => {
                let is_ours = lock(&self.hosted).get(&group).is_some_and(|h| h.me == member);
                if is_ours {
                    self.tell(Event::Closed { group });
                }
            }
            Frame::Hello(_) | Frame::Visit(_) => {}
        }
    }

    fn tell(&self, event: Event) {
        // A host that doesn't listen lets its kernels run with fewer replicas.
        let _ = self.events.send(event);
    }

    /// Tells the group's other seats of its end.
    pub(crate) fn tell_closed(&self, group: &str) {
        let seats = lock(&self.shared).get(group).cloned().unwrap_or_default();
        lock(&self.closed).insert(group.to_owned(), (seats, self.now()));
        self.close_again(self.now());
    }

    /// Tells again and again which groups are over, since a link may be new. Returns whether there are any.
    fn close_again(&self, now: Timestamp) -> bool {
        let closed = still_told(&self.closed, now);
        for (group, (seats, _)) in &closed {
            let group = group.clone();
            let close = Frame::Close { group };
            seats.iter().for_each(|seat| self.send(*seat, &close));
        }
        !closed.is_empty()
    }

    fn link(&self, seat: JobId) -> Option<Arc<Link>> {
        lock(&self.table).get(&seat)?.last().cloned()
    }

    /// Sends a frame that needs no answer, if there is a link with the seat.
    pub(crate) fn send(&self, seat: JobId, frame: &Frame) {
        if let Some(link) = self.link(seat) {
            link.send(frame);
        }
    }

    /// Pings all peers and dials the missing ones, until the keeper ends. Without peers nothing happens.
    pub(crate) async fn ping(self: Arc<Self>) {
        loop {
            let closes = self.close_again(self.now());
            if !closes && !self.hear(|hearing| hearing.has_peers()) {
                self.wake.notified().await;
            }
            let now = self.now();
            let (hears, missing) =
                self.hear(|hearing| (hearing.ping(now), hearing.to_dial(now).collect::<Vec<_>>()));
            self.ping_all(&hears, None);
            for group in self.rested(now) {
                let says = Says::Rests;
                self.ping_all(&hears, Some(Word { group, says }));
            }
            // Again and again, since they are few, and a link may be new.
            let failed = lock(&self.failed).clone();
            for (group, member) in failed {
                let says = Says::Failed(member);
                self.ping_all(&hears, Some(Word { group, says }));
            }
            self.tell_ended(&hears, now);
            for seat in missing {
                self.dial_once(seat);
            }
            let next = Duration::from_micros(PING_EVERY.0);
            // A timeout is the usual case.
            let _ = timeout(next, self.wake.notified()).await;
        }
    }

    fn ping_all(&self, hears: &BTreeSet<JobId>, word: Option<Word>) {
        let links: Vec<_> = lock(&self.table).values().flatten().cloned().collect();
        let frame = Frame::Ping {
            hears: hears.clone(),
            word,
        };
        for link in links {
            link.send(&frame);
        }
    }

    /// The executor's process of this tenure has ended here.
    pub(crate) fn ended(&self, group: &str, tenure: Tenure) {
        let now = self.now();
        lock(&self.ended).insert(group.to_owned(), (tenure, now));
        self.wake.notify_one();
    }

    /// Tells which executors' processes have ended: again and again, since a link may be new.
    fn tell_ended(&self, hears: &BTreeSet<JobId>, now: Timestamp) {
        for (group, (tenure, _)) in still_told(&self.ended, now) {
            let says = Says::Ended(tenure);
            self.ping_all(hears, Some(Word { group, says }));
        }
    }

    /// Groups that have been at rest for long enough to be told.
    fn rested(&self, now: Timestamp) -> Vec<String> {
        let mut resting = lock(&self.resting);
        let due = resting
            .iter_mut()
            .filter(|(_, rest)| !rest.told && now.since(rest.since) >= TOLD_AFTER_REST);
        let due = due.map(|(group, rest)| {
            rest.told = true;
            group.clone()
        });
        due.collect()
    }

    /// The executor here says whether its kernel is at rest. The other seats hear of the end of a rest at once.
    pub(crate) fn rests(&self, group: &str, rests: bool) {
        let now = self.now();
        if rests {
            let since = Resting {
                since: now,
                told: false,
            };
            lock(&self.resting).entry(group.to_owned()).or_insert(since);
            return;
        }
        let before = lock(&self.resting).remove(group);
        // A peer may know it though a later link waits to be told.
        if before.is_some_and(|rest| now.since(rest.since) >= TOLD_AFTER_REST) {
            let hears = self.hear(|hearing| hearing.ping(now));
            let group = group.to_owned();
            let says = Says::Works;
            self.ping_all(&hears, Some(Word { group, says }));
        }
    }

    /// This seat's member of a group can't go on: its peers hear so at once, until the seat has left the group. Returns
    /// whether this is news.
    pub(crate) fn fail(&self, group: &str, member: Incarnation) -> bool {
        let mut failed = lock(&self.failed);
        let is_news =
            lock(&self.hosted).contains_key(group) && failed.insert(group.to_owned(), member) != Some(member);
        if is_news {
            self.wake.notify_one();
        }
        is_news
    }

    /// The seat's part of the group is over.
    pub(crate) fn leave(&self, group: &str) -> Option<Hosted> {
        let hosted = lock(&self.hosted).remove(group);
        self.share(group, BTreeSet::new());
        self.rests(group, false);
        lock(&self.failed).remove(group);
        hosted
    }

    fn dial_once(self: &Arc<Self>, seat: JobId) {
        if !lock(&self.dialing).insert(seat) {
            return;
        }
        let links = Arc::clone(self);
        self.spawn(async move {
            if let Err(error) = Arc::clone(&links).dial(seat).await {
                tracing::debug!(%seat, %error, "the link to a seat ended");
                let confirms = links.hear(|hearing| match error.kind() {
                    io::ErrorKind::ConnectionRefused => hearing.refused(seat),
                    // An ending keeper strikes its address. A beginning keeper has entered none yet.
                    io::ErrorKind::NotFound => hearing.had_link(seat) && hearing.refused(seat),
                    _ => false,
                });
                tokio::time::sleep(if confirms { CONFIRMS_AFTER } else { REDIAL_AFTER }).await;
            }
            lock(&links.dialing).remove(&seat);
            links.wake.notify_one();
        });
    }
}

type Noted<T> = BTreeMap<String, (T, Timestamp)>;

/// The notes young enough to be told again. Forgets the others.
fn still_told<T: Clone>(noted: &Mutex<Noted<T>>, now: Timestamp) -> Noted<T> {
    let mut noted = lock(noted);
    noted.retain(|_, (_, since)| now.since(*since) < TOLD_AFTER_END);
    noted.clone()
}

/// The link's place in the table, until it breaks or its task is ended.
struct InTable {
    links: Arc<Links>,
    seat: JobId,
    link: Arc<Link>,
}

impl InTable {
    fn enter(links: &Arc<Links>, seat: JobId, link: &Arc<Link>) -> Self {
        {
            let mut table = lock(&links.table);
            let of_seat = table.entry(seat).or_default();
            of_seat.push(Arc::clone(link));
            if of_seat.len() > LINKS_MAX {
                of_seat[0].superseded.notify_one();
            }
        }
        let now = links.now();
        let hears = links.hear(|hearing| {
            hearing.linked(seat, now);
            hearing.ping(now)
        });
        link.send(&Frame::Ping { hears, word: None });
        // The new link begins without word of what rests here.
        for rest in lock(&links.resting).values_mut() {
            rest.told = false;
        }
        // If this link falls silent, another dial may follow.
        lock(&links.dialing).remove(&seat);
        links.wake.notify_one();
        Self {
            links: Arc::clone(links),
            seat,
            link: Arc::clone(link),
        }
    }
}

impl Drop for InTable {
    fn drop(&mut self) {
        if let Some(of_seat) = lock(&self.links.table).get_mut(&self.seat) {
            of_seat.retain(|l| !Arc::ptr_eq(l, &self.link));
        }
        self.link.broken();
        let now = self.links.now();
        self.links.hear(|hearing| hearing.unlinked(self.seat, now));
        // The seat is dialled at once, and the others hear of the missing seat: voters wait for the news.
        self.links.wake.notify_one();
    }
}

/// The way of one group's messages.
#[derive(Debug, Clone)]
pub struct Wire {
    pub(crate) links: Arc<Links>,
    pub(crate) group: String,
    /// The seats of the group's members.
    pub(crate) seats: Arc<Mutex<BTreeMap<Incarnation, JobId>>>,
}

impl Transport for Wire {
    async fn ask(&self, to: Incarnation, message: Bytes) -> Result<Bytes, Unreachable> {
        let seat = lock(&self.seats).get(&to).copied().ok_or(Unreachable)?;
        let link = self.links.link(seat).ok_or(Unreachable)?;
        let group = self.group.clone();
        link.ask(message.len(), |number| Frame::Ask {
            number,
            group,
            to,
            message,
        })
        .await
    }
}
