//! Deadlines met: by slack against first come, first served, on the same core, as GPUs get fewer. `deadlines TRACE`.

use hop_sim::cluster::Knobs;
use hop_sim::{Cluster, Policy, Trace};
use hop_words::time::Span;

fn main() {
    let path = std::env::args().nth(1).expect("first argument: a trace");
    let text = std::fs::read_to_string(&path).expect("the trace can be read");
    let trace = Trace::parse("month", &text, 1).expect("the trace is one");
    println!("| nodes | by slack | first come | more often |");
    for nodes in [12, 10, 8, 6] {
        let (mut ours, mut fcfs) = ((0, 0), (0, 0));
        for seed in 1..=5 {
            let notebooks = hop_sim::deadline::notebooks(&trace, 300, Span::from_secs(12 * 3600), seed);
            let policy = Knobs {
                fair_share: false,
                scale: None,
                ..Knobs::default()
            };
            let cluster = Cluster {
                nodes,
                policy,
                ..Cluster::default()
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
