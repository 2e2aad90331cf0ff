//! Starts a kernel's replica. It opens the replica's tenure in the user's store, and starts a child of this process
//! (`local`) or a step in a seat of the user's, on the node named by `hopd`. All calls of Slurm are made as the user.

use crate::announce;
use crate::claim::{LastWord, Renamed};
use crate::core::{NO_SLURMCTLD, SeatWaits};
use crate::opening::{NotOpened, Opening, Origin, Place, next_incarnation};
use crate::owner::{Said, Start, say};
use crate::seat_wait::{Patience, SeenSeat};
use anyhow::{Context, Result, bail};
use hop_api::client;
use hop_api::config::{Config, Seat};
use hop_api::message::{PlaceKernel, Placement, Request, Response, Role, SeatPlan};
use hop_log::{Refusal, State};
use hop_protocol::content::Stores;
use hop_protocol::file::{FrontFile, StateFolder, Takeover, data_dir, make_private, seats_dir};
use hop_protocol::message::Note;
use hop_protocol::states::{self, OpenError};
use hop_protocol::step::{Step, StepSize, Turn, forget_job, run_args};
use hop_slurm::{SHOW_RESERVATIONS, WaitingJob, parse_reservations, shorten_args};
use hop_words::clock::now;
use hop_words::error::chain;
use hop_words::id::{Incarnation, JobId, KernelId, NodeName, Tenure};
use hop_words::process::{children_named, open_flags};
use hop_words::replica::{Replicas, SEAT_JOB};
use hop_words::time::Span;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

/// Limit on one call of Slurm's commands; slurmctld may be away for a while.
const SLURM_CALL: Duration = Duration::from_secs(60);

/// Limit on telling `hopd` the names of notebooks: the server's next opening may wait for it.
const TELLING: Duration = Duration::from_secs(3);

/// Most time that a kernel's start waits for an absent slurmctld, for instance during its restart or failover.
const SLURMCTLD_AWAY: Duration = Duration::from_secs(300);

/// Messages of Slurm's commands without slurmctld: nobody listens, or nobody answers. If two requests for a seat both
/// got through, one seat stays empty, and ends by itself.
const NO_ANSWER: [&str; 2] = [
    "Unable to contact slurm controller",
    "Socket timed out on send/recv",
];

/// Between two tries.
const SLURMCTLD_AGAIN: Duration = Duration::from_secs(1);

/// Between two looks at a waiting seat: short at first, since a free node starts the seat at once.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Clients are told of a wait for a seat after this time.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// The least time that a seat is started for, where a reservation of its node begins soon.
const LEAST_SEAT: Span = Span::from_secs(600);

/// Between two looks at the reservations for a seat that waits as before.
const RESERVATIONS_AGAIN: Duration = Duration::from_secs(30);

/// Pause between two tries to find a seat for one more replica: doubled each time, from the first value to the second.
const GROW_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Two fronts rarely open tenures of one kernel at the same time; two tries are plenty.
const OPENINGS: usize = 5;

/// All facts needed to start a replica.
#[derive(Debug, Clone)]
pub struct Order {
    /// As `front.json` will say it, but for incarnation and state.
    pub file: FrontFile,
    pub dir: PathBuf,
    /// The folders of a kernel with a log.
    pub states: Option<States>,
    pub mem_mib: Option<u64>,
    pub cpus: Option<u16>,
    /// Take none of the user's present seats: they may be ending.
    pub fresh_seat: bool,
    /// Nodes to avoid: the last replica was lost there, or other replicas of the kernel are there.
    pub avoid: Vec<NodeName>,
    pub origin: Origin,
    /// The highest tenure of the kernel that this front knows. 0 means that it knows none.
    pub known: Tenure,
    /// Hears what the seat waits for.
    pub told: Option<mpsc::UnboundedSender<SeatWaits>>,
    pub submitting: Submitting,
}

/// The calls of sbatch under way. Each ends, even if its seat isn't wanted any more: only then the seat has a number, by
/// which it is withdrawn.
#[derive(Debug)]
pub struct Submissions {
    submitting: Submitting,
    ends: mpsc::Receiver<Infallible>,
}

/// Lives as long as a call of sbatch, or the order for it.
#[derive(Debug, Clone)]
pub struct Submitting {
    _ends: mpsc::Sender<Infallible>,
}

impl Default for Submissions {
    fn default() -> Self {
        let (submitting, ends) = mpsc::channel(1);
        Self {
            submitting: Submitting { _ends: submitting },
            ends,
        }
    }
}

impl Submissions {
    pub fn submitting(&self) -> Submitting {
        self.submitting.clone()
    }

    /// Waits until all calls have ended.
    pub async fn over(&mut self) {
        let mut ended = std::mem::take(self);
        drop(ended.submitting);
        // Nothing is ever sent: this ends when all senders are gone.
        _ = ended.ends.recv().await;
    }
}

impl Order {
    fn size(&self, config: &Config) -> StepSize {
        StepSize {
            mem_mib: self.mem_mib.unwrap_or(config.seat.mem_mib),
            cpus: self.cpus.unwrap_or(config.seat.cpus).max(1),
        }
    }
}

/// The folders of a kernel's states and of their chunks.
#[derive(Debug, Clone)]
pub struct States {
    pub kernel: PathBuf,
    pub stores: Stores,
}

/// A replica that was started.
#[derive(Debug)]
pub struct Started {
    /// The replica itself, or its srun: alive as long as the replica. `None` means that the replica's seat has started
    /// it.
    pub process: Option<Child>,
    pub incarnation: Incarnation,
    /// The state from which the kernel goes on. `None` means a kernel without a log.
    pub state: Option<State>,
}

/// A replica waiting in its seat for a tenure.
#[derive(Debug)]
pub struct Prepared {
    /// Its srun.
    pub process: Child,
    pub place: Place,
}

/// A submitted seat. Unless it is kept, it is withdrawn from Slurm's queue. A seat that runs by then is left alone: it may
/// have another kernel, and an empty one ends by itself.
#[derive(Debug)]
struct Submitted {
    job: JobId,
    kept: bool,
}

impl Submitted {
    fn keep(mut self) -> JobId {
        self.kept = true;
        self.job
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut command = scancel(self.job);
        command.arg("--state=PENDING").stdin(Stdio::null());
        // Without the runtime, which may be ending.
        match command.into_std().spawn() {
            Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
            Err(error) => tracing::warn!(%error, job = %self.job, "a seat is left in Slurm's queue"),
        }
    }
}

/// The kernel's number of replicas, and whether one of them is a hot standby: of a former start, of the start or its
/// kernelspec, or of the pool.
pub fn replicas(start: &Start, dir: &Path) -> (Replicas, bool) {
    if start.launch.local {
        return (Replicas::One, false);
    }
    if let Some(file) = start.resume.then(|| FrontFile::read(dir).ok()).flatten() {
        return (file.launch.replicas, file.launch.hot_standby);
    }
    let of_pool = || {
        let config = Config::load().ok()?;
        let pool = start.launch.pool.clone().unwrap_or_else(|| config.default_pool());
        let pool = config.pool.get(&pool)?;
        Some((pool.replicas(), pool.hot_standby))
    };
    let (replicas, hot_standby) = of_pool().unwrap_or_default();
    (
        start.replicas.unwrap_or(replicas),
        start.hot_standby.unwrap_or(hot_standby),
    )
}

/// Opens the kernel's next tenure and starts its replica.
///
/// # Errors
/// Slurm has no place, the state can't be read or written, or a program is missing.
pub async fn start(order: &Order) -> Result<Started> {
    let mut left = OVERTAKEN_MOST;
    loop {
        match start_once(order).await {
            Err(error) if left > 0 && was_overtaken(&error) => {
                tracing::info!(%error, "a living group of the kernel wrote to the store meanwhile: once more");
                left -= 1;
            }
            started => return started,
        }
    }
}

/// Number of further starts when a living group of the kernel takes each start's incarnation.
const OVERTAKEN_MOST: u32 = 3;

/// Whether another replica of the kernel took this start's incarnation while the start waited for its seat. The store
/// names that incarnation by now: the next start takes a higher one.
fn was_overtaken(error: &anyhow::Error) -> bool {
    let used = |cause: &NotOpened| matches!(cause, NotOpened::Refused(Refusal::UsedIncarnation(_)));
    error.chain().any(|cause| cause.downcast_ref().is_some_and(used))
}

async fn start_once(order: &Order) -> Result<Started> {
    let stored = match &order.states {
        Some(states) => {
            let kernel = states.kernel.clone();
            spawn_blocking(move || states::newest(&kernel)).await??
        }
        None => None,
    };
    let first = next_incarnation(stored.as_ref(), order.file.incarnation);
    let launch = &order.file.launch;
    let config = if launch.local {
        None
    } else {
        Some(Config::load().context("can't read the configuration")?)
    };
    if let Some(config) = &config {
        may_have(order.size(config), &config.seat, order.origin)?;
    }
    let (place, heard) = match &config {
        Some(config) => take_place(order, first, config).await?,
        None => {
            let here = Place {
                incarnation: first,
                job: JobId(0),
                node: "localhost".into(),
            };
            (here, Tenure(0))
        }
    };
    let known = order.known.max(heard);
    let order_ = Order {
        known,
        ..order.clone()
    };
    let (place_, incarnation) = (place.clone(), place.incarnation);
    let size = config.as_ref().map(|config| order.size(config));
    let state = spawn_blocking(move || open_tenure(&order_, &place_, size)).await??;
    let process = match &config {
        Some(config) => start_in_seat(order, &place, config, Turn::Now)?,
        None => start_local(order, incarnation)?,
    };
    Ok(Started {
        process: Some(process),
        incarnation,
        state,
    })
}

/// Refuses a kernel that asks for more than the site allows. A kernel that has run under this front keeps its size: the
/// bound may be younger, and its user would lose the kernel.
fn may_have(size: StepSize, seat: &Seat, origin: Origin) -> Result<()> {
    if origin == Origin::MyReplica {
        return Ok(());
    }
    let allowed = seat.allows(size.mem_mib, size.cpus);
    allowed.context("it asks for too much (`hop kernelspec install` makes a kernel that asks for less)")
}

/// Takes the seat named by the scheduler (a new one if need be and `member` is false), and starts a waiting replica
/// there. Leaves no seat behind when dropped midway.
///
/// # Errors
/// Slurm has no such place, or a program is missing.
pub async fn prepare(order: &Order, plan: &SeatPlan, member: bool) -> Result<Prepared> {
    let config = Config::load().context("can't read the configuration")?;
    let mut node = Err(anyhow::anyhow!("there is no seat"));
    let mut submitted = None;
    let mut job = JobId(0);
    let bill = Bill::of(order);
    tracing::info!(incarnation = %plan.incarnation, existing = ?plan.existing, "looks for the move's seat");
    if let Some(existing) = plan.existing {
        job = existing;
        let bill = Some(&bill).filter(|_| !member);
        node = wait_for_seat(job, Patience::Running, bill, None)
            .await
            .map_err(anyhow::Error::from);
    }
    if node.is_err() && !member {
        let program = config.prefix.join("bin/hop-replica");
        let seat = submit_seat(plan, &config.seat, &bill, &program, order).await?;
        job = submitted.insert(seat).job;
        tracing::info!(%job, "the move's seat is submitted");
        node = wait_for_seat(job, Patience::Move, None, None)
            .await
            .map_err(anyhow::Error::from);
    }
    let place = Place {
        incarnation: plan.incarnation,
        job,
        node: node?.into(),
    };
    tracing::info!(%job, node = %place.node, "the move's seat runs");
    let process = start_in_seat(order, &place, &config, Turn::Moved)?;
    submitted.map(Submitted::keep);
    Ok(Prepared { process, place })
}

/// Opens the kernel's next tenure for a waiting replica.
///
/// # Errors
/// The state can't be read or written.
pub async fn switch(order: Order, prepared: Prepared) -> Result<Started> {
    let Prepared { process, place } = prepared;
    let incarnation = place.incarnation;
    let config = Config::load().context("can't read the configuration")?;
    let size = Some(order.size(&config));
    let opened = spawn_blocking(move || open_tenure(&order, &place, size)).await?;
    match opened {
        Ok(state) => Ok(Started {
            process: Some(process),
            incarnation,
            state,
        }),
        Err(error) => {
            end_srun(process).await;
            Err(error)
        }
    }
}

/// Ends a step by the signal to its srun.
pub async fn end_srun(mut process: Child) {
    let pid = process.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        // It may have exited already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let _ = process.wait().await;
}

/// Follows the kernel's group: the elected replica has opened its tenure, and gets the front's confirmation.
///
/// # Errors
/// The tenure's state can't be read, or `front.json` not be written.
pub async fn follow(order: Order, incarnation: Incarnation, tenure: Tenure) -> Result<Started> {
    let state = spawn_blocking(move || -> Result<State> {
        let states = order
            .states
            .as_ref()
            .context("a kernel without a log has no group")?;
        let state = states::read(&states::folder(&states.kernel, tenure, 0))?;
        announce::change(&order.dir, |file| {
            file.incarnation = incarnation;
            if let Some(folder) = &mut file.state {
                folder.tenure = tenure;
            }
        })?;
        Ok(state)
    });
    Ok(Started {
        process: None,
        incarnation,
        state: Some(state.await??),
    })
}

/// Finds seats for more replicas of the kernel, on further nodes, those of `last` last; tries until every replica has a
/// seat.
pub async fn grow(
    order: Order,
    count: usize,
    first: Incarnation,
    taken: Vec<NodeName>,
    last: Vec<NodeName>,
    told: mpsc::UnboundedSender<Note>,
) {
    let (mut left, mut first, mut taken, mut pause) = (count, first, taken, GROW_AGAIN.0);
    let mut failed = last;
    loop {
        match grow_by_one(&order, first, &taken, &mut failed).await {
            Ok(place) => {
                (left, first) = (left - 1, Incarnation(place.incarnation.0 + 1));
                taken.push(place.node.clone());
                let note = Note::Grown {
                    incarnation: place.incarnation,
                    seat: place.job,
                    node: place.node,
                };
                if told.send(note).is_err() || left == 0 {
                    return;
                }
            }
            Err(error) => {
                tracing::info!("the kernel stays with fewer replicas for now: {error:#}");
                sleep(pause).await;
                pause = (pause * 2).min(GROW_AGAIN.1);
            }
        }
    }
}

/// `failed` are the nodes without a seat at the last tries: others come first.
async fn grow_by_one(
    order: &Order,
    first: Incarnation,
    taken: &[NodeName],
    failed: &mut Vec<NodeName>,
) -> Result<Place> {
    let config = Config::load().context("can't read the configuration")?;
    let order = Order {
        avoid: [taken, failed].concat(),
        ..order.clone()
    };
    let placed = placement(&order, first, false, &config).await;
    let plan = placed.inspect_err(|_| failed.clear())?.seat;
    // Excluding these nodes by Slurm alone would take a reservation.
    if plan.node.as_str().is_empty() || taken.contains(&plan.node) {
        bail!("hopd names no node without a replica of the kernel");
    }
    let place = take_seat_of(&plan, &order, &config).await;
    place.inspect_err(|_| failed.push(plan.node))
}

/// Opens the next tenure in the store, and tells the replica of it in `front.json`.
fn open_tenure(order: &Order, place: &Place, size: Option<StepSize>) -> Result<Option<State>> {
    let grouped = order.file.launch.replicas != Replicas::One;
    let mut file = FrontFile {
        incarnation: place.incarnation,
        state: None,
        takeover: size.filter(|_| grouped).map(Takeover::here),
        ..order.file.clone()
    };
    let state = match &order.states {
        Some(states) => {
            let state = next_tenure(&states.kernel, place, order)?;
            file.state = Some(StateFolder {
                kernel: states.kernel.clone(),
                tenure: state.tenure(),
                stores: states.stores.clone(),
                hash_seed: states::hash_seed(&states.kernel, data_dir().as_deref())
                    .with_context(|| unwritable(&states.kernel))?,
            });
            Some(state)
        }
        None => None,
    };
    let _writes = announce::writes();
    file.write(&order.dir)?;
    Ok(state)
}

/// Sentence for a user in whose home no kernel can be written.
pub(crate) fn unwritable(folder: &Path) -> String {
    format!(
        "the kernel's folder {} can't be written: make room in your home if it is full, or ask the operators",
        folder.display()
    )
}

/// Several fronts may try: the first successful rename has the tenure, and the others take the next tenure.
fn next_tenure(kernel: &Path, place: &Place, order: &Order) -> Result<State> {
    let opening = Opening {
        origin: order.origin,
        replicas: order.file.launch.replicas,
        known: order.known,
        now: now(),
    };
    for _ in 0..OPENINGS {
        let state = opening.open(states::newest(kernel)?, place)?;
        // First of all: the owner may start the kernel again before it hears anything else of this tenure.
        let tenure = state.tenure();
        say(&Said::Tenure { tenure });
        match states::open(kernel, &state) {
            Ok(_) => {
                states::remove_older(kernel, &state);
                return Ok(state);
            }
            Err(OpenError::Taken(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("another front opens this kernel's tenures at the same time")
}

fn replica_program() -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .context("can't find my own program file")?
        .with_file_name("hop-replica");
    if !beside.is_file() {
        bail!(
            "there is no {}: the installation is not complete",
            beside.display()
        );
    }
    Ok(beside)
}

/// Output of the replica belongs into the owner's log; standard output is the owner's line to us.
fn start_local(order: &Order, incarnation: Incarnation) -> Result<Child> {
    Command::new(replica_program()?)
        .args(run_args(&order.dir, incarnation))
        .env("GRESSHOPPER_KERNEL", order.file.kernel.as_str())
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .process_group(0)
        .spawn()
        .context("can't start hop-replica")
}

/// A running seat for the replica, and the kernel's highest tenure as `hopd` has heard it.
async fn take_place(order: &Order, first: Incarnation, config: &Config) -> Result<(Place, Tenure)> {
    let Placement { seat, tenure } = place(order, first, config).await;
    Ok((take_seat_of(&seat, order, config).await?, tenure))
}

/// A running seat, as planned.
async fn take_seat_of(plan: &SeatPlan, order: &Order, config: &Config) -> Result<Place> {
    let program = config.prefix.join("bin/hop-replica");
    let bill = Bill::of(order);
    let (job, node) = take_seat(plan, &config.seat, &bill, order, &program).await?;
    Ok(Place {
        incarnation: plan.incarnation,
        job,
        node: node.into(),
    })
}

fn start_in_seat(order: &Order, place: &Place, config: &Config, turn: Turn) -> Result<Child> {
    let kernel = &order.file.kernel;
    let step = Step {
        kernel,
        dir: &order.dir,
        incarnation: place.incarnation,
        seat: place.job,
        node: &place.node,
        size: order.size(config),
        program: &config.prefix.join("bin/hop-replica"),
        turn,
    };
    slurm("srun")
        .args(step.srun_args())
        .env("GRESSHOPPER_KERNEL", kernel.as_str())
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .process_group(0)
        .spawn()
        .context("can't start srun")
}

/// Ends the step of an abandoned replica, if the step still runs.
pub async fn end_step(job: JobId, step: u32) {
    let mut command = slurm("scancel");
    command.arg("--signal=KILL").arg(format!("{job}.{step}"));
    // The step is over, or slurmctld is away: the replica then ends by itself for lack of a front.
    if let Err(error) = call(&mut command, "").await {
        tracing::info!(%error, "the old replica's step was not ended");
    }
}

/// Returns a running seat and its node: a seat of the user's that isn't ending, or a new seat, on the node named by
/// `hopd` if Slurm reaches the node.
async fn take_seat(
    plan: &SeatPlan,
    seat: &Seat,
    bill: &Bill,
    order: &Order,
    program: &Path,
) -> Result<(JobId, String)> {
    let told = order.told.as_ref();
    if let Some(job) = plan.existing.filter(|_| !order.fresh_seat) {
        match wait_for_seat(job, Patience::Running, Some(bill), told).await {
            Ok(node) => return Ok((job, node)),
            // hopd has chosen this seat, and knows accounts by their jobs alone.
            Err(SeatError::Charged { .. }) => {}
            // An empty seat ends at any moment, or Slurm has put it back into its queue: the user loses only the time of
            // the next seat's start.
            Err(error @ (SeatError::Over { .. } | SeatError::Forgotten { .. } | SeatError::Waits { .. })) => {
                tracing::info!(%error, "the kernel gets a new seat");
            }
            Err(error) => eprintln!("hop-front: {}; the kernel gets a new seat", chain(&error)),
        }
    }
    let patience = if plan.node.as_str().is_empty() {
        Patience::Endless
    } else {
        Patience::Node
    };
    let submitted = submit_seat(plan, seat, bill, program, order).await?;
    match wait_for_seat(submitted.job, patience, None, told).await {
        Ok(node) => Ok((submitted.keep(), node)),
        Err(SeatError::NodeAway { .. }) => {
            eprintln!(
                "hop-front: Slurm can't reach {}; the kernel's seat goes to another node",
                plan.node
            );
            call(&mut scancel(submitted.job), "")
                .await
                .context("can't withdraw the seat")?;
            submitted.keep();
            let anywhere = SeatPlan {
                node: "".into(),
                ..plan.clone()
            };
            let submitted = submit_seat(&anywhere, seat, bill, program, order).await?;
            let node = wait_for_seat(submitted.job, Patience::Endless, None, told).await?;
            Ok((submitted.keep(), node))
        }
        Err(error) => Err(error.into()),
    }
}

fn scancel(job: JobId) -> Command {
    let mut command = slurm("scancel");
    command.arg(job.to_string());
    command
}

/// Keeps the death of the replica's srun from ending its step. srun has a child that cancels the step if srun dies
/// without a word. The replica lives by its connection, so the child goes once a connection exists. At its end srun
/// writes to the child, and complains on the user's terminal if the pipe has no reader: keep the returned reader until
/// then.
pub fn detach(srun: u32) -> Vec<File> {
    let mut ears = Vec::new();
    for child in children_named(srun, "srun") {
        if let Some(pid) = rustix::process::Pid::from_raw(child.cast_signed()) {
            ears.extend(ears_for(srun, child));
            // The process may already have exited.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    ears
}

/// The reading ends of `child` of pipes that `srun` writes into.
fn ears_for(srun: u32, child: u32) -> Vec<File> {
    let written: Vec<PathBuf> = pipes(&format!("/proc/{srun}"), OFlags::WRONLY)
        .into_values()
        .collect();
    let read = pipes(&format!("/proc/{child}"), OFlags::RDONLY).into_iter();
    read.filter(|(_, pipe)| written.contains(pipe))
        .filter_map(|(end, _)| {
            let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
            let ear = rustix::fs::open(&end, flags, rustix::fs::Mode::empty());
            ear.ok().map(File::from)
        })
        .collect()
}

/// A process's open ends of pipes with this access, and the pipes.
fn pipes(process: &str, access: OFlags) -> BTreeMap<PathBuf, PathBuf> {
    let entries = std::fs::read_dir(format!("{process}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let ends = entries.filter_map(|entry| {
        let end = entry.path();
        let pipe = std::fs::read_link(&end).ok()?;
        let info =
            std::fs::read_to_string(format!("{process}/fdinfo/{}", entry.file_name().to_str()?)).ok()?;
        let flags = OFlags::from_bits_retain(open_flags(&info)?);
        let is_pipe = pipe.to_str().is_some_and(|name| name.starts_with("pipe:"));
        (is_pipe && flags & OFlags::ACCMODE == access).then_some((end, pipe))
    });
    ends.collect()
}

/// The place named by `hopd` for the replica. Without `hopd` the kernel still starts, wherever Slurm has room.
async fn place(order: &Order, first: Incarnation, config: &Config) -> Placement {
    let replaces = order.origin == Origin::MyReplica;
    match placement(order, first, replaces, config).await {
        Ok(placement) => placement,
        Err(error) => {
            eprintln!(
                "hop-front: hopd names no node ({}); the kernel starts wherever Slurm has room",
                chain(&*error)
            );
            anywhere(order, first, config)
        }
    }
}

fn anywhere(order: &Order, first: Incarnation, config: &Config) -> Placement {
    let size = order.size(config);
    let seat = SeatPlan {
        incarnation: first,
        node: "".into(),
        existing: None,
        partition: None,
        mem_mib: size.mem_mib,
        cpus: size.cpus,
    };
    let tenure = Tenure(0);
    Placement { seat, tenure }
}

/// One more replica's place, by `hopd`. `replaces` means that the executor is lost or has left.
async fn placement(order: &Order, first: Incarnation, replaces: bool, config: &Config) -> Result<Placement> {
    let anywhere = anywhere(order, first, config);
    let launch = &order.file.launch;
    let request = Request::PlaceKernel(PlaceKernel {
        kernel: order.file.kernel.clone(),
        account: launch.account.clone(),
        pool: launch.pool.clone(),
        first: Some(first),
        default_need: launch.default_need.clone(),
        mem_mib: anywhere.seat.mem_mib,
        cpus: anywhere.seat.cpus,
        avoid: order.avoid.clone(),
        replaces,
        name: launch.name.clone(),
    });
    Ok(match ask_hopd(config, request).await? {
        Response::Placement(placement) => placement,
        _ => anywhere,
    })
}

async fn ask_hopd(config: &Config, request: Request) -> Result<Response> {
    let options = client::Options::from_config(config, Role::Front)?;
    Ok(client::call(&options, request, Duration::from_secs(10)).await?)
}

/// Tells `hopd` of the kernel's end.
pub async fn tell_end(kernel: KernelId, word: LastWord) {
    let Ok(config) = Config::load() else {
        return;
    };
    let request = match word {
        LastWord::Closed => Request::CloseKernel { kernel },
        LastWord::Left => Request::LeaveKernel { kernel },
    };
    if let Err(error) = ask_hopd(&config, request).await {
        // It will notice by the replica's absence.
        tracing::info!(%error, "hopd was not told that the kernel has ended");
    }
}

/// Tells `hopd` the names of hibernated kernels' notebooks, for no process of these kernels tells them.
pub async fn tell_names(renamed: &[Renamed]) {
    let Ok(config) = Config::load() else {
        return;
    };
    let ask = async |request| ask_hopd(&config, request).await.map(drop);
    let told = timeout(TELLING, tell_each(renamed, ask)).await;
    if let Err(error) = told.map_err(Into::into).flatten() {
        // `hop` reads the names in its user's home.
        tracing::info!(%error, "hopd was not told the names of notebooks");
    }
}

async fn tell_each(renamed: &[Renamed], ask: impl AsyncFn(Request) -> Result<()>) -> Result<()> {
    for one in renamed {
        let mut told = None;
        // The name of a later rename may have arrived before this one's: whoever arrives last looks again.
        while let Some(name) = one.name().filter(|name| told.as_ref() != Some(name)) {
            let kernel = one.kernel.clone();
            told = Some(name.clone());
            ask(Request::RenameKernel { kernel, name }).await?;
        }
    }
    Ok(())
}

/// A command of Slurm's, without the variables of our own job or of the user's preferred table format.
fn slurm(program: &str) -> Command {
    let mut command = Command::new(program);
    forget_job(command.as_std_mut());
    command.kill_on_drop(false);
    command
}

/// Runs a command to the end; returns its output, or its error message.
async fn call(command: &mut Command, input: &str) -> Result<String> {
    let what = format!("{:?}", command.as_std().get_program());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("can't start {what}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // The command may have ended without reading; its error is reported below.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = timeout(SLURM_CALL, child.wait_with_output())
        .await
        .with_context(|| format!("{what} took longer than {} s", SLURM_CALL.as_secs()))??;
    if !output.status.success() {
        bail!(
            "{what} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a command of Slurm's failed for want of slurmctld alone.
fn is_away(error: &anyhow::Error) -> bool {
    let said = format!("{error:#}");
    NO_ANSWER.iter().any(|words| said.contains(words))
}

/// Like [`call`], again and again while slurmctld is away. Clients are `told`.
async fn call_patiently(
    command: &mut Command,
    input: &str,
    told: Option<&mpsc::UnboundedSender<SeatWaits>>,
) -> Result<String> {
    call_and_tell(command, input, told, TOLD_AFTER).await
}

async fn call_and_tell(
    command: &mut Command,
    input: &str,
    told: Option<&mpsc::UnboundedSender<SeatWaits>>,
    tell_after: Duration,
) -> Result<String> {
    let since = Instant::now();
    let calling = async {
        loop {
            match call(command, input).await {
                Ok(output) => return Ok(output),
                Err(error) => may_try_again(error, since).await?,
            }
        }
    };
    tell_of(calling, told, tell_after).await
}

/// Waits for the time of another try, if a command failed for want of slurmctld, and not for too long.
async fn may_try_again(error: anyhow::Error, since: Instant) -> Result<()> {
    if !is_away(&error) || since.elapsed() >= SLURMCTLD_AWAY {
        return Err(error);
    }
    sleep(SLURMCTLD_AGAIN).await;
    Ok(())
}

/// Tells clients if a command of Slurm's takes longer than `tell_after`.
async fn tell_of<T>(
    calling: impl Future<Output = Result<T>>,
    told: Option<&mpsc::UnboundedSender<SeatWaits>>,
    tell_after: Duration,
) -> Result<T> {
    tokio::pin!(calling);
    // A slurmctld that hangs keeps a single call for longer than anybody wants to know nothing.
    match timeout(tell_after, &mut calling).await {
        Ok(done) => done,
        Err(_) => {
            eprintln!("hop-front: the kernel's start waits: {NO_SLURMCTLD}");
            let reason = NO_SLURMCTLD.to_owned();
            // The front may have ended first.
            let _ = told.map(|told| told.send(SeatWaits { reason, start: None }));
            calling.await
        }
    }
}

/// Account of the seat's job. Slurm checks it, and `hopd` takes the leases' account from the job.
struct Bill {
    /// Options of sbatch.
    options: Vec<String>,
}

impl Bill {
    /// The kernelspec's word first, then the environment's, which kernelspec and spawner set.
    fn of(order: &Order) -> Self {
        let account = order.file.launch.account.as_ref().map(ToString::to_string);
        Self::from(account, |name| std::env::var(name).ok())
    }

    fn from(account: Option<String>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let options = [
            ("account", account.or_else(|| variable("GRESSHOPPER_ACCOUNT"))),
            ("qos", variable("GRESSHOPPER_QOS")),
            ("reservation", variable("GRESSHOPPER_RESERVATION")),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some(format!("--{name}={}", value.filter(|v| !v.is_empty())?)))
        .collect();
        Self { options }
    }

    /// The comment of the seat's job, by which the next kernel knows the bill.
    fn comment(&self) -> String {
        match self.options.is_empty() {
            true => String::new(),
            false => format!("{BILL}{}", self.options.join(" ")),
        }
    }

    /// Whether a seat with this comment is charged to this account, QOS and reservation. A comment of the site's own
    /// says nothing.
    fn is_of(&self, comment: &str) -> bool {
        let own = comment.trim().strip_prefix(BILL).unwrap_or_default();
        self.comment().strip_prefix(BILL).unwrap_or_default() == own
    }
}

/// Begins the comment of a seat with another charge than its user's default.
const BILL: &str = "gresshopper: ";

/// The file for a seat's output, in sbatch's form: /dev/null, unless the user is debugging.
async fn seat_log() -> String {
    let dir = std::env::var_os("GRESSHOPPER_LOG").and_then(|_| seats_dir());
    let made = spawn_blocking(move || {
        let dir = dir?;
        make_private(&dir).ok()?;
        Some(format!("{}/%j.log", dir.to_str()?))
    });
    let made = made.await.unwrap_or_default();
    made.unwrap_or_else(|| "/dev/null".to_owned())
}

/// Submits a seat, again and again while slurmctld is away.
async fn submit_seat(
    plan: &SeatPlan,
    seat: &Seat,
    bill: &Bill,
    program: &Path,
    order: &Order,
) -> Result<Submitted> {
    let log = seat_log().await;
    let since = Instant::now();
    let calling = async {
        loop {
            let command = sbatch(plan, seat, bill, &log);
            let (submitting, submit) = (order.submitting.clone(), submit(command, program.to_owned()));
            // In a task of its own: the call ends, even if the start is given up.
            let done = tokio::spawn(async move {
                let _submitting = submitting;
                submit.await
            });
            match done.await? {
                Ok(submitted) => return Ok(submitted),
                Err(error) => may_try_again(error, since).await?,
            }
        }
    };
    let submitted = tell_of(calling, order.told.as_ref(), TOLD_AFTER).await;
    submitted.context("can't submit the seat")
}

async fn submit(mut sbatch: Command, program: PathBuf) -> Result<Submitted> {
    let script = format!("#!/bin/sh\nexec '{}' seat\n", program.display());
    let id = call(&mut sbatch, &script).await?;
    let id = id.split(';').next().unwrap_or_default();
    let job = JobId(
        id.parse()
            .with_context(|| format!("sbatch said {id:?} instead of a job id"))?,
    );
    Ok(Submitted { job, kept: false })
}

fn sbatch(plan: &SeatPlan, seat: &Seat, bill: &Bill, log: &str) -> Command {
    let mut command = slurm("sbatch");
    command
        .args([
            "--parsable",
            &format!("--job-name={SEAT_JOB}"),
            "--nodes=1",
            "--ntasks=1",
            "--no-requeue",
        ])
        .arg(format!("--output={log}"))
        .arg("--chdir=/")
        .arg(format!(
            "--partition={}",
            plan.partition.as_ref().unwrap_or(&seat.partition)
        ))
        .arg(format!("--mem={}M", plan.mem_mib))
        .arg(format!("--cpus-per-task={}", plan.cpus.max(1)))
        .args(&bill.options);
    if !bill.options.is_empty() {
        command.arg(format!("--comment={}", bill.comment()));
    }
    if !plan.node.as_str().is_empty() {
        command.arg(format!("--nodelist={}", plan.node));
    }
    if seat.time_limit_min > 0 {
        command.arg(format!("--time={}", seat.time_limit_min));
    }
    let kept: Vec<&str> = [
        "PATH",
        "HOME",
        "XDG_DATA_HOME",
        "GRESSHOPPER_CONF",
        "GRESSHOPPER_LOG",
        "SLURM_CONF",
    ]
    .into_iter()
    .filter(|n| std::env::var_os(n).is_some())
    .collect();
    command.arg(format!("--export={}", kept.join(",")));
    command
}

/// Why a seat can't be sat in.
#[derive(Debug, thiserror::Error)]
enum SeatError {
    #[error("can't see the seat (job {job}) in Slurm's queue")]
    Queue {
        job: JobId,
        #[source]
        source: anyhow::Error,
    },
    #[error("the seat (job {job}) ended before the kernel was in it: {state} {reason}")]
    Over {
        job: JobId,
        state: String,
        reason: String,
    },
    #[error("the seat (job {job}) ended before the kernel was in it, and Slurm no longer knows it")]
    Forgotten { job: JobId },
    #[error("the seat (job {job}) waits for a node that Slurm can't reach: {reason}")]
    NodeAway { job: JobId, reason: String },
    #[error("the seat (job {job}) doesn't run by Slurm's word: {state} {reason}")]
    Waits {
        job: JobId,
        state: String,
        reason: String,
    },
    #[error("the seat (job {job}) is charged to another account than the kernel")]
    Charged { job: JobId },
}

impl SeatError {
    /// Of a seat that is waited for no longer.
    fn waits(job: JobId, seen: SeenSeat, patience: Patience) -> Self {
        let (state, reason) = (seen.state, seen.reason);
        match patience {
            Patience::Running => Self::Waits { job, state, reason },
            _ => Self::NodeAway { job, reason },
        }
    }
}

/// Has a waiting seat end before the next reservation of its node, as one for maintenance: Slurm would start it after
/// the reservation. The kernels in it are then moved or saved as at any time limit.
async fn fit_before_reservation(job: JobId, waiting: &WaitingJob) -> Result<()> {
    let mut show = slurm("scontrol");
    show.env("SLURM_TIME_FORMAT", "%s").args(SHOW_RESERVATIONS);
    let reservations = parse_reservations(&call(&mut show, "").await?)?;
    if let Some(minutes) = waiting.limit_before(&reservations, now(), LEAST_SEAT) {
        tracing::info!(%job, minutes, "the seat ends before a reservation begins");
        call(slurm("scontrol").args(shorten_args(job, minutes)), "").await?;
    }
    Ok(())
}

/// Waits until the seat runs; returns its node. A seat with another charge than `bill` is not waited for.
async fn wait_for_seat(
    job: JobId,
    patience: Patience,
    bill: Option<&Bill>,
    told: Option<&mpsc::UnboundedSender<SeatWaits>>,
) -> Result<String, SeatError> {
    let (mut pause, since) = (POLL.0, Instant::now());
    let mut last = None;
    let mut fitted: Option<(WaitingJob, Instant)> = None;
    let mut look = slurm("squeue");
    look.env("SLURM_TIME_FORMAT", "%s")
        .args(["-h", "-o", SeenSeat::FORMAT])
        .arg(format!("--jobs={job}"));
    loop {
        let line = call_patiently(&mut look, "", told).await;
        let line = line.map_err(|source| SeatError::Queue { job, source })?;
        let seen = SeenSeat::read(&line).ok_or(SeatError::Forgotten { job })?;
        if bill.is_some_and(|bill| !bill.is_of(&seen.comment)) {
            return Err(SeatError::Charged { job });
        }
        match seen.state.as_str() {
            "RUNNING" if !seen.node.is_empty() => return Ok(seen.node),
            "PENDING" | "CONFIGURING" | "RUNNING" => {
                if patience.is_over(&seen, since.elapsed()) {
                    return Err(SeatError::waits(job, seen, patience));
                }
                let is_known = |waiting: &WaitingJob| {
                    let fitted = fitted.as_ref().filter(|(before, _)| before == waiting);
                    fitted.is_some_and(|(_, at)| at.elapsed() < RESERVATIONS_AGAIN)
                };
                if let Some(waiting) = seen.held_up().filter(|waiting| !is_known(waiting)) {
                    match fit_before_reservation(job, &waiting).await {
                        Ok(()) => fitted = Some((waiting, Instant::now())),
                        Err(error) => tracing::info!(%job, "the seat's time limit stays: {error:#}"),
                    }
                }
                let (reason, start) = (seen.reason, seen.start);
                let waits = SeatWaits { reason, start };
                if since.elapsed() > TOLD_AFTER && last.as_ref() != Some(&waits) {
                    if last.is_none() {
                        eprintln!(
                            "hop-front: the kernel's seat (job {job}) waits in Slurm's queue: {}",
                            waits.sentence()
                        );
                    }
                    // The front may have ended first.
                    let _ = told.map(|told| told.send(waits.clone()));
                    last = Some(waits);
                }
            }
            _ => {
                let (state, reason) = (seen.state, seen.reason);
                return Err(SeatError::Over { job, state, reason });
            }
        }
        sleep(pause).await;
        pause = (pause * 3 / 2).min(POLL.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_kernel_that_asks_for_too_much_starts_only_if_it_has_run() {
        let seat = Seat {
            most_mem_mib: Some(4096),
            ..Seat::default()
        };
        let size = |mem_mib| StepSize { mem_mib, cpus: 1 };
        may_have(size(4096), &seat, Origin::Before).unwrap();
        may_have(size(8192), &seat, Origin::MyReplica).unwrap();
        for origin in [Origin::Before, Origin::Nothing] {
            let refused = may_have(size(8192), &seat, origin).unwrap_err();
            let said = chain(&*refused);
            assert!(
                said.contains("8192") && said.contains("4096") && said.contains("hop kernelspec install"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_start_whose_number_another_replica_took_meanwhile_is_tried_again() {
        let of = |refusal: Refusal| {
            anyhow::Error::from(NotOpened::from(refusal)).context("the tenure isn't opened")
        };
        assert!(was_overtaken(&of(Refusal::UsedIncarnation(Incarnation(3)))));
        assert!(!was_overtaken(&of(Refusal::GenerationSpent)));
        assert!(!was_overtaken(&anyhow::anyhow!("incarnation 3 was used before")));
    }

    /// A shell in srun's place: its child reads a line, and the shell complains if the line can't be written.
    #[test]
    fn srun_can_say_its_last_word_though_its_child_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (srun, go, heard) = (
            dir.path().join("srun"),
            dir.path().join("go"),
            dir.path().join("heard"),
        );
        std::fs::copy("/bin/bash", &srun).unwrap();
        let script = format!(
            "exec 7> >(read -r word; true); while [ ! -e {} ]; do sleep 0.02; done; echo end >&7 && echo yes >{}",
            go.display(),
            heard.display()
        );
        let mut shell = std::process::Command::new(&srun)
            .args(["-c", &script])
            .spawn()
            .unwrap();
        let ears = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(20));
            detach(shell.id())
        });
        let ears = ears.take(500).find(|ears| !ears.is_empty()).unwrap();
        std::fs::write(&go, "").unwrap();
        shell.wait().unwrap();
        assert!(heard.exists());
        drop(ears);
    }

    #[tokio::test]
    async fn clients_are_told_of_a_slurmctld_that_hangs_while_it_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let go = dir.path().join("go");
        let mut squeue = Command::new("sh");
        let script = format!(
            "while [ ! -e {} ]; do sleep 0.02; done; echo RUNNING",
            go.display()
        );
        squeue.args(["-c", &script]);
        let (told, mut hears) = mpsc::unbounded_channel();
        let calling = call_and_tell(&mut squeue, "", Some(&told), Duration::from_millis(50));
        let hearing = async {
            let waits = hears.recv().await.unwrap();
            std::fs::write(&go, "").unwrap();
            waits.sentence()
        };
        let (answer, sentence) = tokio::join!(calling, hearing);
        assert_eq!(
            (answer.unwrap().as_str(), sentence.as_str()),
            ("RUNNING", NO_SLURMCTLD)
        );
    }

    #[tokio::test]
    async fn the_last_of_two_renames_is_told_last() {
        let tmp = tempfile::tempdir().unwrap();
        let folder = tmp.path().join("k1");
        std::fs::create_dir(&folder).unwrap();
        let note = r#"{"kernel": "k1", "path": "/home/a/x.ipynb", "kernelspec": "python3"}"#;
        std::fs::write(folder.join(states::NOTEBOOK), note).unwrap();
        let rename = |old, new| crate::claim::rename(tmp.path(), &BTreeSet::new(), old, new).unwrap();
        let renamed = rename("/home/a/x.ipynb", "/home/a/y.ipynb");
        let told = std::cell::RefCell::new(Vec::new());
        let ask = async |request| {
            let Request::RenameKernel { kernel, name } = request else {
                panic!("{request:?}")
            };
            assert_eq!(kernel, "k1".into());
            // The other rename tells its name before this one's arrives.
            rename("/home/a/y.ipynb", "/home/a/z.ipynb");
            told.borrow_mut().push(name);
            Ok(())
        };
        tell_each(&renamed, ask).await.unwrap();
        assert_eq!(*told.borrow(), ["y.ipynb", "z.ipynb"]);
    }

    #[test]
    fn the_kernelspecs_account_goes_before_the_servers() {
        let server =
            |name: &str| (name != "GRESSHOPPER_RESERVATION").then(|| format!("of-{}", name.to_lowercase()));
        let own = Bill::from(Some("physics".to_owned()), server);
        assert_eq!(own.options, ["--account=physics", "--qos=of-gresshopper_qos"]);
        let inherited = Bill::from(None, server);
        assert_eq!(
            inherited.options,
            ["--account=of-gresshopper_account", "--qos=of-gresshopper_qos"]
        );
        assert!(Bill::from(None, |_| Some(String::new())).options.is_empty());
    }

    #[test]
    fn a_seat_is_shared_by_kernels_of_one_bill() {
        let physics = Bill::from(Some("physics".to_owned()), |_| None);
        let maths = Bill::from(Some("maths".to_owned()), |_| None);
        let usual = Bill::from(None, |_| None);
        assert!(physics.is_of(&physics.comment()));
        assert!(!physics.is_of(&maths.comment()));
        assert!(!physics.is_of("(null)"));
        assert!(!usual.is_of(&physics.comment()));
        for of_the_site in ["(null)", "", "billed to nobody"] {
            assert!(usual.is_of(of_the_site));
        }
    }
}
