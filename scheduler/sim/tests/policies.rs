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
        let antt = s.antt.min(s.antt_with_think);
        assert!(antt >= 0.999, "{policy} is faster than alone: {antt}");
    }
}

#[test]
fn no_policy_is_faster_than_the_bound() {
    for (text, nodes) in [
        ("synth:b,sessions=14,days=1", 2),
        ("synth:a,sessions=20,days=2", 3),
    ] {
        let trace = synth(text, 7);
        let cluster = Cluster {
            nodes,
            ..Cluster::default()
        };
        let antt = |p: Policy| hop_sim::run(p, &trace, &cluster, 1).antt_stp(&trace, false).0;
        let bound = antt("bound".parse().expect("a policy's name"));
        for policy in Policy::all() {
            let antt = antt(policy);
            assert!(antt >= bound - 1e-6, "{policy}: {antt}, bound {bound}");
        }
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
    let summary = hop_sim::Summary::new(&results, &trace, &cluster, 1);
    let page = hop_sim::report(&summary, &results, &trace, &[], &[]);
    assert!(page.contains("<svg") && !page.contains("http"));
}

#[test]
fn run_times_are_foretold_from_the_past_and_the_error_is_told() {
    let trace = synth("synth:a,sessions=20,days=5", 2);
    let cluster = Cluster::default().sized_for(&trace);
    let summary = |p: &str| {
        let p: Policy = p.parse().expect("a policy's name");
        hop_sim::run(p, &trace, &cluster, 1).summary(&trace)
    };
    let s = summary("ours");
    let all = &s.predictions[0];
    let gpu_cells = trace
        .sessions
        .iter()
        .flat_map(|s| &s.cells)
        .filter(|c| c.gpus > 0);
    // But for the first of all, of which nothing is known.
    assert_eq!(all.cells + 1, gpu_cells.count());
    assert!(
        all.error > 0.0 && all.error < 1.0 && all.within_2x > 0.4,
        "{all:?}"
    );
    let by_history: usize = s.predictions[1..5].iter().map(|p| p.cells).sum();
    assert_eq!(by_history, all.cells);
    assert!(summary("notebookos").predictions.is_empty());
}

#[test]
fn burst_nodes_boot_when_gpus_are_short_are_given_back_and_are_paid_for() {
    let trace = synth("synth:a,sessions=40,days=3", 3);
    let cluster = |burst: &str| Cluster::parse(&format!("nodes = 3\n{burst}")).expect("a cluster");
    let few = hop_sim::run("ours".parse().expect("a policy's name"), &trace, &cluster(""), 3);
    let burst =
        "[[burst]]\npartition = \"cloud\"\nnodes = 4\nboot = { p50 = 90.0, p99 = 180.0 }\nprice = 2.5\n";
    let more = hop_sim::policy::run_checked(&trace, &cluster(burst), 3);
    assert_eq!(more.cells.len(), trace.cells());
    let p95 = |r: &hop_sim::PolicyResult| r.summary(&trace).delay_s.p95;
    // Nineteen of twenty cells don't even wait for a boot.
    assert!(
        p95(&more) < (p95(&few) / 20.0).min(90.0),
        "{} {}",
        p95(&more),
        p95(&few)
    );
    let (hours, all) = (more.burst.hours(), more.provisioned.hours());
    assert!(hours > 0.0 && hours < all);
    assert!((more.burst_cost - 2.5 * hours).abs() < 1e-6 * more.burst_cost);
    // Four nodes of eight kept for three days would be 2,304.
    assert!(hours < 0.6 * 4.0 * 8.0 * 72.0, "given back in between: {hours}");
    let booted = more.cells.iter().filter(|c| c.node >= 3 && !c.immediate);
    assert!(
        booted.map(|c| c.delay().as_secs_f64()).any(|d| d > 40.0),
        "boots take their time"
    );
    assert!(few.burst.changes.is_empty() && few.burst_cost == 0.0);
    assert!(Cluster::parse(&burst.replace("2.5", "-1.0")).is_err());
}

#[test]
fn who_waits_for_a_move_is_told_how_long_that_takes() {
    let trace = synth("synth:a,sessions=60,days=3", 3);
    let cluster = Cluster::parse("nodes = 8").expect("a cluster");
    let r = hop_sim::run("ours".parse().expect("a policy's name"), &trace, &cluster, 3);
    let moved = r.cells.iter().filter(|c| c.migrated);
    let mut off: Vec<f64> = moved
        .filter_map(|c| {
            c.estimate
                .map(|e| (e.as_secs_f64() - c.delay().as_secs_f64()).abs())
        })
        .collect();
    off.sort_unstable_by(f64::total_cmp);
    assert!(off.len() > 10, "{off:?}");
    assert!(off[off.len() / 2] < 20.0, "{off:?}");
}

#[test]
fn seconds_between_cells_keep_fewer_gpus_than_a_culler_and_nearly_all_start_at_once() {
    let mut ahead = Vec::new();
    for seed in 1..=3 {
        let trace = synth("synth:june", seed);
        let cluster = Cluster::default().sized_for(&trace);
        let of = |name: &str| {
            let policy: Policy = name.parse().expect("a policy");
            hop_sim::run(policy, &trace, &cluster, seed).summary(&trace)
        };
        let (ours, culler) = (of("ours"), of("idle-cull"));
        assert!(ours.immediate_fraction >= 0.96, "seed {seed}: {ours:?}");
        let saved =
            |s: &hop_sim::metrics::PolicySummary| s.provisioned_saving_share.expect("much is reserved");
        assert!(saved(&ours) > 0.45, "seed {seed}: {ours:?}");
        ahead.push(saved(&ours) - saved(&culler));
    }
    assert!(ahead.iter().sum::<f64>() > 0.0, "{ahead:?}");
}

#[test]
fn use_while_cells_wait_puts_their_user_back() {
    let line = |session: &str, user: &str, submit: u64, run: u64| {
        format!(r#"{{"session":"{session}","user":"{user}","submit":{submit},"run":{run},"gpus":1}}"#)
    };
    // Bob has used a minute, and comes back after thirty of Alice's cells, of an hour each.
    let mut lines = vec![line("bob", "bob", 200, 60), line("bob", "bob", 1000, 60)];
    lines.extend((0..30).map(|i| line(&format!("alice{i:02}"), "alice", 600 + i, 3600)));
    let trace = Trace::parse("t", &lines.join("\n"), 1).expect("the lines are cells");
    let cluster = Cluster::parse("nodes = 1\ngpus_per_node = 1").expect("a cluster");
    let r = hop_sim::policy::run_checked(&trace, &cluster, 1);
    let bob = trace
        .sessions
        .iter()
        .position(|s| s.user == "bob")
        .expect("he is there");
    let second = r.cells.iter().find(|c| c.session as usize == bob && c.cell == 1);
    let hours = second.expect("it ran").delay().as_secs_f64() / 3600.0;
    assert!(hours < 2.1, "{hours} hours");
}
