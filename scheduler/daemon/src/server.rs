//! Connections: accepting them, proving callers, and carrying messages to and from the scheduler's task.
//!
//! A connection is two tasks, a reader and a writer. The reader limits each user's messages per second, and waits for
//! room in the user's queue to the scheduler: a flood slows its sender alone. The writer's queue is bounded, and a
//! caller that doesn't read is disconnected. Unproven callers are few at a time.

use crate::access::over_quota;
use crate::caller::{Caller, ConnId, Incoming, Outgoing};
use crate::inbox::Inbox;
use crate::names::{NameError, Names};
use hop_api::channel::{self, Accepted, ChannelError, FROM_USER_LIMIT, Timeouts};
use hop_api::config::{Config, Quota};
use hop_api::handshakes::HandshakeLimit;
use hop_api::identity::{Identity, Proven};
use hop_api::message::{FromHopd, Refusal, Response, Role, ToHopd, VERSION, Welcome};
use hop_words::id::{Term, UserName};
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::BufReader;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tracing::{debug, info, warn};

/// Most messages in wait for one caller.
const OUTGOING: usize = 4096;
/// Most unproven connections in all.
const UNPROVEN: usize = 256;
/// Most credentials at MUNGE at a time: each takes about a millisecond.
const DECODES: usize = 8;
/// Seconds' worth of messages that a user may send at once.
const BURST: f64 = 5.0;
/// Cost of a new connection, in messages.
const ARRIVAL: f64 = 10.0;

/// Admitted callers, and the present load of each user.
#[derive(Debug)]
pub(crate) struct Server {
    identity: Arc<dyn Identity>,
    names: Names,
    service_uid: u32,
    operators: BTreeSet<UserName>,
    term: Term,
    timeouts: Timeouts,
    quota: Quota,
    inbox: Arc<Inbox>,
    /// Credentials that MUNGE may be asked about at a time.
    decodes: Semaphore,
    /// Loads of users, by uid.
    loads: Mutex<HashMap<u32, Load>>,
}

/// The present load of one user.
#[derive(Debug)]
pub(crate) struct Load {
    connections: usize,
    /// Messages that may come at once.
    tokens: f64,
    at: Instant,
}

impl Load {
    fn new(quota: &Quota, now: Instant) -> Self {
        Self {
            connections: 0,
            tokens: BURST * f64::from(quota.messages_per_s),
            at: now,
        }
    }

    /// Counts `messages` and says how long the sender has to be made to wait.
    fn pace(&mut self, messages: f64, quota: &Quota, now: Instant) -> Duration {
        let rate = f64::from(quota.messages_per_s);
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        self.at = now;
        self.tokens = (self.tokens + gained).min(BURST * rate) - messages;
        Duration::from_secs_f64((-self.tokens / rate).max(0.0))
    }
}

impl Server {
    pub(crate) fn new(
        identity: Arc<dyn Identity>,
        names: Names,
        service_uid: u32,
        term: Term,
        inbox: Arc<Inbox>,
        config: &Config,
    ) -> Self {
        Self {
            identity,
            names,
            service_uid,
            operators: config.operators.iter().cloned().collect(),
            term,
            timeouts: Timeouts::default(),
            quota: config.quota.clone(),
            inbox,
            decodes: Semaphore::new(DECODES),
            loads: Mutex::default(),
        }
    }

    /// Identifies the caller, and composes the welcome.
    async fn judge(&self, proven: &Proven, role: Role) -> Result<(Caller, Welcome), Refusal> {
        let uid = proven.uid;
        let person = self.names.of_uid(uid).await.map_err(|error| {
            let reason = error.to_string();
            match error {
                NameError::Unknown(_) => Refusal::Unauthenticated { reason },
                NameError::Silent => Refusal::Unavailable { reason },
            }
        })?;
        let user = person.user;
        if role == Role::Agent && uid != self.service_uid {
            return Err(Refusal::Forbidden {
                reason: format!("{user} is not the service account, so it runs no agents"),
            });
        }
        let operator = self.operators.contains(&user);
        let most = self.quota.connections;
        if !self.is_trusted(uid, operator) && self.load(uid, |l| l.connections) >= most {
            return Err(over_quota(&user, "connections", most));
        }
        let welcome = Welcome {
            version: VERSION,
            term: self.term,
            operator,
            user: user.clone(),
        };
        let caller = Caller {
            uid,
            user,
            groups: person.groups,
            operator,
            role,
        };
        Ok((caller, welcome))
    }

    /// Has no quotas.
    fn is_trusted(&self, uid: u32, operator: bool) -> bool {
        uid == self.service_uid || operator
    }

    fn load<T>(&self, uid: u32, ask: impl FnOnce(&mut Load) -> T) -> T {
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let load = loads.entry(uid).or_insert_with(|| Load::new(&self.quota, now));
        ask(load)
    }

    /// Lets a connection in; not if the user has as many as they may, of which some came in meanwhile.
    fn enter(&self, uid: u32, trusted: bool) -> bool {
        self.load(uid, |l| {
            if !trusted && l.connections >= self.quota.connections {
                return false;
            }
            l.connections += 1;
            true
        })
    }

    fn leave(&self, uid: u32) {
        self.load(uid, |l| l.connections -= 1);
    }

    /// Waiting time of a user with this load.
    fn pace(&self, uid: u32, messages: f64) -> Duration {
        self.load(uid, |l| l.pace(messages, &self.quota, Instant::now()))
    }
}

/// Accepts connections for ever.
pub(crate) async fn serve(listener: TcpListener, server: Arc<Server>) {
    let mut handshakes = HandshakeLimit::new(UNPROVEN);
    let mut next = 0u64;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!("no connection could be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        next += 1;
        let conn = ConnId(next);
        let server = server.clone();
        let proving = tokio::spawn(async move {
            match tokio::time::timeout(server.timeouts.handshake, prove(stream, &server)).await {
                // Spawned separately: the limit on unproven connections no longer applies.
                Ok(Ok((accepted, caller))) => drop(tokio::spawn(talk(conn, accepted, caller, server))),
                Ok(Err(error)) => debug!(%peer, "a caller was not let in: {error}"),
                Err(_) => debug!(%peer, "a caller took too long to prove who they are"),
            }
        });
        handshakes.begin(peer.ip(), proving.abort_handle());
    }
}

type Channel = Accepted<BufReader<OwnedReadHalf>, OwnedWriteHalf>;

async fn prove(stream: TcpStream, server: &Server) -> Result<(Channel, Caller), ChannelError> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let (read, identity) = (BufReader::new(read), server.identity.clone());
    let arrival = channel::receive(read, write, identity, &server.decodes, server.timeouts).await?;
    let (caller, judged) = match server.judge(&arrival.caller, arrival.role).await {
        Ok((caller, welcome)) => (Some(caller), Ok(welcome)),
        Err(refusal) => (None, Err(refusal)),
    };
    let channel = arrival.answer(judged).await?;
    let caller = caller.expect("a caller who was welcomed has a name");
    Ok((channel, caller))
}

/// Carries a connection's messages both ways until it ends.
async fn talk(conn: ConnId, channel: Channel, caller: Caller, server: Arc<Server>) {
    let Accepted {
        mut reader,
        mut writer,
        role,
        ..
    } = channel;
    let (outgoing, mut queue) = mpsc::channel::<Outgoing>(OUTGOING);
    let trusted = server.is_trusted(caller.uid, caller.operator);
    if !server.enter(caller.uid, trusted) {
        let body = Response::Refused(over_quota(&caller.user, "connections", server.quota.connections));
        let _ = writer.send(&FromHopd { id: 0, body }).await;
        return;
    }
    if role != Role::Agent {
        reader.limit_to(FROM_USER_LIMIT);
    }
    debug!(?conn, user = %caller.user, ?role, "connected");
    let uid = caller.uid;
    let pace = |messages| {
        if trusted {
            Duration::ZERO
        } else {
            server.pace(uid, messages)
        }
    };
    tokio::time::sleep(pace(ARRIVAL)).await;
    let sender = outgoing.downgrade();
    let opened = Incoming::Opened {
        conn,
        caller,
        outgoing,
    };
    server.inbox.push(uid, opened).await;
    let writing = tokio::spawn(async move {
        while let Some(Outgoing { id, body, unread }) = queue.recv().await {
            // A message under way takes as much room as a waiting one.
            let _room = sender.upgrade().and_then(|s| s.try_reserve_owned().ok());
            let mut sent = writer.send(&FromHopd { id, body }).await;
            if let Err(error @ ChannelError::Oversize { .. }) = &sent {
                warn!(?conn, "an answer is too long to be sent: {error}");
                let body = Response::Refused(Refusal::Invalid {
                    reason: "the answer is too long to be sent: ask for less".into(),
                });
                sent = writer.send(&FromHopd { id, body }).await;
            }
            if let Err(error) = sent {
                debug!(?conn, "a message could not be sent: {error}");
                break;
            }
            drop(unread);
        }
        writer.close().await;
    });
    let abort = writing.abort_handle();
    tokio::select! {
        () = read_all(conn, uid, &mut reader, &server.inbox, &pace) => {}
        // The scheduler hung up, or the caller doesn't read.
        _ = writing => {}
    }
    server.inbox.push(uid, Incoming::Closed { conn }).await;
    // Queued messages still go out; the queue closes when the scheduler drops its record of the connection.
    tokio::time::sleep(Duration::from_secs(1)).await;
    abort.abort();
    server.leave(uid);
}

async fn read_all(
    conn: ConnId,
    uid: u32,
    reader: &mut channel::Reader<BufReader<OwnedReadHalf>>,
    inbox: &Inbox,
    pace: &impl Fn(f64) -> Duration,
) {
    loop {
        match reader.receive::<ToHopd>().await {
            Ok(message) => {
                tokio::time::sleep(pace(1.0)).await;
                inbox.push(uid, Incoming::Message { conn, message }).await;
            }
            Err(ChannelError::Closed) => return,
            Err(error) => {
                info!(?conn, "a connection ends: {error}");
                return;
            }
        }
    }
}

/// Binds the address that the configuration names.
pub(crate) async fn listen(address: &str) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::identity::IdentityError;
    use hop_api::message::Request;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn quota() -> Quota {
        Quota {
            connections: 2,
            messages_per_s: 10,
            ..Quota::default()
        }
    }

    #[test]
    fn who_sends_too_much_waits_for_as_long_as_it_takes_to_be_within_the_rate() {
        let start = Instant::now();
        let mut load = Load::new(&quota(), start);
        for _ in 0..50 {
            assert_eq!(load.pace(1.0, &quota(), start), Duration::ZERO);
        }
        assert_eq!(load.pace(1.0, &quota(), start), Duration::from_millis(100));
        assert_eq!(load.pace(9.0, &quota(), start), Duration::from_secs(1));
        let later = start + Duration::from_secs(2);
        assert_eq!(load.pace(1.0, &quota(), later), Duration::ZERO);
        // Users save up no more than a burst, however long they rest.
        let later = later + Duration::from_secs(3600);
        assert_eq!(load.pace(60.0, &quota(), later), Duration::from_secs(1));
    }

    /// A stand-in for MUNGE: claims this uid and believes all others. MUNGE itself speaks for one uid per process.
    #[derive(Debug)]
    struct Says(u32);

    impl Identity for Says {
        fn encode(&self, payload: &[u8], _: u32) -> Result<String, IdentityError> {
            let words: Vec<String> = [self.0]
                .into_iter()
                .chain(payload.iter().map(|b| u32::from(*b)))
                .map(|n| n.to_string())
                .collect();
            Ok(words.join(","))
        }

        fn decode(&self, credential: &str) -> Result<Proven, IdentityError> {
            let mut numbers = credential.split(',').map(|w| w.parse::<u32>().unwrap());
            Ok(Proven {
                uid: numbers.next().unwrap(),
                gid: 0,
                payload: numbers.map(|n| n as u8).collect(),
            })
        }
    }

    /// Believes everybody, slowly, and counts how many it is asked about at a time.
    #[derive(Debug, Default)]
    struct Slow {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Identity for Slow {
        fn encode(&self, payload: &[u8], uid: u32) -> Result<String, IdentityError> {
            Says(uid).encode(payload, uid)
        }

        fn decode(&self, credential: &str) -> Result<Proven, IdentityError> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(5));
            self.now.fetch_sub(1, Ordering::SeqCst);
            Says(0).decode(credential)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn munge_is_asked_about_few_callers_at_a_time() {
        let (listener, address) = listen("127.0.0.1:0").await.unwrap();
        let identity = Arc::new(Slow::default());
        let names = Names::of_host().unwrap();
        let inbox = Arc::new(Inbox::new(0));
        let server = Server::new(identity.clone(), names, 0, Term(1), inbox, &Config::default());
        tokio::spawn(serve(listener, Arc::new(server)));
        let callers: Vec<_> = (0..60)
            .map(|_| tokio::spawn(async move { client(address, 0).await.is_ok() }))
            .collect();
        for caller in callers {
            assert!(caller.await.unwrap());
        }
        let most = identity.most.load(Ordering::SeqCst);
        assert!((2..=DECODES).contains(&most), "{most}");
    }

    const MALLORY: u32 = 1;
    const BOB: u32 = 2;

    /// A server whose scheduler answers pings and counts messages by uid. All else it answers at too great length.
    async fn served(quota: Quota) -> (SocketAddr, Arc<Mutex<HashMap<u32, usize>>>) {
        let (listener, address) = listen("127.0.0.1:0").await.unwrap();
        let inbox = Arc::new(Inbox::new(0));
        let config = Config {
            quota,
            ..Config::default()
        };
        let names = Names::of_host().unwrap();
        let server = Server::new(Arc::new(Says(0)), names, 0, Term(1), inbox.clone(), &config);
        tokio::spawn(serve(listener, Arc::new(server)));
        let heard = Arc::new(Mutex::new(HashMap::new()));
        let counts = heard.clone();
        tokio::spawn(async move {
            let mut open = HashMap::new();
            loop {
                match inbox.next().await.1 {
                    Incoming::Opened {
                        conn,
                        caller,
                        outgoing,
                    } => drop(open.insert(conn, (caller.uid, outgoing))),
                    Incoming::Closed { conn } => drop(open.remove(&conn)),
                    Incoming::Message { conn, message } => {
                        let (uid, outgoing) = &open[&conn];
                        *counts.lock().unwrap().entry(*uid).or_default() += 1;
                        let long = || Refusal::Invalid {
                            reason: "x".repeat(channel::FROM_HOPD_LIMIT),
                        };
                        let answer = Outgoing {
                            id: message.id,
                            body: match message.body {
                                Request::Ping => Response::Pong,
                                _ => Response::Refused(long()),
                            },
                            unread: None,
                        };
                        let _ = outgoing.try_send(answer);
                    }
                }
            }
        });
        (address, heard)
    }

    type Client = channel::Connected<BufReader<OwnedReadHalf>, OwnedWriteHalf>;

    async fn client(address: SocketAddr, uid: u32) -> Result<Client, ChannelError> {
        let introduction = channel::Introduction::make(Arc::new(Says(uid)), 0).await?;
        let (read, write) = TcpStream::connect(address).await?.into_split();
        let read = BufReader::new(read);
        channel::connect(read, write, Role::Client, introduction, Timeouts::default()).await
    }

    fn ping(id: u64) -> ToHopd {
        ToHopd {
            id,
            body: Request::Ping,
        }
    }

    #[tokio::test]
    async fn a_flood_of_one_user_is_theirs_to_wait_for() {
        let quota = Quota {
            connections: 3,
            messages_per_s: 50,
            ..Quota::default()
        };
        let (address, heard) = served(quota).await;
        let start = Instant::now();
        let mut flood = Vec::new();
        for _ in 0..3 {
            let mut mallory = client(address, MALLORY).await.unwrap();
            flood.push(tokio::spawn(async move {
                for id in 0..2000 {
                    if mallory.writer.send(&ping(id)).await.is_err() {
                        break;
                    }
                }
                std::future::pending::<()>().await;
            }));
        }
        let fourth = client(address, MALLORY).await.unwrap_err().to_string();
        assert!(fourth.contains("daemon has 3 connections already"), "{fourth}");
        let mut bob = client(address, BOB).await.unwrap();
        for id in 1..=40 {
            let asked = Instant::now();
            bob.writer.send(&ping(id)).await.unwrap();
            bob.reader.receive::<FromHopd>().await.unwrap();
            assert!(asked.elapsed() < Duration::from_secs(1), "bob waited for mallory");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let most = (BURST + start.elapsed().as_secs_f64() + 0.2) * 50.0;
        let said = heard.lock().unwrap()[&MALLORY];
        assert!(
            said > 100 && said as f64 <= most,
            "{said} of mallory's messages, at most {most}"
        );
        flood.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_told_and_the_channel_goes_on() {
        let (address, _) = served(Quota::default()).await;
        let mut bob = client(address, BOB).await.unwrap();
        let body = Request::Info;
        bob.writer.send(&ToHopd { id: 1, body }).await.unwrap();
        bob.writer.send(&ping(2)).await.unwrap();
        let told: FromHopd = bob.reader.receive().await.unwrap();
        assert!(
            matches!(&told.body, Response::Refused(Refusal::Invalid { reason }) if reason.contains("too long")),
            "{told:?}"
        );
        let pong: FromHopd = bob.reader.receive().await.unwrap();
        assert_eq!((told.id, pong.id), (1, 2));
        assert!(matches!(pong.body, Response::Pong));
    }

    #[tokio::test]
    async fn silent_strangers_and_large_messages_keep_nobody_out() {
        let (address, heard) = served(Quota::default()).await;
        let mut strangers = Vec::new();
        for _ in 0..UNPROVEN + 50 {
            strangers.push(TcpStream::connect(address).await.unwrap());
        }
        let mut bob = client(address, BOB).await.unwrap();
        bob.writer.send(&ping(1)).await.unwrap();
        bob.reader.receive::<FromHopd>().await.unwrap();
        let mut mallory = client(address, MALLORY).await.unwrap();
        let large = Request::Explain {
            kernel: "x".repeat(FROM_USER_LIMIT + 1).into(),
            cell: None,
        };
        mallory.writer.send(&ToHopd { id: 1, body: large }).await.unwrap();
        assert!(mallory.reader.receive::<FromHopd>().await.is_err(), "hung up");
        assert_eq!(heard.lock().unwrap().get(&MALLORY), None);
    }
}
