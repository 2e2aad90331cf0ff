//! `hop-agent run`: the batch step's program. A thin shell round [`AgentState`]: processes, the socket, the disk and
//! the connection to `hopd`. A single task owns the state; all others send events to the task.

use crate::epochs::Epochs;
use crate::link::{GUARD, HolderHello, MAX_LINE, ToHolder, VERSION};
use crate::pilot::{self, Pilot};
use crate::state::{AgentState, Input, Isolation, LeaseCheckpoint, Output, PilotFacts, Waits};
use crate::steps::{self, Steps};
use anyhow::{Context, Result, bail};
use hop_api::client::{self, Client, Item, Items};
use hop_api::config::{Config, Isolation as PoolIsolation, Pool};
use hop_api::message::{Order, Request, Role};
use hop_handover::token::{Confirmation, Look};
use hop_words::clock::SteadyClock;
use hop_words::error::chain;
use hop_words::id::{GpuIndex, GpuType, JobId, LeaseId, PoolName, Term};
use hop_words::line;
use hop_words::line::tokio::{Lines, write as write_line};
use hop_words::time::{Span, Timestamp};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufRead, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

/// Time for which the successor of a dead agent waits for holders before it reports the leases to `hopd`.
const GATHER: Duration = Duration::from_millis(1500);
/// Time after which a dead agent's steps without holders are given up. Longer than a holder's patience.
const ORPHANS: Duration = Duration::from_secs(12);
/// How long an agent that can't start tries to tell `hopd`.
const TELLING: Duration = Duration::from_secs(5);
/// How long a peer on the socket may take for its line.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The pool that this pilot belongs to
    #[arg(long)]
    pool: String,
}

enum Event {
    Input(Input),
    Holder {
        connection: u64,
        input: Input,
        lines: mpsc::UnboundedSender<ToHolder>,
    },
    HolderGone {
        connection: u64,
        lease: LeaseId,
    },
}

type Events = mpsc::UnboundedSender<Event>;

pub(crate) async fn run(args: &Args) -> Result<()> {
    let config = Config::load()?;
    let pool_name: PoolName = args.pool.as_str().into();
    let pool = config
        .pool
        .get(&pool_name)
        .with_context(|| format!("the configuration has no pool {pool_name}"))?
        .clone();
    let pilot = pilot::discover(&pool).await?;
    let begun = match begin(&config, &pool, pool_name, &pilot) {
        Ok(begun) => begun,
        Err(error) => {
            tell_of_failure(&config, &pilot, chain(&*error)).await;
            return Err(error);
        }
    };
    let (mut agent, inbox, first) = begun;
    agent.perform(vec![Output::ReserveEpochs { above: 0 }]);
    let look = agent.state.first_look();
    agent.perform(look.into_iter().collect());
    agent.live(&config, inbox, first, &pilot).await?;
    let _ = std::fs::remove_file(&agent.steps.socket);
    let _ = std::fs::remove_file(marker(&agent.steps.scratch, pilot.job));
    info!("the agent is done");
    Ok(())
}

/// The agent with its inbox, and whether it is the pilot's first.
type Begun = (Agent, mpsc::UnboundedReceiver<Event>, bool);

/// Opens the node's record and the socket.
fn begin(config: &Config, pool: &Pool, pool_name: PoolName, pilot: &Pilot) -> Result<Begun> {
    let dir = config.agent.state_dir.join(pilot.node.as_str());
    let epochs = Epochs::open(&dir)?;
    let term = epochs.term()?;
    let first = mark_start(&dir, pilot.job)?;
    let socket = socket_of(&dir, pilot.job);
    let listener = listen(&socket)?;
    let (events, inbox) = mpsc::unbounded_channel();
    tokio::spawn(accept(listener, events.clone()));
    tokio::spawn(terminated(events.clone())?);

    let state = AgentState::new(pilot_facts(config, pool, pool_name, pilot, term));
    info!(node = %pilot.node, pilot = %pilot.job, gpus = pilot.gpus.len(), again = !first, "the agent starts");
    if pool.isolation == PoolIsolation::None {
        warn!("isolation is \"none\": nothing keeps a GPU from processes without a lease");
    }
    let steps = Steps {
        pilot: pilot.job,
        socket,
        program: std::env::current_exe()?,
        munge_socket: config.munge_socket.clone(),
        scratch: dir,
        with_token: pool.isolation == PoolIsolation::Devices,
    };
    let agent = Agent::new(state, epochs, steps, pool.grace(), events);
    Ok((agent, inbox, first))
}

/// Tells `hopd` why no agent comes up in this pilot, if `hopd` answers soon: the log is on the node alone.
async fn tell_of_failure(config: &Config, pilot: &Pilot, reason: String) {
    let tell = async {
        let (client, mut items) = client::start(client::Options::from_config(config, Role::Agent)?);
        while !matches!(items.next().await, Some(Item::Connected(_)) | None) {}
        let failed = Request::AgentFailed {
            pilot: pilot.job,
            node: pilot.node.clone(),
            reason,
        };
        client.request(failed).await
    };
    match tokio::time::timeout(TELLING, tell).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => warn!("hopd could not be told: {}", chain(&error)),
        Err(_) => warn!("hopd could not be told: it does not answer"),
    }
}

fn pilot_facts(config: &Config, pool: &Pool, name: PoolName, pilot: &Pilot, term: Term) -> PilotFacts {
    PilotFacts {
        node: pilot.node.clone(),
        pilot: pilot.job,
        pool: name,
        gpus: pilot.gpus.clone(),
        cpus: pilot.cpus,
        ends: pilot.ends,
        steps_max: pilot.steps_max,
        isolation: match pool.isolation {
            PoolIsolation::Devices => Isolation::Plugin,
            PoolIsolation::None => Isolation::None,
        },
        grace: pool.grace(),
        waits: Waits {
            start: Span::from_secs(config.agent.start_timeout_s.into()),
            ..Waits::default()
        },
        term,
    }
}

fn marker(dir: &Path, pilot: JobId) -> PathBuf {
    dir.join(format!("pilot.{pilot}"))
}

fn socket_of(dir: &Path, pilot: JobId) -> PathBuf {
    dir.join(format!("agent.{pilot}.sock"))
}

/// A living agent answers on its socket; a dead pilot's doesn't.
fn answers(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

/// True at the first start in this pilot. Sweeps away what ended pilots left.
fn mark_start(dir: &Path, pilot: JobId) -> Result<bool> {
    let own = marker(dir, pilot);
    let first = !own.exists();
    let ended = |job| job != pilot && !answers(&socket_of(dir, job));
    if let Some(logs) = dir.parent() {
        sweep(logs, "pilot.", ".log", ended);
    }
    sweep(dir, "lease.", ".json", ended);
    std::fs::write(&own, b"").with_context(|| format!("{}", own.display()))?;
    for entry in std::fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "sock") && !answers(&path) {
            let _ = std::fs::remove_file(&path);
        }
    }
    Ok(first)
}

/// Removes old files of ended pilots. Age alone proves nothing: a long lease's checkpoint is written once.
fn sweep(dir: &Path, prefix: &str, suffix: &str, ended: impl Fn(JobId) -> bool) {
    const KEEP: Duration = Duration::from_secs(7 * 86_400);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let inner = name.strip_prefix(prefix).and_then(|n| n.strip_suffix(suffix));
        let job = inner.and_then(|n| n.split('.').next()?.parse().ok());
        let age = entry
            .metadata()
            .and_then(|m| m.modified())
            .ok()
            .and_then(|t| t.elapsed().ok());
        if age.is_some_and(|a| a > KEEP) && job.is_some_and(&ended) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn listen(socket: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).context(format!("{}", socket.display()));
        }
        _ => {}
    }
    UnixListener::bind(socket).with_context(|| format!("can't listen on {}", socket.display()))
}

fn terminated(events: Events) -> Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        let _ = events.send(Event::Input(Input::Terminated));
    })
}

async fn accept(listener: UnixListener, events: Events) {
    let mut next = 0u64;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                next += 1;
                let events = events.clone();
                let connection = next;
                tokio::spawn(async move {
                    if let Err(error) = serve_peer(stream, connection, events).await {
                        warn!("a connection to the agent's socket was refused: {error:#}");
                    }
                });
            }
            Err(error) => {
                warn!("the agent's socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Root is the plugin, our own uid a holder; nobody else gets past the directory, and is refused all the same.
async fn serve_peer(stream: UnixStream, connection: u64, events: Events) -> Result<()> {
    let uid = stream.peer_cred()?.uid();
    let me = rustix::process::geteuid().as_raw();
    let (read, mut write) = stream.into_split();
    let read = BufReader::new(read);
    if uid == 0 {
        let mut lines = Lines::new(read, hop_handover::token::MAX_LINE);
        let confirmation = Confirmation::from_line(&first_line(&mut lines).await?)?;
        let _ = events.send(Event::Input(Input::Confirmed(confirmation)));
        return Ok(());
    }
    if uid != me {
        bail!("uid {uid} has no business here");
    }
    let mut said = Lines::new(read, MAX_LINE);
    let hello: HolderHello = line::decode(&first_line(&mut said).await?)?;
    if hello.holder != VERSION {
        bail!("a holder of version {}", hello.holder);
    }
    let lease = hello.lease;
    let (lines, mut outgoing) = mpsc::unbounded_channel::<ToHolder>();
    let (step, gpus) = (hello.step, hello.gpus);
    let input = match lease {
        GUARD => Input::GuardUp { step, gpus },
        lease => Input::HolderUp {
            lease,
            step,
            gpus,
            checkpoint: None,
        },
    };
    let _ = events.send(Event::Holder {
        connection,
        input,
        lines,
    });
    loop {
        tokio::select! {
            line = outgoing.recv() => {
                let Some(line) = line else { break };
                if write_line(&mut write, &line).await.is_err() {
                    break;
                }
            }
            // A holder sends nothing after its hello: another line, or the end, counts as the holder's end.
            _ = said.next_line() => break,
        }
    }
    let _ = events.send(Event::HolderGone { connection, lease });
    Ok(())
}

/// Reads a peer's first line. It is empty if the peer ends before it.
async fn first_line(lines: &mut Lines<impl AsyncBufRead + Unpin>) -> Result<Vec<u8>> {
    let line = tokio::time::timeout(LINE_TIMEOUT, lines.next_line())
        .await
        .context("no line came")??;
    Ok(line.unwrap_or_default())
}

struct Agent {
    state: AgentState,
    epochs: Epochs,
    steps: Steps,
    grace: Span,
    events: Events,
    holders: HashMap<LeaseId, (u64, mpsc::UnboundedSender<ToHolder>)>,
    guards: HashMap<GpuIndex, (u64, mpsc::UnboundedSender<ToHolder>)>,
    stops: HashMap<LeaseId, oneshot::Sender<()>>,
    /// Ends the srun of the last guard.
    guard_stop: Option<oneshot::Sender<()>>,
    /// The sruns of leases that start or live; 0: not started yet.
    sruns: HashMap<LeaseId, Arc<AtomicU32>>,
    watches: HashMap<LeaseId, AbortHandle>,
    client: Option<Client>,
    clock: SteadyClock,
    over: bool,
}

impl Agent {
    fn new(
        state: AgentState,
        epochs: Epochs,
        steps: Steps,
        grace: Span,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            state,
            epochs,
            steps,
            grace,
            events,
            holders: HashMap::new(),
            guards: HashMap::new(),
            stops: HashMap::new(),
            guard_stop: None,
            sruns: HashMap::new(),
            watches: HashMap::new(),
            client: None,
            clock: SteadyClock::new(),
            over: false,
        }
    }

    async fn live(
        &mut self,
        config: &Config,
        mut inbox: mpsc::UnboundedReceiver<Event>,
        first: bool,
        pilot: &Pilot,
    ) -> Result<()> {
        if !first {
            self.gather(&mut inbox).await;
            let job = pilot.job;
            let suspects = pilot.steps.clone();
            tokio::spawn(find_orphans(job, suspects, self.events.clone()));
        }
        let (client, mut items) = client::start(client::Options::from_config(config, Role::Agent)?);
        self.client = Some(client);
        while !self.over {
            let wake = self.state.next_wake();
            tokio::select! {
                event = inbox.recv() => {
                    let Some(event) = event else { bail!("all senders of events are gone") };
                    self.event(event);
                }
                item = items.next() => self.item(item).await?,
                () = sleep_until(wake, self.clock.now()) => self.input(Input::Tick),
            }
        }
        self.say_goodbye(&mut items).await;
        Ok(())
    }

    /// Lets the holders of a dead agent come back before `hopd` hears which leases live.
    async fn gather(&mut self, inbox: &mut mpsc::UnboundedReceiver<Event>) {
        let deadline = tokio::time::Instant::now() + GATHER;
        while let Ok(Some(event)) = tokio::time::timeout_at(deadline, inbox.recv()).await {
            self.event(event);
        }
    }

    /// Reports are on their way when `hopd` has answered a ping behind them.
    async fn say_goodbye(&mut self, items: &mut Items) {
        let Some(client) = self.client.take() else { return };
        let _ = tokio::time::timeout(Duration::from_secs(2), client.request(Request::Ping)).await;
        drop(client);
        while items.next().await.is_some() {}
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Input(input) => self.input(input),
            Event::Holder {
                connection,
                input,
                lines,
            } => {
                let mut input = input;
                match &mut input {
                    Input::HolderUp {
                        lease, checkpoint, ..
                    } => {
                        self.holders.insert(*lease, (connection, lines));
                        *checkpoint = self.read_checkpoint(*lease);
                    }
                    Input::GuardUp { gpus, .. } => {
                        let guards = gpus.iter().map(|index| (*index, (connection, lines.clone())));
                        self.guards.extend(guards);
                    }
                    _ => {}
                }
                self.input(input);
            }
            Event::HolderGone { connection, lease } if lease == GUARD => {
                let gone: Vec<_> = self.guards.extract_if(|_, (c, _)| *c == connection).collect();
                for (index, _) in gone {
                    self.input(Input::GuardGone { index });
                }
            }
            Event::HolderGone { connection, lease } => {
                if self.holders.get(&lease).is_some_and(|(c, _)| *c == connection) {
                    self.holders.remove(&lease);
                    self.input(Input::HolderGone { lease });
                }
            }
        }
    }

    async fn item(&mut self, item: Option<Item>) -> Result<()> {
        match item {
            None => bail!("the connection to hopd has no task any more"),
            Some(Item::Connected(welcome)) => {
                let (epochs, term) = (self.epochs.clone(), welcome.term);
                let kept = tokio::task::spawn_blocking(move || keep_term(&epochs, term)).await?;
                self.input(kept);
                self.input(Input::Connected { term });
            }
            Some(Item::Disconnected { reason, .. }) => warn!("no connection to hopd: {reason}"),
            Some(Item::Order(order)) => self.order(order),
            Some(Item::Refused { refusal, .. }) => {
                warn!("hopd refused a report: {refusal}");
                self.input(Input::ReportRefused);
            }
            Some(Item::Event(_)) => {}
        }
        Ok(())
    }

    fn order(&mut self, order: Order) {
        debug!(?order, "an order");
        // Another pilot's agent on this node may have met a younger hopd.
        match self.epochs.term() {
            Ok(term) => self.input(Input::NodeTerm(term)),
            // The leases that live here are worth more than this word.
            Err(error) => warn!("the node's record can't be read: {}", chain(&error)),
        }
        self.input(Input::Order(order));
    }

    fn input(&mut self, input: Input) {
        let outputs = self.state.handle(input, self.clock.now());
        self.perform(outputs);
    }

    fn perform(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Report(report) => self.report(report),
                Output::StartStep { order, epoch } => self.start_step(order, epoch),
                Output::Detach { lease } => {
                    let pid = self.sruns.get(&lease).map_or(0, |p| p.load(Ordering::Relaxed));
                    if pid != 0 {
                        steps::detach(pid);
                    }
                }
                Output::KeepCheckpoint { lease, checkpoint } => self.keep_checkpoint(lease, &checkpoint),
                Output::EndHolder { lease } => self.tell(lease, ToHolder::End),
                Output::StartGuard { number, gpu_type } => self.start_guard(number, gpu_type),
                Output::EndGuardStart => {
                    if let Some(stop) = self.guard_stop.take() {
                        let _ = stop.send(());
                    }
                }
                Output::EndGuard { index } => {
                    if let Some((_, lines)) = self.guards.get(&index) {
                        let _ = lines.send(ToHolder::End);
                    }
                }
                Output::EndStep { lease } => {
                    if let Some(stop) = self.stops.remove(&lease) {
                        let _ = stop.send(());
                    }
                }
                Output::Rescue { lease, epoch, grace } => self.rescue(lease, epoch, grace),
                Output::AskPreemption { lease } => self.ask_preemption(lease),
                Output::Look(look) => self.look(look),
                Output::Watch {
                    lease,
                    pid,
                    start_time,
                } => self.watch(lease, pid, start_time),
                Output::Forget { lease } => {
                    let _ = std::fs::remove_file(self.checkpoint_file(lease));
                    self.stops.remove(&lease);
                    self.sruns.remove(&lease);
                    if let Some(watch) = self.watches.remove(&lease) {
                        watch.abort();
                    }
                }
                Output::KeepTerm(term) => {
                    let (epochs, events) = (self.epochs.clone(), self.events.clone());
                    tokio::task::spawn_blocking(move || {
                        let _ = events.send(Event::Input(keep_term(&epochs, term)));
                    });
                }
                Output::ReserveEpochs { above } => self.reserve(above),
                Output::HangUp { reason } => {
                    if let Some(client) = self.client.clone() {
                        tokio::spawn(async move { client.hang_up(&reason).await });
                    }
                }
                Output::Warn(text) => warn!("{text}"),
                Output::Exit => self.over = true,
            }
        }
    }

    fn report(&self, report: Request) {
        debug!(?report, "a report");
        if let Some(client) = &self.client
            && client.try_send(report).is_err()
        {
            // The state keeps the report's content for the next AgentUp.
            debug!("a report was not sent: no connection");
        }
    }

    fn tell(&self, lease: LeaseId, line: ToHolder) {
        if let Some((_, lines)) = self.holders.get(&lease) {
            let _ = lines.send(line);
        }
    }

    fn start_step(&mut self, order: hop_api::message::StartLease, epoch: hop_words::id::Epoch) {
        let lease = order.lease;
        let (stop, stopped) = oneshot::channel::<()>();
        self.stops.insert(lease, stop);
        let pid = Arc::new(AtomicU32::new(0));
        self.sruns.insert(lease, pid.clone());
        let steps = self.steps.clone();
        let grace = self.grace;
        let events = self.events.clone();
        info!(%lease, user = %order.user, kernel = %order.kernel, gpus = order.gpus, cpus = order.cpus, "lease");
        tokio::spawn(async move {
            let detail = match steps.lend(&order, epoch, grace).await {
                Ok(srun) => {
                    pid.store(srun.pid().unwrap_or_default(), Ordering::Relaxed);
                    srun.wait(asked(stopped)).await
                }
                Err(error) => chain(&*error),
            };
            pid.store(0, Ordering::Relaxed);
            debug!(%lease, detail, "srun ended");
            let word = steps::word_of(&detail);
            let _ = events.send(Event::Input(Input::StepExited { lease, detail, word }));
        });
    }

    fn start_guard(&mut self, number: u64, gpu_type: GpuType) {
        let (stop, stopped) = oneshot::channel::<()>();
        self.guard_stop = Some(stop);
        let (steps, events) = (self.steps.clone(), self.events.clone());
        info!(number, "a blocked GPU gets a guard");
        tokio::spawn(async move {
            let detail = match steps.guard(&gpu_type) {
                Ok(srun) => srun.wait(asked(stopped)).await,
                Err(error) => chain(&*error),
            };
            let _ = events.send(Event::Input(Input::GuardExited { number, detail }));
        });
    }

    fn rescue(&self, lease: LeaseId, epoch: hop_words::id::Epoch, grace: Span) {
        warn!(%lease, "no take-back was confirmed: a step of its own takes back");
        let steps = self.steps.clone();
        let events = self.events.clone();
        tokio::spawn(async move {
            let detail = match steps.take_back(lease, epoch, grace).await {
                Ok(srun) => srun.wait(tokio::time::sleep(Duration::from_secs(60))).await,
                Err(error) => chain(&*error),
            };
            // The confirmation came before the exit, on another socket: let it be read first.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let _ = events.send(Event::Input(Input::RescueExited { lease, detail }));
        });
    }

    fn ask_preemption(&self, lease: LeaseId) {
        let (pilot, events) = (self.steps.pilot, self.events.clone());
        tokio::spawn(async move {
            let preempted = crate::pilot::is_preempted(pilot).await;
            let _ = events.send(Event::Input(Input::Preemption { lease, preempted }));
        });
    }

    /// Asks the plugin to look at the node. Without an answer the known standing stays.
    fn look(&self, look: Look) {
        if let Some(operator) = &look.operator {
            info!(%operator, gpus = ?look.again, "blocked GPUs are looked at again");
        }
        let steps = self.steps.clone();
        tokio::spawn(async move {
            let detail = match steps.look(look).await {
                Ok(srun) => srun.wait(tokio::time::sleep(Duration::from_secs(60))).await,
                Err(error) => chain(&*error),
            };
            debug!(detail, "the looking step has ended");
        });
    }

    fn watch(&mut self, lease: LeaseId, pid: u32, start_time: u64) {
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            match wait_for_end(pid, start_time).await {
                Ok(()) => {
                    let _ = events.send(Event::Input(Input::ExecutorGone { lease }));
                }
                Err(error) => warn!(%lease, "the kernel's process {pid} can't be watched: {error}"),
            }
        });
        self.watches.insert(lease, task.abort_handle());
    }

    fn checkpoint_file(&self, lease: LeaseId) -> PathBuf {
        self.steps
            .scratch
            .join(format!("lease.{}.{lease}.json", self.steps.pilot))
    }

    /// Written without fsync: the checkpoint has to survive this process, not the node.
    fn keep_checkpoint(&self, lease: LeaseId, checkpoint: &LeaseCheckpoint) {
        let path = self.checkpoint_file(lease);
        let kept = serde_json::to_vec(checkpoint)
            .map_err(std::io::Error::from)
            .and_then(|text| std::fs::write(&path, text));
        if let Err(error) = kept {
            warn!(%lease, "a new agent would not know this lease: {}: {error}", path.display());
        }
    }

    fn read_checkpoint(&self, lease: LeaseId) -> Option<Box<LeaseCheckpoint>> {
        let text = std::fs::read(self.checkpoint_file(lease)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn reserve(&self, above: u64) {
        let epochs = self.epochs.clone();
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || match epochs.reserve(above) {
            Ok((from, to)) => {
                let _ = events.send(Event::Input(Input::Epochs { from, to }));
            }
            Err(error) => {
                let why = chain(&error);
                warn!("epochs can't be reserved: {why}");
                let _ = events.send(Event::Input(Input::EpochsFailed { why }));
            }
        });
    }
}

/// Resolves when the end of an srun is asked for.
async fn asked(stop: oneshot::Receiver<()>) {
    if stop.await.is_err() {
        // Forgotten: nobody will ask for its end any more.
        std::future::pending::<()>().await;
    }
}

/// Tries to put a term on disk.
fn keep_term(epochs: &Epochs, term: Term) -> Input {
    match epochs.raise_term(term) {
        Ok(highest) => Input::TermKept(highest),
        Err(error) => Input::TermFailed {
            term,
            why: chain(&error),
        },
    }
}

async fn sleep_until(wake: Option<Timestamp>, now: Timestamp) {
    match wake {
        Some(at) => tokio::time::sleep(Duration::from_micros(at.since(now).0)).await,
        None => std::future::pending().await,
    }
}

/// Resolves when the process is gone, at once if it was gone before or the pid is another's now.
async fn wait_for_end(pid: u32, start_time: u64) -> std::io::Result<()> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let raw = Pid::from_raw(pid.cast_signed()).ok_or(std::io::ErrorKind::InvalidInput)?;
    let fd: OwnedFd = match pidfd_open(raw, PidfdFlags::NONBLOCK) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Read after the descriptor was opened: an equal start time means the same process.
    if hop_words::process::start_time(pid).is_some_and(|found| found != start_time) {
        return Ok(());
    }
    #[expect(
        deprecated,
        reason = "its replacement is unsafe; an OwnedFd can't be closed under the AsyncFd"
    )]
    let fd = tokio::io::unix::AsyncFd::new(fd)?;
    let _ready = fd.readable().await?;
    Ok(())
}

/// Finds an earlier agent's steps that Slurm still shows after the holders' time to connect.
async fn find_orphans(job: JobId, suspects: Vec<u32>, events: Events) {
    if suspects.is_empty() {
        return;
    }
    tokio::time::sleep(ORPHANS).await;
    for step in pilot::steps(job).await {
        if suspects.contains(&step) {
            let _ = events.send(Event::Input(Input::OrphanStep { step }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::message::Welcome;

    fn agent(epochs: Epochs, scratch: PathBuf) -> (Agent, mpsc::UnboundedReceiver<Event>) {
        let (events, inbox) = mpsc::unbounded_channel();
        let facts = PilotFacts {
            node: "n1".into(),
            pilot: JobId(9),
            pool: "main".into(),
            gpus: Vec::new(),
            cpus: 8,
            ends: None,
            steps_max: 40_000,
            isolation: Isolation::None,
            grace: Span::ZERO,
            waits: Waits::default(),
            term: Term(5),
        };
        let steps = Steps {
            pilot: facts.pilot,
            socket: PathBuf::new(),
            program: PathBuf::new(),
            munge_socket: None,
            scratch,
            with_token: false,
        };
        let state = AgentState::new(facts);
        (Agent::new(state, epochs, steps, Span::ZERO, events), inbox)
    }

    fn connected(term: u64) -> Option<Item> {
        Some(Item::Connected(Welcome {
            version: hop_api::message::VERSION,
            term: Term(term),
            user: "gresshopper".into(),
            operator: false,
        }))
    }

    fn release(term: u64) -> Option<Item> {
        Some(Item::Order(Order::Release {
            term: Term(term),
            gpus: Vec::new(),
            operator: "carol".into(),
            asked: Timestamp(1),
        }))
    }

    #[test]
    fn old_files_of_living_pilots_survive_the_start_of_any_agent() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("n1");
        std::fs::create_dir(&dir).unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(8 * 86_400);
        let put = |path: PathBuf, at: std::time::SystemTime| {
            std::fs::File::create(path).unwrap().set_modified(at).unwrap();
        };
        for job in [7, 8, 9] {
            put(dir.join(format!("lease.{job}.1.json")), old);
            put(folder.path().join(format!("pilot.{job}.log")), old);
        }
        put(dir.join("lease.7.2.json"), std::time::SystemTime::now());
        let _eight = std::os::unix::net::UnixListener::bind(socket_of(&dir, JobId(8))).unwrap();
        drop(std::os::unix::net::UnixListener::bind(socket_of(&dir, JobId(7))).unwrap());
        assert!(mark_start(&dir, JobId(9)).unwrap());
        assert!(!mark_start(&dir, JobId(9)).unwrap(), "the second start");
        let names = |dir: &Path| {
            let entries = std::fs::read_dir(dir).unwrap();
            let mut names: Vec<_> = entries
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let kept = [
            "agent.8.sock",
            "lease.7.2.json",
            "lease.8.1.json",
            "lease.9.1.json",
            "pilot.9",
        ];
        assert_eq!(names(&dir), kept);
        assert_eq!(names(folder.path()), ["n1", "pilot.8.log", "pilot.9.log"]);
    }

    #[tokio::test]
    async fn no_disk_and_no_record_end_an_agent_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        let (here, away) = (folder.path().join("n1"), folder.path().join("away"));
        let epochs = Epochs::open(&here).unwrap();
        epochs.raise_term(Term(5)).unwrap();
        let (mut agent, mut inbox) = agent(epochs.clone(), here.clone());
        // Nothing can be written there.
        std::fs::rename(&here, &away).unwrap();
        agent.item(connected(6)).await.unwrap();
        assert_eq!(agent.state.term(), Term(6));
        agent.item(release(6)).await.unwrap();
        std::fs::rename(&away, &here).unwrap();
        assert_eq!(epochs.term().unwrap(), Term(5));
        agent.perform(vec![Output::KeepTerm(Term(6))]);
        let Some(Event::Input(Input::TermKept(term))) = inbox.recv().await else {
            panic!("it could be written")
        };
        assert_eq!((term, epochs.term().unwrap()), (Term(6), Term(6)));
        // A newer release's record.
        std::fs::write(here.join("epochs.json"), r#"{"version":2}"#).unwrap();
        agent.item(connected(7)).await.unwrap();
        agent.item(release(7)).await.unwrap();
        assert_eq!(agent.state.term(), Term(7));
        agent.state.sanity_check();
    }
}
