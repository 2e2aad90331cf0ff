//! The policy on traces of other shapes than those that it was made on, short of GPUs and not.
//! `families [-f NAME,..] [-s FROM..TO] [-l LOAD,..] POLICY...`: a line for each family, load and policy, with medians
//! over the seeds. LOAD is the share of the cluster's GPU-time that the cells need, in percent. Environment: `CLUSTER` (a file).

use hop_sim::metrics::PolicySummary;
use hop_sim::rng::Rng;
use hop_sim::trace::{Cell, Session};
use hop_sim::{Cluster, LeftOut, Policy, Spread, Trace};
use hop_words::time::{Span, Timestamp};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;

/// A family: how many sessions over how many days, and how each of them is drawn.
struct Family {
    name: &'static str,
    sessions: usize,
    days: f64,
    /// GPUs of a session's cells.
    sizes: &'static [(u16, f64)],
    /// Seconds that a cell runs, by its session's own factor and its GPUs.
    run: fn(&mut Rng, f64, u16) -> f64,
    /// Seconds from a cell's reply to the next cell.
    think: fn(&mut Rng) -> f64,
    /// When a session opens, as a share of the whole time.
    opens: fn(&mut Rng) -> f64,
    /// Median number of a session's cells.
    cells: f64,
    /// Each cell draws its size, not each session.
    mixed: bool,
}

const PLAIN: Family = Family {
    name: "minutes",
    sessions: 240,
    days: 7.0,
    sizes: &[(1, 1.0)],
    run: |rng, _, _| rng.lognormal((3.0 * MINUTE).ln(), 1.2),
    think: |rng| rng.lognormal((5.0 * MINUTE).ln(), 1.2),
    opens: Rng::unit,
    cells: 60.0,
    mixed: false,
};

const SECONDS: Family = Family {
    name: "seconds",
    days: 1.0,
    sessions: 80,
    run: |rng, _, _| rng.lognormal(3.0f64.ln(), 1.5),
    think: |rng| rng.lognormal(20.0f64.ln(), 1.0),
    cells: 300.0,
    ..PLAIN
};

fn families() -> Vec<Family> {
    let mixed: &[(u16, f64)] = &[(1, 6.0), (2, 3.0), (4, 2.0), (8, 1.0)];
    vec![
        PLAIN,
        Family {
            name: "mixed",
            sizes: mixed,
            ..PLAIN
        },
        Family {
            name: "mixed-cells",
            sizes: mixed,
            mixed: true,
            ..PLAIN
        },
        // Tails: most cells are short, most time is in a few.
        Family {
            name: "pareto",
            sizes: mixed,
            run: |rng, _, _| pareto(rng, MINUTE, 0.75, 5.0 * DAY),
            ..PLAIN
        },
        Family {
            name: "weeks",
            sessions: 120,
            days: 30.0,
            sizes: mixed,
            run: |rng, own, _| {
                if own < 0.1 {
                    rng.lognormal((10.0 * DAY).ln(), 0.5)
                } else {
                    rng.lognormal((5.0 * MINUTE).ln(), 1.0)
                }
            },
            ..PLAIN
        },
        Family {
            name: "two-kinds",
            sizes: mixed,
            run: |rng, _, _| {
                if rng.unit() < 0.1 {
                    6.0 * HOUR * (0.8 + 0.4 * rng.unit())
                } else {
                    MINUTE
                }
            },
            ..PLAIN
        },
        Family {
            name: "equal",
            run: |_, _, _| 10.0 * MINUTE,
            ..PLAIN
        },
        // Sizes.
        Family {
            name: "whole-nodes",
            sizes: &[(1, 5.0), (8, 1.0)],
            ..PLAIN
        },
        Family {
            name: "odd-sizes",
            sizes: &[(1, 1.0), (3, 1.0), (7, 1.0)],
            ..PLAIN
        },
        Family {
            name: "large-are-long",
            sizes: mixed,
            run: |rng, _, gpus| f64::from(gpus) * rng.lognormal((4.0 * MINUTE).ln(), 1.0),
            ..PLAIN
        },
        Family {
            name: "large-are-short",
            sizes: mixed,
            run: |rng, _, gpus| rng.lognormal((64.0 * MINUTE / f64::from(gpus)).ln(), 1.0),
            ..PLAIN
        },
        // When people come.
        Family {
            name: "day-and-night",
            sizes: mixed,
            opens: |rng| {
                let day = rng.below(7) as f64;
                (day + 0.33 + 0.1 * rng.unit()) / 7.0
            },
            cells: 30.0,
            ..PLAIN
        },
        Family {
            name: "class",
            sessions: 40,
            days: 0.2,
            opens: |_| 0.1,
            cells: 20.0,
            think: |rng| rng.lognormal(MINUTE.ln(), 0.5),
            ..PLAIN
        },
        Family {
            name: "deadline-rush",
            sizes: mixed,
            opens: |rng| 1.0 - rng.unit().powi(3),
            ..PLAIN
        },
        // How long people think.
        Family {
            name: "any-think",
            sizes: mixed,
            think: |rng| (rng.unit() * (8.0 * HOUR).ln()).exp(),
            cells: 40.0,
            ..PLAIN
        },
        Family {
            name: "no-think",
            sizes: mixed,
            think: |_| 1.0,
            cells: 100.0,
            ..PLAIN
        },
        SECONDS,
        Family {
            name: "seconds-mixed",
            sizes: mixed,
            ..SECONDS
        },
        // Each person differs from the others.
        Family {
            name: "own-pace",
            sizes: mixed,
            run: |rng, own, _| rng.lognormal(3.0 + 7.0 * own, 0.4),
            ..PLAIN
        },
    ]
}

/// Pareto with a least and a most.
fn pareto(rng: &mut Rng, least: f64, exponent: f64, most: f64) -> f64 {
    (least / rng.unit().powf(1.0 / exponent)).min(most)
}

impl Family {
    fn trace(&self, seed: u64) -> Trace {
        let mut rng = Rng::new(seed, 0xFA31);
        let sessions = (0..self.sessions).map(|i| self.session(i, &mut rng)).collect();
        Trace {
            name: format!("family:{}", self.name),
            sessions,
            left_out: LeftOut::default(),
        }
    }

    fn session(&self, i: usize, rng: &mut Rng) -> Session {
        let open = (self.opens)(rng) * self.days * DAY;
        let (own, of_session) = (rng.unit(), rng.weighted(self.sizes));
        let count = rng.lognormal(self.cells.ln(), 0.8).clamp(1.0, 2000.0);
        let mut at = open + 120.0;
        let mut cells = Vec::new();
        for _ in 0..count as usize {
            if at >= self.days * DAY {
                break;
            }
            let gpus = if self.mixed {
                rng.weighted(self.sizes)
            } else {
                of_session
            };
            let run = (self.run)(rng, own, gpus).max(0.1);
            cells.push(Cell {
                submit: micros(at),
                run: Span(micros(run).0),
                gpus,
                cpus: 0,
                print: 0,
            });
            at += run + (self.think)(rng);
        }
        let close = micros(at.max(open + HOUR));
        Session {
            id: format!("s{i:04}"),
            user: format!("u{:03}", i % (self.sessions / 3).max(1)),
            account: None,
            open: micros(open),
            close,
            deadline: None,
            cells,
        }
    }
}

fn micros(seconds: f64) -> Timestamp {
    Timestamp((seconds * 1e6) as u64)
}

/// Nodes of 8 GPUs whose time the cells need to that percentage, from the first cell to the last one's submission.
fn nodes_for(trace: &Trace, load: f64) -> u32 {
    let cells = || trace.sessions.iter().flat_map(|s| &s.cells);
    let ends = cells().map(|c| c.submit.0).max().unwrap_or(1);
    let starts = cells().map(|c| c.submit.0).min().unwrap_or(0);
    let hours = (ends - starts) as f64 / 3.6e9;
    // A cell's time beyond the last submission presses on nobody.
    let used: f64 = cells()
        .map(|c| f64::from(c.gpus) * (c.run.0.min(ends - c.submit.0) as f64) / 3.6e9)
        .sum();
    ((used / hours / 8.0 / (load / 100.0)).round() as u32).max(1)
}

/// What one seed gave.
struct Run {
    nodes: u32,
    cells: f64,
    mean_s: f64,
    pilots: f64,
    summary: PolicySummary,
}

struct Asked {
    families: Vec<String>,
    seeds: Vec<u64>,
    loads: Vec<f64>,
    policies: Vec<Policy>,
}

fn asked() -> Asked {
    let mut args = std::env::args().skip(1);
    let mut asked = Asked {
        families: vec![],
        seeds: vec![1],
        loads: vec![60.0, 90.0],
        policies: vec![],
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("a value");
        match arg.as_str() {
            "-f" => asked.families = value().split(',').map(str::to_owned).collect(),
            "-s" => {
                let seeds = value();
                let (from, to) = seeds.split_once("..").expect("FROM..TO");
                asked.seeds = (from.parse().expect("a seed")..=to.parse().expect("a seed")).collect();
            }
            "-l" => asked.loads = value().split(',').map(|l| l.parse().expect("a load")).collect(),
            policy => asked.policies.push(policy.parse().expect("a policy")),
        }
    }
    asked
}

fn main() {
    let asked = asked();
    let template = std::env::var("CLUSTER").map_or_else(
        |_| Cluster::default(),
        |file| Cluster::parse(&std::fs::read_to_string(file).expect("the file")).expect("a cluster"),
    );
    let mut all = families();
    all.retain(|f| asked.families.is_empty() || asked.families.iter().any(|n| n == f.name));
    let mut jobs = Vec::new();
    for (i, _) in all.iter().enumerate() {
        for load in &asked.loads {
            for (p, _) in asked.policies.iter().enumerate() {
                jobs.extend(asked.seeds.iter().map(|&seed| (i, *load, p, seed)));
            }
        }
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<_, Vec<Run>>::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(i, load, p, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let trace = all[i].trace(seed);
                    let nodes = nodes_for(&trace, load);
                    let cluster = Cluster {
                        nodes,
                        ..template.clone()
                    }
                    .sized_for(&trace);
                    let result = hop_sim::run(asked.policies[p], &trace, &cluster, seed);
                    let delays = result.cells.iter().map(|c| c.delay().as_secs_f64());
                    let run = Run {
                        nodes,
                        cells: result.cells.len() as f64,
                        mean_s: delays.sum::<f64>() / result.cells.len() as f64,
                        pilots: result.pilots as f64,
                        summary: result.summary(&trace),
                    };
                    let mut done = done.lock().expect("nobody panicked");
                    let runs = done.entry((i, load as u32, p)).or_default();
                    runs.push(run);
                    if runs.len() == asked.seeds.len() {
                        println!("{}", line(all[i].name, load as u32, asked.policies[p], runs));
                    }
                }
            });
        }
    });
}

/// A line of the medians over the seeds.
fn line(family: &str, load: u32, policy: Policy, runs: &[Run]) -> String {
    let of = |figure: fn(&Run) -> f64| Spread::of(runs.iter().map(figure)).map_or(0.0, |s| s.median);
    format!(
        "{family:16} {load:3} % {:3} nodes {:12} antt {:8.2} mean {:8.0} s p99 {:8.0} s longest {:6.1} h overtaken {:4.0} moves {:6.0} pilots {:6.0} cells {:6.0}",
        runs[0].nodes,
        policy.to_string(),
        of(|r| r.summary.antt),
        of(|r| r.mean_s),
        of(|r| r.summary.delay_s.p99),
        of(|r| r.summary.longest_wait_h),
        of(|r| r.summary.overtaken_most.into()),
        of(|r| r.summary.migrations as f64),
        of(|r| r.pilots),
        of(|r| r.cells),
    )
}
