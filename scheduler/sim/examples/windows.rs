//! NotebookOS's scale: 30 nodes of 8 GPUs, sessions left out by seed until reservation fits, windows of 17.5 hours
//! over the whole trace. Prints one line per policy with the spread over the windows, then how figures move as GPUs
//! are taken away from the whole thinned month. `windows TRACE`.

use hop_core::time::{Span, Timestamp};
use hop_sim::metrics::reserved_hours;
use hop_sim::{Cluster, Policy, Trace};

const HOURS: f64 = 17.5;

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse("month", &text, 1).expect("the trace is one");
    let thinned = trace.thinned(240, 1);
    let cluster = Cluster {
        nodes: 30,
        ..Cluster::default()
    };
    println!(
        "{} of {} sessions stay",
        thinned.sessions.len(),
        trace.sessions.len()
    );
    let windows: Vec<Trace> = (0..)
        .map(|i| f64::from(i) * HOURS)
        .take_while(|from| from + HOURS <= thinned.end().0 as f64 / 3.6e9)
        .map(|from| thinned.window(Timestamp((from * 3.6e9) as u64), Span((HOURS * 3.6e9) as u64)))
        .filter(|w| w.cells() > 0)
        .collect();
    println!(
        "{} windows of {HOURS} h: median (10th to 90th percentile)",
        windows.len()
    );
    for policy in [
        "reservation",
        "idle-cull",
        "fcfs-batch",
        "warm-pool",
        "notebookos",
        "oracle",
        "ours",
    ] {
        let p: Policy = policy.parse().expect("a policy's name");
        let all: Vec<_> = windows
            .iter()
            .map(|w| (hop_sim::run(p, w, &cluster, 1).summary(w), w))
            .collect();
        let spread = |f: &dyn Fn(&hop_sim::metrics::PolicySummary, &Trace) -> f64| {
            let mut v: Vec<f64> = all.iter().map(|(s, w)| f(s, w)).collect();
            v.sort_unstable_by(f64::total_cmp);
            let q = |x: f64| v[((v.len() - 1) as f64 * x) as usize];
            format!("{:.3} ({:.3}..{:.3})", q(0.5), q(0.1), q(0.9))
        };
        println!(
            "| {policy} | {} | {} | {} | {} | {} | {} | {} |",
            spread(&|s, _| s.held_saving_share),
            spread(&|s, _| s.provisioned_saving_share),
            spread(&|s, w| reserved_hours(w) - s.gpu_hours_provisioned),
            spread(&|s, _| s.delay_s.p95),
            spread(&|s, _| s.delay_s.p99),
            spread(&|s, _| s.immediate_fraction),
            spread(&|s, _| s.executor_reuse_fraction),
        );
    }
    println!("the whole thinned month on fewer and fewer nodes");
    for nodes in [30, 25, 20, 15, 12, 10] {
        for policy in ["notebookos", "ours"] {
            let p: Policy = policy.parse().expect("a policy's name");
            let smaller = Cluster {
                nodes,
                ..Cluster::default()
            };
            let s = hop_sim::run(p, &thinned, &smaller, 1).summary(&thinned);
            println!(
                "| {policy} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {:.1} | {:.4} | {:.4} | {} |",
                nodes * 8,
                s.held_saving_share,
                s.provisioned_saving_share,
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
