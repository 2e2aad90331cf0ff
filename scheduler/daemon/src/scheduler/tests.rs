//! What one user can do to the others through `hopd`: nothing. No Slurm is asked: what it would say is put in.

use super::*;
use hop_api::message::{QueueQuery, Role, SeatStep};
use hop_core::id::Incarnation;
use hop_core::need::{Class, Need};

struct House {
    scheduler: Scheduler,
    next: u64,
    _folder: tempfile::TempDir,
}

type Mailbox = mpsc::Receiver<FromHopd>;

const QUOTA: &str = "[quota]\nkernels = 5\ncells = 10\n";
const POOL: &str =
    "[pool.main]\npartition='p'\ngpus_per_pilot=2\ncpus_per_pilot=8\nmin_pilots=0\nmax_pilots=4\n";

impl House {
    fn new() -> Self {
        Self::with("")
    }

    /// With so much more in the pool's table.
    fn with(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::parse(&format!("{QUOTA}{POOL}{more}"), "x".as_ref()).unwrap();
        let (journal, snapshot) = Journal::open(&folder.path().join("journal")).unwrap();
        let accounting = Accounting::open(&folder.path().join("accounting")).unwrap();
        let mut scheduler =
            Scheduler::new(config, journal, snapshot.term, snapshot.entries, accounting).unwrap();
        for n in 0..4 {
            scheduler.todo.push_back(Input::Node(hop_core::NodeFacts {
                node: format!("n{n}").into(),
                pool: "main".into(),
                gpus: 2,
                gpu_type: "".into(),
                gpu_mem_mib: 0,
                cpus: 8,
                rack: String::new(),
            }));
        }
        scheduler.settle();
        Self {
            scheduler,
            next: 0,
            _folder: folder,
        }
    }

    fn connect(&mut self, user: &str, role: Role) -> (ConnId, Mailbox) {
        self.next += 1;
        let conn = ConnId(self.next);
        let (outgoing, mailbox) = mpsc::channel(64);
        let caller = Caller {
            uid: user.len() as u32,
            user: user.into(),
            operator: false,
            role,
        };
        self.scheduler.incoming(Incoming::Opened {
            conn,
            caller,
            outgoing,
        });
        (conn, mailbox)
    }

    fn say(&mut self, conn: ConnId, body: Request) {
        let message = ToHopd { id: 1, body };
        self.scheduler.incoming(Incoming::Message { conn, message });
        self.scheduler.settle();
        self.scheduler.core.sanity_check().unwrap();
    }

    /// The answer to a request.
    fn ask(&mut self, conn: ConnId, mailbox: &mut Mailbox, body: Request) -> Response {
        while mailbox.try_recv().is_ok() {}
        self.say(conn, body);
        std::iter::from_fn(|| mailbox.try_recv().ok())
            .find(|m| m.id == 1)
            .unwrap()
            .body
    }

    fn seat(&mut self, job: u32, user: &str, node: &str) {
        let seat = Seat {
            user: user.into(),
            account: None,
            nodes: vec![node.into()],
        };
        self.scheduler.seats.insert(JobId(job), seat);
    }
}

const QUANTUM: &str = "quantum = {interactive_s = 1, worth_waiting_s = 0}\n";

/// Ada's cell has outrun its quantum on the only GPU, and bob's waits.
struct Long {
    house: House,
    ada: (ConnId, Mailbox),
    agent: (ConnId, Mailbox),
    lease: LeaseId,
}

impl Long {
    fn new(parks: bool) -> Self {
        let mut house = House::with(QUANTUM);
        house.seat(7, "ada", "n0");
        house.seat(8, "bobby", "n0");
        let agent = house.connect("gresshopper", Role::Agent);
        house.say(agent.0, agent_up());
        let mut ada = house.connect("ada", Role::Replica);
        let mut report = up("ada", "a", 1, 7, "n0");
        if let Request::ReplicaUp(up) = &mut report {
            up.parks = parks;
        }
        house.ask(ada.0, &mut ada.1, report);
        house.say(ada.0, submit("a", 1));
        let lease = house.scheduler.core.leases()[0].lease;
        house.say(agent.0, started(lease));
        std::thread::sleep(Duration::from_millis(1020));
        let (bob, mut mailbox) = house.connect("bobby", Role::Replica);
        house.ask(bob, &mut mailbox, up("bobby", "b", 1, 8, "n0"));
        house.say(bob, submit("b", 1));
        Self {
            house,
            ada,
            agent,
            lease,
        }
    }

    fn was_asked(&mut self) -> usize {
        let told = std::iter::from_fn(|| self.ada.1.try_recv().ok());
        told.filter(|m| matches!(&m.body, Response::Event(Event::Park { lease, .. }) if *lease == self.lease))
            .count()
    }

    fn states(&self) -> Vec<(String, String)> {
        let rows = views::queue(&self.house.scheduler.core, None, self.house.scheduler.clock.now());
        rows.into_iter()
            .map(|r| (r.kernel.to_string(), r.state))
            .collect()
    }

    fn says(&mut self, body: Request) {
        self.house.say(self.ada.0, body);
    }
}

fn agent_up() -> Request {
    Request::AgentUp(AgentUp {
        node: "n0".into(),
        pilot: JobId(1),
        pool: "main".into(),
        gpus: vec![hop_api::message::GpuSlot {
            index: hop_core::id::GpuIndex(0),
            gpu_type: "".into(),
            mem_mib: 0,
            blocked: None,
        }],
        cpus: 8,
        ends: None,
        steps_used: 0,
        steps_max: 1000,
        term: Term(0),
        leases: vec![],
        ended: vec![],
        draining: false,
    })
}

fn started(lease: LeaseId) -> Request {
    Request::LeaseStarted {
        lease,
        handover: Handover {
            epoch: hop_core::id::Epoch(1),
            pilot: JobId(1),
            step: 1,
            devices: vec![],
            cores: String::new(),
            at: Timestamp(1),
        },
    }
}

fn parked(lease: LeaseId, kernel: &str, cell: &str) -> Request {
    let (kernel, cell) = (kernel.into(), cell.into());
    Request::CellParked { kernel, cell, lease }
}

fn rows(of: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(k, s): &(&str, &str)| ((*k).to_owned(), (*s).to_owned());
    of.iter().map(owned).collect()
}

#[tokio::test]
async fn a_cell_that_outruns_its_quantum_is_asked_to_park_once_and_only_its_own_kernel_answers() {
    let mut long = Long::new(true);
    assert_eq!(long.was_asked(), 1);
    // Neither another's kernel nor another cell or lease.
    let (eve, mut mailbox) = long.house.connect("evelyn", Role::Replica);
    let lease = long.lease;
    refused(
        &long.house.ask(eve, &mut mailbox, parked(lease, "a", "c1")),
        "no replica of kernel a",
    );
    let no = Request::ParkRefused {
        kernel: "a".into(),
        lease,
        reason: "x".into(),
    };
    refused(&long.house.ask(eve, &mut mailbox, no), "no replica of kernel a");
    let (front, mut mailbox) = long.house.connect("ada", Role::Front);
    refused(
        &long.house.ask(front, &mut mailbox, parked(lease, "a", "c1")),
        "may not ask",
    );
    long.says(parked(lease, "a", "c2"));
    long.says(parked(LeaseId(999), "a", "c1"));
    assert_eq!(long.states(), rows(&[("a", "RUNNING"), ("b", "PENDING")]));
    long.says(parked(lease, "a", "c1"));
    assert_eq!(
        long.states(),
        rows(&[("a", "ENDING"), ("b", "PENDING"), ("a", "SUSPENDED")])
    );
    let ended = Request::LeaseEnded {
        lease,
        end: hop_api::message::LeaseEnd {
            cause: hop_api::message::EndCause::Claimed,
            clean: true,
            ended_pids: vec![],
            at: Timestamp(2),
            detail: String::new(),
        },
    };
    let agent = long.agent.0;
    long.house.say(agent, ended);
    assert_eq!(long.states(), rows(&[("b", "STARTING"), ("a", "SUSPENDED")]));
    assert_eq!(long.was_asked(), 0);
}

#[tokio::test]
async fn a_replica_that_cannot_park_or_does_not_answer_is_left_alone() {
    let mut old = Long::new(false);
    assert_eq!(old.was_asked(), 0);
    assert_eq!(old.states(), rows(&[("a", "RUNNING"), ("b", "PENDING")]));
    let explained = |long: &Long| {
        long.house
            .scheduler
            .core
            .explain(&"a".into(), None)
            .unwrap()
            .join(" ")
    };
    assert!(
        explained(&old).contains("can't: it runs to its end"),
        "{}",
        explained(&old)
    );

    let mut silent = Long::new(true);
    assert_eq!(silent.was_asked(), 1);
    let late = silent.house.scheduler.clock.now() + parks::PATIENCE;
    silent.house.scheduler.parks_overdue(late);
    silent.house.scheduler.settle();
    assert!(
        explained(&silent).contains("can't: it runs to its end"),
        "{}",
        explained(&silent)
    );
    // It did after all.
    let lease = silent.lease;
    silent.says(parked(lease, "a", "c1"));
    assert_eq!(silent.states()[2], ("a".to_owned(), "SUSPENDED".to_owned()));
}

#[tokio::test]
async fn a_replica_that_was_away_is_asked_again_and_its_report_counts_as_an_answer() {
    let mut long = Long::new(true);
    assert_eq!(long.was_asked(), 1);
    let conn = long.ada.0;
    long.house.scheduler.closed(conn);
    long.ada = long.house.connect("ada", Role::Replica);
    let Request::ReplicaUp(mut report) = up("ada", "a", 1, 7, "n0") else {
        panic!()
    };
    report.holds = Some((long.lease, Some("c1".into())));
    long.says(Request::ReplicaUp(report.clone()));
    assert_eq!(long.was_asked(), 1);
    // Its answer is lost with the connection; its report says the same.
    report.holds = None;
    report.waiting = vec![("c1".into(), Need::gpus(1), Class::Interactive)];
    report.parked = Some(hop_api::message::ParkedCell {
        cell: "c1".into(),
        lease: long.lease,
        ran: Span::from_secs(1),
    });
    long.says(Request::ReplicaUp(report));
    assert_eq!(long.was_asked(), 0);
    assert_eq!(
        long.states(),
        rows(&[("a", "ENDING"), ("b", "PENDING"), ("a", "SUSPENDED")])
    );
}

fn place(kernel: &str) -> Request {
    Request::PlaceKernel(hop_api::message::PlaceKernel {
        kernel: kernel.into(),
        pool: None,
        account: None,
        replicas: 1,
        default_need: Need::gpus(1),
        mem_mib: 0,
        cpus: 0,
        avoid: vec![],
    })
}

fn up(user: &str, kernel: &str, incarnation: u32, job: u32, node: &str) -> Request {
    Request::ReplicaUp(ReplicaUp {
        kernel: kernel.into(),
        incarnation: Incarnation(incarnation),
        account: None,
        pool: None,
        node: node.into(),
        seat: SeatStep {
            job: JobId(job),
            step: 0,
            pid: 1,
            start_time: 1,
            uid: user.len() as u32,
        },
        name: String::new(),
        holds: None,
        waiting: vec![],
        parks: true,
        parked: None,
    })
}

fn submit(kernel: &str, cell: usize) -> Request {
    Request::Submit {
        kernel: kernel.into(),
        cell: format!("c{cell}").into(),
        need: Need::gpus(1),
        class: Class::Interactive,
    }
}

fn done(response: &Response) -> bool {
    matches!(response, Response::Done)
}

#[track_caller]
fn refused(response: &Response, word: &str) {
    let Response::Refused(why) = response else {
        panic!("{response:?}")
    };
    assert!(why.to_string().contains(word), "{why}");
}

#[tokio::test]
async fn a_user_opens_no_more_kernels_than_their_quota_and_the_others_open_theirs() {
    let mut house = House::new();
    let (mallory, mut box_m) = house.connect("mallory", Role::Front);
    // Kernels of which no process ever came make room for new ones once their plans are over; until then not.
    for n in 0..200 {
        let answer = house.ask(mallory, &mut box_m, place(&format!("m{n}")));
        if n < 5 {
            assert!(matches!(answer, Response::Placement(_)), "{answer:?}");
        } else {
            refused(&answer, "mallory has 5 kernels open");
        }
    }
    assert_eq!(house.scheduler.core.kernel_count(), 5);
    assert_eq!(house.scheduler.owners.len(), 5);
    assert_eq!(house.scheduler.listeners.len(), 5);
    // Placed anew and anew it is still one kernel with a handful of plans.
    for _ in 0..200 {
        house.say(mallory, place("m0"));
        while box_m.try_recv().is_ok() {}
    }
    let (bob, mut box_b) = house.connect("bob", Role::Front);
    let answer = house.ask(bob, &mut box_b, place("b"));
    assert!(matches!(answer, Response::Placement(_)), "{answer:?}");
    house.say(mallory, Request::CloseKernel { kernel: "m0".into() });
    let answer = house.ask(mallory, &mut box_m, place("m7"));
    assert!(matches!(answer, Response::Placement(_)), "{answer:?}");
    house.scheduler.closed(mallory);
    assert_eq!(house.scheduler.listeners.len(), 1);
    assert!(house.scheduler.placements.is_empty());
}

#[tokio::test]
async fn a_users_waiting_cells_are_bounded_and_nobody_elses() {
    let mut house = House::new();
    house.seat(7, "mallory", "n0");
    house.seat(8, "bob", "n0");
    let (mallory, mut box_m) = house.connect("mallory", Role::Replica);
    house.ask(mallory, &mut box_m, up("mallory", "m", 1, 7, "n0"));
    for n in 0..100 {
        let answer = house.ask(mallory, &mut box_m, submit("m", n));
        if n < 10 {
            assert!(done(&answer), "{answer:?}");
        } else {
            refused(&answer, "mallory has 10 cells waiting");
        }
    }
    // A report brings no more than that either, and what waits already isn't counted twice.
    for (count, fine) in [(10usize, true), (11, false)] {
        let Request::ReplicaUp(mut report) = up("mallory", "m", 1, 7, "n0") else {
            panic!()
        };
        let cell = |n: usize| (format!("c{n}").into(), Need::gpus(1), Class::Interactive);
        report.waiting = (0..count).map(cell).collect();
        let answer = house.ask(mallory, &mut box_m, Request::ReplicaUp(report));
        assert_eq!(done(&answer), fine, "{answer:?}");
    }
    let (bob, mut box_b) = house.connect("bob", Role::Replica);
    house.ask(bob, &mut box_b, up("bob", "b", 1, 8, "n0"));
    assert!(done(&house.ask(bob, &mut box_b, submit("b", 0))));
}

#[tokio::test]
async fn replicas_are_few_and_where_their_seats_are() {
    let mut house = House::new();
    house.seat(7, "mallory", "n0");
    let (mallory, mut mailbox) = house.connect("mallory", Role::Replica);
    let answer = house.ask(mallory, &mut mailbox, up("mallory", "m", 1, 7, "elsewhere"));
    refused(&answer, "does not run on node elsewhere");
    for n in 0..30 {
        let answer = house.ask(mallory, &mut mailbox, up("mallory", "m", n, 7, "n0"));
        assert_eq!(done(&answer), n < 10, "{answer:?}");
    }
    assert_eq!(house.scheduler.replicas.len(), 10);
    let mut request = submit("m", 1);
    if let Request::Submit { need, .. } = &mut request {
        need.gpu_type = Some("x".repeat(100_000).into());
    }
    let answer = house.ask(mallory, &mut mailbox, request);
    refused(&answer, "GPU type");
}

#[tokio::test]
async fn who_asks_and_does_not_read_is_answered_no_more() {
    let mut house = House::new();
    let (mallory, mut mailbox) = house.connect("mallory", Role::Client);
    for _ in 0..40 {
        house.say(mallory, Request::Queue(QueueQuery::default()));
    }
    let (mut rows, mut no) = (0, 0);
    while let Ok(message) = mailbox.try_recv() {
        match message.body {
            Response::Queue { .. } => rows += 1,
            Response::Refused(_) => no += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((rows, no), (UNREAD, 40 - UNREAD));
    assert!(matches!(
        house.ask(mallory, &mut mailbox, Request::Queue(QueueQuery::default())),
        Response::Queue { .. }
    ));
}

#[tokio::test]
async fn while_slurm_is_asked_about_a_seat_only_so_much_waits() {
    let mut house = House::new();
    let mut boxes = Vec::new();
    for n in 0..3 {
        let (conn, mailbox) = house.connect("mallory", Role::Replica);
        house.say(conn, up("mallory", "m", n, 100 + n, "n0"));
        for c in 0..100 {
            house.say(conn, submit("m", c));
        }
        boxes.push(mailbox);
    }
    let held_up = house.scheduler.conns.values().filter_map(|c| c.held_up.as_ref());
    assert_eq!(held_up.map(VecDeque::len).sum::<usize>(), HELD_UP);
}

#[test]
fn there_is_one_next_look_at_slurms_queue_whatever_asked_for_it() {
    let mut house = House::new();
    for _ in 0..3 {
        house.scheduler.looked(Err("away".to_owned()));
        house.scheduler.look_soon();
    }
    let looks = house
        .scheduler
        .due
        .iter()
        .filter(|(_, due)| *due == Due::Look)
        .count();
    assert_eq!(looks, 1);
}

#[tokio::test]
async fn slurms_queue_is_read_once_at_a_time() {
    let mut house = House::new();
    house.scheduler.look();
    house.scheduler.look();
    let reads = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(reads, 1);
    house.scheduler.looked(Err("away".to_owned()));
    house.scheduler.look();
    assert!(house.scheduler.looking, "the next is read again");
}

#[tokio::test]
async fn what_a_cell_would_wait_is_told_to_whoever_plans() {
    let mut house = House::new();
    let (ada, mut mailbox) = house.connect("ada", Role::Client);
    let expect = |gpus| Expect {
        // A stranger's kernel is as good as none.
        kernel: Some("bobs".into()),
        need: Need::gpus(gpus),
        default_need: Need::gpus(1),
        ..Expect::default()
    };
    let mut asked = |house: &mut House, expect: Vec<Expect>| {
        let query = QueueQuery {
            expect,
            ..QueueQuery::default()
        };
        house.ask(ada, &mut mailbox, Request::Queue(query))
    };
    let told = |answer: Response| match answer {
        Response::Queue { expected, .. } => expected,
        other => panic!("{other:?}"),
    };
    // No pilot is up: one would have to start. Three GPUs there are on no node.
    let waits = told(asked(&mut house, vec![expect(1), expect(3)]));
    assert_eq!(waits, [Some(Span::from_secs(10)), None]);
    assert_eq!(told(asked(&mut house, vec![])), []);
    let many = vec![expect(1); hop_api::message::EXPECT_MAX + 1];
    refused(&asked(&mut house, many), "more than 16 cells");
}

/// Numbers come from outside: none of them may overflow what is reckoned with it.
#[tokio::test]
async fn the_largest_numbers_that_a_user_can_say_break_nothing() {
    let mut house = House::new();
    let (front, _front_box) = house.connect("eve", Role::Front);
    let (replica, mut mailbox) = house.connect("eve", Role::Replica);
    let (seat, _seat_box) = house.connect("eve", Role::Seat);
    house.seat(7, "eve", "n0");
    let huge = || Need {
        gpus: u16::MAX,
        gpu_type: Some("t".into()),
        gpu_mem_mib: u64::MAX,
        cpus: u16::MAX,
        deadline: Some(Timestamp(u64::MAX)),
    };
    let place = |need: Need, mem_mib| {
        Request::PlaceKernel(hop_api::message::PlaceKernel {
            kernel: "k".into(),
            pool: None,
            account: None,
            replicas: u16::MAX,
            default_need: need,
            mem_mib,
            cpus: u16::MAX,
            avoid: vec![],
        })
    };
    for mem_mib in [1, 1 << 40, u64::MAX] {
        house.say(
            seat,
            Request::SeatUp {
                job: JobId(7),
                node: "n0".into(),
                mem_mib,
                cpus: u16::MAX,
            },
        );
        house.say(front, place(huge(), mem_mib));
        house.say(
            front,
            place(
                Need {
                    deadline: huge().deadline,
                    ..Need::gpus(1)
                },
                mem_mib,
            ),
        );
        house.say(
            front,
            place(
                Need {
                    cpus: u16::MAX,
                    ..Need::gpus(2)
                },
                mem_mib,
            ),
        );
        for incarnation in [u32::MAX, (1 << 31) - 1] {
            let mut up = up("eve", "k", incarnation, 7, "n0");
            if let Request::ReplicaUp(up) = &mut up {
                up.waiting = vec![("w".into(), huge(), Class::Deadline)];
                up.holds = Some((LeaseId(u64::MAX), Some("x".into())));
            }
            let answer = house.ask(replica, &mut mailbox, up);
            assert_eq!(done(&answer), incarnation < 1 << 31, "{answer:?}");
        }
        let needs = [
            huge(),
            Need {
                deadline: huge().deadline,
                ..Need::gpus(1)
            },
            Need {
                deadline: Some(Timestamp(0)),
                ..Need::gpus(2)
            },
            Need {
                cpus: u16::MAX,
                ..Need::default()
            },
        ];
        for (n, need) in needs.into_iter().enumerate() {
            for class in [Class::Deadline, Class::Batch] {
                let cell = format!("{n}{class:?}").into();
                house.say(
                    replica,
                    Request::Submit {
                        kernel: "k".into(),
                        cell,
                        need: need.clone(),
                        class,
                    },
                );
            }
            let expect = vec![Expect {
                need,
                default_need: huge(),
                class: Class::Deadline,
                ..Expect::default()
            }];
            let query = QueueQuery {
                expect,
                ..QueueQuery::default()
            };
            house.say(replica, Request::Queue(query));
        }
        house.say(
            replica,
            Request::CellEnded {
                kernel: "k".into(),
                cell: "1Deadline".into(),
                lease: LeaseId(u64::MAX),
                started: Timestamp(u64::MAX),
                ended: Timestamp(0),
                outcome: hop_core::lease::Outcome::Ok,
            },
        );
    }
    house.say(replica, Request::Ping);
    assert!(matches!(
        house.ask(replica, &mut mailbox, Request::Ping),
        Response::Pong
    ));
}
