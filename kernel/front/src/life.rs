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
        let patience = match self.durable {
            true if self.grouped => WITH_GROUP,
            true => WITH_LOG,
            false => WITHOUT_LOG,
        };
        let down = now.since(since);
        if !self.lived {
            return down > if self.local { LEFT_HERE } else { LEFT };
        }
        match gone {
            Some(_) if self.local => true,
            Some(at) => down.min(now.since(at)) > patience.gone,
            None if silent => down > patience.silent,
            None => down > patience.closed,
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
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * SECOND)
    }

    fn up(durable: bool) -> Life {
        let mut life = Life::new(durable, false);
        assert_eq!(life.handle(Input::Started { tenure: Tenure(1) }, at(0)), []);
        assert_eq!(life.handle(Input::Connected { node: "n1".into() }, at(1)), []);
        life
    }

    fn start_elsewhere() -> Act {
        Act::Start {
            fresh_seat: true,
            avoid: Some("n1".into()),
            old: Some(Tenure(1)),
        }
    }

    #[test]
    fn a_lost_kernel_with_a_log_goes_on() {
        let mut life = up(true);
        life.handle(Input::Disconnected { silent: false }, at(10));
        life.handle(Input::ProcessGone, at(10));
        assert_eq!(life.handle(Input::Tick, at(10)), []);
        let acts = life.handle(Input::Tick, at(11));
        let again = Act::Start {
            fresh_seat: false,
            avoid: None,
            old: Some(Tenure(1)),
        };
        assert!(
            matches!(&acts[..], [Act::Tell { .. }, start] if *start == again),
            "{acts:?}"
        );
        assert!(life.is_starting());
        life.handle(Input::Started { tenure: Tenure(2) }, at(12));
        life.handle(Input::Connected { node: "n2".into() }, at(13));
        assert_eq!(life.tenure(), Tenure(2));
    }

    #[test]
    fn a_lost_kernel_without_a_log_dies() {
        let mut life = up(false);
        life.handle(Input::Disconnected { silent: false }, at(10));
        assert_eq!(life.handle(Input::Tick, at(74)), []);
        let acts = life.handle(Input::Tick, at(76));
        assert!(
            matches!(&acts[..], [Act::Die { reason }] if reason.contains("node n1 was lost")),
            "{acts:?}"
        );
        assert_eq!(life.handle(Input::Tick, at(99)), []);
    }

    #[test]
    fn a_replica_that_dials_again_is_not_lost() {
        let mut life = up(true);
        life.handle(Input::Disconnected { silent: false }, at(10));
        life.handle(Input::Connected { node: "n1".into() }, at(11));
        assert_eq!(life.handle(Input::Tick, at(60)), []);
    }

    #[test]
    fn an_srun_that_is_killed_alone_ends_nothing() {
        let mut life = up(true);
        life.handle(Input::ProcessGone, at(10));
        assert_eq!(life.handle(Input::Tick, at(60)), []);
        life.handle(Input::Disconnected { silent: false }, at(70));
        assert_eq!(
            life.handle(Input::Tick, at(71)).len(),
            2,
            "nothing stands for it any more"
        );
    }

    #[test]
    fn silence_is_given_longer_than_an_end() {
        let mut life = up(true);
        life.handle(Input::Disconnected { silent: true }, at(10));
        assert_eq!(life.handle(Input::Tick, at(13)), []);
        let acts = life.handle(Input::Tick, at(15));
        assert!(
            matches!(&acts[..], [Act::Tell { .. }, start] if *start == start_elsewhere()),
            "{acts:?}"
        );
    }

    #[test]
    fn the_first_seat_may_end_under_the_kernel_and_the_next_one() {
        let mut life = Life::new(true, false);
        for n in [0, 2] {
            life.handle(Input::Started { tenure: Tenure(n) }, at(n));
            let fresh = Act::Start {
                fresh_seat: true,
                avoid: None,
                old: None,
            };
            assert_eq!(life.handle(Input::ProcessGone, at(n + 1)), [fresh]);
        }
        life.handle(Input::Started { tenure: Tenure(4) }, at(4));
        let acts = life.handle(Input::ProcessGone, at(5));
        assert!(matches!(acts[..], [Act::Die { .. }]), "{acts:?}");
        let mut local = Life::new(true, true);
        local.handle(Input::Started { tenure: Tenure(1) }, at(0));
        let acts = local.handle(Input::ProcessGone, at(1));
        assert!(
            matches!(acts[..], [Act::Die { .. }]),
            "no seat ends there: {acts:?}"
        );
    }

    #[test]
    fn a_start_that_fails_is_tried_again_with_pauses() {
        let mut life = up(true);
        life.handle(
            Input::Leaving {
                reason: "its seat ends".into(),
            },
            at(10),
        );
        for (now, pause) in [(10, 1), (11, 2), (13, 4), (17, 8), (25, 16), (41, 30), (71, 30)] {
            let acts = life.handle(Input::NotStarted { reason: "no".into() }, at(now));
            assert!(matches!(&acts[..], [Act::Tell { .. }]), "{acts:?}");
            assert_eq!(
                life.handle(Input::Tick, Timestamp((now + pause) * SECOND - 1)),
                []
            );
            assert!(matches!(
                &life.handle(Input::Tick, at(now + pause))[..],
                [Act::Start { .. }]
            ));
        }
        let mut first = Life::new(true, false);
        let acts = first.handle(Input::NotStarted { reason: "no".into() }, at(0));
        assert!(
            matches!(&acts[..], [Act::Die { .. }]),
            "a first start tells its error at once"
        );
    }

    #[test]
    fn replicas_that_never_connect_end_the_kernel() {
        let mut life = up(true);
        life.handle(
            Input::Leaving {
                reason: "its seat ends".into(),
            },
            at(1),
        );
        for n in 1..STILLBORN {
            life.handle(
                Input::Started {
                    tenure: Tenure(u64::from(n) + 1),
                },
                at(2),
            );
            assert!(matches!(
                &life.handle(Input::ProcessGone, at(3))[..],
                [Act::Start { .. }]
            ));
        }
        life.handle(Input::Started { tenure: Tenure(9) }, at(4));
        assert!(matches!(
            &life.handle(Input::Tick, at(200))[..],
            [Act::Die { .. }]
        ));
    }

    #[test]
    fn a_replica_that_does_not_connect_is_soon_tried_elsewhere_while_tries_are_left() {
        for (lived, tries) in [(true, STILLBORN - 1), (false, STILLBORN_FIRST - 1)] {
            let mut life = if lived { up(true) } else { Life::new(true, false) };
            if lived {
                life.handle(
                    Input::Leaving {
                        reason: "it ends".into(),
                    },
                    at(1),
                );
            }
            let mut now = 2;
            for n in 0..tries {
                let tenure = Tenure(u64::from(n) + 2);
                life.handle(Input::Started { tenure }, at(now));
                assert_eq!(life.handle(Input::Tick, at(now + 30)), []);
                let acts = life.handle(Input::Tick, at(now + 31));
                assert!(
                    matches!(acts[..], [Act::Start { fresh_seat: true, .. }]),
                    "{acts:?}"
                );
                now += 31;
            }
            life.handle(Input::Started { tenure: Tenure(9) }, at(now));
            assert_eq!(
                life.handle(Input::Tick, at(now + 90)),
                [],
                "the last one is given time"
            );
            let acts = life.handle(Input::Tick, at(now + 91));
            assert!(matches!(acts[..], [Act::Die { .. }]), "{acts:?}");
        }
    }

    #[test]
    fn a_kernel_that_moves_says_nothing_of_it() {
        let mut life = up(true);
        let start = Act::Start {
            fresh_seat: true,
            avoid: None,
            old: Some(Tenure(1)),
        };
        assert_eq!(life.handle(Input::Moving, at(5)), [start]);
    }

    #[test]
    fn a_sleeping_kernel_wakes_when_it_is_wanted() {
        let mut life = up(true);
        life.handle(Input::Asleep { wanted: false }, at(5));
        assert_eq!(life.handle(Input::Disconnected { silent: false }, at(6)), []);
        assert_eq!(life.handle(Input::Tick, at(9999)), []);
        let wake = Act::Start {
            fresh_seat: false,
            avoid: None,
            old: Some(Tenure(1)),
        };
        assert_eq!(life.handle(Input::Wanted, at(9999)), std::slice::from_ref(&wake));
        assert_eq!(life.handle(Input::Wanted, at(9999)), [], "once");
        let mut life = up(true);
        assert_eq!(
            life.handle(Input::Asleep { wanted: true }, at(5)),
            [wake],
            "a cell came during the last save"
        );
        assert!(life.is_away());
        assert_eq!(life.handle(Input::Wanted, at(5)), [], "once");
    }

    #[test]
    fn a_kernel_that_was_left_is_waited_for_and_then_begins_with_what_is_saved() {
        let left = || Life::left(true, false, Tenure(3), at(10));
        let mut life = left();
        assert_eq!(life.handle(Input::Tick, at(44)), []);
        life.handle(Input::Connected { node: "n1".into() }, at(44));
        assert_eq!(
            (life.handle(Input::Tick, at(99)), life.tenure()),
            (vec![], Tenure(3))
        );
        let begins = Act::Start {
            fresh_seat: false,
            avoid: None,
            old: None,
        };
        let mut here = Life::left(true, true, Tenure(3), at(10));
        assert_eq!(
            left().handle(Input::Tick, at(46)),
            here.handle(Input::Tick, at(23))
        );
        assert_eq!(left().handle(Input::Tick, at(46)), [begins]);
    }

    #[test]
    fn a_kernel_is_left_until_its_replica_connects_or_another_begins() {
        let left = || Life::left(true, false, Tenure(3), at(10));
        let after = |inputs: &[(u64, Input)]| {
            let mut life = left();
            for (seconds, input) in inputs {
                life.handle(input.clone(), at(*seconds));
            }
            life.is_left()
        };
        let connected = Input::Connected { node: "n1".into() };
        assert!(after(&[]));
        assert!(after(&[
            (11, Input::Tick),
            (12, Input::Wanted),
            (13, Input::ProcessGone)
        ]));
        let elected = Input::Started { tenure: Tenure(4) };
        assert!(after(&[(11, elected)]), "its group has elected another replica");
        assert!(!after(&[(11, connected.clone())]));
        let lost = Input::Disconnected { silent: true };
        assert!(!after(&[(11, connected), (12, lost)]), "of this front by now");
        assert!(!after(&[(46, Input::Tick)]), "a replica is being started");
        assert!(!after(&[(11, Input::Over)]));
        for other in [
            Life::new(true, false),
            Life::resumed(true, false, 1, Tenure(3), at(10)),
            up(true),
        ] {
            assert!(!other.is_left(), "{other:?}");
        }
    }

    #[test]
    fn a_resumed_kernel_is_given_the_time_to_elect_another_replica() {
        let mut life = Life::resumed(true, false, 3, Tenure(3), at(10));
        assert_eq!(
            life.handle(Input::Tick, at(34)),
            [],
            "its executor may be silent, and isn't replaced yet"
        );
        assert_eq!(life.handle(Input::Tick, at(36)).len(), 2);
    }

    #[test]
    fn a_resumed_kernel_is_waited_for() {
        let mut life = Life::resumed(true, false, 1, Tenure(3), at(10));
        assert_eq!(life.handle(Input::Tick, at(13)), []);
        life.handle(Input::Connected { node: "n1".into() }, at(13));
        assert_eq!(
            (life.handle(Input::Tick, at(99)), life.tenure()),
            (vec![], Tenure(3))
        );
    }
}
