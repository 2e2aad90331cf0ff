//! Kernels that outlive their processes: listed, asked to move and to hibernate, remembered, woken, forgotten.

use super::*;
use crate::slurm::{Ending, Queue};
use hop_api::message::{
    HibernateTarget, KernelRow, KernelState, KernelsQuery, MoveCause, ReplicaRole, ReplicaRow, Request,
    SeatPlan,
};
use hop_words::id::{KernelId, NodeName};

/// Ada's kernel on n0, whose state is captured, with its replica, its front, and ada at a terminal.
struct Lived {
    house: House,
    replica: (ConnId, Mailbox),
    front: (ConnId, Mailbox),
    ada: (ConnId, Mailbox),
}

fn captured(incarnation: u32, tenure: u64, node: &str) -> ReplicaUp {
    let Request::ReplicaUp(up) = up("ada", "a", incarnation, 7, node) else {
        unreachable!("made so")
    };
    ReplicaUp {
        tenure: Tenure(tenure),
        captured: true,
        name: "a.ipynb".into(),
        ..*up
    }
}

fn reports(up: ReplicaUp) -> Request {
    Request::ReplicaUp(Box::new(up))
}

fn kernel() -> KernelId {
    "a".into()
}

fn events(mailbox: &mut Mailbox) -> Vec<Event> {
    let all = std::iter::from_fn(|| mailbox.try_recv().ok());
    let events = all.filter_map(|m| match m.body {
        Response::Event(event) => Some(event),
        _ => None,
    });
    events.collect()
}

impl Lived {
    fn new() -> Self {
        Self::with(captured(1, 1, "n0"))
    }

    fn with(up: ReplicaUp) -> Self {
        Self::on(House::new(), up)
    }

    fn on(mut house: House, up: ReplicaUp) -> Self {
        house.seat(7, "ada", "n0");
        let mut replica = house.connect("ada", Role::Replica);
        let answer = house.ask(replica.0, &mut replica.1, reports(up));
        assert!(done(&answer), "{answer:?}");
        let mut front = house.connect("ada", Role::Front);
        let up = Request::FrontUp { kernel: kernel() };
        assert!(done(&house.ask(front.0, &mut front.1, up)));
        let ada = house.connect("ada", Role::Client);
        Self {
            house,
            replica,
            front,
            ada,
        }
    }

    fn ada(&mut self, body: Request) -> Response {
        self.house.ask(self.ada.0, &mut self.ada.1, body)
    }

    fn replica(&mut self, body: Request) -> Response {
        self.house.ask(self.replica.0, &mut self.replica.1, body)
    }

    fn rows(&mut self) -> Vec<KernelRow> {
        match self.ada(Request::Kernels(KernelsQuery::default())) {
            Response::Kernels { rows } => rows,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn row(&mut self) -> KernelRow {
        let mut rows = self.rows();
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.remove(0)
    }

    fn hibernate(&mut self, force: bool) -> Response {
        let target = HibernateTarget::Kernel { kernel: kernel() };
        self.ada(Request::Hibernate { target, force })
    }

    /// Asked for, told, and answered.
    fn falls_asleep(&mut self) {
        let answer = self.hibernate(false);
        assert!(
            matches!(&answer, Response::Asked { kernels, .. } if *kernels == [kernel()]),
            "{answer:?}"
        );
        assert_eq!(self.row().state, KernelState::Hibernating);
        let told = events(&mut self.replica.1);
        assert!(matches!(&told[..], [Event::Hibernate { .. }]), "{told:?}");
        assert!(events(&mut self.front.1).is_empty(), "only the executor is told");
        let hibernated = Request::Hibernated {
            kernel: kernel(),
            tenure: Tenure(1),
        };
        assert!(done(&self.replica(hibernated)));
        let (conn, _) = self.replica;
        self.house.scheduler.closed(conn);
        self.house.scheduler.settle();
    }

    /// The seat plan of the move that the executor was asked for.
    #[track_caller]
    fn asked_to_move(&mut self) -> (SeatPlan, MoveCause) {
        let told = events(&mut self.replica.1);
        let moves = told.into_iter().find_map(|event| match event {
            Event::Move { seat, cause, .. } => Some((seat, cause)),
            _ => None,
        });
        moves.expect("the executor is asked to move")
    }

    fn migrate(&mut self, to: Option<&str>, force: bool) -> Response {
        self.ada(Request::Migrate {
            kernel: kernel(),
            to: to.map(Into::into),
            force,
        })
    }

    fn drains(&mut self, nodes: &[&str]) {
        let drained = nodes.iter().map(|n| (NodeName::from(*n), "a fan".to_owned()));
        self.looks(drained.collect(), BTreeMap::new());
    }

    /// The seat's time limit of a day comes in so many seconds.
    fn seat_ends_in(&mut self, seconds: u64) {
        let at = self.house.scheduler.clock.now() + Span::from_secs(seconds);
        let ending = Ending {
            at,
            limit: Span::from_secs(86_400),
        };
        self.looks(BTreeMap::new(), [(JobId(7), ending)].into());
    }

    fn looks(&mut self, drained: BTreeMap<NodeName, String>, ends: BTreeMap<JobId, Ending>) {
        let queue = Queue {
            alive: vec![JobId(7)],
            ends,
            drained,
            ..Queue::default()
        };
        self.house.scheduler.looked(Ok(queue));
        self.house.scheduler.settle();
    }
}

#[tokio::test]
async fn a_kernel_is_listed_with_what_it_does() {
    let mut lived = Lived::new();
    let row = lived.row();
    assert_eq!(
        (row.state, row.name.as_str(), row.tenure, row.captured),
        (KernelState::Idle, "a.ipynb", Tenure(1), true)
    );
    let [ReplicaRow { node, seat, .. }] = &row.replicas[..] else {
        panic!("{row:?}")
    };
    assert_eq!((node.as_str(), *seat), ("n0", JobId(7)));
    assert_eq!(row.executor, Some(Incarnation(1)));
    lived.house.say(
        lived.replica.0,
        Request::Submit {
            kernel: kernel(),
            tenure: Tenure(1),
            cell: "c".into(),
            need: Need::gpus(1),
            class: Class::Interactive,
            print: 0,
        },
    );
    assert_eq!(lived.row().state, KernelState::Waiting);
    let (bob, mut mailbox) = lived.house.connect("bob", Role::Client);
    let query = Request::Kernels(KernelsQuery::default());
    let answer = lived.house.ask(bob, &mut mailbox, query);
    assert!(matches!(&answer, Response::Kernels { rows } if rows.is_empty()));
    let all = Request::Kernels(KernelsQuery {
        all_users: true,
        ..KernelsQuery::default()
    });
    refused(&lived.house.ask(bob, &mut mailbox, all), "no operator");
    let visible = || {
        Request::Kernels(KernelsQuery {
            visible: true,
            ..KernelsQuery::default()
        })
    };
    let answer = lived.house.ask(bob, &mut mailbox, visible());
    assert!(matches!(&answer, Response::Kernels { rows } if rows.is_empty()));
    let (carol, mut box_c) = lived.house.connect_as("carol", Role::Client, true);
    let answer = lived.house.ask(carol, &mut box_c, visible());
    assert!(
        matches!(&answer, Response::Kernels { rows } if rows[..].iter().map(|r| &r.kernel).eq([&kernel()]))
    );
    for request in [
        Request::Wake { kernel: kernel() },
        Request::Forget { kernel: kernel() },
    ] {
        refused(&lived.house.ask(bob, &mut mailbox, request), "of yours");
    }
}

#[tokio::test]
async fn a_kernel_that_hibernates_is_remembered_and_comes_back() {
    let mut lived = Lived::new();
    lived.falls_asleep();
    let row = lived.row();
    assert_eq!((row.state, row.replicas.len()), (KernelState::Asleep, 0));
    assert_eq!(
        lived.house.scheduler.core.kernel_count(),
        0,
        "it counts against no quota"
    );
    // The executor that ends doesn't wake it, though it be late.
    let mut late = lived.house.connect("ada", Role::Replica);
    let answer = lived
        .house
        .ask(late.0, &mut late.1, reports(captured(1, 1, "n0")));
    refused(&answer, "hibernates since tenure 1");

    let house = lived.house.restarted();
    let mut house = house;
    let (ada, mut mailbox) = house.connect("ada", Role::Client);
    let wake = || Request::Wake { kernel: kernel() };
    refused(
        &house.ask(ada, &mut mailbox, wake()),
        "open its notebook (a.ipynb)",
    );
    let (front, mut box_f) = house.connect("ada", Role::Front);
    let up = Request::FrontUp { kernel: kernel() };
    assert!(done(&house.ask(front, &mut box_f, up)));
    let (bob, mut box_b) = house.connect("bob", Role::Client);
    refused(&house.ask(bob, &mut box_b, wake()), "of yours");
    assert!(done(&house.ask(ada, &mut mailbox, wake())));
    let told = events(&mut box_f);
    assert!(matches!(&told[..], [Event::Wake { .. }]), "{told:?}");
    let mut lived = Lived::on(house, captured(2, 2, "n0"));
    assert_eq!(lived.row().state, KernelState::Idle);
    refused(&lived.ada(wake()), "is awake");
    let mut house = lived.house.restarted();
    assert!(house.scheduler.kept.asleep(&kernel()).is_none());
    house.scheduler.settle();
}

#[tokio::test]
async fn a_notebook_is_renamed_while_its_kernel_sleeps() {
    let mut lived = Lived::new();
    let rename = |name: &str| Request::RenameKernel {
        kernel: kernel(),
        name: name.into(),
    };
    assert!(done(&lived.house.ask(
        lived.front.0,
        &mut lived.front.1,
        rename("early.ipynb")
    )));
    assert_eq!(
        lived.row().name,
        "a.ipynb",
        "the executor of a kernel tells its name"
    );
    lived.falls_asleep();
    refused(&lived.ada(rename("c.ipynb")), "may not ask for this");
    let (eve, mut mailbox) = lived.house.connect("eve", Role::Front);
    refused(&lived.house.ask(eve, &mut mailbox, rename("e.ipynb")), "of yours");
    assert_eq!(lived.row().name, "a.ipynb");
    assert!(done(&lived.house.ask(
        lived.front.0,
        &mut lived.front.1,
        rename("b\n.ipynb")
    )));
    assert_eq!(lived.row().name, "b .ipynb");

    let mut house = lived.house.restarted();
    let (ada, mut mailbox) = house.connect("ada", Role::Client);
    let answer = house.ask(ada, &mut mailbox, Request::Kernels(KernelsQuery::default()));
    assert!(
        matches!(&answer, Response::Kernels { rows } if rows[0].name == "b .ipynb"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_opening_tells_the_notebooks_name_before_a_replica_does() {
    let mut lived = Lived::new();
    lived.falls_asleep();
    let Request::PlaceKernel(place) = replaces(false) else {
        unreachable!("made so")
    };
    let place = Request::PlaceKernel(hop_api::message::PlaceKernel {
        name: "b.ipynb".into(),
        ..place
    });
    let answer = lived.house.ask(lived.front.0, &mut lived.front.1, place);
    assert!(matches!(answer, Response::Placement(_)), "{answer:?}");
    let row = lived.row();
    assert_eq!((row.state, row.name.as_str()), (KernelState::Starting, "b.ipynb"));
    let leave = Request::LeaveKernel { kernel: kernel() };
    assert!(done(&lived.house.ask(lived.front.0, &mut lived.front.1, leave)));
    let row = lived.row();
    assert_eq!((row.state, row.name.as_str()), (KernelState::Asleep, "b.ipynb"));
}

#[tokio::test]
async fn its_waiting_cells_are_refused_when_a_kernel_hibernates() {
    let mut lived = Lived::new();
    let submit = Request::Submit {
        kernel: kernel(),
        tenure: Tenure(1),
        cell: "c".into(),
        need: Need::gpus(1),
        class: Class::Interactive,
        print: 0,
    };
    lived.house.say(lived.replica.0, submit);
    let hibernated = Request::Hibernated {
        kernel: kernel(),
        tenure: Tenure(1),
    };
    lived.replica(hibernated);
    let told = events(&mut lived.front.1);
    let refused = told
        .iter()
        .any(|e| matches!(e, Event::Refused { reason, .. } if reason.contains("sleeps")));
    assert!(refused, "{told:?}");
    assert_eq!(lived.row().state, KernelState::Asleep);
}

#[tokio::test]
async fn of_a_kernel_that_its_executor_ended_nothing_is_known() {
    let mut lived = Lived::with(captured(1, 2, "n0"));
    let ended = |tenure| Request::KernelEnded {
        kernel: kernel(),
        tenure: Tenure(tenure),
    };
    lived.house.scheduler.closed(lived.front.0);
    let answer = lived.replica(ended(1));
    assert!(
        matches!(answer, Response::Refused(Refusal::Superseded { .. })),
        "{answer:?}"
    );
    assert_eq!(lived.rows().len(), 1, "a deposed executor ends no kernel");
    assert!(done(&lived.replica(ended(2))));
    lived.house.scheduler.closed(lived.replica.0);
    lived.house.scheduler.settle();
    assert!(lived.rows().is_empty());
    assert!(lived.house.scheduler.owner_of(&kernel()).is_none());
}

#[tokio::test]
async fn a_kernel_that_can_not_be_saved_does_not_hibernate() {
    let mut lived = Lived::with(ReplicaUp {
        captured: false,
        ..captured(1, 1, "n0")
    });
    refused(&lived.hibernate(true), "its state is not saved");
    let mut lived = Lived::with(ReplicaUp {
        bound: Bound {
            gpu: false,
            holds: vec!["It holds an open socket.".into()],
        },
        ..captured(1, 1, "n0")
    });
    refused(&lived.hibernate(false), "an open socket. --force");
    let all = Request::Hibernate {
        target: HibernateTarget::All { node: None },
        force: false,
    };
    let answer = lived.ada(all);
    let Response::Asked { kernels, refused } = &answer else {
        panic!("{answer:?}")
    };
    assert!(kernels.is_empty() && refused.len() == 1, "{answer:?}");
    assert!(matches!(lived.hibernate(true), Response::Asked { .. }));
    let no = Request::HibernateRefused {
        kernel: kernel(),
        tenure: Tenure(1),
        reason: "a cell runs".into(),
    };
    assert!(done(&lived.replica(no)));
    let row = lived.row();
    assert_eq!(
        (row.state, row.stayed.as_deref()),
        (KernelState::Idle, Some("a cell runs"))
    );
}

#[tokio::test]
async fn an_executor_that_dies_before_it_has_answered_stays() {
    let mut lived = Lived::new();
    lived.hibernate(false);
    let (conn, _) = lived.replica;
    lived.house.scheduler.closed(conn);
    let id = hop_words::id::ReplicaId {
        kernel: kernel(),
        incarnation: Incarnation(1),
    };
    lived.house.scheduler.replica_away(&id);
    lived.house.scheduler.settle();
    let row = lived.row();
    assert_eq!(row.state, KernelState::Lost);
    assert!(row.stayed.is_some_and(|why| why.contains("ended before")));
}

#[tokio::test]
async fn a_kernel_that_sleeps_is_forgotten_for_good() {
    let mut lived = Lived::new();
    refused(&lived.ada(Request::Forget { kernel: kernel() }), "does not sleep");
    lived.falls_asleep();
    assert!(done(&lived.ada(Request::Forget { kernel: kernel() })));
    assert!(lived.rows().is_empty());
    let mut house = lived.house.restarted();
    // Its id is anybody's again.
    assert!(house.scheduler.owner_of(&kernel()).is_none());
    house.seat(8, "eve", "n0");
    let (eve, mut mailbox) = house.connect("eve", Role::Replica);
    assert!(done(&house.ask(eve, &mut mailbox, up("eve", "a", 1, 8, "n0"))));
}

#[tokio::test]
async fn a_closed_kernel_is_none_that_sleeps() {
    let mut lived = Lived::new();
    lived.falls_asleep();
    let close = Request::CloseKernel { kernel: kernel() };
    assert!(done(&lived.house.ask(lived.front.0, &mut lived.front.1, close)));
    assert!(lived.rows().is_empty());
}

#[tokio::test]
async fn a_kernel_that_its_front_gives_up_sleeps_unless_a_replica_speaks_for_it() {
    let mut lived = Lived::new();
    let leave = || Request::LeaveKernel { kernel: kernel() };
    let states = |lived: &mut Lived| lived.rows().into_iter().map(|row| row.state).collect::<Vec<_>>();
    let before = states(&mut lived);
    assert!(done(&lived.house.ask(lived.front.0, &mut lived.front.1, leave())));
    assert_eq!(states(&mut lived), before);
    breaks(&mut lived);
    let (eve, mut mailbox) = lived.house.connect("eve", Role::Front);
    assert!(!done(&lived.house.ask(eve, &mut mailbox, leave())));
    assert_ne!(states(&mut lived), [KernelState::Asleep]);
    assert!(done(&lived.house.ask(lived.front.0, &mut lived.front.1, leave())));
    assert_eq!(states(&mut lived), [KernelState::Asleep]);
}

#[tokio::test]
async fn more_that_sleep_than_are_kept_push_out_the_first() {
    let config = format!("{QUOTA}asleep = 0\n{POOL}");
    let config = Config::parse(&config, "x".as_ref()).unwrap();
    let house = House::start(config, tempfile::tempdir().unwrap());
    let mut lived = Lived::on(house, captured(1, 1, "n0"));
    let hibernated = Request::Hibernated {
        kernel: kernel(),
        tenure: Tenure(1),
    };
    assert!(done(&lived.replica(hibernated)));
    assert!(lived.rows().is_empty());
    assert!(lived.house.scheduler.owner_of(&kernel()).is_none());
}

#[tokio::test]
async fn a_kernel_is_moved_when_its_user_asks_for_it() {
    let mut lived = Lived::new();
    for (to, why) in [("n0", "is on n0 already"), ("nowhere", "has no node nowhere")] {
        refused(&lived.migrate(Some(to), false), why);
    }
    assert!(done(&lived.migrate(Some("n2"), false)));
    let (seat, cause) = lived.asked_to_move();
    assert_eq!((seat.node.as_str(), cause), ("n2", MoveCause::Asked));
    let row = lived.row();
    assert_eq!(row.state, KernelState::Moving);
    assert_eq!(row.moving.map(|m| m.to), Some("n2".into()));
    refused(&lived.migrate(Some("n3"), false), "moves to n2 already");

    // Its successor restores, then speaks for the kernel.
    let mut next = lived.house.connect("ada", Role::Replica);
    lived.house.seat(8, "ada", "n2");
    let mut successor = captured(seat.incarnation.0, 2, "n2");
    successor.seat.job = JobId(8);
    assert!(done(&lived.house.ask(next.0, &mut next.1, reports(successor))));
    let row = lived.row();
    assert_eq!(
        (row.state, row.executor),
        (KernelState::Idle, Some(seat.incarnation))
    );
    assert_eq!(row.replicas.len(), 1);
    assert_eq!(row.move_failed, None);
}

#[tokio::test]
async fn a_move_that_failed_is_told_with_its_reason() {
    let mut lived = Lived::new();
    assert!(done(&lived.migrate(None, false)));
    let (seat, _) = lived.asked_to_move();
    assert_ne!(seat.node.as_str(), "n0");
    let failed = Request::MigrationFailed {
        kernel: kernel(),
        tenure: Tenure(1),
        incarnation: seat.incarnation,
        reason: "its seat did not start".into(),
    };
    assert!(done(&lived.replica(failed)));
    let row = lived.row();
    assert_eq!(row.state, KernelState::Idle);
    assert_eq!(row.move_failed.unwrap().reason, "its seat did not start");
    let explain = Request::Explain {
        kernel: kernel(),
        cell: None,
    };
    let answer = lived.ada(explain);
    let Response::Explanation(said) = &answer else {
        panic!("{answer:?}")
    };
    assert!(
        said.sentences
            .iter()
            .any(|s| s.contains("its seat did not start")),
        "{said:?}"
    );
    assert!(done(&lived.migrate(None, false)), "it may be tried again");
}

/// A kernel without standbys, moves and obstacles, as it is right after a wake.
#[tokio::test]
async fn an_idle_kernel_without_news_is_explained() {
    let mut lived = Lived::new();
    let explain = |cell: Option<&str>| Request::Explain {
        kernel: kernel(),
        cell: cell.map(Into::into),
    };
    let Response::Explanation(said) = lived.ada(explain(None)) else {
        panic!("a known kernel is explained")
    };
    assert_eq!(said.sentences, ["No cell of it waits or has a lease."]);
    refused(&lived.ada(explain(Some("c"))), "cell c that waits or runs");
}

/// A report of ada's kernel with standbys 2 and 3, which lack so many entries of the log.
fn led(leader: u32, behind: [Option<u64>; 2]) -> ReplicaUp {
    let standby = |incarnation: u32, behind| ReplicaRow {
        incarnation: Incarnation(incarnation),
        role: ReplicaRole::Warm,
        node: format!("n{}", incarnation - 1).as_str().into(),
        seat: JobId(7 + incarnation),
        behind,
    };
    ReplicaUp {
        standbys: vec![standby(2, behind[0]), standby(3, behind[1])],
        leader: Some(Incarnation(leader)),
        ..captured(1, 1, "n0")
    }
}

#[tokio::test]
async fn who_leads_the_log_and_who_is_behind_is_listed_and_explained() {
    let mut lived = Lived::with(led(1, [Some(0), Some(1204)]));
    let listed = |row: KernelRow| {
        let behind: Vec<_> = row.replicas.iter().map(|r| r.behind).collect();
        (row.leader.map(|l| l.0), behind)
    };
    assert_eq!(listed(lived.row()), (Some(1), vec![Some(0), Some(0), Some(1204)]));
    let mut said = |up: ReplicaUp| {
        let answer = lived.replica(reports(up));
        assert!(done(&answer), "{answer:?}");
        let (kernel, cell) = (kernel(), None);
        match lived.ada(Request::Explain { kernel, cell }) {
            Response::Explanation(said) => said.sentences.join(" "),
            other => panic!("{other:?}"),
        }
    };
    for (up, sentence) in [
        (
            led(1, [Some(0), Some(1204)]),
            "Its replica 1 on n0 runs its cells and leads its log; replica 2 on n1 has its log; \
             replica 3 on n2 has its log, and is 1,204 entries behind.",
        ),
        (
            led(1, [Some(1), None]),
            "Its replica 1 on n0 runs its cells and leads its log; replica 2 on n1 has its log, and is 1 entry \
             behind; replica 3 on n2 has its log, and has not answered the leader.",
        ),
        (
            led(2, [Some(0), None]),
            "Its replica 1 on n0 runs its cells; replica 2 on n1 leads its log; replica 3 on n2 has \
             its log.",
        ),
        (
            led(9, [None, None]),
            "Its replica 1 on n0 runs its cells; replica 2 on n1 has its log; replica 3 on n2 has its log.",
        ),
    ] {
        let whole = said(up);
        assert!(whole.contains(sentence), "{whole}");
    }
    assert_eq!(
        listed(lived.row()),
        (None, vec![None, None, None]),
        "9 is no replica"
    );
}

#[tokio::test]
async fn a_lost_connection_of_the_executor_is_explained() {
    let mut lived = Lived::with(led(1, [Some(0), Some(0)]));
    lived.house.scheduler.closed(lived.replica.0);
    lived.house.scheduler.settle();
    let (kernel, cell) = (kernel(), None);
    let said = match lived.ada(Request::Explain { kernel, cell }) {
        Response::Explanation(said) => said.sentences.join(" "),
        other => panic!("{other:?}"),
    };
    let lost = "Its replica 1 on n0 has lost its connection to the scheduler. By its last word it runs its cells and";
    assert!(said.contains(lost), "{said}");
}

#[tokio::test]
async fn a_kernel_is_listed_with_its_seats_memory_and_cores() {
    let mut lived = Lived::new();
    assert_eq!(
        (lived.row().mem_mib, lived.row().cpus),
        (0, 0),
        "hopd has not placed it"
    );
    let place = hop_api::message::PlaceKernel {
        kernel: kernel(),
        account: None,
        pool: None,
        first: None,
        default_need: hop_words::need::Need::default(),
        mem_mib: 4096,
        cpus: 3,
        avoid: vec![],
        replaces: false,
        name: String::new(),
    };
    lived.house.say(lived.front.0, Request::PlaceKernel(place));
    assert_eq!((lived.row().mem_mib, lived.row().cpus), (4096, 3));
}

#[tokio::test]
async fn a_kernel_that_holds_what_can_not_be_captured_moves_by_hand_alone() {
    let mut lived = Lived::new();
    let bound = Bound {
        gpu: false,
        holds: vec!["It holds an open socket.".into()],
    };
    let report = Request::KernelBound {
        kernel: kernel(),
        tenure: Tenure(1),
        bound,
    };
    assert!(done(&lived.replica(report)));
    assert_eq!(lived.row().bound, ["It holds an open socket."]);
    refused(&lived.migrate(None, false), "an open socket");
    lived.drains(&["n0"]);
    let told = events(&mut lived.replica.1);
    assert!(told.iter().all(|e| !matches!(e, Event::Move { .. })), "{told:?}");
    assert!(done(&lived.migrate(None, true)));
    lived.asked_to_move();
}

#[tokio::test]
async fn a_kernel_whose_store_fails_is_listed_with_the_reason_and_left_in_place_by_policy() {
    let mut lived = Lived::new();
    let unsaved = |why: Option<&str>| ReplicaUp {
        captured: why.is_none(),
        unsaved: why.map(str::to_owned),
        ..captured(1, 1, "n0")
    };
    assert!(done(&lived.replica(reports(unsaved(Some("the store is full"))))));
    let row = lived.row();
    assert_eq!(
        (row.captured, row.unsaved.as_deref()),
        (false, Some("the store is full"))
    );
    let explain = Request::Explain {
        kernel: kernel(),
        cell: None,
    };
    let Response::Explanation(said) = lived.ada(explain) else {
        panic!("a known kernel is explained")
    };
    let told = said.sentences.join(" ");
    assert!(told.contains("It is not saved: the store is full."), "{told}");
    lived.drains(&["n0"]);
    let told = events(&mut lived.replica.1);
    assert!(told.iter().all(|e| !matches!(e, Event::Move { .. })), "{told:?}");
    assert!(done(&lived.migrate(None, false)), "its user may have made room");
    lived.asked_to_move();
    assert!(done(&lived.replica(reports(unsaved(None)))));
    assert_eq!(lived.row().unsaved, None);
}

#[tokio::test]
async fn a_drained_node_gets_no_leases_and_is_left() {
    let mut lived = Lived::new();
    let mut agent = lived.house.connect("gresshopper", Role::Agent);
    lived.house.ask(agent.0, &mut agent.1, agent_up());
    lived.drains(&["n0"]);
    let orders: Vec<_> = std::iter::from_fn(|| agent.1.try_recv().ok()).collect();
    let drained = |m: &Outgoing| matches!(m.body, Response::Order(Order::Drain { .. }));
    assert!(orders.iter().any(drained), "{orders:?}");
    let info = match lived.ada(Request::Info) {
        Response::Info(info) => info,
        other => panic!("{other:?}"),
    };
    let node = &info.nodes[0];
    assert_eq!(
        (node.state.as_str(), node.reason.as_str()),
        ("DRAINING", "Slurm drains the node: a fan")
    );
    assert!(events(&mut lived.front.1).is_empty(), "only the executor is told");
    let (seat, cause) = lived.asked_to_move();
    assert_eq!(cause, MoveCause::Drain);
    assert_ne!(seat.node.as_str(), "n0");
    // The same look again asks nobody twice.
    lived.drains(&["n0"]);
    assert!(events(&mut lived.replica.1).is_empty());
    refused(&lived.migrate(Some("n0"), false), "moves to");
}

#[tokio::test]
async fn a_seat_whose_limit_comes_near_is_left_in_time() {
    let mut lived = Lived::new();
    lived.seat_ends_in(3600);
    assert!(events(&mut lived.replica.1).is_empty(), "there is time");
    lived.seat_ends_in(300);
    let (seat, cause) = lived.asked_to_move();
    assert_eq!(cause, MoveCause::SeatEnds);
    assert_ne!(seat.existing, Some(JobId(7)));
    let explain = Request::Explain {
        kernel: kernel(),
        cell: None,
    };
    let answer = lived.ada(explain);
    let Response::Explanation(said) = &answer else {
        panic!("{answer:?}")
    };
    let ends = |s: &String| s.starts_with("Its seat (job 7) ends in 4 min");
    assert!(said.sentences.iter().any(ends), "{said:?}");
    lived.seat_ends_in(300);
    assert!(events(&mut lived.replica.1).is_empty(), "it is asked once");
}

#[tokio::test]
async fn a_kernel_that_can_not_leave_its_seat_stays_to_the_end() {
    let mut lived = Lived::with(ReplicaUp {
        captured: false,
        ..captured(1, 1, "n0")
    });
    lived.seat_ends_in(300);
    assert!(events(&mut lived.replica.1).is_empty());
}

/// A pilot of one GPU, lent or blocked.
fn pilot(job: u32, node: &str, blocked: bool) -> Input {
    Input::PilotUp(hop_core::PilotUp {
        node: node.into(),
        pilot: JobId(job),
        pool: "main".into(),
        gpus: vec![hop_core::GpuSlot {
            index: hop_words::id::GpuIndex(0),
            gpu_type: "".into(),
            mem_mib: 0,
            blocked: blocked.then(|| "broken".to_owned()),
        }],
        cpus: 8,
        ends: None,
        steps_left: 40_000,
        leases: vec![],
        starting: vec![],
        ended: vec![],
        draining: false,
        node_drains: false,
    })
}

fn moves(events: &[Event]) -> usize {
    let moves = events.iter().filter(|e| matches!(e, Event::Move { .. }));
    moves.count()
}

/// Nobody can be asked to move a kernel without a connection: what is impossible isn't asked for again and again.
#[tokio::test]
async fn a_gpu_comes_free_while_a_waiting_kernel_is_away() {
    let mut lived = Lived::new();
    lived.house.scheduler.todo.push_back(pilot(901, "n0", true));
    lived.house.scheduler.settle();
    let answer = lived.replica(Request::Submit {
        tenure: Tenure(1),
        kernel: kernel(),
        cell: "c1".into(),
        need: hop_words::need::Need::gpus(1),
        class: hop_words::need::Class::Interactive,
        print: 0,
    });
    assert!(done(&answer), "{answer:?}");
    lived.house.scheduler.closed(lived.replica.0);
    lived.house.scheduler.settle();
    lived.house.scheduler.todo.push_back(pilot(902, "n1", false));
    lived.house.scheduler.settle();
    assert_eq!(
        lived.house.scheduler.core.kernels()[0].doing,
        hop_core::Doing::Waiting
    );
    // It is asked once it is back.
    lived.replica = lived.house.connect("ada", Role::Replica);
    let answer = lived.replica(reports(captured(1, 1, "n0")));
    assert!(done(&answer), "{answer:?}");
    assert_eq!(moves(&events(&mut lived.replica.1)), 1);
}

/// What `hop kernels` says of the kernel: its state, and the clause on its executor's loss.
#[track_caller]
fn told(lived: &mut Lived) -> (KernelState, Option<String>) {
    let row = lived.row();
    let now = lived.house.scheduler.clock.now();
    if let Some(loss) = &row.lost {
        assert!(now.since(loss.since) < Span::from_secs(60), "{row:?}");
    }
    (row.state, row.lost.map(|loss| loss.to_string()))
}

fn replaces(replaces: bool) -> Request {
    let Request::PlaceKernel(place) = place("a") else {
        unreachable!("made so")
    };
    Request::PlaceKernel(hop_api::message::PlaceKernel { replaces, ..place })
}

/// The executor's connection breaks.
fn breaks(lived: &mut Lived) {
    lived.house.scheduler.closed(lived.replica.0);
    lived.house.scheduler.settle();
}

fn reports_again(lived: &mut Lived, up: ReplicaUp) {
    lived.replica = lived.house.connect("ada", Role::Replica);
    assert!(done(&lived.replica(reports(up))));
}

const IDLE: (KernelState, Option<String>) = (KernelState::Idle, None);

fn silent() -> (KernelState, Option<String>) {
    (
        KernelState::Silent,
        Some("its process on n0 does not answer".to_owned()),
    )
}

fn replacing() -> (KernelState, Option<String>) {
    let why = "its process on n0 is gone, and another one is being started";
    (KernelState::Replacing, Some(why.to_owned()))
}

#[tokio::test]
async fn a_kernel_without_its_executor_is_listed_so_until_a_replica_reports() {
    let mut lived = Lived::new();
    assert_eq!(told(&mut lived), IDLE);
    breaks(&mut lived);
    assert_eq!(told(&mut lived), silent());
    reports_again(&mut lived, captured(1, 1, "n0"));
    assert_eq!(told(&mut lived), IDLE, "it came back");

    breaks(&mut lived);
    let id = ReplicaId {
        kernel: kernel(),
        incarnation: Incarnation(1),
    };
    lived.house.scheduler.replica_away(&id);
    lived.house.scheduler.settle();
    let why = "its process on n0 is lost, and no other one has reported";
    assert_eq!(told(&mut lived), (KernelState::Lost, Some(why.to_owned())));
    let explain = Request::Explain {
        kernel: kernel(),
        cell: None,
    };
    match lived.ada(explain) {
        Response::Explanation(told) => {
            let sentence = format!("The kernel runs no cell now: {why}.");
            assert!(told.sentences.contains(&sentence), "{:?}", told.sentences);
        }
        other => panic!("{other:?}"),
    }
    lived.house.say(lived.front.0, replaces(true));
    assert_eq!(told(&mut lived), replacing());
    lived.house.seat(8, "ada", "n1");
    let Request::ReplicaUp(next) = up("ada", "a", 2, 8, "n1") else {
        unreachable!("made so")
    };
    reports_again(
        &mut lived,
        ReplicaUp {
            tenure: Tenure(2),
            ..*next
        },
    );
    assert_eq!(told(&mut lived), IDLE);
}

/// A node without power breaks no connection for a while.
#[tokio::test]
async fn a_front_that_replaces_its_executor_tells_of_the_loss() {
    let mut lived = Lived::new();
    lived.house.say(lived.front.0, replaces(false));
    assert_eq!(told(&mut lived), IDLE, "the kernel gets one more replica");
    let answer = lived.hibernate(false);
    assert!(matches!(answer, Response::Asked { .. }), "{answer:?}");
    lived.house.say(lived.front.0, replaces(true));
    assert_eq!(told(&mut lived), replacing());
    breaks(&mut lived);
    assert_eq!(told(&mut lived), replacing(), "no news");
}

#[tokio::test]
async fn a_kernel_that_is_closed_after_its_executor_is_lost_is_not_listed() {
    let mut lived = Lived::new();
    breaks(&mut lived);
    lived
        .house
        .say(lived.front.0, Request::CloseKernel { kernel: kernel() });
    assert!(lived.rows().is_empty());
    assert_eq!(lived.house.scheduler.kept.loss(&kernel()), None);
}

/// Looks at Slurm's queue for so many seconds, in which these jobs live.
fn looks_for(house: &mut House, seconds: u64, alive: &[u32]) {
    let alive: Vec<JobId> = alive.iter().map(|job| JobId(*job)).collect();
    let queue = Queue {
        alive: alive.clone(),
        ..Queue::default()
    };
    house.scheduler.looked(Ok(queue));
    house.scheduler.settle();
    let now = house.scheduler.clock.now();
    for second in (30..=seconds).step_by(30) {
        let then = now + Span::from_secs(second);
        house.scheduler.forget_abandoned(&alive, then);
        house.scheduler.settle();
    }
    house.scheduler.abandoned.unanswered();
}

/// Its front told nobody of the close: hopd stood still, or was away.
#[tokio::test]
async fn a_kernel_that_ended_while_nobody_listened_is_forgotten() {
    for restarts in [false, true] {
        let mut lived = Lived::new();
        breaks(&mut lived);
        looks_for(&mut lived.house, 600, &[]);
        assert_eq!(lived.rows().len(), 1, "its front is connected");
        lived.house.scheduler.closed(lived.front.0);
        let mut house = match restarts {
            true => lived.house.restarted(),
            false => lived.house,
        };
        let known = |house: &House| house.scheduler.core.kernel_count();
        let asked = house.scheduler.seated_users();
        assert!(asked.contains(&"ada".into()), "{asked:?}");
        looks_for(&mut house, 600, &[7]);
        assert_eq!(known(&house), 1, "its seat lives");
        looks_for(&mut house, 270, &[]);
        assert_eq!(known(&house), 1, "it may come back");
        looks_for(&mut house, 300, &[]);
        assert_eq!(known(&house), 0);
        assert!(house.scheduler.owner_of(&kernel()).is_none());
        house.scheduler.core.sanity_check().unwrap();
    }
}
