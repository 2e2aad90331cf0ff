//! The replica's main loop: one task that owns sockets and processes and never waits for anybody. [`crate::core`] decides;
//! this carries out. Messages of the kernel are taken as fast as they come, for ipykernel's publisher drops what isn't.

use crate::agent::{self, Agent, Parcel};
use crate::child::{self, Kernel};
use crate::core::{Core, Durably, ErrandEnd, Exit, Identity, Input, Output};
use crate::dial::{self, Gone, LinkEvent};
use crate::errands::Errands;
use crate::grace;
use crate::leases::{Leases, News};
use crate::link::FrontLink;
use crate::log::{Log, SeatLink};
use crate::process::end_children;
use crate::scratch::Scratch;
use crate::seat::wire::FromSeat;
use crate::sockets::{Events, FromKernel, Sockets};
use crate::spare::Spare;
use crate::standby;
use crate::store::{StoreEvent, StoreJob, StoreThread};
use anyhow::{Context, Result};
use bytes::Bytes;
use hop_api::message::{Request as ToHopd, SeatStep};
use hop_log::{Index, State};
use hop_protocol::file::{Durable, FrontFile};
use hop_protocol::jupyter::Author;
use hop_protocol::link::{Frame, Item};
use hop_protocol::message::{Hello, Note, Over, VERSION};
use hop_protocol::states;
use hop_words::clock::SteadyClock;
use hop_words::id::{Incarnation, JobId, NodeName, Tenure};
use hop_words::time::Timestamp;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// A front is waited for so long by a kernel that couldn't be started.
const START: Duration = Duration::from_secs(120);

/// Interval of questions to a kernel without a welcome on iopub (before ipykernel 7).
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(300);

/// The time for reading the last messages of a dead kernel, and for a front to take them.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A sentence for the user of a kernel that has no agent.
const NO_AGENT: &str = "Gresshopper's Python package isn't installed on its node";

/// Messages of the kernel that are taken before anybody else is looked at.
const BATCH: usize = 64;

/// The place of a replica: its node and its step in a seat.
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
            start_time: hop_words::process::start_time(pid).unwrap_or(0),
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
    /// Wait until the front moves the kernel here.
    pub standby: bool,
    /// The connection to the seat's keeper, in Slurm.
    pub seat: Option<SeatLink>,
    /// The state of the kernel's group, if it has elected this replica.
    pub elected: Option<State>,
    /// A process that can become the kernel's.
    pub spare: Option<Spare>,
}

/// A process of the kernel, with the connections to it.
pub(crate) struct Process {
    pub(crate) kernel: Kernel,
    pub(crate) sockets: Sockets,
    pub(crate) events: Events,
    /// Its iopub is connected and heard already.
    pub(crate) heard: bool,
    to_agent: mpsc::UnboundedSender<Parcel>,
    agent: Option<mpsc::Receiver<Parcel>>,
    /// The folder of the process's sockets, removed with it.
    _scratch: Scratch,
}

struct Replica {
    program: PathBuf,
    dir: PathBuf,
    file: FrontFile,
    incarnation: Incarnation,
    place: Place,
    lends: bool,
    clock: SteadyClock,
    core: Core,
    link: FrontLink,
    process: Process,
    errands: Errands,
    /// Ends of errands, each with the pid of its kernel.
    errand_ends: mpsc::UnboundedSender<(u32, ErrandEnd)>,
    to_hopd: mpsc::UnboundedSender<ToHopd>,
    /// `None` means that the kernel keeps no log.
    store: Option<StoreThread>,
    log: Log,
    /// Sender for the dialler's events, until the dialler is started.
    dialler: Option<mpsc::Sender<LinkEvent>>,
    leaving: bool,
}

/// The ends of channels on which things come in.
struct Inputs {
    /// `None` once there is no front any more.
    links: Option<mpsc::Receiver<LinkEvent>>,
    frames: Option<mpsc::Receiver<Frame>>,
    news: mpsc::UnboundedReceiver<News>,
    errands: mpsc::UnboundedReceiver<(u32, ErrandEnd)>,
    store: mpsc::UnboundedReceiver<StoreEvent>,
    seat: Option<mpsc::UnboundedReceiver<FromSeat>>,
}

/// Runs the kernel until it is over; the front is told how.
pub async fn run(setup: Setup) -> Result<()> {
    Box::pin(run_kernel(setup)).await
}

async fn run_kernel(setup: Setup) -> Result<()> {
    // A limit on the size of files (`ulimit -f`) fails a write, and doesn't end the replica.
    let _too_large = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
    // Processes that the kernel leaves behind come to us, to be ended with it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let Setup {
        program,
        dir,
        incarnation,
        mut file,
        place,
        leases,
        standby,
        seat,
        elected,
        spare,
    } = setup;
    let (link_tx, mut links) = mpsc::channel(8);
    let is_elected = elected.is_some();
    tracing::info!(%incarnation, is_elected, standby, "starts the kernel's process");
    let mut process = match spare {
        Some(spare) => Process::by_spare(spare, &program, &file, leases.lends).await,
        None => Process::start(&program, &file, leases.lends),
    };
    let mut first = None;
    let mut dialler = Some(link_tx);
    if standby && let Some(link_tx) = dialler.take() {
        let process = process.as_mut().map_err(|e| anyhow::anyhow!("{e:#}"))?;
        Box::pin(standby::heard(process)).await?;
        tokio::spawn(dial::dial(dir.clone(), incarnation, None, link_tx));
        let hello = hello(&file, incarnation, &place);
        let (up, called) = Box::pin(standby::called(process, &mut links, &hello, &dir)).await?;
        (first, file) = (Some(up), called);
    }
    let started = process.and_then(|process| {
        let durably = durably(&file, elected)?;
        Ok((process, durably))
    });
    let (process, durably) = match started {
        Ok(started) => started,
        Err(error) => {
            // Nothing has begun: the group elects another executor where this one can't start.
            if is_elected {
                return Err(error);
            }
            if let Some(link_tx) = dialler.take() {
                tokio::spawn(dial::dial(dir, incarnation, Some(tenure_of(&file)), link_tx));
            }
            let hello = hello(&file, incarnation, &place);
            return not_started(hello, links, format!("{error:#}")).await;
        }
    };
    let (clock, errands) = (SteadyClock::new(), Errands::new(&program));
    let identity = Identity {
        kernel: file.kernel.clone(),
        incarnation,
        node: place.node.clone(),
        seat: place.seat.clone(),
        launch: file.launch.clone(),
        has_keeper: seat.is_some(),
        can_park: errands.can_run(),
        models: crate::models::of_node(),
    };
    let (errand_ends, errand_in) = mpsc::unbounded_channel();
    let (store_events, store_in) = mpsc::unbounded_channel();
    let (log, from_seat) = Log::new(seat, is_elected);
    let mut replica = Replica {
        store: durably.as_ref().map(|d| StoreThread::start(d, store_events)),
        core: Core::new(identity, durably, author(&file), clock.now()),
        program,
        dir,
        incarnation,
        place,
        lends: leases.lends,
        clock,
        link: FrontLink::new(),
        process,
        errands,
        errand_ends,
        to_hopd: leases.requests,
        log,
        dialler,
        leaving: false,
        file,
    };
    if is_elected {
        // The front is told once the tenure's folder is there for it to read.
        replica.handle(Input::Elected).await;
    } else {
        replica.dial();
    }
    let mut inputs = Inputs {
        links: Some(links),
        frames: None,
        news: leases.news,
        errands: errand_in,
        store: store_in,
        seat: from_seat,
    };
    if first.is_some() {
        replica.on_link(first, &mut inputs.frames);
    }
    replica.main_loop(inputs).await
}

pub(crate) fn author(file: &FrontFile) -> Author {
    Author::new(file.signing_key.as_bytes(), uuid::Uuid::new_v4().to_string())
}

/// The tenure that the front has opened. Zero: the kernel keeps no log.
fn tenure_of(file: &FrontFile) -> Tenure {
    file.state.as_ref().map_or(Tenure(0), |s| s.tenure)
}

/// The state of our tenure: the group's that has elected us, or the one in which the front has opened the tenure.
fn durably(file: &FrontFile, elected: Option<State>) -> Result<Option<Durably>> {
    let Some(folder) = &file.state else {
        return Ok(None);
    };
    let is_elected = elected.is_some();
    let state = match elected {
        Some(state) => state,
        None => {
            let tenure = states::folder(&folder.kernel, folder.tenure, 0);
            states::read(&tenure).context("can't read the kernel's state")?
        }
    };
    Ok(Some(Durably {
        state,
        elected: is_elected,
        folder: folder.kernel.clone(),
        store: folder.store.clone(),
        before_reply: file.launch.durable == Durable::BeforeReply,
        found_again: folder.kernel.join(states::NOTEBOOK).exists(),
        silent: (!child::has_agent(&file.launch)).then(|| NO_AGENT.to_owned()),
    }))
}

impl Process {
    fn start(program: &Path, file: &FrontFile, lends: bool) -> Result<Self> {
        let scratch = Scratch::create().context("can't make a folder for the kernel's sockets")?;
        let (agent, theirs) = agent::open()?;
        let kernel = Kernel::start(program, file, scratch.path(), theirs, lends)?;
        let (sockets, events) = Sockets::new(scratch.path(), author(file));
        Ok(Self::new(kernel, agent, sockets, events, scratch))
    }

    /// The spare becomes the kernel; if it can't, a fresh process is started.
    async fn by_spare(spare: Spare, program: &Path, file: &FrontFile, lends: bool) -> Result<Self> {
        match spare.become_kernel(file).await {
            Ok(process) => Ok(process),
            Err(error) => {
                tracing::info!("the spare isn't used: {error:#}");
                Self::start(program, file, lends)
            }
        }
    }

    pub(crate) fn new(
        kernel: Kernel,
        agent: Agent,
        sockets: Sockets,
        events: Events,
        scratch: Scratch,
    ) -> Self {
        Self {
            kernel,
            sockets,
            events,
            heard: false,
            to_agent: agent.out,
            agent: Some(agent.input),
            _scratch: scratch,
        }
    }
}

fn hello(file: &FrontFile, incarnation: Incarnation, place: &Place) -> Hello {
    Hello {
        version: VERSION,
        kernel: file.kernel.clone(),
        incarnation,
        tenure: tenure_of(file),
        node: place.node.clone(),
        pid: std::process::id(),
        seat: place.seat.job,
        step: place.seat.step,
        front_epoch: 0,
        taken: 0,
        standby: false,
        in_flight: Vec::new(),
        members: 0,
    }
}

/// A kernel that could not be started has no last words, but its user should read why.
async fn not_started(hello: Hello, mut links: mpsc::Receiver<LinkEvent>, reason: String) -> Result<()> {
    while let Ok(Some(event)) = timeout(START, links.recv()).await {
        match event {
            // The dialler may be gone first.
            LinkEvent::WantsHello(answer) => drop(answer.send(hello.clone())),
            LinkEvent::Up { out, .. } => {
                let over = Over::NotStarted {
                    reason: reason.clone(),
                };
                let _ = out.send(Frame::Item(1, Item::Note(Note::KernelOver { over })));
                sleep(LAST_WORDS).await;
                break;
            }
            LinkEvent::Down | LinkEvent::Over(_) => break,
        }
    }
    anyhow::bail!(reason)
}

/// Receives from a channel that may be absent.
async fn receive<T>(input: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match input {
        Some(rx) => rx.recv().await,
        None => std::future::pending().await,
    }
}

async fn receive_word(seat: &mut Option<mpsc::UnboundedReceiver<FromSeat>>) -> Option<FromSeat> {
    match seat {
        Some(seat) => seat.recv().await,
        None => std::future::pending().await,
    }
}

async fn maybe_at(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A point of the core's time on the runtime's clock.
fn instant(at: Timestamp, now: Timestamp) -> Instant {
    Instant::now() + Duration::from_micros(at.since(now).0)
}

impl Replica {
    async fn main_loop(&mut self, mut inputs: Inputs) -> Result<()> {
        while !self.leaving {
            self.serve_process(&mut inputs).await?;
        }
        self.until_taken(&mut inputs).await;
        self.end_descendants();
        self.log.end().await;
        if inputs.links.is_none() {
            self.clean_up();
        }
        Ok(())
    }

    /// Serves one process of the kernel, until it has ended or the replica is to leave.
    async fn serve_process(&mut self, inputs: &mut Inputs) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut connecting = Box::pin(self.process.sockets.connect_iopub());
        let (mut connected, mut probe_at) = (self.process.heard, None);
        if connected {
            let pid = self.process.kernel.pid();
            self.handle(Input::KernelUp { pid }).await;
        }
        while !self.leaving {
            let starting = self.core.is_starting();
            let due = self.core.due().map(|at| instant(at, self.clock.now()));
            tokio::select! {
                status = self.process.kernel.wait() => {
                    let status = status.context("can't wait for the kernel")?;
                    return self.kernel_ended(status).await;
                }
                event = self.process.events.recv() => if let Some((socket, event)) = event {
                    let sorted = self.process.sockets.sort(socket, event);
                    self.on_kernel(sorted).await;
                    // Messages that came with it; the others get their turn after BATCH of them.
                    for _ in 0..BATCH {
                        let Ok((socket, event)) = self.process.events.try_recv() else { break };
                        let sorted = self.process.sockets.sort(socket, event);
                        self.on_kernel(sorted).await;
                    }
                },
                frame = receive(&mut inputs.frames) => match frame {
                    Some(frame) => {
                        // A later message may come from a client that saw the kernel die.
                        let ended = self.process.kernel.ended();
                        if let Some(status) = ended {
                            self.kernel_ended(status).await?;
                        }
                        self.on_front(frame).await;
                        if ended.is_some() {
                            return Ok(());
                        }
                    }
                    None => inputs.frames = None,
                },
                event = receive(&mut inputs.links) => {
                    let (before, _) = self.link.position();
                    if let Some(reason) = self.on_link(event, &mut inputs.frames) {
                        inputs.links = None;
                        self.abandoned(reason).await;
                    } else if before != 0 && self.link.position().0 != before {
                        self.handle(Input::FrontChanged).await;
                    }
                }
                news = inputs.news.recv() => if let Some(news) = news { self.handle(Input::Hopd(news)).await },
                parcel = receive(&mut self.process.agent) => match parcel {
                    Some(parcel) => self.handle(Input::Agent(parcel)).await,
                    None => self.process.agent = None,
                },
                end = inputs.errands.recv() => if let Some((pid, end)) = end {
                    tracing::info!(?end, "hop gpu");
                    // An errand for a process that has died says nothing of the next one.
                    if pid == self.process.kernel.pid() {
                        self.handle(Input::Errand(end)).await;
                    }
                },
                word = receive_word(&mut inputs.seat) => match word {
                    Some(word) => self.on_seat(word).await,
                    // The seat's job ends, and this step with it.
                    None => inputs.seat = None,
                },
                event = inputs.store.recv() => if let Some(event) = event { self.on_store(event).await },
                client = &mut connecting, if !connected => {
                    connected = true;
                    self.process.sockets.iopub_is_connected(client);
                    probe_at = Some(Instant::now() + PROBE_EVERY);
                }
                () = maybe_at(probe_at), if starting => {
                    self.process.sockets.probe().await;
                    probe_at = Some(Instant::now() + PROBE_EVERY);
                }
                () = maybe_at(due) => self.handle(Input::Tick).await,
                _ = terminate.recv() => {
                    let grace = grace::of_the_seat().await;
                    self.handle(Input::Terminated { grace }).await;
                }
            }
            self.link.acknowledge();
        }
        Ok(())
    }

    async fn handle(&mut self, input: Input) {
        self.decide(input).await;
        // One replica is a majority of itself.
        while let Some(entry) = self.log.committed() {
            let index = Index(self.core.applied_index().0 + 1);
            self.decide(Input::Applied { index, entry }).await;
        }
    }

    async fn decide(&mut self, input: Input) {
        let was_starting = self.core.is_starting();
        if matches!(input, Input::KernelUp { .. }) {
            tracing::info!("the kernel's process is heard");
        }
        for output in self.core.handle(input, self.clock.now()) {
            self.carry_out(output).await;
        }
        if was_starting && !self.core.is_starting() {
            tracing::info!("the kernel takes cells");
        }
    }

    async fn carry_out(&mut self, output: Output) {
        match output {
            Output::ToKernel {
                channel,
                identity,
                message,
            } => {
                self.process.sockets.send(channel, &identity, &message).await;
            }
            Output::ToFront(item) => self.link.send(item),
            // Without a connection to hopd the core repeats the request later.
            Output::ToHopd(request) => drop(self.to_hopd.send(*request)),
            // A kernel that is gone needs no answer.
            Output::ToAgent(parcel) => drop(self.process.to_agent.send(parcel)),
            Output::Gpu(errand, devices) => {
                let pid = self.process.kernel.pid();
                let work = self.errands.clone().run(errand, pid, devices);
                let ends = self.errand_ends.clone();
                tokio::spawn(async move {
                    // The replica may be at its end.
                    let _ = ends.send((pid, work.await));
                });
            }
            Output::InterruptKernel { why } => self.process.kernel.interrupt(why.as_deref()),
            Output::KillKernel => self.process.kernel.kill(),
            Output::StartKernel => self.start_again(),
            Output::Propose(entry) => self.log.propose(entry),
            Output::Found { wanted, state } => {
                let kernel = self.file.kernel.clone();
                self.log.found(kernel, self.incarnation, wanted, state);
            }
            Output::Disband => self.log.disband(),
            Output::GoAlone => self.log.go_alone(),
            Output::Append {
                number,
                text,
                body,
                behind,
            } => {
                self.store_job(StoreJob::Append {
                    number,
                    text,
                    body,
                    behind,
                });
            }
            Output::Sync => self.store_job(StoreJob::Sync),
            Output::WriteState { state } => self.store_job(StoreJob::WriteState(state)),
            Output::OpenTenure { state } => self.store_job(StoreJob::OpenTenure(Box::new(state))),
            Output::Leave => self.leaving = true,
        }
    }

    fn store_job(&self, job: StoreJob) {
        if let Some(store) = &self.store {
            store.send(job);
        }
    }

    /// Has the front found, and kept.
    fn dial(&mut self) {
        if let Some(events) = self.dialler.take() {
            let tenure = Some(self.core.tenure());
            tokio::spawn(dial::dial(self.dir.clone(), self.incarnation, tenure, events));
        }
    }

    async fn on_seat(&mut self, word: FromSeat) {
        if self.log.is_given_up() {
            return;
        }
        let input = match word {
            FromSeat::Alone => return,
            FromSeat::State(state) => {
                self.log.founded();
                Input::GroupState(state)
            }
            FromSeat::Applied { index, entry } => Input::Applied { index, entry },
            FromSeat::Voters(voters) => Input::Voters(voters),
            FromSeat::Need(lack) => Input::Lacks {
                replicas: lack.replicas,
                gone: lack.gone,
            },
            FromSeat::Failed(why) => {
                tracing::warn!(why, "the kernel stays with one replica");
                self.log.not_founded();
                Input::NotFounded
            }
            // Said to spares alone.
            FromSeat::Become(_) => return,
        };
        self.handle(input).await;
    }

    async fn on_store(&mut self, event: StoreEvent) {
        if matches!(event, StoreEvent::Opened | StoreEvent::Failed(_)) {
            self.dial();
        }
        let input = match event {
            StoreEvent::Synced { upto, length, mac } => Input::Synced { upto, length, mac },
            StoreEvent::InSync => Input::InSync,
            StoreEvent::Rested => Input::Rested,
            StoreEvent::Opened => Input::TenureOpened,
            // Another front has opened that tenure: this replica is deposed.
            StoreEvent::Taken => {
                tracing::warn!("another replica has taken this one's place");
                self.leaving = true;
                return;
            }
            StoreEvent::Failed(why) => Input::StoreFailed(why),
        };
        self.handle(input).await;
    }

    /// Starts the kernel's next process. A failed start is told as a process that ended at once.
    fn start_again(&mut self) {
        match Process::start(&self.program, &self.file, self.lends) {
            Ok(process) => self.process = process,
            Err(error) => tracing::error!("the kernel can't be started again: {error:#}"),
        }
    }

    async fn on_kernel(&mut self, message: Option<FromKernel>) {
        let input = match message {
            None => return,
            Some(FromKernel::Published(message)) => Input::Published(message),
            Some(FromKernel::Answer {
                channel,
                identity,
                message,
            }) => Input::FromKernel {
                channel,
                identity,
                message,
            },
            Some(FromKernel::Heard) => Input::KernelUp {
                pid: self.process.kernel.pid(),
            },
        };
        self.handle(input).await;
    }

    async fn on_front(&mut self, frame: Frame) {
        let input = match self.link.take(frame) {
            None => return,
            Some(Item::Jupyter {
                channel,
                identity,
                message,
            }) => Input::Request {
                channel,
                identity,
                message,
            },
            Some(Item::Note(note)) => match note {
                Note::ClientGone { identity } => {
                    let identity: Bytes = hex::decode(identity).unwrap_or_default().into();
                    return self.process.sockets.forget(&identity);
                }
                Note::Interrupt => Input::Interrupt,
                Note::End => Input::End,
                Note::Sleep { reason } => Input::Orphaned { reason },
                Note::HandedBefore { cell, tenure } => Input::HandedBefore { cell, tenure },
                Note::MayBegin { cell } => Input::MayBegin { cell },
                Note::Grown {
                    incarnation,
                    seat,
                    node,
                } => Input::Grown {
                    incarnation,
                    seat,
                    node,
                },
                Note::Heard { cells, losses } => Input::Heard { cells, losses },
                Note::MoveReady { incarnation } => Input::MoveReady { incarnation },
                Note::MoveFailed { incarnation, reason } => Input::MoveFailed { incarnation, reason },
                _ => return,
            },
        };
        self.handle(input).await;
    }

    /// Follows the connection to the front. Returns the reason why no front exists any more.
    fn on_link(
        &mut self,
        event: Option<LinkEvent>,
        frames: &mut Option<mpsc::Receiver<Frame>>,
    ) -> Option<Gone> {
        match event {
            Some(LinkEvent::WantsHello(answer)) => drop(answer.send(self.hello())),
            Some(LinkEvent::Up {
                epoch,
                taken,
                again,
                out,
                input,
            }) => {
                tracing::info!("the front is there");
                self.link.up(epoch, taken, &again, out);
                *frames = Some(input);
            }
            Some(LinkEvent::Down) => self.link.down(),
            Some(LinkEvent::Over(gone)) => return Some(gone),
            None => return Some(Gone::Superseded("the dialler ended".into())),
        }
        None
    }

    fn hello(&self) -> Hello {
        let (front_epoch, taken) = self.link.position();
        Hello {
            front_epoch,
            taken,
            tenure: self.core.tenure(),
            in_flight: self.core.in_flight(),
            members: self.core.members(),
            ..hello(&self.file, self.incarnation, &self.place)
        }
    }

    // The end.

    /// The kernel's process is over: its last messages go out, then the core hears of its end.
    async fn kernel_ended(&mut self, status: ExitStatus) -> Result<()> {
        let until = Instant::now() + LAST_WORDS;
        // The kernel's sockets close once they are read to the end, so this is over as soon as all are.
        while self.process.sockets.iopub_is_open() {
            let event = tokio::time::timeout_at(until, self.process.events.recv()).await;
            let Ok(Some((socket, event))) = event else {
                break;
            };
            let sorted = self.process.sockets.sort(socket, event);
            self.on_kernel(sorted).await;
        }
        while let Ok((socket, event)) = self.process.events.try_recv() {
            let sorted = self.process.sockets.sort(socket, event);
            self.on_kernel(sorted).await;
        }
        while let Some(Ok(parcel)) = self.process.agent.as_mut().map(mpsc::Receiver::try_recv) {
            self.handle(Input::Agent(parcel)).await;
        }
        let exit = Exit {
            killed: self.process.kernel.was_killed(status),
            reason: self.process.kernel.reason(status),
        };
        self.end_descendants();
        self.handle(Input::Exited(exit)).await;
        Ok(())
    }

    /// Waits until the front has everything, or there is no front any more.
    async fn until_taken(&mut self, inputs: &mut Inputs) {
        let patience = Instant::now() + dial::WITHOUT_FRONT;
        while !self.link.is_settled() && inputs.links.is_some() {
            tokio::select! {
                frame = receive(&mut inputs.frames) => match frame {
                    Some(frame) => drop(self.link.take(frame)),
                    None => inputs.frames = None,
                },
                event = receive(&mut inputs.links) => {
                    if self.on_link(event, &mut inputs.frames).is_some() {
                        break;
                    }
                }
                () = sleep_until(patience) => break,
            }
        }
    }

    /// No front exists any more, or the front wants another replica.
    async fn abandoned(&mut self, gone: Gone) {
        tracing::warn!(?gone, "no front wants this replica");
        match gone {
            Gone::Superseded(_) => self.leaving = true,
            Gone::Alone(reason) => self.handle(Input::Orphaned { reason }).await,
        }
        if self.leaving {
            self.process.kernel.kill();
            let _ = timeout(LAST_WORDS, self.process.kernel.wait()).await;
        }
    }

    /// The front's folder is left only where no front cleans up after itself; so is the state of a kernel that nobody finds
    /// again.
    fn clean_up(&self) {
        if FrontFile::read(&self.dir).is_ok_and(|f| f.incarnation == self.incarnation) {
            let _ = std::fs::remove_dir_all(&self.dir);
            if let Some(state) = &self.file.state
                && !state.kernel.join(states::NOTEBOOK).exists()
            {
                let _ = std::fs::remove_dir_all(&state.kernel);
            }
        }
    }

    /// Ends the processes that the kernel started, wherever they went: as a subreaper we are their parent now.
    fn end_descendants(&self) {
        self.process.kernel.kill();
        end_children();
        // The record of a park is kept for a process that could be brought back, and this one is gone.
        hop_gpu::record::forget(rustix::process::getuid().as_raw(), self.process.kernel.pid());
    }
}
