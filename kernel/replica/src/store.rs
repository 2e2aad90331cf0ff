//! Writes the kernel's state to the user's store, in a thread of its own: a file system that hangs never holds up the
//! kernel. Records go behind each other into the log of the tenure's folder, and are on disk within a quarter of a
//! second. A log that has grown long goes on in the tenure's next part, without what nothing needs. After a failure the
//! store is tried again and again, since room may be made.

use crate::core::{Durably, SyncNumber};
use crate::upkeep::{self, Upkeep};
use bytes::Bytes;
use hop_log::{Form, RecordNumber, Settled, State};
use hop_protocol::states::{self, OpenError};
use hop_state::log::{Key, WriteError};
use hop_state::writer::{Committed, Writer};
use hop_words::error::chain;
use hop_words::id::Tenure;
use std::convert::Infallible;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// A record is synced at once; records within this time afterwards are synced together.
const SYNC_EVERY: Duration = Duration::from_millis(250);

/// How long a part of the log stays after the state has gone on in the next part: somebody may be reading it.
const PART_STAYS: Duration = Duration::from_mins(10);

/// The pause before the first attempt after a failure, and the longest.
const RETRY: Duration = Duration::from_secs(30);
const RETRY_MOST: Duration = Duration::from_mins(10);

/// Bytes that must fit into the store before a failure counts as over.
const PROBE: usize = 1 << 20;

/// Work for the thread, done in order.
#[derive(Debug)]
pub(crate) enum StoreJob {
    Append {
        number: RecordNumber,
        text: Bytes,
        body: Bytes,
        behind: Option<Settled>,
    },
    Sync(SyncNumber),
    /// Try a broken store at once: [`StoreEvent::Mended`], or [`StoreEvent::StillFails`].
    TryAgain,
    WriteState(Bytes),
    OpenTenure(Box<State>),
    /// Later tenures don't remove this folder.
    Keep(PathBuf),
}

/// The thread's answers.
#[derive(Debug)]
pub(crate) enum StoreEvent {
    /// The log is on disk up to there.
    Synced(Settled),
    /// The order of this number is carried out.
    InSync(SyncNumber),
    /// The state beside the log is on disk.
    Rested,
    /// This tenure's folder is there.
    Opened(Tenure),
    /// Another front or replica has opened the next tenure.
    Taken,
    /// The store can't be written, for this reason. Records are dropped until [`StoreEvent::Mended`].
    Failed(String),
    /// The store can be written again. The next record must hold everything.
    Mended,
    /// The order to try again has failed, for this reason.
    StillFails(String),
}

/// Why the store can't be written.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error("the user's store can't be written")]
    Write(#[from] WriteError),
    #[error("the kernel's folder can't be written")]
    Folder(#[from] std::io::Error),
    #[error("the kernel's next folder can't be made")]
    Open(#[source] OpenError),
}

/// The thread's other end.
#[derive(Debug)]
pub(crate) struct StoreThread {
    jobs: Sender<StoreJob>,
    /// The thread that tends the content ends with this end.
    _upkeep: Sender<Infallible>,
}

impl StoreThread {
    pub(crate) fn start(durably: &Durably, events: UnboundedSender<StoreEvent>) -> Self {
        let (jobs, work) = channel();
        let tenure = durably.state.tenure();
        let store = Store::new(
            durably.folder.clone(),
            durably.stores.store.clone(),
            tenure,
            events,
        );
        std::thread::spawn(move || store.run(&work));
        let (upkeep, over) = channel();
        if let Some(states) = durably.folder.parent() {
            let tended = Upkeep::new(states.to_owned(), durably.stores.store.clone());
            std::thread::spawn(move || tended.run(&over));
        }
        Self {
            jobs,
            _upkeep: upkeep,
        }
    }

    pub(crate) fn send(&self, job: StoreJob) {
        // The thread lives as long as this end.
        let _ = self.jobs.send(job);
    }
}

/// A failure, until the store can be written again.
#[derive(Debug, Clone, Copy)]
struct Failure {
    /// `None` means that a tenure's folder can't be opened: an order alone has it tried again.
    again_at: Option<Instant>,
    pause: Duration,
}

/// Earlier parts of the tenure, after the log has gone on in another.
#[derive(Debug)]
struct Replaced {
    /// The newest state, once it names the present part.
    state: Option<Bytes>,
    stay_until: Instant,
}

#[derive(Debug)]
struct Store {
    /// The owner's key, once it was needed.
    key: Option<Key>,
    /// The folder of all the kernel's tenures.
    kernel: PathBuf,
    /// The user's content-addressed store of chunks.
    content: PathBuf,
    tenure: Tenure,
    part: u32,
    /// The folder of the tenure's part.
    folder: PathBuf,
    log: Option<Writer>,
    /// The last record written and not yet on disk.
    unsynced: Option<RecordNumber>,
    synced_at: Option<Instant>,
    failed: Option<Failure>,
    /// A state that couldn't be written.
    unwritten: Option<Bytes>,
    /// The state of a tenure whose folder couldn't be opened.
    unopened: Option<Box<State>>,
    /// How many states were to be written, and are not answered yet.
    unrested: u32,
    replaced: Option<Replaced>,
    events: UnboundedSender<StoreEvent>,
}

impl Store {
    fn new(kernel: PathBuf, content: PathBuf, tenure: Tenure, events: UnboundedSender<StoreEvent>) -> Self {
        Self {
            key: None,
            folder: states::folder(&kernel, tenure, 0),
            kernel,
            content,
            tenure,
            part: 0,
            log: None,
            unsynced: None,
            synced_at: None,
            failed: None,
            unwritten: None,
            unopened: None,
            unrested: 0,
            replaced: None,
            events,
        }
    }

    fn run(mut self, work: &Receiver<StoreJob>) {
        loop {
            let done = match work.recv_timeout(self.patience()) {
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => self.on_time(),
                Err(RecvTimeoutError::Disconnected) => {
                    // Received records reach the disk before the replica ends, if possible.
                    drop(self.sync());
                    return;
                }
            };
            if let Err(error) = done {
                self.fails(&error);
            }
        }
    }

    fn fails(&mut self, error: &StoreError) {
        if self.failed.is_none() {
            // Room may be what lacks.
            self.collect();
        }
        let pause = RETRY;
        let opens = matches!(error, StoreError::Open(_));
        self.failed = Some(Failure {
            again_at: (!opens).then(|| Instant::now() + pause),
            pause,
        });
        (self.log, self.unsynced) = (None, None);
        self.tell(StoreEvent::Failed(chain(error)));
    }

    /// The time until something is due.
    fn patience(&self) -> Duration {
        let sync = match (self.unsynced, self.synced_at) {
            (None, _) => Duration::MAX,
            (Some(_), None) => Duration::ZERO,
            (Some(_), Some(at)) => SYNC_EVERY.saturating_sub(at.elapsed()),
        };
        let again_at = self.failed.and_then(|f| f.again_at);
        let retry = again_at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        let gone = self.replaced.as_ref().filter(|r| r.state.is_some());
        let removal = gone.map_or(Duration::MAX, |r| {
            r.stay_until.saturating_duration_since(Instant::now())
        });
        sync.min(retry).min(removal)
    }

    /// Does what is due.
    fn on_time(&mut self) -> Result<(), StoreError> {
        self.remove_replaced();
        let again_at = self.failed.and_then(|f| f.again_at);
        if again_at.is_some_and(|at| at <= Instant::now())
            && let Err(error) = self.try_again()
        {
            tracing::info!(error = chain(&error), "the store still can't be written");
        }
        match self.unsynced {
            Some(_) => self.sync(),
            None => Ok(()),
        }
    }

    fn tell(&self, event: StoreEvent) {
        // The replica may be at its end.
        let _ = self.events.send(event);
    }

    fn work(&mut self, job: StoreJob) -> Result<(), StoreError> {
        match job {
            // A log with a gap is none: nothing follows a record that couldn't be written.
            StoreJob::Append { .. } if self.failed.is_some() => Ok(()),
            StoreJob::Append {
                number,
                text,
                body,
                behind,
            } => {
                self.append(&text, &body, behind.as_ref())?;
                self.unsynced = Some(number);
                Ok(())
            }
            StoreJob::Sync(number) => {
                self.sync()?;
                self.tell(StoreEvent::InSync(number));
                Ok(())
            }
            StoreJob::TryAgain => {
                self.try_at_once();
                Ok(())
            }
            StoreJob::WriteState(state) => {
                self.unrested += 1;
                self.write_state(state)
            }
            StoreJob::OpenTenure(state) => self.open(&state),
            StoreJob::Keep(folder) => {
                if let Err(error) = states::keep(&folder) {
                    tracing::warn!(error = chain(&error), folder = %folder.display(), "a state can't be kept");
                }
                Ok(())
            }
        }
    }

    fn write_state(&mut self, state: Bytes) -> Result<(), StoreError> {
        if let Err(error) = states::write_bytes(&self.folder, &state) {
            self.unwritten = Some(state);
            return Err(error.into());
        }
        // This state stands for the earlier ones as well.
        self.unwritten = None;
        self.rest();
        if let Some(replaced) = &mut self.replaced {
            replaced.state = Some(state);
        }
        self.remove_replaced();
        Ok(())
    }

    /// Answers each state that was to be written.
    fn rest(&mut self) {
        for _ in 0..std::mem::take(&mut self.unrested) {
            self.tell(StoreEvent::Rested);
        }
    }

    fn key(&mut self) -> Result<Key, WriteError> {
        let key = match &self.key {
            Some(key) => key.clone(),
            None => Key::of_owner()?,
        };
        self.key = Some(key.clone());
        Ok(key)
    }

    fn append(&mut self, text: &[u8], body: &[u8], behind: Option<&Settled>) -> Result<(), StoreError> {
        let key = self.key()?;
        let log = match &mut self.log {
            Some(log) => log,
            None => self.log.insert(begin(&key, &self.kernel, &self.folder, behind)?),
        };
        log.append(text, body)?;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let (Some(upto), Some(log)) = (self.unsynced.take(), &mut self.log) else {
            return Ok(());
        };
        let mut at = log.commit()?;
        self.synced_at = Some(Instant::now());
        if log.is_long() {
            at = self.go_on_in_next_part(at)?;
        }
        self.tell(StoreEvent::Synced(Settled {
            tenure: self.tenure,
            part: self.part,
            upto,
            length: at.length,
            mac: at.mac,
        }));
        Ok(())
    }

    /// Goes on in a log without what nothing needs any more, if that pays. `at` is the end of the present log.
    ///
    /// # Errors
    /// The next part has its name, and may not be on disk.
    fn go_on_in_next_part(&mut self, at: Committed) -> Result<Committed, StoreError> {
        let Some(log) = &mut self.log else {
            return Ok(at);
        };
        let shorter = states::make_part(&self.kernel)
            .map_err(StoreError::Folder)
            .and_then(|new| Ok(log.shorter(&new)?))
            .and_then(|shorter| shorter.map(|mut log| Ok((log.commit()?, log))).transpose());
        let (then, mut log) = match shorter {
            Ok(Some(shorter)) => shorter,
            other => {
                // The present log is as good, but for its length. There may be no room for another.
                if let Err(error) = other {
                    tracing::warn!(error = chain(&error), "the kernel's log stays long");
                }
                log.stays_as_it_is();
                return Ok(at);
            }
        };
        self.open_part()?;
        log.is_moved(&self.folder);
        self.log = Some(log);
        Ok(then)
    }

    /// Has the folder in the making be the tenure's next part.
    fn open_part(&mut self) -> Result<(), StoreError> {
        // Also after an error: the folder may have its name.
        self.part += 1;
        self.folder = states::open_part(&self.kernel, &self.folder, self.tenure, self.part)?;
        self.replaced = Some(Replaced {
            state: None,
            stay_until: Instant::now() + PART_STAYS,
        });
        Ok(())
    }

    /// Removes earlier parts that nobody reads any more.
    fn remove_replaced(&mut self) {
        let is_over = |r: &Replaced| r.stay_until <= Instant::now();
        let Some(state) = self
            .replaced
            .as_ref()
            .filter(|r| is_over(r))
            .and_then(|r| r.state.clone())
        else {
            return;
        };
        self.replaced = None;
        match State::decode(state) {
            Ok(state) => states::remove_older(&self.kernel, &state),
            Err(error) => tracing::error!(error = chain(&error), "the state just written can't be read"),
        }
    }

    /// The replica wants to know whether the store can be written by now.
    fn try_at_once(&mut self) {
        let unopened = self.unopened.take();
        let tried = match unopened {
            _ if self.failed.is_none() => {
                self.tell(StoreEvent::Mended);
                Ok(())
            }
            Some(state) => self.open(&state),
            None => self.try_again(),
        };
        if let Err(error) = tried {
            self.tell(StoreEvent::StillFails(chain(&error)));
        }
    }

    /// The store failed a while ago. Its last records may be torn, so the log goes on in the tenure's next part.
    ///
    /// # Errors
    /// The store still can't be written.
    fn try_again(&mut self) -> Result<(), StoreError> {
        let written = self.probe().and_then(|()| {
            let state = self.unwritten.clone();
            self.open_part()?;
            state.map_or(Ok(()), |state| self.write_state(state))
        });
        match &written {
            Ok(()) => {
                self.failed = None;
                self.tell(StoreEvent::Mended);
            }
            Err(_) => {
                if let Some(failure) = &mut self.failed {
                    failure.pause = (2 * failure.pause).min(RETRY_MOST);
                    failure.again_at = failure.again_at.map(|_| Instant::now() + failure.pause);
                }
            }
        }
        written
    }

    /// Whether there is room, in the folder for the next part.
    fn probe(&self) -> Result<(), StoreError> {
        let path = states::make_part(&self.kernel)?.join(".probe");
        let file = std::fs::File::create(&path)?;
        let written = (&file).write_all(&vec![1; PROBE]).and_then(|()| file.sync_all());
        std::fs::remove_file(&path)?;
        Ok(written?)
    }

    fn open(&mut self, state: &State) -> Result<(), StoreError> {
        match states::open(&self.kernel, state) {
            Ok(folder) => {
                states::remove_older(&self.kernel, state);
                (self.folder, self.log, self.replaced) = (folder, None, None);
                (self.tenure, self.part) = (state.tenure(), 0);
                // The tenure's folder has a newer state.
                (self.unwritten, self.unopened) = (None, None);
                self.rest();
                self.tell(StoreEvent::Opened(self.tenure));
                if self.failed.take().is_some() {
                    self.tell(StoreEvent::Mended);
                }
                Ok(())
            }
            Err(OpenError::Taken(_)) => {
                self.tell(StoreEvent::Taken);
                Ok(())
            }
            Err(error) => {
                self.unopened = Some(Box::new(state.clone()));
                Err(StoreError::Open(error))
            }
        }
    }

    /// Collects in a thread of its own: all states are read for it, and all names of content.
    fn collect(&mut self) {
        let (Some(states), Ok(key)) = (self.kernel.parent().map(Path::to_owned), self.key()) else {
            return;
        };
        let content = self.content.clone();
        std::thread::spawn(move || upkeep::collect(&content, &states, &key));
    }
}

/// Begins the log of a tenure's part, behind the records of the state from which it goes on.
fn begin(key: &Key, kernel: &Path, folder: &Path, behind: Option<&Settled>) -> Result<Writer, WriteError> {
    match behind {
        Some(settled) => {
            let source = states::folder(kernel, settled.tenure, settled.part);
            Writer::go_on_compactly(folder, key, &source, settled.length, &settled.mac)
        }
        None => Writer::create(folder, key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_log::{Entry, Index};
    use hop_state::{form, garbage};
    use hop_words::id::{Incarnation, JobId};
    use std::os::unix::fs::MetadataExt;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    const KEY: [u8; 32] = [7; 32];

    struct World {
        tmp: tempfile::TempDir,
        store: Store,
        events: UnboundedReceiver<StoreEvent>,
    }

    fn in_office() -> State {
        let mut state = State::new();
        let incarnation = Incarnation(1);
        let join = Entry::Join {
            incarnation,
            seat: JobId(1),
            node: "n1".into(),
            hot: false,
        };
        state.apply(Index(1), &join).unwrap();
        let entry = Entry::Tenure {
            tenure: Tenure(1),
            executor: incarnation,
        };
        state.apply(Index(2), &entry).unwrap();
        state
    }

    fn world() -> World {
        let tmp = tempfile::tempdir().unwrap();
        let kernel = tmp.path().join("states/k");
        let folder = states::open(&kernel, &in_office()).unwrap();
        let (sender, events) = unbounded_channel();
        let store = Store {
            key: Some(Key::new(KEY)),
            ..Store::new(kernel, tmp.path().join("store"), Tenure(1), sender)
        };
        assert_eq!(store.folder, folder);
        World { tmp, store, events }
    }

    impl World {
        fn append(&mut self, number: u64, megabytes: u64, behind: Option<Settled>) {
            let chunks: Vec<String> = (0..megabytes.div_ceil(4))
                .map(|n| {
                    blake3::hash(format!("{number} {n}").as_bytes())
                        .to_hex()
                        .to_string()
                })
                .collect();
            let said = serde_json::json!({
                "at": 1.0, "gone": [], "process": {}, "inputs": {}, "env": null, "cell": null,
                "units": [{"u": 1, "m": ["n:a"], "s": {"in": [0, 0]}, "b": [[megabytes << 20, 0, chunks]], "f": [],
                    "c": [], "t": [], "gone": [], "notes": [], "types": [], "sec": 0.0, "dig": ""}],
            });
            let job = StoreJob::Append {
                number: RecordNumber(number),
                text: said.to_string().into(),
                body: Bytes::new(),
                behind,
            };
            self.does(job);
        }

        fn does(&mut self, job: StoreJob) {
            if let Err(error) = self.store.work(job) {
                self.store.fails(&error);
            }
        }

        fn told(&mut self) -> Vec<String> {
            let events = std::iter::from_fn(|| self.events.try_recv().ok());
            let said = |event| match event {
                StoreEvent::Synced(at) => format!("synced {} in {}", at.upto.0, at.part),
                StoreEvent::Failed(_) => "failed".to_owned(),
                StoreEvent::StillFails(_) => "still fails".to_owned(),
                StoreEvent::InSync(SyncNumber(number)) => format!("in sync {number}"),
                StoreEvent::Opened(tenure) => format!("opened {tenure}"),
                other => format!("{other:?}"),
            };
            events.map(said).collect()
        }

        fn parts(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.store.kernel).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        }

        fn records(&self) -> usize {
            let uid = std::fs::metadata(self.tmp.path()).unwrap().uid();
            form::read(&self.store.folder, &KEY, uid).unwrap().records
        }
    }

    fn of(part: u32, at: &Committed) -> Settled {
        Settled {
            tenure: Tenure(1),
            part,
            upto: RecordNumber(1),
            length: at.length,
            mac: at.mac.clone(),
        }
    }

    #[test]
    fn a_log_goes_on_in_the_next_part_once_replaced_content_outweighs_the_present() {
        let mut world = world();
        world.append(1, 300, None);
        world.does(StoreJob::Sync(SyncNumber(1)));
        assert_eq!(world.told(), ["synced 1 in 0", "in sync 1"]);
        world.append(2, 300, None);
        world.does(StoreJob::Sync(SyncNumber(1)));
        assert_eq!(world.told(), ["synced 2 in 1", "in sync 1"]);
        assert_eq!(world.parts(), ["1.0", "1.1"], "somebody may be reading the first");
        assert_eq!(states::newest(&world.store.kernel).unwrap(), Some(in_office()));
        world.append(3, 300, None);
        world.does(StoreJob::Sync(SyncNumber(1)));
        assert_eq!(
            (world.told(), world.records()),
            (vec!["synced 3 in 1".to_owned(), "in sync 1".to_owned()], 3)
        );

        let replaced = world.store.replaced.as_mut().unwrap();
        replaced.stay_until = Instant::now();
        world.store.on_time().unwrap();
        assert_eq!(
            world.parts(),
            ["1.0", "1.1"],
            "the state doesn't name the second yet"
        );
        let mut state = in_office();
        let act = hop_log::Act::Record {
            record: hop_log::Record {
                number: RecordNumber(1),
                payload: hop_log::Payload::Folder,
            },
            through: None,
        };
        let (tenure, sequence) = (Tenure(1), hop_log::Sequence(1));
        let entry = Entry::Act {
            tenure,
            sequence,
            act,
        };
        state.apply(Index(3), &entry).unwrap();
        let at = world.store.log.as_mut().unwrap().commit().unwrap();
        let settled = of(1, &at);
        state.apply(Index(4), &Entry::Settled { settled }).unwrap();
        world.does(StoreJob::WriteState(state.at_rest().encode()));
        assert_eq!(world.told(), ["Rested"]);
        assert_eq!(world.parts(), ["1.1"]);
        assert!(world.store.patience() > RETRY, "nothing is due");
    }

    #[test]
    fn a_state_that_was_not_brought_back_stays_where_its_user_was_told() {
        let mut world = world();
        world.append(1, 4, None);
        world.does(StoreJob::Sync(SyncNumber(1)));
        let told = world.store.folder.clone();
        world.does(StoreJob::Keep(told.clone()));
        let mut state = in_office();
        for tenure in [2, 3] {
            let entry = Entry::Tenure {
                tenure: Tenure(tenure),
                executor: Incarnation(1),
            };
            state.apply(state.applied().next(), &entry).unwrap();
            world.does(StoreJob::OpenTenure(Box::new(state.clone())));
        }
        assert_eq!(
            world.parts(),
            ["1.0", "3.0"],
            "nothing else of the earlier tenures stays"
        );
        let states = world.tmp.path().join("states");
        let (store, key) = (world.tmp.path().join("store"), Key::new(KEY));
        std::fs::create_dir(&store).unwrap();
        garbage::collect(&store, &states, &key, Duration::ZERO).expect("all of it is known");
        let uid = std::fs::metadata(world.tmp.path()).unwrap().uid();
        assert_eq!(form::read(&told, &KEY, uid).unwrap().records, 1);
    }

    #[test]
    fn a_failed_store_is_tried_again_and_the_log_goes_on_behind_what_is_whole() {
        let mut world = world();
        world.append(1, 0, None);
        world.does(StoreJob::Sync(SyncNumber(1)));
        let at = world.store.log.as_mut().unwrap().commit().unwrap();
        let hidden = world.tmp.path().join("away");
        std::fs::rename(&world.store.kernel, &hidden).unwrap();
        let state = in_office().encode();
        world.does(StoreJob::WriteState(state));
        world.append(2, 0, None);
        world.does(StoreJob::Sync(SyncNumber(1)));
        assert_eq!(
            world.told(),
            ["synced 1 in 0", "in sync 1", "failed", "in sync 1"]
        );
        let patience = world.store.patience();
        assert!(patience > RETRY / 2 && patience <= RETRY);

        let now = |store: &mut Store| store.failed.as_mut().unwrap().again_at = Some(Instant::now());
        now(&mut world.store);
        world.store.on_time().unwrap();
        assert_eq!(world.told(), [""; 0]);
        assert!(
            !world.store.kernel.exists(),
            "a closed kernel's folder doesn't come back"
        );
        assert!(world.store.patience() > RETRY, "the pauses grow");
        std::fs::rename(&hidden, &world.store.kernel).unwrap();
        now(&mut world.store);
        world.store.on_time().unwrap();
        assert_eq!(world.told(), ["Rested", "Mended"]);
        world.append(3, 0, Some(of(0, &at)));
        world.does(StoreJob::Sync(SyncNumber(1)));
        assert_eq!(
            (world.told(), world.records()),
            (vec!["synced 3 in 1".to_owned(), "in sync 1".to_owned()], 2)
        );
    }

    #[test]
    fn a_state_written_after_a_failed_one_answers_both_and_stays() {
        let mut world = world();
        let hidden = world.tmp.path().join("away");
        std::fs::rename(&world.store.kernel, &hidden).unwrap();
        world.does(StoreJob::WriteState(in_office().encode()));
        std::fs::rename(&hidden, &world.store.kernel).unwrap();
        let newer = in_office().at_rest();
        assert_ne!(newer, in_office());
        world.does(StoreJob::WriteState(newer.encode()));
        assert_eq!(world.told(), ["failed", "Rested", "Rested"]);

        world.store.failed.as_mut().unwrap().again_at = Some(Instant::now());
        world.store.on_time().unwrap();
        assert_eq!(world.told(), ["Mended"]);
        assert_eq!(states::newest(&world.store.kernel).unwrap(), Some(newer));
    }

    #[test]
    fn a_failed_store_is_tried_at_once_when_asked() {
        let mut world = world();
        world.does(StoreJob::TryAgain);
        assert_eq!(world.told(), ["Mended"], "it is not broken");
        world.append(1, 0, None);
        let hidden = world.tmp.path().join("away");
        std::fs::rename(&world.store.kernel, &hidden).unwrap();
        let state = in_office().encode();
        world.does(StoreJob::WriteState(state));
        world.does(StoreJob::TryAgain);
        assert_eq!(world.told(), ["failed", "still fails"]);
        std::fs::rename(&hidden, &world.store.kernel).unwrap();
        world.does(StoreJob::TryAgain);
        assert_eq!(world.told(), ["Rested", "Mended"]);
    }

    #[test]
    fn a_tenure_that_could_not_be_opened_is_opened_when_asked() {
        let mut world = world();
        let states = world.tmp.path().join("states");
        let hidden = world.tmp.path().join("away");
        std::fs::rename(&states, &hidden).unwrap();
        std::fs::write(&states, "").unwrap();
        world.does(StoreJob::OpenTenure(Box::new(in_office())));
        world.does(StoreJob::TryAgain);
        assert_eq!(world.told(), ["failed", "still fails"]);
        std::fs::remove_file(&states).unwrap();
        world.does(StoreJob::TryAgain);
        assert_eq!(world.told(), ["opened 1", "Mended"]);
        world.does(StoreJob::TryAgain);
        assert_eq!(world.told(), ["Mended"]);
    }

    #[test]
    fn a_tenure_that_could_not_be_opened_is_not_tried_again() {
        let mut world = world();
        let hidden = world.tmp.path().join("away");
        std::fs::rename(world.tmp.path().join("states"), &hidden).unwrap();
        std::fs::write(world.tmp.path().join("states"), "").unwrap();
        world.does(StoreJob::OpenTenure(Box::new(in_office())));
        assert_eq!(world.told(), ["failed"]);
        assert!(world.store.patience() > RETRY);
        std::fs::remove_file(world.tmp.path().join("states")).unwrap();
        world.does(StoreJob::OpenTenure(Box::new(in_office())));
        assert_eq!(world.told(), ["opened 1", "Mended"]);
    }
}
