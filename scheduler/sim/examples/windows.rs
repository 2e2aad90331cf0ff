//! NotebookOS's scale: 30 nodes of 8 GPUs, sessions left out by seed until reservation fits. The whole month is run
//! once, so that what is learnt from the days before is there, and looked at in windows of 17.5 hours; then figures
//! of the month as nodes are taken away. `windows TRACE`.

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
        "{} of {} sessions, {} cells",
        thinned.sessions.len(),
        trace.sessions.len(),
        thinned.cells()
    );
    let run = |name: &str, cluster: &Cluster| {
        let p: Policy = name.parse().expect("a policy's name");
        hop_sim::run(p, &thinned, cluster, 1)
    };
    let reserved = run("reservation", &cluster).held;
    let count = thinned.end().0 / WINDOW.0;
    for name in [
        "reservation",
        "idle-cull",
        "fcfs-batch",
        "warm-pool",
        "notebookos",
        "bound",
        "ours",
    ] {
        let r = run(name, &cluster);
        let used = used(&r, &thinned);
        let s = r.summary(&thinned);
        // Share kept, window, GPU-hours that could be saved, GPU-hours of pilots beyond what was used.
        let mut least: Vec<(f64, u64, f64, f64)> = vec![];
        let (mut held, mut prov, mut hours, mut p95, mut p99, mut imm, mut same) =
            (vec![], vec![], vec![], vec![], vec![], vec![], vec![]);
        for i in 0..count {
            let (from, to) = (Timestamp(i * WINDOW.0), Timestamp((i + 1) * WINDOW.0));
            let base = reserved.hours_between(from, to);
            let possible = (base - used.hours_between(from, to)).max(1e-9);
            let share = |x: f64| (base - x) / possible;
            let provisioned = r.provisioned.hours_between(from, to);
            let cells: Vec<&CellResult> = r
                .cells
                .iter()
                .filter(|c| c.submit >= from && c.submit < to)
                .collect();
            let q = Quantiles::of(cells.iter().map(|c| c.delay().as_secs_f64()).collect());
            let of = |n: usize, of: usize| n as f64 / of.max(1) as f64;
            let again: Vec<bool> = cells.iter().filter_map(|c| c.reused).collect();
            held.push(share(r.held.hours_between(from, to)));
            prov.push(share(provisioned));
            hours.push(base - provisioned);
            let idle = provisioned - used.hours_between(from, to);
            least.push((share(provisioned), i, possible, idle));
            p95.push(q.p95);
            p99.push(q.p99);
            imm.push(of(cells.iter().filter(|c| c.immediate).count(), cells.len()));
            same.push(of(again.iter().filter(|x| **x).count(), again.len()));
        }
        println!(
            "| {name} | {:.3} | {:.3} | {} | {} | {} | {} | {} | {} | {} |",
            s.held_saving_share.unwrap_or(f64::NAN),
            s.provisioned_saving_share.unwrap_or(f64::NAN),
            spread(held),
            spread(prov),
            spread(hours),
            spread(p95),
            spread(p99),
            spread(imm),
            spread(same)
        );
        if name == "ours" {
            least.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            println!(
                "ours by window: share of the saving, window, GPU-hours that could be saved, idle GPU-hours"
            );
            for (share, i, possible, idle) in least {
                println!("| {share:.3} | {i} | {possible:.0} | {idle:.0} |");
            }
        }
    }
    println!("fewer nodes: GPUs, held, provisioned, p50, p95, p99, immediate, same executor, moves");
    for nodes in [30, 25, 20, 15, 12, 10] {
        for name in ["notebookos", "ours"] {
            let s = run(
                name,
                &Cluster {
                    nodes,
                    ..Cluster::default()
                },
            )
            .summary(&thinned);
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
