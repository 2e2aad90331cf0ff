//! What `hop queue` and `hop info` cost the scheduler's task when thousands of cells wait: `cargo run --release -p hop-core
//! --example queue_cost`.

use hop_core::config::{Config, PoolConfig};
use hop_core::{Core, Input, NodeFacts, ReplicaFacts, Submit};
use hop_words::id::{Incarnation, JobId};
use hop_words::need::{Class, Need};
use hop_words::time::Timestamp;
use std::time::Instant;

const CELLS: u32 = 5000;
const NODES: u32 = 100;

fn main() {
    let now = Timestamp(1_000_000);
    let mut core = Core::new(Config::default(), now);
    let mut out = Vec::new();
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 1;
    core.handle(Input::Pool(pool), now, &mut out);
    for n in 0..NODES {
        let facts = NodeFacts {
            node: format!("n{n}").as_str().into(),
            pool: "main".into(),
            gpus: 2,
            gpu_type: "".into(),
            gpu_mem_mib: 0,
            cpus: 8,
        };
        core.handle(Input::Node(facts), now, &mut out);
    }
    for k in 0..CELLS {
        let kernel = format!("k{k}");
        let up = ReplicaFacts {
            kernel: kernel.as_str().into(),
            incarnation: Incarnation(1),
            user: format!("u{}", k % 100).as_str().into(),
            account: None,
            pool: "main".into(),
            // Half of them on one node: what goes before a cell is counted there.
            node: format!("n{}", if k % 2 == 0 { 0 } else { k % NODES })
                .as_str()
                .into(),
            seat: JobId(k + 1),
            name: String::new(),
            holds: None,
            ended: None,
            waiting: Vec::new(),
            parked: None,
            fixed: None,
            standbys: Vec::new(),
            executes: None,
        };
        core.handle(Input::ReplicaUp(up), now, &mut out);
        let submit = Input::Submit(Submit {
            kernel: kernel.as_str().into(),
            cell: "c".into(),
            need: Need::gpus(1),
            class: Class::Interactive,
            print: 0,
        });
        core.handle(submit, now, &mut out);
        out.clear();
    }
    report("all waiting cells", || core.waiting().len());
    report("one user's", || core.waiting_where(|u| u.as_str() == "u7").len());
    report("their number", || core.waiting_count());
    report("all kernels", || core.kernels().len());
}

fn report(what: &str, work: impl Fn() -> usize) {
    let mut took: Vec<_> = (0..20)
        .map(|_| {
            let began = Instant::now();
            let rows = work();
            (began.elapsed(), rows)
        })
        .collect();
    took.sort();
    println!(
        "{what}: {} rows, median {:?}, worst {:?}",
        took[0].1, took[10].0, took[19].0
    );
}
