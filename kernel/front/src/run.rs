//! The front's main loop: one task that owns all of its state and never waits for a client or a replica.

use crate::core::{End, Front, Wire};
use crate::delivered::Delivered;
use crate::house::{self, Order};
use crate::listen::{Door, answer_door};
use crate::owner::{Ports, Said, Start, say};
use anyhow::{Context, Result};
use bytes::Bytes;
use hop_protocol::file::{FrontFile, kernel_dir};
use hop_protocol::jupyter::{Channel, Envelope};
use hop_protocol::link::{Frame, Item};
use hop_protocol::message::{Hello, Note, VERSION, Welcome};
use hop_protocol::retain::{Retained, ranges};
use hop_protocol::tls::KernelKeys;
use hop_zmtp::{Admit, Endpoint, Event, Limits, Message, Receipt, Receipts, Server, ServerKind};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until};

/// Requests that are kept for a replica whose connection broke, in bytes.
const KEEP: usize = 256 << 20;

/// How long after a kernel's death was told its open requests are answered: a client that watches the kernel's process
/// looks every second or so, and is to learn of the death first.
const OBITUARY: Duration = Duration::from_secs(3);

/// How long the end waits for clients to take what they are owed, and for a kernel to end.
const FAREWELL: Duration = Duration::from_millis(500);
const ENDING: Duration = Duration::from_secs(8);

/// How long a replica may be out of reach: it gives up itself after a minute.
const OUT_OF_REACH: Duration = Duration::from_secs(65);

/// The same, once the process that stood for it is gone: at once for the replica itself, longer for its srun, which may
/// have been killed alone.
const GONE_LOCAL: Duration = Duration::from_secs(1);
const GONE_SRUN: Duration = Duration::from_secs(3);

/// When a client that went away counts as gone for good, if the kernel owes it nothing; and if it does.
const CLIENT_GONE: Duration = Duration::from_secs(60);
const DEBTOR_GONE: Duration = Duration::from_secs(3600);

/// Frames of the replica that are taken before anybody else is looked at.
const BATCH: usize = 64;

/// How long acknowledgements to the replica are gathered.
const ACK_AFTER: Duration = Duration::from_millis(20);

/// The five sockets, and what goes to the replica.
struct Sockets {
    shell: Server,
    control: Server,
    stdin: Server,
    iopub: Server,
    _heartbeat: Server,
    receipts: Receipts,
    finished: Vec<u64>,
    kept: Retained<Item>,
    out: Option<(u64, mpsc::UnboundedSender<Frame>)>,
}

impl Sockets {
    fn router(&self, channel: Channel) -> &Server {
        match channel {
            Channel::Shell | Channel::Iopub => &self.shell,
            Channel::Control => &self.control,
            Channel::Stdin => &self.stdin,
        }
    }

    fn receipt(&self, seq: Option<u64>) -> Option<Receipt> {
        seq.map(|seq| self.receipts.issue(seq))
    }
}

impl Wire for Sockets {
    fn reply(
        &mut self,
        channel: Channel,
        identity: &[u8],
        message: Message,
        seq: Option<u64>,
    ) -> Result<(), Message> {
        let router = self.router(channel);
        if !router.has_peer(identity) {
            return Err(message);
        }
        router.send(identity, message, self.receipt(seq).as_ref())
    }

    fn publish(&mut self, message: &Message, seq: Option<u64>) -> bool {
        self.iopub.has_subscribers() && self.iopub.publish(message, self.receipt(seq).as_ref()) > 0
    }

    fn send(&mut self, item: Item) {
        let seq = self.kept.push(item.clone());
        if let Some((_, out)) = &self.out {
            // Broken just now: it is kept for the next connection.
            let _ = out.send(Frame::Item(seq, item));
        }
    }

    fn done(&mut self, seq: u64) {
        self.finished.push(seq);
    }
}

/// What is known of the process that stands for the replica.
#[derive(Debug)]
enum House {
    /// It is being started.
    Starting,
    Running,
    Gone {
        since: Instant,
    },
    /// Another front started it.
    Strange,
}

struct Main {
    start: Start,
    dir: PathBuf,
    front: Front,
    sockets: Sockets,
    delivered: Delivered,
    house: House,
    /// The replica's last hello.
    hello: Option<Hello>,
    link_down: Option<Instant>,
    acks: Vec<u64>,
    ack_at: Option<Instant>,
    away: HashMap<Bytes, Instant>,
    /// When open requests of a dead kernel are answered.
    obituary_at: Option<Instant>,
    /// When it is over at the latest, and when it is if nothing is owed.
    over_at: Option<Instant>,
    ending: bool,
    close: bool,
}

/// Runs one kernel's front. False: the kernel died.
pub async fn run(start: Start, owner_gone: impl Future<Output = ()>) -> Result<bool> {
    let launched = jiff::Timestamp::now();
    let dir = kernel_dir(&start.kernel).context("there is no home folder (HOME is not set)")?;
    let (tx, mut events) = mpsc::channel(1024);
    let (sockets, ports) = bind(&start, tx).await?;
    let file = announce(&start, &dir).await?;
    let (door_tx, mut door) = mpsc::channel(16);
    tokio::spawn(answer_door(file.1, file.0.keys.acceptor()?, door_tx));
    let delivered = Delivered::open(&dir, start.incarnation, start.resume)
        .context("can't write in the kernel's folder")?;
    say(&Said::Launched { ports });

    let front = Front::new(start.key.as_bytes());
    let mut main = Main {
        front: if start.resume {
            front
        } else {
            front.launched(launched)
        },
        sockets,
        delivered,
        house: if start.resume {
            House::Strange
        } else {
            House::Starting
        },
        hello: None,
        link_down: Some(Instant::now()),
        acks: Vec::new(),
        ack_at: None,
        away: HashMap::new(),
        obituary_at: None,
        over_at: None,
        ending: false,
        close: false,
        dir,
        start,
    };
    let died = main.main_loop(&mut events, &mut door, owner_gone).await?;
    if main.close && !main.start.launch.local {
        house::close(main.start.kernel.clone()).await;
    }
    // Only what this kernel's next front writes anew.
    let _ = std::fs::remove_dir_all(&main.dir);
    Ok(!died)
}

async fn bind(start: &Start, tx: mpsc::Sender<(Option<Channel>, Event)>) -> Result<(Sockets, Ports)> {
    let at = |port| Endpoint::Tcp(SocketAddr::new(start.ip, port));
    let admit = if start.ip.is_loopback() {
        Admit::SameUser
    } else {
        Admit::Anyone
    };
    let bind = async |kind, port, channel| {
        Server::bind(kind, &at(port), Limits::default(), admit, channel, tx.clone()).await
    };
    // iopub first: what a client starts as soon as it can, it also wants to hear.
    let iopub = bind(ServerKind::XPub, start.ports.iopub_port, Some(Channel::Iopub)).await?;
    let shell = bind(ServerKind::Router, start.ports.shell_port, Some(Channel::Shell)).await?;
    let control = bind(
        ServerKind::Router,
        start.ports.control_port,
        Some(Channel::Control),
    )
    .await?;
    let stdin = bind(ServerKind::Router, start.ports.stdin_port, Some(Channel::Stdin)).await?;
    let heartbeat = bind(ServerKind::Echo, start.ports.hb_port, None).await?;
    let ports = Ports {
        shell_port: port(&shell),
        iopub_port: port(&iopub),
        stdin_port: port(&stdin),
        control_port: port(&control),
        hb_port: port(&heartbeat),
    };
    let sockets = Sockets {
        shell,
        control,
        stdin,
        iopub,
        _heartbeat: heartbeat,
        receipts: Receipts::default(),
        finished: Vec::new(),
        kept: Retained::new(KEEP),
        out: None,
    };
    Ok((sockets, ports))
}

fn port(server: &Server) -> u16 {
    match server.local() {
        Endpoint::Tcp(addr) => addr.port(),
        Endpoint::Ipc(_) => 0,
    }
}

/// Listens for the replica and writes where into `front.json`. A front that takes over keeps the kernel's keys.
async fn announce(start: &Start, dir: &Path) -> Result<(FrontFile, TcpListener)> {
    let ip = if start.launch.local {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    let listener = TcpListener::bind((ip, 0))
        .await
        .context("can't listen for the replica")?;
    let port = listener.local_addr()?.port();
    let keys = match start.resume {
        true => {
            FrontFile::read(dir)
                .context("can't take over: the front before left no keys")?
                .keys
        }
        false => KernelKeys::generate()?,
    };
    let file = FrontFile {
        version: VERSION,
        kernel: start.kernel.clone(),
        incarnation: start.incarnation,
        epoch: start.epoch,
        addresses: addresses(start.launch.local)
            .into_iter()
            .map(|host| format!("{host}:{port}"))
            .collect(),
        keys,
        signing_key: start.key.clone(),
        launch: start.launch.clone(),
    };
    file.write(dir)?;
    Ok((file, listener))
}

/// By which names compute nodes may reach this host, the likeliest first. A wrong one costs a replica one try: whoever
/// listens there doesn't have the kernel's key.
fn addresses(local: bool) -> Vec<String> {
    let mut hosts = Vec::new();
    if let Ok(host) = std::env::var("GRESSHOPPER_FRONT_HOST") {
        hosts.push(host);
    }
    if !local {
        let hopd = hop_api::config::Config::load()
            .ok()
            .and_then(|c| c.hopd.connect.first().cloned());
        hosts.extend(hopd.and_then(|hopd| route_to(&hopd)).map(|ip| ip.to_string()));
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        hosts.push(name);
    }
    hosts.push(Ipv4Addr::LOCALHOST.to_string());
    hosts
}

/// Our address as seen from there. Nothing is sent.
fn route_to(address: &str) -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect(address).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

async fn receive<T>(input: &mut Option<(u64, mpsc::Receiver<T>)>) -> Option<T> {
    match input {
        Some((_, rx)) => rx.recv().await,
        None => std::future::pending().await,
    }
}

async fn maybe_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn maybe_exit(child: &mut Option<Child>) -> std::io::Result<std::process::ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

impl Main {
    /// True: the kernel died.
    async fn main_loop(
        &mut self,
        events: &mut mpsc::Receiver<(Option<Channel>, Event)>,
        door: &mut mpsc::Receiver<Door>,
        owner_gone: impl Future<Output = ()>,
    ) -> Result<bool> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut input: Option<(u64, mpsc::Receiver<Frame>)> = None;
        let mut child: Option<Child> = None;
        let order = self.order();
        let once_more = Order {
            fresh_seat: true,
            ..order.clone()
        };
        let mut tries_left = if order.launch.local { 0 } else { 1 };
        let starting = house::start(&order);
        tokio::pin!(starting, owner_gone);
        let receipts = self.sockets.receipts.clone();
        let mut tick = interval(Duration::from_millis(250));
        let mut owner_known = true;
        loop {
            tokio::select! {
                event = events.recv() => if let Some((Some(channel), event)) = event {
                    self.on_client(channel, event);
                },
                frame = receive(&mut input) => match frame {
                    Some(frame) => {
                        self.on_replica(frame);
                        self.on_more(&mut input);
                    }
                    None => input = None,
                },
                () = receipts.ready() => {}
                said = door.recv() => if let Some(opened) = said.and_then(|said| self.on_door(said)) {
                    input = Some(opened);
                    if let Some(srun) = child.as_ref().and_then(Child::id) {
                        house::detach(srun);
                    }
                },
                started = &mut starting, if matches!(self.house, House::Starting) => match started {
                    Ok(process) => {
                        child = Some(process);
                        self.house = House::Running;
                    }
                    Err(error) => {
                        self.house = House::Gone { since: Instant::now() };
                        self.die(format!("the kernel could not be started: {error:#}"));
                    }
                },
                _ = maybe_exit(&mut child) => {
                    child = None;
                    if self.hello.is_none() && tries_left > 0 {
                        // The seat that was to take it has ended under it: one of its own instead.
                        tries_left -= 1;
                        starting.set(house::start(&once_more));
                        self.house = House::Starting;
                    } else {
                        self.house = House::Gone { since: Instant::now() };
                    }
                }
                _ = terminate.recv() => self.end(),
                _ = interrupt.recv() => self.sockets.send(Item::Note(Note::Interrupt)),
                () = &mut owner_gone, if owner_known => { owner_known = false; self.end() }
                () = maybe_at(self.obituary_at) => self.send_obituaries(),
                () = maybe_at(self.ack_at) => self.send_acks(),
                () = maybe_at(self.over_at) => break,
                _ = tick.tick() => self.look_around(),
            }
            self.settle();
            if self.is_over() {
                break;
            }
        }
        let died = matches!(self.front.end(), Some(End::Dead { .. }) | None);
        self.send_acks();
        self.hang_up(door).await;
        end_child(child).await;
        Ok(died)
    }

    /// Closes the replica's connection once all was written: the replica leaves when its last word was taken.
    async fn hang_up(&mut self, door: &mut mpsc::Receiver<Door>) {
        if self.sockets.out.take().is_none() {
            return;
        }
        let closed = async { while let Some(Door::Knock { .. } | Door::In { .. }) = door.recv().await {} };
        // One that can't be told leaves by itself after a minute.
        let _ = tokio::time::timeout(FAREWELL, closed).await;
    }

    fn order(&self) -> Order {
        Order {
            kernel: self.start.kernel.clone(),
            incarnation: self.start.incarnation,
            dir: self.dir.clone(),
            launch: self.start.launch.clone(),
            mem_mib: self.start.mem_mib,
            cpus: self.start.cpus,
            fresh_seat: false,
        }
    }

    // Clients.

    fn on_client(&mut self, channel: Channel, event: Event) {
        match event {
            Event::Message(peer, message) => {
                self.note_shutdown(&message);
                self.front
                    .request(channel, &peer.identity, message, &mut self.sockets);
            }
            Event::Subscribed(_, topic) => self.front.subscribed(&topic, &mut self.sockets),
            Event::Connected(peer) if channel != Channel::Iopub => {
                self.away.remove(&peer.identity);
                self.front.connected(channel, &peer.identity, &mut self.sockets);
            }
            Event::Disconnected {
                peer,
                superseded: false,
            } if channel == Channel::Shell => {
                self.away.insert(peer.identity, Instant::now());
            }
            _ => {}
        }
    }

    /// Whether a shutdown is for good decides whether `hopd` is told that the kernel is closed.
    fn note_shutdown(&mut self, message: &Message) {
        let Ok(envelope) = Envelope::parse(message) else {
            return;
        };
        if envelope.header().is_ok_and(|h| h.msg_type == "shutdown_request") {
            let content: serde_json::Value = serde_json::from_slice(&envelope.content).unwrap_or_default();
            self.close = !content["restart"].as_bool().unwrap_or(false);
        }
    }

    // The replica.

    fn on_door(&mut self, said: Door) -> Option<(u64, mpsc::Receiver<Frame>)> {
        match said {
            Door::Knock { hello, answer } => {
                // Whoever knocked may have left.
                let _ = answer.send(self.welcome(hello));
                None
            }
            Door::In { visit, out, input } => {
                let taken = self.hello.as_ref().map_or(0, |h| self.last_taken(h));
                for (seq, item) in self.sockets.kept.lacking(taken, &[]) {
                    let _ = out.send(Frame::Item(seq, item));
                }
                self.sockets.out = Some((visit, out));
                self.link_down = None;
                if let Some(hello) = &self.hello {
                    say(&Said::Up {
                        node: hello.node.to_string(),
                    });
                }
                Some((visit, input))
            }
            Door::Out { visit } => {
                if self.sockets.out.as_ref().is_some_and(|(v, _)| *v == visit) {
                    self.sockets.out = None;
                    self.link_down = Some(Instant::now());
                }
                None
            }
        }
    }

    /// What the replica has taken of ours: nothing, if it last spoke to another front.
    fn last_taken(&self, hello: &Hello) -> u64 {
        if hello.front_epoch == self.start.epoch {
            hello.taken
        } else {
            0
        }
    }

    fn welcome(&mut self, hello: Hello) -> Welcome {
        let no = |reason: &str| Welcome::No {
            version: VERSION,
            reason: reason.to_owned(),
        };
        if hello.version != VERSION {
            return no("front and replica are of different releases: install the same on both");
        }
        if hello.kernel != self.start.kernel || hello.incarnation != self.start.incarnation {
            return no("another replica has taken its place");
        }
        let new = hello.front_epoch != self.start.epoch;
        if new {
            self.front.resume(hello.in_flight.clone());
        }
        let taken = self.delivered.taken();
        // A front that was there before has what it took in its hands still.
        let again = if new { taken.again() } else { Vec::new() };
        let upto = taken.upto();
        self.hello = Some(hello);
        Welcome::Yes {
            version: VERSION,
            epoch: self.start.epoch,
            taken: upto,
            again,
        }
    }

    fn on_replica(&mut self, frame: Frame) {
        match frame {
            Frame::Item(seq, item) => {
                if self.delivered.take(seq) {
                    self.front.item(seq, item, &mut self.sockets);
                } else {
                    self.acks.push(seq);
                }
            }
            Frame::Done(done) => done.into_iter().for_each(|range| self.sockets.kept.done(range)),
            _ => {}
        }
    }

    /// What came with it, so that it is noted as delivered in one go; clients get their turn after so many.
    fn on_more(&mut self, input: &mut Option<(u64, mpsc::Receiver<Frame>)>) {
        let Some((_, rx)) = input else {
            return;
        };
        for _ in 0..BATCH {
            let Ok(frame) = rx.try_recv() else {
                return;
            };
            self.on_replica(frame);
        }
    }

    // What follows from it.

    /// Notes what was delivered, and acts upon the kernel's end.
    fn settle(&mut self) {
        let mut done = self.sockets.receipts.take();
        done.append(&mut self.sockets.finished);
        if !done.is_empty() {
            self.delivered.done(&done);
            self.acks.append(&mut done);
            if self.acks.len() > 64 {
                self.send_acks();
            } else {
                self.ack_at.get_or_insert_with(|| Instant::now() + ACK_AFTER);
            }
        }
        if self.over_at.is_none() && self.obituary_at.is_none() {
            match self.front.end() {
                Some(End::Shutdown) => self.over_at = Some(Instant::now() + FAREWELL),
                Some(End::Dead { reason }) => {
                    let reason = reason.clone();
                    self.tell_death(reason);
                }
                None => {}
            }
        }
    }

    fn tell_death(&mut self, reason: String) {
        eprintln!("hop-front: {reason}");
        say(&Said::Dead { reason });
        if self.ending {
            self.send_obituaries();
        } else {
            self.obituary_at = Some(Instant::now() + OBITUARY);
        }
    }

    fn send_acks(&mut self) {
        self.ack_at = None;
        if let Some((_, out)) = &self.sockets.out
            && !self.acks.is_empty()
        {
            // On a new connection the welcome says what was taken.
            let _ = out.send(Frame::Done(ranges(std::mem::take(&mut self.acks))));
        }
    }

    fn send_obituaries(&mut self) {
        self.obituary_at = None;
        self.front.send_obituaries(&mut self.sockets);
        self.over_at = Some(Instant::now() + FAREWELL);
    }

    /// The owner wants it to end, or is gone.
    fn end(&mut self) {
        if self.ending {
            return;
        }
        self.ending = true;
        self.close = true;
        if self.front.end().is_some() {
            self.send_obituaries();
        } else {
            self.sockets.send(Item::Note(Note::End));
            let patience = if self.sockets.out.is_some() {
                ENDING
            } else {
                FAREWELL
            };
            self.over_at = Some(Instant::now() + patience);
        }
    }

    fn is_over(&self) -> bool {
        let owed =
            self.sockets.shell.waiting() + self.sockets.control.waiting() + self.sockets.iopub.waiting();
        let ended = self.front.end().is_some() && self.obituary_at.is_none();
        ended
            && self.over_at.is_some()
            && owed == 0
            && (self.ending || matches!(self.front.end(), Some(End::Shutdown)))
    }

    fn die(&mut self, reason: String) {
        self.front.die(reason, &mut self.sockets);
    }

    /// From time to time: is the replica still there, and are the clients?
    fn look_around(&mut self) {
        if let Some(reason) = self.replica_is_lost() {
            self.die(reason);
        }
        let now = Instant::now();
        let front = &self.front;
        let gone = |(identity, since): (&Bytes, &Instant)| {
            let patience = if front.owes(identity) {
                DEBTOR_GONE
            } else {
                CLIENT_GONE
            };
            (now - *since > patience).then(|| identity.clone())
        };
        let gone: Vec<Bytes> = self.away.iter().filter_map(gone).collect();
        for identity in gone {
            self.away.remove(&identity);
            self.front.gone(&identity, &mut self.sockets);
        }
    }

    fn replica_is_lost(&mut self) -> Option<String> {
        let down = self.link_down?;
        let local = self.start.launch.local;
        if local && matches!(self.house, House::Strange) {
            let pid = self.hello.as_ref().map(|h| h.pid);
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                self.house = House::Gone {
                    since: Instant::now(),
                };
            }
        }
        let patience = match self.house {
            House::Starting => return None,
            House::Running | House::Strange => OUT_OF_REACH,
            House::Gone { since } => {
                let patience = if local { GONE_LOCAL } else { GONE_SRUN };
                return (since.elapsed().min(down.elapsed()) > patience).then(|| self.lost_reason());
            }
        };
        (down.elapsed() > patience).then(|| self.lost_reason())
    }

    fn lost_reason(&self) -> String {
        match &self.hello {
            Some(hello) => format!(
                "the kernel's supervisor on node {} was lost, and the kernel with it",
                hello.node
            ),
            None => "the kernel's supervisor never came up".to_owned(),
        }
    }
}

/// The replica has ended, or has to.
async fn end_child(child: Option<Child>) {
    let Some(mut child) = child else {
        return;
    };
    if tokio::time::timeout(FAREWELL, child.wait()).await.is_ok() {
        return;
    }
    let pid = child
        .id()
        .and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    if let Some(pid) = pid {
        // Gone already is as good.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(Duration::from_secs(3), child.wait())
        .await
        .is_err()
    {
        let _ = child.kill().await;
    }
}
