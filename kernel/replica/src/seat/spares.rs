//! Spare interpreters of a seat: started beforehand for the kernels with a standby here, so that a replica taking
//! office waits neither for Slurm nor for Python's imports. A spare serves any kernel of its kind ([`crate::spare`]),
//! once.
//!
//! [`Shelf`] decides, and has no process or clock; [`Spares`] carries out.

use super::wire::{Called, FromSeat};
use super::{Seat, pause, terminate};
use crate::spare::Kind;
use anyhow::Context;
use hop_protocol::file::{FrontFile, Takeover, kernel_dir};
use hop_protocol::step::{Step, Turn};
use hop_protocol::wait;
use hop_words::id::{Incarnation, KernelId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::process::{Child, Command as Program};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// Between a new wish and the spare: a kernel that has just begun needs the node's cores for itself, and many a kernel
/// of a program is over by then.
const BEGINS: Duration = Duration::from_secs(10);

/// Between a spare's use and the next spare: the kernel that the spare has become needs the cores.
const SETTLES: Duration = Duration::from_secs(2);

/// Between a spare's unused end and the next spare, twice as long each time.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Time for the word of a called spare, before the replica is started afresh.
const GOES_WITHIN: Duration = Duration::from_secs(1);

/// Interval of checks on spares that aren't ready.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Interval of looks whether a kernel is left that a spare waits for. A group without its other members hears of no
/// end, and a single kernel of a seat is enough.
const KERNELS_EVERY: Duration = Duration::from_secs(5);

/// The order to start a spare, from a kernel with a standby here.
#[derive(Debug, Clone)]
struct Order {
    kind: Kind,
    kernel: KernelId,
    takeover: Takeover,
    dir: PathBuf,
}

/// What the shelf wants done.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    /// Start a spare for this group's kernel.
    Start {
        number: u32,
        group: String,
    },
    End {
        number: u32,
    },
}

#[derive(Debug)]
struct Kept {
    kind: Kind,
    ready: bool,
}

#[derive(Debug)]
struct Wish {
    kind: Kind,
    from: Instant,
}

/// Which spares there should be.
#[derive(Debug)]
struct Shelf {
    most: usize,
    made: u32,
    /// By the group of a kernel with a standby here.
    wants: BTreeMap<String, Wish>,
    spares: BTreeMap<u32, Kept>,
    /// Number of spares in a row that ended unused.
    failed: u32,
    not_before: Instant,
}

impl Shelf {
    fn new(most: u32, now: Instant) -> Self {
        Self {
            most: most as usize,
            made: 0,
            wants: BTreeMap::new(),
            spares: BTreeMap::new(),
            failed: 0,
            not_before: now,
        }
    }

    fn wants(&mut self, group: String, kind: Kind, now: Instant) {
        let from = now + BEGINS;
        self.wants.insert(group, Wish { kind, from });
    }

    fn unwanted(&mut self, group: &str) {
        self.wants.remove(group);
    }

    /// Returns whether the spare is still wanted.
    fn ready(&mut self, number: u32) -> bool {
        let spare = self.spares.get_mut(&number);
        spare.map(|s| s.ready = true).is_some()
    }

    /// A spare has ended by itself.
    fn gone(&mut self, number: u32, now: Instant) {
        if self.spares.remove(&number).is_some() {
            self.not_before = now + pause(AGAIN_AFTER, self.failed);
            self.failed += 1;
        }
    }

    /// A spare for a kernel of this kind.
    fn take(&mut self, kind: &Kind, now: Instant) -> Option<u32> {
        let fits = |s: &Kept| s.ready && s.kind == *kind;
        let number = self.spares.iter().find(|(_, s)| fits(s)).map(|(n, _)| *n)?;
        self.spares.remove(&number);
        self.failed = 0;
        self.not_before = self.not_before.max(now + SETTLES);
        Some(number)
    }

    fn acts(&mut self, now: Instant) -> Vec<Act> {
        let wanted = |kind: &Kind| self.wants.values().any(|w| w.kind == *kind);
        let unwanted = self.spares.iter().filter(|(_, s)| !wanted(&s.kind));
        let ended: Vec<u32> = unwanted.map(|(n, _)| *n).collect();
        self.spares.retain(|number, _| !ended.contains(number));
        let mut acts: Vec<Act> = ended.into_iter().map(|number| Act::End { number }).collect();
        while now >= self.not_before && self.spares.len() < self.most {
            let due = self.lacking().find(|(_, wish)| wish.from <= now);
            let Some((group, kind)) = due.map(|(group, wish)| (group.clone(), wish.kind.clone())) else {
                break;
            };
            self.made += 1;
            let number = self.made;
            self.spares.insert(number, Kept { kind, ready: false });
            acts.push(Act::Start { number, group });
        }
        acts
    }

    /// The kernels without a spare of their kind.
    fn lacking(&self) -> impl Iterator<Item = (&String, &Wish)> {
        let has = |kind: &Kind| self.spares.values().any(|s| s.kind == *kind);
        self.wants.iter().filter(move |(_, wish)| !has(&wish.kind))
    }

    /// When to look again.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.spares.values().any(|s| !s.ready) {
            return Some(now + LOOKS_EVERY);
        }
        let lacks = self.lacking().filter(|_| self.spares.len() < self.most);
        let starts = lacks.map(|(_, wish)| wish.from.max(self.not_before)).min();
        let looks = (!self.spares.is_empty()).then(|| now + KERNELS_EVERY);
        starts.into_iter().chain(looks).min()
    }

    /// For each spare, the groups asking for a spare.
    fn waited_for(&self) -> Vec<Vec<&String>> {
        let by = |kind: &Kind| {
            self.wants
                .iter()
                .filter(|(_, w)| w.kind == *kind)
                .map(|(group, _)| group)
                .collect()
        };
        self.spares.values().map(|s| by(&s.kind)).collect()
    }
}

enum Command {
    Wants(String, Box<Order>),
    Unwanted(String),
    /// These groups' kernels are over.
    Over(Vec<String>),
    Ready {
        number: u32,
        out: mpsc::UnboundedSender<FromSeat>,
    },
    Gone(u32),
    Take {
        kind: Box<Kind>,
        reply: oneshot::Sender<Option<Taken>>,
    },
    /// A spare told to go does go.
    Goes {
        number: u32,
        known: oneshot::Sender<bool>,
    },
}

/// A spare that has left the shelf.
struct Taken {
    process: Child,
    out: mpsc::UnboundedSender<FromSeat>,
    goes: oneshot::Receiver<()>,
}

/// The spares of one seat.
#[derive(Debug, Clone)]
pub(super) struct Spares {
    commands: mpsc::UnboundedSender<Command>,
    /// The groups asking for a spare, as last told.
    wanted: Arc<Mutex<BTreeSet<String>>>,
}

impl Spares {
    pub(super) fn new(seat: Seat) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        let most = seat.spares;
        let keeper = Keeper {
            seat,
            shelf: Shelf::new(most, Instant::now()),
            commands: commands.downgrade(),
            orders: BTreeMap::new(),
            processes: BTreeMap::new(),
            doors: BTreeMap::new(),
            going: BTreeMap::new(),
        };
        if most > 0 {
            tokio::spawn(keeper.run(queue));
        }
        Self {
            commands,
            wanted: Arc::default(),
        }
    }

    fn tell(&self, command: Command) {
        // Without spares nobody listens.
        let _ = self.commands.send(command);
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This group's kernel doesn't take office here.
    pub(super) fn unwant(&self, group: &str) {
        let mut wanted = self.wanted();
        if wanted.remove(group) {
            self.tell(Command::Unwanted(group.to_owned()));
        }
    }

    /// This group's kernel may take office here. May be called any number of times.
    pub(super) fn want(&self, group: &str, kernel: &KernelId) {
        if self.commands.is_closed() || !self.wanted().insert(group.to_owned()) {
            return;
        }
        let (spares, group, kernel) = (self.clone(), group.to_owned(), kernel.clone());
        tokio::task::spawn_blocking(move || {
            let order = order(kernel);
            let mut wanted = spares.wanted();
            match order {
                Ok(Some(order)) if wanted.contains(&group) => {
                    spares.tell(Command::Wants(group, Box::new(order)));
                }
                Ok(_) => tracing::debug!(group, "no spare for this kernel"),
                // The next call tries again.
                Err(error) => {
                    tracing::debug!(group, "no spare yet: {error:#}");
                    wanted.remove(&group);
                }
            }
        });
    }

    /// A spare waits, and can be spoken to.
    pub(super) fn ready(&self, number: u32, out: mpsc::UnboundedSender<FromSeat>) {
        self.tell(Command::Ready { number, out });
    }

    /// A spare's connection is closed.
    pub(super) fn gone(&self, number: u32) {
        self.tell(Command::Gone(number));
    }

    /// A spare speaks for its kernel. Returns whether it is expected to.
    pub(super) async fn goes(&self, number: u32) -> bool {
        let (known, answer) = oneshot::channel();
        self.tell(Command::Goes { number, known });
        answer.await.unwrap_or(false)
    }

    /// Has a spare become this replica. `None`: no such process, or no answer.
    pub(super) async fn start(&self, file: &FrontFile, dir: &Path, me: Incarnation) -> Option<Child> {
        let kind = Box::new(Kind::of(file)?);
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Take { kind, reply });
        let taken = answer.await.ok()??;
        let called = FromSeat::Become(Called {
            dir: dir.to_owned(),
            incarnation: me,
        });
        taken.out.send(called).ok()?;
        match timeout(GOES_WITHIN, taken.goes).await {
            Ok(Ok(())) => Some(taken.process),
            _ => {
                tracing::warn!("a spare doesn't answer: the replica is started afresh");
                None
            }
        }
    }
}

/// `None`: no spare can become this kernel.
fn order(kernel: KernelId) -> anyhow::Result<Option<Order>> {
    let dir = kernel_dir(&kernel).context("there is no home folder")?;
    let file = FrontFile::read(&dir)?;
    let order = Kind::of(&file).zip(file.takeover);
    Ok(order.map(|(kind, takeover)| Order {
        kind,
        kernel,
        takeover,
        dir,
    }))
}

/// The groups whose kernels' folders are gone, up to the first group with a folder: its kernel may need a spare.
fn over(kernels: Vec<(String, PathBuf)>) -> impl Iterator<Item = String> {
    let gone = |dir: &Path| matches!(dir.try_exists(), Ok(false));
    let kernels = kernels.into_iter().take_while(move |(_, dir)| gone(dir));
    kernels.map(|(group, _)| group)
}

/// The task that has the spares' processes.
struct Keeper {
    seat: Seat,
    shelf: Shelf,
    commands: mpsc::WeakUnboundedSender<Command>,
    orders: BTreeMap<String, Order>,
    /// The srun of each spare.
    processes: BTreeMap<u32, Child>,
    /// Where spares that wait are spoken to.
    doors: BTreeMap<u32, mpsc::UnboundedSender<FromSeat>>,
    /// Takeovers in wait of their spare's word.
    going: BTreeMap<u32, oneshot::Sender<()>>,
}

impl Keeper {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Command>) {
        loop {
            let due = self.shelf.due(Instant::now());
            tokio::select! {
                command = queue.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                () = wait::at(due) => self.look(),
            }
            for act in self.shelf.acts(Instant::now()) {
                match act {
                    Act::Start { number, group } => self.start(number, &group),
                    Act::End { number } => self.end(number),
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Wants(group, order) => {
                self.shelf.wants(group.clone(), order.kind.clone(), now);
                self.orders.insert(group, *order);
            }
            Command::Unwanted(group) => self.forget(&group),
            Command::Over(groups) => groups.iter().for_each(|group| self.forget(group)),
            Command::Ready { number, out } => {
                if self.shelf.ready(number) {
                    tracing::info!(number, "a spare interpreter waits");
                    self.doors.insert(number, out);
                } else {
                    // Nobody wants it any more.
                    let _ = out.send(FromSeat::Alone);
                }
            }
            Command::Gone(number) => {
                // A takeover waiting for this spare hears now of the spare's end.
                self.going.remove(&number);
                self.shelf.gone(number, now);
                self.end(number);
            }
            Command::Take { kind, reply } => {
                let taken = self.shelf.take(&kind, now).and_then(|number| self.take(number));
                // The asker's seat may end.
                let _ = reply.send(taken);
            }
            Command::Goes { number, known } => {
                let goes = self.going.remove(&number).is_some_and(|g| g.send(()).is_ok());
                let _ = known.send(goes);
            }
        }
    }

    fn take(&mut self, number: u32) -> Option<Taken> {
        let (process, out) = (self.processes.remove(&number)?, self.doors.remove(&number)?);
        let (tell, goes) = oneshot::channel();
        self.going.insert(number, tell);
        Some(Taken { process, out, goes })
    }

    fn forget(&mut self, group: &str) {
        self.shelf.unwanted(group);
        self.orders.remove(group);
    }

    /// Looks for spares that ended before their readiness, and for kernels at their end.
    fn look(&mut self) {
        self.look_at_kernels();
        let ended = |process: &mut Child| !matches!(process.try_wait(), Ok(None));
        let gone: Vec<u32> = self
            .processes
            .iter_mut()
            .filter_map(|(number, process)| ended(process).then_some(*number))
            .collect();
        for number in gone {
            tracing::info!(number, "a spare interpreter has ended");
            self.shelf.gone(number, Instant::now());
            self.end(number);
        }
    }

    /// The shared file system may be slow: nobody waits for the answer.
    fn look_at_kernels(&self) {
        let dir = |group: &String| Some((group.clone(), self.orders.get(group)?.dir.clone()));
        let kernels = self.shelf.waited_for().into_iter();
        let kernels: Vec<Vec<_>> = kernels.map(|g| g.into_iter().filter_map(dir).collect()).collect();
        let commands = self.commands.clone();
        tokio::task::spawn_blocking(move || {
            let over: Vec<String> = kernels.into_iter().flat_map(over).collect();
            // The seat may be at its end.
            if !over.is_empty()
                && let Some(commands) = commands.upgrade()
            {
                let _ = commands.send(Command::Over(over));
            }
        });
    }

    fn start(&mut self, number: u32, group: &str) {
        let Some(order) = self.orders.get(group) else {
            return self.shelf.gone(number, Instant::now());
        };
        match self.spawn(number, order) {
            Ok(process) => drop(self.processes.insert(number, process)),
            Err(error) => {
                tracing::warn!(%error, "a spare interpreter can't be started");
                self.shelf.gone(number, Instant::now());
            }
        }
    }

    fn spawn(&self, number: u32, order: &Order) -> std::io::Result<Child> {
        let step = Step {
            kernel: &order.kernel,
            dir: &order.dir,
            incarnation: Incarnation(0),
            seat: self.seat.job,
            node: &self.seat.node,
            size: order.takeover.size,
            program: &self.seat.program,
            turn: Turn::Elected,
        };
        let environment = order.takeover.environment.iter();
        Program::new("srun")
            .args(step.spare_args(number))
            .env_clear()
            .envs(environment.map(|(name, value)| (name, value)))
            // The plugin prepares a kernel's step; the kernel's own name comes with the order.
            .env("GRESSHOPPER_KERNEL", format!("spare-{}-{number}", self.seat.job))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .kill_on_drop(false)
            .spawn()
    }

    /// Lets go of a spare. The interpreter of a spare in preparation isn't waited for.
    fn end(&mut self, number: u32) {
        let door = self.doors.remove(&number);
        let Some(mut process) = self.processes.remove(&number) else {
            return;
        };
        match door {
            // It may be gone already.
            Some(door) => drop(door.send(FromSeat::Alone)),
            None => terminate(&process),
        }
        tokio::spawn(async move { drop(process.wait().await) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spare::tests::kind;

    fn start(number: u32, group: &str) -> Act {
        let group = group.to_owned();
        Act::Start { number, group }
    }

    fn end(number: u32) -> Act {
        Act::End { number }
    }

    #[test]
    fn one_spare_serves_all_kernels_of_its_kind_once_and_another_follows() {
        let begin = Instant::now();
        let (mut shelf, later) = (Shelf::new(1, begin), begin + BEGINS);
        shelf.wants("a".into(), kind("x"), begin);
        shelf.wants("b".into(), kind("x"), begin + SETTLES);
        assert_eq!(shelf.acts(begin), [], "the kernel's own start comes first");
        assert_eq!(shelf.due(begin), Some(later));
        assert_eq!(shelf.acts(later), [start(1, "a")]);
        assert_eq!(shelf.take(&kind("x"), later), None, "it isn't ready");
        assert!(shelf.ready(1));
        assert_eq!(shelf.waited_for(), [["a", "b"]]);
        assert_eq!(shelf.due(later), Some(later + KERNELS_EVERY));
        assert_eq!(shelf.take(&kind("y"), later), None);
        assert_eq!(shelf.take(&kind("x"), later), Some(1));
        assert_eq!(shelf.take(&kind("x"), later), None);
        assert_eq!(shelf.acts(later), []);
        assert_eq!(shelf.acts(later + SETTLES), [start(2, "a")]);
    }

    #[test]
    fn a_spare_that_nobody_wants_ends_and_makes_room_for_another_kind() {
        let begin = Instant::now();
        let (mut shelf, later) = (Shelf::new(1, begin), begin + BEGINS);
        shelf.wants("a".into(), kind("x"), begin);
        shelf.wants("b".into(), kind("y"), begin);
        assert_eq!(shelf.acts(later), [start(1, "a")], "no more than one");
        shelf.unwanted("a");
        assert_eq!(shelf.acts(later), [end(1), start(2, "b")]);
        assert!(!shelf.ready(1), "it was too late");
        shelf.unwanted("b");
        assert_eq!(shelf.acts(later), [end(2)]);
        assert_eq!(shelf.due(later), None);
    }

    #[test]
    fn a_spare_that_ends_unused_is_followed_later_and_later() {
        let mut now = Instant::now();
        let mut shelf = Shelf::new(1, now);
        shelf.wants("a".into(), kind("x"), now);
        now += BEGINS;
        let mut waits = Vec::new();
        for number in 1..=7 {
            assert_eq!(shelf.acts(now), [start(number, "a")]);
            shelf.gone(number, now);
            assert_eq!(shelf.acts(now), []);
            let due = shelf.due(now).unwrap();
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [30, 60, 120, 240, 480, 600, 600]);
    }

    #[test]
    fn a_kernel_is_over_when_its_folder_is_gone() {
        let tmp = tempfile::tempdir().unwrap();
        let kernels = ["gone", "also", "there", "later"].map(|name| (name.to_owned(), tmp.path().join(name)));
        std::fs::create_dir(&kernels[2].1).unwrap();
        let found: Vec<String> = over(kernels.to_vec()).collect();
        assert_eq!(found, ["gone", "also"], "one that is there is enough");
    }

    #[test]
    fn without_spares_none_is_started() {
        let now = Instant::now();
        let mut shelf = Shelf::new(0, now);
        shelf.wants("a".into(), kind("x"), now);
        assert_eq!(shelf.acts(now + BEGINS), []);
        assert_eq!(shelf.due(now), None);
    }

    #[test]
    fn kernels_that_begin_one_after_the_other_delay_no_other_kernels_spare() {
        let begin = Instant::now();
        let mut shelf = Shelf::new(1, begin);
        shelf.wants("b".into(), kind("x"), begin);
        for second in 1..10 {
            shelf.wants("a".into(), kind("y"), begin + Duration::from_secs(second));
        }
        assert_eq!(shelf.due(begin), Some(begin + BEGINS));
        assert_eq!(shelf.acts(begin + BEGINS), [start(1, "b")]);
    }

    #[test]
    fn a_kernel_that_ends_soon_has_no_spare() {
        let begin = Instant::now();
        let mut shelf = Shelf::new(1, begin);
        shelf.wants("a".into(), kind("x"), begin);
        assert_eq!(shelf.acts(begin + SETTLES), []);
        shelf.unwanted("a");
        assert_eq!(shelf.due(begin + SETTLES), None);
        assert_eq!(shelf.acts(begin + BEGINS), []);
    }
}
