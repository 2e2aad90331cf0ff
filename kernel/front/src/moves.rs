//! A move of the kernel to a seat named by the scheduler (docs/replication.md). A replica is prepared there while the
//! kernel runs on, and takes over once the old replica has left. Pure; [`crate::run`] carries out, [`crate::life`]
//! decides when a replica is started.

use hop_words::id::Incarnation;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The kernel's replica wants to move there.
    Asked(Incarnation),
    /// The seat is taken, and a process stands for the replica in it.
    Prepared(Incarnation),
    /// No seat was found, or nothing could be started in it.
    NotPrepared(Incarnation, String),
    /// The new replica is connected, and the kernel's process is heard.
    Waits(Incarnation),
    /// The process of the replica there has ended.
    Gone(Incarnation),
    /// The kernel's replica stays.
    Off(Incarnation),
    /// A replica is to be started: the kernel's last one has left, or was lost.
    Start,
    /// The kernel's group has elected this replica.
    Elected(Incarnation),
    /// A replica is connected, and works.
    Up(Incarnation),
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Take the seat and start a waiting replica in it.
    Prepare(Incarnation),
    /// Tell the kernel's replica that the new replica waits.
    Ready(Incarnation),
    /// Tell the kernel's replica that the move failed.
    Failed(Incarnation, String),
    /// End the prepared replica.
    Drop(Incarnation),
    /// The tenure goes to the waiting replica.
    Switch(Incarnation),
    /// The waiting replica is the kernel's now.
    Adopt(Incarnation),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A seat is looked for.
    Preparing,
    /// Its process was started.
    Awaited,
    /// It waits for the kernel.
    Waits,
    /// The replica has the tenure, and isn't connected yet.
    Switching,
}

/// A kernel's move. A kernel has at most one under way.
#[derive(Debug, Default)]
pub struct Moves {
    now: Option<(Incarnation, Stage)>,
    /// A failure that the next replica has to hear of.
    owed: Option<(Incarnation, String)>,
}

impl Moves {
    /// Takes in an input; returns the actions that follow.
    pub fn handle(&mut self, input: Input) -> Vec<Act> {
        match input {
            Input::Asked(to) => self.asked(to),
            Input::Prepared(to) => self.next(to, Stage::Preparing, Stage::Awaited),
            Input::NotPrepared(to, why) => self.failed(to, why),
            Input::Waits(to) => match self.now {
                Some((at, Stage::Preparing | Stage::Awaited)) if at == to => {
                    self.now = Some((to, Stage::Waits));
                    vec![Act::Ready(to)]
                }
                _ => Vec::new(),
            },
            Input::Gone(to) => match self.now {
                // The start that follows tells the successor.
                Some((_, Stage::Switching)) => Vec::new(),
                _ => self.failed(to, "the new replica ended before it took over".into()),
            },
            Input::Off(to) => match self.now {
                Some((at, stage)) if at == to && stage != Stage::Switching => {
                    self.now = None;
                    vec![Act::Drop(to)]
                }
                _ => Vec::new(),
            },
            Input::Start => self.start(),
            Input::Elected(to) => match self.now.take() {
                Some((at, _)) if at == to => vec![Act::Adopt(to)],
                Some((other, _)) => vec![Act::Drop(other)],
                None => Vec::new(),
            },
            Input::Up(incarnation) => self.up(incarnation),
        }
    }

    /// Whether the replica is prepared for a move, and has no tenure yet.
    pub fn expects(&self, incarnation: Incarnation) -> bool {
        self.now
            .is_some_and(|(to, stage)| to == incarnation && stage != Stage::Switching)
    }

    fn asked(&mut self, to: Incarnation) -> Vec<Act> {
        let mut acts: Vec<Act> = match self.now {
            Some((other, Stage::Switching)) => {
                let why = format!("the kernel moves to replica {other}");
                return vec![Act::Failed(to, why)];
            }
            Some((old, _)) => vec![Act::Drop(old)],
            None => Vec::new(),
        };
        self.now = Some((to, Stage::Preparing));
        acts.push(Act::Prepare(to));
        acts
    }

    fn next(&mut self, to: Incarnation, from: Stage, stage: Stage) -> Vec<Act> {
        match self.now {
            Some(now) if now == (to, from) => self.now = Some((to, stage)),
            Some((at, _)) if at == to => {}
            // It was given up meanwhile.
            _ => return vec![Act::Drop(to)],
        }
        Vec::new()
    }

    fn failed(&mut self, to: Incarnation, why: String) -> Vec<Act> {
        if self.now.take_if(|(at, _)| *at == to).is_none() {
            return Vec::new();
        }
        vec![Act::Drop(to), Act::Failed(to, why)]
    }

    /// A waiting replica is the quickest start, whatever became of the old one.
    fn start(&mut self) -> Vec<Act> {
        match self.now.take() {
            Some((to, Stage::Waits)) => {
                self.now = Some((to, Stage::Switching));
                vec![Act::Switch(to)]
            }
            Some((to, stage)) => {
                let why = match stage {
                    Stage::Switching => "the new replica ended before it was connected",
                    _ => "the kernel's own replica was lost before the new one was ready",
                };
                self.owed = Some((to, why.into()));
                vec![Act::Drop(to)]
            }
            None => Vec::new(),
        }
    }

    fn up(&mut self, incarnation: Incarnation) -> Vec<Act> {
        self.now.take_if(|now| *now == (incarnation, Stage::Switching));
        let owed = self.owed.take();
        owed.map(|(to, why)| Act::Failed(to, why)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: Incarnation = Incarnation(4);

    /// A move that has come so far.
    fn so_far(inputs: &[Input]) -> Moves {
        let mut moves = Moves::default();
        for input in inputs {
            moves.handle(input.clone());
        }
        moves
    }

    #[test]
    fn a_move_is_prepared_and_then_made() {
        let mut moves = Moves::default();
        assert_eq!(moves.handle(Input::Asked(N)), [Act::Prepare(N)]);
        assert!(moves.expects(N));
        assert_eq!(moves.handle(Input::Prepared(N)), []);
        assert_eq!(moves.handle(Input::Waits(N)), [Act::Ready(N)]);
        assert_eq!(
            moves.handle(Input::Waits(N)),
            [],
            "its connection broke meanwhile"
        );
        assert_eq!(moves.handle(Input::Start), [Act::Switch(N)]);
        assert!(!moves.expects(N));
        assert_eq!(moves.handle(Input::Off(N)), [], "too late");
        assert_eq!(moves.handle(Input::Up(N)), []);
        assert_eq!(moves.handle(Input::Start), [], "it is over");
    }

    #[test]
    fn a_target_that_dies_before_the_switch_is_told_at_once() {
        for stage in 1..=3 {
            let all = [Input::Asked(N), Input::Prepared(N), Input::Waits(N)];
            let mut moves = so_far(&all[..stage]);
            let acts = moves.handle(Input::Gone(N));
            assert!(
                matches!(&acts[..], [Act::Drop(N), Act::Failed(N, why)] if why.contains("ended")),
                "{acts:?}"
            );
            assert_eq!(moves.handle(Input::Start), []);
        }
        let mut moves = so_far(&[Input::Asked(N)]);
        let acts = moves.handle(Input::NotPrepared(N, "no room".into()));
        assert_eq!(acts, [Act::Drop(N), Act::Failed(N, "no room".into())]);
    }

    #[test]
    fn a_target_that_dies_in_the_switch_is_told_to_its_successor() {
        let mut moves = so_far(&[Input::Asked(N), Input::Prepared(N), Input::Waits(N), Input::Start]);
        assert_eq!(moves.handle(Input::Gone(N)), []);
        assert_eq!(
            moves.handle(Input::Start),
            [Act::Drop(N)],
            "another one is started"
        );
        let acts = moves.handle(Input::Up(Incarnation(5)));
        assert!(matches!(&acts[..], [Act::Failed(N, _)]), "{acts:?}");
        assert_eq!(moves.handle(Input::Up(Incarnation(5))), [], "once");
    }

    #[test]
    fn a_kernel_that_is_lost_meanwhile_takes_what_is_ready() {
        let mut moves = so_far(&[Input::Asked(N), Input::Prepared(N), Input::Waits(N)]);
        assert_eq!(moves.handle(Input::Start), [Act::Switch(N)]);
        let mut moves = so_far(&[Input::Asked(N), Input::Prepared(N)]);
        assert_eq!(moves.handle(Input::Start), [Act::Drop(N)]);
        assert!(matches!(
            &moves.handle(Input::Up(Incarnation(5)))[..],
            [Act::Failed(N, _)]
        ));
    }

    #[test]
    fn a_group_elects_the_replica_that_waits_or_another_one() {
        let waits = [Input::Asked(N), Input::Prepared(N), Input::Waits(N)];
        let mut moves = so_far(&waits);
        assert_eq!(moves.handle(Input::Elected(N)), [Act::Adopt(N)]);
        assert!(!moves.expects(N));
        assert_eq!(
            moves.handle(Input::Gone(N)),
            [],
            "the kernel's life, and no move's"
        );
        let mut moves = so_far(&waits);
        assert_eq!(moves.handle(Input::Elected(Incarnation(5))), [Act::Drop(N)]);
        assert_eq!(moves.handle(Input::Start), []);
    }

    #[test]
    fn what_is_given_up_is_dropped() {
        let mut moves = so_far(&[Input::Asked(N)]);
        assert_eq!(moves.handle(Input::Off(N)), [Act::Drop(N)]);
        assert_eq!(
            moves.handle(Input::Prepared(N)),
            [Act::Drop(N)],
            "it was under way"
        );
        let mut moves = so_far(&[Input::Asked(N), Input::Prepared(N)]);
        let next = Incarnation(5);
        assert_eq!(
            moves.handle(Input::Asked(next)),
            [Act::Drop(N), Act::Prepare(next)]
        );
    }
}
