//! Random inputs from a front, a kernel, a scheduler and errands that behave as theirs do, in any order: the state is
//! checked after each, each request is answered once, and each lease ends once.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A choice of the next thing to happen; numbers select among what is there.
#[derive(Debug, Clone)]
enum Step {
    Run {
        gpus: u16,
        stop_on_error: bool,
        silent: bool,
    },
    /// A subshell's cell.
    RunOutside,
    /// The kernel begins the oldest cell that it has.
    Begin,
    /// The oldest cell that the kernel has ran well to its end, and its reply is being made. It may be captured
    /// already.
    End {
        whole: bool,
    },
    Reply {
        ok: bool,
    },
    /// The kernel aborts the oldest cell that it has and hasn't begun.
    Abort,
    /// The kernel ends the oldest cell that it has without a reply.
    Forget,
    /// The reply comes all the same.
    ReplyLate,
    /// The agent captures all that ran since.
    Record,
    Grant,
    Refuse,
    Revoke {
        which: usize,
    },
    Park,
    Errand {
        well: bool,
        broken: bool,
    },
    Interrupt {
        by_message: bool,
    },
    Acquire {
        gpus: u16,
    },
    Release,
    Reconnect,
    /// The kernel's process dies; with a log it comes back.
    Die,
    /// Front, store and agent do the oldest thing that they were asked for.
    Serve,
    /// The group commits what was proposed, or the first entry of it.
    Commit {
        all: bool,
    },
    Announce,
    ReleaseNow,
    Wait {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3u16, any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(gpus, stop_on_error, silent)| Step::Run { gpus, stop_on_error, silent }),
        1 => Just(Step::RunOutside),
        4 => Just(Step::Begin),
        2 => any::<bool>().prop_map(|whole| Step::End { whole }),
        4 => any::<bool>().prop_map(|all| Step::Commit { all }),
        4 => any::<bool>().prop_map(|ok| Step::Reply { ok }),
        1 => Just(Step::Abort),
        1 => Just(Step::Forget),
        1 => Just(Step::ReplyLate),
        1 => Just(Step::Record),
        4 => Just(Step::Grant),
        1 => Just(Step::Refuse),
        2 => (0..4usize).prop_map(|which| Step::Revoke { which }),
        2 => Just(Step::Park),
        4 => (any::<bool>(), prop::bool::weighted(0.02)).prop_map(|(well, broken)| Step::Errand { well, broken }),
        1 => any::<bool>().prop_map(|by_message| Step::Interrupt { by_message }),
        2 => (1..3u16).prop_map(|gpus| Step::Acquire { gpus }),
        2 => Just(Step::Release),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Die),
        8 => Just(Step::Serve),
        2 => (1..5000u64).prop_map(|ms| Step::Wait { ms }),
        1 => Just(Step::Announce),
        1 => Just(Step::ReleaseNow),
    ]
}

/// The others, as far as the core's outputs tell of them.
#[derive(Default)]
struct Others {
    /// Cells that the kernel has, the oldest first.
    kernel: Vec<String>,
    /// Cells that the kernel has begun.
    begun: BTreeSet<String>,
    /// Requests without a reply.
    open: BTreeSet<String>,
    /// Cells of subshells.
    outside: BTreeSet<String>,
    /// Cells that the kernel has answered after a run, the oldest first.
    ran: Vec<String>,
    /// Cells that the kernel ended without a reply.
    forgotten: Vec<String>,
    /// Those of them behind which a later cell was replied to.
    overtaken: BTreeSet<String>,
    /// What `hopd` was asked for and hasn't granted.
    asked: Option<String>,
    /// Leases that `hopd` has granted and that aren't over, with their cell.
    leases: BTreeMap<u64, String>,
    errand: Option<Errand>,
    next: u64,
    killed: bool,
    durable: bool,
    /// Cells that ran to their end, by the word of the agent of a kernel with a group. They have no lease.
    ended: BTreeSet<String>,
    /// Requests to the agent so far.
    requests: u64,
    /// Orders to have all records on disk so far.
    syncs: u64,
    /// The tenure whose folder the store writes to.
    tenure: Tenure,
    /// The last record that the store was given and hasn't synced.
    appended: Option<u64>,
    /// Answers of front, store and agent that are due.
    due: VecDeque<Input>,
    /// The state that the announced client heard last.
    heard: Option<String>,
    /// Cells at which a text is shown.
    texts: BTreeSet<String>,
}

impl Others {
    fn see(&mut self, out: &[String]) {
        for line in out {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["kernel:", "execute_request", cell, ..] => {
                    assert!(!self.ended.contains(*cell), "{cell} runs once: {out:?}");
                    assert!(
                        !self.texts.contains(*cell),
                        "the text at {cell} is gone before it begins: {out:?}"
                    );
                    self.kernel.push((*cell).to_owned());
                }
                ["front:", "comm_msg", "c", state] => self.heard = Some((*state).to_owned()),
                ["front:", "display_data", cell, ..] => assert!(self.texts.insert((*cell).to_owned())),
                ["front:", "update_display_data", cell, ..] => assert!(self.texts.contains(*cell)),
                ["front:", "clear_output", cell] => assert!(self.texts.remove(*cell)),
                ["front:", "execute_reply", cell, ..] => {
                    assert!(
                        !self.texts.contains(*cell),
                        "the text at {cell} is gone before its answer: {out:?}"
                    );
                    assert!(self.open.remove(*cell), "{cell} is answered once: {out:?}");
                }
                ["hopd:", "submit", cell, ..] => {
                    assert!(
                        self.asked.replace((*cell).to_owned()).is_none(),
                        "one lease at a time: {out:?}"
                    );
                }
                ["hopd:", "cancel", cell] => {
                    self.asked.take_if(|asked| asked == cell);
                }
                ["hopd:", "parked", cell, lease] => {
                    self.leases.remove(&lease.parse::<u64>().unwrap());
                    assert!(self.asked.replace((*cell).to_owned()).is_none(), "{out:?}");
                }
                ["hopd:", "ended", cell, _, "Parked"] => {
                    assert!(self.asked.replace((*cell).to_owned()).is_none(), "{out:?}");
                }
                ["hopd:", "release", lease] => drop(self.leases.remove(&lease.parse::<u64>().unwrap())),
                ["gpu:", errand, _] => {
                    let errand = match *errand {
                        "Leave" => Errand::Leave,
                        "Stop" => Errand::Stop,
                        "StopAgain" => Errand::StopAgain,
                        _ => Errand::Return,
                    };
                    assert!(
                        self.errand.replace(errand).is_none(),
                        "one errand at a time: {out:?}"
                    );
                }
                ["kill"] | ["leave"] => self.killed = true,
                ["front:", "note", "begins", cell] => {
                    self.due.push_back(Input::MayBegin { cell: (*cell).into() });
                }
                ["append", record, ..] => self.appended = Some(record.parse().unwrap()),
                ["sync"] => {
                    self.syncs += 1;
                    let synced = self.appended.take().map(|record| synced(self.tenure, record));
                    self.due.extend(synced);
                    self.due.push_back(Input::InSync(SyncNumber(self.syncs)));
                }
                ["write-state"] => self.due.push_back(Input::Rested),
                ["open", tenure] => {
                    self.tenure = Tenure(tenure.parse().unwrap());
                    self.due.push_back(Input::TenureOpened(self.tenure));
                }
                ["start"] => {
                    self.kernel.clear();
                    self.ran.clear();
                    self.forgotten.clear();
                    self.begun.clear();
                    self.errand = None;
                    // The agent of the dead process answers nothing any more.
                    self.due
                        .retain(|input| !matches!(input, Input::Agent(_) | Input::KernelUp { .. }));
                    self.due.extend([hello(), Input::KernelUp { pid: 8 }]);
                }
                ["agent:", op] if op.starts_with("state.") => {
                    self.requests += 1;
                    self.due
                        .push_back(Input::Agent(Parcel::answer(self.requests, json!({}))));
                }
                _ => {}
            }
        }
    }

    fn next_cell(&mut self) -> String {
        self.next += 1;
        let cell = format!("c{}", self.next);
        self.open.insert(cell.clone());
        cell
    }

    fn interrupt(&mut self, world: &mut World, by_message: bool) -> Vec<String> {
        let of_order = |cell: &&String| !self.outside.contains(*cell);
        let had = self
            .kernel
            .iter()
            .chain(self.forgotten.iter().filter(|c| self.open.contains(*c)));
        let runs = had.into_iter().any(|cell| of_order(&cell));
        let mut waits = self.open.iter().filter(of_order).filter(|cell| {
            let place = world.place(cell);
            place.is_some() && place != Some(Place::Running)
        });
        let waits = waits.any(|_| !runs);
        let starts = !matches!(world.core.phase, Phase::Up | Phase::Over);
        let out = match by_message {
            true => world.request(Channel::Control, "interrupt_request", "i", &json!({}), &json!({})),
            false => world.input(Input::Interrupt),
        };
        let answered = out.contains(&"front: interrupt_reply i".to_owned());
        let passed = out.contains(&"kernel: interrupt_request".to_owned());
        assert_eq!(answered ^ passed, by_message, "it is answered once: {out:?}");
        let struck = passed || out.contains(&"interrupt".to_owned());
        assert!(
            !struck || (!waits && !starts),
            "it is for the cell that waits: {out:?}"
        );
        out
    }

    fn take(&mut self, world: &mut World, step: &Step) {
        let out = match step {
            Step::Run {
                gpus,
                stop_on_error,
                silent,
            } => {
                let cell = self.next_cell();
                let content = json!({"code": cell, "stop_on_error": stop_on_error, "silent": silent});
                let need = if *gpus == 0 {
                    Value::Null
                } else {
                    json!({"gpus": gpus})
                };
                world.run_with(&cell, &content, need)
            }
            Step::RunOutside => {
                let cell = self.next_cell();
                self.outside.insert(cell.clone());
                let header = json!({"msg_id": cell, "msg_type": "execute_request", "subshell_id": "1"});
                world.request_as(header, Channel::Shell, &json!({}), &json!({"code": cell}))
            }
            Step::Reply { ok } if !self.kernel.is_empty() => {
                let cell = self.kernel.remove(0);
                self.ran.push(cell.clone());
                self.overtaken.extend(self.forgotten.iter().cloned());
                world.reply(&cell, if *ok { "ok" } else { "error" })
            }
            Step::Abort => {
                let waits = |cell: &String| !self.begun.contains(cell) && !self.ended.contains(cell);
                let Some(at) = self.kernel.iter().position(waits) else {
                    return;
                };
                let cell = self.kernel.remove(at);
                world.reply(&cell, "aborted")
            }
            Step::Forget => {
                if self.kernel.is_empty() {
                    return;
                }
                let cell = self.kernel.remove(0);
                if self.begun.contains(&cell) || self.ended.contains(&cell) {
                    self.ran.push(cell.clone());
                }
                world.says_idle(&cell);
                self.forgotten.push(cell);
                Vec::new()
            }
            Step::ReplyLate => match self.forgotten.pop() {
                // A kernel replies in order: a reply behind a later cell's never comes.
                Some(cell)
                    if self.overtaken.contains(&cell)
                        && !world.core.cells.is_given_up(&cell.as_str().into()) =>
                {
                    self.forgotten.push(cell);
                    return;
                }
                Some(cell) => {
                    // It ran, which nothing had told before.
                    if !self.begun.contains(&cell) && !self.ended.contains(&cell) {
                        self.ran.push(cell.clone());
                    }
                    world.reply(&cell, "ok")
                }
                None => return,
            },
            Step::Record => {
                let Some(record) = world.core.durable.as_ref().filter(|d| d.captures()) else {
                    return;
                };
                let record = record.journal.next_record().0;
                let cells: Vec<Value> = self.ran.drain(..).map(|cell| json!({"msg_id": cell})).collect();
                world.captured("state.record", json!({"cells": cells, "record": record}))
            }
            Step::Begin if self.durable && !self.kernel.is_empty() => {
                self.begun.insert(self.kernel[0].clone());
                world.begins(&self.kernel[0]);
                Vec::new()
            }
            Step::End { whole } if self.durable && !self.kernel.is_empty() => {
                let cell = self.kernel[0].clone();
                let said = match whole {
                    true => {
                        let record = world.core.durable.as_ref().unwrap().journal.next_record().0;
                        json!({"msg_id": cell, "status": "whole", "plain": 3, "record": record})
                    }
                    false => json!({"msg_id": cell, "status": "later", "plain": 3}),
                };
                let plain = world.core.members() > 0 && !world.core.lease.is_for(&cell.as_str().into());
                if plain && world.place(&cell) == Some(Place::Running) {
                    self.ended.insert(cell);
                }
                world.captured("state.cell", said)
            }
            Step::Commit { all: true } => world.commit(),
            Step::Commit { all: false } => world.commit_one(),
            Step::Grant => {
                let Some(cell) = self.asked.take() else { return };
                self.next += 1;
                self.leases.insert(self.next, cell.clone());
                world.grant(&cell, self.next, 1)
            }
            Step::Refuse => {
                let Some(cell) = self.asked.clone() else { return };
                if world.place(&cell) != Some(Place::Standing) {
                    self.asked = None;
                }
                world.refuse(&cell)
            }
            Step::Revoke { which } => {
                let Some(lease) = self.leases.keys().nth(*which).copied() else {
                    return;
                };
                world.revoke(lease)
            }
            Step::Park => {
                let Some((lease, cell)) = self.leases.iter().next().map(|(l, c)| (*l, c.clone())) else {
                    return;
                };
                world.park(&cell, lease)
            }
            Step::Errand { well, broken } => {
                let Some(errand) = self.errand.take() else { return };
                world.errand(end_of(errand, *well, *broken))
            }
            Step::Interrupt { by_message } => self.interrupt(world, *by_message),
            Step::Acquire { gpus } => world.agent(1, "need.acquire", json!({"need": {"gpus": gpus}})),
            Step::Release => world.agent(2, "need.release", json!({})),
            Step::Reconnect => world.hopd(News::Up),
            Step::Die if !self.durable => return,
            Step::Die => world.input(Input::Exited(Exit {
                reason: "why".into(),
                killed: true,
            })),
            Step::Serve => {
                let Some(input) = self.due.pop_front() else { return };
                world.input(input)
            }
            Step::Announce => {
                let content = json!({"comm_id": "c", "target_name": "gresshopper", "data": {"version": 1}});
                let header = json!({"msg_id": "c", "msg_type": "comm_open", "session": "another"});
                world.request_as(header, Channel::Shell, &json!({}), &content)
            }
            Step::ReleaseNow => {
                let content = json!({"comm_id": "c", "data": {"release": true}});
                world.request(Channel::Shell, "comm_msg", "r", &json!({}), &content)
            }
            Step::Wait { ms } => {
                // The store writes what it has within a second.
                let written = self.appended.take_if(|_| *ms >= 1_000);
                self.due.extend(written.map(|record| synced(self.tenure, record)));
                world.after(Span::from_millis(*ms))
            }
            Step::Reply { .. } | Step::Begin | Step::End { .. } => return,
        };
        self.see(&out);
        if let Some(heard) = &self.heard {
            let notice = world.core.notice();
            assert_eq!(
                heard,
                notice["state"].as_str().unwrap(),
                "an announced client knows the state"
            );
        }
    }
}

fn synced(tenure: Tenure, record: u64) -> Input {
    Input::Synced(Settled {
        tenure,
        part: 0,
        upto: RecordNumber(record),
        length: 100 * record,
        mac: "11".into(),
    })
}

fn hello() -> Input {
    let mut parcel = Parcel::default();
    (parcel.wire.op, parcel.wire.id) = (Some("hello".into()), Some(1));
    parcel.wire.body = json!({"version": crate::agent::VERSION});
    Input::Agent(parcel)
}

fn end_of(errand: Errand, well: bool, broken: bool) -> ErrandEnd {
    let why = || "why".to_owned();
    let left = || if well { Left::Parked } else { Left::Failed(why()) };
    match errand {
        _ if broken => ErrandEnd::Broken(why()),
        Errand::Leave | Errand::StopAgain => ErrandEnd::Left(left()),
        Errand::Stop => ErrandEnd::Stopped(left()),
        Errand::Return if well => ErrandEnd::Returned(Returned::Back),
        Errand::Return => ErrandEnd::Returned(Returned::StillAway(why())),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// One replica, and a log.
    Durable,
    /// The same, and replies wait for their cells' effects.
    BeforeReply,
    /// Three replicas. What is proposed is committed some time later.
    Grouped,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_in_whatever_order(
        kind in prop_oneof![
            Just(Kind::Plain), Just(Kind::Durable), Just(Kind::BeforeReply), Just(Kind::Grouped),
        ],
        steps in prop::collection::vec(step(), 1..160),
    ) {
        let durable = kind != Kind::Plain;
        let mut others = Others { durable, ..Others::default() };
        let mut world = match kind {
            Kind::Plain => World::up(),
            Kind::Durable | Kind::BeforeReply => {
                let given = super::durable::durably(super::durable::state(1));
                let before_reply = kind == Kind::BeforeReply;
                let mut world = World::new(given.map(|d| Durably { before_reply, ..d }));
                others.due.extend([hello(), Input::KernelUp { pid: 7 }]);
                others.tenure = world.core.tenure();
                world.hopd(News::Up);
                world
            }
            Kind::Grouped => {
                others.requests = 1;
                let mut world = super::group::grown();
                world.permits = false;
                (others.tenure, others.syncs) = (world.core.tenure(), world.sync.0);
                world
            }
        };
        for step in &steps {
            others.take(&mut world, step);
            if others.killed {
                return Ok(());
            }
        }
        // Everybody does their part from now on: all requests are answered, and nothing is held.
        for _ in 0..500 {
            for step in [
                Step::Serve,
                Step::Errand { well: true, broken: false },
                Step::Release,
                Step::Grant,
                Step::Errand { well: true, broken: false },
                Step::Reply { ok: true },
                Step::Record,
                Step::Serve,
                Step::Commit { all: true },
                Step::Wait { ms: if durable { 1_000 } else { 400_000 } },
            ] {
                others.take(&mut world, &step);
            }
            // A group whose commits had been late may go on elsewhere, and answers there.
            if others.killed {
                return Ok(());
            }
            if others.open.is_empty() {
                break;
            }
        }
        prop_assert!(others.open.is_empty(), "never answered: {:?}", others.open);
        for _ in 0..20 {
            for step in [Step::Record, Step::Commit { all: true }, Step::Serve, Step::Wait { ms: 1_000 }] {
                others.take(&mut world, &step);
            }
            if others.killed {
                return Ok(());
            }
        }
        // An agent that was waited for in vain captures nothing.
        let durable = world.core.durable.as_ref().filter(|d| d.captures());
        let at_stake = durable.map_or(0, |d| d.journal.state().cells_at_stake());
        prop_assert_eq!(at_stake, 0, "never saved");
        let leases: Vec<u64> = others.leases.keys().copied().collect();
        for lease in leases {
            let out = world.revoke(lease);
            others.see(&out);
            others.take(&mut world, &Step::Errand { well: true, broken: false });
            others.take(&mut world, &Step::Errand { well: true, broken: false });
        }
        prop_assert!(others.leases.is_empty(), "never released: {:?}", others.leases);
    }
}
