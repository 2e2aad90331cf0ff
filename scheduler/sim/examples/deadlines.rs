//! Deadlines met: by slack against first come, first served, on the same core, as GPUs get fewer. `deadlines TRACE
//! [NODES..]`; environment: `CLUSTER` (a file), of which the nodes, fair share and scaling don't count.

use hop_sim::cluster::Knobs;
use hop_sim::{Cluster, Policy, Trace};
use hop_words::time::Span;

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse("month", &text, 1).expect("the trace is one");
    let template = std::env::var("CLUSTER").map_or_else(
        |_| Cluster::default(),
        |file| Cluster::parse(&std::fs::read_to_string(file).expect("the file")).expect("a cluster"),
    );
    let mut sizes: Vec<u32> = std::env::args()
        .skip(2)
        .map(|n| n.parse().expect("a number of nodes"))
        .collect();
    if sizes.is_empty() {
        sizes = vec![12, 10, 8, 6];
    }
    println!("| nodes | by slack | first come | more often |");
    for nodes in sizes {
        let (mut ours, mut fcfs) = ((0, 0), (0, 0));
        for seed in 1..=5 {
            let notebooks = hop_sim::deadline::notebooks(&trace, 300, Span::from_secs(12 * 3600), seed);
            let policy = Knobs {
                fair_share: false,
                scale: None,
                ..template.policy.clone()
            };
            let cluster = Cluster {
                nodes,
                policy,
                ..template.clone()
            };
            for (name, sum) in [("ours", &mut ours), ("ours-no-deadlines", &mut fcfs)] {
                let p: Policy = name.parse().expect("a policy's name");
                let (met, all) = hop_sim::run(p, &notebooks, &cluster, seed)
                    .deadlines
                    .expect("they have deadlines");
                sum.0 += met;
                sum.1 += all;
            }
        }
        let share = |(met, all): (u64, u64)| met as f64 / all as f64;
        println!(
            "| {nodes} | {:.3} | {:.3} | {:+.1} % |",
            share(ours),
            share(fcfs),
            100.0 * (share(ours) / share(fcfs) - 1.0)
        );
    }
}
