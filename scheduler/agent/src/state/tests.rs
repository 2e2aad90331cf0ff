//! Each test says what was put out and that nothing else was; the state's own invariants are checked after each
//! input.

use super::*;
use hop_api::message::SeatStep;
use hop_handover::token::{Device as TokenDevice, HandedOver, Hold, Holder, Level, Refused};
use hop_words::id::{CellId, JobId};

const T0: Timestamp = Timestamp(1_000_000_000);
const GRACE: Span = Span::from_secs(2);

fn at(ms: u64) -> Timestamp {
    T0 + Span::from_millis(ms)
}

struct Bench {
    state: AgentState,
    now: Timestamp,
}

impl Bench {
    fn with(isolation: Isolation) -> Self {
        let slot = |index| GpuSlot {
            index: GpuIndex(index),
            gpu_type: "".into(),
            mem_mib: 0,
            blocked: None,
        };
        let state = AgentState::new(PilotFacts {
            node: "n1".into(),
            pilot: JobId(9),
            pool: "main".into(),
            gpus: vec![slot(0), slot(1)],
            cpus: 8,
            ends: None,
            steps_max: 40_000,
            isolation,
            grace: GRACE,
            waits: Waits::default(),
            term: Term(5),
        });
        let mut bench = Self { state, now: T0 };
        bench.quiet(Input::Epochs { from: 100, to: 356 });
        bench
    }

    fn new() -> Self {
        Self::with(Isolation::Plugin)
    }

    fn put(&mut self, input: Input) -> Vec<String> {
        let out = self.state.handle(input, self.now);
        self.state.sanity_check();
        out.iter().map(short).collect()
    }

    fn quiet(&mut self, input: Input) {
        let out = self.put(input);
        assert!(out.is_empty(), "{out:?}");
    }

    fn expect(&mut self, input: Input, expected: &[&str]) {
        assert_eq!(self.put(input), expected);
    }

    fn tick(&mut self, ms: u64, expected: &[&str]) {
        self.now = at(ms);
        self.expect(Input::Tick, expected);
    }

    /// A lease of one GPU that runs; its step is numbered as its lease.
    fn live(&mut self, lease: u64, gpu: u16) {
        let epoch = self.state.epochs.start;
        self.expect(start(lease, 1), &[&format!("step {lease} epoch {epoch}")]);
        self.expect(
            handed(lease, epoch, &[gpu]),
            &[
                &format!("started {lease} [{gpu}]"),
                &format!("watch {lease}"),
                &format!("detach {lease}"),
                &format!("checkpoint {lease}"),
            ],
        );
        self.quiet(holder(lease, &[gpu]));
    }
}

/// An output in a few words.
fn short(output: &Output) -> String {
    match output {
        Output::Report(Request::AgentUp(up)) => format!(
            "up leases {:?} ended {:?}",
            up.leases.iter().map(|l| l.order.lease.0).collect::<Vec<_>>(),
            up.ended.iter().map(|l| l.order.lease.0).collect::<Vec<_>>()
        ),
        Output::Report(Request::LeaseStarted { lease, handover }) => format!(
            "started {lease} {:?}",
            handover.devices.iter().map(|d| d.index.0).collect::<Vec<_>>()
        ),
        Output::Report(Request::LeaseFailed {
            lease, device_lost, ..
        }) => format!("failed {lease}{}", if *device_lost { " lost" } else { "" }),
        Output::Report(Request::LeaseEnded(ended)) => format!(
            "ended {} {:?}{}",
            ended.order.lease,
            ended.end.cause,
            if ended.end.clean { "" } else { " unclean" }
        ),
        Output::Report(Request::SlotBlocked { index, lost, .. }) => {
            format!("blocked {index}{}", if *lost { "" } else { " for now" })
        }
        Output::Report(Request::SlotUnblocked { index }) => format!("free {index}"),
        Output::Report(Request::NodeStands(standing)) => format!("stands {}", standing.isolation),
        Output::Report(other) => format!("{other:?}"),
        Output::StartStep { order, epoch } => format!("step {} epoch {epoch}", order.lease),
        Output::KeepCheckpoint { lease, .. } => format!("checkpoint {lease}"),
        Output::Detach { lease } => format!("detach {lease}"),
        Output::EndHolder { lease } => format!("end holder {lease}"),
        Output::EndStep { lease } => format!("end step {lease}"),
        Output::StartGuard { number, gpu_type } => format!("guard {number} {gpu_type}").trim_end().into(),
        Output::EndGuardStart => "end start of guard".into(),
        Output::EndGuard { index } => format!("end guard of {index}"),
        Output::AskPreemption { lease } => format!("preempted? {lease}"),
        Output::Rescue { lease, epoch, .. } => format!("rescue {lease} epoch {epoch}"),
        Output::Look(look) => {
            let indices: Vec<u16> = look.again.iter().map(|i| i.0).collect();
            format!(
                "look {indices:?} {}",
                look.operator.as_ref().map_or("", |o| o.as_str())
            )
        }
        Output::Watch { lease, .. } => format!("watch {lease}"),
        Output::Forget { lease } => format!("forget {lease}"),
        Output::KeepTerm(term) => format!("keep term {term}"),
        Output::ReserveEpochs { above: 0 } => "reserve".into(),
        Output::ReserveEpochs { above } => format!("reserve above {above}"),
        Output::HangUp { .. } => "hang up".into(),
        Output::Warn(_) => "warn".into(),
        Output::Exit => "exit".into(),
    }
}

fn order(lease: u64, gpus: u16, term: u64) -> StartLease {
    StartLease {
        term: Term(term),
        lease: LeaseId(lease),
        pilot: JobId(9),
        user: "alice".into(),
        account: None,
        pool: "main".into(),
        name: "digits.ipynb".into(),
        submit: Timestamp(1),
        kernel: "k".into(),
        cell: CellId::from("c"),
        executor: SeatStep {
            job: JobId(3),
            step: 0,
            pid: 77,
            start_time: 5,
            uid: 1001,
        },
        gpus,
        gpu_type: None,
        cpus: 1,
        step_name: "alice/k/c".into(),
    }
}

fn start(lease: u64, gpus: u16) -> Input {
    Input::Order(Order::StartLease(order(lease, gpus, 5)))
}

fn end(lease: u64, cause: EndCause) -> Input {
    Input::Order(Order::EndLease {
        term: Term(5),
        lease: LeaseId(lease),
        cause,
        grace: GRACE,
    })
}

fn acknowledged(lease: u64) -> Input {
    Input::Order(Order::EndAcknowledged {
        term: Term(5),
        lease: LeaseId(lease),
    })
}

fn handed(lease: u64, epoch: u64, gpus: &[u16]) -> Input {
    Input::Confirmed(Confirmation::HandedOver(HandedOver {
        level: Level::Counted,
        lease: LeaseId(lease),
        node: "n1".into(),
        handover: Handover {
            epoch: Epoch(epoch),
            pilot: JobId(9),
            step: u32::try_from(lease).unwrap(),
            devices: gpus
                .iter()
                .map(|g| TokenDevice {
                    index: GpuIndex(*g),
                    path: format!("/dev/gpu{g}").into(),
                    major: 4,
                    minor: u32::from(*g),
                })
                .collect(),
            cores: String::new(),
            at: T0,
        },
    }))
}

fn taken(lease: u64, gpu: u16, clean: bool) -> Input {
    let holder = Holder {
        pid: 88,
        uid: 1001,
        exe: String::new(),
        how: Hold::Descriptor,
        why: "it is in an uninterruptible sleep".into(),
    };
    Input::Confirmed(Confirmation::TakenBack(TakenBack {
        level: Level::Counted,
        lease: LeaseId(lease),
        epoch: Epoch(100),
        node: "n1".into(),
        pilot: JobId(9),
        devices: vec![GpuIndex(gpu)],
        clean,
        blocked: if clean { vec![] } else { vec![GpuIndex(gpu)] },
        ended_pids: vec![],
        holders: if clean { vec![] } else { vec![holder] },
        at: T0,
    }))
}

fn refused(lease: u64, reason: Refusal) -> Input {
    Input::Confirmed(Confirmation::Refused(Refused {
        lease: Some(LeaseId(lease)),
        pilot: JobId(9),
        step: 0,
        reason,
        at: T0,
    }))
}

fn holder(lease: u64, gpus: &[u16]) -> Input {
    Input::HolderUp {
        lease: LeaseId(lease),
        step: u32::try_from(lease).unwrap(),
        gpus: gpus.iter().map(|g| GpuIndex(*g)).collect(),
        checkpoint: None,
    }
}

fn gone(lease: u64) -> Input {
    Input::HolderGone {
        lease: LeaseId(lease),
    }
}

fn exited(lease: u64) -> Input {
    Input::StepExited {
        lease: LeaseId(lease),
        detail: "srun ended".into(),
        word: SrunWord::None,
    }
}

fn ended_by(lease: u64, by: SlurmEnd) -> Input {
    Input::StepExited {
        lease: LeaseId(lease),
        detail: "*** STEP 9.1 ON n1 CANCELLED AT 12:00 ***".into(),
        word: SrunWord::Ended(by),
    }
}

fn no_slurmctld(lease: u64) -> Input {
    Input::StepExited {
        lease: LeaseId(lease),
        detail: "Unable to contact slurm controller".into(),
        word: SrunWord::Away,
    }
}

#[test]
fn a_lease_starts_by_the_plugins_word_alone_and_ends_by_it() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    // A holder says that Slurm has started the step, not that the device was handed over.
    b.quiet(holder(1, &[0]));
    b.expect(
        handed(1, 100, &[0]),
        &["started 1 [0]", "watch 1", "detach 1", "checkpoint 1"],
    );
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.quiet(gone(1));
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 Done"]);
    b.quiet(exited(1));
    b.quiet(acknowledged(1));
    assert_eq!(b.state.next_wake(), None);
}

#[test]
fn the_end_waits_for_the_take_back_and_not_for_the_step() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(end(1, EndCause::Claimed), &["end holder 1"]);
    b.quiet(exited(1));
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 Claimed"]);
    assert_eq!(b.state.next_wake(), None);
}

#[test]
fn the_next_lease_starts_while_slurm_clears_the_last_ones_step_away() {
    for exits_before_the_handover in [true, false] {
        let mut b = Bench::new();
        b.live(1, 0);
        b.live(2, 1);
        b.expect(end(1, EndCause::Claimed), &["end holder 1"]);
        b.expect(start(3, 1), &["failed 3"]);
        b.expect(taken(1, 0, true), &["forget 1", "ended 1 Claimed"]);
        b.expect(start(4, 1), &["step 4 epoch 102"]);
        // Slurm knows the old step still: it is nobody's orphan.
        b.quiet(Input::OrphanStep { step: 1 });
        if exits_before_the_handover {
            b.quiet(exited(1));
        }
        let started = ["started 4 [0]", "watch 4", "detach 4", "checkpoint 4"];
        b.expect(handed(4, 102, &[0]), &started);
        b.quiet(holder(4, &[0]));
        // Slurm gave the device to the next step, so the first one's can't be stuck.
        b.tick(40_000, &[]);
        b.quiet(exited(1));
    }
}

#[test]
fn a_device_that_is_lent_is_refused_a_second_time_whatever_slurm_does() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(start(2, 1), &["step 2 epoch 101"]);
    assert_eq!(b.state.agent_up().starting, [LeaseId(2)]);
    b.expect(handed(2, 101, &[0]), &["warn"]);
    b.expect(holder(2, &[0]), &["end holder 2"]);
    assert_eq!(b.state.agent_up().leases.len(), 2, "its GPU isn't free yet");
    b.expect(taken(2, 0, true), &["forget 2", "failed 2"]);
    b.quiet(exited(2));
    // The first is untouched.
    assert_eq!(b.state.agent_up().leases.len(), 1);
}

#[test]
fn other_numbers_of_gpus_and_other_epochs_than_ordered_are_refused() {
    let mut b = Bench::new();
    b.expect(start(1, 2), &["step 1 epoch 100"]);
    b.expect(handed(1, 100, &[0]), &["warn"]);
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.expect(handed(1, 99, &[0]), &["warn"]);
}

#[test]
fn more_gpus_than_are_free_are_refused_at_once() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(start(2, 2), &["failed 2"]);
    b.live(3, 1);
    b.expect(start(4, 1), &["failed 4"]);
    b.expect(start(5, 0), &["step 5 epoch 102"]);
}

#[test]
fn an_order_is_carried_out_once_and_its_outcome_told_again() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.quiet(start(1, 1));
    b.expect(
        handed(1, 100, &[1]),
        &["started 1 [1]", "watch 1", "detach 1", "checkpoint 1"],
    );
    b.expect(start(1, 1), &["started 1 [1]"]);
    b.quiet(end(1, EndCause::Done));
    b.quiet(end(1, EndCause::Claimed));
    b.expect(taken(1, 1, true), &["forget 1", "ended 1 Done"]);
    b.quiet(exited(1));
    b.expect(end(1, EndCause::Claimed), &["ended 1 Done"]);
    b.quiet(start(1, 1));
}

#[test]
fn lower_terms_are_refused_and_a_higher_one_takes_over() {
    let mut b = Bench::new();
    // The older one learns of the younger.
    b.expect(
        Input::Connected { term: Term(4) },
        &["warn", "up leases [] ended []"],
    );
    b.expect(Input::ReportRefused, &["hang up"]);
    b.quiet(Input::ReportRefused);
    b.expect(
        Input::Order(Order::StartLease(order(1, 1, 4))),
        &["warn", "hang up"],
    );
    b.expect(Input::Order(Order::Drain { term: Term(4) }), &["warn", "hang up"]);
    b.expect(Input::Connected { term: Term(6) }, &["up leases [] ended []"]);
    b.expect(start(1, 1), &["warn", "hang up"]);
    b.expect(
        Input::Order(Order::StartLease(order(1, 1, 6))),
        &["step 1 epoch 100"],
    );
    // Another agent of this node has met a younger one.
    b.quiet(Input::NodeTerm(Term(8)));
    b.expect(Input::Order(Order::Drain { term: Term(6) }), &["warn", "hang up"]);
    assert_eq!(b.state.term(), Term(8));
}

fn term_failed(term: u64) -> Input {
    Input::TermFailed {
        term: Term(term),
        why: "no space left on device".into(),
    }
}

#[test]
fn a_full_disk_ends_no_lease_and_the_term_is_written_when_there_is_room() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(term_failed(6), &["warn"]);
    b.expect(Input::Connected { term: Term(6) }, &["up leases [1] ended []"]);
    // The older hopd is obeyed no more, whatever the disk has.
    b.expect(Input::Order(Order::Drain { term: Term(5) }), &["warn", "hang up"]);
    b.quiet(Input::NodeTerm(Term(5)));
    b.expect(
        Input::Connected { term: Term(5) },
        &["warn", "up leases [1] ended []"],
    );
    b.tick(999, &[]);
    b.tick(1_000, &["keep term 6"]);
    b.tick(60_000, &[]);
    // Said once.
    b.quiet(term_failed(6));
    b.tick(61_000, &["keep term 6"]);
    b.expect(Input::TermKept(Term(6)), &["warn"]);
    b.tick(120_000, &[]);
    assert_eq!(b.state.next_wake(), None);
    assert_eq!(b.state.agent_up().leases.len(), 1);
}

#[test]
fn while_a_term_is_being_written_a_higher_one_is_not_forgotten() {
    let mut b = Bench::new();
    b.expect(term_failed(6), &["warn"]);
    b.tick(1_000, &["keep term 6"]);
    b.quiet(term_failed(7));
    b.expect(Input::Connected { term: Term(7) }, &["up leases [] ended []"]);
    b.quiet(Input::TermKept(Term(6)));
    b.tick(2_000, &["keep term 7"]);
    // Another agent's word, read from the record.
    b.quiet(Input::NodeTerm(Term(8)));
    b.expect(Input::TermKept(Term(7)), &["keep term 8"]);
    b.expect(Input::TermKept(Term(8)), &["warn"]);
    assert_eq!(b.state.next_wake(), None);
    // The record may have a higher one than the welcome.
    b.quiet(Input::TermKept(Term(9)));
    b.expect(
        Input::Connected { term: Term(8) },
        &["warn", "up leases [] ended []"],
    );
}

#[test]
fn however_many_ends_nobody_has_acknowledged_each_part_of_the_report_fits_a_frame() {
    const ENDS: u64 = 5_000;
    let mut b = Bench::new();
    b.live(1, 0);
    for lease in 2..2 + ENDS {
        let (next, from) = (b.state.epochs.start, b.state.epochs.end);
        if from - next < 20 {
            let _ = b.put(Input::Epochs { from, to: from + 256 });
        }
        b.live(lease, 1);
        let _ = b.put(end(lease, EndCause::Done));
        let _ = b.put(taken(lease, 1, true));
        let _ = b.put(exited(lease));
    }
    let out = b.state.handle(Input::Connected { term: Term(6) }, b.now);
    let parts: Vec<_> = out
        .into_iter()
        .map(|o| match o {
            Output::Report(Request::AgentUp(up)) => *up,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(parts.len() > 1);
    let (last, before) = parts.split_last().unwrap();
    assert!(!last.more && before.iter().all(|p| p.more));
    let told = parts.iter().flat_map(|p| p.ended.iter().map(|e| e.order.lease.0));
    assert_eq!(told.collect::<Vec<_>>(), (2..2 + ENDS).collect::<Vec<_>>());
    for part in parts {
        assert_eq!(part.leases.len(), 1, "what lives is in each part");
        let body = Request::AgentUp(Box::new(part));
        let frame = serde_json::to_vec(&hop_api::message::ToHopd { id: 0, body }).unwrap();
        assert!(
            frame.len() < hop_api::channel::TO_HOPD_LIMIT / 2,
            "{}",
            frame.len()
        );
    }
    b.state.sanity_check();
}

#[test]
fn a_killed_srun_does_not_end_a_lease() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(exited(1));
    assert_eq!(b.state.agent_up().leases.len(), 1);
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.quiet(gone(1));
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 Done"]);
}

#[test]
fn a_step_that_slurm_does_not_start_fails_with_its_reason() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    let out = b.state.handle(exited(1), b.now);
    let reason = out.iter().find_map(|o| match o {
        Output::Report(Request::LeaseFailed { reason, .. }) => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.unwrap().contains("srun ended"));
    b.live(2, 0);
}

#[test]
fn without_confirmation_in_time_the_step_is_ended_and_a_late_one_is_taken_back() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    // Slurm may have forgotten that it was asked.
    for n in 1..=2 {
        b.tick(n * 12_000 - 1, &[]);
        b.tick(n * 12_000, &["end step 1"]);
        b.expect(exited(1), &[&format!("step 1 epoch {}", 100 + n)]);
    }
    b.tick(53_999, &[]);
    b.tick(54_000, &["end step 1"]);
    // The plugin was only slow: what it handed over has to come back before the lease is over.
    b.quiet(handed(1, 102, &[0]));
    b.quiet(exited(1));
    b.expect(taken(1, 0, true), &["forget 1", "failed 1"]);
}

#[test]
fn a_step_that_comes_when_another_was_to_be_asked_for_is_taken_back() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.tick(12_000, &["end step 1"]);
    b.expect(handed(1, 100, &[0]), &["warn"]);
    b.quiet(exited(1));
    b.expect(taken(1, 0, true), &["forget 1", "failed 1"]);
}

#[test]
fn while_slurmctld_is_away_a_lease_waits_and_does_not_fail() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    for n in 1..100 {
        b.quiet(no_slurmctld(1));
        b.tick(n * 1_000 - 1, &[]);
        b.tick(n * 1_000, &[&format!("step 1 epoch {}", 100 + n)]);
    }
    b.quiet(no_slurmctld(1));
    b.expect(end(1, EndCause::Cancelled), &["forget 1", "failed 1"]);
    assert_eq!(b.state.next_wake(), None);
}

#[test]
fn a_step_without_the_plugin_fails_soon_and_says_so() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.quiet(holder(1, &[0]));
    b.tick(1_999, &[]);
    b.tick(2_000, &["end step 1", "end holder 1"]);
    let mut out = b.state.handle(gone(1), b.now);
    out.extend(b.state.handle(exited(1), b.now));
    let reason = out.iter().find_map(|o| match o {
        Output::Report(Request::LeaseFailed { reason, .. }) => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.unwrap().contains("without the plugin"));
}

#[test]
fn a_refusal_of_the_plugin_fails_the_lease_and_a_blocked_device_is_not_lent_again() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.quiet(holder(1, &[0]));
    b.expect(refused(1, Refusal::RootKernel), &["end step 1", "end holder 1"]);
    b.expect(exited(1), &["forget 1", "failed 1"]);
    b.expect(start(2, 1), &["step 2 epoch 101"]);
    b.expect(refused(2, blocked(0)), &["blocked 0 for now", "end step 2"]);
    b.expect(exited(2), &["guard 1"]);
    b.expect(guard_up(8, 0), &["step 2 epoch 102"]);
    b.expect(refused(2, Refusal::RootKernel), &["end step 2"]);
    b.expect(exited(2), &["forget 2", "failed 2"]);
    b.live(3, 1);
    b.expect(start(4, 1), &["failed 4"]);
}

fn blocked(gpu: u16) -> Refusal {
    Refusal::Blocked {
        index: GpuIndex(gpu),
        why: "pid 3 holds it".into(),
    }
}

fn guard_up(step: u32, gpu: u16) -> Input {
    let gpus = vec![GpuIndex(gpu)];
    Input::GuardUp { step, gpus }
}

fn guard_gone(gpu: u16) -> Input {
    let index = GpuIndex(gpu);
    Input::GuardGone { index }
}

fn guard_exited(number: u64) -> Input {
    let detail = "srun: error".into();
    Input::GuardExited { number, detail }
}

#[test]
fn a_lease_waits_until_each_blocked_gpu_has_a_guard() {
    let mut b = Bench::new();
    b.expect(stands(&[1]), &["blocked 1 for now", "stands counted", "guard 1"]);
    b.quiet(start(1, 1));
    // Slurm gives the lowest index.
    b.expect(guard_up(0, 0), &["guard 2"]);
    b.expect(guard_up(1, 1), &["end guard of 0", "step 1 epoch 100"]);
    b.quiet(guard_gone(0));
    b.quiet(guard_exited(1));
    b.quiet(guard_exited(2));
    b.expect(
        handed(1, 100, &[0]),
        &["started 1 [0]", "watch 1", "detach 1", "checkpoint 1"],
    );
    b.quiet(holder(1, &[0]));
    // An earlier agent's steps, of which one has a guard.
    b.quiet(Input::OrphanStep { step: 1 });
    b.expect(stands(&[]), &["free 1", "stands counted", "end guard of 1"]);
    b.quiet(guard_gone(1));
    b.live(2, 1);
}

#[test]
fn leases_of_cores_alone_and_of_others_go_on_while_a_gpu_gets_its_guard() {
    let mut b = Bench::new();
    b.live(1, 1);
    b.expect(start(2, 0), &["step 2 epoch 101"]);
    b.expect(stands(&[0]), &["blocked 0 for now", "stands counted", "guard 1"]);
    b.expect(start(4, 0), &["step 4 epoch 102"]);
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.expect(taken(1, 1, true), &["forget 1", "ended 1 Done"]);
    b.quiet(exited(1));
    b.quiet(guard_up(5, 0));
    b.live(3, 1);
}

#[test]
fn a_device_of_a_lease_gets_its_guard_once_slurm_has_it_back() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.expect(
        taken(1, 0, false),
        &["forget 1", "blocked 0 for now", "ended 1 Done unclean"],
    );
    b.expect(exited(1), &["guard 1"]);
    b.quiet(guard_up(4, 0));
    b.tick(60_000, &["look [0] "]);
    b.live(2, 1);
}

#[test]
fn of_a_lease_the_devices_that_nobody_holds_are_lent_on() {
    let mut b = Bench::new();
    b.expect(start(1, 2), &["step 1 epoch 100"]);
    b.put(handed(1, 100, &[0, 1]));
    b.quiet(holder(1, &[0, 1]));
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    let Input::Confirmed(Confirmation::TakenBack(taken)) = taken(1, 1, false) else {
        unreachable!()
    };
    let devices = vec![GpuIndex(0), GpuIndex(1)];
    let taken = Input::Confirmed(Confirmation::TakenBack(TakenBack { devices, ..taken }));
    b.expect(
        taken,
        &["forget 1", "blocked 1 for now", "ended 1 Done unclean", "free 0"],
    );
    b.expect(exited(1), &["guard 1"]);
    b.quiet(guard_up(4, 1));
    b.live(2, 0);
}

#[test]
fn leases_do_without_a_guard_that_slurm_does_not_start() {
    let mut b = Bench::new();
    b.expect(stands(&[0]), &["blocked 0 for now", "stands counted", "guard 1"]);
    b.quiet(start(1, 1));
    b.expect(guard_exited(1), &["warn", "step 1 epoch 100"]);
    b.expect(refused(1, blocked(0)), &["blocked 0 for now", "end step 1"]);
    b.expect(exited(1), &["step 1 epoch 101"]);
    b.expect(refused(1, blocked(0)), &["end step 1"]);
    b.expect(exited(1), &["forget 1", "failed 1"]);
    b.tick(59_999, &[]);
    b.tick(60_000, &["look [0] ", "guard 2"]);
    b.quiet(start(2, 1));
    b.tick(70_000, &["end start of guard", "warn", "step 2 epoch 102"]);
    b.quiet(guard_exited(2));
    // It came up all the same.
    b.quiet(guard_up(3, 0));
    b.expect(refused(2, Refusal::RootKernel), &["end step 2"]);
    b.expect(exited(2), &["forget 2", "failed 2"]);
    b.live(3, 1);
}

#[test]
fn an_earlier_agents_guards_stay_until_the_plugin_has_spoken() {
    let mut b = Bench::new();
    b.quiet(guard_up(3, 0));
    b.quiet(guard_up(4, 1));
    b.quiet(Input::OrphanStep { step: 3 });
    b.expect(
        stands(&[0]),
        &["blocked 0 for now", "stands counted", "end guard of 1"],
    );
}

#[test]
fn another_holder_of_a_blocked_gpu_is_told() {
    let mut b = Bench::new();
    b.expect(stands(&[0]), &["blocked 0 for now", "stands counted", "guard 1"]);
    b.quiet(guard_up(3, 0));
    b.expect(stands(&[0]), &["stands counted"]);
    let mut others = stands(&[0]);
    if let Input::Confirmed(Confirmation::Standing(standing)) = &mut others {
        standing.blocked[0].why = "process 4 holds it".into();
    }
    b.expect(others, &["blocked 0 for now", "stands counted"]);
    let told = b.state.agent_up().gpus[0].blocked.clone();
    assert_eq!(told.as_deref(), Some("process 4 holds it"));
}

#[test]
fn a_drained_agent_has_no_guards() {
    let mut b = Bench::new();
    b.expect(
        stands(&[0, 1]),
        &[
            "blocked 0 for now",
            "blocked 1 for now",
            "stands counted",
            "guard 1",
        ],
    );
    b.expect(guard_up(0, 0), &["guard 2"]);
    let drain = Input::Order(Order::Drain { term: Term(5) });
    b.expect(drain, &["exit"]);
    b.expect(guard_up(1, 1), &["end guard of 1", "end guard of 0", "exit"]);
}

#[test]
fn a_dead_slurmstepd_is_followed_by_a_take_back_step_and_its_slot_is_lost() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(gone(1));
    b.quiet(exited(1));
    b.tick(5_999, &["preempted? 1"]);
    b.quiet(preemption(1, false));
    b.tick(6_000, &["rescue 1 epoch 100", "blocked 0"]);
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 StepLost"]);
    assert!(b.state.agent_up().gpus[0].blocked.is_some());
    // The other slot goes on until the pilot is drained.
    b.live(2, 1);
}

#[test]
fn a_lease_whose_task_dies_before_it_speaks_is_taken_back() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.expect(
        handed(1, 100, &[0]),
        &["started 1 [0]", "watch 1", "detach 1", "checkpoint 1"],
    );
    b.tick(4_999, &[]);
    b.tick(5_000, &[]);
    b.tick(8_000, &["preempted? 1"]);
    b.quiet(preemption(1, false));
    b.tick(11_000, &["rescue 1 epoch 100", "blocked 0"]);
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 StepLost"]);
}

#[test]
fn a_take_back_step_that_fails_leaves_the_device_unclean() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.tick(6_000, &["rescue 1 epoch 100", "blocked 0"]);
    let failed = Input::RescueExited {
        lease: LeaseId(1),
        detail: "srun: error".into(),
    };
    b.expect(failed, &["warn", "forget 1", "ended 1 Done unclean"]);
}

#[test]
fn a_device_that_somebody_holds_on_to_is_blocked() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.expect(
        taken(1, 0, false),
        &["forget 1", "blocked 0 for now", "ended 1 Done unclean"],
    );
    b.expect(exited(1), &["guard 1"]);
    b.quiet(guard_up(4, 0));
    b.live(2, 1);
    b.expect(start(3, 1), &["failed 3"]);
}

#[test]
fn a_step_that_slurm_does_not_end_costs_the_slot() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 Done"]);
    b.tick(19_999, &[]);
    b.tick(20_000, &["warn", "blocked 0"]);
    b.quiet(exited(1));
}

#[test]
fn an_end_before_the_start_is_over_without_anything_lent() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.expect(end(1, EndCause::Cancelled), &["end step 1"]);
    // The task came up all the same.
    b.expect(holder(1, &[0]), &["end holder 1"]);
    b.expect(exited(1), &["forget 1", "failed 1"]);
}

#[test]
fn the_executors_end_ends_its_lease_though_hopd_is_away() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(Input::ExecutorGone { lease: LeaseId(1) }, &["end holder 1"]);
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 ReplicaLost"]);
    b.quiet(exited(1));
    b.expect(Input::Connected { term: Term(6) }, &["up leases [] ended [1]"]);
}

#[test]
fn an_agent_that_follows_a_dead_one_takes_its_leases_over() {
    let mut first = Bench::new();
    first.live(7, 1);
    let handover = first.state.agent_up().leases[0].handover.clone();
    let checkpoint = Box::new(LeaseCheckpoint {
        order: order(7, 1, 5),
        handover,
    });
    let mut b = Bench::new();
    let back = Input::HolderUp {
        lease: LeaseId(7),
        step: 7,
        gpus: vec![GpuIndex(1)],
        checkpoint: Some(checkpoint),
    };
    b.expect(back, &["watch 7", "started 7 [1]"]);
    b.expect(Input::Connected { term: Term(6) }, &["up leases [7] ended []"]);
    assert_eq!(b.state.agent_up().steps_used, 8);
    let order = Order::EndLease {
        term: Term(6),
        lease: LeaseId(7),
        cause: EndCause::Done,
        grace: GRACE,
    };
    b.expect(Input::Order(order), &["end holder 7"]);
    // Its srun is no child of ours: the take-back is the last that is heard.
    b.quiet(gone(7));
    b.expect(taken(7, 1, true), &["forget 7", "ended 7 Done"]);
}

#[test]
fn a_holder_that_nobody_knows_is_sent_away() {
    let mut b = Bench::new();
    b.expect(holder(4, &[0]), &["warn", "end holder 4"]);
}

#[test]
fn steps_without_holders_keep_the_idle_gpus_from_being_lent() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(Input::OrphanStep { step: 1 });
    b.expect(Input::OrphanStep { step: 0 }, &["warn", "blocked 1"]);
}

#[test]
fn when_slurm_ends_the_pilot_its_leases_end_and_the_agent_leaves_when_hopd_knows() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(Input::Terminated, &["end holder 1"]);
    b.expect(start(2, 1), &["failed 2"]);
    b.quiet(taken(1, 0, true));
    b.expect(exited(1), &["forget 1", "ended 1 PilotLost"]);
    b.expect(acknowledged(1), &["exit"]);
}

/// The detail of the lease's end.
fn told_of(b: &Bench, lease: u64) -> String {
    b.state.ended[&LeaseId(lease)].end.detail.clone()
}

#[test]
fn a_lease_whose_step_somebody_cancels_is_cancelled() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(gone(1));
    b.quiet(taken(1, 0, true));
    b.expect(ended_by(1, SlurmEnd::Cancelled), &["preempted? 1"]);
    b.tick(1_500, &[]);
    b.quiet(preemption(1, false));
    b.tick(4_499, &[]);
    b.tick(4_500, &["forget 1", "ended 1 Cancelled"]);
    assert_eq!(told_of(&b, 1), "its Slurm step was cancelled");
}

fn preemption(lease: u64, preempted: bool) -> Input {
    let lease = LeaseId(lease);
    Input::Preemption { lease, preempted }
}

/// Slurm ends the steps first, in the same words as a cancelled step, and signals the pilot when the GraceTime is over.
#[test]
fn leases_of_a_pilot_preempted_with_a_grace_time_are_the_pilots() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.live(2, 1);
    b.quiet(gone(1));
    b.expect(ended_by(1, SlurmEnd::Cancelled), &["preempted? 1"]);
    b.quiet(taken(1, 0, true));
    b.expect(preemption(1, true), &["forget 1", "ended 1 PilotLost"]);
    assert_eq!(told_of(&b, 1), "the Slurm job 9 that held the GPU was preempted");
    b.expect(start(3, 1), &["failed 3"]);
    // The take-back may come last.
    b.quiet(gone(2));
    b.expect(ended_by(2, SlurmEnd::Cancelled), &["preempted? 2"]);
    b.quiet(preemption(2, true));
    b.expect(taken(2, 1, true), &["forget 2", "ended 2 PilotLost"]);
    b.quiet(preemption(2, true));
    // Its srun was an earlier agent's child, and says nothing here.
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(gone(1));
    b.quiet(taken(1, 0, true));
    b.tick(3_000, &["preempted? 1"]);
    b.expect(preemption(1, true), &["forget 1", "ended 1 PilotLost"]);
}

#[test]
fn a_lease_ends_though_nobody_says_whether_its_pilot_is_preempted() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(gone(1));
    b.quiet(taken(1, 0, true));
    b.expect(ended_by(1, SlurmEnd::Cancelled), &["preempted? 1"]);
    let by = b.state.next_wake().unwrap();
    assert!(by <= at(10_000), "{by:?}");
    b.now = by;
    b.expect(Input::Tick, &["forget 1", "ended 1 Cancelled"]);
}

#[test]
fn a_lease_whose_pilot_slurm_ends_is_the_pilots_whatever_is_heard_first() {
    for (by, detail) in [
        (SlurmEnd::Cancelled, "the Slurm job 9 that held the GPU was ended"),
        (
            SlurmEnd::Preempted,
            "the Slurm job 9 that held the GPU was preempted",
        ),
        (
            SlurmEnd::TimeLimit,
            "the Slurm job 9 that held the GPU reached its time limit",
        ),
    ] {
        for order in ["agent, srun", "srun, agent", "agent first of all"] {
            let mut b = Bench::new();
            b.live(1, 0);
            if order == "agent first of all" {
                b.expect(Input::Terminated, &["end holder 1"]);
            }
            b.quiet(gone(1));
            b.quiet(taken(1, 0, true));
            let over = ["forget 1", "ended 1 PilotLost"];
            match order {
                "agent, srun" => {
                    b.quiet(Input::Terminated);
                    b.expect(ended_by(1, by), &over);
                }
                "srun, agent" => {
                    let mut told = b.put(ended_by(1, by));
                    told.retain(|word| word != "preempted? 1");
                    assert_eq!(
                        told.is_empty(),
                        by == SlurmEnd::Cancelled,
                        "Slurm's word is enough"
                    );
                    b.expect(Input::Terminated, if told.is_empty() { &over } else { &[] });
                }
                _ => b.expect(ended_by(1, by), &over),
            }
            assert_eq!(told_of(&b, 1), detail, "{order}");
        }
    }
}

#[test]
fn a_lost_step_is_reported_though_nothing_tells_who_ended_it() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(gone(1));
    b.quiet(taken(1, 0, true));
    b.quiet(exited(1));
    b.tick(3_000, &["preempted? 1"]);
    b.expect(preemption(1, false), &["forget 1", "ended 1 StepLost"]);
    assert_eq!(told_of(&b, 1), "its Slurm step was ended or died");
    b.live(2, 1);
    b.quiet(gone(2));
    b.quiet(ended_by(2, SlurmEnd::NodeFailed));
    b.quiet(taken(2, 1, true));
    b.tick(6_000, &["forget 2", "ended 2 NodeLost"]);
}

#[test]
fn a_drained_agent_leaves_after_its_last_lease_even_without_hopd() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.quiet(Input::Order(Order::Drain { term: Term(5) }));
    b.expect(start(2, 1), &["failed 2"]);
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.expect(taken(1, 0, true), &["forget 1", "ended 1 Done"]);
    b.quiet(exited(1));
    b.tick(29_999, &[]);
    b.tick(30_000, &["exit"]);
    let mut idle = Bench::new();
    idle.expect(Input::Order(Order::Drain { term: Term(5) }), &["exit"]);
}

#[test]
fn a_dead_slurmstepd_in_a_pilot_that_slurm_ends_is_left_to_the_epilog() {
    let mut b = Bench::new();
    b.live(1, 0);
    b.expect(Input::Terminated, &["end holder 1"]);
    b.tick(6_000, &["forget 1", "blocked 0", "ended 1 PilotLost unclean"]);
}

#[test]
fn epochs_are_reserved_before_they_run_out_and_only_grow() {
    let mut b = Bench::new();
    b.state.epochs = 338..356;
    b.expect(start(1, 0), &["step 1 epoch 338"]);
    b.expect(exited(1), &["end step 1", "forget 1", "failed 1"]);
    b.expect(start(2, 0), &["step 2 epoch 339"]);
    b.expect(exited(2), &["end step 2", "forget 2", "failed 2"]);
    b.expect(start(3, 0), &["step 3 epoch 340", "reserve above 355"]);
    b.quiet(Input::Epochs { from: 612, to: 868 });
    b.expect(start(4, 0), &["step 4 epoch 612"]);
}

#[test]
fn where_the_nodes_record_was_lost_epochs_go_on_above_the_plugins() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    let stale = Refusal::StaleEpoch {
        epoch: Epoch(100),
        last: Epoch(900),
        index: GpuIndex(0),
    };
    b.expect(refused(1, stale), &["end step 1"]);
    b.expect(exited(1), &["forget 1", "failed 1"]);
    b.expect(start(2, 1), &["reserve above 900"]);
    b.expect(Input::Epochs { from: 901, to: 1157 }, &["step 2 epoch 901"]);
}

#[test]
fn a_lease_waits_for_epochs_and_never_runs_without() {
    let mut b = Bench::new();
    b.state.epochs = 356..356;
    b.expect(start(1, 1), &["reserve above 355"]);
    b.expect(Input::Epochs { from: 612, to: 868 }, &["step 1 epoch 612"]);
}

#[test]
fn a_lease_fails_at_once_with_the_reason_why_it_has_no_epoch() {
    let mut b = Bench::new();
    b.state.epochs = 356..356;
    b.expect(start(1, 1), &["reserve above 355"]);
    let full = || Input::EpochsFailed {
        why: "No space left on device".into(),
    };
    let out = b.state.handle(full(), b.now);
    let reason = out.iter().find_map(|o| match o {
        Output::Report(Request::LeaseFailed { reason, .. }) => Some(reason.as_str()),
        _ => None,
    });
    assert_eq!(
        reason,
        Some("its node can't write down epochs: No space left on device")
    );
    // The disk is tried again.
    b.quiet(start(2, 1));
    b.tick(999, &[]);
    b.tick(1_000, &["reserve above 355"]);
    b.expect(full(), &["forget 2", "failed 2"]);
    b.tick(2_000, &["reserve above 355"]);
    b.quiet(Input::Epochs { from: 612, to: 868 });
    b.expect(start(3, 1), &["step 3 epoch 612"]);
}

#[test]
fn without_isolation_the_holders_word_is_enough() {
    let mut b = Bench::with(Isolation::None);
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    b.expect(
        holder(1, &[1]),
        &["started 1 [1]", "watch 1", "detach 1", "checkpoint 1"],
    );
    b.expect(end(1, EndCause::Done), &["end holder 1"]);
    b.quiet(gone(1));
    b.expect(exited(1), &["forget 1", "ended 1 Done"]);
}

#[test]
fn a_confirmation_for_another_pilot_changes_nothing() {
    let mut b = Bench::new();
    b.expect(start(1, 1), &["step 1 epoch 100"]);
    let Input::Confirmed(Confirmation::HandedOver(mut other)) = handed(1, 100, &[0]) else {
        unreachable!()
    };
    other.handover.pilot = JobId(10);
    b.expect(Input::Confirmed(Confirmation::HandedOver(other)), &["warn"]);
    assert!(b.state.agent_up().leases.is_empty());
}

fn stands(blocked: &[u16]) -> Input {
    let one = |index: &u16| hop_handover::token::BlockedDevice {
        index: GpuIndex(*index),
        lease: LeaseId(77),
        why: "process 5 holds it".into(),
    };
    Input::Confirmed(Confirmation::Standing(Standing {
        node: "n1".into(),
        pilot: JobId(9),
        level: Level::Counted,
        why: String::new(),
        blocked: blocked.iter().map(one).collect(),
        freed: Vec::new(),
        asked: None,
        at: T0,
    }))
}

#[test]
fn what_the_plugin_keeps_is_not_lent_before_it_is_free() {
    let mut b = Bench::new();
    assert!(b.state.first_look().is_some());
    assert!(Bench::with(Isolation::None).state.first_look().is_none());
    b.expect(stands(&[]), &["stands counted"]);
    b.expect(stands(&[1]), &["blocked 1 for now", "stands counted", "guard 1"]);
    b.expect(guard_up(0, 1), &[]);
    assert_eq!(b.state.agent_up().standing.unwrap().isolation, "counted");
    b.expect(start(1, 2), &["failed 1"]);
    b.tick(59_000, &[]);
    b.tick(60_000, &["look [1] "]);
    b.expect(stands(&[1]), &["stands counted"]);
    b.expect(stands(&[]), &["free 1", "stands counted", "end guard of 1"]);
    b.quiet(guard_gone(1));
    assert_eq!(b.state.next_wake(), None);
    b.expect(start(2, 2), &["step 2 epoch 100"]);
}

#[test]
fn an_operator_has_blocked_devices_looked_at() {
    let mut b = Bench::new();
    let release = |gpus: &[u16], term| {
        Input::Order(Order::Release {
            term: Term(term),
            gpus: gpus.iter().copied().map(GpuIndex).collect(),
            operator: "carol".into(),
            asked: T0,
        })
    };
    b.expect(release(&[], 5), &["look [0, 1] carol"]);
    b.expect(release(&[1], 5), &["look [1] carol"]);
    b.expect(release(&[1], 4), &["warn", "hang up"]);
    let answer = |at| match stands(&[]) {
        Input::Confirmed(Confirmation::Standing(standing)) => {
            Input::Confirmed(Confirmation::Standing(Standing {
                asked: at,
                ..standing
            }))
        }
        _ => unreachable!("it stands"),
    };
    let asked = |b: &Bench| b.state.agent_up().standing.and_then(|s| s.asked);
    b.expect(answer(None), &["stands counted"]);
    assert_eq!(asked(&b), None, "that look had begun before");
    b.expect(answer(Some(T0 + Span(1))), &["stands counted"]);
    b.expect(answer(Some(T0)), &["stands counted"]);
    assert_eq!(asked(&b), Some(T0 + Span(1)), "the newer stays");
    Bench::with(Isolation::None).quiet(release(&[1], 5));
}

#[test]
fn what_slurm_keeps_no_look_makes_free() {
    let mut b = Bench::new();
    b.expect(Input::OrphanStep { step: 0 }, &["warn", "blocked 0", "blocked 1"]);
    b.expect(stands(&[]), &["stands counted"]);
    assert!(b.state.agent_up().gpus.iter().all(|g| g.blocked.is_some()));
}
