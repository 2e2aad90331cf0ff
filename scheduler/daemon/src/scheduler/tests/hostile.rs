//! A user whose programs say anything: a front, a seat and a replica of their own that lie, beside another user's running
//! cell.

use super::*;
use hop_api::message::{
    AcctQuery, EndedCell, HibernateTarget, InfoReport, KernelsQuery, ParkedCell, ReplicaRole, ReplicaRow,
};
use hop_words::lease::Outcome;
use serde_json::{Value, json};

const CASES: usize = 4_000;

/// Seeded numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % sides
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.roll(of.len())]
    }
}

/// What a user's programs say, each a request that is right but for its owner.
fn requests(lease: LeaseId) -> Vec<(Role, Request)> {
    let kernel = || "b".into();
    let tenure = Tenure(1);
    let Request::ReplicaUp(mut report) = up("bobby", "b", 1, 8, "n0") else {
        unreachable!("made so")
    };
    report.tenure = tenure;
    report.holds = Some((lease, Some("c1".into())));
    report.ended = Some(EndedCell {
        cell: "c1".into(),
        outcome: Outcome::Ok,
    });
    report.waiting = vec![waits("c1", Need::gpus(1), Class::Deadline)];
    report.parked = Some(ParkedCell {
        cell: "c1".into(),
        lease,
        ran: Span(1),
    });
    report.standbys = vec![ReplicaRow {
        incarnation: Incarnation(1),
        role: ReplicaRole::Hot,
        node: "n0".into(),
        seat: JobId(7),
        behind: None,
    }];
    report.bound.holds = vec!["a socket".into()];
    let seat = Request::SeatUp {
        job: JobId(8),
        node: "n0".into(),
        mem_mib: 1,
        cpus: 1,
    };
    let Request::PlaceKernel(mut planned) = place("b") else {
        unreachable!("made so")
    };
    planned.first = Some(Incarnation(2));
    planned.avoid = vec!["n1".into()];
    let fronts = [
        Request::PlaceKernel(planned),
        Request::FrontUp { kernel: kernel() },
        Request::CloseKernel { kernel: kernel() },
    ];
    let replicas = [
        Request::ReplicaUp(report),
        submit("b", 2),
        Request::CancelCell {
            kernel: kernel(),
            tenure,
            cell: "c1".into(),
        },
        Request::CellEnded {
            kernel: kernel(),
            tenure,
            cell: "c1".into(),
            lease,
            started: Timestamp(1),
            ended: Timestamp(2),
            outcome: Outcome::Ok,
        },
        Request::ReleaseLease {
            kernel: kernel(),
            tenure,
            lease,
        },
        Request::StillHeld {
            kernel: kernel(),
            tenure,
            lease,
            why: "x".into(),
        },
        Request::CellParked {
            kernel: kernel(),
            tenure,
            cell: "c1".into(),
            lease,
        },
        Request::ParkRefused {
            kernel: kernel(),
            tenure,
            lease,
            reason: "x".into(),
        },
        Request::KernelBound {
            kernel: kernel(),
            tenure,
            bound: Bound {
                gpu: true,
                holds: vec!["x".into()],
            },
        },
        Request::MigrationFailed {
            kernel: kernel(),
            tenure,
            incarnation: Incarnation(2),
            reason: "x".into(),
        },
        Request::Hibernated {
            kernel: kernel(),
            tenure,
        },
        Request::HibernateRefused {
            kernel: kernel(),
            tenure,
            reason: "x".into(),
        },
    ];
    let people = [
        Request::Acct(AcctQuery::default()),
        Request::Queue(QueueQuery {
            expect: vec![Expect {
                kernel: Some(kernel()),
                need: Need::gpus(1),
                ..Expect::default()
            }],
            ..QueueQuery::default()
        }),
        Request::Info,
        Request::Explain {
            kernel: kernel(),
            cell: Some("c1".into()),
        },
        Request::Cancel(hop_api::message::CancelTarget::Lease { lease }),
        Request::Cancel(hop_api::message::CancelTarget::Cell {
            kernel: kernel(),
            cell: "c1".into(),
        }),
        Request::Cancel(hop_api::message::CancelTarget::Kernel { kernel: kernel() }),
        Request::Kernels(KernelsQuery::default()),
        Request::Migrate {
            kernel: kernel(),
            to: Some("n1".into()),
            force: true,
        },
        Request::Hibernate {
            target: HibernateTarget::All {
                node: Some("n0".into()),
            },
            force: true,
        },
        Request::Wake { kernel: kernel() },
        Request::Forget { kernel: kernel() },
        Request::Release {
            node: "n0".into(),
            gpus: vec![],
        },
    ];
    let with = |role: Role, all: Vec<Request>| all.into_iter().map(move |r| (role, r));
    with(Role::Front, fronts.into())
        .chain(with(Role::Replica, replicas.into()))
        .chain(with(Role::Seat, vec![seat]))
        .chain(with(Role::Client, people.into()))
        .collect()
}

/// The paths of all numbers and texts in it.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            for (n, value) in values.iter().enumerate() {
                leaves(value, &format!("{at}/{n}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "kind") {
                leaves(value, &format!("{at}/{name}"), found);
            }
        }
        _ => found.push(at.to_owned()),
    }
}

/// The request with some of its values exchanged for another user's, or for what no honest program says. `None`: it is
/// no request any more.
fn lie(request: &Request, lease: LeaseId, dice: &mut Dice) -> Option<Request> {
    let mut value = serde_json::to_value(request).unwrap();
    let mut found = Vec::new();
    leaves(&value, "", &mut found);
    let numbers: Vec<Value> = [
        lease.0,
        0,
        1,
        2,
        3,
        7,
        8,
        1 << 15,
        1 << 31,
        (1 << 31) - 1,
        1 << 32,
    ]
    .into_iter()
    .chain([u64::from(u16::MAX), u64::from(u32::MAX), u64::MAX])
    .map(Value::from)
    .collect();
    let long = "x".repeat(300);
    let texts = [
        "a",
        "b",
        "",
        "c1",
        "n0",
        "n1",
        "ada",
        "root",
        "main",
        "../../etc/passwd",
        "a b",
        &long,
    ];
    for _ in 0..dice.roll(4).min(found.len()) {
        let place = value.pointer_mut(dice.pick::<String>(&found))?;
        *place = match place {
            Value::Number(_) => dice.pick(&numbers).clone(),
            Value::Bool(yes) => json!(!*yes),
            Value::Null if dice.roll(2) == 0 => dice.pick(&numbers).clone(),
            _ => json!(dice.pick(&texts)),
        };
    }
    serde_json::from_value(value).ok()
}

/// Each lie is judged in a world in which bobby's earlier ones have had their effect.
#[tokio::test]
async fn whatever_a_users_programs_say_another_users_cell_runs_on() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    lending.house.say(lending.agent.0, started(lease));
    let Lending {
        mut house,
        mut agent,
        mut ada,
    } = lending;
    house.seat(8, "bobby", "n0");
    while ada.1.try_recv().is_ok() {}
    let (root, mut root_box) = house.connect("operator", Role::Client);
    let mut dice = Dice(1);
    let requests = requests(lease);
    let mut heard = 0;
    for case in 0..CASES {
        let (role, request) = dice.pick(&requests);
        let Some(said) = lie(request, lease, &mut dice) else {
            continue;
        };
        // On a new connection or on one that has registered.
        let told = format!("case {case}: {said:?}");
        let (conn, mut mailbox) = house.connect("bobby", *role);
        if *role == Role::Replica && dice.roll(2) == 0 {
            house.say(conn, up("bobby", "b", 1, 8, "n0"));
        }
        let answer = house.ask_if_heard(conn, &mut mailbox, said);
        heard += usize::from(answer.is_some_and(|a| !matches!(a, Response::Refused(_))));
        if dice.roll(3) == 0 {
            house.scheduler.closed(conn);
            house.scheduler.settle();
        }
        let core = &house.scheduler.core;
        assert_eq!(core.lease(lease).map(|l| l.state), Some("RUNNING"), "{told}");
        assert_eq!(
            house.scheduler.owner_of(&"a".into()).map(|u| u.as_str()),
            Some("ada"),
            "{told}"
        );
        let events =
            |mailbox: &mut Mailbox| std::iter::from_fn(|| mailbox.try_recv().ok()).collect::<Vec<_>>();
        let to_ada = events(&mut ada.1);
        let bad = |m: &Outgoing| !matches!(m.body, Response::Event(Event::Granted { .. }) | Response::Pong);
        assert!(!to_ada.iter().any(bad), "{told}: {to_ada:?}");
        let ends =
            |m: &Outgoing| matches!(m.body, Response::Order(Order::EndLease { lease: l, .. }) if l == lease);
        assert!(!events(&mut agent.1).iter().any(ends), "{told}");
        if case % 100 == 0 {
            let answer: Response = house.ask(root, &mut root_box, Request::Info);
            assert!(matches!(answer, Response::Info(InfoReport { .. })));
        }
    }
    assert!(heard > CASES / 10, "only {heard} were heard");
}

/// A front says that it is up before its kernel is known: that makes the kernel its user's, for as long as it says so.
#[tokio::test]
async fn a_front_names_few_kernels_that_nobody_knows_and_they_go_with_it() {
    let mut house = House::new();
    let (front, mut mailbox) = house.connect("mallory", Role::Front);
    let up = |n: usize| Request::FrontUp {
        kernel: format!("m{n}").into(),
    };
    for n in 0..200 {
        let answer = house.ask(front, &mut mailbox, up(n));
        match n {
            0..5 => assert!(done(&answer), "{answer:?}"),
            _ => refused(&answer, "mallory has 5 kernels open"),
        }
    }
    assert!(
        done(&house.ask(front, &mut mailbox, up(0))),
        "it is named already"
    );
    let (bob, mut box_b) = house.connect("bob", Role::Front);
    refused(&house.ask(bob, &mut box_b, up(0)), "no kernel m0 of yours");
    let kernel = "b".into();
    assert!(done(&house.ask(bob, &mut box_b, Request::FrontUp { kernel })));
    // A crash leaves what the journal has.
    let mut house = house.restarted();
    assert_eq!(house.scheduler.registry.counts().0, 0);
    let (front, mut mailbox) = house.connect("mallory", Role::Front);
    house.ask(front, &mut mailbox, up(0));
    house.scheduler.closed(front);
    assert_eq!(house.scheduler.registry.counts().0, 0);
}

/// Each withdrawn cell takes a row, of which the accounting forgets none by default.
#[tokio::test]
async fn a_program_that_submits_and_withdraws_does_not_fill_the_accounting() {
    let mut house = House::new();
    house.seat(8, "bobby", "n0");
    let (bob, mut mailbox) = house.connect("bobby", Role::Replica);
    house.say(bob, up("bobby", "b", 1, 8, "n0"));
    for cell in 0..2000 {
        house.say(bob, submit("b", cell));
        let answer = house.ask(
            bob,
            &mut mailbox,
            Request::CancelCell {
                kernel: "b".into(),
                tenure: Tenure(0),
                cell: format!("c{cell}").into(),
            },
        );
        assert!(done(&answer), "{answer:?}");
    }
    let rows = house.rows().await;
    assert!((500..1000).contains(&rows.len()), "{}", rows.len());
    let told = rows.iter().any(|row| row.reason.contains("they were too many"));
    assert!(told && rows.iter().all(|row| row.state == "CANCELLED"));
}

/// They are kept for each replica, and an operator is told all users' at once, in one message of bounded length.
#[tokio::test]
async fn what_a_kernel_says_of_itself_is_cut() {
    let mut house = House::new();
    house.seat(8, "bobby", "n0");
    let (bob, mut mailbox) = house.connect("bobby", Role::Replica);
    let bound = || Bound {
        gpu: false,
        holds: vec!["x".repeat(1000); 200],
    };
    let Request::ReplicaUp(mut report) = up("bobby", "b", 1, 8, "n0") else {
        unreachable!("made so")
    };
    report.bound = bound();
    let standby = ReplicaRow {
        incarnation: Incarnation(2),
        role: ReplicaRole::Warm,
        node: "n1".into(),
        seat: JobId(9),
        behind: None,
    };
    report.standbys = vec![standby; 1000];
    assert!(done(&house.ask(
        bob,
        &mut mailbox,
        Request::ReplicaUp(report.clone())
    )));
    let (asks, mut answers) = house.connect("bobby", Role::Client);
    let mut size = || {
        let answer = house.ask(asks, &mut answers, Request::Kernels(KernelsQuery::default()));
        serde_json::to_string(&answer).unwrap().len()
    };
    assert!(size() < 20_000);
    let tenure = Tenure(0);
    let (kernel, bound) = ("b".into(), bound());
    house.say(
        bob,
        Request::KernelBound {
            kernel,
            tenure,
            bound,
        },
    );
    let answer = house.ask(asks, &mut answers, Request::Kernels(KernelsQuery::default()));
    assert!(serde_json::to_string(&answer).unwrap().len() < 20_000);
    for wrong in ["n\u{1b}1", &"n".repeat(300)] {
        report.standbys[0].node = wrong.into();
        refused(
            &house.ask(bob, &mut mailbox, Request::ReplicaUp(report.clone())),
            "a node has 1 to",
        );
    }
    report.standbys[0].node = "n1".into();
    report.standbys[0].incarnation = Incarnation(u32::MAX);
    refused(
        &house.ask(bob, &mut mailbox, Request::ReplicaUp(report)),
        "no process the number",
    );
}

/// Slurm is slow, or its commands fail. Nobody gets a lease by that alone: the node's plugin has its own record. But the
/// account of such a seat isn't known, and so holds nobody to its limits.
#[tokio::test]
async fn whose_seat_was_believed_while_slurm_was_away_is_asked_when_it_answers() {
    let mut house = House::new();
    let (eve, mut mailbox) = house.connect("evelyn", Role::Replica);
    house.say(eve, up("evelyn", "e", 1, 7, "n0"));
    house.scheduler.seat_owner(JobId(7), &Err("away".into()));
    house.scheduler.settle();
    assert!(std::iter::from_fn(|| mailbox.try_recv().ok()).any(|m| done(&m.body)));
    let looked = || crate::slurm::Queue {
        alive: vec![JobId(7)],
        ..crate::slurm::Queue::default()
    };
    house.scheduler.looked(Err("away".into()));
    house.scheduler.settle();
    assert!(house.scheduler.connections.get(eve).is_some());
    house.scheduler.looked(Ok(looked()));
    house.scheduler.settle();
    assert!(house.scheduler.connections.get(eve).is_none());
    let (eve, mut mailbox) = house.connect("evelyn", Role::Replica);
    house.say(eve, up("evelyn", "e", 1, 7, "n0"));
    let adas = crate::slurm::Owner {
        uid: 3,
        account: Some("lab".into()),
        qos: None,
        nodes: vec!["n0".into()],
        lives: true,
    };
    house.scheduler.seat_owner(JobId(7), &Ok(Some(adas)));
    house.scheduler.settle();
    let answer = mailbox.try_recv().unwrap();
    refused(&answer.body, "no running job 7 of yours");
    house.scheduler.looked(Ok(looked()));
    house.scheduler.settle();
    assert!(
        house.scheduler.connections.get(eve).is_some(),
        "nobody was believed since"
    );
}
