//! Prints the lines of bench `sim`. `bench TRACE`.

use hop_sim::{Cluster, Policy, Trace};
use std::time::Instant;

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse("month", &text, 1).expect("the trace is one");
    let cluster = Cluster::default().sized_for(&trace);
    let start = Instant::now();
    let mut ours = None;
    for policy in Policy::all() {
        let begun = Instant::now();
        let result = hop_sim::run(policy, &trace, &cluster, 1);
        if policy.to_string() == "ours" {
            ours = Some((begun.elapsed().as_secs_f64(), result.summary(&trace)));
        }
    }
    let all = start.elapsed().as_secs_f64();
    let (own, s) = ours.expect("ours is among all");
    for (case, value, unit) in [
        ("month_ours_s", own, "s"),
        ("month_all_s", all, "s"),
        (
            "held_saving_share",
            s.held_saving_share.expect("a month saves much"),
            "share",
        ),
        (
            "provisioned_saving_share",
            s.provisioned_saving_share.expect("a month saves much"),
            "share",
        ),
        ("delay_p95_s", s.delay_s.p95, "s"),
        ("immediate_fraction", s.immediate_fraction, "share"),
        ("executor_reuse_fraction", s.executor_reuse_fraction, "share"),
    ] {
        println!(
            "{{\"bench\":\"sim\",\"case\":\"{case}\",\"ours\":{value:.6},\"peer\":null,\"peer_value\":null,\"unit\":\"{unit}\",\"n\":{}}}",
            trace.cells()
        );
    }
}
