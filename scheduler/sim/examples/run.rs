//! Runs policies over a trace and prints the summary: a quick look without the command line. `run TRACE POLICY...`;
//! environment: `CLUSTER` (a file), `SEED`, `THIN` (GPUs), `NO_THINK`.

use hop_sim::metrics::PolicySummary;
use hop_sim::{Cluster, Policy, PolicyResult, Synth, Trace};

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("first argument: a trace");
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|n| n.parse::<u32>().expect("a number"))
    };
    let seed = number("SEED").map_or(1, u64::from);
    let mut trace = match path.parse::<Synth>() {
        Ok(synth) => synth.trace(seed),
        Err(_) => {
            let text = std::fs::read_to_string(&path).expect("the trace can be read");
            Trace::parse(&path, &text, seed).expect("the trace is one")
        }
    };
    if let Some(gpus) = number("THIN") {
        trace = trace.thinned(gpus, seed);
    }
    if std::env::var_os("NO_THINK").is_some() {
        trace = trace.without_think();
    }
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
        let r = hop_sim::run(policy, &trace, &cluster, seed);
        if let Some(file) = std::env::var_os("CSV") {
            let rows = hop_sim::csv(std::slice::from_ref(&r), &trace, seed, "");
            std::fs::write(file, rows).expect("the rows can be written");
        }
        let wall = start.elapsed().as_secs_f64();
        let s = r.summary(&trace);
        print_summary(&name, &r, &s, wall);
    }
}

fn print_summary(name: &str, r: &PolicyResult, s: &PolicySummary, wall: f64) {
    println!(
        "{name:20} n {} held {:.0} ({:.3}x, {:.3}) prov {:.0} ({:.3}) delay p50 {:.3} p95 {:.3} p99 {:.2} max {:.0} | wait p95 {:.3} p99 {:.2} | imm {:.4} reuse {:.4} mig {} tb {:.1} spills {} antt {:.3} stp {:.1} est.err {:?}/{} wall {wall:.2}",
        r.cells.len(),
        s.gpu_hours_held,
        s.gpu_hours_held / s.gpu_hours_used,
        s.held_saving_share.unwrap_or(f64::NAN),
        s.gpu_hours_provisioned,
        s.provisioned_saving_share.unwrap_or(f64::NAN),
        s.delay_s.p50,
        s.delay_s.p95,
        s.delay_s.p99,
        s.delay_s.max,
        s.wait_s.p95,
        s.wait_s.p99,
        s.immediate_fraction,
        s.executor_reuse_fraction,
        s.migrations,
        s.moved_tb,
        s.spills,
        s.antt,
        s.stp,
        s.estimate_error_s,
        s.estimates,
    );
    if s.gpu_hours_burst > 0.0 {
        println!(
            "    burst: {:.0} GPU-hours, cost {:.0}",
            s.gpu_hours_burst, s.burst_cost
        );
    }
    for p in &s.predictions {
        let gpus = p
            .gpus_right
            .map_or_else(String::new, |g| format!(", GPUs right {g:.3}"));
        println!(
            "    foretold, {}: {} cells, error {:.3}, within 2x {:.3}{gpus}",
            p.of, p.cells, p.error, p.within_2x
        );
    }
}
