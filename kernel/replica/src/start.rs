//! A replica's beginning: the kernel's process and state, and the way to the front. [`crate::run`] serves it from then
//! on.

use crate::child;
use crate::connected::{Process, author};
use crate::core::{Core, Durably, Identity, Input};
use crate::dial::{self, LinkEvent, Standing};
use crate::errands::Errands;
use crate::guard::Guard;
use crate::leases::Leases;
use crate::link::FrontLink;
use crate::log::{Log, SeatLink};
use crate::place::{Place, tenure_of};
use crate::progress::Progress;
use crate::run::{Inputs, LAST_WORDS, Replica};
use crate::seat::wire::FromSeat;
use crate::spare::Spare;
use crate::standby::{self, Comes};
use crate::store::StoreThread;
use anyhow::{Context, Result};
use hop_log::State;
use hop_protocol::file::{Durable, FrontFile};
use hop_protocol::link::{Frame, Item};
use hop_protocol::message::{Hello, Note, Over};
use hop_protocol::states;
use hop_protocol::step::Turn;
use hop_words::clock::SteadyClock;
use hop_words::error::chain;
use hop_words::id::Incarnation;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Time for a kernel that couldn't be started to wait for a front.
const START: Duration = Duration::from_secs(120);

/// A sentence for the user of a kernel that has no agent.
const NO_AGENT: &str = "Gresshopper's Python package isn't installed on its node";

/// All that a replica is given.
#[derive(Debug)]
pub struct Setup {
    /// `hop-replica` itself: it starts the kernel.
    pub program: PathBuf,
    pub dir: PathBuf,
    pub incarnation: Incarnation,
    pub file: FrontFile,
    pub place: Place,
    pub leases: Leases,
    /// A replica whose turn comes later waits with a process that is started already.
    pub turn: Turn,
    /// The connection to the seat's keeper, in Slurm.
    pub seat: Option<SeatLink>,
    /// The state of the kernel's group, if it has elected this replica.
    pub elected: Option<State>,
    /// A process that can become the kernel's.
    pub spare: Option<Spare>,
}

/// Runs the kernel until it is over; the front is told how.
pub async fn run(setup: Setup) -> Result<()> {
    Box::pin(run_kernel(setup)).await
}

async fn run_kernel(setup: Setup) -> Result<()> {
    // A limit on the size of files (`ulimit -f`) fails a write, and doesn't end the replica.
    let _too_large = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
    // Orphaned processes of the kernel become this process's children, and are ended with it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let Setup {
        program,
        dir,
        incarnation,
        mut file,
        place,
        leases,
        turn,
        mut seat,
        mut elected,
        spare,
    } = setup;
    let (link_tx, mut links) = mpsc::channel(8);
    tracing::info!(%incarnation, ?turn, "starts the kernel's process");
    let mut process = match spare {
        Some(spare) => by_spare(spare, &program, &file, leases.lends).await,
        None => Process::start(&program, &file, leases.lends),
    };
    let (mut first, mut restored, mut words) = (None, None, Vec::new());
    let mut dialler = Some(link_tx);
    if let Turn::Moved | Turn::Follows = turn {
        let waiting = process.as_mut().map_err(|e| anyhow::anyhow!(chain(&**e)))?;
        let said = place.hello(&file, incarnation);
        match Box::pin(standby::wait(waiting, seat.as_mut(), &file, said, &dir, turn)).await? {
            Comes::Called(called) => {
                (first, links, file, dialler) = (Some(called.up), called.links, called.file, None);
                if called.has_variables {
                    // These variables are of the group's log, but the new tenure goes on from the store: a fresh
                    // process is needed.
                    process = Process::start(&program, &file, leases.lends);
                }
            }
            Comes::Elected(office, to_executor) => {
                file = dial::read_front_file(&dir).await?;
                (elected, restored, words) = (Some(office.state), Some(office.restored), to_executor);
            }
        }
    }
    let is_elected = elected.is_some();
    let started = process.and_then(|process| {
        let durably = durably(&file, elected, restored)?;
        Ok((process, durably))
    });
    let (process, durably) = match started {
        Ok(started) => started,
        Err(error) => {
            // Nothing has begun: if this replica can't start, the group elects another executor.
            if is_elected {
                return Err(error);
            }
            if let Some(link_tx) = dialler.take() {
                let standing = Standing::Executes(tenure_of(&file));
                tokio::spawn(dial::dial(dir, incarnation, standing, link_tx));
            }
            let hello = place.hello(&file, incarnation);
            return not_started(hello, links, chain(&*error)).await;
        }
    };
    let begun = Begun {
        process,
        durably,
        file,
        is_elected,
        dialler,
        links,
        first,
        words,
    };
    let at = (program, dir, incarnation, place);
    serve(begun, at, leases, seat).await
}

/// A kernel whose process runs, and whose state is read.
struct Begun {
    process: Process,
    durably: Option<Durably>,
    file: FrontFile,
    is_elected: bool,
    dialler: Option<mpsc::Sender<LinkEvent>>,
    links: mpsc::Receiver<LinkEvent>,
    /// The connection over which the front has called a standby.
    first: Option<LinkEvent>,
    /// The seat's earlier words to the executor.
    words: Vec<FromSeat>,
}

/// Makes the replica, and serves the kernel until it is over.
async fn serve(
    begun: Begun,
    (program, dir, incarnation, place): (PathBuf, PathBuf, Incarnation, Place),
    leases: Leases,
    seat: Option<SeatLink>,
) -> Result<()> {
    let Begun {
        process,
        durably,
        file,
        is_elected,
        dialler,
        links,
        first,
        words,
    } = begun;
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
        guard: Guard::default(),
        dialler,
        leaving: false,
        progress: Progress::default(),
        file,
    };
    if is_elected {
        // The front is told once the tenure's folder is ready for it to read.
        replica.handle(Input::Elected).await;
        for word in words {
            replica.on_seat(word).await;
        }
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

/// The spare becomes the kernel; if it can't, a fresh process is started.
async fn by_spare(spare: Spare, program: &Path, file: &FrontFile, lends: bool) -> Result<Process> {
    match spare.become_kernel(file).await {
        Ok(process) => Ok(process),
        Err(error) => {
            tracing::info!("the spare isn't used: {error:#}");
            Process::start(program, file, lends)
        }
    }
}

/// The state of our tenure: from the group that has elected us, or from the folder of the tenure that the front has
/// opened. `restored` is the report of the kernel's process on its variables, if the process has followed the log.
fn durably(
    file: &FrontFile,
    elected: Option<State>,
    restored: Option<serde_json::Value>,
) -> Result<Option<Durably>> {
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
        stores: folder.stores.clone(),
        before_reply: file.launch.durable == Durable::BeforeReply,
        found_again: states::is_found_again(&folder.kernel),
        silent: (!child::has_agent(&file.launch)).then(|| NO_AGENT.to_owned()),
        restored,
    }))
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
                let _ = out
                    .frames
                    .send(Frame::Item(1, Item::Note(Note::KernelOver { over })));
                sleep(LAST_WORDS).await;
                break;
            }
            LinkEvent::Down | LinkEvent::Over(_) => break,
        }
    }
    anyhow::bail!(reason)
}
