//! A replica in wait of its turn in a seat, with a started and heard process: for the kernel's move there, or as the
//! kernel's hot standby.
//!
//! Without a group the process has no variables yet. The front welcomes the replica after opening the tenure for it. A
//! seat that is a member of the kernel's group has the process follow the log ([`crate::core::following`]) until the
//! log elects the member. The front hears nothing of a hot standby before that.

use crate::agent::Parcel;
use crate::ahead;
use crate::connected::{PROBE_EVERY, Process};
use crate::core::following::{Elected, Following, Input, Output};
use crate::dial::{self, LinkEvent, Standing};
use crate::log::SeatLink;
use crate::seat::wire::FromSeat;
use crate::sockets::FromKernel;
use anyhow::{Context, Result, bail};
use hop_protocol::file::FrontFile;
use hop_protocol::message::Hello;
use hop_protocol::step::Turn;
use hop_words::id::Incarnation;
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, sleep_until};

/// A home on the network may show a file that was replaced for a while longer.
const FILE_SEEN: Duration = Duration::from_secs(30);

/// An elected follower's process applies the last records within this time, or another replica is started in the seat.
/// The front waits a little longer for an executor before it opens the kernel anew from the store.
const READS_WITHIN: Duration = Duration::from_secs(10);

/// Waits until the kernel's process listens.
async fn heard(process: &mut Process) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut connected = false;
    let mut probe = interval(PROBE_EVERY);
    loop {
        tokio::select! {
            status = process.kernel.wait() => {
                bail!("the kernel's process ended before it was heard: {}", process.kernel.reason(status?));
            }
            _ = process.sockets.reaches_iopub() => connected = true,
            event = process.events.recv() => {
                let (socket, event) = event.context("the kernel's sockets are closed")?;
                if let Some(FromKernel::Heard) = process.sockets.sort(socket, event) {
                    process.heard = true;
                    return Ok(());
                }
            }
            _ = probe.tick(), if connected => process.sockets.probe().await,
            _ = terminate.recv() => bail!("the step was ended while it waited"),
        }
    }
}

/// How the replica's turn comes.
pub(crate) enum Comes {
    Called(Box<Called>),
    /// The kernel's group has elected this replica's seat, and the process has the variables. With the seat's words to
    /// its executor since the election.
    Elected(Box<Elected>, Vec<FromSeat>),
}

/// The front has given this replica the kernel's tenure.
pub(crate) struct Called {
    /// The first connection.
    pub(crate) up: LinkEvent,
    /// The dialler's further events.
    pub(crate) links: mpsc::Receiver<LinkEvent>,
    /// The front's file, which by then names the tenure.
    pub(crate) file: FrontFile,
    pub(crate) has_variables: bool,
}

/// Waits for this replica's turn, with an empty process or, in a seat that is a member of the kernel's group, with a
/// process that follows the log.
pub(crate) async fn wait(
    process: &mut Process,
    seat: Option<&mut SeatLink>,
    file: &FrontFile,
    hello: Hello,
    dir: &Path,
    turn: Turn,
) -> Result<Comes> {
    let (me, folder) = (hello.incarnation, file.state.as_ref());
    if let (Turn::Moved, Some(folder)) = (turn, folder) {
        ahead::read(folder.clone());
    }
    heard(process).await?;
    let mut wait = Wait {
        terminate: signal(SignalKind::terminate())?,
        hello,
        dir,
        turn,
        dialler: None,
    };
    if let (Some(seat), Some(folder)) = (seat, folder)
        && let Some(state) = seat.attached(&file.kernel, me, turn).await
    {
        let following = Following::new(me, state, folder.kernel.clone(), folder.stores.clone());
        return wait.follow(process, seat, following).await;
    }
    if turn == Turn::Follows {
        bail!("the kernel's group has no place for a hot standby here");
    }
    wait.dial(Standing::Waits);
    let called = wait.called(process).await?;
    Ok(Comes::Called(Box::new(called)))
}

/// A replica that waits.
struct Wait<'a> {
    terminate: Signal,
    hello: Hello,
    dir: &'a Path,
    turn: Turn,
    dialler: Option<Dialler>,
}

struct Dialler {
    task: JoinHandle<()>,
    links: mpsc::Receiver<LinkEvent>,
}

impl Wait<'_> {
    /// Dials the front.
    fn dial(&mut self, standing: Standing) {
        let (events, links) = mpsc::channel(8);
        let (dir, me) = (self.dir.to_owned(), self.hello.incarnation);
        let task = tokio::spawn(dial::dial(dir, me, standing, events));
        self.dialler = Some(Dialler { task, links });
    }

    /// Waits until the front gives this replica the kernel's tenure.
    async fn called(mut self, process: &mut Process) -> Result<Called> {
        let up = loop {
            tokio::select! {
                status = process.kernel.wait() => {
                    bail!("the kernel's process ended while it waited: {}", process.kernel.reason(status?));
                }
                event = next(&mut self.dialler) => if let Some(up) = self.on_link(event)? {
                    break up;
                },
                _ = self.terminate.recv() => bail!("the step was ended while it waited"),
            }
        };
        self.called_by(up, false).await
    }

    async fn called_by(self, up: LinkEvent, has_variables: bool) -> Result<Called> {
        let links = self.dialler.context("nobody has dialled")?.links;
        Ok(Called {
            up,
            links,
            file: file_for(self.dir, self.hello.incarnation).await?,
            has_variables,
        })
    }

    /// Answers the dialler. Returns the connection once there is one.
    fn on_link(&self, event: Option<LinkEvent>) -> Result<Option<LinkEvent>> {
        match event.context("the dialler ended")? {
            LinkEvent::WantsHello(answer) => {
                // The dialler may be gone first.
                drop(answer.send(Hello {
                    standby: true,
                    ..self.hello.clone()
                }));
                Ok(None)
            }
            up @ LinkEvent::Up { .. } => Ok(Some(up)),
            LinkEvent::Down => Ok(None),
            LinkEvent::Over(gone) => bail!("the front doesn't want this replica: {gone:?}"),
        }
    }

    /// Follows the log. As soon as the process has the variables, the kernel's group hears so of a hot standby, and the
    /// front of a replica to move to.
    async fn follow(
        mut self,
        process: &mut Process,
        seat: &mut SeatLink,
        mut following: Following,
    ) -> Result<Comes> {
        let (mut elected_at, mut to_executor) = (None, Vec::new());
        loop {
            let late = elected_at.map(|at: Instant| at + READS_WITHIN);
            let input = tokio::select! {
                status = process.kernel.wait() => {
                    bail!("the kernel's process ended while it followed: {}", process.kernel.reason(status?));
                }
                // Without a tenure the process's messages are for nobody.
                event = process.events.recv() => {
                    event.context("the kernel's sockets are closed")?;
                    continue;
                }
                parcel = heard_from(&mut process.agent) => {
                    Input::Agent(parcel.context("the agent in the kernel is gone")?)
                }
                word = seat.input.recv() => match word.context("the seat's keeper is gone")? {
                    FromSeat::State { state, .. } => Input::State(*state),
                    FromSeat::Applied { index, entry } => Input::Applied { index, entry },
                    FromSeat::Alone => bail!("no hot standby is needed here any more"),
                    word @ (FromSeat::Standing(_) | FromSeat::Need(_)) => {
                        to_executor.push(word);
                        continue;
                    }
                    FromSeat::Failed(_) | FromSeat::Become(_) | FromSeat::FormerGone => continue,
                },
                event = next(&mut self.dialler) => match self.on_link(event)? {
                    Some(up) => {
                        let called = self.called_by(up, true).await?;
                        return Ok(Comes::Called(Box::new(called)));
                    }
                    None => continue,
                },
                () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                    bail!("the kernel's process has not read its variables in time");
                }
                _ = self.terminate.recv() => bail!("the step was ended while it followed"),
            };
            for output in following.handle(input) {
                match output {
                    // The loop above notices a lost agent.
                    Output::ToAgent(parcel) => drop(process.to_agent.send(parcel)),
                    Output::Follows => {
                        tracing::info!("the process follows the kernel's log");
                        match (self.turn, following.hot()) {
                            (Turn::Follows, Some(entry)) => seat.propose(entry),
                            _ => self.dial(Standing::Follows),
                        }
                    }
                    Output::Elected(elected) => {
                        if let Some(dialler) = self.dialler.take() {
                            dialler.task.abort();
                        }
                        return Ok(Comes::Elected(elected, to_executor));
                    }
                    Output::Fails(why) => bail!("the kernel's log can't be followed: {why}"),
                }
            }
            elected_at = following
                .is_elected()
                .then(|| elected_at.unwrap_or_else(Instant::now));
        }
    }
}

async fn next(dialler: &mut Option<Dialler>) -> Option<LinkEvent> {
    match dialler {
        Some(dialler) => dialler.links.recv().await,
        None => std::future::pending().await,
    }
}

async fn heard_from(agent: &mut Option<mpsc::Receiver<Parcel>>) -> Option<Parcel> {
    match agent {
        Some(agent) => agent.recv().await,
        None => None,
    }
}

async fn file_for(dir: &Path, me: Incarnation) -> Result<FrontFile> {
    let since = Instant::now();
    loop {
        let file = dial::read_front_file(dir).await?;
        if file.incarnation == me {
            return Ok(file);
        }
        if since.elapsed() > FILE_SEEN {
            bail!(
                "front.json names replica {} and not this one ({me})",
                file.incarnation
            );
        }
        sleep(Duration::from_millis(20)).await;
    }
}
