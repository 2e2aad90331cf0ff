//! Traces that nobody has looked at: whatever the text, a message and no panic; whatever the cells, every policy runs
//! each of them once, the core stays sane, and one seed gives the same bytes.

use hop_sim::cluster::ClusterError;
use hop_sim::{Cluster, Policy, Summary, Synth, Trace};
use proptest::prelude::*;

/// A cell as JSON: sessions of few names, so that cells overlap, begin at once, last no time.
fn line() -> impl Strategy<Value = String> {
    let gpus = prop_oneof![Just(0u16), Just(1), Just(4), Just(8), 0u16..=8];
    let submit = prop_oneof![Just(0.0), 0.0f64..100.0, 0.0f64..100_000.0];
    let run = prop_oneof![Just(0.0), Just(1e-6), 0.0f64..10.0, 0.0f64..50_000.0];
    (0u8..5, gpus, prop_oneof![Just(0u16), 0u16..=64], submit, run, 0u64..3).prop_map(
        |(session, gpus, cpus, submit, run, print)| {
            format!(
                r#"{{"session":"s{session}","user":"u{}","submit":{submit},"run":{run},"gpus":{gpus},"cpus":{cpus},"print":{print}}}"#,
                session % 2
            )
        },
    )
}

/// A table as in shared/data, with what people get wrong in it.
fn table() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        8 => (0u32..100).prop_map(|n| n.to_string()),
        1 => Just(String::new()),
        1 => Just("-1".to_owned()),
        1 => Just("12.0".to_owned()),
        1 => Just("99999999999999999999".to_owned()),
        1 => Just("18446744073709551615".to_owned()),
        1 => "[ -~]{0,6}",
    ];
    let header = prop_oneof![
        5 => Just("job_id,num_gpu,submit_time,iterations,model_name,duration,interval".to_owned()),
        1 => Just("num_gpu,submit_time,duration".to_owned()),
        1 => "[a-z_,]{0,40}",
    ];
    let rows = prop::collection::vec(prop::collection::vec(field, 0..9), 0..20);
    (header, rows).prop_map(|(header, rows)| {
        let rows: Vec<String> = rows.iter().map(|r| r.join(",")).collect();
        format!("{header}\n{}\n", rows.join("\n"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in prop_oneof!["\\PC{0,200}", table(), "\\{.{0,100}"]) {
        if let Err(e) = Trace::parse("t", &text, 1) {
            prop_assert!(!e.to_string().is_empty());
        }
    }

    #[test]
    fn no_text_makes_the_reader_of_clusters_panic(text in "[a-z_.=\\[\\]{}0-9\n -]{0,120}") {
        let _ = Cluster::parse(&text).map_err(|e: ClusterError| e.to_string());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_runs_every_cell_of_any_trace_once(
        lines in prop::collection::vec(line(), 1..25),
        nodes in prop_oneof![Just(0u32), 3u32..6],
        seed in 0u64..1000,
    ) {
        let trace = Trace::parse("t", &lines.join("\n"), seed).expect("the lines are cells");
        let cluster = Cluster { nodes, ..Cluster::default() }.sized_for(&trace);
        prop_assert_eq!(cluster.fits(&trace), Ok(()));
        let checked = hop_sim::policy::run_checked(&trace, &cluster, seed);
        prop_assert_eq!(checked.cells.len(), trace.cells());
        for policy in Policy::all() {
            let r = hop_sim::run(policy, &trace, &cluster, seed);
            let seen: Vec<_> = r.cells.iter().map(|c| (c.session, c.cell)).collect();
            let all: Vec<_> = (0..).zip(&trace.sessions)
                .flat_map(|(s, session)| (0..session.cells.len() as u32).map(move |c| (s, c)))
                .collect();
            prop_assert_eq!(seen, all, "{}", policy);
            let s = r.summary(&trace);
            let shares = [s.held_saving_share, s.provisioned_saving_share].map(Option::unwrap_or_default);
            for n in [s.antt, s.stp, shares[0], shares[1], s.delay_s.max] {
                prop_assert!(n.is_finite(), "{}: {:?}", policy, s);
            }
        }
    }
}

/// All that `hop sim` writes, without the one figure that is a clock's.
fn written(trace: &Trace, cluster: &Cluster, seed: u64) -> (String, String, String) {
    let results: Vec<_> = Policy::main()
        .into_iter()
        .map(|p| hop_sim::run(p, trace, cluster, seed))
        .collect();
    let summary = Summary::new(&results, trace, cluster, seed);
    let json = serde_json::to_string_pretty(&summary).expect("a summary is JSON");
    let csv = hop_sim::csv(&results, trace, seed, &summary.config_hash);
    let html = hop_sim::report(&summary, &results, trace, &[], &[]);
    (json, csv, html)
}

#[test]
fn one_seed_gives_the_same_bytes_and_another_gives_others() {
    let trace = "synth:a,sessions=10,days=2"
        .parse::<Synth>()
        .expect("a trace")
        .trace(4);
    let cluster = Cluster::default().sized_for(&trace);
    let first = written(&trace, &cluster, 4);
    assert_eq!(first, written(&trace, &cluster, 4));
    assert_ne!(first.1, written(&trace, &cluster, 5).1);
}

#[test]
fn what_does_not_fit_is_told_and_not_tried() {
    let line = r#"{"session":"a","submit":0,"run":1,"gpus":8,"cpus":100}"#;
    let trace = Trace::parse("t", line, 1).expect("it is a cell");
    let told = Cluster::default()
        .fits(&trace)
        .expect_err("it asks for 100 cores");
    assert_eq!(
        told.to_string(),
        "session a asks for 100 cores on one node, and the cluster's nodes have 64"
    );
    let slow = Cluster::parse("[latency]\nstore_gb_s = 0.0\n").expect_err("it would take for ever");
    assert_eq!(slow.to_string(), "latency.store_gb_s is 0; it must be above 0");
    let late = "num_gpu,submit_time,duration\n1,99999999,2\n";
    assert_eq!(
        Trace::parse("t", late, 1)
            .expect_err("nobody waits so long")
            .to_string(),
        "line 2: submit_time lies more than ten years after the trace's start"
    );
}
