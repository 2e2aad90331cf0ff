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

#[test]
fn what_is_wrong_with_a_trace_is_told_with_its_line() {
    const HEADER: &str = "num_gpu,submit_time,duration\n";
    let cell = r#"{"session":"a","user":"ada","submit":1,"run":2,"gpus":1}"#;
    let told = |text: &str| match Trace::parse("t", text, 1) {
        Err(e) => e.to_string(),
        Ok(t) => format!("{} cells", t.cells()),
    };
    let rows = |rows: &str| told(&format!("{HEADER}{rows}"));
    let whole = "it must be a whole number, not negative";
    for (text, says) in [
        (rows(""), "the trace is empty".to_owned()),
        (rows("1,5,2\n1,nan,2\n"), format!("line 3: submit_time is \"nan\"; {whole}")),
        (rows("1,5,-2"), format!("line 2: duration is \"-2\"; {whole}")),
        (rows("1,5"), "line 2 has no field for the column duration".to_owned()),
        (rows("9,5,2"), "line 2 asks for 9 GPUs; one cell gets at most 8".to_owned()),
        (
            told("num_gpu,num_gpu,submit_time,duration\n1,4,5,2\n"),
            "line 1 names the column num_gpu twice".to_owned(),
        ),
        (
            told("1,5,2\n"),
            "line 1 names no column num_gpu: a table's first line names num_gpu, submit_time and duration, separated by \
             commas; JSON lines begin with a brace"
                .to_owned(),
        ),
        (
            told(&format!("{cell}\n{}\n", cell.replace("gpus", "gpu"))),
            "line 2 is not a cell in JSON: unknown field `gpu`, expected one of `v`, `session`, `user`, `account`, \
             `submit`, `run`, `gpus`, `cpus`, `print`, in column 52 of the line"
                .to_owned(),
        ),
        (
            told(&format!("{cell}\n{}\n", cell.replace("ada", "bob"))),
            "line 2: session \"a\" belonged to another user in a line before".to_owned(),
        ),
        (
            told(&format!("{cell}\n{}", " ".repeat(2 << 20))),
            "line 2 is longer than 1 MiB".to_owned(),
        ),
    ] {
        assert_eq!(text, says);
    }
    // What is right, however it is written.
    for text in [
        rows("0,5,0\r\n8,5,2\r\n"),
        told(&format!("\u{feff}{HEADER}1,5,2\n1,5,2")),
        told(&format!("\u{feff}{cell}\r\n{cell}\r\n")),
    ] {
        assert_eq!(text, "2 cells");
    }
}

#[test]
fn cells_of_weeks_that_wait_for_weeks_cost_next_to_nothing() {
    let lines: Vec<String> = (0..6)
        .map(|i| format!(r#"{{"session":"s{i}","submit":{i},"run":1e6,"gpus":8}}"#))
        .collect();
    let trace = Trace::parse("t", &lines.join("\n"), 1).expect("the lines are cells");
    let cluster = Cluster::parse("nodes = 3").expect("a cluster");
    for policy in ["ours", "ours-no-migration", "ours-no-scaling"] {
        let r = hop_sim::run(policy.parse().expect("a policy's name"), &trace, &cluster, 1);
        let s = r.summary(&trace);
        assert_eq!(r.cells.len(), 6, "{policy}");
        assert!(s.held_saving_share.is_none(), "nothing could be saved: {s:?}");
        // -0.0 is no number of hours.
        assert!(s.gpu_hours_burst.is_sign_positive(), "{policy}");
        assert!((1e6..1.1e6).contains(&s.delay_s.max), "{policy}: {:?}", s.delay_s);
    }
}
