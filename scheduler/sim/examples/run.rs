//! Runs policies over a trace and prints the summary: a quick look without the command line.

use hop_sim::{Cluster, Policy, Trace};

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse(&path, &text, 1).expect("the trace is one");
    let mut cluster = Cluster::default();
    if let Some(file) = std::env::var_os("CLUSTER") {
        cluster =
            Cluster::parse(&std::fs::read_to_string(file).expect("the cluster file")).expect("a cluster");
    }
    let cluster = cluster.sized_for(&trace);
    println!(
        "nodes {} reserved {:.0} used {:.0}",
        cluster.nodes,
        hop_sim::metrics::reserved_hours(&trace),
        trace.gpu_hours_used()
    );
    for name in args {
        let policy: Policy = name.parse().expect("a policy's name");
        let start = std::time::Instant::now();
        let r = hop_sim::run(policy, &trace, &cluster, 1);
        let wall = start.elapsed().as_secs_f64();
        if std::env::var_os("MISS").is_some() {
            let mut by = std::collections::BTreeMap::new();
            let mut prev: Option<&hop_sim::CellResult> = None;
            for c in &r.cells {
                let p = prev.filter(|p| p.session == c.session);
                let gap = p.map_or(-1, |p| (c.submit.since(p.end).as_secs_f64() / 60.0) as i64);
                let b = [(-1, "first"), (1, "<=1"), (3, "<=3"), (10, "<=10"), (30, "<=30"), (60, "<=60"), (200, "<=200")].iter().find(|x| gap <= x.0).map_or(">200", |x| x.1);
                let size = p.map_or("-", |p| if c.gpus > p.gpus { "up" } else if c.gpus < p.gpus { "down" } else { "same" });
                let e = by.entry((b, size)).or_insert((0, 0));
                e.1 += 1;
                if !c.immediate { e.0 += 1; }
                prev = Some(c);
            }
            for (k, v) in by { println!("{k:?} {v:?}"); }
        }
        let s = r.summary(&trace);
        println!(
            "{name:20} n {} held {:.0} ({:.3}x, {:.3}) prov {:.0} ({:.3}) delay p50 {:.3} p95 {:.3} p99 {:.2} max {:.0} | +unpark p50 {:.2} p95 {:.2} | imm {:.4} reuse {:.4} mig {} antt {:.3} stp {:.1} est.err {:?}/{} wall {wall:.2}",
            r.cells.len(),
            s.gpu_hours_held,
            s.gpu_hours_held / s.gpu_hours_used,
            s.held_saving_share,
            s.gpu_hours_provisioned,
            s.provisioned_saving_share,
            s.delay_s.p50,
            s.delay_s.p95,
            s.delay_s.p99,
            s.delay_s.max,
            s.delay_with_unpark_s.p50,
            s.delay_with_unpark_s.p95,
            s.immediate_fraction,
            s.executor_reuse_fraction,
            s.migrations,
            s.antt,
            s.stp,
            s.estimate_error_s,
            s.estimates,
        );
    }
}
