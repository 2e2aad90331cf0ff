//! Whether short cells should go first: delays with and without, as GPUs get fewer, if every run time were known.
//! `short_first TRACE`.

use hop_sim::cluster::Knobs;
use hop_sim::{Cluster, Policy, Trace};

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse("month", &text, 1).expect("the trace is one");
    println!("| GPUs | first | delay p50 | p90 | p95 | p99 | max s | mean s | ANTT |");
    for nodes in [50, 43, 40, 37, 34] {
        for short_first in [false, true] {
            let cluster = Cluster {
                nodes,
                policy: Knobs {
                    fair_share: false,
                    short_first,
                    ..Knobs::default()
                },
                ..Cluster::default()
            };
            let ours: Policy = "ours".parse().expect("a policy's name");
            let r = hop_sim::run(ours, &trace, &cluster, 1);
            let s = r.summary(&trace);
            let mean = r.cells.iter().map(|c| c.delay().as_secs_f64()).sum::<f64>() / r.cells.len() as f64;
            let (d, first) = (s.delay_s, if short_first { "short" } else { "come" });
            println!(
                "| {} | {first} | {:.2} | {:.1} | {:.1} | {:.0} | {:.0} | {mean:.1} | {:.3} |",
                cluster.gpus(),
                d.p50,
                d.p90,
                d.p95,
                d.p99,
                d.max,
                s.antt
            );
        }
    }
}
