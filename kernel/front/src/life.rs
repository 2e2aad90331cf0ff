//! The life of a kernel in its front's eyes: a replica is started, connects, is lost, is followed by another. Pure: no
//! process, no clock; [`crate::launch`] starts replicas, [`crate::run`] keeps the connection.
//!
//! A kernel with a log ([`Life::new`] with `durable`) outlives its replica: the next replica goes on in the next
//! tenure. A kernel without a log dies with its replica.

use hop_words::id::{NodeName, Tenure};
use hop_words::time::{Span, Timestamp};

/// Time granted to a broken connection before the replica counts as lost, by the front's knowledge of the replica.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// The connection was closed, and the process that stands for the replica is gone.
    gone: Span,
    /// The connection was closed. A living replica dials again within 0.3 s.
    closed: Span,
    /// Nothing was heard, so the network or the node may be away.
    silent: Span,
}

/// A kernel without a log: its variables are at stake, and nothing is gained by haste.
const WITHOUT_LOG: Patience = Patience {
    gone: Span::from_secs(3),
    closed: Span::from_secs(65),
    silent: Span::from_secs(65),
};

/// A kernel with a log loses the running cell alone.
const WITH_LOG: Patience = Patience {
    gone: Span::from_millis(500),
    closed: Span::from_secs(2),
    silent: Span::from_secs(4),
};

/// A kernel with a group elects another replica, which connects by itself; only a group without a majority needs the
/// front.
const WITH_GROUP: Patience = Patience {
    gone: Span::from_secs(15),
    closed: Span::from_secs(15),
    silent: Span::from_secs(25),
};

/// Time for a replica to connect after the loss of its kernel's server and front. The replica first tries the addresses
/// of the earlier front, possibly on a lost host, and then reads the new front's. Over NFS the replaced file may show
/// after half a minute.
const LEFT: Span = Span::from_secs(35);
/// The same for a replica on this host.
const LEFT_HERE: Span = Span::from_secs(12);

/// Pauses between two tries to start a replica: each is twice the last.
const FIRST_PAUSE: Span = Span::from_secs(1);
const LONGEST_PAUSE: Span = Span::from_secs(30);

/// A started replica connects within this time, or is started anew. The time is much shorter while a further try is
/// left: a client waits for a kernel for a minute. If a step's node doesn't reach the front's, `srun` waits for
/// several.
const CONNECTS: Span = Span::from_secs(90);
const CONNECTS_OR_AGAIN: Span = Span::from_secs(30);

/// Number of replicas in a row with an end before their connection, from which on the kernel is given up.
const STILLBORN: u32 = 5;
/// The same for a kernel's first start: its seat may end under it, and the seat after that, but a client waits for a
/// word.
const STILLBORN_FIRST: u32 = 3;

/// Time after which clients are told that the replica doesn't answer. A group has elected another one within it as a
/// rule.
const TELL_AFTER: Span = Span::from_millis(1500);

/// A replica without an answer, for clients to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    pub node: Option<NodeName>,
    /// Time given to the replica since its connection broke.
    pub within: Span,
    pub then: Then,
}

/// What follows if the replica doesn't answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The kernel's group elects another replica. If it can't, one is started in the end.
    Elected,
    /// Another replica is started in the end.
    Started,
    /// The kernel ends.
    Ends,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The process of this tenure's replica was started.
    Started {
        tenure: Tenure,
    },
    /// The replica couldn't be started, for this reason.
    NotStarted {
        reason: String,
    },
    /// The process in the replica's place has ended: the replica itself, or its srun.
    ProcessGone,
    /// A replica of the newest tenure has a connection.
    Connected {
        node: NodeName,
    },
    /// The connection ended. `silent` means a long silence before.
    Disconnected {
        silent: bool,
    },
    /// The replica's seat ends, and the replica is about to.
    Leaving {
        reason: String,
    },
    /// The replica has left for another, waiting elsewhere: nothing is lost.
    Moving,
    /// The kernel hibernates. `wanted` means that a request came during its last save, and waits.
    Asleep {
        wanted: bool,
    },
    /// The kernel ended, and doesn't come back.
    Over,
    /// A client needs the kernel.
    Wanted,
    Tick,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Start a replica. `fresh_seat` forbids an existing seat of the user; `avoid` names the lost node, `old` the
    /// tenure whose replica is to be ended first if alive.
    Start {
        fresh_seat: bool,
        avoid: Option<NodeName>,
        old: Option<Tenure>,
    },
    /// The kernel is dead, for this reason.
    Die { reason: String },
    /// Users should know why the kernel isn't there.
    Tell { reason: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// A replica is being started.
    Starting,
    /// The process runs, and has no connection yet.
    Awaited {
        since: Timestamp,
        process: bool,
    },
    Up {
        process: bool,
    },
    /// The connection broke. `gone` is the time of the process's end.
    Down {
        since: Timestamp,
        silent: bool,
        gone: Option<Timestamp>,
    },
    /// No replica could be started: tried again then.
    Paused {
        until: Timestamp,
    },
    Asleep,
    Over,
}

/// The life of one kernel.
#[derive(Debug)]
pub struct Life {
    durable: bool,
    /// The kernel has a group of replicas, which elects its executors.
    grouped: bool,
    /// The process in the replica's place is the replica itself, and not an srun that may have been killed alone.
    local: bool,
    stage: Stage,
    tenure: Tenure,
    node: Option<NodeName>,
    /// A replica has been connected since the kernel's first start.
    lived: bool,
    /// Failed starts since the last connection.
    failed: u32,
    pause: Span,
}

impl Life {
    /// A kernel whose first replica is to be started.
    pub fn new(durable: bool, local: bool) -> Self {
        Self {
            durable,
            grouped: false,
            local,
            stage: Stage::Starting,
            tenure: Tenure(0),
            node: None,
            lived: false,
            failed: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// The present number of members in the kernel's group. With three members the group elects its executors by
    /// itself.
    pub fn has_members(&mut self, count: usize) {
        self.grouped = count >= 3;
    }

    /// A kernel started by an earlier front, with this number of members if its group has grown. Its replica will
    /// connect, or another replica elected by the group.
    pub fn resumed(durable: bool, local: bool, members: usize, tenure: Tenure, now: Timestamp) -> Self {
        let mut life = Self {
            stage: Stage::Down {
                since: now,
                silent: true,
                gone: None,
            },
            tenure,
            lived: true,
            ..Self::new(durable, local)
        };
        life.has_members(members);
        life
    }

    /// A kernel whose server and front are gone: its replica will connect, or a replica begins with the saved state.
    pub fn left(durable: bool, local: bool, tenure: Tenure, now: Timestamp) -> Self {
        Self {
            lived: false,
            ..Self::resumed(durable, local, 0, tenure, now)
        }
    }

    /// Whether a replica is being started now.
    pub fn is_starting(&self) -> bool {
        self.stage == Stage::Starting
    }

    /// Whether an earlier server and front are gone, and their replica may still connect.
    pub fn is_left(&self) -> bool {
        matches!(self.stage, Stage::Down { .. }) && !self.lived
    }

    /// Since when the started process has had no connection yet.
    pub fn awaited_since(&self) -> Option<Timestamp> {
        match self.stage {
            Stage::Awaited { since, .. } => Some(since),
            _ => None,
        }
    }

    /// The replica whose connection broke, once clients should know.
    pub fn unanswered(&self, now: Timestamp) -> Option<Unanswered> {
        let Stage::Down { since, silent, gone } = self.stage else {
            return None;
        };
        let then = match self.durable {
            true if self.lived && self.grouped => Then::Elected,
            true => Then::Started,
            false => Then::Ends,
        };
        (now.since(since) >= TELL_AFTER).then(|| Unanswered {
            node: self.node.clone(),
            within: self.patience(silent, gone.is_some()),
            then,
        })
    }

    /// Whether the kernel hibernates.
    pub fn is_asleep(&self) -> bool {
        self.stage == Stage::Asleep
    }

    /// Whether no replica has the kernel's requests, nor will before the next one connects.
    pub fn is_away(&self) -> bool {
        matches!(
            self.stage,
            Stage::Starting | Stage::Awaited { .. } | Stage::Paused { .. } | Stage::Asleep
        )
    }

    /// The tenure of the newest replica.
    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// Takes in an input; returns the actions that follow.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Act> {
        if self.stage == Stage::Over {
            return Vec::new();
        }
        match input {
            Input::Started { tenure } => self.started(tenure, now),
            Input::NotStarted { reason } => self.not_started(reason, now),
            Input::ProcessGone => self.process_gone(now),
            Input::Connected { node } => self.connected(node),
            Input::Disconnected { silent } => self.disconnected(silent, now),
            Input::Leaving { reason } => self.leaving(&reason),
            Input::Moving => self.start(true, None),
            Input::Asleep { wanted } => {
                self.stage = Stage::Asleep;
                if wanted { self.wanted() } else { Vec::new() }
            }
            Input::Over => {
                self.stage = Stage::Over;
                Vec::new()
            }
            Input::Wanted => self.wanted(),
            Input::Tick => self.tick(now),
        }
    }

    fn started(&mut self, tenure: Tenure, now: Timestamp) -> Vec<Act> {
        self.tenure = tenure;
        if self.stage == Stage::Starting {
            self.stage = Stage::Awaited {
                since: now,
                process: true,
            };
        }
        Vec::new()
    }

    fn not_started(&mut self, reason: String, now: Timestamp) -> Vec<Act> {
        if self.stage != Stage::Starting {
            return Vec::new();
        }
        if !(self.durable && self.lived) {
            return self.die(format!("the kernel could not be started: {reason}"));
        }
        self.stage = Stage::Paused {
            until: now + self.pause,
        };
        self.pause = Span((self.pause.0 * 2).min(LONGEST_PAUSE.0));
        vec![Act::Tell {
            reason: format!("the kernel can't be started again yet: {reason}"),
        }]
    }

    fn process_gone(&mut self, now: Timestamp) -> Vec<Act> {
        match &mut self.stage {
            Stage::Awaited { .. } => self.stillborn(),
            Stage::Up { process } => {
                *process = false;
                Vec::new()
            }
            Stage::Down { gone, .. } => {
                gone.get_or_insert(now);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// The replica ended before its connection: the seat may have ended under the replica.
    fn stillborn(&mut self) -> Vec<Act> {
        self.failed += 1;
        if self.tries_again(self.failed) {
            return self.start(true, None);
        }
        self.die("the kernel's supervisor never came up".into())
    }

    /// Whether another replica is started after this many without a connection.
    fn tries_again(&self, failed: u32) -> bool {
        let most = match self.lived {
            true if self.durable => STILLBORN,
            false if !self.local => STILLBORN_FIRST,
            _ => 1,
        };
        failed < most
    }

    fn connects_within(&self) -> Span {
        match self.tries_again(self.failed + 1) {
            true => CONNECTS_OR_AGAIN,
            false => CONNECTS,
        }
    }

    fn start(&mut self, fresh_seat: bool, avoid: Option<NodeName>) -> Vec<Act> {
        self.stage = Stage::Starting;
        let old = self.lived.then_some(self.tenure);
        vec![Act::Start {
            fresh_seat,
            avoid,
            old,
        }]
    }

    fn connected(&mut self, node: NodeName) -> Vec<Act> {
        let process = !matches!(self.stage, Stage::Down { gone: Some(_), .. });
        self.stage = Stage::Up { process };
        self.node = Some(node);
        (self.lived, self.failed, self.pause) = (true, 0, FIRST_PAUSE);
        Vec::new()
    }

    fn disconnected(&mut self, silent: bool, now: Timestamp) -> Vec<Act> {
        if let Stage::Up { process } = self.stage {
            let gone = (!process).then_some(now);
            self.stage = Stage::Down {
                since: now,
                silent,
                gone,
            };
        }
        Vec::new()
    }

    fn leaving(&mut self, reason: &str) -> Vec<Act> {
        if !self.durable {
            return Vec::new();
        }
        let mut acts = vec![Act::Tell {
            reason: format!("the kernel goes on elsewhere: {reason}"),
        }];
        acts.extend(self.start(true, None));
        acts
    }

    fn wanted(&mut self) -> Vec<Act> {
        match self.stage {
            Stage::Asleep | Stage::Paused { .. } => self.start(false, None),
            _ => Vec::new(),
        }
    }

    fn tick(&mut self, now: Timestamp) -> Vec<Act> {
        match &self.stage {
            Stage::Paused { until } if *until <= now => self.start(false, None),
            Stage::Awaited { since, .. } if now.since(*since) > self.connects_within() => self.stillborn(),
            Stage::Down { since, silent, gone } if self.is_lost(*since, *silent, *gone, now) => {
                let gone = gone.is_some();
                self.lost(gone)
            }
            _ => Vec::new(),
        }
    }

    fn is_lost(&self, since: Timestamp, silent: bool, gone: Option<Timestamp>, now: Timestamp) -> bool {
        let down = now.since(since);
        let patience = self.patience(silent, gone.is_some());
        match gone.filter(|_| self.lived) {
            Some(_) if self.local => true,
            Some(at) => down.min(now.since(at)) > patience,
            None => down > patience,
        }
    }

    /// Time granted to a broken connection. `gone` means that the process in the replica's place has ended.
    fn patience(&self, silent: bool, gone: bool) -> Span {
        let patience = match self.durable {
            true if self.grouped => WITH_GROUP,
            true => WITH_LOG,
            false => WITHOUT_LOG,
        };
        match (self.lived, gone) {
            (false, _) if self.local => LEFT_HERE,
            (false, _) => LEFT,
            (true, true) => patience.gone,
            (true, false) if silent => patience.silent,
            (true, false) => patience.closed,
        }
    }

    fn lost(&mut self, gone: bool) -> Vec<Act> {
        if !self.lived {
            return self.start(false, None);
        }
        let reason = match &self.node {
            Some(node) => format!("the kernel's supervisor on node {node} was lost"),
            None => "the kernel's supervisor was lost".into(),
        };
        if !self.durable {
            return self.die(format!("{reason}, and the kernel with it"));
        }
        let mut acts = vec![Act::Tell {
            reason: format!("{reason}: the kernel goes on with its saved variables"),
        }];
        // A replica whose process has ended leaves a seat that can be used again; a node that is out of reach doesn't.
        let avoid = self.node.clone().filter(|_| !gone);
        acts.extend(self.start(!gone, avoid));
        acts
    }

    fn die(&mut self, reason: String) -> Vec<Act> {
        self.stage = Stage::Over;
        vec![Act::Die { reason }]
    }
}

#[cfg(test)]
mod tests;
