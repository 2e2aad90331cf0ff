//! Medians and ranges over seeds, for the tables of `docs/simulation`. `study TRACE NODES,.. FROM..TO POLICY...`;
//! environment: `CLUSTER` (a file), `THIN` (GPUs). `TRACE` may be `synth:FAMILY`, then each seed is a trace of its own.

use hop_sim::metrics::PolicySummary;
use hop_sim::{Cluster, Point, Policy, Synth, Trace};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn trace(path: &str, seed: u64) -> Trace {
    let trace = match path.parse::<Synth>() {
        Ok(synth) => synth.trace(seed),
        Err(_) => {
            let text = std::fs::read_to_string(path).expect("the trace can be read");
            Trace::parse(path, &text, seed).expect("the trace is one")
        }
    };
    match std::env::var("THIN") {
        Ok(gpus) => trace.thinned(gpus.parse().expect("a number of GPUs"), seed),
        Err(_) => trace,
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, nodes, seeds, policies @ ..] = &args[..] else {
        panic!("study TRACE NODES,.. FROM..TO POLICY...");
    };
    let (from, to) = seeds.split_once("..").expect("FROM..TO");
    let seeds = from.parse::<u64>().expect("a seed")..=to.parse().expect("a seed");
    let template = std::env::var("CLUSTER").map_or_else(
        |_| Cluster::default(),
        |file| Cluster::parse(&std::fs::read_to_string(file).expect("the file")).expect("a cluster"),
    );
    let mut jobs = Vec::new();
    for nodes in nodes.split(',') {
        for policy in policies {
            for seed in seeds.clone() {
                let nodes: u32 = nodes.parse().expect("a number of nodes");
                jobs.push((nodes, policy.parse::<Policy>().expect("a policy"), seed));
            }
        }
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(nodes, policy, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let trace = trace(path, seed);
                    let cluster = Cluster {
                        nodes,
                        ..template.clone()
                    }
                    .sized_for(&trace);
                    let summary = hop_sim::run(policy, &trace, &cluster, seed).summary(&trace);
                    let mut done = done.lock().expect("nobody panicked");
                    let of: &mut Vec<(u64, PolicySummary)> =
                        done.entry((nodes, policy.to_string())).or_default();
                    of.push((seed, summary));
                }
            });
        }
    });
    for ((nodes, policy), runs) in done.into_inner().expect("nobody panicked") {
        let p = Point::new(
            policy,
            BTreeMap::new(),
            nodes * u32::from(template.gpus_per_node),
            &runs,
        );
        print!("{} {}:", p.gpus, p.policy);
        for (name, s) in &p.figures {
            print!(" {name} {:.4} ({:.4} to {:.4})", s.median, s.least, s.most);
        }
        println!();
    }
}
