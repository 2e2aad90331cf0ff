//! The replica's main loop: one task that owns sockets and processes and never waits for anybody. [`crate::core`]
//! decides; this module carries out. The kernel's messages are taken as fast as they come, because ipykernel's
//! publisher drops messages that nobody takes.

use crate::connected::{PROBE_EVERY, Process};
use crate::core::{Core, ErrandEnd, Exit, Input, Output};
use crate::dial::{self, Gone, LinkEvent, Standing};
use crate::errands::Errands;
use crate::guard::Guard;
use crate::leases::News;
use crate::link::{self, FrontLink};
use crate::log::Log;
use crate::place::Place;
use crate::process::end_children;
use crate::progress::Progress;
use crate::seat::wire::FromSeat;
use crate::sockets::FromKernel;
use crate::store::{StoreEvent, StoreJob, StoreThread};
use crate::{grace, leavings};
use anyhow::{Context, Result};
use bytes::Bytes;
use hop_api::message::Request as ToHopd;
use hop_log::Index;
use hop_protocol::file::FrontFile;
use hop_protocol::link::{Frame, Item};
use hop_protocol::message::{Hello, Note};
use hop_protocol::wait;
use hop_words::clock::SteadyClock;
use hop_words::id::Incarnation;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

/// The time for reading the last messages of a dead kernel, and for a front to take them.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);

/// Messages of the kernel that are taken before anybody else is looked at.
const BATCH: usize = 64;

/// One replica at work.
pub(crate) struct Replica {
    pub(crate) program: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) file: FrontFile,
    pub(crate) incarnation: Incarnation,
    pub(crate) place: Place,
    pub(crate) lends: bool,
    pub(crate) clock: SteadyClock,
    pub(crate) core: Core,
    pub(crate) link: FrontLink,
    pub(crate) process: Process,
    pub(crate) errands: Errands,
    /// Ends of errands, each with the pid of its kernel.
    pub(crate) errand_ends: mpsc::UnboundedSender<(u32, ErrandEnd)>,
    pub(crate) to_hopd: mpsc::UnboundedSender<ToHopd>,
    /// `None` means a kernel without a log.
    pub(crate) store: Option<StoreThread>,
    pub(crate) log: Log,
    pub(crate) guard: Guard,
    /// Sender for the dialler's events, until the dialler is started.
    pub(crate) dialler: Option<mpsc::Sender<LinkEvent>>,
    pub(crate) leaving: bool,
    pub(crate) progress: Progress,
}

/// The receiving ends of channels.
pub(crate) struct Inputs {
    /// `None` after the end of the last front.
    pub(crate) links: Option<mpsc::Receiver<LinkEvent>>,
    pub(crate) frames: Option<mpsc::Receiver<Frame>>,
    pub(crate) news: mpsc::UnboundedReceiver<News>,
    pub(crate) errands: mpsc::UnboundedReceiver<(u32, ErrandEnd)>,
    pub(crate) store: mpsc::UnboundedReceiver<StoreEvent>,
    pub(crate) seat: Option<mpsc::UnboundedReceiver<FromSeat>>,
}

impl Replica {
    pub(crate) async fn main_loop(&mut self, mut inputs: Inputs) -> Result<()> {
        while !self.leaving {
            self.serve_process(&mut inputs).await?;
        }
        self.until_taken(&mut inputs).await;
        self.end_descendants();
        self.log.end().await;
        let me = (self.incarnation, self.core.tenure());
        if inputs.links.is_none() && !self.core.has_successor() {
            leavings::see_to(&self.dir, &self.file, me, &self.link);
        } else if !self.link.is_settled() {
            leavings::see_to_words(&self.dir, &self.file, me, &self.link);
        }
        Ok(())
    }

    /// Serves one process of the kernel, until the process has ended or the replica is to leave.
    async fn serve_process(&mut self, inputs: &mut Inputs) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut probe_at = None;
        if self.process.heard {
            let pid = self.process.kernel.pid();
            self.handle(Input::KernelUp { pid }).await;
        }
        while !self.leaving {
            let starting = self.core.is_starting();
            let due = self.core.due().map(|at| wait::instant(at, self.clock.now()));
            tokio::select! {
                status = self.process.kernel.wait() => {
                    let status = status.context("can't wait for the kernel")?;
                    return self.kernel_ended(status).await;
                }
                (socket, event) = wait::some(self.process.events.recv()) => {
                    let sorted = self.process.sockets.sort(socket, event);
                    self.on_kernel(sorted).await;
                    // Further messages, already there. The other inputs get their turn after BATCH of them.
                    for _ in 0..BATCH {
                        let Ok((socket, event)) = self.process.events.try_recv() else { break };
                        let sorted = self.process.sockets.sort(socket, event);
                        self.on_kernel(sorted).await;
                    }
                },
                frame = wait::on(&mut inputs.frames, mpsc::Receiver::recv) => match frame {
                    Some(frame) => {
                        // A later message may come from a client that saw the kernel die.
                        let ended = self.kernel_is_over().await?;
                        self.on_front(frame).await;
                        if ended {
                            return Ok(());
                        }
                    }
                    None => inputs.frames = None,
                },
                event = wait::on(&mut inputs.links, mpsc::Receiver::recv) => {
                    let (before, _) = self.link.position();
                    if let Some(reason) = self.on_link(event, &mut inputs.frames) {
                        inputs.links = None;
                        self.abandoned(reason).await;
                    } else if before != 0 && self.link.position().0 != before {
                        self.handle(Input::FrontChanged).await;
                    }
                }
                news = wait::some(inputs.news.recv()) => self.handle(Input::Hopd(news)).await,
                parcel = wait::on(&mut self.process.agent, mpsc::Receiver::recv) => match parcel {
                    Some(parcel) => self.handle(Input::Agent(parcel)).await,
                    None => self.process.agent = None,
                },
                (pid, end) = wait::some(inputs.errands.recv()) => self.on_errand(pid, end).await,
                word = wait::on(&mut inputs.seat, mpsc::UnboundedReceiver::recv) => match word {
                    Some(word) => self.on_seat(word).await,
                    None => {
                        inputs.seat = None;
                        self.seat_is_gone().await;
                    }
                },
                event = wait::some(inputs.store.recv()) => self.on_store(event).await,
                reached = self.process.sockets.reaches_iopub() => {
                    probe_at = Some(Instant::now() + PROBE_EVERY);
                    if let Some(input) = reached.input() {
                        self.handle(input).await;
                    }
                }
                () = wait::at(probe_at), if starting => {
                    self.process.sockets.probe().await;
                    probe_at = Some(Instant::now() + PROBE_EVERY);
                }
                () = wait::at(due) => self.handle(Input::Tick).await,
                () = self.link.has_room() => self.link.hand_over(),
                _ = terminate.recv() => {
                    let grace = grace::of_the_seat().await;
                    self.handle(Input::Terminated { grace }).await;
                }
            }
            self.link.acknowledge(self.core.keeps_back());
        }
        Ok(())
    }

    pub(crate) async fn handle(&mut self, input: Input) {
        self.decide(input).await;
        // One replica is a majority of itself.
        while let Some(entry) = self.log.committed() {
            let index = Index(self.core.applied_index().0 + 1);
            self.decide(Input::Applied { index, entry }).await;
        }
    }

    async fn decide(&mut self, input: Input) {
        let was_starting = self.core.is_starting();
        self.progress.before(&input);
        let outputs = self.core.handle(input, self.clock.now());
        self.log.rests(self.core.rests());
        for output in outputs {
            self.progress.carries_out(&output, &self.core);
            self.carry_out(output).await;
        }
        self.progress.after(&self.core);
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
            // A lost kernel needs no answer.
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
            Output::AskFormer => self.log.ask_former(),
            Output::Guard(at) => self.guard.set(at, self.clock),
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
            Output::Sync(number) => self.store_job(StoreJob::Sync(number)),
            Output::TryStore => self.store_job(StoreJob::TryAgain),
            Output::WriteState { state } => self.store_job(StoreJob::WriteState(state)),
            Output::OpenTenure { state } => self.store_job(StoreJob::OpenTenure(Box::new(state))),
            Output::KeepState(folder) => self.store_job(StoreJob::Keep(folder)),
            Output::Leave => self.leaving = true,
        }
    }

    fn store_job(&self, job: StoreJob) {
        if let Some(store) = &self.store {
            store.send(job);
        }
    }

    /// Has the front found, and kept.
    pub(crate) fn dial(&mut self) {
        if let Some(events) = self.dialler.take() {
            let standing = Standing::Executes(self.core.tenure());
            tokio::spawn(dial::dial(self.dir.clone(), self.incarnation, standing, events));
        }
    }

    async fn on_errand(&mut self, pid: u32, end: ErrandEnd) {
        tracing::info!(?end, "hop gpu");
        // An errand for a dead process says nothing of the next process.
        if pid == self.process.kernel.pid() {
            self.handle(Input::Errand(end)).await;
        }
    }

    /// The seat's job ends, and the step with the job; or the seat's release doesn't understand the replica.
    async fn seat_is_gone(&mut self) {
        self.handle(Input::KeeperGone).await;
        if self.log.is_founding() {
            self.on_seat(FromSeat::Failed("the seat's keeper is gone".into()))
                .await;
        }
    }

    pub(crate) async fn on_seat(&mut self, word: FromSeat) {
        if self.log.is_given_up() {
            return;
        }
        let input = match word {
            // Said to spares and standbys alone.
            FromSeat::Alone | FromSeat::Become(_) => return,
            FromSeat::State { state, hears } => {
                self.log.founded(hears);
                Input::GroupState(state)
            }
            FromSeat::Applied { index, entry } => Input::Applied { index, entry },
            FromSeat::Standing(standing) => Input::GroupStanding(standing),
            FromSeat::Need(lack) => Input::Lacks(lack),
            FromSeat::FormerGone => Input::FormerGone,
            FromSeat::Failed(why) => {
                tracing::warn!(why, "the kernel stays with one replica");
                self.log.not_founded();
                Input::NotFounded
            }
        };
        self.handle(input).await;
    }

    async fn on_store(&mut self, event: StoreEvent) {
        if matches!(event, StoreEvent::Opened(_) | StoreEvent::Failed(_)) {
            self.dial();
        }
        let input = match event {
            StoreEvent::Synced(at) => Input::Synced(at),
            StoreEvent::InSync(number) => Input::InSync(number),
            StoreEvent::Rested => Input::Rested,
            StoreEvent::Opened(tenure) => Input::TenureOpened(tenure),
            // Another front has opened the next tenure: this replica is deposed.
            StoreEvent::Taken => {
                tracing::warn!("another replica has taken this one's place");
                self.leaving = true;
                return;
            }
            StoreEvent::Failed(why) => Input::StoreFailed(why),
            StoreEvent::Mended => Input::StoreMended,
            StoreEvent::StillFails(why) => Input::StoreStillFails(why),
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
        if let Some(message) = message {
            let input = message.input(self.process.kernel.pid());
            self.handle(input).await;
        }
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
            Some(Item::Note(Note::ClientGone { identity })) => {
                let identity: Bytes = hex::decode(identity).unwrap_or_default().into();
                return self.process.sockets.forget(&identity);
            }
            Some(Item::Note(note)) => match link::input_of(note) {
                Some(input) => input,
                None => return,
            },
        };
        self.handle(input).await;
    }

    /// Follows the connection to the front. Returns the reason why no front exists any more.
    pub(crate) fn on_link(
        &mut self,
        event: Option<LinkEvent>,
        frames: &mut Option<mpsc::Receiver<Frame>>,
    ) -> Option<Gone> {
        match event {
            Some(LinkEvent::WantsHello(answer)) => {
                *frames = None; // What isn't taken by now is sent once more.
                drop(answer.send(self.hello()));
            }
            Some(LinkEvent::Up {
                epoch,
                taken,
                again,
                count,
                out,
                input,
            }) => {
                tracing::info!("the front is there");
                self.core.clients_have_read(count);
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
        let hello = self.place.hello(&self.file, self.incarnation);
        self.link.introduces(self.core.introduces(hello))
    }

    // The end.

    /// Checks whether the kernel's process has ended, and if so handles the end.
    async fn kernel_is_over(&mut self) -> Result<bool> {
        match self.process.kernel.ended() {
            Some(status) => self.kernel_ended(status).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// The kernel's process is over: its last messages go out, then the core hears of its end.
    async fn kernel_ended(&mut self, status: ExitStatus) -> Result<()> {
        let until = Instant::now() + LAST_WORDS;
        // The kernel's sockets close once they are read to the end, so the loop ends as soon as all are closed.
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

    /// Waits until the front has everything, or there is no front any more. A front that stands still is waited for as
    /// long as an absent one, counted from the last word of the connection: its absence is known by then.
    async fn until_taken(&mut self, inputs: &mut Inputs) {
        let mut patience = Instant::now() + dial::KNOWS_WITHIN;
        while !self.link.is_settled() && inputs.links.is_some() {
            tokio::select! {
                frame = wait::on(&mut inputs.frames, mpsc::Receiver::recv) => match frame {
                    Some(frame) => drop(self.link.take(frame)),
                    None => inputs.frames = None,
                },
                event = wait::on(&mut inputs.links, mpsc::Receiver::recv) => {
                    patience = Instant::now() + dial::KNOWS_WITHIN;
                    if self.on_link(event, &mut inputs.frames).is_some() {
                        inputs.links = None;
                    }
                }
                () = self.link.has_room() => self.link.hand_over(),
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

    /// Ends the kernel's child processes, wherever they went: as a subreaper we are their parent now.
    fn end_descendants(&self) {
        self.process.kernel.kill();
        end_children();
        // The record of a park is kept for a process that could be brought back, and this process is gone.
        hop_gpu::record::forget(rustix::process::getuid().as_raw(), self.process.kernel.pid());
    }
}
