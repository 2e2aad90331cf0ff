//! A connection to `hopd` with reconnection, and a one-shot call for clients with a single question.
//!
//! [`start`] runs the connection in a task of its own. Events, and the start and end of each connection, arrive as
//! [`Item`]s in order. After each [`Item::Connected`] the owner registers again, since a restarted `hopd` remembers
//! no connection. Requests fail at once while there is no connection: an owner keeps important ones and repeats them
//! when registering.

use crate::channel::{self, ChannelError, Introduction, Timeouts};
use crate::config::Config;
use crate::dial::first_of;
use crate::identity::{Identity, Munge, SilentError, user_id};
use crate::message::{Event, FromHopd, Order, Refusal, Request, Response, Role, ToHopd, Welcome};
use hop_words::error::chain;
use hop_words::id::{CellId, KernelId, UserName};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

/// Most requests in wait of the connection's task.
const COMMANDS: usize = 1024;

/// Submissions whose refusal is still told from that of others.
const SUBMITTED: usize = 64;

/// How to reach `hopd`, and as what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Dialled in this order, beside each other.
    pub addresses: Vec<String>,
    /// The only uid that may answer.
    pub service_uid: u32,
    pub role: Role,
    pub identity: Arc<dyn Identity>,
    pub timeouts: Timeouts,
    /// Least and greatest wait between two rounds of tries.
    pub backoff: (Duration, Duration),
    /// Interval of the client's pings.
    pub ping: Duration,
}

impl Options {
    /// As the configuration says, with the site's `munged`.
    ///
    /// # Errors
    /// [`CallError::NoServiceUser`], [`CallError::NoUsers`].
    pub fn from_config(config: &Config, role: Role) -> Result<Self, CallError> {
        let service_uid = user_id(config.service_user.as_str())?;
        let service_uid = service_uid.ok_or_else(|| CallError::NoServiceUser {
            user: config.service_user.clone(),
        })?;
        Ok(Self {
            addresses: config.hopd.connect.clone(),
            service_uid,
            role,
            identity: Arc::new(Munge {
                socket: config.munge_socket.clone(),
            }),
            timeouts: Timeouts::default(),
            backoff: (Duration::from_millis(100), Duration::from_secs(5)),
            ping: Duration::from_secs(10),
        })
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("this host knows no user {user} (service_user in the configuration)")]
    NoServiceUser { user: UserName },
    #[error(transparent)]
    NoUsers(#[from] SilentError),
    #[error("hopd does not answer on {addresses}: {reason}")]
    Unreachable { addresses: String, reason: String },
    #[error("the connection to hopd is down")]
    Disconnected,
    #[error("hopd took longer than {} s to answer", .0.as_secs())]
    Timeout(Duration),
    #[error("{0}")]
    Refused(Refusal),
}

/// What a connection brings its owner.
#[derive(Debug)]
pub enum Item {
    /// There is a (new) connection: register now.
    Connected(Welcome),
    /// The connection is gone, or could not be made; tries go on. Said once for each reason.
    Disconnected {
        reason: String,
        /// Set where `hopd` itself said no: the same will be refused again until a person acts.
        refusal: Option<Refusal>,
    },
    Event(Event),
    Order(Order),
    /// A request without an expected answer was refused.
    Refused {
        refusal: Refusal,
        /// The cell of a refused [`Request::Submit`], for which a caller waits.
        submitted: Option<(KernelId, CellId)>,
    },
}

/// A handle to the connection; cheap to clone. The connection ends with its last handle.
#[derive(Debug, Clone)]
pub struct Client {
    commands: mpsc::Sender<Command>,
}

/// The items of one connection.
#[derive(Debug)]
pub struct Items(mpsc::UnboundedReceiver<Item>);

impl Items {
    /// The next item; none once the connection has ended with its last handle. Cancel-safe.
    pub async fn next(&mut self) -> Option<Item> {
        self.0.recv().await
    }
}

#[derive(Debug)]
enum Command {
    Ask(Request, Answer),
    Tell(Request),
    /// Hang up and try again, the next address first.
    HangUp(String),
}

type Answer = oneshot::Sender<Result<Response, CallError>>;

impl Command {
    fn fail(self) {
        if let Self::Ask(_, answer) = self {
            let _ = answer.send(Err(CallError::Disconnected));
        }
    }
}

impl Client {
    /// Asks and waits for the answer. A refusal is an error.
    pub async fn request(&self, request: Request) -> Result<Response, CallError> {
        let (tx, rx) = oneshot::channel();
        self.commands
            .send(Command::Ask(request, tx))
            .await
            .map_err(|_| CallError::Disconnected)?;
        rx.await.unwrap_or(Err(CallError::Disconnected))
    }

    /// Reports without waiting for an answer. A request is dropped while there is no connection: see
    /// [`Item::Connected`].
    pub async fn send(&self, request: Request) -> Result<(), CallError> {
        self.commands
            .send(Command::Tell(request))
            .await
            .map_err(|_| CallError::Disconnected)
    }

    /// As [`Client::send`], for callers that can't wait.
    pub fn try_send(&self, request: Request) -> Result<(), CallError> {
        self.commands
            .try_send(Command::Tell(request))
            .map_err(|_| CallError::Disconnected)
    }

    /// Hangs up on a `hopd` that is not to be obeyed (an older term); the next address is tried first.
    pub async fn hang_up(&self, reason: &str) {
        let _ = self.commands.send(Command::HangUp(reason.into())).await;
    }
}

/// Starts a connection that is held until the last [`Client`] is dropped.
pub fn start(options: Options) -> (Client, Items) {
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let (items, stream) = mpsc::unbounded_channel();
    tokio::spawn(
        Connection {
            options,
            commands: receiver,
            items,
            last_reason: None,
            reached: String::new(),
            last_choice: None,
        }
        .run(),
    );
    (Client { commands }, Items(stream))
}

type Channel = channel::Connected<BufReader<OwnedReadHalf>, OwnedWriteHalf>;

struct Connection {
    options: Options,
    commands: mpsc::Receiver<Command>,
    items: mpsc::UnboundedSender<Item>,
    last_reason: Option<String>,
    /// The address of the present connection, or of the last one.
    reached: String,
    /// The address of the `hopd` that was hung up on: dialled after all others.
    last_choice: Option<String>,
}

/// Why the connection's task goes on, or doesn't.
enum After {
    Reconnect,
    /// Nobody holds a handle any more.
    End,
}

impl Connection {
    async fn run(mut self) {
        let mut wait = self.options.backoff.0;
        loop {
            let attempt = {
                let (options, last) = (self.options.clone(), self.last_choice.clone());
                let connecting = async move { open(&options, last.as_deref()).await };
                match self.meanwhile(connecting).await {
                    Some(attempt) => attempt,
                    None => return,
                }
            };
            match attempt {
                Ok((address, channel)) => {
                    self.reached = address;
                    wait = self.options.backoff.0;
                    self.last_reason = None;
                    let _ = self.items.send(Item::Connected(channel.welcome.clone()));
                    if let After::End = self.serve(channel).await {
                        return;
                    }
                }
                Err(error) => self.disconnected(&error),
            }
            // Spread out, to keep clients from meeting a restarted hopd all at once.
            let pause = wait.mul_f64(0.5 + 0.5 * rand::random::<f64>());
            if self.meanwhile(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            wait = (wait * 2).min(self.options.backoff.1);
        }
    }

    fn disconnected(&mut self, error: &ChannelError) {
        let refusal = match error {
            ChannelError::Refused(refusal) => Some(refusal.clone()),
            _ => None,
        };
        let reason = chain(error);
        if self.last_reason.as_ref() != Some(&reason) {
            self.last_reason = Some(reason.clone());
            let _ = self.items.send(Item::Disconnected { reason, refusal });
        }
    }

    /// Does `work` while commands fail at once; none when the last handle is gone.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                command = self.commands.recv() => command?.fail(),
            }
        }
    }

    async fn serve(&mut self, channel: Channel) -> After {
        let Channel {
            mut reader,
            mut writer,
            ..
        } = channel;
        // Received by a separate task: a cancelled receive would lose its place in the stream.
        let (from, mut incoming) = mpsc::unbounded_channel();
        let reading = tokio::spawn(async move {
            loop {
                let message = reader.receive::<FromHopd>().await;
                let over = message.is_err();
                if from.send(message).is_err() || over {
                    return;
                }
            }
        });
        let mut pending = Pending::default();
        let mut next_id = 1u64;
        let mut ping = tokio::time::interval(self.options.ping);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (after, error) = loop {
            let sent = tokio::select! {
                command = self.commands.recv() => match command {
                    None => break (After::End, None),
                    Some(Command::HangUp(reason)) => {
                        self.last_choice = Some(self.reached.clone());
                        Err(ChannelError::Refused(Refusal::Unavailable { reason }))
                    }
                    Some(Command::Tell(body)) => {
                        let id = pending.told(&body, &mut next_id);
                        writer.send(&ToHopd { id, body }).await
                    }
                    Some(Command::Ask(body, answer)) => {
                        let id = next_id;
                        next_id += 1;
                        pending.asked.insert(id, answer);
                        writer.send(&ToHopd { id, body }).await
                    }
                },
                message = incoming.recv() => match message {
                    Some(Ok(message)) => {
                        self.dispatch(message, &mut pending);
                        Ok(())
                    }
                    Some(Err(error)) => Err(error),
                    None => Err(ChannelError::Closed),
                },
                _ = ping.tick() => writer.send(&ToHopd { id: 0, body: Request::Ping }).await,
            };
            if let Err(error) = sent {
                break (After::Reconnect, Some(error));
            }
        };
        writer.close().await;
        reading.abort();
        for (_, answer) in pending.asked {
            let _ = answer.send(Err(CallError::Disconnected));
        }
        if let Some(error) = error {
            self.disconnected(&error);
        }
        after
    }

    fn dispatch(&self, message: FromHopd, pending: &mut Pending) {
        let submitted = pending.submitted(message.id);
        if message.id != 0 && submitted.is_none() {
            if let Some(answer) = pending.asked.remove(&message.id) {
                let _ = answer.send(match message.body {
                    Response::Refused(refusal) => Err(CallError::Refused(refusal)),
                    body => Ok(body),
                });
            }
            return;
        }
        let item = match message.body {
            Response::Event(event) => Item::Event(event),
            Response::Order(order) => Item::Order(order),
            Response::Refused(refusal) => Item::Refused { refusal, submitted },
            _ => return,
        };
        let _ = self.items.send(item);
    }
}

/// What was sent and may be answered.
#[derive(Debug, Default)]
struct Pending {
    asked: HashMap<u64, Answer>,
    /// The last submissions. Only their refusals have the request's id, and those come at once.
    submitted: VecDeque<(u64, KernelId, CellId)>,
}

impl Pending {
    /// Id for a request without an answer: 0, unless its refusal must be told apart from others.
    fn told(&mut self, request: &Request, next_id: &mut u64) -> u64 {
        let Request::Submit { kernel, cell, .. } = request else {
            return 0;
        };
        let id = *next_id;
        *next_id += 1;
        if self.submitted.len() == SUBMITTED {
            self.submitted.pop_front();
        }
        self.submitted.push_back((id, kernel.clone(), cell.clone()));
        id
    }

    fn submitted(&mut self, id: u64) -> Option<(KernelId, CellId)> {
        let at = self.submitted.iter().position(|(own, ..)| *own == id)?;
        let (_, kernel, cell) = self.submitted.remove(at)?;
        Some((kernel, cell))
    }
}

/// A channel to the first `hopd` that welcomes the caller, with its address. A refusal by one doesn't keep the next from
/// being tried. `last` is dialled once all others have failed.
async fn open(options: &Options, last: Option<&str>) -> Result<(String, Channel), ChannelError> {
    let dial = |address: String| {
        let options = options.clone();
        async move {
            let channel = open_one(&address, &options).await?;
            Ok((address, channel))
        }
    };
    first_but(&options.addresses, last, dial).await
}

/// As [`first_of`], with one address left to the end, however slow the others are.
async fn first_but<T, F>(
    addresses: &[String],
    last: Option<&str>,
    dial: impl Fn(String) -> F,
) -> Result<T, ChannelError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ChannelError>> + Send + 'static,
{
    let is_last = |address: &String| Some(address.as_str()) == last;
    let (last, others): (Vec<String>, Vec<String>) = addresses.iter().cloned().partition(is_last);
    let found = match first_of(others, &dial).await {
        Err(_) if !last.is_empty() => first_of(last, dial).await,
        found => found,
    };
    found.map_err(|error| error.unwrap_or(ChannelError::Closed))
}

async fn open_one(address: &str, options: &Options) -> Result<Channel, ChannelError> {
    let introduction = Introduction::make(options.identity.clone(), options.service_uid);
    let introduction = tokio::time::timeout(options.timeouts.handshake, introduction)
        .await
        .map_err(|_| ChannelError::Silent)??;
    let stream = tokio::time::timeout(options.timeouts.handshake, TcpStream::connect(address))
        .await
        .map_err(|_| ChannelError::Silent)?
        .map_err(ChannelError::Io)?;
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    channel::connect(
        BufReader::new(read),
        write,
        options.role,
        introduction,
        options.timeouts,
    )
    .await
}

/// Connects, asks once, and hangs up.
///
/// # Errors
/// A refusal is [`CallError::Refused`]; the answer has to come within `timeout`.
pub async fn call(options: &Options, request: Request, timeout: Duration) -> Result<Response, CallError> {
    let work = async {
        let opened = open(options, None).await;
        let (_, mut channel) = opened.map_err(|error| match error {
            ChannelError::Refused(refusal) => CallError::Refused(refusal),
            error => CallError::Unreachable {
                addresses: options.addresses.join(", "),
                reason: chain(&error),
            },
        })?;
        let asked = ToHopd { id: 1, body: request };
        channel
            .writer
            .send(&asked)
            .await
            .map_err(|_| CallError::Disconnected)?;
        loop {
            let message: FromHopd = channel
                .reader
                .receive()
                .await
                .map_err(|_| CallError::Disconnected)?;
            if message.id == 1 {
                channel.writer.close().await;
                return match message.body {
                    Response::Refused(refusal) => Err(CallError::Refused(refusal)),
                    body => Ok(body),
                };
            }
        }
    };
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or(Err(CallError::Timeout(timeout)))
}

/// [`call`] for a program without a runtime, as [`Role::Client`], as the configuration says.
///
/// # Errors
/// As [`call`], and [`CallError::NoServiceUser`].
pub fn call_blocking(config: &Config, request: Request) -> Result<Response, CallError> {
    let options = Options::from_config(config, Role::Client)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| CallError::Unreachable {
            addresses: options.addresses.join(", "),
            reason: chain(&e),
        })?;
    runtime.block_on(call(&options, request, Duration::from_secs(30)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::STAGGER;
    use crate::identity::{IdentityError, Proven};
    use crate::message::VERSION;
    use hop_words::id::Term;
    use std::sync::Mutex;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    const SERVICE: u32 = 900;
    const LATE: Duration = Duration::from_secs(5);

    /// A dial's end: by success, by refusal of the connection, or never.
    #[derive(Clone, Copy)]
    enum Ends {
        Well,
        Late,
        Badly,
        Never,
    }

    /// The address found or the error, the dials with their times, and the time of all.
    async fn dialled(ends: &[Ends]) -> (Result<String, String>, Vec<(usize, Duration)>, Duration) {
        dialled_but(ends, None).await
    }

    /// As [`dialled`], with an address that is the last choice.
    async fn dialled_but(
        ends: &[Ends],
        last: Option<&str>,
    ) -> (Result<String, String>, Vec<(usize, Duration)>, Duration) {
        let began = Instant::now();
        let tried = Mutex::new(Vec::new());
        let dial = |address: String| {
            let n: usize = address.parse().unwrap();
            tried.lock().unwrap().push((n, began.elapsed()));
            let end = ends[n];
            async move {
                match end {
                    Ends::Well => Ok(address),
                    Ends::Late => {
                        tokio::time::sleep(LATE).await;
                        Ok(address)
                    }
                    Ends::Badly => Err(ChannelError::Malformed(address)),
                    Ends::Never => std::future::pending().await,
                }
            }
        };
        let addresses: Vec<String> = (0..ends.len()).map(|n| n.to_string()).collect();
        let found = first_but(&addresses, last, dial).await;
        let found = found.map_err(|error| chain(&error));
        (found, tried.into_inner().unwrap(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_holds_up_the_next_for_a_moment_alone() {
        use Ends::{Badly, Never, Well};
        let now = Duration::ZERO;
        let (found, tried, took) = dialled(&[Never, Never, Well, Never]).await;
        assert_eq!((found, took), (Ok("2".to_owned()), 2 * STAGGER));
        assert_eq!(tried, [(0, now), (1, STAGGER), (2, 2 * STAGGER)]);
        let (found, tried, took) = dialled(&[Badly, Well, Well]).await;
        assert_eq!((found, took), (Ok("1".to_owned()), now));
        assert_eq!(
            tried,
            [(0, now), (1, now)],
            "a refused dial brings on the next at once"
        );
        let (found, tried, took) = dialled(&[Badly, Badly]).await;
        let last = chain(&ChannelError::Malformed("1".to_owned()));
        assert_eq!((found, tried.len(), took), (Err(last), 2, now));
        let (found, tried, _) = dialled(&[]).await;
        assert_eq!((found, tried), (Err(chain(&ChannelError::Closed)), vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hopd_that_was_hung_up_on_is_tried_after_the_slowest_other() {
        use Ends::{Badly, Late, Well};
        let (found, tried, took) = dialled_but(&[Well, Late], Some("0")).await;
        assert_eq!((found, took), (Ok("1".to_owned()), LATE));
        assert_eq!(tried, [(1, Duration::ZERO)]);
        let (found, _, took) = dialled_but(&[Well, Badly], Some("0")).await;
        assert_eq!((found, took), (Ok("0".to_owned()), Duration::ZERO));
        let (found, _, _) = dialled_but(&[Well], Some("0")).await;
        assert_eq!(found, Ok("0".to_owned()));
    }

    /// Believes what is said, in place of `munged`.
    #[derive(Debug)]
    struct Trusting;

    impl Identity for Trusting {
        fn encode(&self, payload: &[u8], _: u32) -> Result<String, IdentityError> {
            Ok(payload.iter().map(|byte| format!("{byte:02x}")).collect())
        }

        fn decode(&self, credential: &str) -> Result<Proven, IdentityError> {
            let bytes = (0..credential.len()).step_by(2).map(|at| &credential[at..at + 2]);
            let payload: Result<Vec<u8>, _> = bytes.map(|byte| u8::from_str_radix(byte, 16)).collect();
            Ok(Proven {
                uid: SERVICE,
                gid: SERVICE,
                payload: payload.map_err(|error| IdentityError(error.to_string()))?,
            })
        }
    }

    #[tokio::test]
    async fn a_hopd_that_never_answers_the_hello_keeps_nobody_from_the_next() {
        let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [&deaf, &good].map(|listener| listener.local_addr().unwrap().to_string());
        tokio::spawn(async move {
            let (read, write) = good.accept().await.unwrap().0.into_split();
            let judge = |_: &Proven, _| {
                Ok(Welcome {
                    version: VERSION,
                    term: Term(7),
                    user: "alice".into(),
                    operator: false,
                })
            };
            let timeouts = Timeouts::default();
            let accepted =
                channel::accept(BufReader::new(read), write, Arc::new(Trusting), timeouts, judge).await;
            let mut channel = accepted.unwrap();
            let asked: ToHopd = channel.reader.receive().await.unwrap();
            let body = Response::Done;
            channel
                .writer
                .send(&FromHopd { id: asked.id, body })
                .await
                .unwrap();
        });
        let long = Duration::from_secs(3600);
        let options = Options {
            addresses: addresses.to_vec(),
            service_uid: SERVICE,
            role: Role::Client,
            identity: Arc::new(Trusting),
            timeouts: Timeouts {
                handshake: long,
                ..Timeouts::default()
            },
            backoff: (long, long),
            ping: long,
        };
        let answer = call(&options, Request::Ping, Duration::from_secs(60)).await;
        assert!(matches!(answer, Ok(Response::Done)), "{answer:?}");
    }
}
