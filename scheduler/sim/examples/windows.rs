//! NotebookOS's scale: 30 nodes of 8 GPUs, with sessions dropped by seed until reservation fits. The whole month is run
//! once, so that each window of 17.5 hours has learnt from the days before. Then follow figures of the month with fewer
//! nodes. `windows TRACE`.

use hop_sim::metrics::{Quantiles, Steps};
use hop_sim::{CellResult, Cluster, Policy, PolicyResult, Trace};
use hop_words::time::{Span, Timestamp};

const WINDOW: Span = Span(63_000_000_000);

fn used(r: &PolicyResult, trace: &Trace) -> Steps {
    let mut used = Steps::default();
    for c in &r.cells {
        let run = trace.sessions[c.session as usize].cells[c.cell as usize].run;
        used.span(Timestamp(c.end.0 - run.0), c.end, i64::from(c.gpus));
    }
    used
}

fn spread(mut v: Vec<f64>) -> String {
    v.sort_unstable_by(f64::total_cmp);
    let q = |x: f64| v[((v.len() - 1) as f64 * x).round() as usize];
    format!("{:.3} ({:.3} to {:.3})", q(0.5), q(0.1), q(0.9))
}

/// A policy's figures, one of each per window.
#[derive(Default)]
struct Windows {
    held: Vec<f64>,
    provisioned: Vec<f64>,
    hours: Vec<f64>,
    p95: Vec<f64>,
    p99: Vec<f64>,
    immediate: Vec<f64>,
    same: Vec<f64>,
    /// Share kept, window, GPU-hours that could be saved, GPU-hours of pilots beyond those used.
    least: Vec<(f64, u64, f64, f64)>,
}

impl Windows {
    fn of(r: &PolicyResult, trace: &Trace, reserved: &Steps) -> Self {
        let used = used(r, trace);
        let mut windows = Self::default();
        for i in 0..trace.end().0 / WINDOW.0 {
            let (from, to) = (Timestamp(i * WINDOW.0), Timestamp((i + 1) * WINDOW.0));
            let base = reserved.hours_between(from, to);
            let possible = (base - used.hours_between(from, to)).max(1e-9);
            let share = |x: f64| (base - x) / possible;
            let provisioned = r.provisioned.hours_between(from, to);
            windows.held.push(share(r.held.hours_between(from, to)));
            windows.provisioned.push(share(provisioned));
            windows.hours.push(base - provisioned);
            let idle = provisioned - used.hours_between(from, to);
            windows.least.push((share(provisioned), i, possible, idle));
            let cells = r.cells.iter();
            windows.add_cells(
                &cells
                    .filter(|c| c.submit >= from && c.submit < to)
                    .collect::<Vec<_>>(),
            );
        }
        windows
    }

    fn add_cells(&mut self, cells: &[&CellResult]) {
        let of = |n: usize, of: usize| n as f64 / of.max(1) as f64;
        let q = Quantiles::of(cells.iter().map(|c| c.delay().as_secs_f64()).collect());
        self.p95.push(q.p95);
        self.p99.push(q.p99);
        let immediate = cells.iter().filter(|c| c.immediate).count();
        self.immediate.push(of(immediate, cells.len()));
        let again: Vec<bool> = cells.iter().filter_map(|c| c.reused).collect();
        self.same
            .push(of(again.iter().filter(|x| **x).count(), again.len()));
    }
}

fn print_least(mut least: Vec<(f64, u64, f64, f64)>) {
    least.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    println!("ours by window: share of the saving, window, GPU-hours that could be saved, idle GPU-hours");
    for (share, i, possible, idle) in least {
        println!("| {share:.3} | {i} | {possible:.0} | {idle:.0} |");
    }
}

fn run(name: &str, trace: &Trace, cluster: &Cluster) -> PolicyResult {
    let p: Policy = name.parse().expect("a policy's name");
    hop_sim::run(p, trace, cluster, 1)
}

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse("month", &text, 1).expect("the trace is one");
    let thinned = trace.thinned(240, 1);
    println!(
        "{} of {} sessions, {} cells",
        thinned.sessions.len(),
        trace.sessions.len(),
        thinned.cells()
    );
    by_window(&thinned);
    fewer_nodes(&thinned);
}

fn by_window(trace: &Trace) {
    let cluster = Cluster {
        nodes: 30,
        ..Cluster::default()
    };
    let reserved = run("reservation", trace, &cluster).held;
    for name in [
        "reservation",
        "idle-cull",
        "fcfs-batch",
        "warm-pool",
        "notebookos",
        "bound",
        "ours",
    ] {
        let r = run(name, trace, &cluster);
        let s = r.summary(trace);
        let w = Windows::of(&r, trace, &reserved);
        println!(
            "| {name} | {:.3} | {:.3} | {} | {} | {} | {} | {} | {} | {} |",
            s.held_saving_share.unwrap_or(f64::NAN),
            s.provisioned_saving_share.unwrap_or(f64::NAN),
            spread(w.held),
            spread(w.provisioned),
            spread(w.hours),
            spread(w.p95),
            spread(w.p99),
            spread(w.immediate),
            spread(w.same)
        );
        if name == "ours" {
            print_least(w.least);
        }
    }
}

fn fewer_nodes(trace: &Trace) {
    println!("fewer nodes: GPUs, held, provisioned, p50, p95, p99, immediate, same executor, moves");
    for nodes in [30, 25, 20, 15, 12, 10] {
        let cluster = Cluster {
            nodes,
            ..Cluster::default()
        };
        for name in ["notebookos", "ours"] {
            let s = run(name, trace, &cluster).summary(trace);
            println!(
                "| {name} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.1} | {:.4} | {:.4} | {} |",
                nodes * 8,
                s.held_saving_share.unwrap_or(f64::NAN),
                s.provisioned_saving_share.unwrap_or(f64::NAN),
                s.delay_s.p50,
                s.delay_s.p95,
                s.delay_s.p99,
                s.immediate_fraction,
                s.executor_reuse_fraction,
                s.migrations
            );
        }
    }
}
