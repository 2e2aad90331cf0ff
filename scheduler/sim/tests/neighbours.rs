//! A batch queue beside the pool: it gets what pilots leave, and a pilot gets its GPUs from it.

use hop_sim::cluster::BatchQueue;
use hop_sim::metrics::{BatchResult, PolicySummary};
use hop_sim::{Cluster, Synth, Trace};
use hop_words::time::Span;

fn trace() -> Trace {
    let synth: Synth = "synth:a,sessions=12,days=2".parse().expect("a trace");
    synth.trace(3)
}

fn run(batch: Option<BatchQueue>) -> (PolicySummary, Cluster) {
    let trace = trace();
    let cluster = Cluster {
        batch,
        ..Cluster::default()
    };
    let cluster = cluster.sized_for(&trace);
    let ours = "ours".parse().expect("a policy");
    (hop_sim::run(ours, &trace, &cluster, 1).summary(&trace), cluster)
}

fn beside(queue: BatchQueue) -> (PolicySummary, BatchResult, f64) {
    let (summary, cluster) = run(Some(queue));
    let batch = summary.batch.expect("jobs ran");
    // From the first opening to the end of all.
    let hours = trace().end().0 as f64 / 3.6e9 + 72.0;
    (summary, batch, f64::from(cluster.gpus()) * hours)
}

#[test]
fn jobs_that_yield_get_what_pilots_leave_and_lose_what_they_had_done() {
    let (alone, _) = run(None);
    assert_eq!(alone.batch, None);
    let yields = BatchQueue {
        yields: Some(Span::from_secs(30)),
        ..BatchQueue::default()
    };
    let (summary, batch, all) = beside(yields.clone());
    assert!(batch.requeued > 0 && batch.requeued < batch.jobs, "{batch:?}");
    assert!(
        batch.gpu_hours_done > 0.0 && batch.gpu_hours_lost > 0.0,
        "{batch:?}"
    );
    let busy = batch.gpu_hours_done + batch.gpu_hours_lost + summary.gpu_hours_provisioned;
    assert!(busy < all, "{busy} GPU-hours of {all}");
    // Each pilot waits for its GPUs.
    assert!(
        summary.delay_s.p99 > alone.delay_s.p99 + 20.0,
        "{:?}",
        summary.delay_s
    );
    let (_, kept, _) = beside(BatchQueue {
        checkpoint: Some(Span::from_secs(60)),
        ..yields
    });
    assert!(kept.gpu_hours_lost < batch.gpu_hours_lost / 2.0, "{kept:?}");
}

#[test]
fn pilots_wait_for_jobs_that_are_not_stopped() {
    let (summary, batch, _) = beside(BatchQueue::default());
    assert_eq!((batch.requeued, batch.gpu_hours_lost), (0, 0.0));
    assert!(summary.delay_s.max > 600.0, "{:?}", summary.delay_s);
}

#[test]
fn a_queue_that_makes_no_sense_is_refused_by_its_key() {
    for (file, says) in [
        (
            "[batch]\ngpus = 9",
            "batch.gpus is 9; it must be from 1 to gpus_per_node",
        ),
        (
            "[batch]\nrun = { p50 = 1.0, p99 = 60.0 }",
            "batch.run is 1; it must be from 60 to 864000",
        ),
        (
            "[batch]\nyields_s = 1e6",
            "batch.yields_s is 1000000; it must be from 0 to 86400",
        ),
    ] {
        let told = Cluster::parse(file).map_or_else(|e| e.to_string(), |c| format!("{c:?}"));
        assert_eq!(told, says, "{file}");
    }
    let read = Cluster::parse("[batch]\nyields_s = 30\ncheckpoint_s = 600").expect("a cluster");
    let queue = read.batch.clone().expect("a queue");
    assert_eq!((queue.gpus, queue.yields), (1, Some(Span::from_secs(30))));
    // As a sweep writes it and reads it again.
    assert_eq!(read.with("batch.yields_s", 30.0).expect("a cluster"), read);
}

#[test]
fn the_measured_times_are_a_cluster_file() {
    let measured = Cluster::parse(include_str!("../../../docs/simulation/measured.toml")).expect("a cluster");
    let assumed = Cluster::default();
    assert_ne!(measured.latency.replica, assumed.latency.replica);
    assert_eq!(measured.latency.pilot, assumed.latency.pilot);
}
