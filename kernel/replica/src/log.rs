//! The kernel's log as its executor reaches it: alone, where every proposal is taken at once, or in a group, by the
//! keeper of the seat.

use crate::seat::wire::{FromSeat, Hears, ToSeat};
use hop_log::{Entry, State};
use hop_protocol::step::Turn;
use hop_words::id::{Incarnation, KernelId};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A seat of this release answers at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The last words to the keeper take so long at most.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The connection to the seat's keeper. The place in the seat is held as long as it.
#[derive(Debug)]
pub struct SeatLink {
    out: mpsc::UnboundedSender<ToSeat>,
    pub(crate) input: mpsc::UnboundedReceiver<FromSeat>,
    writer: JoinHandle<()>,
    hears: Hears,
}

impl SeatLink {
    /// Speaks over the connection of [`crate::seat::take_place`].
    pub fn new(stream: UnixStream) -> Self {
        let (read, mut write) = stream.into_split();
        let (out, mut queue) = mpsc::unbounded_channel::<ToSeat>();
        let (tell, input) = mpsc::unbounded_channel();
        let writer = tokio::spawn(async move {
            while let Some(word) = queue.recv().await {
                if write.write_all(&word.encode()).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(async move {
            let mut read = BufReader::new(read);
            loop {
                match FromSeat::read(&mut read).await {
                    Ok(word) => {
                        if tell.send(word).is_err() {
                            return;
                        }
                    }
                    Err(error) => return tracing::info!(%error, "the seat's keeper is gone"),
                }
            }
        });
        Self {
            out,
            input,
            writer,
            hears: Hears::default(),
        }
    }

    /// The state of the group that elected this replica. `None` means that no group elected it.
    pub async fn elected(&mut self, kernel: &KernelId, incarnation: Incarnation) -> Option<State> {
        let state = self.attached(kernel, incarnation, Turn::Elected).await?;
        (state.executor() == Some(incarnation)).then_some(state)
    }

    /// The state of the group in which the seat is a member by this number; news of the log follow. `None` means no
    /// such group, or another process attached before.
    pub(crate) async fn attached(
        &mut self,
        kernel: &KernelId,
        incarnation: Incarnation,
        turn: Turn,
    ) -> Option<State> {
        self.send(ToSeat::Attach {
            kernel: kernel.clone(),
            incarnation,
            hot: turn == Turn::Follows,
        });
        match timeout(ANSWERS_WITHIN, self.input.recv()).await {
            Ok(Some(FromSeat::State { state, hears })) => {
                self.hears = hears;
                Some(*state)
            }
            _ => None,
        }
    }

    /// The log of the kernel's group is to take in this entry.
    pub(crate) fn propose(&self, entry: Entry) {
        self.send(ToSeat::Propose(entry));
    }

    /// Waits as a spare until the seat needs a replica. `None`: it needs none any more.
    pub async fn called(&mut self, number: u32) -> Option<(PathBuf, Incarnation)> {
        self.send(ToSeat::Spare { number });
        match self.input.recv().await {
            Some(FromSeat::Become(called)) => Some((called.dir, called.incarnation)),
            _ => None,
        }
    }

    fn send(&self, word: ToSeat) {
        // The keeper has ended with the seat, and this replica ends soon.
        let _ = self.out.send(word);
    }
}

/// Where proposals go.
#[derive(Debug)]
enum Way {
    /// One replica is a majority of itself.
    Alone,
    /// The group is being founded: proposals wait.
    Founding,
    Group,
    /// The group was given up: as alone, whatever the keeper says of it.
    GivenUp,
}

/// The log of one kernel.
#[derive(Debug)]
pub(crate) struct Log {
    way: Way,
    seat: Option<mpsc::UnboundedSender<ToSeat>>,
    writer: Option<JoinHandle<()>>,
    proposed: VecDeque<Entry>,
    /// Whether the seat was told that the kernel is at rest. `None` means that the seat's release doesn't take this
    /// news.
    rests: Option<bool>,
    hears: Hears,
}

impl Log {
    /// `grouped` means that the kernel's group has elected this replica. Returns the keeper's words, too.
    pub(crate) fn new(
        seat: Option<SeatLink>,
        grouped: bool,
    ) -> (Self, Option<mpsc::UnboundedReceiver<FromSeat>>) {
        let way = if grouped { Way::Group } else { Way::Alone };
        let hears = seat.as_ref().map_or_else(Hears::default, |link| link.hears);
        let rests = hears.rest.then_some(false);
        let (seat, input, writer) = match seat {
            Some(link) => (Some(link.out), Some(link.input), Some(link.writer)),
            None => (None, None, None),
        };
        let proposed = VecDeque::new();
        let log = Self {
            way,
            seat,
            writer,
            proposed,
            rests,
            hears,
        };
        (log, input)
    }

    pub(crate) fn propose(&mut self, entry: Entry) {
        match self.way {
            Way::Alone | Way::Founding | Way::GivenUp => self.proposed.push_back(entry),
            Way::Group => self.send(ToSeat::Propose(entry)),
        }
    }

    /// Tells the group whether the kernel is at rest, where that has changed.
    pub(crate) fn rests(&mut self, rests: bool) {
        if matches!(self.way, Way::Group) && self.rests == Some(!rests) {
            self.rests = Some(rests);
            self.send(ToSeat::Rests(rests));
        }
    }

    /// Asks the seat for word of the end of earlier executors' processes. A seat of the release before has none.
    pub(crate) fn ask_former(&self) {
        if self.hears.former {
            self.send(ToSeat::AskFormer);
        }
    }

    /// The next entry that the proposal itself commits.
    pub(crate) fn committed(&mut self) -> Option<Entry> {
        match self.way {
            Way::Alone | Way::GivenUp => self.proposed.pop_front(),
            Way::Founding | Way::Group => None,
        }
    }

    /// Founds a group with this state.
    pub(crate) fn found(&mut self, kernel: KernelId, incarnation: Incarnation, wanted: usize, state: State) {
        self.way = Way::Founding;
        self.send(ToSeat::Found {
            kernel,
            incarnation,
            wanted,
            state: Box::new(state),
        });
    }

    /// The group is founded: the waiting entries are proposed to it.
    pub(crate) fn founded(&mut self, hears: Hears) {
        if matches!(self.way, Way::Founding) {
            self.way = Way::Group;
            (self.hears, self.rests) = (hears, hears.rest.then_some(false));
            for entry in std::mem::take(&mut self.proposed) {
                self.send(ToSeat::Propose(entry));
            }
        }
    }

    pub(crate) fn is_founding(&self) -> bool {
        matches!(self.way, Way::Founding)
    }

    /// There is no group after all.
    pub(crate) fn not_founded(&mut self) {
        if matches!(self.way, Way::Founding) {
            self.way = Way::Alone;
        }
    }

    /// The group takes nothing any more: every proposal is taken at once from now on.
    pub(crate) fn go_alone(&mut self) {
        self.way = Way::GivenUp;
    }

    /// Whether the keeper's words on the group count.
    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self.way, Way::GivenUp)
    }

    /// Has the keeper get all sent words.
    pub(crate) async fn end(&mut self) {
        self.seat = None;
        if let Some(writer) = self.writer.take() {
            // A keeper that no longer reads has ended.
            let _ = timeout(LAST_WORDS, writer).await;
        }
    }

    /// The kernel is over.
    pub(crate) fn disband(&self) {
        if matches!(self.way, Way::Group | Way::Founding) {
            self.send(ToSeat::Over);
        }
    }

    fn send(&self, word: ToSeat) {
        if let Some(seat) = &self.seat {
            // As above: a keeper that no longer reads has ended with its seat.
            let _ = seat.send(word);
        }
    }
}
