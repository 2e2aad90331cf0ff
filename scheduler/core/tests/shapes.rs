//! Cells of other shapes beside a due one: holds go by the type of its GPUs, and by its cores as well.

use crate::world::{World, by_hand};
use hop_core::config::{Config, Migrate, PoolConfig};
use hop_words::id::{CellId, KernelId};
use hop_words::need::Need;
use hop_words::time::{Span, Timestamp};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NODES: usize = 4;
const GPUS: u16 = 4;
const CORES: u16 = 32;
const MINUTE: Span = Span::from_secs(60);
const HOUR: u64 = 60;
/// Minutes until the long cells end, one every ten minutes.
const LONG: u64 = 30 * HOUR;
/// Longest wait of a short cell, whatever a due cell lacks: as long as a few others, on the GPUs that remain.
const SHORT_WAIT: Span = Span::from_secs(3600);

/// Four nodes with a long cell on each, short cells on the GPUs that remain, and two cells that lack much.
struct Crowd {
    w: World,
    short: Vec<(KernelId, Need)>,
    /// Since when a cell waits.
    since: BTreeMap<(KernelId, CellId), Timestamp>,
    /// Time at which a running cell ends, drawn when its run is first seen.
    ends: BTreeMap<(KernelId, CellId), Timestamp>,
    longest: Span,
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let mut pool = PoolConfig::fixed("main", 0, GPUS, CORES);
        pool.max_pilots = NODES as u32;
        pool.migrate = Some(Migrate::default());
        let mut w = World::new(seed, Config::default(), pool);
        w.check_every = 50;
        for n in 0..NODES {
            w.pilot(&node(n), GPUS, CORES);
        }
        let mut ends = BTreeMap::new();
        for n in 0..NODES {
            let long = w.kernel(&format!("long{n}"), "long", &[&node(n)], 3);
            let (cell, _) = w.submit(&long, Need::gpus(3));
            w.settle();
            ends.insert((long, cell), w.now + Span((LONG + 10 * n as u64) * MINUTE.0));
        }
        // Six people with a GPU each, and two with cores alone.
        let short = (0..8).map(|i| {
            let kernel = w.kernel(&format!("short{i}"), &format!("u{i}"), &[&node(i % NODES)], 1);
            let need = if i < 6 { Need::gpus(1) } else { cores(0, 2) };
            (kernel, need)
        });
        Self {
            short: short.collect(),
            w,
            since: BTreeMap::new(),
            ends,
            longest: Span::ZERO,
        }
    }

    fn minute(&mut self) {
        self.w.pass(MINUTE);
        for key in self.w.running.keys().cloned().collect::<Vec<_>>() {
            let run = Span((5 + self.w.rng.below(10)) * MINUTE.0);
            let end = *self.ends.entry(key.clone()).or_insert(self.w.now + run);
            if end <= self.w.now {
                self.w.end_cell(&key.0, &key.1);
            }
        }
        self.settle();
        for (kernel, need) in self.short.clone() {
            let busy = self
                .w
                .running
                .keys()
                .chain(&self.w.waiting)
                .any(|(k, _)| *k == kernel);
            if !busy && self.w.rng.below(20) == 0 {
                self.submit(&kernel, need);
            }
        }
    }

    fn submit(&mut self, kernel: &KernelId, need: Need) {
        let (cell, _) = self.w.submit(kernel, need);
        self.since.insert((kernel.clone(), cell), self.w.now);
        self.settle();
    }

    fn settle(&mut self) {
        self.w.settle();
        while self.w.move_replica() {
            self.w.settle();
        }
        let (now, waiting) = (self.w.now, &self.w.waiting);
        for (key, since) in &self.since {
            if key.0.as_str().starts_with("short") {
                self.longest = self.longest.max(now.since(*since));
            }
        }
        self.since.retain(|key, _| waiting.contains(key));
    }

    fn waits(&self, kernel: &KernelId) -> bool {
        self.w.waiting.iter().any(|(k, _)| k == kernel)
    }
}

fn node(n: usize) -> String {
    format!("n{n}")
}

fn cores(gpus: u16, cpus: u16) -> Need {
    Need {
        cpus,
        ..Need::gpus(gpus)
    }
}

fn of_type(gpus: u16, gpu_type: &str) -> Need {
    Need {
        gpu_type: Some(gpu_type.into()),
        ..Need::gpus(gpus)
    }
}

/// The longest wait of a short cell while these two wait. Both start once the long cells are over.
fn longest_beside(seed: u64, needs: [Need; 2]) -> Result<Span, TestCaseError> {
    let mut crowd = Crowd::new(seed);
    let large: Vec<KernelId> = (0..2)
        .map(|i| {
            crowd
                .w
                .kernel(&format!("large{i}"), &format!("large{i}"), &[&node(i)], 1)
        })
        .collect();
    for minute in 0..LONG + 4 * HOUR {
        match minute {
            120 => crowd.submit(&large[0], needs[0].clone()),
            600 => crowd.submit(&large[1], needs[1].clone()),
            _ => {}
        }
        crowd.minute();
    }
    for kernel in &large {
        prop_assert!(!crowd.waits(kernel), "{:?}", crowd.w.core.waiting());
    }
    Ok(crowd.longest)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    /// 29 cores are free beside a long cell, and fewer beside a short one as well.
    #[test]
    fn a_cell_that_waits_for_cores_stops_others_no_more_than_one_that_waits_for_gpus(
        seed in any::<u64>(),
        gpus in [0u16..2, 0u16..2],
        cpus in [28u16..=CORES, 28u16..=CORES],
    ) {
        let whole = longest_beside(seed, [Need::gpus(GPUS), Need::gpus(GPUS)])?;
        prop_assert!(whole < SHORT_WAIT, "beside whole nodes: {whole:?}");
        let needs = [cores(gpus[0], cpus[0]), cores(gpus[1], cpus[1])];
        let beside = longest_beside(seed, needs)?;
        prop_assert!(beside < SHORT_WAIT, "{beside:?}, beside whole nodes {whole:?}");
    }
}

/// One pilot lends 21 cores and another has 8: no pilot has 29, and a short cell isn't what a cell of 29 cores waits for.
#[test]
fn what_two_pilots_have_free_together_is_no_room() {
    let config = Config {
        due_after: MINUTE,
        fair_share: false,
        ..Config::default()
    };
    let mut w = World::new(1, config, by_hand(GPUS, CORES));
    w.pilot("n0", 3, 24);
    w.pilot("n0", 1, 8);
    let [long, large, short] = ["long", "large", "short"].map(|name| w.kernel(name, name, &["n0"], 1));
    w.submit(&long, Need::gpus(3));
    w.settle();
    for held in [false, true] {
        for _ in 0..10 {
            let (cell, _) = w.submit(&short, Need::gpus(1));
            w.settle();
            let starts = w.running.contains_key(&(short.clone(), cell.clone()));
            assert!(starts, "held: {held}, {:?}", w.core.waiting());
            w.pass(Span::from_secs(2));
            w.end_cell(&short, &cell);
            w.settle();
            w.pass(MINUTE);
            w.settle();
        }
        if !held {
            w.submit(&large, cores(0, 29));
            w.pass(Span::from_secs(7200));
        }
    }
}

/// A node with a GPU of one type, and one with two of another. A cell waits on the first for a week.
struct TwoTypes {
    w: World,
    quick: KernelId,
    rare: [KernelId; 2],
}

impl TwoTypes {
    fn new(config: Config) -> Self {
        let mut pool = PoolConfig::fixed("main", 0, 2, 8);
        pool.max_pilots = 2;
        pool.migrate = Some(Migrate {
            ahead: false,
            ..Migrate::default()
        });
        let mut w = World::new(1, config, pool);
        w.pilot_of("n0", "rare", 1, 8);
        w.pilot_of("n1", "common", 2, 8);
        let week = w.kernel("week", "week", &["n0"], 1);
        let rare = ["rare0", "rare1"].map(|name| w.kernel(name, name, &["n0"], 1));
        let quick = w.kernel("quick", "quick", &["n1"], 1);
        // One of the two has had more service.
        let (cell, _) = w.submit(&rare[0], of_type(1, "rare"));
        w.settle();
        w.pass(Span::from_secs(3600));
        w.end_cell(&rare[0], &cell);
        w.settle();
        w.pass(Span::from_secs(60));
        w.settle();
        w.submit(&week, of_type(1, "rare"));
        w.settle();
        Self { w, quick, rare }
    }

    /// Whether a cell with this need starts at once. It is over afterwards.
    fn starts(&mut self, need: Need) -> bool {
        let quick = self.quick.clone();
        let (cell, _) = self.w.submit(&quick, need);
        self.w.settle();
        let starts = self.w.running.contains_key(&(quick.clone(), cell.clone()));
        if starts {
            self.w.pass(Span::from_secs(2));
            self.w.end_cell(&quick, &cell);
            self.w.settle();
        }
        starts
    }

    fn order(&self) -> Vec<String> {
        let waiting = self.w.core.waiting().into_iter();
        waiting.map(|cell| cell.kernel.to_string()).collect()
    }
}

#[test]
fn starts_on_gpus_that_would_not_do_make_no_cell_due() {
    let mut t = TwoTypes::new(Config::default());
    t.w.submit(&t.rare[0].clone(), of_type(1, "rare"));
    for start in 0..20 {
        // Some name their type, and some take what is free.
        let need = if start % 2 == 0 {
            of_type(1, "common")
        } else {
            Need::gpus(1)
        };
        assert!(t.starts(need), "{:?}", t.w.core.waiting());
    }
    t.w.submit(&t.rare[1].clone(), of_type(1, "rare"));
    t.w.settle();
    assert_eq!(
        t.order(),
        ["rare1", "rare0"],
        "service decides as long as neither is due"
    );
}

#[test]
fn starts_on_gpus_that_would_do_make_a_cell_due_whatever_they_asked_for() {
    let mut t = TwoTypes::new(Config::default());
    let most = Config::default().due_overtaken;
    // No kernel is better moved to the other node.
    let month: Vec<KernelId> = (0..2)
        .map(|i| t.w.kernel(&format!("month{i}"), "month", &["n1"], 1))
        .collect();
    for kernel in &month {
        t.w.submit(kernel, of_type(1, "common"));
        t.w.settle();
    }
    t.w.submit(&t.rare[0].clone(), of_type(1, "rare"));
    let light: Vec<KernelId> = (0..=most)
        .map(|i| t.w.kernel(&format!("light{i}"), &format!("light{i}"), &["n0"], 1))
        .collect();
    // They take the rare GPU in turn, and ask for any.
    for kernel in &light {
        t.w.submit(kernel, Need::gpus(1));
        t.w.settle();
    }
    let mut overtook = 0;
    while t.w.waiting.iter().any(|(k, _)| *k == t.rare[0]) {
        let on_rare = |(k, _): &&(KernelId, CellId)| !k.as_str().starts_with("month");
        let (kernel, cell) = t.w.running.keys().find(on_rare).expect("it is taken").clone();
        t.w.pass(Span::from_secs(2));
        t.w.end_cell(&kernel, &cell);
        t.w.settle();
        overtook += 1;
        assert!(overtook <= most + 2, "{:?}", t.w.core.waiting());
    }
    assert!(overtook > most / 2, "it is the last by its service");
}

/// A cell that waits for both GPUs of one node is held for; one due for another type has seen dozens of starts there.
#[test]
fn a_due_cell_of_another_type_ends_no_backfill() {
    let config = Config {
        due_after: MINUTE,
        fair_share: false,
        ..Config::default()
    };
    let mut t = TwoTypes::new(config);
    t.w.submit(&t.rare[0].clone(), of_type(1, "rare"));
    let month = t.w.kernel("month", "month", &["n1"], 1);
    t.w.submit(&month, of_type(1, "common"));
    t.w.settle();
    for _ in 0..20 {
        assert!(t.starts(of_type(1, "common")), "{:?}", t.w.core.waiting());
    }
    let whole = t.w.kernel("whole", "whole", &["n1"], 2);
    t.w.submit(&whole, of_type(2, "common"));
    t.w.pass(Span::from_secs(7200));
    for _ in 0..20 {
        assert!(t.starts(of_type(1, "common")), "{:?}", t.w.core.waiting());
    }
}
