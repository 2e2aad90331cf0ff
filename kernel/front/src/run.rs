//! The front's main loop: one task owns sockets and processes, and never waits for a client or a replica.
//! [`crate::core`] decides for clients, [`crate::life`] for the kernel's replicas, [`crate::termination`] for the end;
//! this module carries the decisions out.

use crate::announce::{self, announce};
use crate::asleep::{self, Listener};
use crate::claim::{self, Death, Found, LastWord, Owned, Saved};
use crate::content;
use crate::core::{Asked, End, Front, Interrupt, NO_STEP, SeatWaits, Shutdown, Wire};
use crate::delivered::Delivered;
use crate::heirs::Heirs;
use crate::home::{Home, Places};
use crate::info;
use crate::launch::{self, Order, Started, States, Submissions};
use crate::life::{Act, Input, Life};
use crate::listen::{ReplicaConnection, accept_replicas};
use crate::moves;
use crate::moving::{Moving, Preparation};
use crate::opening::{Origin, may_be_elected};
use crate::orphans;
use crate::owner::{Said, Start, Wish, say};
use crate::rekey::Rekey;
use crate::sockets::{Sockets, bind, is_of_widget};
use crate::termination::{self, Keeps, Outcome, Removal, Termination};
use crate::welcome::Awaited;
use anyhow::{Context, Result};
use bytes::Bytes;
use hop_protocol::content::Stores;
use hop_protocol::file::{FrontFile, kernel_dir, state_dir, states_dir};
use hop_protocol::jupyter::Channel;
use hop_protocol::link::{Frame, Item};
use hop_protocol::meanwhile::Meanwhile;
use hop_protocol::message::{Hello, Note, Over, VERSION, Welcome};
use hop_protocol::retain::ranges;
use hop_protocol::wait;
use hop_words::clock::{SteadyClock, now};
use hop_words::error::{chain, system_words};
use hop_words::id::{Incarnation, JobId, KernelId, NodeName, Tenure};
use hop_words::replica::Replicas;
use hop_words::time::Span;
use hop_zmtp::Event;
use jiff::tz::TimeZone;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, interval, sleep, timeout};

/// Time at the end for the replica to hang up, and for its process to exit.
const FAREWELL: Duration = Duration::from_millis(500);

/// Time after which a disconnected client counts as gone, if no message is due to the client.
const CLIENT_GONE: Duration = Duration::from_secs(60);
/// Time after which a disconnected client counts as gone, if messages are due to the client.
const CREDITOR_GONE: Duration = Duration::from_secs(3600);

/// Most frames of the replica in one go, before the main loop looks at its other inputs.
const BATCH: usize = 64;

/// Time for gathering acknowledgements to the replica.
const ACK_AFTER: Duration = Duration::from_millis(20);

/// Time at the end for a call of sbatch under way.
const SUBMITS: Duration = Duration::from_secs(2);

/// Time for a leaving replica to exit, before its step is ended.
const LEAVES: Duration = Duration::from_secs(5);

/// Clients are told if Slurm takes longer than this to start the kernel's step.
const TELL_STEP_AFTER: Span = Span::from_secs(5);

/// Time between two looks at time limits.
const LOOK_EVERY: Duration = Duration::from_millis(250);

struct Main {
    /// For time limits. Messages are dated by the wall clock.
    clock: SteadyClock,
    start: Start,
    dir: PathBuf,
    file: FrontFile,
    states: Option<States>,
    front: Front,
    life: Life,
    sockets: Sockets,
    delivered: Delivered,
    heirs: Heirs,
    home: Home,
    /// The replica permitted to connect. `None` means that a replica is being started.
    expected: Option<Incarnation>,
    /// Frames of the replica, with the number of its connection.
    frames: Option<(u64, mpsc::Receiver<Frame>)>,
    /// The last hello of the replica.
    hello: Option<Hello>,
    /// This stream's replica has been connected to this front.
    met: bool,
    process: Option<Child>,
    /// Readers of the last output of earlier sruns ([`launch::detach`]).
    ears: Vec<File>,
    starts: mpsc::UnboundedSender<Result<Started>>,
    searches: Searches,
    moving: Moving,
    /// A replica elected by the kernel's group, waiting for its welcome.
    elected: Option<(Hello, oneshot::Sender<Welcome>)>,
    acks: Vec<u64>,
    ack_at: Option<Instant>,
    away: HashMap<Bytes, Instant>,
    termination: Termination,
    /// The right to run the kernel from its state.
    owned: Option<Owned>,
    /// The kernel began with nothing, or with the effects of each cell before.
    is_whole: bool,
    /// The sentences for the user on the fate of the notebook's earlier kernel, and of this one.
    sentences: Vec<String>,
    /// The connection to `hopd` while the kernel hibernates.
    listener: Option<Listener>,
    wakes: mpsc::UnboundedSender<()>,
}

/// The searches for seats under way.
struct Searches {
    /// Of replicas that are being started.
    starting: JoinSet<()>,
    /// Of more replicas of the kernel's group.
    growing: Option<(Note, tokio::task::JoinHandle<()>)>,
    submissions: Submissions,
    /// Takes the seats found for more replicas.
    grown: mpsc::UnboundedSender<Note>,
    /// Takes the reasons for the wait of the kernel's seat.
    seat_waits: mpsc::UnboundedSender<SeatWaits>,
}

impl Searches {
    fn new(grown: mpsc::UnboundedSender<Note>, seat_waits: mpsc::UnboundedSender<SeatWaits>) -> Self {
        Self {
            starting: JoinSet::new(),
            growing: None,
            submissions: Submissions::default(),
            grown,
            seat_waits,
        }
    }

    /// Whether a search for the same growth goes on already. The search's seat may wait in Slurm's queue, and
    /// would lose its place to a new search.
    fn grows_by(&self, growth: &Note) -> bool {
        let search = self.growing.as_ref();
        search.is_some_and(|(before, search)| before == growth && !search.is_finished())
    }
}

/// Inputs of the main loop.
struct Inputs {
    clients: mpsc::Receiver<(Option<Channel>, Event)>,
    replicas: mpsc::Receiver<ReplicaConnection>,
    starts: mpsc::UnboundedReceiver<Result<Started>>,
    preparations: mpsc::UnboundedReceiver<Preparation>,
    wakes: mpsc::UnboundedReceiver<()>,
    wishes: mpsc::Receiver<Wish>,
    grown: mpsc::UnboundedReceiver<Note>,
    seat_waits: mpsc::UnboundedReceiver<SeatWaits>,
}

/// Runs one kernel's front. Returns `false` if the kernel died.
pub async fn run(start: Start, wishes: mpsc::Receiver<Wish>) -> Result<bool> {
    if start.close && !kernel_dir(&start.kernel).is_some_and(|dir| FrontFile::is_in(&dir)) {
        return close_in_its_place(&start).await;
    }
    let launched = jiff::Timestamp::now();
    let Claimed {
        mut start,
        owned,
        left,
        is_whole,
        stores,
        sentences,
    } = spawn_blocking(move || claimed(start)).await?;
    let Opened {
        dir,
        file,
        sockets,
        clients,
        replicas,
        delivered,
        home,
    } = open(&mut start).await?;
    let states = states(&start, &file, stores);
    let (mut front, life) = cores(&start, &file, left, (states.is_some(), launched));
    if let Some(state) = &file.state {
        say(&Said::Tenure { tenure: state.tenure });
    }
    let heirs = inherit(&mut front, &start, &file);
    let (starts_tx, starts) = mpsc::unbounded_channel();
    let (moving, preparations) = Moving::new();
    let (wakes_tx, wakes) = mpsc::unbounded_channel();
    let (grown_tx, grown) = mpsc::unbounded_channel();
    let (seat_waits_tx, seat_waits) = mpsc::unbounded_channel();
    let mut main = Main {
        clock: SteadyClock::new(),
        front,
        life,
        expected: start.resume.then_some(file.incarnation),
        frames: None,
        states,
        sockets,
        delivered,
        heirs,
        home,
        hello: None,
        met: false,
        process: None,
        ears: Vec::new(),
        starts: starts_tx,
        searches: Searches::new(grown_tx, seat_waits_tx),
        moving,
        elected: None,
        acks: Vec::new(),
        ack_at: None,
        away: HashMap::new(),
        termination: Termination::new(keeps(&start, owned.is_some())),
        owned,
        is_whole,
        sentences,
        listener: None,
        wakes: wakes_tx,
        dir,
        file,
        start,
    };
    let inputs = Inputs {
        clients,
        replicas,
        starts,
        preparations,
        wakes,
        wishes,
        grown,
        seat_waits,
    };
    let Outcome { died, removal } = main.main_loop(inputs).await?;
    main.clean_up(removal, died).await;
    Ok(!died)
}

/// The part of the kernel that outlives its server. `owned` means that this front has the right to the kernel's state.
fn keeps(start: &Start, owned: bool) -> Keeps {
    match start.notebook {
        None => Keeps::Nothing,
        Some(_) if !owned => Keeps::State,
        Some(_) => Keeps::Kernel,
    }
}

/// Closes a kernel whose lost front has left no folder. Otherwise `hopd` would list the kernel for a day, and the
/// notebook's next opening would bring back a kernel that its user has ended.
async fn close_in_its_place(start: &Start) -> Result<bool> {
    if !start.launch.local {
        launch::tell_end(start.kernel.clone(), LastWord::Closed).await;
        orphans::end_sruns(&start.kernel);
    }
    let dir = kernel_dir(&start.kernel).context("there is no home folder (HOME is not set)")?;
    claim::clear_away(Removal::Kernel, &dir, state_folder(start).as_deref(), None);
    Ok(true)
}

/// Sockets and files that are open to clients and to the replica.
struct Opened {
    dir: PathBuf,
    file: FrontFile,
    sockets: Sockets,
    clients: mpsc::Receiver<(Option<Channel>, Event)>,
    replicas: mpsc::Receiver<ReplicaConnection>,
    delivered: Delivered,
    home: Home,
}

/// Opens the clients' sockets and the replica's port. Writes the replica's port down, and tells the owner the clients'
/// ports.
async fn open(start: &mut Start) -> Result<Opened> {
    let dir = kernel_dir(&start.kernel).context("there is no home folder (HOME is not set)")?;
    // A front that ended during the wait for the kernel's first seat left nothing to take over, so this front begins
    // anew.
    start.resume &= FrontFile::is_in(&dir);
    (start.launch.replicas, start.launch.hot_standby) = launch::replicas(start, &dir);
    let (tx, clients) = mpsc::channel(1024);
    let (mut sockets, ports) = bind(start, tx).await?;
    let (file, listener) = announce(start, &dir)?;
    if start.resume {
        announce::write(file.clone(), dir.clone());
    }
    sockets.rekey = Rekey::between(&start.key, &file.signing_key);
    let (replicas_tx, replicas) = mpsc::channel(16);
    tokio::spawn(accept_replicas(listener, file.keys.acceptor()?, replicas_tx));
    hop_protocol::file::make_private(&dir).with_context(|| launch::unwritable(&dir))?;
    let memory = start.delivered.as_deref();
    let (delivered, record) = Delivered::open(memory, &dir, file.incarnation, start.resume)
        .with_context(|| launch::unwritable(&dir))?;
    let home = Home::start(Places {
        dir: dir.clone(),
        delivered: record,
    });
    let kernel = start.kernel.clone();
    let beside = start.beside.clone();
    say(&Said::Launched {
        ports,
        kernel,
        beside,
    });
    Ok(Opened {
        dir,
        file,
        sockets,
        clients,
        replicas,
        delivered,
        home,
    })
}

/// The pure cores of a front, for a new kernel or for a kernel that an earlier front has left running.
fn cores(
    start: &Start,
    file: &FrontFile,
    left: bool,
    (durable, launched): (bool, jiff::Timestamp),
) -> (Front, Life) {
    // A kernel that was left keeps a log, or it wouldn't have been found.
    let front = Front::new(start.key.as_bytes(), uuid::Uuid::new_v4().to_string())
        .durable(left || durable)
        .knowing(info::Place::of(&start.launch).and_then(|place| place.read()));
    let front = if start.resume {
        front
    } else {
        front.launched(launched)
    };
    let local = start.launch.local;
    let tenure = file.state.as_ref().map_or(Tenure(0), |s| s.tenure);
    if left {
        (front.after_a_loss(), Life::left(true, local, tenure, now()))
    } else if start.resume {
        let members = file.launch.replicas.count();
        (front, Life::resumed(durable, local, members, tenure, now()))
    } else {
        (front, Life::new(durable, local))
    }
}

/// Takes up the records of a killed front, and returns the memory for the next front.
fn inherit(front: &mut Front, start: &Start, file: &FrontFile) -> Heirs {
    let (heirs, records) = Heirs::open(start.heirs.as_deref(), start.resume);
    if let Some(records) = records {
        front.take_up(&records, now());
    }
    front.goes_on_with(file.incarnation);
    heirs
}

/// The kernel to start, with the right to its state.
struct Claimed {
    start: Start,
    owned: Option<Owned>,
    /// An earlier server and front of the kernel are gone, and the kernel may have run on.
    left: bool,
    /// The kernel begins with nothing, or with the effects of each cell before.
    is_whole: bool,
    /// The stores of a kernel with a log, unless it runs with its own.
    stores: Option<Stores>,
    /// The sentences for the user on the fate of the notebook's earlier kernel, if that kernel doesn't run on, and of
    /// this one.
    sentences: Vec<String>,
}

/// Takes the state of the notebook's kernel if no other front runs that kernel, else the state of a new kernel.
fn claimed(mut start: Start) -> Claimed {
    const SAVED_BEFORE: &str = "this notebook's kernel was saved, and is back with its variables of then; it was lost \
        after its server, and with it a cell that ran, and what was not saved yet";
    const UNSAVED: &str = "this notebook's kernel was lost after its server, and nothing of it was saved, so this one \
        begins without its variables";
    let content::Settled { stores, told } = content::settle(&mut start);
    let (mut claimed, mut left, mut is_whole) = ((None, None), false, !start.resume);
    let apart = |kernel: &KernelId, how: &str| {
        Some(format!(
            "this notebook's kernel {kernel} {how}, so this one begins without its variables"
        ))
    };
    let notebook = start.notebook.clone().filter(|_| state_folder(&start).is_some());
    if let (Some(notebook), false, Some(all)) = (&notebook, start.fresh || start.resume, states_dir()) {
        claimed = match claim::find(&all, notebook, &start.kernel, was_left) {
            Found::Nothing => (None, None),
            Found::Kernel(kernel, owned, saved) => {
                start.kernel = kernel;
                is_whole = !matches!(saved, Saved::Then(_));
                (Some(owned), Some(saved.sentence(&TimeZone::system())))
            }
            Found::Left {
                kernel,
                owned,
                is_saved,
            } => {
                let said = if is_saved { SAVED_BEFORE } else { UNSAVED };
                (start.kernel, start.resume, left, is_whole) = (kernel, true, true, false);
                (Some(owned), Some(said.to_owned()))
            }
            Found::InUse(kernel) => {
                let said = apart(&kernel, "runs for another tab or server");
                start.beside = Some(kernel);
                (None, said)
            }
            Found::Unclear(kernel, error) => {
                let why = system_words(&error);
                let said = apart(
                    &kernel,
                    &format!("may run for another tab or server and can't be taken ({why})"),
                );
                start.beside = Some(kernel);
                (None, said)
            }
            Found::Unreadable(kernel) => {
                let said = format!(
                    "the saved state of this notebook's kernel {kernel} can't be read now, so this one begins \
                     without its variables; the state is kept"
                );
                start.beside = Some(kernel);
                (None, Some(said))
            }
        };
    }
    let (mut owned, sentence) = claimed;
    if let (None, Some(folder)) = (&owned, state_folder(&start)) {
        owned = Owned::take(&folder).unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel's folder can't be taken, so the kernel won't be found again");
            None
        });
    }
    let lockless = match (&owned, &notebook) {
        (Some(owned), Some(notebook)) => {
            start.beside = start.beside.or_else(|| owned.beside());
            owned
                .name(&start.kernel, notebook, start.beside.as_ref())
                .write_or_warn();
            owned.lockless().map(without_locks)
        }
        _ => None,
    };
    Claimed {
        start,
        owned,
        left,
        is_whole,
        stores,
        sentences: sentence.into_iter().chain(lockless).chain(told).collect(),
    }
}

/// Sentence for a user in whose home no file can be locked.
fn without_locks(error: &std::io::Error) -> String {
    format!(
        "your home's file system has no file locks ({}): this kernel is saved as usual, but is not found again if its \
         server and its node are lost; ask the operators",
        system_words(error)
    )
}

/// Whether the kernel's last front was lost. A front removes its folder at an orderly end; so does a replica after a
/// vain wait for a front.
fn was_left(kernel: &KernelId) -> bool {
    let file = kernel_dir(kernel).and_then(|dir| FrontFile::read(&dir).ok());
    file.is_some_and(|file| file.kernel == *kernel && file.state.is_some())
}

/// The folder of a kernel's log. `None` means a kernel without a log.
fn state_folder(start: &Start) -> Option<PathBuf> {
    start.launch.has_log().then(|| state_dir(&start.kernel))?
}

/// The folders of a kernel with a log. A running kernel keeps the store with which it began.
fn states(start: &Start, file: &FrontFile, settled: Option<Stores>) -> Option<States> {
    let running = file.state.as_ref().map(|running| &running.stores);
    let stores = match (running, settled) {
        (Some(running), Some(settled)) => settled.kept_in(running.store.clone()),
        (running, settled) => running.cloned().or(settled)?,
    };
    Some(States {
        kernel: state_folder(start)?,
        stores,
    })
}

impl Main {
    /// Runs until the front's end.
    async fn main_loop(&mut self, mut inputs: Inputs) -> Result<Outcome> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut tick = interval(LOOK_EVERY);
        if self.start.close {
            self.terminate(termination::Input::EndAgain);
        }
        if self.life.is_starting() {
            self.launch(false, None, None);
        }
        let outcome = loop {
            let receipts = self.sockets.receipts.clone();
            let due = self
                .termination
                .due()
                .map(|at| wait::instant(at, self.clock.now()));
            tokio::select! {
                (channel, event) = wait::some(inputs.clients.recv()) => if let Some(channel) = channel {
                    self.on_client(channel, event);
                },
                frame = wait::on(&mut self.frames, async |(_, frames)| frames.recv().await) => match frame {
                    Some(frame) => {
                        self.on_replica(frame);
                        self.on_more();
                    }
                    None => self.frames = None,
                },
                () = receipts.ready() => {}
                said = wait::some(inputs.replicas.recv()) => self.on_connection(said),
                note = wait::some(inputs.grown.recv()) => self.sockets.send(Item::Note(note)),
                seat = wait::some(inputs.seat_waits.recv()) => self.seat_waits(seat),
                started = wait::some(inputs.starts.recv()) => self.started(started),
                done = wait::some(inputs.preparations.recv()) => {
                    let said = self.moving.prepared(done);
                    self.say_all(said);
                },
                incarnation = self.moving.gone() => self.moves(moves::Input::Gone(incarnation)),
                _ = wait::on(&mut self.process, Child::wait) => {
                    self.process = None;
                    self.live(Input::ProcessGone);
                }
                _ = terminate.recv() => {
                    let connected = self.sockets.out.is_some();
                    self.terminate(termination::Input::End { connected });
                }
                _ = interrupt.recv() => self.interrupt(Interrupt::Signal),
                Some(wish) = inputs.wishes.recv() => self.wishes(wish),
                Some(()) = inputs.wakes.recv() => self.live(Input::Wanted),
                () = wait::at(due) => self.terminate(termination::Input::Due),
                () = wait::at(self.ack_at) => self.send_acks(),
                _ = tick.tick() => self.look_around(),
            }
            self.settle();
            if let Some(outcome) = self.termination.outcome(self.life.is_left()) {
                break outcome;
            }
        };
        self.send_acks();
        self.hang_up(&mut inputs.replicas).await;
        self.moving.end().await;
        self.leave_queue().await;
        end_child(self.process.take()).await;
        if !self.start.launch.local && !self.life.is_left() {
            orphans::end_sruns(&self.start.kernel);
        }
        Ok(outcome)
    }

    /// Ends the searches for seats. Their seats that wait in Slurm's queue are withdrawn.
    async fn leave_queue(&mut self) {
        self.searches.starting.shutdown().await;
        if let Some((_, growing)) = self.searches.growing.take() {
            growing.abort();
            // Either way it is over.
            let _ = growing.await;
        }
        if timeout(SUBMITS, self.searches.submissions.over()).await.is_err() {
            tracing::warn!("sbatch takes long, so a seat may be left in Slurm's queue");
        }
    }

    /// Closes the replica's connection after all frames are written. The replica ends when its last message has been
    /// taken.
    async fn hang_up(&mut self, replicas: &mut mpsc::Receiver<ReplicaConnection>) {
        if self.sockets.out.take().is_none() {
            return;
        }
        let closed = async {
            while let Some(
                ReplicaConnection::Asks { .. }
                | ReplicaConnection::HungUp { .. }
                | ReplicaConnection::Up { .. },
            ) = replicas.recv().await
            {}
        };
        // A replica that can't be told ends by itself after a minute.
        let _ = tokio::time::timeout(FAREWELL, closed).await;
    }

    async fn clean_up(&mut self, removal: Removal, died: bool) {
        let state = self.states.as_ref().map(|s| s.kernel.clone());
        let death = match self.front.end() {
            Some(End::Dead { .. }) => Death::Certain,
            _ if died => Death::Maybe,
            _ => Death::No,
        };
        let word = claim::last_word(removal, death, self.start.notebook.is_some(), state.as_deref());
        if let Some(word) = word.filter(|_| !self.start.launch.local) {
            launch::tell_end(self.start.kernel.clone(), word).await;
        }
        // Nothing may be written into a folder that is removed.
        self.home.end();
        let news = self.front.parted().map(|news| news.whole(self.is_whole));
        claim::clear_away(removal, &self.dir, state.as_deref(), news);
    }

    // The kernel's life.

    fn live(&mut self, input: Input) {
        let leaves = matches!(input, Input::Moving | Input::Leaving { .. });
        let ends_itself = leaves || self.life.is_asleep() || matches!(input, Input::Asleep { .. });
        let was_away = self.life.is_away();
        let acts = self.life.handle(input, self.clock.now());
        if !was_away && self.life.is_away() {
            self.terminate(termination::Input::ReplicaGone);
            if self.front.end().is_some() {
                return;
            }
            let untaken = self.sockets.untaken_interrupts();
            let answered = self.front.replica_is_gone(untaken, now(), &mut self.sockets);
            self.sockets.take_back(&answered);
        }
        for act in acts {
            match act {
                // It would never hear that the kernel is to be saved.
                Act::Start { .. } if self.termination.is_parting() => {
                    self.terminate(termination::Input::ReplicaLost);
                }
                Act::Start {
                    fresh_seat,
                    avoid,
                    old,
                } => {
                    let avoid = avoid.filter(|_| !self.start.launch.local);
                    if leaves || avoid.is_some() {
                        self.front.goes_elsewhere(now(), &mut self.sockets);
                    }
                    self.front.is_started_again(now(), &mut self.sockets);
                    self.end_old(old, ends_itself);
                    self.launch(fresh_seat, avoid, old);
                }
                Act::Die { reason } => self.die(reason),
                Act::Tell { reason } => {
                    eprintln!("hop-front: {reason}");
                    self.front.tell(&reason, now(), &mut self.sockets);
                }
            }
        }
    }

    /// Ends the step of the earlier replica, which may still run. A replica that has announced its end gets a moment to
    /// exit. A slurmstepd may hang if told to kill a task at the instant of its exit, and Slurm then drains the node.
    fn end_old(&self, old: Option<Tenure>, ends_itself: bool) {
        let hello = self.hello.as_ref();
        let Some(hello) = hello.filter(|h| old == Some(h.tenure) && h.seat != JobId(0)) else {
            return;
        };
        let (job, step) = (hello.seat, hello.step);
        let after = if ends_itself { LEAVES } else { Duration::ZERO };
        tokio::spawn(async move {
            sleep(after).await;
            launch::end_step(job, step).await;
        });
    }

    /// Starts a replica in a task of its own.
    fn launch(&mut self, fresh_seat: bool, avoid: Option<NodeName>, old: Option<Tenure>) {
        self.expected = None;
        if old.is_none() {
            self.tell_it_is_back();
        }
        tracing::info!(kernel = %self.start.kernel, ?old, ?avoid, "a replica is started");
        let order = Order {
            fresh_seat,
            avoid: avoid.into_iter().collect(),
            origin: match old {
                Some(_) => Origin::MyReplica,
                None if self.start.fresh => Origin::Nothing,
                None => Origin::Before,
            },
            ..self.order()
        };
        let starts = self.starts.clone();
        let waits = self.moving.start();
        while self.searches.starting.try_join_next().is_some() {}
        self.searches.starting.spawn(async move {
            let started = match waits {
                Some(prepared) => launch::switch(order, prepared).await,
                None => launch::start(&order).await,
            };
            // The front may have ended first.
            let _ = starts.send(started);
        });
    }

    /// Tells clients once the fate of the notebook's earlier kernel, and the outputs of its last cell without a front.
    /// This front has started the kernel's replica, or the kernel's group has elected it while the kernel had no front.
    fn tell_it_is_back(&mut self) {
        let meanwhile = self.states.as_ref().and_then(|s| Meanwhile::take(&s.kernel));
        let sentences = std::mem::take(&mut self.sentences);
        if sentences.is_empty() {
            // The news of a kernel that its user has restarted since.
            return;
        }
        for sentence in sentences {
            self.front.tell(&sentence, now(), &mut self.sockets);
        }
        if let Some(mut meanwhile) = meanwhile {
            if self.is_whole {
                // The replica went on with the save after its front.
                meanwhile.unsaved.retain(|cell| cell.is_lost);
            }
            self.front.tell_meanwhile(meanwhile);
        }
    }

    /// Tells clients why the kernel's seat waits, unless that wait is over by now.
    fn seat_waits(&mut self, seat: SeatWaits) {
        if self.life.is_starting() {
            self.front.seat_waits(seat, now(), &mut self.sockets);
        }
    }

    /// Tells clients if the kernel's replica doesn't answer.
    fn tell_unanswered(&mut self) {
        if let Some(replica) = self.life.unanswered(self.clock.now()) {
            self.front.is_unanswered(replica, now(), &mut self.sockets);
        }
    }

    /// Tells clients if Slurm takes long to start the kernel's step.
    fn tell_slow_step(&mut self) {
        let waited = self
            .life
            .awaited_since()
            .map(|since| self.clock.now().since(since));
        let slow = waited.is_some_and(|waited| waited >= TELL_STEP_AFTER);
        if slow && !self.start.launch.local {
            let seat = SeatWaits {
                reason: NO_STEP.to_owned(),
                start: None,
            };
            self.front.seat_waits(seat, now(), &mut self.sockets);
        }
    }

    /// Keeps the kernel's `kernel_info_reply` for the next kernel of its kernelspec.
    fn learn(&mut self) {
        let Some(content) = self.front.take_learnt() else {
            return;
        };
        let launch = self.start.launch.clone();
        spawn_blocking(move || {
            let written = info::Place::of(&launch).map(|place| place.write(content));
            if let Some(Err(error)) = written {
                tracing::warn!(%error, "what the kernel said of itself can't be kept");
            }
        });
    }

    fn moves(&mut self, input: moves::Input) {
        let said = self.moving.handle(input);
        self.say_all(said);
    }

    fn say_all(&mut self, items: Vec<Item>) {
        for item in items {
            self.sockets.send(item);
        }
    }

    fn order(&self) -> Order {
        Order {
            file: self.file.clone(),
            dir: self.dir.clone(),
            states: self.states.clone(),
            mem_mib: self.start.mem_mib,
            cpus: self.start.cpus,
            fresh_seat: false,
            avoid: Vec::new(),
            origin: Origin::MyReplica,
            known: self.start.tenure.max(self.life.tenure()),
            told: Some(self.searches.seat_waits.clone()),
            submitting: self.searches.submissions.submitting(),
        }
    }

    /// Follows a replica that connects with a higher tenure: the kernel's group has elected it.
    fn follow(&mut self, hello: Hello, answer: oneshot::Sender<Welcome>) {
        let (order, starts) = (self.order(), self.starts.clone());
        let (incarnation, tenure) = (hello.incarnation, hello.tenure);
        let begins = self.elected.as_ref().is_none_or(|(h, _)| h.tenure != tenure);
        tracing::info!(kernel = %self.start.kernel, %incarnation, %tenure, begins, "the group has elected a replica");
        self.elected = Some((hello, answer));
        if begins {
            tokio::spawn(async move {
                // The front may have ended first.
                let _ = starts.send(launch::follow(order, incarnation, tenure).await);
            });
        }
    }

    /// Whether the kernel's group has elected this replica. The group may elect the same replica again, for a later
    /// tenure.
    fn is_elected(&self, hello: &Hello) -> bool {
        let new = Some(hello.incarnation) != self.expected || hello.front_epoch == 0;
        new && !hello.standby
            && self.file.launch.replicas != Replicas::One
            && hello.version == VERSION
            && hello.kernel == self.start.kernel
            && hello.tenure > self.front.tenure()
            && may_be_elected(hello.tenure, self.life.tenure())
    }

    /// An order of the replica's for more replicas.
    fn grow(&mut self, order: &Note) {
        let Note::Grow {
            count,
            first,
            nodes,
            last,
        } = order
        else {
            return;
        };
        if self.searches.grows_by(order) {
            return;
        }
        let told = self.searches.grown.clone();
        let search = launch::grow(self.order(), *count, *first, nodes.clone(), last.clone(), told);
        let search = (order.clone(), tokio::spawn(search));
        if let Some((_, before)) = self.searches.growing.replace(search) {
            before.abort();
        }
    }

    fn started(&mut self, started: Result<Started>) {
        let Started {
            process,
            incarnation,
            state,
        } = match started {
            Ok(started) => started,
            // The replica dials again, and then its tenure is read again.
            Err(error) if self.elected.take().is_some() => {
                return tracing::warn!("the elected replica can't be followed: {error:#}");
            }
            Err(error) => {
                return self.live(Input::NotStarted {
                    reason: chain(&*error),
                });
            }
        };
        let tenure = state.as_ref().map_or(Tenure(0), hop_log::State::tenure);
        let elected = self.elected.as_ref().is_some_and(|(h, _)| h.tenure == tenure);
        let last = match elected {
            true => self.front.tenure(),
            // The front before may have opened a tenure that this front has not met.
            false => self.front.tenure().max(self.life.tenure()),
        };
        if self.states.is_some() && tenure <= last {
            // Another replica took office meanwhile, or the started replica has nothing of the kernel's state.
            if self.life.is_starting() {
                self.process = process;
                self.life.handle(Input::Over, self.clock.now());
                self.die("the kernel's saved state is gone".into());
            }
            return;
        }
        if elected && self.life.is_left() {
            self.tell_it_is_back();
        }
        self.process = match elected {
            true => self.moving.elected(incarnation),
            false => process,
        };
        self.begin_stream(tenure);
        if let Some(state) = &state {
            self.front.reopened(state, now(), &mut self.sockets);
        }
        (self.met, self.hello, self.expected) = (false, None, Some(incarnation));
        self.front.begins_with(incarnation);
        let record = self.delivered.begin(incarnation);
        self.home.tell(|news| news.delivered = Some(record));
        self.live(Input::Started { tenure });
        if let Some((hello, answer)) = self.moving.take_asking(incarnation) {
            // The replica may have lost its connection, and then connects again.
            let _ = answer.send(self.welcome(Hello { tenure, ..hello }));
        }
        if let Some((hello, answer)) = self.elected.take_if(|(h, _)| h.tenure == tenure) {
            // The caller may have left.
            let _ = answer.send(self.welcome(hello));
        }
    }

    /// The requests go to the replica of this tenure from now on.
    fn begin_stream(&mut self, tenure: Tenure) {
        self.sockets.out = None;
        let mut untaken = Vec::new();
        if self.met {
            untaken = self.sockets.untaken_interrupts();
            self.sockets.new_stream();
            self.acks.clear();
            self.frames = None;
        }
        self.front.next_tenure(tenure, self.met, now(), &mut self.sockets);
        // Behind the cells for which they are.
        for interrupt in untaken {
            self.sockets.send(interrupt.item());
        }
        if self.met {
            self.terminate(termination::Input::NextReplica);
        }
    }

    fn die(&mut self, reason: String) {
        self.front.die(reason, now(), &mut self.sockets);
    }

    // Clients.

    fn on_client(&mut self, channel: Channel, event: Event) {
        match event {
            // An ending server shuts down all kernels: later messages must not end a kernel in the middle of a
            // save.
            Event::Message(..) if self.termination.is_parting() => {}
            Event::Message(peer, message) => {
                let asked = self
                    .front
                    .request(channel, &peer.identity, message, now(), &mut self.sockets);
                match asked {
                    Asked::Nothing => {}
                    Asked::Kernel => self.live(Input::Wanted),
                    Asked::Interrupt(interrupt) => self.interrupt(interrupt),
                    Asked::Shutdown(asked) => {
                        let away = self.life.is_away();
                        self.terminate(termination::Input::Shutdown { asked, away });
                    }
                }
            }
            Event::Subscribed(_, topic) => {
                self.front.subscribed(&topic, self.clock.now(), &mut self.sockets);
            }
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
            Event::Disconnected { .. } if channel == Channel::Iopub => {
                self.front.audience_changes(self.clock.now(), &mut self.sockets);
            }
            _ => {}
        }
    }

    /// The user interrupts the kernel.
    fn interrupt(&mut self, interrupt: Interrupt) {
        let away = self.life.is_away() && !self.termination.is_parting();
        let answered = self.front.interrupt(interrupt, away, now(), &mut self.sockets);
        self.sockets.take_back(&answered);
    }

    // The replica.

    fn on_connection(&mut self, said: ReplicaConnection) {
        match said {
            ReplicaConnection::Asks { hello, answer }
                if hello.standby && self.moving.expects(hello.incarnation) =>
            {
                let said = self.moving.asks(hello, answer);
                self.say_all(said);
            }
            ReplicaConnection::Asks { hello, answer } if self.is_elected(&hello) => {
                self.follow(hello, answer)
            }
            // A replica that connects before the news of its start gets no answer, and dials again.
            ReplicaConnection::Asks { .. } if self.expected.is_none() => {}
            ReplicaConnection::Asks { hello, answer } => {
                // The caller may have left.
                let _ = answer.send(self.welcome(hello));
            }
            ReplicaConnection::HungUp { incarnation } => self.moving.left(incarnation),
            ReplicaConnection::Up { visit, out, input } => self.replica_is_in(visit, out, input),
            ReplicaConnection::Down { visit, silent } => {
                if self.sockets.out.as_ref().is_some_and(|(v, _)| *v == visit) {
                    self.sockets.out = None;
                    self.live(Input::Disconnected { silent });
                }
            }
        }
    }

    fn replica_is_in(&mut self, visit: u64, out: mpsc::UnboundedSender<Frame>, input: mpsc::Receiver<Frame>) {
        let Some(hello) = self
            .hello
            .clone()
            .filter(|h| self.expected == Some(h.incarnation))
        else {
            return;
        };
        let taken = self.last_taken(&hello);
        // The replica may have said so on a connection that broke. It may have taken a widget's message for its
        // successor alone.
        self.sockets.kept.settle_if(taken, |item| !is_of_widget(item));
        for (seq, item) in self.sockets.kept.lacking(taken, &[]) {
            // The connection may have broken again; the next one then begins with the same items.
            let _ = out.send(Frame::Item(seq, item));
        }
        self.sockets.out = Some((visit, out));
        self.frames = Some((visit, input));
        // The kernel of a lost server has run, and doesn't say so again.
        if self.life.is_left() {
            say_up(&hello);
        }
        self.met = true;
        if let Some(srun) = self.process.as_ref().and_then(Child::id) {
            self.ears.extend(launch::detach(srun));
            // Earlier sruns of a moved kernel may still be ending, so the last few readers are kept.
            let old = self.ears.len().saturating_sub(4);
            self.ears.drain(..old);
        }
        let incarnation = hello.incarnation;
        tracing::info!(kernel = %self.start.kernel, %incarnation, tenure = %hello.tenure, node = %hello.node,
            "the replica is connected");
        self.life.has_members(hello.members);
        self.tell_name();
        self.front.replica_is_there(now(), &mut self.sockets);
        self.live(Input::Connected { node: hello.node });
        self.moves(moves::Input::Up(incarnation));
    }

    /// Number of the last frame of this front that the replica has taken; 0 if the replica last spoke to another front.
    fn last_taken(&self, hello: &Hello) -> u64 {
        if hello.front_epoch == self.start.epoch {
            hello.taken
        } else {
            0
        }
    }

    fn welcome(&mut self, hello: Hello) -> Welcome {
        let awaited = Awaited {
            kernel: &self.start.kernel,
            incarnation: self.expected,
            tenure: self.states.as_ref().map(|_| self.front.tenure()),
            count: self.front.last_count(),
        };
        let answer = awaited.answer(&hello, self.start.epoch, self.delivered.taken());
        if matches!(answer, Welcome::No { .. }) {
            return answer;
        }
        let new = hello.front_epoch != self.start.epoch;
        if new && self.start.resume && !self.met {
            self.front.resume(
                hello.in_flight.clone(),
                hello.answered.as_deref(),
                hello.tenure,
                &mut self.sockets,
            );
        }
        self.hello = Some(hello);
        answer
    }

    fn on_replica(&mut self, frame: Frame) {
        match frame {
            Frame::Item(seq, item) => {
                if !self.delivered.take(seq) {
                    return self.acks.push(seq);
                }
                match &item {
                    Item::Note(order @ Note::Grow { .. }) => self.grow(order),
                    Item::Note(Note::Members { count }) => self.life.has_members(*count),
                    Item::Note(Note::KernelUp { .. }) => self.hello.iter().for_each(say_up),
                    Item::Note(Note::Begins { cell }) => {
                        // The next front must know of the permission before the replica has it.
                        self.front.may_begin(cell, true);
                        self.record();
                    }
                    // A reply is recorded before a client has it: the front may be killed between the two.
                    Item::Jupyter {
                        channel: Channel::Shell,
                        ..
                    } => self.record(),
                    _ => {}
                }
                let wanted = || self.termination.is_running() && self.front.is_wanted();
                let input = of_life(&item, wanted);
                self.of_move(&item);
                let item = match &self.sockets.rekey {
                    Some(keys) => keys.to_clients(item),
                    None => item,
                };
                self.front.item(seq, item, now(), &mut self.sockets);
                if let Some(input) = input {
                    self.live(input);
                }
            }
            Frame::Done(done) => done.into_iter().for_each(|range| self.sockets.kept.done(range)),
            _ => {}
        }
    }

    /// Handles the replica's notes about a move.
    fn of_move(&mut self, item: &Item) {
        match item {
            Item::Note(Note::MoveAsked { seat, member }) => {
                let order = self.order();
                let said = self.moving.asked(seat.clone(), *member, order);
                self.say_all(said);
            }
            Item::Note(Note::MoveOff { incarnation }) => self.moves(moves::Input::Off(*incarnation)),
            _ => {}
        }
    }

    /// Also takes the frames already received, so that all are noted as delivered at once. Their number is bounded, for
    /// clients to get their turn.
    fn on_more(&mut self) {
        for _ in 0..BATCH {
            let next = self.frames.as_mut().and_then(|(_, rx)| rx.try_recv().ok());
            let Some(frame) = next else {
                return;
            };
            self.on_replica(frame);
        }
    }

    // After each input.

    /// Notes the deliveries, and tells [`Termination`] how kernel and clients are.
    fn settle(&mut self) {
        self.learn();
        let left = self.sockets.take_left();
        let mut done = self.front.have_left(&left);
        done.append(&mut self.sockets.take_finished());
        // Recorded before the deliveries are noted: an item that isn't noted as delivered comes again, to the next
        // front.
        self.record();
        if !done.is_empty() {
            let record = self.delivered.done(&done);
            self.home.tell(|news| news.delivered = Some(record));
            self.acks.append(&mut done);
            if self.acks.len() > 64 {
                self.send_acks();
            } else {
                self.ack_at.get_or_insert_with(|| Instant::now() + ACK_AFTER);
            }
        }
        if self.life.is_asleep() {
            self.terminate(termination::Input::Asleep);
        }
        if let Some(end) = self.front.end().cloned() {
            self.terminate(termination::Input::KernelOver(end));
            if self.sockets.waiting() == 0 {
                self.terminate(termination::Input::AllRead);
            }
        }
    }

    /// Records the changes for the kernel's next front.
    fn record(&mut self) {
        if let Some(records) = self.front.records() {
            self.heirs.write(&records);
        }
    }

    fn send_acks(&mut self) {
        self.ack_at = None;
        if let Some((_, out)) = &self.sockets.out
            && !self.acks.is_empty()
        {
            // If the connection has broken, the next welcome tells what was taken.
            let _ = out.send(Frame::Done(ranges(std::mem::take(&mut self.acks))));
        }
    }

    // The end.

    /// Carries out what follows from this input for the front's end.
    fn terminate(&mut self, input: termination::Input) {
        use termination::Act;
        match self.termination.handle(input, self.clock.now()) {
            Some(Act::PassOn(asked)) => self.sockets.send(asked.item()),
            Some(Act::ShutDown(asked)) => self.shut_down(&asked),
            Some(Act::End) => self.sockets.send(Item::Note(Note::End)),
            Some(Act::Save { reason }) => self.save(reason),
            Some(Act::SaveAgain { reason }) => self.sockets.send(Item::Note(Note::Sleep { reason })),
            Some(Act::TellDeath { reason }) => {
                eprintln!("hop-front: {reason}");
                say(&Said::Dead { reason });
            }
            Some(Act::SendObituaries) => self.front.send_obituaries(&mut self.sockets),
            None => {}
        }
    }

    /// Saves the kernel for the notebook's next opening.
    fn save(&mut self, reason: String) {
        tracing::info!(reason, "the kernel is saved, and its front ends");
        self.front.part();
        if let Some(Ok(parting)) = self.owned.as_ref().map(Owned::parts) {
            self.home.tell(|news| news.parting = Some(parting));
        }
        self.sockets.send(Item::Note(Note::Sleep { reason }));
    }

    /// Ends a kernel without a replica, as a client asks.
    fn shut_down(&mut self, asked: &Shutdown) {
        tracing::info!(kernel = %self.start.kernel, restart = asked.restart, "a client ends the kernel");
        self.front.shut_down(asked, now(), &mut self.sockets);
        self.life.handle(Input::Over, self.clock.now());
    }

    fn part(&mut self, reason: &str) {
        let connected = self.sockets.out.is_some();
        let reason = reason.to_owned();
        self.terminate(termination::Input::Part { reason, connected });
    }

    // The owner.

    fn wishes(&mut self, wish: Wish) {
        match wish {
            Wish::Hibernate => self.part("its Jupyter server ends"),
            Wish::Gone => self.part("its Jupyter server is gone"),
            Wish::Renamed { path } => self.renamed(path),
        }
    }

    /// The notebook has another path, at which its next opening looks for the kernel, and another name for `hop`.
    fn renamed(&mut self, path: String) {
        if let Some(name) = Path::new(&path).file_name() {
            let name = name.to_string_lossy().into_owned();
            self.file.launch.name.clone_from(&name);
            self.start.launch.name = name;
        }
        self.tell_name();
        if let Some(notebook) = &mut self.start.notebook {
            notebook.path = path;
        }
        if let (Some(owned), Some(notebook)) = (&self.owned, &self.start.notebook) {
            let noted = owned.name(&self.start.kernel, notebook, self.start.beside.as_ref());
            self.home.tell(|news| news.notebook = Some(noted));
        }
    }

    /// Tells the connected replica the notebook's name, and writes it down for the replicas that follow. While one is
    /// being started, the name waits for its connection: the start writes the same file.
    fn tell_name(&mut self) {
        let settled = self.sockets.out.is_some() && self.expected.is_some() && self.elected.is_none();
        let name = self.file.launch.name.clone();
        let Some(hello) = self.hello.as_mut().filter(|_| settled) else {
            return;
        };
        let Some(known) = hello.name.as_mut().filter(|known| **known != name) else {
            return;
        };
        known.clone_from(&name);
        self.home.tell(|news| news.name = Some(name.clone()));
        self.sockets.send(Item::Note(Note::Renamed { name }));
    }

    /// Checks at intervals whether the replica and the clients are still there.
    fn look_around(&mut self) {
        if let Some(pid) = self.strange_local_replica()
            && !Path::new("/proc").join(pid.to_string()).exists()
        {
            self.live(Input::ProcessGone);
        }
        self.live(Input::Tick);
        self.tell_unanswered();
        self.tell_slow_step();
        self.listen_asleep();
        self.front.acknowledge(&mut self.sockets);
        self.front.look_at_audience(self.clock.now(), &mut self.sockets);
        let now = Instant::now();
        let front = &self.front;
        let gone = |(identity, since): (&Bytes, &Instant)| {
            let patience = if front.owes(identity) {
                CREDITOR_GONE
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

    /// Listens for a wake through `hopd` while the kernel hibernates. The kernel's next cell wakes it without `hopd`.
    fn listen_asleep(&mut self) {
        let asleep = self.life.is_asleep() && !self.start.launch.local;
        if !asleep {
            self.listener = None;
        } else if self.listener.is_none() {
            self.listener = asleep::listen(self.start.kernel.clone(), self.wakes.clone());
        }
    }

    /// The pid of a local replica of an earlier front, while the replica has no connection. The replica is no child of
    /// this process.
    fn strange_local_replica(&self) -> Option<u32> {
        let strange = self.start.launch.local && self.process.is_none() && self.sockets.out.is_none();
        self.hello.as_ref().filter(|_| strange).map(|h| h.pid)
    }
}

/// Tells the owner that the kernel runs.
fn say_up(hello: &Hello) {
    say(&Said::Up {
        node: hello.node.to_string(),
    });
}

/// The input to [`Life`] that a note of the replica stands for. `wanted` means that a client waits for the kernel.
fn of_life(item: &Item, wanted: impl FnOnce() -> bool) -> Option<Input> {
    match item {
        Item::Note(Note::Leaving { reason }) => Some(Input::Leaving {
            reason: reason.clone(),
        }),
        Item::Note(Note::Moving { .. }) => Some(Input::Moving),
        Item::Note(Note::Asleep { .. }) => Some(Input::Asleep { wanted: wanted() }),
        Item::Note(Note::KernelOver {
            over: Over::Shutdown | Over::Died { .. } | Over::NotStarted { .. },
        }) => Some(Input::Over),
        _ => None,
    }
}

/// Waits a moment for the replica's process to exit, then ends it.
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
        // The process may already have exited.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(Duration::from_secs(3), child.wait())
        .await
        .is_err()
    {
        let _ = child.kill().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::Recorder;
    use hop_protocol::jupyter::Author;
    use hop_words::time::Timestamp;
    use serde_json::json;

    #[tokio::test]
    async fn a_search_for_seats_goes_on_when_it_is_asked_for_again() {
        let order = |first| Note::Grow {
            count: 1,
            first: Incarnation(first),
            nodes: vec!["n1".into()],
            last: Vec::new(),
        };
        let growth = order(4);
        let (grown, _) = mpsc::unbounded_channel();
        let (seat_waits, _) = mpsc::unbounded_channel();
        let mut searches = Searches::new(grown, seat_waits);
        assert!(!searches.grows_by(&growth));
        searches.growing = Some((growth.clone(), tokio::spawn(std::future::pending())));
        assert!(searches.grows_by(&growth));
        assert!(!searches.grows_by(&order(5)));
        let (_, search) = searches.growing.as_mut().unwrap();
        search.abort();
        assert!(search.await.is_err());
        assert!(!searches.grows_by(&growth), "it is over");
    }

    #[test]
    fn a_request_that_comes_during_the_last_save_wakes_the_kernel() {
        let at = Timestamp(0);
        let starts = |kind: &str| {
            let mut front = Front::new(b"key", "front".into()).durable(true);
            let mut life = Life::new(true, false);
            life.handle(Input::Started { tenure: Tenure(1) }, at);
            life.handle(Input::Connected { node: "n1".into() }, at);
            let mut client = Author::new(b"key", "client".into());
            let content = json!({"code": "1"});
            let asked = client.write(kind, &Bytes::from_static(b"{}"), &json!({}), &content, at);
            let identity = Bytes::from_static(b"me");
            let asked = front.request(
                Channel::Shell,
                &identity,
                asked.message(),
                at,
                &mut Recorder::default(),
            );
            if asked == Asked::Kernel {
                assert_eq!(
                    life.handle(Input::Wanted, at),
                    [],
                    "its replica seems to be there"
                );
            }
            let reason = "hop hibernate".to_owned();
            let input = of_life(&Item::Note(Note::Asleep { reason }), || front.is_wanted());
            front.sanity_check();
            life.handle(input.unwrap(), at)
        };
        let start = Act::Start {
            fresh_seat: false,
            avoid: None,
            old: Some(Tenure(1)),
        };
        for kind in ["execute_request", "kernel_info_request"] {
            assert_eq!(starts(kind), std::slice::from_ref(&start), "{kind}");
        }
        assert_eq!(
            starts("complete_request"),
            [],
            "it wakes no sleeping kernel either"
        );
        assert_eq!(starts("interrupt_request"), []);
    }
}
