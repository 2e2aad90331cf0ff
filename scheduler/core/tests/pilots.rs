//! Pilots that are asked for and don't come: nobody is left waiting for them.

use crate::world::{World, facts, on_demand};
use hop_core::config::{Burst, Config, Migrate, PoolConfig, Scale};
use hop_core::{Input, NodeFacts, Output, PoolOffers};
use hop_words::id::{GpuType, JobId, KernelId, NodeName};
use hop_words::lease::EndCause;
use hop_words::need::Need;
use hop_words::time::Span;

/// A partition of two nodes that boot.
fn cloud() -> Vec<Burst> {
    vec![Burst {
        partition: "cloud".into(),
        max_pilots: 2,
        boot: Span::from_secs(30),
        price: 1.0,
    }]
}

fn name_cloud(w: &mut World) {
    for node in ["b0", "b1"] {
        w.tell(Input::BurstNode {
            facts: facts(node),
            partition: "cloud".into(),
        });
    }
}

/// A pool with so many pilots of its own, and two that boot.
fn bursting(own: u32, right_size: bool) -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = own;
    pool.migrate = Some(Migrate::default());
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        right_size,
        idle_max: Span::from_secs(60),
        ..Scale::default()
    });
    pool.burst = cloud();
    pool
}

/// Nodes of two GPUs: one or more of the pool's own, and two that boot.
fn world(own: u32, right_size: bool) -> World {
    let mut w = World::new(1, Config::default(), bursting(own, right_size));
    for n in 0..own {
        w.tell(Input::Node(facts(&format!("n{n}"))));
    }
    name_cloud(&mut w);
    w
}

/// Four kernels on the node of the pool's own, all of which the first one's cell has, for long and expected to go on.
fn behind_a_long_run(w: &mut World) -> Vec<KernelId> {
    w.pilot("n0", 2, 8);
    let kernels: Vec<_> = (0..4)
        .map(|i| w.kernel(&format!("k{i}"), &format!("u{i}"), &["n0"], 1))
        .collect();
    w.submit(&kernels[0], Need::gpus(2));
    w.settle();
    // It runs for long, and is expected to go on.
    w.pass(Span::from_secs(3600));
    kernels
}

/// The pilots asked for: their tickets and nodes.
fn asked(out: &[Output]) -> Vec<(u64, Option<NodeName>)> {
    let asked = |o: &Output| match o {
        Output::SubmitPilot { ticket, node, .. } => Some((*ticket, node.clone())),
        _ => None,
    };
    out.iter().filter_map(asked).collect()
}

/// Slurm has it in its queue.
fn queued(w: &mut World, ticket: u64) {
    let job = JobId(7000 + ticket as u32);
    assert_eq!(w.tell(Input::PilotQueued { ticket, job }), []);
}

#[test]
fn a_pilot_without_room_is_cancelled_and_its_cell_takes_what_is_there() {
    let mut w = world(1, true);
    let k = w.kernel("k", "ada", &["n0"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    let (ticket, node) = asked(&out)[0].clone();
    assert_eq!(node.as_ref().map(NodeName::as_str), Some("n0"));
    queued(&mut w, ticket);
    // One that nobody here asked for has the node's GPUs: that of an earlier daemon.
    let (_, out) = w.pilot_up("n0", 2, 8);
    assert!(
        matches!(
            &out[..],
            [
                Output::Record(_),
                Output::StartLease(_),
                Output::CancelPilot { ticket: t, job: Some(JobId(7001)) },
            ] if *t == ticket
        ),
        "{out:?}"
    );
}

#[test]
fn an_idle_pilot_kept_for_others_makes_room_for_a_due_cell() {
    // Kernels don't move, and pilots are as large as the need: neither of n0's two can lend both GPUs.
    let mut w = World::new(1, Config::default(), on_demand(2, 1));
    w.tell(Input::Node(facts("n0")));
    w.pilot("n0", 1, 4);
    w.pilot("n0", 1, 4);
    let kernel = |w: &mut World, (name, gpus)| w.kernel(name, name, &["n0"], gpus);
    let [one, two, large, later] =
        [("one", 1), ("two", 1), ("large", 2), ("later", 1)].map(|k| kernel(&mut w, k));
    let [first, second] = [&one, &two].map(|k| w.submit(k, Need::gpus(1)).0);
    w.settle();
    w.submit(&large, Need::gpus(2));
    w.pass(Span::from_secs(4 * 3600 - 1));
    w.end_cell(&one, &first);
    // It gets the idle lease's GPU, which is being taken back when the large one falls due.
    w.submit(&later, Need::gpus(1));
    w.pass(Span::from_secs(2));
    w.end_cell(&two, &second);
    for _ in 0..40 {
        w.settle();
        w.pass(Span::from_secs(15));
    }
    assert_eq!(w.asked.len(), 1, "{:?}", w.core.waiting());
}

#[test]
fn a_pilot_that_is_late_is_not_waited_for() {
    let mut w = world(2, true);
    w.pilot("n1", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    queued(&mut w, asked(&out)[0].0);
    // Somebody's job has the GPUs of its node.
    let mut moves = Vec::new();
    for _ in 0..20 {
        let out = w.pass(Span::from_secs(5));
        moves.extend(out.into_iter().filter(|o| matches!(o, Output::Migrate { .. })));
        let wait = w.core.waiting()[0].estimate.expect("a move or a pilot comes");
        assert!(
            moves.len() == 1 || wait > Span::ZERO,
            "nothing is as good as there"
        );
    }
    let [Output::Migrate { seat, .. }] = &moves[..] else {
        panic!("{moves:?}")
    };
    assert_eq!(seat.node.as_str(), "n1");
}

#[test]
fn pilots_that_fail_one_after_the_other_are_not_waited_for() {
    let mut w = world(2, true);
    w.pilot("n1", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    let mut next = asked(&out);
    let mut moves = Vec::new();
    for _ in 0..20 {
        let mut out = w.pass(Span::from_secs(2));
        if let Some((ticket, node)) = next.pop() {
            assert_eq!(node.as_ref().map(NodeName::as_str), Some("n0"));
            let reason = "its job ended before its agent was up".into();
            out.extend(w.tell(Input::PilotFailed { ticket, reason }));
        }
        out.extend(w.pass(Span::from_secs(8)));
        next.extend(asked(&out));
        moves.extend(out.into_iter().filter(|o| matches!(o, Output::Migrate { .. })));
    }
    let [Output::Migrate { seat, .. }] = &moves[..] else {
        panic!("{moves:?}")
    };
    assert_eq!(seat.node.as_str(), "n1");
}

#[test]
fn each_who_waits_has_a_burst_pilot_of_its_own_on_a_node_with_room() {
    let mut w = world(1, true);
    let kernels = behind_a_long_run(&mut w);
    let mut burst = |k: usize, gpus| asked(&w.submit(&kernels[k], Need::gpus(gpus)).1);
    let on = |ticket, node: &str| vec![(ticket, Some(NodeName::from(node)))];
    assert_eq!(burst(1, 1), on(1, "b0"));
    assert_eq!(burst(2, 2), on(2, "b1"));
    // The first node has room beside the first.
    assert_eq!(burst(3, 1), on(3, "b0"));
}

#[test]
fn no_burst_pilot_is_started_for_a_kernel_that_cant_move() {
    let mut w = world(1, true);
    let kernels = behind_a_long_run(&mut w);
    w.tell(Input::KernelFixed {
        kernel: kernels[1].clone(),
        why: Some("its state is not saved".into()),
    });
    let (_, out) = w.submit(&kernels[1], Need::gpus(1));
    assert_eq!(asked(&out), []);
    assert_eq!(asked(&w.pass(Span::from_secs(600))), []);
}

/// Slurm gives each pilot a GPU too few for its cell, which waits on. The pilots are idle, and given back.
#[test]
fn pilots_that_dont_help_a_cell_come_ever_more_rarely() {
    let mut w = world(1, true);
    let k = w.kernel("k", "ada", &["n0"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    let mut next = asked(&out);
    let mut when = Vec::new();
    for second in 0..1800 {
        let mut out = w.pass(Span::from_secs(1));
        for (ticket, _) in std::mem::take(&mut next) {
            when.push(second);
            let job = JobId(w.next_job + 1);
            out.extend(w.tell(Input::PilotQueued { ticket, job }));
            out.extend(w.pilot_up("n0", 1, 4).1);
        }
        let drained: Vec<JobId> = w
            .agents
            .iter()
            .filter(|(_, a)| a.draining)
            .map(|(j, _)| *j)
            .collect();
        for pilot in drained {
            w.agents.remove(&pilot);
            let cause = hop_words::lease::EndCause::Done;
            out.extend(w.tell(Input::PilotLost { pilot, cause }));
        }
        next.extend(asked(&out));
    }
    let pauses: Vec<i32> = when.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(pauses[..2].iter().all(|p| *p < 10), "{pauses:?}");
    assert!(pauses[7..].iter().all(|p| (320..340).contains(p)), "{pauses:?}");
    assert_eq!(pauses.len(), 11, "{pauses:?}");
}

#[test]
fn one_whole_burst_pilot_serves_as_many_as_fit() {
    let mut w = world(1, false);
    let kernels = behind_a_long_run(&mut w);
    let mut burst = |k: usize, gpus| asked(&w.submit(&kernels[k], Need::gpus(gpus)).1).len();
    assert_eq!([burst(1, 1), burst(2, 1)], [1, 0]);
}

/// The pilot is up before the kernel for whose cell it was started. No other kernel moves there in vain, and the pilot isn't
/// given back as idle.
#[test]
fn a_pilot_started_for_a_kernel_on_its_way_waits_for_it() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 2;
    pool.migrate = Some(Migrate {
        ahead: false,
        ..Migrate::default()
    });
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        idle_min: Span::from_secs(2),
        idle_max: Span::from_secs(2),
        ..Scale::default()
    });
    let mut w = World::new(1, Config::default(), pool);
    for n in 0..2 {
        w.tell(Input::Node(facts(&format!("n{n}"))));
    }
    w.pilot("n0", 2, 8);
    let [long, goer, late] = ["long", "goer", "late"].map(|name| w.kernel(name, name, &["n0"], 2));
    let (cell, _) = w.submit(&late, Need::gpus(2));
    w.settle();
    w.pass(Span::from_secs(600));
    w.end_cell(&late, &cell);
    w.settle();
    w.submit(&long, Need::gpus(2));
    w.settle();
    w.pass(Span::from_secs(3600));
    w.settle();
    let (_, out) = w.submit(&goer, Need::gpus(2));
    let (ticket, node) = asked(&out)[0].clone();
    assert_eq!(node.as_ref().map(NodeName::as_str), Some("n1"));
    // It has had more than `goer`, and comes later.
    w.submit(&late, Need::gpus(2));
    let job = JobId(w.next_job + 1);
    w.tell(Input::PilotQueued { ticket, job });
    assert_eq!(w.pilot("n1", 2, 8), job);
    w.settle();
    for _ in 0..3 {
        w.pass(Span::from_secs(5));
    }
    assert!(!w.agents[&job].draining, "it was given back");
    assert_eq!(w.migrations.len(), 1, "{:?}", w.migrations);
    assert!(w.move_replica());
    w.settle();
    assert!(
        w.running.keys().any(|(k, _)| *k == goer),
        "{:?}",
        w.core.waiting()
    );
}

/// A kernel is on its way to an idle pilot, and somebody without a pilot asks for one, beyond what the pool may have.
#[test]
fn a_pilot_that_a_kernel_is_on_its_way_to_gives_way_to_no_other() {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = 2;
    pool.migrate = Some(Migrate {
        ahead: false,
        ..Migrate::default()
    });
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        ..Scale::default()
    });
    let mut w = World::new(1, Config::default(), pool);
    for n in 0..3 {
        w.tell(Input::Node(facts(&format!("n{n}"))));
    }
    w.pilot("n0", 2, 8);
    let [long, goer] = ["long", "goer"].map(|name| w.kernel(name, name, &["n0"], 2));
    w.submit(&long, Need::gpus(2));
    w.settle();
    w.pass(Span::from_secs(3600));
    w.pilot("n1", 2, 8);
    let (_, mut out) = w.submit(&goer, Need::gpus(2));
    out.extend(w.pass(Span::from_secs(5)));
    let moves = |out: &[Output]| out.iter().any(|o| matches!(o, Output::Migrate { .. }));
    assert!(moves(&out), "{out:?}");
    let other = w.kernel("other", "other", &["n2"], 2);
    let (_, out) = w.submit(&other, Need::gpus(2));
    let drained = |o: &Output| matches!(o, Output::DrainPilot { .. });
    assert!(!out.iter().any(drained), "{out:?}");
    w.core.sanity_check().unwrap();
    assert!(w.move_replica(), "the move is done");
    w.settle();
    assert!(w.running.keys().any(|(k, _)| *k == goer));
    w.core.sanity_check().unwrap();
}

/// Nodes of two GPUs, pilots as large as the needs that are learnt, and at most so many GPUs in pilots.
fn learning(most: u32) -> PoolConfig {
    let mut pool = PoolConfig::fixed("main", 0, 2, 8);
    pool.max_pilots = most / 2;
    pool.scale = Some(Scale {
        learn: true,
        right_size: true,
        spares: 0,
        ..Scale::default()
    });
    pool
}

/// A kernel on n0 whose last three cells had both GPUs of the node. The pilot is gone since.
fn after_large_cells(w: &mut World) -> KernelId {
    let pilot = w.pilot("n0", 2, 8);
    let k = w.kernel("k", "ada", &["n0"], 0);
    for _ in 0..3 {
        let (cell, _) = w.submit(&k, Need::gpus(2));
        w.settle();
        w.pass(Span::from_secs(60));
        w.end_cell(&k, &cell);
    }
    w.pass(Span::from_secs(2));
    w.settle();
    w.agents.remove(&pilot);
    let cause = EndCause::Done;
    w.tell(Input::PilotLost { pilot, cause });
    k
}

/// A cell of somebody else's has a pilot of so many GPUs on the node, for long.
fn lent(w: &mut World, node: &str, gpus: u16) {
    w.pilot(node, gpus, 4 * gpus);
    let k = w.kernel(&format!("on-{node}"), &format!("user-of-{node}"), &[node], 0);
    w.submit(&k, Need::gpus(gpus));
    w.settle();
    w.pass(Span::from_secs(3600));
}

/// The nodes and sizes of the pilots asked for.
fn sizes(out: &[Output]) -> Vec<(&str, Option<u16>)> {
    let mut asked = Vec::new();
    for o in out {
        if let Output::SubmitPilot {
            node: Some(node),
            gpus,
            ..
        } = o
        {
            asked.push((node.as_str(), *gpus));
        }
    }
    asked
}

#[test]
fn a_small_cell_of_a_kernel_with_large_ones_takes_the_room_there_is() {
    let world = |most, node| {
        let mut w = World::new(1, Config::default(), learning(most));
        (0..2).for_each(|n| _ = w.tell(Input::Node(facts(&format!("n{n}")))));
        let k = after_large_cells(&mut w);
        lent(&mut w, node, 1);
        (w, k)
    };
    // Half of the kernel's node is free, or half of what the pool may have.
    for (most, node) in [(4, "n0"), (2, "n1")] {
        let (mut w, k) = world(most, node);
        let (_, out) = w.submit(&k, Need::gpus(1));
        assert_eq!(sizes(&out), [("n0", Some(1))], "{out:?}");
        w.pilot("n0", 1, 4);
        w.settle();
        assert_eq!(w.running.len(), 2);
    }
    // With room for the likely next cell, the pilot is as large as that.
    let (mut w, k) = world(4, "n1");
    let (_, out) = w.submit(&k, Need::gpus(1));
    assert_eq!(sizes(&out), [("n0", None)]);
}

#[test]
fn a_small_cell_of_a_kernel_with_large_ones_bursts_where_room_is() {
    let mut pool = learning(2);
    pool.migrate = Some(Migrate::default());
    pool.burst = cloud();
    let mut w = World::new(1, Config::default(), pool);
    w.tell(Input::Node(facts("n0")));
    name_cloud(&mut w);
    let k = after_large_cells(&mut w);
    for (node, gpus) in [("n0", 2), ("b0", 1), ("b1", 1)] {
        lent(&mut w, node, gpus);
    }
    let (_, out) = w.submit(&k, Need::gpus(1));
    assert_eq!(sizes(&out), [("b0", Some(1))], "{out:?}");
}

/// The types of the pilots asked for on the node.
fn types_asked(out: &[Output], on: &str) -> Vec<Option<GpuType>> {
    let asked = |o: &Output| match o {
        Output::SubmitPilot {
            node: Some(n),
            gpu_type,
            ..
        } if n.as_str() == on => Some(gpu_type.clone()),
        _ => None,
    };
    out.iter().filter_map(asked).collect()
}

/// Nodes of four GPUs each, of which Slurm names the type `a` first. The pool has GPUs of type `b`, too.
fn two_types() -> World {
    let mut w = World::new(1, Config::default(), on_demand(4, 8));
    for node in ["n0", "n1"] {
        w.tell(Input::Node(NodeFacts {
            gpus: 4,
            gpu_type: "a".into(),
            ..facts(node)
        }));
    }
    w.tell(Input::PoolOffers(PoolOffers {
        pool: "main".into(),
        gpus: vec![("a".into(), 4), ("b".into(), 2)],
        types_known: true,
        gpu_mem_mib: 0,
        cpus: 8,
    }));
    w
}

fn of_type(gpu_type: &str) -> Need {
    Need {
        gpu_type: Some(gpu_type.into()),
        ..Need::gpus(1)
    }
}

#[test]
fn a_pilot_is_asked_for_with_the_type_that_its_cell_asks_for() {
    let mut w = two_types();
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (cell, out) = w.submit(&k, of_type("b"));
    assert_eq!(types_asked(&out, "n0"), [Some("b".into())]);
    w.pilot_of("n0", "b", 1, 2);
    w.settle();
    assert!(w.running.contains_key(&(k, cell)));
    let any = w.kernel("any", "bob", &["n0"], 1);
    let (_, out) = w.submit(&any, Need::gpus(1));
    assert_eq!(types_asked(&out, "n0"), [None]);
}

/// Slurm may not have named the burst partition's nodes yet.
#[test]
fn a_burst_pilot_is_asked_for_with_the_type_that_its_cell_asks_for() {
    for node in [Some("b0"), None] {
        let mut w = World::new(1, Config::default(), bursting(1, true));
        let typed = |node: &str| NodeFacts {
            gpu_type: "b".into(),
            ..facts(node)
        };
        w.tell(Input::Node(typed("n0")));
        if let Some(node) = node {
            w.tell(Input::BurstNode {
                facts: typed(node),
                partition: "cloud".into(),
            });
        }
        w.tell(Input::PoolOffers(PoolOffers {
            pool: "main".into(),
            gpus: vec![("b".into(), 2)],
            types_known: true,
            gpu_mem_mib: 0,
            cpus: 8,
        }));
        let kernels = behind_a_long_run(&mut w);
        for (kernel, gpu_type) in [(1, Some("b")), (2, None)] {
            let need = gpu_type.map_or_else(|| Need::gpus(1), of_type);
            let (_, out) = w.submit(&kernels[kernel], need);
            let asked = |o: &Output| match o {
                Output::SubmitPilot { node, gpu_type, .. } => Some((node.clone(), gpu_type.clone())),
                _ => None,
            };
            let asked: Vec<_> = out.iter().filter_map(asked).collect();
            let expected = (node.map(NodeName::from), gpu_type.map(GpuType::from));
            assert_eq!(asked, [expected], "{out:?}");
        }
    }
}

#[test]
fn a_type_that_slurm_does_not_name_is_left_to_the_agents() {
    let mut w = two_types();
    w.tell(Input::PoolOffers(PoolOffers {
        pool: "main".into(),
        gpus: vec![("".into(), 4)],
        types_known: false,
        gpu_mem_mib: 0,
        cpus: 8,
    }));
    let k = w.kernel("k", "ada", &["n0"], 1);
    let (_, out) = w.submit(&k, of_type("c"));
    assert_eq!(types_asked(&out, "n0"), [None]);
}

#[test]
fn a_node_that_refuses_its_own_type_is_passed_over_for_a_while() {
    let mut w = two_types();
    let k = w.kernel("k", "ada", &["n1"], 1);
    let (_, out) = w.submit(&k, of_type("a"));
    let (ticket, _) = asked(&out)[0].clone();
    let reason = "Requested node configuration is not available".to_owned();
    w.tell(Input::PilotRefused { ticket, reason });
    let any = w.kernel("any", "bob", &["n1"], 1);
    let (_, out) = w.submit(&any, Need::gpus(1));
    assert!(types_asked(&out, "n1").is_empty(), "{out:?}");
}

#[test]
fn a_node_without_a_type_serves_the_cells_of_other_types() {
    let mut w = two_types();
    let k = w.kernel("k", "ada", &["n1"], 1);
    let (_, out) = w.submit(&k, of_type("b"));
    assert_eq!(types_asked(&out, "n1"), [Some("b".into())]);
    let (ticket, _) = asked(&out)[0].clone();
    let reason = "Requested node configuration is not available".to_owned();
    let mut out = w.tell(Input::PilotRefused { ticket, reason });
    out.extend((0..900).flat_map(|_| w.pass(Span::from_secs(1))));
    assert!(types_asked(&out, "n1").is_empty(), "it has been told");
    let other = w.kernel("o", "bob", &["n1"], 1);
    let (_, out) = w.submit(&other, of_type("a"));
    assert_eq!(types_asked(&out, "n1"), [Some("a".into())]);
}
