//! Traces that nobody has looked at: whatever the text, a message and no panic; whatever the cells, every policy runs
//! each of them once, the core stays sane, and one seed gives the same bytes.

use hop_sim::cluster::{BatchQueue, BurstNodes, ClusterError, Dist};
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

/// Traces of batch jobs, with what hostile or broken ones have in them.
fn jobs() -> impl Strategy<Value = String> {
    let header = prop_oneof![
        Just("job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"),
        Just(
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
        ),
        Just("JobID|User|Account|Submit|ElapsedRaw|AllocTRES"),
        Just("JobID|User|Submit|Elapsed|ReqTRES"),
        Just("; SWF"),
        Just("duration,submit_time,user,gpu_num"),
    ];
    let field = prop_oneof![
        8 => (-1i32..20).prop_map(|n| n.to_string()),
        3 => (0u32..60).prop_map(|n| format!("2020-06-09 18:{n:02}:01")),
        2 => Just("gres/gpu=1".to_owned()),
        1 => Just("gres/gpu:a=18446744073709551615,gres/gpu:b=9".to_owned()),
        1 => prop_oneof![Just(""), Just("1e308"), Just("-1e308"), Just("nan"), Just("inf"), Just("18446744073709551615"),
                         Just("9999-12-31 23:59:59"), Just("None"), Just("Unknown"), Just("\"")].prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ];
    let rows = prop::collection::vec(prop::collection::vec(field, 0..20), 0..12);
    let separator = prop_oneof![Just(","), Just("|"), Just(" ")];
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\n\n")];
    (header, rows, separator, end).prop_map(|(header, rows, separator, end)| {
        let rows: Vec<String> = rows.iter().map(|r| r.join(separator)).collect();
        format!("{header}{end}{}{end}", rows.join(end))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in prop_oneof!["\\PC{0,200}", table(), jobs(), "[\\{\\[].{0,100}"]) {
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
    for (file, sentence) in [
        ("replicas = 65535", "replicas is 65535; it must be from 1 to 9"),
        (
            "gpus_per_node = 65",
            "gpus_per_node is 65; it must be from 1 to 64",
        ),
    ] {
        let error = Cluster::parse(file).expect_err("it would take for ever");
        assert_eq!(error.to_string(), sentence);
    }
    let slow = Cluster::parse("[latency]\nstore_gb_s = 0.0\n").expect_err("it would take for ever");
    assert_eq!(
        slow.to_string(),
        "latency.store_gb_s is 0; it must be above 0, and finite"
    );
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
             commas; JSON lines begin with a brace; docs/trace-format.md has the other forms"
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

fn jsonl(cells: &[(&str, f64, f64, u16, u16)]) -> Trace {
    let line = |&(session, submit, run, gpus, cpus): &(&str, f64, f64, u16, u16)| {
        serde_json::json!({"session": session, "submit": submit, "run": run, "gpus": gpus, "cpus": cpus})
            .to_string()
    };
    let lines: Vec<String> = cells.iter().map(line).collect();
    Trace::parse("t", &lines.join("\n"), 1).expect("the lines are cells")
}

fn summary(policy: &str, trace: &Trace, cluster: &Cluster) -> hop_sim::metrics::PolicySummary {
    let r = hop_sim::run(policy.parse().expect("a policy's name"), trace, cluster, 1);
    assert_eq!(r.cells.len(), trace.cells(), "{policy}");
    r.summary(trace)
}

#[test]
fn what_is_shared_is_held_until_the_last_cell_is_over() {
    // Twelve GPUs are wanted for an hour where there are four.
    let trace = jsonl(&[
        ("a", 0.0, 3600.0, 4, 0),
        ("b", 0.0, 3600.0, 4, 0),
        ("c", 0.0, 3600.0, 4, 0),
    ]);
    let cluster = Cluster::parse("nodes = 1\ngpus_per_node = 4\n").expect("a cluster");
    for policy in ["time-slicing", "partitioning"] {
        let s = summary(policy, &trace, &cluster);
        assert!((11.9..13.0).contains(&s.gpu_hours_held), "{policy}: {s:?}");
        assert!(s.gpu_hours_used <= s.gpu_hours_held, "{policy}: {s:?}");
        assert!(s.gpu_hours_provisioned >= s.gpu_hours_held, "{policy}: {s:?}");
    }
}

#[test]
fn a_pause_of_a_year_is_no_standstill() {
    let year = 365.0 * 86_400.0;
    let trace = jsonl(&[("a", 0.0, 1.0, 1, 1), ("a", year, 1.0, 1, 1)]);
    let cluster = Cluster::parse("nodes = 1\n").expect("a cluster");
    let s = summary("ours", &trace, &cluster);
    assert!(s.delay_s.max < 60.0, "{s:?}");
}

#[test]
fn a_cell_for_all_of_a_nodes_cores_runs_though_they_are_no_multiple_of_its_gpus() {
    let trace = jsonl(&[("a", 0.0, 5.0, 8, 9), ("a", 10.0, 5.0, 1, 9)]);
    let cluster = Cluster::parse("nodes = 4\ncpus_per_node = 9\n").expect("a cluster");
    let s = summary("ours", &trace, &cluster);
    assert!(s.delay_s.max < 60.0, "{s:?}");
}

#[test]
fn latencies_of_hours_and_of_nothing_are_lived_through() {
    let trace = jsonl(&[
        ("a", 0.0, 5.0, 1, 0),
        ("b", 1.0, 5.0, 8, 0),
        ("a", 3.0, 5.0, 8, 0),
    ]);
    for latency in [
        "lease = { p50 = 3000.0, p99 = 7200.0 }",
        "lease = { p50 = 1e-6, p99 = 86400.0 }",
        "pilot = { p50 = 7200.0, p99 = 14400.0 }\nreplica = { p50 = 3600.0, p99 = 7200.0 }",
        "host_mean = 0.0\nhost_sd = 0.0",
        "lease = { p50 = 0.0, p99 = 0.0 }\nmessage = { p50 = 0.0, p99 = 0.0 }\npilot = { p50 = 0.0, p99 = 0.0 }",
    ] {
        let file = format!("nodes = 1\n[latency]\n{latency}\n");
        let cluster = Cluster::parse(&file).expect("a cluster");
        for policy in Policy::main() {
            summary(&policy.to_string(), &trace, &cluster);
        }
    }
}

#[test]
fn a_replica_is_not_moved_from_under_the_cell_that_it_runs() {
    // Its pilots go and come at once, so a move is often overtaken by the pilot of the node that it leaves.
    let table: Vec<String> = (0..40)
        .map(|i| format!("{},{},{}", [1, 8, 1][i % 3], 7 * i, 300))
        .collect();
    let text = format!(
        "num_gpu,submit_time,duration\n{}\n{}\n",
        table.join("\n"),
        table.join("\n")
    );
    let cluster = Cluster::parse(
        "nodes = 1\n[latency]\nreplica = { p50 = 0.05, p99 = 3600.0 }\nlease = { p50 = 0.0, p99 = 0.0 }\n\
         [[burst]]\npartition = \"b\"\nnodes = 5\nboot = { p50 = 0.05, p99 = 100.0 }\nprice = 2.5\n",
    )
    .expect("a cluster");
    for seed in 0..12 {
        let trace = Trace::parse("t", &text, seed).expect("a table");
        let r = hop_sim::run("ours".parse().expect("a policy"), &trace, &cluster, seed);
        let s = r.summary(&trace);
        assert!(s.gpu_hours_used <= s.gpu_hours_held, "seed {seed}: {s:?}");
    }
}

#[test]
fn hosts_of_notebookos_have_no_more_gpus_than_they_have() {
    // Overflows where a host that goes is given back more than it lent.
    let synth: Synth = "synth:b,sessions=120,days=10".parse().expect("a trace");
    let trace = synth.trace(3);
    let cluster = Cluster::default().sized_for(&trace);
    summary("notebookos", &trace, &cluster);
}

#[test]
fn numbers_that_make_no_sense_are_refused_by_their_key() {
    for (file, says) in [
        (
            "[policy.scale]\nimmediate = nan",
            "policy.scale.immediate is NaN; it must be from 0 to 1",
        ),
        (
            "[policy.scale]\nmost_per_wait = inf",
            "policy.scale.most_per_wait is inf; it must be from 0 to 1000000000000",
        ),
        (
            "[policy.scale]\ntoo_small = -0.1",
            "policy.scale.too_small is -0.1; it must be from 0 to 1",
        ),
        (
            "[policy]\nparkable = nan",
            "policy.parkable is NaN; it must be from 0 to 1",
        ),
        (
            "[policy.quantum]\nbatch_s = 9223372036854775807",
            "the cluster file is not as it should be",
        ),
        (
            "[policy.linger]\nmost_s = -1",
            "the cluster file is not as it should be",
        ),
        (
            "[latency]\nstore_gb_s = inf",
            "latency.store_gb_s is inf; it must be above 0, and finite",
        ),
        (
            "[latency]\nlease = { p50 = nan, p99 = 1.0 }",
            "latency.lease is NaN; it must be from 0 to 86400",
        ),
        (
            "nodes = 2\nreplicas = 3",
            "a kernel can't have 3 replicas on 2 nodes: replicas must be at least 1, and each has a node of its own",
        ),
    ] {
        let told = Cluster::parse(file).map_or_else(|e| e.to_string(), |c| format!("{c:?}"));
        assert!(told.starts_with(says), "{file}: {told}");
    }
    // What a small cluster's file need not say.
    let small = Cluster::parse("nodes = 2\ngpus_per_node = 4\n").expect("a cluster");
    assert_eq!(small.replicas, 1);
}

#[test]
fn a_sessions_name_stays_in_its_field() {
    let trace = jsonl(&[("a,\"b\"", 0.0, 1.0, 1, 0)]);
    let cluster = Cluster::default().sized_for(&trace);
    let r = hop_sim::run("bound".parse().expect("a policy"), &trace, &cluster, 1);
    let table = hop_sim::csv(&[r], &trace, 1, "h");
    assert!(table.contains("bound,1,h,\"a,\"\"b\"\"\",0,1,"), "{table}");
}

/// More cells of all sizes than a few nodes can serve: pilots of each size come and go all the time.
struct Overrun {
    sessions: usize,
    cells: usize,
    /// Within these seconds the sessions begin.
    seconds: f64,
    /// Medians of a cell's run and of the time until the next; seconds.
    run: f64,
    think: f64,
    most_gpus: u16,
}

impl Overrun {
    fn trace(&self, seed: u64) -> Trace {
        let mut rng = hop_sim::rng::Rng::new(seed, 0xFA31);
        let mut lines = Vec::new();
        for session in 0..self.sessions {
            let gpus = rng
                .weighted(&[(1, 6.0), (2, 3.0), (4, 2.0), (8, 1.0)])
                .min(self.most_gpus);
            let mut at = rng.unit() * self.seconds;
            for _ in 0..self.cells {
                let run = rng.lognormal(self.run.ln(), 1.2);
                lines.push(format!(
                    r#"{{"session":"s{session}","user":"u{}","submit":{at},"run":{run},"gpus":{gpus}}}"#,
                    session % 8
                ));
                at += run + rng.lognormal(self.think.ln(), 1.2);
            }
        }
        Trace::parse("overrun", &lines.join("\n"), 1).expect("it is a trace")
    }
}

/// Cells of eight GPUs once waited for ever, behind pilots of one GPU that nobody used.
#[test]
fn few_nodes_are_overrun_with_cells_of_all_sizes() {
    for (nodes, sessions, cells, seconds) in [(1, 24, 12, 7200.0), (1, 16, 10, 3600.0), (2, 40, 12, 7200.0)] {
        for seed in 1..=3 {
            let overrun = Overrun {
                sessions,
                cells,
                seconds,
                run: 180.0,
                think: 300.0,
                most_gpus: 8,
            };
            let trace = overrun.trace(seed);
            let cluster = Cluster {
                nodes,
                ..Cluster::default()
            };
            let result = hop_sim::run("ours".parse().expect("a policy"), &trace, &cluster, seed);
            assert_eq!(result.cells.len(), trace.cells());
        }
    }
}

/// A small cluster of any kind, overrun: the parts of the policy, replicas, burst nodes and batch jobs by chance.
fn small_cluster(seed: u64) -> (Policy, Trace, Cluster) {
    let mut rng = hop_sim::rng::Rng::new(seed, 0xB0B);
    let policies = [
        "",
        "",
        "-no-migration",
        "-no-learning",
        "-no-packing",
        "-no-linger",
        "-parking",
    ];
    let policy = format!("ours{}", rng.weighted(&policies.map(|p| (p, 1.0))));
    let burst = BurstNodes {
        partition: "burst".into(),
        nodes: 1,
        boot: Dist::new(90.0, 200.0),
        price: 1.0,
    };
    let nodes = rng.weighted(&[(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]);
    let cluster = Cluster {
        nodes,
        gpus_per_node: rng.weighted(&[(1, 1.0), (2, 1.0), (4, 1.0), (8, 3.0)]),
        replicas: rng.weighted(&[(1, 2.0), (nodes.min(3) as u16, 1.0)]),
        burst: if rng.unit() < 0.25 { vec![burst] } else { vec![] },
        batch: (rng.unit() < 0.2).then(BatchQueue::default),
        ..Cluster::default()
    };
    let overrun = Overrun {
        sessions: 5 + (rng.unit() * 35.0) as usize,
        cells: 3 + (rng.unit() * 17.0) as usize,
        seconds: rng.lognormal(7200.0f64.ln(), 1.0),
        run: rng.lognormal(300.0f64.ln(), 1.5),
        think: rng.lognormal(200.0f64.ln(), 1.5),
        most_gpus: cluster.gpus_per_node,
    };
    let policy = policy.parse().expect("a policy");
    (policy, overrun.trace(seed), cluster)
}

/// A pilot that is started where its cell may not run is a job in vain, and is started again as soon as it has ended.
#[test]
fn a_small_cluster_of_any_kind_serves_all_cells_with_few_pilots() {
    // The first and the last two once stood still, or started dozens of pilots for each cell.
    for seed in [2, 3, 5, 8, 43, 583] {
        let (policy, trace, cluster) = small_cluster(seed);
        let cluster = cluster.sized_for(&trace);
        let result = hop_sim::run(policy, &trace, &cluster, seed);
        assert_eq!(result.cells.len(), trace.cells());
        let each = result.pilots as f64 / trace.cells() as f64;
        assert!(each < 4.0, "seed {seed}, {policy}: {each} pilots for each cell");
    }
}
