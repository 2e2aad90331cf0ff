//! The core driven by whole traces, sane after every input, and every policy against what must hold for all.

use hop_sim::{Cluster, Policy, Synth, Trace};

fn synth(text: &str, seed: u64) -> Trace {
    text.parse::<Synth>().expect("it describes a trace").trace(seed)
}

#[test]
fn the_core_stays_sane_over_a_trace_and_runs_every_cell() {
    for (text, nodes) in [
        ("synth:june,sessions=6,days=0.3", 3),
        ("synth:a,sessions=14,days=4", 5),
    ] {
        let trace = synth(text, 3);
        let cluster = Cluster {
            nodes,
            ..Cluster::default()
        };
        let r = hop_sim::policy::run_checked(&trace, &cluster, 3);
        assert_eq!(r.cells.len(), trace.cells(), "{text}");
        let (used, held, provisioned) = (trace.gpu_hours_used(), r.held.hours(), r.provisioned.hours());
        assert!(
            used <= held + 1e-6 && held <= provisioned + 1e-6,
            "{used} {held} {provisioned}"
        );
        let most = f64::from(cluster.gpus());
        assert!(
            r.provisioned
                .means(trace.end(), 50)
                .into_iter()
                .all(|g| g <= most + 1e-6)
        );
    }
}

#[test]
fn every_policy_runs_every_cell_once_and_one_seed_gives_one_result() {
    let trace = synth("synth:b,sessions=8,days=1", 5);
    let cluster = Cluster::default().sized_for(&trace);
    for policy in Policy::all() {
        let (a, b) = (
            hop_sim::run(policy, &trace, &cluster, 9),
            hop_sim::run(policy, &trace, &cluster, 9),
        );
        assert_eq!(a.cells, b.cells, "{policy}");
        assert_eq!(a.cells.len(), trace.cells(), "{policy}");
        let mut seen: Vec<_> = a.cells.iter().map(|c| (c.session, c.cell)).collect();
        seen.dedup();
        assert_eq!(seen.len(), trace.cells(), "{policy} ran a cell twice");
        assert!(
            a.cells.iter().all(|c| c.end >= c.start && c.start >= c.submit),
            "{policy}"
        );
        let s = a.summary(&trace);
        assert!(s.antt >= 0.999, "{policy} is faster than alone: {}", s.antt);
    }
}

#[test]
fn the_report_needs_nothing_from_the_network() {
    let trace = synth("synth:june,sessions=5,days=0.2", 1);
    let cluster = Cluster::default().sized_for(&trace);
    let results: Vec<_> = Policy::main()
        .into_iter()
        .map(|p| hop_sim::run(p, &trace, &cluster, 1))
        .collect();
    let summary = hop_sim::Summary {
        trace: trace.name.clone(),
        seed: 1,
        config_hash: cluster.hash(),
        policies: results.iter().map(|r| r.summary(&trace)).collect(),
        nodes: cluster.nodes,
        gpus: cluster.gpus(),
        sessions: trace.sessions.len(),
        cells: trace.cells(),
        gpu_hours_reserved: 0.0,
    };
    let page = hop_sim::report(&summary, &results, &trace, &[]);
    assert!(page.contains("<svg") && !page.contains("http"));
}
