//! The replica's main loop: one task that owns all of its state and never waits for anybody. Messages of the kernel are
//! taken as fast as they come, for ipykernel's publisher drops what isn't; what the front hasn't dealt with is kept, in
//! bounds, for the next connection.

mod cells;
mod lending;
mod parking;
mod standing;

use crate::agent::{self, Agent, Parcel};
use crate::child::Kernel;
use crate::dial::{self, LinkEvent};
use crate::leases::{Leases, News};
use crate::scratch::Scratch;
use crate::turn::Turn;
use anyhow::{Context, Result};
use bytes::Bytes;
use cells::{Cells, Request};
use hop_api::message::SeatStep;
use hop_core::id::{Incarnation, JobId, NodeName};
use hop_protocol::file::FrontFile;
use hop_protocol::jupyter::{Author, Channel, Envelope};
use hop_protocol::link::{Frame, Item};
use hop_protocol::message::{Hello, Note, Over, VERSION};
use hop_protocol::retain::{Retained, Taken, ranges};
use hop_zmtp::{Admit, Client, ClientKind, Endpoint, Event, Limits, Message};
use lending::Lending;
use parking::Parking;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// What is kept for the front, in bytes: it counts against the seat's memory.
const KEEP: usize = 64 << 20;

/// Whoever doesn't come up in this time doesn't come up.
const START: Duration = Duration::from_secs(120);

/// A kernel without a welcome on iopub (before ipykernel 7) is asked whether it is there, this often.
const PROBE_EVERY: Duration = Duration::from_millis(300);

/// How long what a dead kernel said last may take to be read, and a front to take it.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Between asking a kernel to go and ending it.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Messages of the kernel that are taken before anybody else is looked at.
const BATCH: usize = 64;

const PROBE: &[u8] = b"gresshopper-probe";

/// Where the replica is.
#[derive(Debug, Clone)]
pub struct Place {
    pub node: NodeName,
    pub seat: SeatStep,
}

impl Place {
    /// Without Slurm.
    pub fn local() -> Self {
        Self::at(NodeName::from("localhost"), JobId(0), 0)
    }

    /// From the step's environment.
    pub fn from_slurm() -> Result<Self> {
        let var =
            |name: &str| std::env::var(name).with_context(|| format!("{name} is not set: not a Slurm step"));
        let job = JobId(var("SLURM_JOB_ID")?.parse()?);
        Ok(Self::at(
            var("SLURMD_NODENAME")?.into(),
            job,
            var("SLURM_STEP_ID")?.parse()?,
        ))
    }

    fn at(node: NodeName, job: JobId, step: u32) -> Self {
        let pid = std::process::id();
        let seat = SeatStep {
            job,
            step,
            pid,
            start_time: crate::scratch::start_time(pid).unwrap_or(0),
            uid: rustix::process::getuid().as_raw(),
        };
        Self { node, seat }
    }
}

/// All that a replica is given.
#[derive(Debug)]
pub struct Setup {
    /// `hop-replica` itself: the kernel is started through it.
    pub program: PathBuf,
    pub dir: PathBuf,
    pub incarnation: Incarnation,
    pub file: FrontFile,
    pub place: Place,
    pub leases: Leases,
}

/// Which socket of the kernel something came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Socket {
    Iopub,
    Dealer(Channel, Bytes),
}

type Events = mpsc::Receiver<(Socket, Event)>;

enum Phase {
    /// Until iopub is known to be heard; what the front sends meanwhile waits here.
    Starting(Vec<(Channel, Bytes, Message)>),
    Up,
}

struct Replica {
    dir: PathBuf,
    incarnation: Incarnation,
    file: FrontFile,
    place: Place,
    author: Author,
    scratch: Scratch,
    kernel: Kernel,
    phase: Phase,
    // Towards the front.
    kept: Retained<Item>,
    taken: Taken,
    front_epoch: u64,
    out: Option<mpsc::UnboundedSender<Frame>>,
    acks: Vec<u64>,
    lost: (u64, u64),
    // Towards the kernel.
    sockets: mpsc::Sender<(Socket, Event)>,
    dealers: HashMap<(Channel, Bytes), Client>,
    iopub: Option<Client>,
    probed: bool,
    shutting_down: bool,
    /// Why we ended the kernel, where its own end doesn't tell.
    ended_by: Option<String>,
    kill_at: Option<Instant>,
    // Cells and what they need.
    turn: Turn<Request>,
    cells: Cells,
    lending: Lending,
    parking: Parking,
    agent_out: mpsc::UnboundedSender<Parcel>,
}

/// Runs the kernel until it is over; the front is told how.
pub async fn run(setup: Setup) -> Result<()> {
    // Whatever the kernel's processes leave behind comes to us, to be ended with it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let scratch = Scratch::create().context("can't make a folder for the kernel's sockets")?;
    let (
        Agent {
            out: agent_out,
            input: mut agent_in,
        },
        theirs,
    ) = agent::open()?;
    let Setup {
        program,
        dir,
        incarnation,
        file,
        place,
        leases,
    } = setup;
    let kernel = Kernel::start(
        &program,
        &file.launch,
        scratch.path(),
        &file.signing_key,
        theirs,
        leases.lends,
    );
    let (link_tx, mut links) = mpsc::channel(8);
    tokio::spawn(dial::dial(dir.clone(), incarnation, link_tx));
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(error) => return not_started(incarnation, &file, &place, links, format!("{error:#}")).await,
    };
    // ipykernel's publisher drops what isn't read at once, so nothing may stop the reading: as good as unbounded. What
    // piles up is bounded where it is kept for the front.
    let (sockets, mut events) = mpsc::channel(1 << 20);
    let Leases {
        requests, mut news, ..
    } = leases;
    let author = Author::new(file.signing_key.as_bytes());
    let lending = Lending::new(requests, place.clone());
    let mut replica = Replica {
        dir,
        incarnation,
        file,
        place,
        author,
        scratch,
        kernel,
        phase: Phase::Starting(Vec::new()),
        kept: Retained::new(KEEP),
        taken: Taken::default(),
        front_epoch: 0,
        out: None,
        acks: Vec::new(),
        lost: (0, 0),
        sockets,
        dealers: HashMap::new(),
        iopub: None,
        probed: false,
        shutting_down: false,
        ended_by: None,
        kill_at: None,
        turn: Turn::default(),
        cells: Cells::default(),
        lending,
        parking: Parking::new(&program),
        agent_out,
    };
    replica
        .main_loop(&mut links, &mut events, &mut agent_in, &mut news)
        .await
}

/// A kernel that could not be started has no last words, but its user should read why.
async fn not_started(
    incarnation: Incarnation,
    file: &FrontFile,
    place: &Place,
    mut links: mpsc::Receiver<LinkEvent>,
    reason: String,
) -> Result<()> {
    let hello = || Hello {
        version: VERSION,
        kernel: file.kernel.clone(),
        incarnation,
        node: place.node.clone(),
        pid: std::process::id(),
        front_epoch: 0,
        taken: 0,
        in_flight: Vec::new(),
    };
    while let Ok(Some(event)) = timeout(START, links.recv()).await {
        match event {
            // The dialler may be gone first.
            LinkEvent::WantsHello(answer) => drop(answer.send(hello())),
            LinkEvent::Up { out, .. } => {
                let over = Over::NotStarted {
                    reason: reason.clone(),
                };
                let _ = out.send(Frame::Item(1, Item::Note(Note::KernelOver { over })));
                sleep(LAST_WORDS).await;
                break;
            }
            LinkEvent::Down | LinkEvent::Over { .. } => break,
        }
    }
    anyhow::bail!(reason)
}

/// Receives from a channel that may not be there.
async fn receive<T>(input: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match input {
        Some(rx) => rx.recv().await,
        None => std::future::pending().await,
    }
}

async fn maybe_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Replica {
    async fn main_loop(
        &mut self,
        links: &mut mpsc::Receiver<LinkEvent>,
        events: &mut Events,
        agent_in: &mut mpsc::Receiver<Parcel>,
        news: &mut mpsc::UnboundedReceiver<News>,
    ) -> Result<()> {
        let mut input: Option<mpsc::Receiver<Frame>> = None;
        let mut connecting = Box::pin(connect_iopub(self.endpoint(Channel::Iopub), self.sockets.clone()));
        let (mut connected, mut agent_open) = (false, true);
        let deadline = Instant::now() + START;
        let mut probe_at = None;
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        loop {
            let starting = matches!(self.phase, Phase::Starting(_));
            let standing_due = self.parking.due();
            tokio::select! {
                status = self.kernel.wait() => {
                    let status = status.context("can't wait for the kernel")?;
                    return self.kernel_ended(status, links, input, events).await;
                }
                event = events.recv() => if let Some((socket, event)) = event {
                    self.on_kernel(socket, event).await;
                    // What came with it; the others get their turn after so many.
                    for _ in 0..BATCH {
                        let Ok((socket, event)) = events.try_recv() else { break };
                        self.on_kernel(socket, event).await;
                    }
                },
                frame = receive(&mut input) => match frame {
                    Some(frame) => self.on_front(frame).await,
                    None => input = None,
                },
                link = links.recv() => match link {
                    Some(LinkEvent::WantsHello(answer)) => drop(answer.send(self.hello())),
                    Some(LinkEvent::Up { epoch, taken, again, out, input: rx }) => {
                        self.link_up(epoch, taken, &again, out);
                        input = Some(rx);
                    }
                    Some(LinkEvent::Down) => self.out = None,
                    Some(LinkEvent::Over { reason }) => return self.orphaned(&reason).await,
                    None => return self.orphaned("the dialler ended").await,
                },
                said = news.recv() => if let Some(said) = said { self.on_hopd(said).await },
                parcel = agent_in.recv(), if agent_open => match parcel {
                    Some(parcel) => self.on_agent(parcel),
                    None => agent_open = false,
                },
                ended = self.parking.ended.recv() => if let Some(ended) = ended { self.parked(ended).await },
                iopub = &mut connecting, if !connected => {
                    connected = true;
                    self.iopub = Some(iopub);
                    probe_at = Some(Instant::now() + PROBE_EVERY);
                }
                () = maybe_at(probe_at), if starting => {
                    self.probe().await;
                    probe_at = Some(Instant::now() + PROBE_EVERY);
                }
                () = maybe_at(self.lending.tell_at()) => self.tell_wait(),
                () = maybe_at(standing_due) => self.standing_due(),
                _ = terminate.recv() => {
                    self.ended_by = Some("the kernel's step was ended (its seat was cancelled or reached its time limit)".into());
                    self.kernel.kill();
                }
                () = maybe_at(self.kill_at) => { self.kill_at = None; self.kernel.kill(); }
                () = sleep_until(deadline), if starting => {
                    self.say(Note::KernelOver { over: Over::NotStarted {
                        reason: format!("the kernel didn't come up within {} s", START.as_secs()),
                    }});
                    self.kernel.kill();
                    sleep(LAST_WORDS).await;
                    anyhow::bail!("the kernel didn't come up");
                }
            }
            self.flush_acks();
        }
    }

    // Towards the front.

    fn hello(&self) -> Hello {
        Hello {
            version: VERSION,
            kernel: self.file.kernel.clone(),
            incarnation: self.incarnation,
            node: self.place.node.clone(),
            pid: std::process::id(),
            front_epoch: self.front_epoch,
            taken: self.taken.upto(),
            in_flight: self.cells.in_flight(),
        }
    }

    fn link_up(&mut self, epoch: u64, taken: u64, again: &[u64], out: mpsc::UnboundedSender<Frame>) {
        if epoch != self.front_epoch {
            // A new front: what the old one had in its hands is what this one wants again.
            self.taken = Taken::default();
            self.kept.settle(taken, again);
            self.front_epoch = epoch;
        }
        for (seq, item) in self.kept.lacking(taken, again) {
            // The link may have broken again; then the next one begins here.
            let _ = out.send(Frame::Item(seq, item));
        }
        self.out = Some(out);
        let (messages, bytes) = std::mem::take(&mut self.lost);
        if messages > 0 {
            self.say(Note::Dropped { messages, bytes });
        }
    }

    fn send_front(&mut self, item: Item) {
        let seq = self.kept.push(item.clone());
        match &self.out {
            Some(out) => {
                // Broken just now: it is kept for the next.
                let _ = out.send(Frame::Item(seq, item));
                self.kept.enforce();
            }
            None => {
                let dropped = self.kept.enforce();
                self.lost.0 += dropped.messages;
                self.lost.1 += dropped.bytes;
            }
        }
    }

    fn say(&mut self, note: Note) {
        self.send_front(Item::Note(note));
    }

    fn publish(&mut self, message: Message) {
        self.send_front(Item::Jupyter {
            channel: Channel::Iopub,
            identity: Bytes::new(),
            message,
        });
    }

    fn flush_acks(&mut self) {
        if !self.acks.is_empty()
            && let Some(out) = &self.out
        {
            // On a new link the hello says what was taken.
            let _ = out.send(Frame::Done(ranges(std::mem::take(&mut self.acks))));
        }
    }

    async fn on_front(&mut self, frame: Frame) {
        match frame {
            Frame::Item(seq, item) if self.taken.take(seq) => {
                self.acks.push(seq);
                match item {
                    Item::Jupyter {
                        channel,
                        identity,
                        message,
                    } => self.request(channel, identity, message).await,
                    Item::Note(note) => self.note(note).await,
                }
            }
            Frame::Done(done) => done.into_iter().for_each(|range| self.kept.done(range)),
            _ => {}
        }
    }

    async fn note(&mut self, note: Note) {
        match note {
            Note::ClientGone { identity } => {
                let identity: Bytes = hex::decode(identity).unwrap_or_default().into();
                self.dealers.retain(|(_, id), _| *id != identity);
            }
            Note::Interrupt => {
                if !self.interrupt_waiting().await {
                    self.kernel.interrupt();
                    self.standing_interrupted();
                }
            }
            Note::End => {
                self.shutting_down = true;
                self.kernel.kill();
            }
            Note::KernelUp { .. } | Note::KernelOver { .. } | Note::Dropped { .. } => {}
        }
    }

    // Towards the kernel.

    fn endpoint(&self, channel: Channel) -> Endpoint {
        let port = match channel {
            Channel::Shell => 1,
            Channel::Iopub => 2,
            Channel::Stdin => 3,
            Channel::Control => 4,
        };
        Endpoint::Ipc(self.scratch.path().join(format!("k-{port}")))
    }

    async fn request(&mut self, channel: Channel, identity: Bytes, message: Message) {
        if let Phase::Starting(early) = &mut self.phase {
            early.push((channel, identity, message));
            return;
        }
        let Ok(envelope) = Envelope::parse(&message) else {
            return;
        };
        let Ok(header) = envelope.header() else {
            return;
        };
        match (channel, header.msg_type.as_str()) {
            (Channel::Shell, "execute_request") => {
                self.execute_request(identity, message, &envelope, &header).await
            }
            (Channel::Control | Channel::Shell, kind) => {
                match kind {
                    "interrupt_request" => {
                        if self.interrupt_waiting().await {
                            return self.answer_interrupt(channel, identity, envelope.header.clone());
                        }
                        self.standing_interrupted();
                    }
                    "shutdown_request" => {
                        self.shutting_down = true;
                        self.kill_at = Some(Instant::now() + SHUTDOWN);
                    }
                    _ => {}
                }
                self.send_kernel(channel, &identity, &message).await;
            }
            _ => self.send_kernel(channel, &identity, &message).await,
        }
    }

    /// One DEALER for each client, with the same identity on shell and stdin, so that `input()` finds its way back.
    async fn send_kernel(&mut self, channel: Channel, identity: &Bytes, message: &Message) {
        if channel == Channel::Shell {
            self.dealer(Channel::Stdin, identity).await;
        }
        if let Some(dealer) = self.dealer(channel, identity).await {
            dealer.send(message, None);
        }
    }

    async fn dealer(&mut self, channel: Channel, identity: &Bytes) -> Option<&Client> {
        let key = (channel, identity.clone());
        if !self.dealers.contains_key(&key) {
            let kind = ClientKind::Dealer {
                identity: identity.clone(),
            };
            let (endpoint, tag) = (self.endpoint(channel), Socket::Dealer(channel, identity.clone()));
            let connect = Client::connect(
                &kind,
                &endpoint,
                Limits::default(),
                Admit::SameUser,
                tag,
                self.sockets.clone(),
            );
            match connect.await {
                Ok(client) => drop(self.dealers.insert(key.clone(), client)),
                // A kernel that dies is told by its process.
                Err(error) => tracing::warn!(%error, "can't reach the kernel"),
            }
        }
        self.dealers.get(&key)
    }

    async fn on_kernel(&mut self, socket: Socket, event: Event) {
        let Event::Message(_, message) = event else {
            if let (Event::Disconnected { .. }, Socket::Dealer(channel, identity)) = (&event, &socket) {
                self.dealers.remove(&(*channel, identity.clone()));
            }
            return;
        };
        match socket {
            Socket::Iopub => self.on_iopub(message).await,
            Socket::Dealer(_, identity) if &identity[..] == PROBE => {}
            Socket::Dealer(Channel::Shell, identity) => self.reply(identity, message).await,
            Socket::Dealer(channel, identity) => self.send_front(Item::Jupyter {
                channel,
                identity,
                message,
            }),
        }
    }

    async fn on_iopub(&mut self, message: Message) {
        if self.iopub_is_ours(&message) {
            if matches!(self.phase, Phase::Starting(_)) {
                self.up().await;
            }
            return;
        }
        self.publish(message);
    }

    /// Whether this is the answer to our own subscription or probe, which is nobody else's business.
    fn iopub_is_ours(&self, message: &Message) -> bool {
        // The welcome comes before the first request of a client; after that only a probe's echo is ours.
        if matches!(self.phase, Phase::Up) && !self.probed {
            return false;
        }
        let Ok(envelope) = Envelope::parse(message) else {
            return false;
        };
        let probe = envelope
            .parent
            .windows(36)
            .any(|w| w == self.author.session().as_bytes());
        probe || envelope.header().is_ok_and(|h| h.msg_type == "iopub_welcome")
    }

    async fn probe(&mut self) {
        self.probed = true;
        let nothing = serde_json::json!({});
        let parent = Bytes::from_static(b"{}");
        let message = self
            .author
            .write("kernel_info_request", &parent, &nothing, &nothing)
            .message();
        if let Some(dealer) = self.dealer(Channel::Shell, &Bytes::from_static(PROBE)).await {
            dealer.send(&message, None);
        }
    }

    /// The kernel hears and is heard.
    async fn up(&mut self) {
        let pid = self.kernel.pid();
        self.say(Note::KernelUp { pid });
        if let Phase::Starting(early) = std::mem::replace(&mut self.phase, Phase::Up) {
            for (channel, identity, message) in early {
                self.request(channel, identity, message).await;
            }
        }
    }

    // The end.

    /// The kernel's process is over: what it said last goes out, then why it ended, and then that was all.
    async fn kernel_ended(
        &mut self,
        status: ExitStatus,
        links: &mut mpsc::Receiver<LinkEvent>,
        mut input: Option<mpsc::Receiver<Frame>>,
        events: &mut Events,
    ) -> Result<()> {
        let until = Instant::now() + LAST_WORDS;
        // Its sockets close once they are read to the end, so this is over as soon as all are.
        while self.iopub.is_some() {
            match tokio::time::timeout_at(until, events.recv()).await {
                Ok(Some((Socket::Iopub, Event::Disconnected { .. }))) => self.iopub = None,
                Ok(Some((socket, event))) => self.on_kernel(socket, event).await,
                _ => break,
            }
        }
        while let Ok((socket, event)) = events.try_recv() {
            self.on_kernel(socket, event).await;
        }
        let over = if self.shutting_down {
            Over::Shutdown
        } else if matches!(self.phase, Phase::Starting(_)) {
            Over::NotStarted {
                reason: self.kernel.reason(status),
            }
        } else {
            Over::Died {
                reason: self.ended_by.take().unwrap_or_else(|| self.died_of(status)),
            }
        };
        self.end_descendants();
        self.say(Note::KernelOver { over });
        // Until the front has it all, or there is no front any more.
        let patience = Instant::now() + dial::WITHOUT_FRONT;
        while !self.kept.is_empty() {
            tokio::select! {
                frame = receive(&mut input) => match frame {
                    Some(Frame::Done(done)) => done.into_iter().for_each(|range| self.kept.done(range)),
                    Some(_) => {}
                    None => input = None,
                },
                link = links.recv() => match link {
                    Some(LinkEvent::WantsHello(answer)) => drop(answer.send(self.hello())),
                    Some(LinkEvent::Up { epoch, taken, again, out, input: rx }) => {
                        self.link_up(epoch, taken, &again, out);
                        input = Some(rx);
                    }
                    Some(LinkEvent::Down) => self.out = None,
                    Some(LinkEvent::Over { .. }) | None => break,
                },
                () = sleep_until(patience) => break,
            }
        }
        Ok(())
    }

    /// Why it died, with what only we know: a kernel that holds a GPU after the end of its lease is killed by the
    /// take-back.
    fn died_of(&mut self, status: ExitStatus) -> String {
        let reason = self.kernel.reason(status);
        let killed = reason.starts_with("the kernel was killed by signal 9");
        self.parking.doomed().filter(|_| killed).unwrap_or(reason)
    }

    /// Nobody wants this kernel any more.
    async fn orphaned(&mut self, reason: &str) -> Result<()> {
        tracing::warn!(reason, "the kernel ends");
        self.kernel.kill();
        let _ = timeout(LAST_WORDS, self.kernel.wait()).await;
        self.end_descendants();
        // The front's folder is left only where no front cleans up after itself.
        if FrontFile::read(&self.dir).is_ok_and(|f| f.incarnation == self.incarnation) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
        Ok(())
    }

    /// Ends what the kernel started, wherever it went: as a subreaper we are its parent now.
    fn end_descendants(&self) {
        self.kernel.kill();
        end_children();
        // How it was parked is written down, for whoever would bring it back.
        hop_gpu::record::forget(rustix::process::getuid().as_raw(), self.kernel.pid());
    }
}

fn end_children() {
    let me = std::process::id();
    for _ in 0..10 {
        let children = children_of(me);
        if children.is_empty() {
            return;
        }
        for pid in children
            .into_iter()
            .filter_map(|pid| rustix::process::Pid::from_raw(pid as i32))
        {
            // Gone already is as good.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let read = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
    let lists = std::fs::read_dir(tasks)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(read);
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|p| p.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// Subscribes to everything as soon as the kernel listens. The kernel's death ends the wait from outside.
async fn connect_iopub(endpoint: Endpoint, sockets: mpsc::Sender<(Socket, Event)>) -> Client {
    loop {
        let connect = Client::connect(
            &ClientKind::Sub,
            &endpoint,
            Limits::default(),
            Admit::SameUser,
            Socket::Iopub,
            sockets.clone(),
        );
        match connect.await {
            Ok(client) => return client,
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}
