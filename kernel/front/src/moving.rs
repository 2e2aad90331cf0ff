//! Carries out the moves that [`crate::moves`] decides: replicas that are prepared elsewhere, wait for the front's
//! answer, and get the kernel's tenure.

use crate::launch::{self, Order, Prepared};
use crate::moves::{Act, Input, Moves};
use hop_protocol::link::Item;
use hop_protocol::message::{Hello, Note, Welcome};
use hop_protocol::wait;
use hop_words::error::chain;
use hop_words::id::Incarnation;
use hop_words::replica::SeatPlan;
use std::time::Duration;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The end of a preparation.
pub(crate) type Preparation = (Incarnation, anyhow::Result<Prepared>);

/// A started replica connects within this time, after the kernel's process is up.
const CONNECTS: Duration = Duration::from_secs(45);

/// A living replica that has hung up connects again within this time.
const COMES_BACK: Duration = Duration::from_secs(5);

/// A replica in wait of the front's answer.
type Asking = (Hello, oneshot::Sender<Welcome>);

/// Preparations for the move under way, if any.
pub(crate) struct Moving {
    moves: Moves,
    ends: mpsc::UnboundedSender<Preparation>,
    /// The task that takes the seat; dropped when it isn't needed.
    task: Option<JoinHandle<()>>,
    prepared: Option<Prepared>,
    /// The prepared replica, once it waits for the front's answer.
    waits: Option<Asking>,
    /// The latest time for the prepared replica to connect. `None` means that the replica already waits for the answer.
    due: Option<Instant>,
}

impl Moving {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Preparation>) {
        let (ends, incoming) = mpsc::unbounded_channel();
        let moving = Self {
            moves: Moves::default(),
            ends,
            task: None,
            prepared: None,
            waits: None,
            due: None,
        };
        (moving, incoming)
    }

    /// Waits until a prepared replica is gone: the process has ended, or doesn't connect. The process is an srun,
    /// which may outlive the replica's node by minutes.
    pub(crate) async fn gone(&mut self) -> Incarnation {
        let Some(prepared) = &mut self.prepared else {
            return std::future::pending().await;
        };
        tokio::select! {
            // An error means that the process is gone.
            _ = prepared.process.wait() => {}
            () = wait::at(self.due) => {}
        }
        prepared.place.incarnation
    }

    /// The replica of this incarnation has hung up. After a lost connection it may connect again, or may
    /// have done so already.
    pub(crate) fn left(&mut self, incarnation: Incarnation) {
        let hung_up = |(hello, answer): &mut Asking| hello.incarnation == incarnation && answer.is_closed();
        if self.waits.take_if(hung_up).is_some() {
            self.due = Some(Instant::now() + COMES_BACK);
        }
    }

    /// Takes in an event. Returns the items for the kernel's replica.
    pub(crate) fn handle(&mut self, input: Input) -> Vec<Item> {
        let acts = self.moves.handle(input);
        acts.into_iter().filter_map(|act| self.carry_out(act)).collect()
    }

    fn carry_out(&mut self, act: Act) -> Option<Item> {
        match act {
            Act::Ready(incarnation) => Some(Item::Note(Note::MoveReady { incarnation })),
            Act::Failed(incarnation, reason) => {
                tracing::info!(%incarnation, reason, "the kernel doesn't move");
                Some(Item::Note(Note::MoveFailed { incarnation, reason }))
            }
            Act::Drop(_) => {
                self.drop_prepared();
                None
            }
            // [`Self::asked`], [`Self::start`] and [`Self::elected`] do these.
            Act::Prepare(_) | Act::Switch(_) | Act::Adopt(_) => None,
        }
    }

    /// The kernel's replica asks for a move into this seat, and `member` for no other.
    pub(crate) fn asked(&mut self, plan: SeatPlan, member: bool, order: Order) -> Vec<Item> {
        let incarnation = plan.incarnation;
        let said = self.handle(Input::Asked(incarnation));
        if self.moves.expects(incarnation) {
            let ends = self.ends.clone();
            self.task = Some(tokio::spawn(prepare(order, plan, member, ends)));
        }
        said
    }

    /// A seat is taken, or can't be.
    pub(crate) fn prepared(&mut self, (incarnation, done): Preparation) -> Vec<Item> {
        match done {
            Ok(prepared) if self.moves.expects(incarnation) => {
                self.prepared = Some(prepared);
                if self.waits.is_none() {
                    self.due = Some(Instant::now() + CONNECTS);
                }
                self.handle(Input::Prepared(incarnation))
            }
            // It was given up meanwhile.
            Ok(prepared) => {
                tokio::spawn(launch::end_srun(prepared.process));
                Vec::new()
            }
            Err(error) => self.handle(Input::NotPrepared(incarnation, chain(&*error))),
        }
    }

    /// A waiting replica connects. Its welcome comes once the tenure is its own.
    pub(crate) fn asks(&mut self, hello: Hello, answer: oneshot::Sender<Welcome>) -> Vec<Item> {
        let incarnation = hello.incarnation;
        tracing::info!(%incarnation, "the move's replica waits");
        (self.waits, self.due) = (Some((hello, answer)), None);
        self.handle(Input::Waits(incarnation))
    }

    pub(crate) fn expects(&self, incarnation: Incarnation) -> bool {
        self.moves.expects(incarnation)
    }

    /// Starts the waiting replica, if any. `None` means that another must be found.
    pub(crate) fn start(&mut self) -> Option<Prepared> {
        let acts = self.moves.handle(Input::Start);
        match acts.first() {
            Some(Act::Switch(incarnation)) => {
                tracing::info!(%incarnation, "the old replica has left, and the waiting one takes over");
                self.due = None;
                self.prepared.take()
            }
            Some(_) => {
                self.drop_prepared();
                None
            }
            None => None,
        }
    }

    /// The kernel's group has elected this replica. Returns the replica's process, if this front prepared it.
    pub(crate) fn elected(&mut self, incarnation: Incarnation) -> Option<Child> {
        let acts = self.moves.handle(Input::Elected(incarnation));
        match acts.first() {
            Some(Act::Adopt(_)) => {
                (self.waits, self.due) = (None, None);
                self.prepared.take().map(|prepared| prepared.process)
            }
            Some(_) => {
                self.drop_prepared();
                None
            }
            None => None,
        }
    }

    /// The replica that waits for the answer, whose tenure is open now.
    pub(crate) fn take_asking(&mut self, incarnation: Incarnation) -> Option<Asking> {
        self.waits.take_if(|(hello, _)| hello.incarnation == incarnation)
    }

    fn drop_prepared(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        // If the replica still waits, its connection closes, and it ends.
        (self.waits, self.due) = (None, None);
        if let Some(prepared) = self.prepared.take() {
            tokio::spawn(launch::end_srun(prepared.process));
        }
    }

    /// The front ends.
    pub(crate) async fn end(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        if let Some(prepared) = self.prepared.take() {
            launch::end_srun(prepared.process).await;
        }
    }
}

async fn prepare(order: Order, plan: SeatPlan, member: bool, ends: mpsc::UnboundedSender<Preparation>) {
    let incarnation = plan.incarnation;
    let done = launch::prepare(&order, &plan, member).await;
    // The front may have ended first.
    let _ = ends.send((incarnation, done));
}
