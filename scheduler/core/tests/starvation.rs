//! Nobody is forgotten: whatever runs for a month, and whatever keeps coming, a cell that waits is served.

use crate::world::World;
use hop_core::Input;
use hop_core::config::{Config, Limit, LimitOf, Limits, Migrate, PoolConfig};
use hop_words::id::{CellId, KernelId};
use hop_words::need::Need;
use hop_words::time::{Span, Timestamp};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NODES: usize = 6;
const GPUS: u16 = 4;
/// Later cells of its size that may start while a cell waits, where kernels can move.
const OVERTAKEN: u32 = 20;
/// The longest wait: until a cell is due, until its hold is as wide as it gets, and for the cells before it in turn.
const LONGEST: Span = Span::from_secs(24 * 3600);

/// A cluster under more load than it can bear, of which some cells never end.
struct Overload {
    w: World,
    /// Cells that run for a month.
    month: Vec<(KernelId, CellId)>,
    /// Waiting cells: GPUs, since when, and how many later ones of their size have started.
    waiting: BTreeMap<(KernelId, CellId), (u16, Timestamp, u32)>,
    movable: bool,
}

impl Overload {
    fn new(seed: u64, replicas: usize, movable: bool) -> Self {
        let mut pool = PoolConfig::fixed("main", 0, GPUS, 8);
        pool.max_pilots = NODES as u32;
        pool.migrate = movable.then(Migrate::default);
        let mut w = World::new(seed, Config::default(), pool);
        for n in 0..NODES {
            w.pilot(&node(n), GPUS, 8);
        }
        for k in 0..30 {
            let first = w.rng.below(NODES as u64) as usize;
            let nodes: Vec<String> = (0..replicas).map(|i| node((first + 2 * i) % NODES)).collect();
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            w.kernel(&format!("k{k}"), &format!("u{}", k % 7), &nodes, 1);
        }
        let (month, waiting) = (Vec::new(), BTreeMap::new());
        Self {
            w,
            month,
            waiting,
            movable,
        }
    }

    /// A cell of one GPU that never ends, on each of the first `nodes` nodes.
    fn month_long(&mut self, nodes: usize) {
        for n in 0..nodes {
            let kernel = self.w.kernel(&format!("month{n}"), "month", &[&node(n)], 1);
            let (cell, _) = self.w.submit(&kernel, Need::gpus(1));
            self.w.settle();
            self.month.push((kernel, cell));
        }
    }

    fn submit(&mut self, kernel: &KernelId, gpus: u16) {
        let now = self.w.now;
        let (cell, _) = self.w.submit(kernel, Need::gpus(gpus));
        self.waiting.insert((kernel.clone(), cell), (gpus, now, 0));
        self.started();
    }

    /// Books what has started: the cells that still wait and came before it were overtaken.
    fn started(&mut self) {
        self.w.settle();
        while self.movable && self.w.move_replica() {
            self.w.settle();
        }
        let started: Vec<_> = self
            .waiting
            .keys()
            .filter(|k| !self.w.waiting.contains(*k))
            .cloned()
            .collect();
        for key in started {
            let (gpus, since, _) = self.waiting.remove(&key).expect("it was just found");
            for (_, before, overtaken) in self.waiting.values_mut().filter(|(g, ..)| *g == gpus) {
                *overtaken += u32::from(*before < since);
            }
        }
    }

    /// Cells that have nothing to do with the months end after an hour at most, and new ones keep coming.
    fn minute(&mut self) {
        let running: Vec<_> = self
            .w
            .running
            .keys()
            .filter(|k| !self.month.contains(k))
            .cloned()
            .collect();
        for (kernel, cell) in running {
            if self.w.rng.below(30) == 0 {
                self.w.end_cell(&kernel, &cell);
            }
        }
        self.started();
        self.w.pass(Span::from_secs(60));
        let idle: Vec<KernelId> = self.w.kernels.keys().cloned().collect();
        let kernel = self.w.rng.pick(&idle).expect("there are kernels");
        let busy = self
            .w
            .running
            .keys()
            .chain(&self.w.waiting)
            .any(|(k, _)| *k == kernel);
        if !busy && !self.month.iter().any(|(k, _)| *k == kernel) {
            let gpus = self.w.rng.pick(&[1, 1, 1, 2, 3]).expect("it is a list");
            self.submit(&kernel, gpus);
        }
        self.started();
    }

    fn longest_wait(&self) -> Span {
        let since = self
            .waiting
            .values()
            .map(|(_, since, _)| self.w.now.since(*since));
        since.max().unwrap_or_default()
    }
}

fn node(n: usize) -> String {
    format!("n{n}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cell_is_served_beside_month_long_ones(
        seed in any::<u64>(),
        three in any::<bool>(),
        movable in any::<bool>(),
        month in 0usize..NODES,
    ) {
        let mut o = Overload::new(seed, if three { 3 } else { 1 }, movable);
        o.month_long(month);
        for _ in 0..2 * 24 * 60 {
            o.minute();
            let most = o.waiting.values().map(|(.., overtaken)| *overtaken).max().unwrap_or(0);
            prop_assert!(!movable || most < OVERTAKEN, "{most} later cells of its size have started");
            prop_assert!(o.longest_wait() < LONGEST, "{:?}", o.longest_wait());
        }
    }
}

/// One node of six has no month-long cell: the cell of all its GPUs gets there, though small ones keep coming.
#[test]
fn a_whole_node_is_found_where_months_run_on_all_others() {
    for seed in 1..5 {
        let mut o = Overload::new(seed, 1, true);
        o.month_long(NODES - 1);
        for _ in 0..60 {
            o.minute();
        }
        let whole = o.w.kernel("whole", "whole", &["n0"], GPUS);
        o.submit(&whole, GPUS);
        let mut minutes = 0;
        while o.waiting.keys().any(|(k, _)| *k == whole) {
            o.minute();
            minutes += 1;
            assert!(minutes < 12 * 60, "it waits for ever");
        }
    }
}

/// A pool of two nodes with two GPUs each, kernels of which may move for cells that wait.
fn two_nodes(config: Config) -> World {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 3;
    pool.migrate = Some(Migrate {
        ahead: false,
        ..Migrate::default()
    });
    let mut w = World::new(1, config, pool);
    for n in 0..2 {
        w.pilot(&node(n), 2, 8);
    }
    w
}

/// Runs a cell of one GPU for so long.
fn run(w: &mut World, kernel: &KernelId, seconds: u64) {
    let (cell, _) = w.submit(kernel, Need::gpus(1));
    w.settle();
    w.pass(Span::from_secs(seconds));
    w.end_cell(kernel, &cell);
    w.settle();
}

/// The node that is expected to be free first never is. The hold widens to the other one, whose cells always overlap.
#[test]
fn a_hold_on_the_wrong_node_widens_to_the_right_one() {
    let config = Config {
        due_after: Span::from_secs(60),
        fair_share: false,
        ..Config::default()
    };
    let mut w = two_nodes(config);
    let short = w.kernel("short", "a", &["n0"], 1);
    let long: Vec<KernelId> = (0..8)
        .map(|i| w.kernel(&format!("l{i}"), "b", &["n1"], 1))
        .collect();
    for _ in 0..10 {
        run(&mut w, &short, 10);
        for k in &long {
            run(&mut w, k, 3000);
        }
    }
    // It ran for ten seconds each time, and now it never ends.
    w.submit(&short, Need::gpus(1));
    let mut running = Vec::new();
    for k in &long[..2] {
        running.push((k.clone(), w.submit(k, Need::gpus(1)).0));
        w.settle();
        w.pass(Span::from_secs(1500));
    }
    let whole = w.kernel("whole", "c", &["n0"], 2);
    w.submit(&whole, Need::gpus(2));
    let mut next = long.iter().cycle().skip(2);
    let mut hours = 0;
    while !w.running.keys().any(|(k, _)| *k == whole) {
        // One of the two on the other node ends after half an hour, and there is always another that wants its GPU.
        w.pass(Span::from_secs(1500));
        if let Some((kernel, cell)) = (!running.is_empty()).then(|| running.remove(0)) {
            w.end_cell(&kernel, &cell);
        }
        w.settle();
        while w.move_replica() {
            w.settle();
        }
        let kernel = next.next().expect("it goes on for ever");
        if !w.waiting.iter().any(|(k, _)| k == kernel) {
            w.submit(kernel, Need::gpus(1));
            w.settle();
        }
        running = w
            .running
            .keys()
            .filter(|(k, _)| *k != short && *k != whole)
            .cloned()
            .collect();
        hours += 1;
        assert!(hours < 24, "it is held for ever: {:?}", w.core.waiting());
    }
}

/// A GPU of each node never comes free. Short cells go on beside them for as long as the due cell couldn't start in any case.
#[test]
fn who_ends_in_time_goes_on_beside_a_due_cell_for_days() {
    let mut held = HeldForDays::new();
    for day in 0..3 {
        assert!(held.quick_starts(), "day {day}: {:?}", held.w.core.waiting());
        held.w.pass(Span::from_secs(86_400));
    }
}

/// A short cell that runs on and on is all that the due cell waits for: no other short cell starts beside it any more.
#[test]
fn nobody_backfills_where_backfill_alone_is_in_the_way() {
    let mut held = HeldForDays::new();
    let (slow, _) = held.w.submit(&held.slow, Need::gpus(1));
    held.w.settle();
    assert!(held.quick_starts(), "the month-long cell is in the way as well");
    let (month, cell) = held.month.clone();
    held.w.end_cell(&month, &cell);
    held.w.settle();
    assert!(!held.quick_starts(), "it would go on for ever");
    held.w.end_cell(&held.slow, &slow);
    held.w.settle();
    assert!(held.w.running.keys().any(|(k, _)| *k == held.whole));
}

/// One node of three GPUs: a cell of a month on one of them, and a due cell that needs all.
struct HeldForDays {
    w: World,
    month: (KernelId, CellId),
    whole: KernelId,
    quick: KernelId,
    slow: KernelId,
}

impl HeldForDays {
    fn new() -> Self {
        let config = Config {
            due_after: Span::from_secs(60),
            fair_share: false,
            ..Config::default()
        };
        let mut pool = PoolConfig::fixed("main", 0, 3, 8);
        pool.max_pilots = 1;
        let mut w = World::new(1, config, pool);
        w.pilot("n0", 3, 8);
        let names = ["month", "whole", "quick", "slow"];
        let [month, whole, quick, slow] = names.map(|name| w.kernel(name, name, &["n0"], 1));
        for _ in 0..10 {
            (0..10).for_each(|_| run(&mut w, &quick, 2));
            run(&mut w, &slow, 3000);
            run(&mut w, &month, 1_000_000);
        }
        let (cell, _) = w.submit(&month, Need::gpus(1));
        w.settle();
        w.submit(&whole, Need::gpus(3));
        w.pass(Span::from_secs(3600));
        Self {
            w,
            month: (month, cell),
            whole,
            quick,
            slow,
        }
    }

    /// Whether a cell of the quick kernel starts at once. It is over afterwards, or withdrawn.
    fn quick_starts(&mut self) -> bool {
        let (cell, _) = self.w.submit(&self.quick, Need::gpus(1));
        self.w.settle();
        let starts = self.w.running.contains_key(&(self.quick.clone(), cell.clone()));
        if starts {
            self.w.pass(Span::from_secs(2));
            self.w.end_cell(&self.quick, &cell);
        } else {
            self.w.tell(Input::CancelCell {
                kernel: self.quick.clone(),
                cell,
            });
        }
        self.w.settle();
        starts
    }
}

/// Where all cells take seconds, a larger cell doesn't wait for hours behind them.
#[test]
fn a_cell_is_due_sooner_where_all_cells_are_short() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 1;
    let mut w = World::new(1, Config::default(), pool);
    w.pilot("n0", 2, 8);
    let quick: Vec<KernelId> = (0..3)
        .map(|i| w.kernel(&format!("q{i}"), "a", &["n0"], 1))
        .collect();
    let whole = w.kernel("whole", "b", &["n0"], 2);
    for _ in 0..80 {
        quick.iter().for_each(|k| run(&mut w, k, 5));
        run(&mut w, &whole, 5);
    }
    for k in &quick {
        w.submit(k, Need::gpus(1));
    }
    w.settle();
    let (cell, _) = w.submit(&whole, Need::gpus(2));
    let since = w.now;
    while !w.running.contains_key(&(whole.clone(), cell.clone())) {
        // There is always another that waits.
        w.pass(Span::from_secs(5));
        for (kernel, ended) in w.running.keys().cloned().collect::<Vec<_>>() {
            w.end_cell(&kernel, &ended);
            w.submit(&kernel, Need::gpus(1));
            w.settle();
        }
        assert!(
            w.now.since(since) < Span::from_secs(1200),
            "{:?}",
            w.core.waiting()
        );
    }
}

/// Long runs are rare, and so among the last three dozen there is none.
#[test]
fn few_long_runs_among_hundreds_count_for_when_a_cell_is_due() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 1;
    let mut w = World::new(1, Config::default(), pool);
    w.pilot("n0", 2, 8);
    let names = ["long", "quick", "month", "whole", "soon", "late"];
    let [long, quick, month, whole, soon, late] = names.map(|name| w.kernel(name, name, &["n0"], 1));
    (0..8).for_each(|_| run(&mut w, &long, 3600));
    (0..230).for_each(|_| run(&mut w, &quick, 2));
    w.pass(Span::from_secs(2));
    w.settle();
    w.submit(&month, Need::gpus(1));
    w.settle();
    w.submit(&whole, Need::gpus(2));
    let starts = |w: &mut World, kernel: &KernelId| {
        let (cell, _) = w.submit(kernel, Need::gpus(1));
        w.settle();
        let starts = w.running.contains_key(&(kernel.clone(), cell.clone()));
        if starts {
            w.end_cell(kernel, &cell);
            w.settle();
        }
        starts
    };
    w.pass(Span::from_secs(4 * 3600 - 1));
    assert!(starts(&mut w, &soon), "no GPU is kept free yet");
    w.pass(Span::from_secs(10));
    assert!(!starts(&mut w, &late), "the larger cell is due");
}

/// A GPU lies free on its node, but the node is held for another: it isn't expected to start there, and goes where it can.
#[test]
fn who_sits_on_a_held_node_goes_elsewhere() {
    let config = Config {
        due_after: Span::from_secs(60),
        fair_share: false,
        ..Config::default()
    };
    let mut w = two_nodes(config);
    let [month, a, b] =
        [("month", "n0"), ("a", "n1"), ("b", "n1")].map(|(name, at)| w.kernel(name, name, &[at], 1));
    let [_, first, _] = [&month, &a, &b].map(|k| w.submit(k, Need::gpus(1)).0);
    w.settle();
    w.pass(Span::from_secs(3600));
    let whole = w.kernel("whole", "whole", &["n0"], 2);
    w.submit(&whole, Need::gpus(2));
    w.pass(Span::from_secs(61));
    let sits = w.kernel("sits", "sits", &["n0"], 1);
    w.submit(&sits, Need::gpus(1));
    w.settle();
    let waits = |w: &World, k: &KernelId| w.waiting.iter().any(|(kernel, _)| kernel == k);
    assert!(waits(&w, &sits), "a due cell holds the node");
    let told = w.core.waiting_where(|u| u.as_str() == "sits")[0].estimate;
    assert!(told.is_none_or(|t| t > Span::from_secs(60)), "{told:?}");
    w.end_cell(&a, &first);
    w.settle();
    while w.move_replica() {
        w.settle();
    }
    assert!(!waits(&w, &sits) && waits(&w, &whole), "{:?}", w.core.waiting());
}

/// A due cell of a fixed kernel holds the kernel's node. Once the kernel may move, the cell holds none behind an older one
/// of its shape.
#[test]
fn a_kernel_that_may_move_again_holds_nothing_behind_an_older_cell() {
    let config = Config {
        due_after: Span::from_secs(60),
        fair_share: false,
        ..Config::default()
    };
    let mut w = two_nodes(config);
    let [month, hour] = [("month", "n0"), ("hour", "n1")].map(|(name, at)| w.kernel(name, name, &[at], 1));
    for _ in 0..10 {
        run(&mut w, &month, 1_000_000);
        run(&mut w, &hour, 3600);
    }
    let [older, fixed, small] =
        [("older", "n1"), ("fixed", "n0"), ("small", "n0")].map(|(name, at)| w.kernel(name, name, &[at], 1));
    for kernel in [&month, &hour] {
        w.submit(kernel, Need::gpus(1));
        w.settle();
    }
    let fix = |why: Option<&str>| Input::KernelFixed {
        kernel: fixed.clone(),
        why: why.map(str::to_owned),
    };
    w.tell(fix(Some("it has a socket open")));
    w.submit(&older, Need::gpus(2));
    w.pass(Span::from_secs(10));
    w.submit(&fixed, Need::gpus(2));
    w.pass(Span::from_secs(61));
    w.submit(&small, Need::gpus(1));
    let runs = |w: &World| w.running.keys().any(|(k, _)| *k == small);
    w.settle();
    assert!(!runs(&w), "the node is held");
    w.tell(fix(None));
    w.settle();
    assert!(runs(&w), "{:?}", w.core.waiting());
}

/// Quick cells of those who have had less service go first, but no more than so many of them.
#[test]
fn a_cell_that_is_overtaken_often_is_due_before_its_time() {
    let most = u64::from(Config::default().due_overtaken);
    for crowd in [0, 60] {
        let overtook = overtook(crowd);
        assert!(
            (most / 2..=most).contains(&overtook),
            "{overtook} later cells went before it, while {crowd} of another size waited"
        );
    }
}

/// How many later cells of its size start before one whose kernel has had much service, while so many cells of another
/// size wait that came before it.
fn overtook(crowd: usize) -> u64 {
    let config = Config {
        fair_share: false,
        ..Config::default()
    };
    let mut w = two_nodes(config);
    let heavy = w.kernel("heavy", "a", &["n0"], 2);
    let (cell, _) = w.submit(&heavy, Need::gpus(2));
    w.settle();
    w.pass(Span::from_secs(3600));
    w.end_cell(&heavy, &cell);
    w.settle();
    wait_for_a_limit(&mut w, crowd);
    let light: Vec<KernelId> = (0..40)
        .map(|i| w.kernel(&format!("l{i}"), "b", &[&node(i % 2)], 2))
        .collect();
    let mut submitted = light.iter();
    for k in submitted.by_ref().take(2) {
        w.submit(k, Need::gpus(2));
        w.settle();
    }
    w.submit(&heavy, Need::gpus(2));
    for k in submitted {
        w.submit(k, Need::gpus(2));
    }
    w.settle();
    let before = w.granted;
    while !w.running.keys().any(|(k, _)| *k == heavy) {
        let mut two = w.running.keys().filter(|(k, _)| !k.as_str().starts_with("crowd"));
        let first = two.next().expect("both nodes are busy").clone();
        w.pass(Span::from_secs(5));
        w.end_cell(&first.0, &first.1);
        w.settle();
        while w.move_replica() {
            w.settle();
        }
    }
    w.granted - before - 1
}

/// So many cells of one GPU, on a node of their own, of which their user's limit lets one run.
fn wait_for_a_limit(w: &mut World, cells: usize) {
    w.pilot("n2", 1, 8);
    w.tell(Input::Limits(Limits {
        limits: vec![Limit {
            of: LimitOf::User("crowd".into()),
            gpus: Some(1),
            gpu_minutes: None,
            name: "one GPU".into(),
        }],
        ..Limits::default()
    }));
    for i in 0..cells {
        let kernel = w.kernel(&format!("crowd{i}"), "crowd", &["n2"], 1);
        w.submit(&kernel, Need::gpus(1));
        w.settle();
    }
}

/// A cell whose kernel moves holds no node, and counts all the same: short cells of its size start on a node that is held
/// for a larger one a few times, and wait then.
#[test]
fn nobody_backfills_for_long_past_a_cell_that_waits_for_its_move() {
    let config = Config {
        due_after: Span::from_secs(30),
        due_overtaken: 2,
        fair_share: false,
        ..Config::default()
    };
    let mut w = two_nodes(config);
    w.pilot("n2", 2, 8);
    let [whole, quick, month0] = ["whole", "quick", "month0"].map(|name| w.kernel(name, name, &["n0"], 1));
    for _ in 0..10 {
        run(&mut w, &quick, 2);
        run(&mut w, &month0, 3000);
    }
    run(&mut w, &whole, 1);
    // One GPU of n0 and of n2 is free, and none of n1.
    let [month1, month2, month3] = [("month1", "n1"), ("month2", "n1"), ("month3", "n2")]
        .map(|(name, at)| w.kernel(name, name, &[at], 1));
    for month in [&month0, &month1, &month2, &month3] {
        w.submit(month, Need::gpus(1));
        w.settle();
    }
    w.submit(&whole, Need::gpus(2));
    w.pass(Span::from_secs(31));
    let goer = w.kernel("goer", "goer", &["n1"], 1);
    w.submit(&goer, Need::gpus(1));
    assert_eq!(w.migrations.last().expect("it moves").2.node.as_str(), "n2");
    w.pass(Span::from_secs(31));
    let starts = |w: &World, k: &KernelId| w.running.keys().any(|(kernel, _)| kernel == k);
    let mut overtook = 0;
    loop {
        let (cell, _) = w.submit(&quick, Need::gpus(1));
        w.settle();
        if !starts(&w, &quick) {
            break;
        }
        overtook += 1;
        assert!(overtook < 20, "it goes on for ever");
        w.pass(Span::from_secs(2));
        w.end_cell(&quick, &cell);
        w.settle();
    }
    assert_eq!(overtook, 2 + 4, "{:?}", w.core.waiting());
    assert!(w.move_replica());
    w.settle();
    assert!(starts(&w, &goer), "{:?}", w.core.waiting());
}

/// Submits a cell of one GPU that should be done `by` seconds from now.
fn submit_deadline(w: &mut World, kernel: &KernelId, by: u64) {
    let need = Need {
        deadline: Some(w.now + Span::from_secs(by)),
        ..Need::gpus(1)
    };
    w.submit_of(kernel, need, hop_words::need::Class::Deadline);
}

#[test]
fn a_deadline_that_cannot_be_met_puts_off_none_that_can() {
    let mut pool = PoolConfig::fixed("main", 0, 1, 8);
    pool.max_pilots = 1;
    let mut w = World::new(1, Config::default(), pool);
    w.pilot("n0", 1, 8);
    let names = ["busy", "late", "soon", "later"];
    // Of one user: the use of the one that runs counts alike for all.
    let [busy, late, soon, later] = names.map(|name| w.kernel(name, "u", &["n0"], 1));
    let (running, _) = w.submit(&busy, Need::gpus(1));
    w.settle();
    submit_deadline(&mut w, &late, 60);
    submit_deadline(&mut w, &later, 7200);
    submit_deadline(&mut w, &soon, 3600);
    let order =
        |w: &World| -> Vec<String> { w.core.waiting().iter().map(|c| c.kernel.to_string()).collect() };
    assert_eq!(order(&w), ["late", "soon", "later"]);
    w.pass(Span::from_secs(61));
    assert_eq!(order(&w), ["soon", "later", "late"], "its time has passed");
    w.end_cell(&busy, &running);
    w.settle();
    assert!(w.running.keys().all(|(k, _)| *k == soon), "{:?}", w.running);
    // It isn't forgotten.
    w.pass(Config::default().due_after);
    assert_eq!(order(&w)[..1], ["late"]);
}

/// A kernel moves for its cell, and dozens of later cells start in a large pool meanwhile.
struct Mover {
    w: World,
    goer: KernelId,
    others: Vec<KernelId>,
}

impl Mover {
    /// Nodes of two GPUs. A month-long cell has one on the kernel's node, the next node is free, and the others' kernels sit
    /// on nodes of their own.
    fn new() -> Self {
        const OTHERS: usize = 22;
        let config = Config {
            fair_share: false,
            ..Config::default()
        };
        let mut pool = PoolConfig::fixed("main", 0, 2, 8);
        pool.max_pilots = OTHERS as u32 + 2;
        pool.migrate = Some(Migrate {
            ahead: false,
            ..Migrate::default()
        });
        let mut w = World::new(1, config, pool);
        for n in 0..OTHERS + 2 {
            w.pilot(&node(n), 2, 8);
        }
        let [month, goer] = ["month", "goer"].map(|name| w.kernel(name, name, &["n0"], 1));
        let others = (0..OTHERS).map(|n| w.kernel(&format!("k{n}"), "u", &[&node(n + 2)], 2));
        let others = others.collect();
        w.submit(&month, Need::gpus(1));
        w.settle();
        w.pass(Span::from_secs(3600));
        w.submit(&goer, Need::gpus(2));
        assert_eq!(w.migrations[0].2.node.as_str(), "n1");
        Self { w, goer, others }
    }

    fn runs(&self, kernel: &KernelId) -> bool {
        self.w.running.keys().any(|(k, _)| k == kernel)
    }

    /// Twice each of the others runs a cell on its own node, for a second.
    fn overtake(&mut self) {
        for kernel in self.others.iter().chain(&self.others) {
            let (cell, _) = self.w.submit(kernel, Need::gpus(2));
            self.w.settle();
            assert!(self.w.waiting.iter().all(|(k, _)| k != kernel), "{kernel} waits");
            self.w.pass(Span::from_secs(1));
            self.w.end_cell(kernel, &cell);
            self.w.settle();
        }
    }
}

#[test]
fn a_cell_whose_kernel_moves_holds_up_no_others() {
    let mut m = Mover::new();
    m.overtake();
    assert!(m.w.move_replica());
    m.w.settle();
    assert!(m.runs(&m.goer), "{:?}", m.w.core.waiting());
}

#[test]
fn a_due_cell_holds_nodes_once_its_move_has_failed() {
    let mut m = Mover::new();
    m.overtake();
    let n1 = m.w.agents.iter().find(|(_, a)| a.node.as_str() == "n1");
    let (pilot, _) = n1.expect("it is up");
    let pilot = *pilot;
    m.w.agents.remove(&pilot);
    m.w.tell(Input::PilotLost {
        pilot,
        cause: hop_words::lease::EndCause::PilotLost,
    });
    for kernel in &m.others {
        m.w.submit(kernel, Need::gpus(1));
        m.w.settle();
    }
    let (_, _, seat) = m.w.migrations.pop().expect("it moves");
    m.w.tell(Input::MigrationFailed {
        kernel: m.goer.clone(),
        incarnation: seat.incarnation,
    });
    let small = m.w.kernel("small", "small", &["n2"], 1);
    m.w.submit(&small, Need::gpus(1));
    m.w.settle();
    assert!(!m.runs(&small), "a GPU is free there, and held");
    let first = m.others[0].clone();
    let running = m.w.running.keys().find(|(k, _)| *k == first).cloned();
    let (_, cell) = running.expect("it runs");
    m.w.end_cell(&first, &cell);
    m.w.settle();
    while m.w.move_replica() {
        m.w.settle();
    }
    assert!(m.runs(&m.goer) && !m.runs(&small), "{:?}", m.w.core.waiting());
}

#[test]
fn nothing_is_kept_for_a_kernel_that_came_too_late_to_use_it() {
    let mut m = Mover::new();
    let n1 = m.w.agents.iter().find(|(_, a)| a.node.as_str() == "n1");
    let (&pilot, _) = n1.expect("it is up");
    m.w.tell(Input::SlotBlocked {
        pilot,
        index: hop_words::id::GpuIndex(1),
        reason: "broken".into(),
        lost: false,
    });
    m.w.agents
        .values_mut()
        .for_each(|a| _ = (a.node.as_str() == "n1").then(|| a.blocked.insert(hop_words::id::GpuIndex(1))));
    let small = m.w.kernel("small", "small", &["n1"], 1);
    let (cell, _) = m.w.submit(&small, Need::gpus(1));
    m.w.settle();
    assert!(!m.runs(&small), "a kernel is on its way");
    assert!(m.w.move_replica());
    m.w.settle();
    assert!(
        m.runs(&small) && !m.runs(&m.goer),
        "{cell} waits: {:?}",
        m.w.core.waiting()
    );
}
