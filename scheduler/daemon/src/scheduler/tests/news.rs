//! What Slurm says, in part or late. No Slurm is asked: what it would say is put in.

use super::*;
use crate::installation::Installation;
use crate::pilot_jobs::{Seen, SeenJob, job_name};
use crate::slurm::Ending;
use hop_words::clock;

fn facts(rules: Result<BTreeMap<PoolName, Rules>, String>) -> Facts {
    Facts {
        nodes: Vec::new(),
        burst: Vec::new(),
        down: Vec::new(),
        members: None,
        usable: [("main".into(), vec!["n9".into()])].into(),
        refused: BTreeMap::new(),
        rules,
        offers: Vec::new(),
        stepmgr: true,
        hidden: Vec::new(),
    }
}

fn rules_for(account: &str) -> BTreeMap<PoolName, Rules> {
    let admits = hop_slurm::Admits {
        accounts: Some(vec![account.to_owned()]),
        ..hop_slurm::Admits::default()
    };
    let rules = Rules {
        partition: "p".into(),
        admits,
        ..Rules::default()
    };
    [("main".into(), rules)].into()
}

/// Slurm's settings have changed, or the configuration has, under kernels and pilots that are up.
#[tokio::test]
async fn a_pool_that_must_not_be_lent_takes_no_cell_of_a_kernel_that_is_up() {
    let Lending {
        mut house,
        agent: (agent, mut orders),
        ada: (ada, mut mailbox),
    } = Lending::new();
    let refused_now = || Facts {
        refused: [("main".into(), "its partition has OverSubscribe=FORCE".into())].into(),
        ..facts(Ok(rules_for("lab")))
    };
    house.scheduler.facts(Ok(refused_now()));
    house.scheduler.settle();
    let is_drain = |m: Outgoing| matches!(m.body, Response::Order(Order::Drain { .. }));
    let mut drains = || std::iter::from_fn(|| orders.try_recv().ok()).any(is_drain);
    assert!(drains());
    refused(
        &house.ask(ada, &mut mailbox, submit("a", 2)),
        "pool main is not lent: its partition has OverSubscribe=FORCE",
    );
    house.say(agent, agent_up());
    assert!(drains(), "an agent that comes back");
}

/// Ada's cell runs on the only GPU, and bobby's waits.
fn runs_and_waits() -> (Lending, LeaseId, Mailbox) {
    let mut lending = Lending::new();
    let lease = lending.lease();
    let house = &mut lending.house;
    house.say(lending.agent.0, started(lease));
    house.seat(8, "bobby", "n0");
    let (bob, mut mailbox) = house.connect("bobby", Role::Replica);
    house.ask(bob, &mut mailbox, up("bobby", "b", 1, 8, "n0"));
    house.say(bob, submit("b", 1));
    assert_eq!(house.scheduler.core.waiting_in(&"b".into()), 1);
    (lending, lease, mailbox)
}

/// The reasons of refusals that a replica was told.
fn refusals(mailbox: &mut Mailbox) -> Vec<String> {
    told(mailbox, |event| match event {
        Event::Refused { reason, .. } => Some(reason),
        _ => None,
    })
}

fn not_lent() -> Facts {
    Facts {
        refused: [("main".into(), "its partition has OverSubscribe=FORCE".into())].into(),
        ..facts(Ok([("main".into(), Rules::default())].into()))
    }
}

/// Waiting cells would wait for nothing: no pilot of the pool lends, and none comes.
#[tokio::test]
async fn a_cell_that_waits_is_refused_once_its_pool_takes_it_no_more() {
    let not_for_bob = || facts(Ok(rules_for("lab")));
    for (news, why) in [
        (
            not_lent as fn() -> Facts,
            "pool main is not lent: its partition has OverSubscribe=FORCE",
        ),
        (not_for_bob, "pool main is not for you: your seat has no account"),
    ] {
        let (Lending { mut house, .. }, lease, mut bob) = runs_and_waits();
        house.scheduler.facts(Ok(news()));
        house.scheduler.settle();
        house.scheduler.core.sanity_check().unwrap();
        let said = refusals(&mut bob);
        assert!(matches!(&said[..], [said] if said.starts_with(why)), "{said:?}");
        assert_eq!(house.scheduler.core.waiting_count(), 0);
        let state = house.scheduler.core.lease(lease).map(|l| l.state);
        assert_eq!(state, Some("RUNNING"), "it ends as it would");
        let rows = house.rows().await;
        let row = rows.iter().find(|r| r.kernel == "b".into()).unwrap();
        assert!(row.reason.starts_with(why), "{row:?}");
    }
}

/// Slurm, slurmdbd or the user's seat can't say it just now.
#[tokio::test]
async fn a_cell_waits_on_while_it_is_unknown_whether_its_pool_takes_it() {
    let (Lending { mut house, .. }, _, mut bob) = runs_and_waits();
    let unnamed = Seat {
        user: "bobby".into(),
        account: None,
        qos: None,
        nodes: Vec::new(),
    };
    house.scheduler.seats.restore(JobId(8), unnamed);
    for answer in [
        Err("away".to_owned()),
        Ok(facts(Err("slurmdbd is down".into()))),
        Ok(facts(Ok(rules_for("lab")))),
    ] {
        house.scheduler.facts(answer);
        house.scheduler.settle();
        assert_eq!(house.scheduler.core.waiting_in(&"b".into()), 1);
    }
    house.scheduler.news.rules = Some(BTreeMap::new());
    house.scheduler.facts(Ok(facts(Err("slurmdbd is down".into()))));
    house.scheduler.settle();
    assert_eq!(
        house.scheduler.core.waiting_in(&"b".into()),
        1,
        "a pool without rules"
    );
    assert_eq!(refusals(&mut bob), Vec::<String>::new());
}

/// It runs, though it stands still: it would be lost.
#[tokio::test]
async fn a_parked_cell_waits_on_for_its_pool() {
    let mut long = Long::new(true);
    let lease = long.lease;
    long.says(parked(lease, "a", "c1"));
    let waits_for_its_pool = |long: &Long| long.house.scheduler.core.waiting_in(&"a".into()) == 1;
    assert!(waits_for_its_pool(&long));
    long.house.scheduler.facts(Ok(not_lent()));
    long.house.scheduler.settle();
    assert!(waits_for_its_pool(&long));
    assert_eq!(long.house.scheduler.core.waiting_in(&"b".into()), 0);
    // Its replica reports anew.
    let conn = long.ada.0;
    long.house.scheduler.closed(conn);
    long.ada = long.house.connect("ada", Role::Replica);
    let Request::ReplicaUp(mut report) = up("ada", "a", 1, 7, "n0") else {
        unreachable!("made above")
    };
    report.waiting = vec![waits("c1", Need::gpus(1), Class::Interactive)];
    report.parked = Some(hop_api::message::ParkedCell {
        cell: "c1".into(),
        lease,
        ran: Span::from_secs(1),
    });
    long.says(Request::ReplicaUp(report));
    assert_eq!(refusals(&mut long.ada.1), Vec::<String>::new());
    assert!(waits_for_its_pool(&long));
}

/// "Running cells end as they would", whatever breaks meanwhile.
#[tokio::test]
async fn what_runs_in_a_pool_not_lent_outlives_a_broken_connection() {
    for restarts in [false, true] {
        let mut lending = Lending::new();
        let lease = lending.lease();
        lending.house.say(lending.agent.0, started(lease));
        let (mut house, conn, mut agents) = (lending.house, lending.ada.0, vec![lending.agent.1]);
        if restarts {
            house = house.restarted();
            let (agent, mailbox) = house.connect("gresshopper", Role::Agent);
            agents.push(mailbox);
            let live = hop_api::message::LiveLease {
                order: order(lease),
                handover: handover(),
            };
            let leases = vec![live];
            house.say(agent, report_of(|report| AgentUp { leases, ..report }));
        }
        house.scheduler.facts(Ok(not_lent()));
        house.scheduler.settle();
        house.scheduler.closed(conn);
        house.seat(7, "ada", "n0");
        let (ada, mut mailbox) = house.connect("ada", Role::Replica);
        let Request::ReplicaUp(mut report) = up("ada", "a", 1, 7, "n0") else {
            unreachable!("made above")
        };
        report.holds = Some((lease, Some("c1".into())));
        let answer = house.ask(ada, &mut mailbox, Request::ReplicaUp(report));
        let id = ReplicaId {
            kernel: "a".into(),
            incarnation: hop_words::id::Incarnation(1),
        };
        house.scheduler.replica_away(&id);
        house.scheduler.grace_over();
        house.scheduler.settle();
        let state = house.scheduler.core.lease(lease).map(|l| l.state);
        assert_eq!(state, Some("RUNNING"), "{restarts}: {answer:?}");
        house.scheduler.core.sanity_check().unwrap();
        // A kernel that nobody knows doesn't begin in such a pool.
        house.seat(9, "cleo", "n0");
        let (cleo, mut mailbox) = house.connect("cleo", Role::Replica);
        waits_on(
            &house.ask(cleo, &mut mailbox, up("cleo", "n", 1, 9, "n0")),
            "is not lent",
        );
    }
}

#[tokio::test]
async fn a_pilot_held_up_by_a_reservation_is_to_end_before_it() {
    let mut house = House::new();
    let request = |node: &str| PilotRequest {
        node: Some(node.into()),
        ..of_pool_main()
    };
    house
        .scheduler
        .pilot_jobs
        .restore(1, request("n0"), Some(JobId(56)));
    house
        .scheduler
        .pilot_jobs
        .restore(2, request("n1"), Some(JobId(57)));
    let wall = clock::now();
    let to_shorten = |hours: u64| {
        let waiting = hop_slurm::WaitingJob {
            nodes: vec![],
            limit: hop_slurm::span::TimeLimit::At(Span::from_secs(86_400)),
            reason: "ReqNodeNotAvail, Reserved for maintenance".into(),
        };
        let held_up = crate::slurm::HeldUp {
            pilots: [56, 57, 58].map(|job| (JobId(job), waiting.clone())).into(),
            reservations: vec![hop_slurm::Reservation {
                start: wall + Span::from_secs(hours * 3600),
                nodes: vec!["n0".into()],
                has_all: false,
            }],
        };
        house.scheduler.to_shorten(held_up, wall)
    };
    assert_eq!(
        to_shorten(10),
        [(JobId(56), 599)],
        "57 isn't there, and 58 isn't ours"
    );
    assert_eq!(to_shorten(0), [], "it would be replaced at once");
}

/// The configuration has given the node to another pool.
#[tokio::test]
async fn a_pool_whose_nodes_have_pilots_of_another_says_so() {
    let Lending { mut house, .. } = Lending::new();
    let main = house.scheduler.config.pool[&PoolName::from("main")].clone();
    house.scheduler.config.pool.insert("new".into(), main);
    house.scheduler.facts(Ok(Facts {
        usable: [("new".into(), vec!["n0".into()])].into(),
        ..facts(Ok(rules_for("lab")))
    }));
    house.scheduler.settle();
    let pool = PoolName::from("new");
    let said = house.scheduler.worded(&Reason::NoPilot { pool, coming: true });
    assert!(said.contains("node n0 has GPUs in job 1 of pool main"), "{said}");
    let problems = info(&mut house).problems.join(" ");
    assert!(problems.contains("Pool new lacks pilots: node n0"), "{problems}");
}

/// From 23.02 on a rule on an account needs slurmdbd's word on the accounts below it.
#[tokio::test]
async fn without_slurmdbd_nodes_are_learnt_and_the_rules_known_last_hold() {
    let mut house = House::new();
    house.scheduler.news.rules = Some(rules_for("lab"));
    let knows_node = |house: &House| house.scheduler.pilot_jobs.pool_of(&"n9".into()).is_some();
    assert!(!knows_node(&house));
    house.scheduler.facts(Ok(facts(Err("slurmdbd is down".into()))));
    assert!(knows_node(&house));
    assert_eq!(house.scheduler.news.rules, Some(rules_for("lab")));
    let said = house.scheduler.news.problems();
    let [said] = &said[..] else { panic!("{said:?}") };
    assert!(
        said.contains("the rules known last are kept): slurmdbd is down"),
        "{said}"
    );
    house.scheduler.facts(Ok(facts(Ok(rules_for("course")))));
    assert_eq!(house.scheduler.news.rules, Some(rules_for("course")));
    assert_eq!(house.scheduler.news.problems(), Vec::<String>::new());
}

/// The configuration has a new pool, and nobody could say yet whom its partition takes.
#[tokio::test]
async fn a_pool_whose_rules_nobody_knows_lends_to_nobody() {
    let mut house = House::new();
    house.scheduler.news.rules = Some(BTreeMap::new());
    house.scheduler.facts(Ok(facts(Err("slurmdbd is down".into()))));
    house.seat(7, "ada", "n0");
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    house.ask(ada, &mut mailbox, up("ada", "a", 1, 7, "n0"));
    let answer = house.ask(ada, &mut mailbox, submit("a", 1));
    refused(
        &answer,
        "Slurm has not said yet whom the partition of pool main takes",
    );
    house
        .scheduler
        .facts(Ok(facts(Ok([("main".into(), Rules::default())].into()))));
    assert!(done(&house.ask(ada, &mut mailbox, submit("a", 2))));
}

const HOUR: Span = Span::from_secs(3600);

/// An earlier `hopd` knew the rules of other pools: those of a new one are asked for as those of the first are.
#[tokio::test]
async fn rules_are_asked_for_as_long_as_one_pool_lacks_them() {
    let asks_soon = |house: &House| {
        let at = house.scheduler.due.iter().find(|(_, due)| *due == Due::Facts);
        let at = at.unwrap().0;
        at.since(house.scheduler.clock.now()) < Span::from_secs(30)
    };
    let is_asked = |house: &House| {
        let problems = house.scheduler.news.problems();
        problems
            .iter()
            .any(|p| p.contains("Slurm's settings can't be read"))
    };
    let mut house = House::new();
    let unread = || Ok(facts(Err("slurmdbd is down".into())));
    house.scheduler.facts(unread());
    assert!(!asks_soon(&house));
    house.scheduler.learn_limits(Duration::ZERO).await;
    assert!(!is_asked(&house));
    house.scheduler.news.rules = Some(BTreeMap::new());
    house.scheduler.facts(unread());
    assert!(asks_soon(&house));
    let said = house.scheduler.news.problems().join(" ");
    assert!(said.contains("new cells get no GPU of pool main"), "{said}");
    house.scheduler.learn_limits(Duration::ZERO).await;
    assert!(is_asked(&house));
}

/// The pilot of [`agent_up`] and ada's seat, which Slurm ends in so many seconds by the wall clock.
fn both_end_in(seconds: u64) -> Queue {
    let pilot = SeenJob {
        job: JobId(1),
        name: job_name(&"main".into(), 1),
        node: Some("n0".into()),
        state: Seen::Running,
        reason: String::new(),
        installation: Some(Installation::default()),
    };
    let end = Ending {
        at: clock::now() + Span::from_secs(seconds),
        limit: Span::from_secs(86_400),
    };
    Queue {
        pilots: vec![pilot],
        alive: vec![JobId(1), JobId(7)],
        ends: [(JobId(1), end), (JobId(7), end)].into(),
        ..Queue::default()
    }
}

/// A queue with nothing but a seat that waits for this reason.
pub(super) fn seat_waits(job: u32, user: &str, why: &str) -> Queue {
    let seat = crate::slurm::WaitingSeat {
        job: JobId(job),
        user: user.into(),
        why: why.to_owned(),
    };
    Queue {
        alive: vec![JobId(job)],
        seats: vec![seat],
        ..Queue::default()
    }
}

/// An operator or a site's plugin may give the job any name.
#[tokio::test]
async fn a_lease_outlives_the_renaming_of_its_pilot() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    lending.house.say(lending.agent.0, started(lease));
    let mut house = lending.house;
    for restarts in [false, true] {
        for _ in 0..3 {
            let mut queue = both_end_in(86_400);
            queue.pilots[0].name = "evil".to_owned();
            house.scheduler.looked(Ok(queue));
            house.scheduler.settle();
        }
        assert!(house.scheduler.core.lease(lease).is_some(), "{restarts}");
        if !restarts {
            house = house.restarted();
        }
    }
}

fn is_drained(mailbox: &mut Mailbox) -> bool {
    let told = std::iter::from_fn(|| mailbox.try_recv().ok());
    let drains = told.filter(|m| matches!(m.body, Response::Order(Order::Drain { .. })));
    drains.count() > 0
}

/// The host's clock was set forward after hopd's start, and back.
#[tokio::test]
async fn seats_and_pilots_are_left_in_time_whenever_the_clock_was_set() {
    for (ahead, words) in [
        (false, "hopd is 3600 s behind it"),
        (true, "hopd is 3600 s ahead of it"),
    ] {
        let mut lending = Lending::new();
        let house = &mut lending.house;
        let now = clock::now();
        let clock = match ahead {
            true => now + HOUR,
            false => Timestamp(now.0 - HOUR.0),
        };
        house.scheduler.clock = SteadyClock::starting_at(clock);
        house.scheduler.looked(Ok(both_end_in(4000)));
        house.scheduler.settle();
        assert_eq!(house.scheduler.endings.end_of(JobId(7)), None, "{words}");
        assert!(!is_drained(&mut lending.agent.1), "{words}");
        let problems = house.scheduler.news.problems();
        assert!(
            matches!(&problems[..], [said] if said.contains(words)),
            "{problems:?}"
        );
        house.scheduler.looked(Ok(both_end_in(500)));
        house.scheduler.settle();
        assert!(house.scheduler.endings.end_of(JobId(7)).is_some(), "{words}");
        assert!(is_drained(&mut lending.agent.1), "{words}");
        house.scheduler.core.sanity_check().unwrap();
        house.scheduler.clock = SteadyClock::new();
        house.scheduler.looked(Ok(both_end_in(500)));
        assert_eq!(house.scheduler.news.problems(), Vec::<String>::new());
    }
}

/// Its agent knows the pilot's end by the wall clock, which is behind hopd's own.
#[tokio::test]
async fn a_pilot_that_comes_up_is_not_replaced_because_the_clock_was_set_back() {
    for (seconds, drained) in [(4000, false), (500, true)] {
        let mut house = House::new();
        house.scheduler.clock = SteadyClock::starting_at(clock::now() + HOUR);
        let (agent, mut mailbox) = house.connect("gresshopper", Role::Agent);
        let Request::AgentUp(report) = agent_up() else {
            unreachable!("made above")
        };
        let ends = Some(clock::now() + Span::from_secs(seconds));
        house.say(agent, Request::AgentUp(Box::new(AgentUp { ends, ..*report })));
        assert_eq!(is_drained(&mut mailbox), drained);
    }
}

fn report_of(change: impl FnOnce(AgentUp) -> AgentUp) -> Request {
    let Request::AgentUp(report) = agent_up() else {
        unreachable!("made above")
    };
    Request::AgentUp(Box::new(change(*report)))
}

/// The disk was full for hours, and hopd was restarted then: its journal knows a lease that has ended since.
#[tokio::test]
async fn a_report_in_parts_counts_when_its_last_part_has_come() {
    let mut lending = Lending::new();
    let lease = lending.lease();
    lending.house.say(lending.agent.0, started(lease));
    let mut house = lending.house.restarted();
    let (agent, mut mailbox) = house.connect("gresshopper", Role::Agent);
    let part = |ids: &[LeaseId], more| {
        let ended = ids.iter().copied().map(ended_lease).collect();
        report_of(|report| AgentUp {
            ended,
            more,
            ..report
        })
    };
    let state = |house: &House| house.scheduler.core.lease(lease).map(|l| l.state);
    house.say(agent, part(&[LeaseId(71), lease], true));
    house.say(agent, part(&[LeaseId(72)], true));
    assert!(state(&house).is_some(), "the report isn't whole");
    assert!(!house.scheduler.connections.has_agent(JobId(1)));
    assert_eq!(house.rows().await.len(), 1);
    house.say(agent, part(&[LeaseId(73)], false));
    assert_eq!(state(&house), None);
    assert!(house.scheduler.connections.has_agent(JobId(1)));
    let rows = house.rows().await;
    let mut of: Vec<_> = rows.iter().map(|r| (r.lease, r.end.is_some())).collect();
    of.sort_unstable();
    let mut all = [lease, LeaseId(71), LeaseId(72), LeaseId(73)].map(|id| (id, true));
    all.sort_unstable();
    assert_eq!(of, all);
    assert!(
        rows.iter().all(|r| !r.reason.contains("doesn't know it")),
        "it ended as its node says: {rows:?}"
    );
    // Nothing of it is left for the next report.
    house.say(agent, part(&[], false));
    while mailbox.try_recv().is_ok() {}
    assert!(house.scheduler.connections.get(agent).unwrap().ended.is_empty());
}

#[tokio::test]
async fn thousands_of_ends_are_acknowledged_without_hanging_up_on_the_agent() {
    const ENDS: u64 = 3000;
    let mut house = House::new();
    let (agent, _) = house.connect("gresshopper", Role::Agent);
    let (outgoing, mut mailbox) = mpsc::channel(1100);
    house.scheduler.connections.get_mut(agent).unwrap().outgoing = outgoing;
    house.say(agent, agent_up());
    let mut inbox = house.scheduler.inbox.take().unwrap();
    let all = (0..ENDS).map(|n| (LeaseId(n), JobId(1))).collect();
    house.scheduler.report(Report::Durable(all));
    let mut told = Vec::new();
    loop {
        house.scheduler.settle();
        while let Ok(message) = mailbox.try_recv() {
            if let Response::Order(Order::EndAcknowledged { lease, .. }) = message.body {
                told.push(lease.0);
            }
        }
        if told.len() as u64 == ENDS {
            break;
        }
        assert!(house.scheduler.connections.get(agent).is_some(), "hung up on");
        let report = inbox.recv().await.unwrap();
        house.scheduler.report(report);
    }
    assert_eq!(told, (0..ENDS).collect::<Vec<_>>());
}

/// The node obeys a later term than this hopd's: its pilot runs, and will never lend.
#[tokio::test]
async fn a_pilot_whose_agent_is_refused_is_listed_with_the_reason() {
    let mut house = House::new();
    let request = PilotRequest {
        pool: "main".into(),
        partition: None,
        node: Some("n0".into()),
        gpus: None,
        gpu_type: None,
    };
    house.scheduler.pilot_jobs.restore(1, request, Some(JobId(1)));
    let (agent, mut mailbox) = house.connect("gresshopper", Role::Agent);
    let Request::AgentUp(report) = agent_up() else {
        unreachable!("made above")
    };
    let term = Term(9_000);
    let report = AgentUp { term, ..*report };
    refused(
        &house.ask(agent, &mut mailbox, Request::AgentUp(Box::new(report))),
        "obeys term 9000",
    );
    let (ada, mut mailbox) = house.connect("ada", Role::Client);
    let Response::Info(info) = house.ask(ada, &mut mailbox, Request::Info) else {
        panic!("no answer")
    };
    let [node] = &info.nodes[..] else {
        panic!("{:?}", info.nodes)
    };
    assert_eq!(node.state, "STARTING");
    assert!(node.reason.contains("node n0 obeys term 9000"), "{}", node.reason);
}

fn info(house: &mut House) -> hop_api::message::InfoReport {
    let (eve, mut mailbox) = house.connect("eve", Role::Client);
    match house.ask(eve, &mut mailbox, Request::Info) {
        Response::Info(info) => info,
        other => panic!("{other:?}"),
    }
}

/// The administrator has given the pool another name.
#[tokio::test]
async fn a_pilot_up_before_whose_agent_is_refused_is_listed_with_the_reason() {
    let mut house = House::new();
    let (agent, _) = house.connect("gresshopper", Role::Agent);
    house.say(agent, agent_up());
    house.scheduler.closed(agent);
    house.scheduler.settle();
    let row = |house: &mut House| {
        let info = info(house);
        let [node] = &info.nodes[..] else {
            panic!("{:?}", info.nodes)
        };
        (node.state.clone(), node.reason.clone())
    };
    let silent = |why: &str| ("SILENT".to_owned(), why.to_owned());
    assert_eq!(row(&mut house), silent(""));
    let (agent, mut mailbox) = house.connect("gresshopper", Role::Agent);
    let report = report_of(|report| AgentUp {
        pool: "old".into(),
        ..report
    });
    refused(&house.ask(agent, &mut mailbox, report), "there is no pool old");
    assert_eq!(
        row(&mut house),
        silent("its agent is refused: there is no pool old")
    );
    house.say(agent, agent_up());
    assert_eq!(row(&mut house), ("UP".to_owned(), String::new()));
}

const WAITS: &str = "pool main is starting a job with GPUs for it";

/// Ada's cell waits for the first pilot of its pool. Her replica has read so.
fn waits_for_a_pilot() -> (House, Mailbox) {
    let mut house = House::new();
    house.seat(7, "ada", "n0");
    let (ada, mut mailbox) = house.connect("ada", Role::Replica);
    house.ask(ada, &mut mailbox, up("ada", "a", 1, 7, "n0"));
    house.say(ada, submit("a", 1));
    assert_eq!(reasons(&mut mailbox), [WAITS]);
    (house, mailbox)
}

/// Why cells wait, as a replica was told.
fn reasons(mailbox: &mut Mailbox) -> Vec<String> {
    told(mailbox, |event| match event {
        Event::Queued { reason, .. } => Some(reason),
        _ => None,
    })
}

fn of_pool_main() -> PilotRequest {
    PilotRequest {
        pool: "main".into(),
        partition: None,
        node: None,
        gpus: None,
        gpu_type: None,
    }
}

/// What Ada reads of her kernel.
fn explained(house: &mut House) -> Vec<String> {
    let (user, mut mailbox) = house.connect("ada", Role::Client);
    let explain = Request::Explain {
        kernel: "a".into(),
        cell: None,
    };
    let said = house.ask(user, &mut mailbox, explain);
    let Response::Explanation(said) = said else {
        panic!("{said:?}")
    };
    said.sentences
}

/// A reservation for maintenance, for instance.
#[tokio::test]
async fn all_read_why_slurm_starts_no_pilot() {
    let (mut house, mut ada) = waits_for_a_pilot();
    let mut told = || reasons(&mut ada);
    let job = JobId(44);
    house.scheduler.pilot_jobs.restore(1, of_pool_main(), Some(job));
    let mut look = |reason: &str| {
        let pilot = SeenJob {
            job,
            name: "hop-pool.main.1".into(),
            node: None,
            state: Seen::Waiting,
            reason: reason.into(),
            installation: None,
        };
        house.scheduler.looked(Ok(crate::slurm::Queue {
            pilots: vec![pilot],
            alive: vec![JobId(7)],
            ..crate::slurm::Queue::default()
        }));
        house.scheduler.settle();
        told()
    };
    let maintenance = "ReqNodeNotAvail, Reserved for maintenance";
    let why = format!("{WAITS}; Slurm has not started job {job}: {maintenance}");
    assert_eq!(look(maintenance), [why.as_str()]);
    assert_eq!(look(maintenance), [""; 0], "nothing is new");
    assert_eq!(look("Priority"), [WAITS]);
    look(maintenance);
    let word = format!("Slurm has not started job {job}: {maintenance}.");
    let said = explained(&mut house);
    assert!(said.contains(&word), "{said:?}");
}

/// An account that may not use the partition, for instance.
#[tokio::test]
async fn all_read_why_slurm_takes_no_pilot() {
    let (mut house, mut ada) = waits_for_a_pilot();
    let mut told = || reasons(&mut ada);
    house.scheduler.pilot_jobs.restore(1, of_pool_main(), None);
    let refusal = || Err(crate::pilot_jobs::Failure::No("Invalid account".into()));
    let submitted = |house: &mut House, answer| {
        let ticket = 1;
        house.scheduler.report(Report::Submitted { ticket, answer });
    };
    submitted(&mut house, refusal());
    let why = format!("{WAITS}; its submission failed: Invalid account");
    assert_eq!(told(), [why.as_str()]);
    submitted(&mut house, refusal());
    assert_eq!(told(), [""; 0], "nothing is new");
    let report = info(&mut house);
    let node = &report.nodes[0];
    assert_eq!(
        (node.state.as_str(), node.reason.as_str()),
        (
            "PENDING",
            "its job could not be submitted: Invalid account; hopd tries again"
        )
    );
    let problem = "No pilot of pool main could be submitted: Invalid account";
    assert!(report.problems.iter().any(|p| p.contains(problem)), "{report:?}");
    let (user, mut mailbox) = house.connect("ada", Role::Client);
    let rows = house.ask(user, &mut mailbox, Request::Queue(QueueQuery::default()));
    let Response::Queue { rows, .. } = rows else {
        panic!("{rows:?}")
    };
    assert_eq!(
        (rows[0].why.as_str(), rows[0].reason.as_str()),
        ("PilotStarting", why.as_str())
    );
    let said = explained(&mut house);
    let both = said[..2].join(" ");
    assert!(
        both.contains(WAITS) && both.ends_with("failed, and is tried again: Invalid account."),
        "{said:?}"
    );
    submitted(&mut house, Ok(JobId(11)));
    assert_eq!(told(), [WAITS]);
    assert_eq!(info(&mut house).problems, Vec::<String>::new());
}

/// Without `munged` no caller is heard, so nobody else would say so.
#[tokio::test]
async fn a_munged_that_does_not_answer_is_a_problem_until_it_does() {
    let mut house = House::new();
    house.scheduler.config.munge_socket = Some("/nowhere/munge.socket".into());
    house.scheduler.begin();
    assert!(house.scheduler.due.iter().any(|(_, due)| *due == Due::Munged));
    house.scheduler.due.clear();
    let mut inbox = house.scheduler.inbox.take().unwrap();
    house.scheduler.ask_munged();
    let report = inbox.recv().await.unwrap();
    house.scheduler.report(report);
    let said = house.scheduler.news.problems();
    assert!(
        matches!(&said[..], [said] if said.starts_with("MUNGE can't prove who is calling")),
        "{said:?}"
    );
    assert!(house.scheduler.due.iter().any(|(_, due)| *due == Due::Munged));
    house.scheduler.munged(Ok(()));
    assert_eq!(house.scheduler.news.problems(), Vec::<String>::new());
}
