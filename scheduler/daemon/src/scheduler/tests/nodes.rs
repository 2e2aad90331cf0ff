//! What Slurm's answers on its nodes come to: nodes that leave the pools, and drained nodes with late pilots.

use super::*;
use crate::slurm::Facts;
use crate::supply::Rooms;
use hop_core::{NodeFacts, Output, Room};
use hop_words::id::NodeName;

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        node: name.into(),
        pool: "main".into(),
        gpus: 2,
        gpu_type: "".into(),
        gpu_mem_mib: 0,
        cpus: 8,
    }
}

/// Slurm's answer: usable nodes of the pool, and all nodes of its partitions.
fn facts(nodes: &[&str], members: Option<&[&str]>) -> Facts {
    Facts {
        nodes: nodes.iter().map(|n| node(n)).collect(),
        burst: Vec::new(),
        down: Vec::new(),
        members: members.map(|all| all.iter().map(|n| NodeName::from(*n)).collect()),
        usable: BTreeMap::new(),
        refused: BTreeMap::new(),
        rules: Ok(BTreeMap::new()),
        offers: Vec::new(),
        stepmgr: true,
        hidden: Vec::new(),
    }
}

/// The nodes that are gone by such an answer.
fn gone(house: &mut House, answer: Facts) -> Vec<String> {
    house.scheduler.facts(Ok(answer));
    let todo = house.scheduler.todo.iter();
    let gone = todo.filter_map(|input| match input {
        Input::NodeGone { node } => Some(node.to_string()),
        _ => None,
    });
    let gone = gone.collect();
    house.scheduler.settle();
    house.scheduler.core.sanity_check().unwrap();
    gone
}

#[tokio::test]
async fn a_node_that_no_pools_partition_has_any_more_is_gone() {
    let mut house = House::new();
    let left = gone(&mut house, facts(&["n0", "n1"], Some(&["n0", "n1", "n2"])));
    assert_eq!(left, ["n3"], "n2 is powered down");
    let mut front = house.connect("ada", Role::Front);
    let mut on = |kernel: &str| match house.ask(front.0, &mut front.1, place(kernel)) {
        Response::Placement(p) => p.seat.node.to_string(),
        other => panic!("{other:?}"),
    };
    let nodes: BTreeSet<String> = ["a", "b", "c", "d", "e"].map(&mut on).into();
    assert!(!nodes.contains("n3"), "{nodes:?}");
}

#[tokio::test]
async fn where_slurm_shows_no_nodes_none_is_gone() {
    let mut house = House::new();
    assert_eq!(gone(&mut house, facts(&[], None)), [""; 0]);
}

#[tokio::test]
async fn a_node_of_two_partitions_is_told_once() {
    let mut house = House::new();
    house.scheduler.facts(Ok(Facts {
        burst: vec![
            (node("n1"), "cloud".into()),
            (node("b0"), "cloud".into()),
            (node("b0"), "spot".into()),
        ],
        ..facts(&["n0", "n1"], None)
    }));
    let told = house.scheduler.todo.iter().filter_map(|input| match input {
        Input::Node(facts) => Some((facts.node.as_str(), "")),
        Input::BurstNode { facts, partition } => Some((facts.node.as_str(), partition.as_str())),
        _ => None,
    });
    assert!(told.eq([("n0", ""), ("n1", "cloud"), ("b0", "spot")]));
}

/// The state of the only pilot, and the orders that its agent got.
fn drained(house: &mut House, agent: &mut Mailbox) -> (&'static str, usize, usize) {
    let orders: Vec<_> = std::iter::from_fn(|| agent.try_recv().ok()).collect();
    let count = |wanted: fn(&Order) -> bool| {
        let orders = orders.iter();
        let wanted = orders.filter(|m| matches!(&m.body, Response::Order(order) if wanted(order)));
        wanted.count()
    };
    (
        house.scheduler.core.pilots()[0].state,
        count(|o| matches!(o, Order::Drain { .. })),
        count(|o| matches!(o, Order::StartLease(_))),
    )
}

fn looks(house: &mut House, drained: &[&str]) {
    let drained = drained.iter().map(|n| (NodeName::from(*n), "a fan".to_owned()));
    let queue = Queue {
        alive: vec![JobId(7)],
        drained: drained.collect(),
        rooms: Rooms::default(),
        ..Queue::default()
    };
    house.scheduler.looked(Ok(queue));
    house.scheduler.settle();
}

/// Ada's cell waits on n0, where no pilot is yet.
fn waiting() -> House {
    let mut house = House::new();
    house.seat(7, "ada", "n0");
    let mut ada = house.connect("ada", Role::Replica);
    house.ask(ada.0, &mut ada.1, up("ada", "a", 1, 7, "n0"));
    house.say(ada.0, submit("a", 1));
    house
}

#[tokio::test]
async fn a_pilot_that_comes_up_on_a_drained_node_lends_nothing_and_ends() {
    let mut house = waiting();
    looks(&mut house, &["n0"]);
    let mut agent = house.connect("gresshopper", Role::Agent);
    house.say(agent.0, agent_up());
    assert_eq!(drained(&mut house, &mut agent.1), ("DRAINING", 1, 0));
    // Nor is anybody placed beside it.
    let mut front = house.connect("ada", Role::Front);
    let answer = house.ask(front.0, &mut front.1, place("b"));
    assert!(
        matches!(&answer, Response::Placement(p) if p.seat.node.as_str() != "n0"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn every_look_drains_the_pilots_of_drained_nodes() {
    let mut house = House::new();
    looks(&mut house, &["n0"]);
    // A pilot that lends, whatever was overlooked before.
    let Request::AgentUp(up) = agent_up() else {
        unreachable!()
    };
    let mut out = Vec::new();
    let now = house.scheduler.clock.now();
    let input = Input::PilotUp(views::pilot_up(*up, house.scheduler.clock.skew(), false));
    house.scheduler.core.handle(input, now, &mut out);
    assert_eq!(house.scheduler.core.pilots()[0].state, "UP");
    looks(&mut house, &["n0"]);
    assert_eq!(house.scheduler.core.pilots()[0].state, "DRAINING");
    assert!(!out.iter().any(|o| matches!(o, Output::DrainPilot { .. })));
}

#[tokio::test]
async fn facts_asked_for_before_a_drain_do_not_end_it() {
    let mut house = House::new();
    looks(&mut house, &["n0", "n1", "n2"]);
    gone(&mut house, facts(&["n0", "n1", "n2", "n3"], None));
    let mut front = house.connect("ada", Role::Front);
    for kernel in ["a", "b", "c"] {
        let answer = house.ask(front.0, &mut front.1, place(kernel));
        assert!(
            matches!(&answer, Response::Placement(p) if p.seat.node.as_str() == "n3"),
            "{answer:?}"
        );
    }
}

/// What the core is told of the nodes' room after a look, or after facts.
fn told_of_room(house: &mut House, hears: impl FnOnce(&mut Scheduler)) -> Vec<(String, Room)> {
    hears(&mut house.scheduler);
    let told = house.scheduler.todo.iter().filter_map(|input| match input {
        Input::NodeRoom { node, room } => Some((node.to_string(), *room)),
        _ => None,
    });
    let told = told.collect();
    house.scheduler.settle();
    told
}

#[tokio::test]
async fn the_core_is_told_of_room_that_others_take_when_it_changes_and_of_new_nodes() {
    let mut house = House::new();
    let look = |of: &[(&str, u16)]| {
        let of = of.iter();
        let room = |taken| Room { taken, seat: true };
        let rooms = Rooms {
            of: of.map(|&(n, taken)| (n.into(), room(taken))).collect(),
            full: BTreeSet::new(),
        };
        Queue {
            rooms,
            ..Queue::default()
        }
    };
    let mut told = |of: &[(&str, u16)]| {
        let queue = look(of);
        let told = told_of_room(&mut house, |s| s.looked(Ok(queue)));
        told.into_iter()
            .map(|(node, room)| (node, room.taken))
            .collect::<Vec<_>>()
    };
    assert_eq!(told(&[("n0", 0), ("n1", 2)]), [("n1".into(), 2)]);
    assert_eq!(told(&[("n0", 0), ("n1", 2)]), []);
    assert_eq!(told(&[("n0", 1), ("n1", 2)]), [("n0".into(), 1)]);
    assert_eq!(told(&[("n0", 1), ("n1", 0)]), [("n1".into(), 0)]);
    let again = told_of_room(&mut house, |s| s.facts(Ok(facts(&["n0", "n1"], None))));
    assert_eq!(again.len(), 1, "{again:?}");
}
