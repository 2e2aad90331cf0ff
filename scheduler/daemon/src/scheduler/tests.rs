//! What one user can do to the others through `hopd`: nothing. No Slurm is asked: what it would say is put in.

mod hostile;
mod news;
mod nodes;
mod outlive;

use super::connections::{HELD_UP, UNREAD, UNREAD_OF_USER};
use super::seats::Seat;
use super::*;
use crate::caller::{Caller, ConnId, Incoming, Outgoing};
use crate::installation::Installation;
use crate::parks;
use hop_api::config::StepNames;
use hop_api::message::{
    AcctQuery, AcctRow, AgentUp, Bound, EndedLease, Event, Expect, Order, QueueQuery, Refusal, ReplicaUp,
    Request, Response, Role, SeatStep, StartLease, SumsQuery, ToHopd, WaitingCell,
};
use hop_store::Journal;
use hop_words::id::{Incarnation, Tenure};
use hop_words::need::{Class, Need};
use hop_words::reason::Reason;
use std::path::Path;

struct House {
    scheduler: Scheduler,
    next: u64,
    folder: tempfile::TempDir,
}

/// Copies the files as a crash leaves them: as they are at one moment. What is written meanwhile is copied again, or
/// a file's first part would be older than its last.
fn copy_files(from: &Path, to: &Path) {
    let contents = || -> std::collections::BTreeMap<_, _> {
        let entries = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap()))
            .collect()
    };
    let mut read = contents();
    loop {
        let again = contents();
        if again == read {
            break;
        }
        read = again;
    }
    for (name, bytes) in read {
        std::fs::write(to.join(name), bytes).unwrap();
    }
}

type Mailbox = mpsc::Receiver<Outgoing>;

const QUOTA: &str = "[quota]\nkernels = 5\ncells = 10\n";
const POOL: &str =
    "[pool.main]\npartition='p'\ngpus_per_pilot=2\ncpus_per_pilot=8\nmin_pilots=0\nmax_pilots=4\n";

impl House {
    fn new() -> Self {
        Self::with("")
    }

    /// With so much more in the pool's table.
    fn with(more: &str) -> Self {
        let config = Config::parse(&format!("{QUOTA}{POOL}{more}"), "x".as_ref()).unwrap();
        Self::start(config, tempfile::tempdir().unwrap())
    }

    /// On a state directory with copies of these files.
    fn on(folder: tempfile::TempDir, files: Option<&Path>) -> Self {
        if let Some(files) = files {
            copy_files(files, folder.path());
        }
        let config = Config::parse(&format!("{QUOTA}{POOL}"), "x".as_ref()).unwrap();
        Self::start(config, folder)
    }

    fn start(config: Config, folder: tempfile::TempDir) -> Self {
        let (journal, snapshot) = Journal::open(&folder.path().join("journal")).unwrap();
        let accounting = Accounting::open(&folder.path().join("accounting")).unwrap();
        let mut scheduler = Scheduler::new(
            config.clone(),
            SlurmSide::new(config, "/g.toml".into(), Installation::default()),
            journal,
            snapshot.term,
            snapshot.entries,
            accounting,
        )
        .unwrap();
        let pools = scheduler.config.pool.keys();
        let open = pools.map(|name| (name.clone(), Rules::default())).collect();
        scheduler.news.rules.get_or_insert(open);
        for n in 0..4 {
            scheduler.todo.push_back(Input::Node(hop_core::NodeFacts {
                node: format!("n{n}").into(),
                pool: "main".into(),
                gpus: 2,
                gpu_type: "".into(),
                gpu_mem_mib: 0,
                cpus: 8,
            }));
        }
        scheduler.settle();
        Self {
            scheduler,
            next: 0,
            folder,
        }
    }

    /// The next `hopd` on the same state directory.
    fn restarted(self) -> Self {
        let Self {
            scheduler, folder, ..
        } = self;
        let config = scheduler.config.clone();
        drop(scheduler);
        Self::start(config, folder)
    }

    /// All leases' rows, once they are on disk.
    async fn rows(&mut self) -> Vec<AcctRow> {
        let accounting = self.scheduler.records.accounting();
        accounting.record([]).durable().await.unwrap();
        let all = AcctQuery {
            all_users: true,
            ..AcctQuery::default()
        };
        accounting.query(&all, Timestamp(9)).unwrap()
    }

    fn connect(&mut self, user: &str, role: Role) -> (ConnId, Mailbox) {
        self.connect_as(user, role, false)
    }

    fn connect_as(&mut self, user: &str, role: Role, operator: bool) -> (ConnId, Mailbox) {
        self.next += 1;
        let conn = ConnId(self.next);
        let (outgoing, mailbox) = mpsc::channel(64);
        let caller = Caller {
            uid: user.len() as u32,
            user: user.into(),
            groups: [].into(),
            operator,
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
        self.ask_if_heard(conn, mailbox, body).unwrap()
    }

    /// The answer to a request, if there is one by now.
    fn ask_if_heard(&mut self, conn: ConnId, mailbox: &mut Mailbox, body: Request) -> Option<Response> {
        while mailbox.try_recv().is_ok() {}
        self.say(conn, body);
        let answers = std::iter::from_fn(|| mailbox.try_recv().ok());
        answers.into_iter().find(|m| m.id == 1).map(|m| m.body)
    }

    fn seat(&mut self, job: u32, user: &str, node: &str) {
        let seat = Seat {
            user: user.into(),
            account: None,
            qos: None,
            nodes: vec![node.into()],
        };
        self.scheduler.seats.restore(JobId(job), seat);
    }
}

/// Ada's kernel on a node with one GPU.
struct Lending {
    house: House,
    agent: (ConnId, Mailbox),
    ada: (ConnId, Mailbox),
}

impl Lending {
    fn new() -> Self {
        let mut house = House::new();
        house.seat(7, "ada", "n0");
        let mut agent = house.connect("gresshopper", Role::Agent);
        house.ask(agent.0, &mut agent.1, agent_up());
        let mut ada = house.connect("ada", Role::Replica);
        house.ask(ada.0, &mut ada.1, up("ada", "a", 1, 7, "n0"));
        Self { house, agent, ada }
    }

    /// The lease of a cell that is submitted now.
    fn lease(&mut self) -> LeaseId {
        self.house.say(self.ada.0, submit("a", 1));
        self.house.scheduler.core.leases()[0].lease
    }

    /// Whether the agent was told since this was last asked that it may forget the lease.
    fn acknowledged(&mut self, wanted: LeaseId) -> bool {
        let told = std::iter::from_fn(|| self.agent.1.try_recv().ok());
        told.fold(false, |said, message| {
            let acknowledged = matches!(
                message.body,
                Response::Order(Order::EndAcknowledged { lease, .. }) if lease == wanted
            );
            said || acknowledged
        })
    }
}

#[tokio::test]
async fn a_cell_whose_lease_does_not_start_is_told_so_before_slurm_is_known_to_be_away() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    let scheduler = &mut lending.house.scheduler;
    assert!(scheduler.due.iter().any(|(_, due)| *due == Due::Start(lease)));
    let reason = |lending: &mut Lending| {
        lending.house.scheduler.look_at_start(lease);
        let told = std::iter::from_fn(|| lending.ada.1.try_recv().ok());
        let reasons = told.filter_map(|m| match m.body {
            Response::Event(Event::Queued { reason, .. }) => Some(reason),
            _ => None,
        });
        reasons.last()
    };
    let said = reason(&mut lending).unwrap();
    assert!(
        said.starts_with("its lease on n0 is being started, but Slurm has not done so for "),
        "{said}"
    );
    let asked = lending.house.scheduler.clock.now();
    lending
        .house
        .scheduler
        .news
        .look_began(Timestamp(asked.0.saturating_sub(7_000_000)));
    let said = reason(&mut lending).unwrap();
    assert!(
        said.ends_with("but Slurm's controller has not answered for 7 s"),
        "{said}"
    );
    // `hop queue` tells the same of a start that is slow, and nothing of one that isn't.
    let row = |lending: &Lending, seconds: u64| {
        let scheduler = &lending.house.scheduler;
        let later = scheduler.clock.now() + Span::from_secs(seconds);
        let mut rows = views::queue(&scheduler.core, None, later, Reason::to_string);
        scheduler.say_what_starts_wait_for(&mut rows);
        (rows[0].why.clone(), rows[0].reason.clone())
    };
    assert_eq!(row(&lending, 0), (String::new(), String::new()));
    let (why, told) = row(&lending, 60);
    assert_eq!(why, "SlurmAway");
    assert!(
        told.ends_with("but Slurm's controller has not answered for 7 s"),
        "{told}"
    );
    lending.house.scheduler.looked(Err("away".to_owned()));
    let (_, told) = row(&lending, 60);
    assert!(told.ends_with("but Slurm's controller does not answer"), "{told}");
    // With step managers leases start without it.
    lending.house.scheduler.news.stepmgr = true;
    assert_eq!(row(&lending, 60).0, "LeaseStarting");
    lending.house.scheduler.news.stepmgr = false;
    lending.house.scheduler.settle();
    assert!(
        reason(&mut lending)
            .unwrap()
            .starts_with("Slurm's controller does not answer")
    );
    assert_eq!(reason(&mut lending), None, "the core has told it");
}

/// A kernel's first cell is with its front until the kernel has a process: Slurm may not start its seat.
#[tokio::test]
async fn a_kernel_that_starts_is_explained_while_its_notebook_is_open() {
    let mut house = House::new();
    let (ada, mut mailbox) = house.connect("ada", Role::Front);
    house.ask(ada, &mut mailbox, place("a"));
    let explain = || Request::Explain {
        kernel: "a".into(),
        cell: None,
    };
    let (client, mut answers) = house.connect("ada", Role::Client);
    let Response::Explanation(said) = house.ask(client, &mut answers, explain()) else {
        panic!("nothing is said of the start")
    };
    let said = said.sentences.join(" ");
    assert!(said.contains("The kernel has been starting for"), "{said}");
    assert!(!said.contains("No cell of it waits"), "{said}");
    assert!(house.scheduler.seated_users().contains(&"ada".into()));
    house
        .scheduler
        .looked(Ok(news::seat_waits(12, "ada", "QOSMaxJobsPerUserLimit")));
    let Response::Explanation(said) = house.ask(client, &mut answers, explain()) else {
        panic!("nothing is said of its seat")
    };
    let said = said.sentences.join(" ");
    let words = "seat of its user's (job 12) waits in Slurm's queue: QOSMaxJobsPerUserLimit.";
    assert!(said.contains(words), "{said}");
    house
        .scheduler
        .looked(Ok(news::seat_waits(13, "bobby", "Resources")));
    house.scheduler.closed(ada);
    let Response::Explanation(said) = house.ask(client, &mut answers, explain()) else {
        panic!("a known kernel is explained")
    };
    assert_eq!(said.sentences, ["No cell of it waits or has a lease."]);
    let unknown = Request::Explain {
        kernel: "b".into(),
        cell: None,
    };
    refused(&house.ask(client, &mut answers, unknown), "b");
}

#[tokio::test]
async fn the_steps_of_leases_are_named_as_the_site_says() {
    for (names, named) in [(StepNames::Notebook, "ada/a"), (StepNames::Lease, "ada/1000001")] {
        let mut lending = Lending::new();
        lending.house.scheduler.config.hopd.step_names = names;
        lending.lease();
        let told = std::iter::from_fn(|| lending.agent.1.try_recv().ok());
        let order = told.into_iter().find_map(|m| match m.body {
            Response::Order(Order::StartLease(order)) => Some(order),
            _ => None,
        });
        assert_eq!(order.unwrap().step_name, named);
    }
}

/// The sentences on kernel `a`.
fn explained(house: &House) -> String {
    let items = house.scheduler.core.explain(&"a".into(), None).unwrap();
    items.iter().map(|item| format!("{item} ")).collect()
}

/// The rows of the accounting after a crash that left these files, once its `hopd` has started.
async fn rows_of(folder: &std::path::Path) -> Vec<AcctRow> {
    let mut house = House::on(tempfile::tempdir().unwrap(), Some(folder));
    house.rows().await
}

#[tokio::test]
async fn an_end_is_acknowledged_when_it_is_on_disk() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    lending.house.say(lending.agent.0, started(lease));
    lending.house.say(lending.agent.0, ended(lease));
    assert!(!lending.acknowledged(lease), "the disk has not had a chance");
    let mut inbox = lending.house.scheduler.inbox.take().unwrap();
    loop {
        let report = inbox.recv().await.unwrap();
        if matches!(report, Report::Durable(_)) {
            let copy = tempfile::tempdir().unwrap();
            copy_files(lending.house.folder.path(), copy.path());
            lending.house.scheduler.report(report);
            assert!(lending.acknowledged(lease));
            let rows = rows_of(copy.path()).await;
            assert_eq!(rows.len(), 1);
            assert!(rows[0].end.is_some() && rows[0].state == "COMPLETED", "{rows:?}");
            return;
        }
        assert!(!lending.acknowledged(lease));
        lending.house.scheduler.report(report);
    }
}

#[tokio::test]
async fn a_lease_whose_order_a_crash_took_has_its_row_by_its_nodes_word() {
    let at = |live: bool| {
        let Request::AgentUp(up) = agent_up() else {
            unreachable!("made above")
        };
        let lease = LeaseId(77);
        let (order, handover) = (order(lease), handover());
        let leases = if live {
            vec![hop_api::message::LiveLease { order, handover }]
        } else {
            vec![]
        };
        let ended = if live { vec![] } else { vec![ended_lease(lease)] };
        Request::AgentUp(Box::new(AgentUp { leases, ended, ..*up }))
    };
    for live in [true, false] {
        let mut house = House::new();
        let (agent, mut mailbox) = house.connect("gresshopper", Role::Agent);
        house.ask(agent, &mut mailbox, at(live));
        if live {
            // Nobody wants it: it is ended, and the node says so, twice since nobody acknowledged it.
            house.say(agent, ended(LeaseId(77)));
            house.say(agent, ended(LeaseId(77)));
        }
        let rows = house.rows().await;
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(
            (
                row.user.as_str(),
                row.name.as_str(),
                row.node.as_str(),
                row.state.as_str()
            ),
            ("ada", "digits.ipynb", "n0", "CANCELLED")
        );
        assert_eq!(
            (row.start, row.end, row.held),
            (Some(Timestamp(1)), Some(Timestamp(2)), Span(1))
        );
    }
}

/// The journal has a row as long as the accounting may not have it, and no longer.
#[tokio::test]
async fn rows_lie_in_the_journal_until_the_accounting_has_them() {
    let mut house = House::new();
    let order = order(LeaseId(7));
    let row = house
        .scheduler
        .records
        .rows
        .adopt(&"n0".into(), &order, None)
        .unwrap();
    house.scheduler.records.write(vec![], vec![row]);
    let without_accounting = |house: &House| {
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(house.folder.path().join("journal"), copy.path().join("journal")).unwrap();
        copy
    };
    house.scheduler.records.flush().await;
    let copy = without_accounting(&house);
    assert_eq!(rows_of(copy.path()).await.len(), 1);
    let mut inbox = house.scheduler.inbox.take().unwrap();
    let report = inbox.recv().await.unwrap();
    assert!(matches!(report, Report::Settled(_)), "{report:?}");
    house.scheduler.report(report);
    house.scheduler.records.flush().await;
    let copy = without_accounting(&house);
    assert_eq!(rows_of(copy.path()).await.len(), 0);
}

#[tokio::test]
async fn a_row_that_a_crash_left_open_is_closed_once() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    lending.house.say(lending.agent.0, started(lease));
    let row = lending.house.rows().await.remove(0);
    assert_eq!((row.lease, row.end), (lease, None));
    // The journal is lost; the accounting is not.
    let reported = |report: bool| {
        let row = row.clone();
        async move {
            let mut house = House::new();
            house.scheduler.records.write(vec![], vec![row]);
            let mut house = house.restarted();
            if report {
                let (agent, mut mailbox) = house.connect("gresshopper", Role::Agent);
                house.ask(agent, &mut mailbox, agent_up());
                house.say(agent, ended(lease));
            }
            house.scheduler.orphans_over();
            (house.rows().await, house.scheduler.started)
        }
    };
    let (rows, _) = reported(true).await;
    assert_eq!(
        (rows.len(), rows[0].state.as_str()),
        (1, "CANCELLED"),
        "no cell ran on it"
    );
    let (rows, started) = reported(false).await;
    assert_eq!((rows.len(), rows[0].state.as_str()), (1, "FAILED"));
    assert_eq!(rows[0].end, Some(started));
    assert!(rows[0].reason.contains("lost track"), "{}", rows[0].reason);
}

#[tokio::test]
async fn a_cell_that_waited_in_vain_has_a_row() {
    let mut lending = Lending::new();
    lending.lease();
    let ada = lending.ada.0;
    for cell in [2, 3] {
        lending.house.say(ada, submit("a", cell));
    }
    let cancel = Request::CancelCell {
        kernel: "a".into(),
        tenure: Tenure(0),
        cell: "c2".into(),
    };
    lending.house.say(ada, cancel);
    lending.house.scheduler.todo.push_back(Input::Cancel {
        target: hop_api::message::CancelTarget::Cell {
            kernel: "a".into(),
            cell: "c3".into(),
        },
        by: "root".into(),
    });
    lending.house.scheduler.settle();
    let rows = lending.house.rows().await;
    let vain: Vec<_> = rows
        .iter()
        .filter(|r| r.state == "CANCELLED")
        .map(|r| {
            (
                r.start,
                r.end.is_some(),
                r.wait == r.end.unwrap().since(r.submit),
                r.reason.as_str(),
            )
        })
        .collect();
    let withdrawn = "it was interrupted while it waited, or its kernel was restarted";
    assert_eq!(
        vain,
        [
            (None, true, true, withdrawn),
            (None, true, true, "cancelled by root")
        ]
    );
    assert_eq!(rows.len(), 3);
}

#[tokio::test]
async fn a_lease_that_was_withdrawn_before_it_started_is_cancelled() {
    // By an interrupt, and by a restart of hopd.
    for restart in [false, true] {
        let mut lending = Lending::new();
        let lease = lending.lease();
        let failed = Request::LeaseFailed {
            lease,
            reason: "it was ended before it had started".into(),
            device_lost: false,
        };
        let mut house = if restart {
            let mut house = lending.house.restarted();
            let (agent, mut mailbox) = house.connect("gresshopper", Role::Agent);
            house.ask(agent, &mut mailbox, agent_up());
            house
        } else {
            let cancel = Request::CancelCell {
                kernel: "a".into(),
                tenure: Tenure(0),
                cell: "c1".into(),
            };
            lending.house.say(lending.ada.0, cancel);
            lending.house.say(lending.agent.0, failed);
            lending.house
        };
        let rows = house.rows().await;
        assert_eq!((rows.len(), rows[0].state.as_str()), (1, "CANCELLED"), "{rows:?}");
        assert!(rows[0].start.is_none() && rows[0].end.is_some());
    }
}

#[tokio::test]
async fn a_pilot_that_starts_no_lease_is_told_in_hop_info() {
    let mut lending = Lending::new();
    let reason = |lending: &mut Lending| {
        let (eve, mut mailbox) = lending.house.connect("eve", Role::Client);
        match lending.house.ask(eve, &mut mailbox, Request::Info) {
            Response::Info(info) => info.nodes[0].reason.clone(),
            other => panic!("{other:?}"),
        }
    };
    let lease = lending.lease();
    assert_eq!(reason(&mut lending), "");
    let failed = Request::LeaseFailed {
        lease,
        reason: "the plugin refused the handover: no room".into(),
        device_lost: false,
    };
    lending.house.say(lending.agent.0, failed);
    assert_eq!(
        reason(&mut lending),
        "its last lease did not start: the plugin refused the handover: no room"
    );
}

/// The plugin was at work when the cell was interrupted: Slurm shows a step, so the row has a start.
#[tokio::test]
async fn a_lease_that_was_withdrawn_during_its_handover_was_held() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    let cancel = Request::CancelCell {
        kernel: "a".into(),
        tenure: Tenure(0),
        cell: "c1".into(),
    };
    lending.house.say(lending.ada.0, cancel);
    lending.house.say(lending.agent.0, ended(lease));
    let rows = lending.house.rows().await;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.state.as_str(), row.step), ("CANCELLED", 1));
    assert_eq!(row.held, row.end.unwrap().since(row.start.unwrap()));
}

/// slurmctld is slow or away, so that nobody has said whose the seat of a running cell's replica is.
#[tokio::test]
async fn a_restart_ends_no_lease_whose_replica_waits_for_slurms_word() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    lending.house.say(lending.agent.0, started(lease));
    let mut house = lending.house.restarted();
    let (agent, _agent_box) = house.connect("gresshopper", Role::Agent);
    let Request::AgentUp(report) = agent_up() else {
        unreachable!("made above")
    };
    let live = hop_api::message::LiveLease {
        order: order(lease),
        handover: handover(),
    };
    house.say(
        agent,
        Request::AgentUp(Box::new(AgentUp {
            leases: vec![live],
            ..*report
        })),
    );
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    let Request::ReplicaUp(mut report) = up("ada", "a", 1, 7, "n0") else {
        unreachable!("made above")
    };
    report.holds = Some((lease, Some("c1".into())));
    house.say(ada, Request::ReplicaUp(report));
    let state = |house: &House| house.scheduler.core.lease(lease).map(|l| l.state);
    house.scheduler.grace_over();
    house.scheduler.settle();
    assert_eq!(state(&house), Some("RUNNING"));
    assert!(
        house.scheduler.due.iter().any(|(_, due)| *due == Due::Grace),
        "it is looked at again"
    );
    // Slurm can't be asked: the replica is believed.
    house.scheduler.seat_owner(JobId(7), &Err("away".into()));
    house.scheduler.settle();
    house.scheduler.grace_over();
    house.scheduler.settle();
    assert_eq!(state(&house), Some("RUNNING"));
    let told = std::iter::from_fn(|| mailbox.try_recv().ok());
    let revoked = told.filter(|m| matches!(m.body, Response::Event(Event::Revoked { .. })));
    assert_eq!(revoked.count(), 0);
}

#[tokio::test]
async fn a_seat_that_slurm_has_confirmed_is_known_after_a_restart() {
    let mut house = House::new();
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    house.say(ada, up("ada", "a", 1, 7, "n0"));
    let owner = crate::slurm::Owner {
        uid: 3,
        account: Some("lab".into()),
        qos: None,
        nodes: vec!["n0".into()],
        lives: true,
    };
    house.scheduler.seat_owner(JobId(7), &Ok(Some(owner)));
    house.scheduler.settle();
    assert!(std::iter::from_fn(|| mailbox.try_recv().ok()).any(|m| done(&m.body)));
    let mut house = house.restarted();
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    assert!(done(&house.ask(ada, &mut mailbox, up("ada", "a", 1, 7, "n0"))));
    // Until Slurm doesn't show it any more.
    house.scheduler.closed(ada);
    house.scheduler.looked(Ok(crate::slurm::Queue::default()));
    house.scheduler.settle();
    let house = house.restarted();
    assert_eq!(house.scheduler.seats.get(JobId(7)), None);
}

#[tokio::test]
async fn slurms_last_word_of_shares_is_known_after_a_restart() {
    let said = |house: &House, usage: f64, weight: f64| Shares {
        at: house.scheduler.clock.now(),
        users: vec![("ada".into(), hop_core::config::Share { weight, usage })],
        ..Shares::default()
    };
    let kept = |house: &House| house.scheduler.news.shares.clone().map(|s| s.users[0].1.usage);
    let mut house = House::new();
    assert_eq!(kept(&house), None);
    house.scheduler.shares(Ok(said(&house, 7200.0, 1.0)));
    // The next reading is soon after, and differs in usage alone: the core has it, the journal the first one.
    house.scheduler.shares(Ok(said(&house, 7201.0, 1.0)));
    house.scheduler.settle();
    let mut house = house.restarted();
    assert_eq!(kept(&house), Some(7200.0));
    house.scheduler.shares(Err("no answer".into()));
    house.scheduler.settle();
    house.seat(7, "ada", "n0");
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    assert!(done(&house.ask(ada, &mut mailbox, up("ada", "a", 1, 7, "n0"))));
    house.say(ada, submit("a", 0));
    let explained = explained(&house);
    assert!(explained.contains("ada has used 2.0 GPU-hours"), "{explained}");
    // Other shares are written at once, and usage that is an hour old.
    house.scheduler.shares(Ok(said(&house, 7202.0, 2.0)));
    let house = house.restarted();
    assert_eq!(kept(&house), Some(7202.0));
    let mut later = said(&house, 9000.0, 2.0);
    later.at = later.at + Span::from_secs(3600);
    let mut house = house;
    house.scheduler.shares(Ok(later));
    assert_eq!(kept(&house.restarted()), Some(9000.0));
}

/// The seat's account is not one that the pool's partition takes.
#[tokio::test]
async fn a_pools_partition_says_who_may_lease() {
    let mut house = House::new();
    let admits = hop_slurm::Admits {
        not_accounts: vec!["guests".into()],
        ..hop_slurm::Admits::default()
    };
    let rules = Rules {
        partition: "p".into(),
        admits,
        ..Rules::default()
    };
    house.scheduler.news.rules = Some([("main".into(), rules)].into());
    let seat = |account: Option<&str>| Seat {
        user: "ada".into(),
        account: account.map(Into::into),
        qos: None,
        nodes: vec!["n0".into()],
    };
    house.scheduler.seats.restore(JobId(7), seat(Some("guests")));
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    let Request::ReplicaUp(mut report) = up("ada", "a", 1, 7, "n0") else {
        unreachable!("made above")
    };
    report.waiting = vec![waits("c1", Need::gpus(1), Class::Interactive)];
    house.say(ada, Request::ReplicaUp(report));
    let told: Vec<_> = std::iter::from_fn(|| mailbox.try_recv().ok())
        .map(|m| m.body)
        .collect();
    let why = "pool main is not for you: account guests may not use partition p (DenyAccounts)";
    assert!(
        matches!(&told[0], Response::Event(Event::Refused { reason, .. }) if reason == why),
        "{told:?}"
    );
    refused(
        &house.ask(ada, &mut mailbox, submit("a", 2)),
        "account guests may not use partition p",
    );
    assert_eq!(house.scheduler.core.waiting_of(&"ada".into()), 0);
    // What Slurm hasn't said is not allowed; an account that isn't denied is.
    house.scheduler.seats.restore(JobId(7), seat(None));
    refused(
        &house.ask(ada, &mut mailbox, submit("a", 3)),
        "your seat has no account",
    );
    let unknown = Seat {
        nodes: Vec::new(),
        ..seat(None)
    };
    house.scheduler.seats.restore(JobId(7), unknown);
    waits_on(
        &house.ask(ada, &mut mailbox, submit("a", 3)),
        "is not known while Slurm does not answer",
    );
    house.scheduler.seats.restore(JobId(7), seat(Some("lab")));
    assert!(done(&house.ask(ada, &mut mailbox, submit("a", 4))));
}

/// A refusal that doesn't end a cell.
#[track_caller]
fn waits_on(response: &Response, word: &str) {
    let Response::Refused(Refusal::Unavailable { reason }) = response else {
        panic!("{response:?}")
    };
    assert!(reason.contains(word), "{reason}");
}

/// Slurm has not said yet whom the partition of the kernel's pool takes, as of a pool that is new in the configuration.
#[tokio::test]
async fn a_cell_of_a_pool_without_rules_waits_for_them() {
    let mut house = House::new();
    let rules = house.scheduler.news.rules.replace([].into());
    house.seat(7, "ada", "n0");
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    let report = |waiting: &[&str]| {
        let Request::ReplicaUp(mut report) = up("ada", "a", 1, 7, "n0") else {
            unreachable!("made above")
        };
        let cells = waiting.iter();
        report.waiting = cells
            .map(|c| waits(c, Need::gpus(1), Class::Interactive))
            .collect();
        Request::ReplicaUp(report)
    };
    let unsaid = "Slurm has not said yet";
    waits_on(&house.ask(ada, &mut mailbox, report(&["c1"])), unsaid);
    assert!(
        house.scheduler.registry.is_seated(JobId(7)),
        "the kernel lives on"
    );
    waits_on(&house.ask(ada, &mut mailbox, submit("a", 2)), unsaid);
    assert_eq!(house.scheduler.core.waiting_of(&"ada".into()), 0);
    assert!(done(&house.ask(ada, &mut mailbox, report(&[]))));
    house.scheduler.news.rules = rules;
    assert!(done(&house.ask(ada, &mut mailbox, report(&["c1", "c2"]))));
    assert_eq!(house.scheduler.core.waiting_of(&"ada".into()), 2);
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
        let rows = views::queue(
            &self.house.scheduler.core,
            None,
            self.house.scheduler.clock.now(),
            Reason::to_string,
        );
        rows.into_iter()
            .map(|r| (r.kernel.to_string(), r.state))
            .collect()
    }

    fn says(&mut self, body: Request) {
        self.house.say(self.ada.0, body);
    }
}

fn agent_up() -> Request {
    Request::AgentUp(Box::new(AgentUp {
        node: "n0".into(),
        pilot: JobId(1),
        pool: "main".into(),
        gpus: vec![hop_api::message::GpuSlot {
            index: hop_words::id::GpuIndex(0),
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
        starting: vec![],
        ended: vec![],
        draining: false,
        standing: None,
        more: false,
    }))
}

fn handover() -> Handover {
    Handover {
        epoch: hop_words::id::Epoch(1),
        pilot: JobId(1),
        step: 1,
        devices: vec![hop_api::message::Device {
            index: hop_words::id::GpuIndex(0),
            path: "/dev/x".into(),
            major: 1,
            minor: 1,
        }],
        cores: String::new(),
        at: Timestamp(1),
    }
}

/// The order of a lease of ada's on the agent of [`agent_up`].
fn order(lease: LeaseId) -> StartLease {
    StartLease {
        term: Term(1),
        lease,
        pilot: JobId(1),
        user: "ada".into(),
        account: None,
        pool: "main".into(),
        kernel: "a".into(),
        name: "digits.ipynb".into(),
        cell: "c1".into(),
        submit: Timestamp(1),
        executor: SeatStep {
            job: JobId(7),
            step: 0,
            pid: 1,
            start_time: 1,
            uid: 3,
        },
        gpus: 1,
        gpu_type: None,
        cpus: 1,
        step_name: "ada/digits.ipynb".into(),
    }
}

fn ended_lease(lease: LeaseId) -> EndedLease {
    EndedLease {
        order: order(lease),
        handover: Some(handover()),
        end: hop_api::message::LeaseEnd {
            cause: hop_api::message::EndCause::Claimed,
            clean: true,
            ended_pids: vec![],
            at: Timestamp(2),
            detail: String::new(),
        },
    }
}

fn ended(lease: LeaseId) -> Request {
    Request::LeaseEnded(Box::new(ended_lease(lease)))
}

fn started(lease: LeaseId) -> Request {
    let handover = Handover {
        devices: vec![],
        ..handover()
    };
    Request::LeaseStarted { lease, handover }
}

fn parked(lease: LeaseId, kernel: &str, cell: &str) -> Request {
    let (kernel, cell) = (kernel.into(), cell.into());
    Request::CellParked {
        kernel,
        tenure: Tenure(0),
        cell,
        lease,
    }
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
        tenure: Tenure(0),
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
    let ended = ended(lease);
    let agent = long.agent.0;
    long.house.say(agent, ended);
    assert_eq!(long.states(), rows(&[("b", "STARTING"), ("a", "SUSPENDED")]));
    assert_eq!(long.was_asked(), 0);
}

#[tokio::test]
async fn a_lease_that_is_being_ended_has_a_state_that_can_be_asked_for() {
    let mut long = Long::new(true);
    long.says(parked(long.lease, "a", "c1"));
    assert_eq!(long.states()[0], ("a".to_owned(), "ENDING".to_owned()));
    let mut rows = long.house.rows().await;
    let scheduler = &long.house.scheduler;
    views::freshen(
        &mut rows,
        &views::live_leases(&scheduler.core),
        scheduler.clock.now(),
    );
    let told: Vec<_> = rows.iter().map(|r| (r.lease, r.state.as_str(), r.end)).collect();
    assert_eq!(told, [(long.lease, "LINGERING", None)]);
}

#[tokio::test]
async fn a_cells_need_is_told_while_it_waits_and_while_it_runs() {
    let mut lending = Lending::new();
    let need = Need {
        cpus: 3,
        deadline: Some(Timestamp(u64::MAX / 4)),
        ..Need::gpus(1)
    };
    let told = |lending: &Lending| -> Vec<(String, Need)> {
        let scheduler = &lending.house.scheduler;
        let rows = views::queue(&scheduler.core, None, scheduler.clock.now(), Reason::to_string);
        rows.into_iter().map(|r| (r.state, r.need)).collect()
    };
    let mut submit = submit("a", 1);
    if let Request::Submit { need: asked, .. } = &mut submit {
        *asked = need.clone();
    }
    lending.house.say(lending.ada.0, submit);
    let lease = lending.house.scheduler.core.leases()[0].lease;
    let lent = Need {
        cpus: lending.house.scheduler.core.leases()[0].cpus,
        ..need
    };
    assert_eq!(told(&lending), [("STARTING".to_owned(), lent.clone())]);
    lending.house.say(lending.agent.0, started(lease));
    assert_eq!(told(&lending), [("RUNNING".to_owned(), lent.clone())]);
    lending.house.say(lending.ada.0, cell_ended(1, lease));
    let idle = Need {
        cpus: lent.cpus,
        ..Need::gpus(1)
    };
    assert_eq!(told(&lending), [("LINGERING".to_owned(), idle)]);
}

/// Events of a kind that a replica was told, the oldest first.
fn told<T>(mailbox: &mut Mailbox, wanted: impl Fn(Event) -> Option<T>) -> Vec<T> {
    let events = std::iter::from_fn(|| mailbox.try_recv().ok()).filter_map(|m| match m.body {
        Response::Event(event) => Some(event),
        _ => None,
    });
    events.filter_map(wanted).collect()
}

#[tokio::test]
async fn a_grant_says_how_long_its_cell_runs_undisturbed() {
    let quanta = |event| match event {
        Event::Granted { grant, .. } => Some(grant.quanta),
        _ => None,
    };
    let second = (Class::Interactive, Span::from_secs(1));
    let mut parks = Long::new(true);
    assert_eq!(told(&mut parks.ada.1, quanta), [vec![second]]);
    let mut fixed = Long::new(false);
    assert_eq!(told(&mut fixed.ada.1, quanta), [vec![]], "it is never parked");
}

#[tokio::test]
async fn a_lease_that_stays_says_until_when_where_its_pool_fixes_that() {
    let until = |event| match event {
        Event::Kept { lease, until, .. } => Some((lease, until)),
        _ => None,
    };
    for (linger, is_told) in [("linger_ms = 9000\n", true), ("", false)] {
        let mut house = House::with(linger);
        house.seat(7, "ada", "n0");
        let agent = house.connect("gresshopper", Role::Agent);
        house.say(agent.0, agent_up());
        let (ada, mut mailbox) = house.connect("ada", Role::Replica);
        house.ask(ada, &mut mailbox, up("ada", "a", 1, 7, "n0"));
        house.say(ada, submit("a", 1));
        let lease = house.scheduler.core.leases()[0].lease;
        house.say(agent.0, started(lease));
        house.say(ada, cell_ended(1, lease));
        let view = house.scheduler.core.lease(lease).unwrap();
        assert_eq!(view.state, "LINGERING");
        let expected = is_told.then(|| (lease, view.since + Span::from_secs(9)));
        assert_eq!(told(&mut mailbox, until), Vec::from_iter(expected));
    }
}

#[tokio::test]
async fn a_cell_is_foretold_from_earlier_runs_of_its_text() {
    let mut lending = Lending::new();
    for cell in [1, 2, 2] {
        lending.house.say(lending.ada.0, submit("a", cell));
        let lease = lending.house.scheduler.core.leases()[0].lease;
        lending.house.say(lending.agent.0, started(lease));
        lending.house.say(lending.ada.0, cell_ended(cell, lease));
    }
    let runs_behind = |print| {
        let core = &lending.house.scheduler.core;
        core.foretell(&"a".into(), print, Span::ZERO).unwrap().history
    };
    assert_eq!([1, 2].map(runs_behind), [1, 2]);
    assert_eq!(
        runs_behind(3),
        3,
        "a text that never ran has the kernel's other runs"
    );
}

fn cell_ended(cell: usize, lease: LeaseId) -> Request {
    Request::CellEnded {
        kernel: "a".into(),
        tenure: Tenure(0),
        cell: format!("c{cell}").into(),
        lease,
        started: Timestamp(1),
        ended: Timestamp(2),
        outcome: hop_words::lease::Outcome::Ok,
    }
}

#[tokio::test]
async fn a_replica_that_cannot_park_or_does_not_answer_is_left_alone() {
    let mut old = Long::new(false);
    assert_eq!(old.was_asked(), 0);
    assert_eq!(old.states(), rows(&[("a", "RUNNING"), ("b", "PENDING")]));
    let explained = |long: &Long| explained(&long.house);
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
async fn another_kernels_answer_about_a_lease_is_none() {
    let mut long = Long::new(true);
    assert_eq!(long.was_asked(), 1);
    let (bob, mut mailbox) = long.house.connect("bobby", Role::Replica);
    let Request::ReplicaUp(mut report) = up("bobby", "b", 1, 8, "n0") else {
        unreachable!("made above")
    };
    report.parked = Some(hop_api::message::ParkedCell {
        cell: "c1".into(),
        lease: long.lease,
        ran: Span::from_secs(1),
    });
    long.house.ask(bob, &mut mailbox, Request::ReplicaUp(report));
    for answer in [
        parked(long.lease, "b", "c1"),
        Request::ParkRefused {
            kernel: "b".into(),
            tenure: Tenure(0),
            lease: long.lease,
            reason: "x".into(),
        },
    ] {
        long.house.say(bob, answer);
    }
    let conn = long.ada.0;
    long.house.scheduler.closed(conn);
    long.ada = long.house.connect("ada", Role::Replica);
    let Request::ReplicaUp(mut report) = up("ada", "a", 1, 7, "n0") else {
        unreachable!("made above")
    };
    report.holds = Some((long.lease, Some("c1".into())));
    long.says(Request::ReplicaUp(report));
    assert_eq!(long.was_asked(), 1, "the question to ada's kernel is open still");
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
    report.waiting = vec![waits("c1", Need::gpus(1), Class::Interactive)];
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
        first: None,
        default_need: Need::gpus(1),
        mem_mib: 0,
        cpus: 0,
        avoid: vec![],
        replaces: false,
        name: String::new(),
    })
}

fn waits(cell: &str, need: Need, class: Class) -> WaitingCell {
    let cell = cell.into();
    WaitingCell {
        cell,
        need,
        class,
        print: 0,
    }
}

fn up(user: &str, kernel: &str, incarnation: u32, job: u32, node: &str) -> Request {
    Request::ReplicaUp(Box::new(ReplicaUp {
        kernel: kernel.into(),
        tenure: Tenure(0),
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
        ended: None,
        waiting: vec![],
        parks: true,
        parked: None,
        captured: false,
        unsaved: None,
        bound: Bound::default(),
        wanted: 0,
        standbys: Vec::new(),
        leader: None,
    }))
}

/// Cells of one number have one text.
fn submit(kernel: &str, cell: usize) -> Request {
    Request::Submit {
        kernel: kernel.into(),
        tenure: Tenure(0),
        cell: format!("c{cell}").into(),
        need: Need::gpus(1),
        class: Class::Interactive,
        print: cell as u64,
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
    assert_eq!(house.scheduler.registry.counts().0, 5);
    assert_eq!(house.scheduler.connections.heard_kernels(), 5);
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
    assert_eq!(house.scheduler.connections.heard_kernels(), 1);
    assert_eq!(house.scheduler.registry.counts().1, 0);
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
        let cell = |n: usize| waits(&format!("c{n}"), Need::gpus(1), Class::Interactive);
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
    assert_eq!(house.scheduler.registry.counts().2, 10);
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
    let mut more: Vec<_> = (0..20).map(|_| house.connect("mallory", Role::Front)).collect();
    for (conn, _) in &more {
        (0..UNREAD).for_each(|_| house.say(*conn, Request::Queue(QueueQuery::default())));
    }
    let told = more
        .iter_mut()
        .flat_map(|(_, mailbox)| std::iter::from_fn(|| mailbox.try_recv().ok()));
    let rows = told.filter(|m| matches!(m.body, Response::Queue { .. })).count();
    assert!((1..=UNREAD_OF_USER).contains(&rows), "{rows}");
    let (bob, mut bobs) = house.connect("bob", Role::Client);
    let queue = Request::Queue(QueueQuery::default());
    assert!(matches!(house.ask(bob, &mut bobs, queue), Response::Queue { .. }));
    assert!(matches!(
        house.ask(mallory, &mut mailbox, Request::Queue(QueueQuery::default())),
        Response::Queue { .. }
    ));
}

/// Rows of a year are many, and a user has many connections.
#[tokio::test]
async fn accounting_that_is_not_read_is_open_still() {
    let mut house = House::new();
    let acct = || Request::Acct(AcctQuery::default());
    let (asks, mut mailbox) = house.connect("mallory", Role::Client);
    house.say(asks, acct());
    while mailbox.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut inbox = house.scheduler.inbox.take().unwrap();
    let mut answered = || {
        let told = std::iter::from_fn(|| inbox.try_recv().ok());
        told.filter(|report| matches!(report, Report::Answered { .. }))
            .count()
    };
    assert_eq!(answered(), 0);
    // Only the rows count. An answer that comes behind them, and isn't read, is no part of the question.
    house.say(asks, Request::Queue(QueueQuery::default()));
    mailbox.recv().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(answered(), 1);
    let (hangs_up, mailbox) = house.connect("mallory", Role::Client);
    house.say(hangs_up, acct());
    drop(mailbox);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(answered(), 1);
}

/// Somebody's shell on the database locks it, or its disk is full.
#[tokio::test]
async fn an_answer_says_what_the_accounting_can_not_write() {
    let mut house = House::new();
    let locks = rusqlite::Connection::open(house.folder.path().join("accounting")).unwrap();
    for (user, locked, expected) in [("ada", false, 0), ("bobby", true, 1), ("mallory", false, 0)] {
        let (asks, mut mailbox) = house.connect(user, Role::Client);
        if locked {
            locks.execute_batch("begin exclusive").unwrap();
            let order = order(LeaseId(7));
            let row = house.scheduler.records.rows.adopt(&"n0".into(), &order, None);
            house.scheduler.records.write(vec![], Vec::from_iter(row));
        } else if !locks.is_autocommit() {
            locks.execute_batch("commit").unwrap();
        }
        house.say(asks, Request::Acct(AcctQuery::default()));
        house.say(asks, Request::Sums(SumsQuery::default()));
        for _ in 0..2 {
            let behind = match mailbox.recv().await.unwrap().body {
                Response::Acct { behind, .. } | Response::Sums { behind, .. } => behind,
                other => panic!("{other:?}"),
            };
            assert_eq!(behind, expected, "locked: {locked}");
        }
    }
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
    assert_eq!(house.scheduler.connections.held_up(), HELD_UP);
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
    assert!(house.scheduler.news.is_looking(), "the next is read again");
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
            first: Some(Incarnation((1 << 31) - 1)),
            default_need: need,
            mem_mib,
            cpus: u16::MAX,
            avoid: vec![],
            replaces: false,
            name: String::new(),
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
                up.waiting = vec![waits("w", huge(), Class::Deadline)];
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
                        tenure: Tenure(0),
                        cell,
                        need: need.clone(),
                        class,
                        print: 0,
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
                tenure: Tenure(0),
                cell: "1Deadline".into(),
                lease: LeaseId(u64::MAX),
                started: Timestamp(u64::MAX),
                ended: Timestamp(0),
                outcome: hop_words::lease::Outcome::Ok,
            },
        );
    }
    house.say(replica, Request::Ping);
    assert!(matches!(
        house.ask(replica, &mut mailbox, Request::Ping),
        Response::Pong
    ));
}

/// Ada's kernel with an executor of tenure 2, and the process of a standby on another node.
struct Two {
    house: House,
    executor: (ConnId, Mailbox),
    standby: (ConnId, Mailbox),
}

fn executor_of(incarnation: u32, tenure: u64) -> Request {
    let (job, node) = (10 + incarnation, format!("n{incarnation}"));
    let Request::ReplicaUp(report) = up("ada", "a", incarnation, job, &node) else {
        unreachable!("made above")
    };
    Request::ReplicaUp(Box::new(ReplicaUp {
        tenure: Tenure(tenure),
        ..*report
    }))
}

impl Two {
    fn new() -> Self {
        let mut house = House::new();
        for n in 1..=3 {
            house.seat(10 + n, "ada", &format!("n{n}"));
        }
        let mut executor = house.connect("ada", Role::Replica);
        let standby = house.connect("ada", Role::Replica);
        let answer = house.ask(executor.0, &mut executor.1, executor_of(1, 2));
        assert!(done(&answer), "{answer:?}");
        Self {
            house,
            executor,
            standby,
        }
    }

    fn replicas(&self) -> BTreeSet<u32> {
        let replicas = self.house.scheduler.registry.ids();
        replicas.map(|id| id.incarnation.0).collect()
    }
}

fn submit_as(tenure: u64) -> Request {
    match submit("a", 1) {
        Request::Submit {
            kernel,
            cell,
            need,
            class,
            print,
            ..
        } => Request::Submit {
            kernel,
            tenure: Tenure(tenure),
            cell,
            need,
            class,
            print,
        },
        other => other,
    }
}

#[tokio::test]
async fn only_the_highest_tenure_speaks_for_a_kernel() {
    let mut two = Two::new();
    let superseded = |answer: Response| {
        let said = matches!(
            answer,
            Response::Refused(Refusal::Superseded {
                tenure: Tenure(3),
                ..
            })
        );
        assert!(said, "{answer:?}");
    };
    let (old, mailbox) = &mut two.executor;
    assert!(done(&two.house.ask(*old, mailbox, submit_as(2))));
    let (new, mailbox) = &mut two.standby;
    let elected = executor_of(2, 3);
    assert!(done(&two.house.ask(*new, mailbox, elected)));
    let (old, mailbox) = &mut two.executor;
    superseded(two.house.ask(*old, mailbox, submit_as(2)));
    let cancel = Request::CancelCell {
        kernel: "a".into(),
        tenure: Tenure(2),
        cell: "c1".into(),
    };
    superseded(two.house.ask(*old, mailbox, cancel));
    superseded(two.house.ask(*old, mailbox, executor_of(1, 2)));
    assert!(done(&two.house.ask(
        two.standby.0,
        &mut two.standby.1,
        submit_as(3)
    )));
}

/// A restart of the kernel's may have removed every other record of its tenures, and a lower one would not be heard.
#[tokio::test]
async fn a_front_that_starts_a_kernel_is_told_its_highest_tenure() {
    let mut two = Two::new();
    let (front, mut mailbox) = two.house.connect("ada", Role::Front);
    for (kernel, tenure) in [("a", Tenure(2)), ("b", Tenure(0))] {
        let answer = two.house.ask(front, &mut mailbox, place(kernel));
        let told = matches!(&answer, Response::Placement(p) if p.tenure == tenure);
        assert!(told, "{answer:?}");
    }
}

/// The leases that an agent was ordered to start, with their executors' seats, and those that it was ordered to end.
fn orders(mailbox: &mut Mailbox) -> (Vec<JobId>, Vec<LeaseId>) {
    let (mut seats, mut ends) = (Vec::new(), Vec::new());
    for message in std::iter::from_fn(|| mailbox.try_recv().ok()) {
        match message.body {
            Response::Order(Order::StartLease(start)) => seats.push(start.executor.job),
            Response::Order(Order::EndLease { lease, .. }) => ends.push(lease),
            _ => {}
        }
    }
    (seats, ends)
}

/// An executor that is cut off from its log alone stays connected here while another one is elected.
#[tokio::test]
async fn a_deposed_executor_is_lent_nothing_though_it_is_connected() {
    let mut two = Two::new();
    let mut agents = [1, 2].map(|n| {
        let Request::AgentUp(up) = agent_up() else {
            unreachable!("made above")
        };
        let agent = two.house.connect("gresshopper", Role::Agent);
        let (pilot, node) = (JobId(n), format!("n{n}").as_str().into());
        two.house.say(
            agent.0,
            Request::AgentUp(Box::new(AgentUp { pilot, node, ..*up })),
        );
        agent
    });
    two.house.say(two.executor.0, submit_as(2));
    let (seats, _) = orders(&mut agents[0].1);
    assert_eq!(seats, [JobId(11)]);
    let lease = two.house.scheduler.core.leases()[0].lease;
    two.house.say(agents[0].0, started(lease));

    two.house.say(two.standby.0, executor_of(2, 3));
    assert_eq!(two.replicas(), [2].into());
    assert_eq!(orders(&mut agents[0].1), (vec![], vec![lease]));
    let hears = |event| matches!(event, Event::Revoked { lease: l, .. } if l == lease).then_some(());
    assert_eq!(told(&mut two.executor.1, hears).len(), 1);

    let second = match submit_as(3) {
        Request::Submit {
            kernel,
            need,
            class,
            print,
            ..
        } => Request::Submit {
            kernel,
            tenure: Tenure(3),
            cell: "c2".into(),
            need,
            class,
            print,
        },
        other => other,
    };
    two.house.say(two.standby.0, second);
    assert_eq!(orders(&mut agents[1].1), (vec![JobId(12)], vec![]));
    assert_eq!(orders(&mut agents[0].1), (vec![], vec![]));
    // What the deposed one says of its own lease is heard, and its hanging up changes nothing.
    let released = Request::ReleaseLease {
        kernel: "a".into(),
        tenure: Tenure(2),
        lease,
    };
    let (old, mailbox) = &mut two.executor;
    assert!(done(&two.house.ask(*old, mailbox, released)));
    two.house.scheduler.closed(two.executor.0);
    two.house.scheduler.settle();
    assert_eq!(two.replicas(), [2].into());
}

#[tokio::test]
async fn a_tenure_that_is_over_stays_over_after_a_restart() {
    let mut two = Two::new();
    let (new, mailbox) = &mut two.standby;
    two.house.ask(*new, mailbox, executor_of(2, 3));
    let mut house = two.house.restarted();
    for n in 1..=3 {
        house.seat(10 + n, "ada", &format!("n{n}"));
    }
    let (old, mut mailbox) = house.connect("ada", Role::Replica);
    let answer = house.ask(old, &mut mailbox, executor_of(1, 2));
    refused(&answer, "tenure 3 speaks for kernel a now");
}

#[tokio::test]
async fn a_new_executor_supersedes_the_one_before() {
    let mut two = Two::new();
    two.house.scheduler.closed(two.executor.0);
    assert_eq!(two.replicas(), [1].into(), "it may come back");
    let (third, mut mailbox) = two.house.connect("ada", Role::Replica);
    two.house.ask(third, &mut mailbox, executor_of(3, 3));
    assert_eq!(two.replicas(), [3].into());
    // The number says nothing where there is a log: a lower one may hold the higher tenure.
    two.house.scheduler.closed(third);
    let (second, mut mailbox) = two.house.connect("ada", Role::Replica);
    two.house.ask(second, &mut mailbox, executor_of(2, 4));
    assert_eq!(two.replicas(), [2].into());
}
