//! Nodes that leave their pool, are down, or are known from the journal alone: nothing is sent there, and no pilot is
//! waited for in vain.

use crate::world::{World, facts, on_demand};
use hop_core::config::{Burst, Config, Migrate, PoolConfig, Scale};
use hop_core::journal::{Entry, Key, TicketImage, Value};
use hop_core::{Core, GpuSlot, Input, NodeFacts, Output, PilotUp, PlaceReplica, Room, Submit};
use hop_words::id::{GpuIndex, Incarnation, JobId, KernelId, NodeName};
use hop_words::need::{Class, Need};
use hop_words::time::{Span, Timestamp};

fn pool(name: &str, most: u32) -> PoolConfig {
    let mut pool = PoolConfig::fixed(name, 0, 2, 8);
    pool.max_pilots = most;
    pool.migrate = Some(Migrate::default());
    pool.scale = Some(Scale {
        learn: false,
        spares: 0,
        ..Scale::default()
    });
    // Where nothing else counts, the least loaded node is taken.
    pool.pack = false;
    pool
}

/// Two nodes of two GPUs, and at most so many pilots of two GPUs.
fn world(most: u32) -> World {
    let mut w = World::new(1, Config::default(), pool("main", most));
    for node in ["n0", "n1"] {
        w.tell(Input::Node(facts(node)));
    }
    w
}

fn down(node: &str) -> Input {
    Input::NodeDown { node: node.into() }
}

fn gone(node: &str) -> Input {
    Input::NodeGone { node: node.into() }
}

fn place(name: &str) -> Input {
    Input::PlaceKernel(PlaceReplica {
        kernel: name.into(),
        user: "ada".into(),
        account: None,
        pool: "main".into(),
        first: None,
        default_need: Need::gpus(1),
        mem_mib: 512,
        cpus: 1,
        avoid: Vec::new(),
        name: name.to_owned(),
    })
}

/// Where the kernel's only replica is placed. `None` means nowhere.
fn placed(out: &[Output]) -> Option<&str> {
    out.iter().find_map(|o| match o {
        Output::Place { seat, .. } => Some(seat.node.as_str()),
        _ => None,
    })
}

/// Pilots asked for and given up, in order, each with its node.
fn pilots(out: &[Output]) -> Vec<String> {
    let said = |o: &Output| match o {
        Output::SubmitPilot { ticket, node, .. } => Some(format!(
            "+{ticket} {}",
            node.as_ref().map_or("", NodeName::as_str)
        )),
        Output::CancelPilot { ticket, .. } => Some(format!("-{ticket}")),
        _ => None,
    };
    out.iter().filter_map(said).collect()
}

/// A kernel on both nodes, whose cell waits for a pilot on the first.
fn waits(w: &mut World) -> KernelId {
    let k = w.kernel("k", "ada", &["n0", "n1"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+1 n0"]);
    k
}

#[test]
fn nothing_is_placed_on_a_node_that_left_its_pool_until_it_is_back() {
    let mut w = world(2);
    assert_eq!(w.tell(gone("n1")), []);
    for name in ["a", "b"] {
        assert_eq!(
            placed(&w.tell(place(name))),
            Some("n0"),
            "n1 would be less loaded"
        );
    }
    // Its pilot's agent reports itself: Slurm's word still counts.
    w.pilot("n1", 2, 8);
    assert_eq!(placed(&w.tell(place("c"))), Some("n0"));
    w.tell(Input::Node(facts("n1")));
    assert_eq!(placed(&w.tell(place("d"))), Some("n1"));
    assert_eq!(w.tell(gone("n9")), [], "nobody knows it");
}

#[test]
fn a_pilot_for_a_node_that_left_its_pool_is_given_up_for_one_elsewhere() {
    let mut w = world(1);
    waits(&mut w);
    assert_eq!(pilots(&w.tell(gone("n0"))), ["-1", "+2 n1"]);
    assert_eq!(w.tell(gone("n0")), [], "it is given up once");
}

#[test]
fn a_pilot_for_a_node_that_is_down_is_given_up_when_it_is_late_and_not_before() {
    let mut w = world(1);
    waits(&mut w);
    // slurmd restarts.
    assert_eq!(w.tell(down("n0")), []);
    w.tell(Input::Node(facts("n0")));
    w.pass(Span::from_secs(299));
    assert_eq!(pilots(&w.tell(down("n0"))), [""; 0]);
    w.pass(Span::from_secs(1));
    assert_eq!(pilots(&w.tell(down("n0"))), ["-1", "+2 n1"]);
    w.tell(Input::Node(facts("n0")));
    assert_eq!(pilots(&w.tell(down("n0"))), [""; 0]);
}

/// Lets so many seconds pass, in steps. Pilots asked for and given up meanwhile; nothing else but news of waits is said.
fn passes(w: &mut World, seconds: u64) -> Vec<String> {
    let mut out = Vec::new();
    for _ in 0..seconds / 10 {
        out.extend(w.pass(Span::from_secs(10)));
        w.core.sanity_check().expect("the state is whole");
    }
    out.retain(|o| !matches!(o, Output::Queued { .. }));
    let said = pilots(&out);
    assert_eq!(said.len(), out.len(), "{out:?}");
    said
}

/// Slurm has the pilot in its queue. Somebody's batch job has the node.
fn queued(w: &mut World, ticket: u64) {
    let job = JobId(7000 + ticket as u32);
    assert_eq!(w.tell(Input::PilotQueued { ticket, job }), []);
}

/// A kernel without another node, whose cell waits for a pilot there.
fn stays(w: &mut World, name: &str, node: &str) -> (KernelId, Vec<String>) {
    let k = w.kernel(name, name, &[node], 2);
    let why = Some("its state is not saved".into());
    w.tell(Input::KernelFixed {
        kernel: k.clone(),
        why,
    });
    let (_, out) = w.submit(&k, Need::gpus(2));
    (k, pilots(&out))
}

#[test]
fn a_pilot_that_slurm_does_not_start_is_given_up_for_one_on_another_node_of_its_cell() {
    let mut w = world(1);
    waits(&mut w);
    queued(&mut w, 1);
    assert_eq!(passes(&mut w, 290), [""; 0]);
    assert_eq!(
        w.core.waiting()[0].reason.to_string(),
        "Slurm has not started the job with GPUs for it on n0 yet"
    );
    assert_eq!(passes(&mut w, 310), ["-1", "+2 n1"]);
    w.pilot("n1", 2, 8);
    w.settle();
    assert_eq!(w.running.len(), 1);
}

#[test]
fn pilots_that_slurm_does_not_start_keep_nobody_from_the_free_nodes() {
    let mut w = world(2);
    for node in ["n2", "n3"] {
        w.tell(Input::Node(facts(node)));
    }
    assert_eq!(stays(&mut w, "ada", "n0").1, ["+1 n0"]);
    assert_eq!(stays(&mut w, "bob", "n1").1, ["+2 n1"]);
    (1..=2).for_each(|ticket| queued(&mut w, ticket));
    assert_eq!(stays(&mut w, "carol", "n2").1, [""; 0], "two are coming");
    // They keep their places in Slurm's queue for as long as nobody needs them.
    assert_eq!(passes(&mut w, 600), ["-1", "+3 n2"]);
    w.pilot("n2", 2, 8);
    w.settle();
    assert_eq!(w.running.len(), 1);
    assert_eq!(stays(&mut w, "dan", "n3").1, ["-2", "+4 n3"]);
}

#[test]
fn a_kernel_moves_away_from_where_slurm_starts_no_pilot() {
    let mut w = world(1);
    let k = w.kernel("k", "ada", &["n0"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+1 n0"]);
    queued(&mut w, 1);
    let mut out = Vec::new();
    for _ in 0..60 {
        out.extend(w.pass(Span::from_secs(10)));
    }
    assert_eq!(pilots(&out), ["-1", "+2 n1"]);
    let moves = out.iter().filter(|o| matches!(o, Output::Migrate { .. }));
    assert_eq!(moves.count(), 1);
}

#[test]
fn a_pilot_that_slurm_does_not_start_is_given_up_once_its_cell_is_gone() {
    let mut w = world(2);
    let k = w.kernel("k", "ada", &["n0", "n1"], 2);
    let (cell, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+1 n0"]);
    queued(&mut w, 1);
    w.tell(Input::CancelCell {
        kernel: k.clone(),
        cell,
    });
    assert_eq!(passes(&mut w, 290), [""; 0], "it may come yet");
    assert_eq!(passes(&mut w, 10), ["-1"]);
    assert_eq!(passes(&mut w, 10), [""; 0]);
    let (_, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+2 n1"], "n0 isn't tried again at once");
}

/// Its cell has no other node, and each time another cell takes the pilot's place.
#[test]
fn a_node_where_slurm_starts_no_pilot_is_asked_ever_more_rarely() {
    let mut w = world(1);
    let (_, asked) = stays(&mut w, "ada", "n0");
    assert_eq!(asked, ["+1 n0"]);
    let other = w.kernel("bob", "bob", &["n1"], 2);
    let mut pauses = Vec::new();
    for ticket in [1, 3, 5, 7] {
        queued(&mut w, ticket);
        assert_eq!(passes(&mut w, 300), [""; 0]);
        let (cell, out) = w.submit(&other, Need::gpus(2));
        assert_eq!(
            pilots(&out),
            [format!("-{ticket}"), format!("+{} n1", ticket + 1)]
        );
        let mut pause = 0;
        let pilot = w.pilot("n1", 2, 8);
        w.settle();
        w.end_cell(&other, &cell);
        w.settle();
        w.agents.remove(&pilot);
        let cause = hop_words::lease::EndCause::Done;
        let mut out = w.tell(Input::PilotLost { pilot, cause });
        while pilots(&out).is_empty() {
            pause += 10;
            out = w.pass(Span::from_secs(10));
        }
        assert_eq!(pilots(&out), [format!("+{} n0", ticket + 2)]);
        pauses.push(pause / 600);
    }
    assert_eq!(pauses, [1, 2, 4, 8]);
}

#[test]
fn a_cell_gets_its_pilot_though_slurm_starts_none_for_the_pools_minimum() {
    let mut pool = PoolConfig::fixed("main", 1, 2, 8);
    pool.max_pilots = 1;
    let mut w = World::new(1, Config::default(), pool);
    w.tell(Input::Node(facts("n0")));
    w.tell(Input::Node(facts("n1")));
    queued(&mut w, 1);
    let (_, asked) = stays(&mut w, "ada", "n1");
    assert_eq!(asked, [""; 0], "it may come to that node");
    assert_eq!(passes(&mut w, 290), [""; 0]);
    assert_eq!(passes(&mut w, 310), ["-1", "+2 n1"]);
}

/// The jobs of others have so many GPUs of the node; and whether a seat finds room.
fn room(w: &mut World, node: &str, taken: u16, seat: bool) {
    let node = node.into();
    let room = Room { taken, seat };
    assert_eq!(w.tell(Input::NodeRoom { node, room }), []);
}

/// Another place in Slurm's queue would be a later one.
#[test]
fn a_pilot_that_waits_keeps_its_place_where_every_node_has_others_jobs() {
    let mut w = world(1);
    waits(&mut w);
    queued(&mut w, 1);
    for node in ["n0", "n1"] {
        room(&mut w, node, 2, true);
    }
    assert_eq!(passes(&mut w, 3600), [""; 0]);
    // Another user's cell doesn't take the place for a place in the queue.
    assert_eq!(stays(&mut w, "bob", "n1").1, [""; 0]);
    assert_eq!(passes(&mut w, 3600), [""; 0]);
    room(&mut w, "n1", 0, true);
    assert_eq!(passes(&mut w, 600), ["-1", "+2 n1"]);
}

#[test]
fn an_idle_pilot_stays_where_a_larger_one_would_wait_for_others_jobs() {
    let mut pool = pool("main", 4);
    pool.gpus_per_pilot = 4;
    let mut w = World::new(1, Config::default(), pool);
    w.tell(Input::Node(NodeFacts {
        gpus: 4,
        ..facts("n0")
    }));
    w.pilot("n0", 2, 8);
    room(&mut w, "n0", 2, true);
    let large = w.kernel("large", "ada", &["n0"], 4);
    let (_, out) = w.submit(&large, Need::gpus(4));
    let drained = |out: &[Output]| out.iter().any(|o| matches!(o, Output::DrainPilot { .. }));
    assert!(!drained(&out), "{out:?}");
    let small = w.kernel("small", "bob", &["n0"], 1);
    w.submit(&small, Need::gpus(1));
    w.settle();
    assert_eq!(w.running.len(), 1);
}

/// A due cell that needs a whole node, of four GPUs. Day-long cells have one GPU of each node. On the second, one more
/// GPU of a pilot is free, and others have so many of the rest.
fn whole_is_due(taken: u16) -> World {
    let mut pool = pool("main", 4);
    pool.gpus_per_pilot = 4;
    pool.scale = pool.scale.map(|s| Scale {
        idle_min: Span::from_secs(86_400),
        ..s
    });
    let config = Config {
        due_after: Span::from_secs(60),
        fair_share: false,
        ..Config::default()
    };
    let mut w = World::new(1, config, pool);
    for node in ["n0", "n1"] {
        w.tell(Input::Node(NodeFacts {
            gpus: 4,
            ..facts(node)
        }));
    }
    w.pilot("n0", 4, 8);
    w.pilot("n1", 2, 4);
    room(&mut w, "n1", taken, true);
    let [day, whole] = ["day", "whole"].map(|name| w.kernel(name, name, &["n0"], 1));
    let other = w.kernel("other", "other", &["n1"], 1);
    for kernel in [day, other] {
        w.submit(&kernel, Need::gpus(1));
    }
    w.settle();
    w.submit(&whole, Need::gpus(4));
    for _ in 0..40 {
        w.pass(Span::from_secs(60));
    }
    assert!(w.migrations.is_empty() && w.asked.is_empty());
    w
}

#[test]
fn a_due_cell_holds_no_node_that_the_jobs_of_others_have_taken() {
    for taken in [3, u16::MAX] {
        let mut w = whole_is_due(taken);
        let small = w.kernel("small", "small", &["n1"], 1);
        let (_, out) = w.submit(&small, Need::gpus(1));
        assert!(
            matches!(&out[..], [Output::Record(_), Output::StartLease(_)]),
            "{taken} GPUs are taken: {out:?}"
        );
    }
}

#[test]
fn a_due_cell_holds_a_node_no_longer_once_the_jobs_of_others_have_it() {
    let mut w = whole_is_due(0);
    let small = w.kernel("small", "small", &["n1"], 1);
    let (_, out) = w.submit(&small, Need::gpus(1));
    assert!(matches!(&out[..], [Output::Queued { .. }]), "{out:?}");
    let (node, room) = ("n1".into(), Room { taken: 3, seat: true });
    let out = w.tell(Input::NodeRoom { node, room });
    assert!(
        matches!(&out[..], [Output::Record(_), Output::StartLease(s)] if s.kernel == small),
        "{out:?}"
    );
}

#[test]
fn kernels_are_placed_where_a_seat_and_a_pilot_find_room() {
    let mut w = world(2);
    w.tell(Input::Node(facts("n2")));
    room(&mut w, "n0", 2, false);
    room(&mut w, "n1", 2, true);
    for name in ["a", "b"] {
        assert_eq!(
            placed(&w.tell(place(name))),
            Some("n2"),
            "n0 and n1 would be less loaded"
        );
    }
    // Nowhere is room for a pilot: but a seat can start.
    room(&mut w, "n2", 2, false);
    assert_eq!(placed(&w.tell(place("c"))), Some("n1"));
    // Nowhere is room: the kernel waits where it always would.
    room(&mut w, "n1", 2, false);
    assert_eq!(placed(&w.tell(place("d"))), Some("n0"));
}

#[test]
fn a_pilot_is_asked_for_where_the_jobs_of_others_leave_room() {
    let mut w = world(2);
    room(&mut w, "n0", 1, true);
    let k = w.kernel("k", "ada", &["n0", "n1"], 2);
    let (cell, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+1 n1"], "its first node is n0");
    w.tell(Input::CancelCell {
        kernel: k.clone(),
        cell,
    });
    w.tell(gone("n1"));
    // A place in Slurm's queue is better than none.
    let (cell, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+2 n0"]);
    w.tell(Input::CancelCell {
        kernel: k.clone(),
        cell,
    });
    // Its own pilots aren't others' jobs.
    w.tell(Input::PilotFailed {
        ticket: 2,
        reason: "none".into(),
    });
    w.pass(Span::from_secs(60));
    let small = w.kernel("s", "ada", &["n0"], 1);
    assert_eq!(pilots(&w.submit(&small, Need::gpus(1)).1), ["+3 n0"]);
}

#[test]
fn no_idle_pilot_gives_way_to_one_that_would_wait_for_others_jobs() {
    let mut w = world(1);
    w.pilot("n1", 2, 8);
    room(&mut w, "n0", 2, true);
    let (_, asked) = stays(&mut w, "ada", "n0");
    assert_eq!(asked, [""; 0]);
    room(&mut w, "n0", 0, true);
    let (_, asked) = stays(&mut w, "bob", "n0");
    assert_eq!(asked, ["+1 n0"], "as ever");
}

#[test]
fn a_cell_has_a_pilot_on_another_node_than_the_one_that_cannot_run_it() {
    let mut w = world(2);
    waits(&mut w);
    let reason = "Requested node configuration is not available".into();
    let out = w.tell(Input::PilotRefused { ticket: 1, reason });
    assert_eq!(pilots(&out), ["+2 n1"]);
}

/// A mixed node: Slurm's word is on the GPUs that the pool lends.
#[test]
fn slurms_word_on_a_nodes_type_stays_whatever_its_pilots_first_gpu_is() {
    let mut w = world(1);
    let typed = NodeFacts {
        gpu_type: "a100".into(),
        ..facts("n0")
    };
    w.tell(Input::Node(typed));
    w.tell(gone("n1"));
    w.pilot("n0", 2, 8);
    let of = |name: &str, gpu_type: &str| match place(name) {
        Input::PlaceKernel(mut place) => {
            place.default_need.gpu_type = Some(gpu_type.into());
            Input::PlaceKernel(place)
        }
        other => other,
    };
    assert_eq!(placed(&w.tell(of("a", "a100"))), Some("n0"));
    assert_eq!(placed(&w.tell(of("b", "fake"))), None);
}

/// A burst node is not usable while it boots.
#[test]
fn a_burst_nodes_boot_is_waited_for() {
    let mut w = world(1);
    w.tell(Input::Pool(PoolConfig {
        burst: vec![Burst {
            partition: "cloud".into(),
            max_pilots: 2,
            boot: Span::from_secs(30),
            price: 1.0,
        }],
        ..pool("main", 1)
    }));
    let seen = |w: &mut World| {
        w.tell(Input::BurstNode {
            facts: facts("b0"),
            partition: "cloud".into(),
        })
    };
    seen(&mut w);
    w.pilot("n0", 2, 8);
    let long = w.kernel("l", "bob", &["n0"], 2);
    w.submit(&long, Need::gpus(2));
    w.settle();
    w.pass(Span::from_secs(3600));
    let k = w.kernel("k", "ada", &["n0"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+1 b0"]);
    for _ in 0..20 {
        seen(&mut w);
        assert_eq!(pilots(&w.tell(down("b0"))), [""; 0]);
        w.pass(Span::from_secs(60));
    }
    assert_eq!(pilots(&w.tell(gone("b0")))[0], "-1");
}

#[test]
fn a_pools_minimum_is_kept_without_the_node_that_left() {
    let mut w = world(2);
    w.tell(Input::Pool(PoolConfig {
        min_pilots: 1,
        ..pool("main", 2)
    }));
    w.tell(Input::PilotFailed {
        ticket: 1,
        reason: "none".into(),
    });
    let k = w.kernel("k", "ada", &["n0"], 2);
    let (cell, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+2 n0"]);
    w.tell(Input::CancelCell { kernel: k, cell });
    assert_eq!(pilots(&w.tell(gone("n0"))), ["-2", "+3 "]);
}

#[test]
fn a_node_that_changes_its_pool_is_forgotten_by_the_old_one() {
    let mut w = world(1);
    w.tell(Input::Pool(pool("other", 1)));
    waits(&mut w);
    let moved = NodeFacts {
        pool: "other".into(),
        ..facts("n0")
    };
    assert_eq!(pilots(&w.tell(Input::Node(moved))), ["-1", "+2 n1"]);
    for name in ["a", "b"] {
        assert_eq!(placed(&w.tell(place(name))), Some("n1"));
    }
    // No pilot of its pool comes to a kernel that sits there still.
    assert_eq!(pilots(&w.tell(down("n1"))), [""; 0]);
    assert_eq!(pilots(&w.pass(Span::from_secs(600))), [""; 0]);
    assert_eq!(pilots(&w.tell(down("n1"))), ["-2"]);
    assert_eq!(pilots(&w.pass(Span::from_secs(600))), [""; 0]);
}

/// The pilots that these outputs drain.
fn drained(out: &[Output]) -> Vec<JobId> {
    let drains = |o: &Output| match o {
        Output::DrainPilot { pilot } => Some(*pilot),
        _ => None,
    };
    out.iter().filter_map(drains).collect()
}

/// Slurm's rules on the new pool's partition don't hold for the former pool's pilots.
#[test]
fn a_pilot_drains_when_its_node_goes_to_another_pool() {
    let mut w = world(2);
    w.tell(Input::Pool(pool("other", 1)));
    let idle = w.pilot("n0", 2, 8);
    let moved = || {
        Input::Node(NodeFacts {
            pool: "other".into(),
            ..facts("n0")
        })
    };
    assert_eq!(drained(&w.tell(moved())), [idle]);
    assert_eq!(drained(&w.tell(moved())), [], "told once");
    // An agent that reports itself later than Slurm.
    let (late, out) = w.pilot_up("n0", 2, 8);
    assert_eq!(drained(&out), [late]);
    let (here, out) = w.pilot_up("n1", 2, 8);
    assert_eq!(drained(&out), [], "{here} is its pool's own");
}

/// The configuration names the node's partition no more. Slurm's rules on users don't hold there.
#[test]
fn a_pilot_drains_when_its_node_leaves_every_pool() {
    let mut w = world(2);
    let [busy, other] = ["n0", "n1"].map(|node| w.pilot(node, 2, 8));
    let kernel = w.kernel("k", "ada", &["n0"], 1);
    w.submit(&kernel, Need::gpus(1));
    w.settle();
    assert_eq!(drained(&w.tell(gone("n0"))), [busy]);
    assert_eq!(drained(&w.tell(gone("n0"))), [], "told once, and {other} stays");
    assert_eq!(w.running.len(), 1, "its cell ends as it would");
    // An agent that reports itself later than Slurm.
    let (late, out) = w.pilot_up("n0", 2, 8);
    assert_eq!(drained(&out), [late]);
    w.tell(Input::Node(facts("n0")));
    let (back, out) = w.pilot_up("n0", 2, 8);
    assert_eq!(drained(&out), [], "{back} is its pool's own");
}

#[test]
fn pilots_beyond_a_maximum_that_was_lowered_drain_the_idle_ones_first() {
    let mut w = world(3);
    w.tell(Input::Node(facts("n2")));
    let [busy, idle, idle_too] = ["n0", "n1", "n2"].map(|node| w.pilot(node, 2, 8));
    let kernel = w.kernel("k", "ada", &["n0"], 1);
    w.submit(&kernel, Need::gpus(1));
    w.settle();
    assert_eq!(drained(&w.tell(Input::Pool(pool("main", 2)))), [idle_too]);
    assert_eq!(drained(&w.tell(Input::Pool(pool("main", 1)))), [idle]);
    // One more comes that an earlier daemon had asked for.
    let (late, out) = w.pilot_up("n2", 2, 8);
    assert_eq!(drained(&out), [late], "{busy} lends");
}

#[test]
fn a_maximum_of_zero_drains_all_pilots_the_idle_ones_first() {
    let mut w = world(3);
    let [busy, idle] = ["n0", "n1"].map(|node| w.pilot(node, 2, 8));
    let kernel = w.kernel("k", "ada", &["n0"], 1);
    w.submit(&kernel, Need::gpus(1));
    w.settle();
    assert_eq!(drained(&w.tell(Input::Pool(pool("main", 0)))), [idle, busy]);
    assert_eq!(w.running.len(), 1, "its cell ends as it would");
    let (late, out) = w.pilot_up("n1", 2, 8);
    assert_eq!(drained(&out), [late], "an earlier daemon had asked for it");
}

/// The next daemon's core. Its journal has a kernel on n1, and a pilot that was asked for there.
fn restarted(now: Timestamp) -> Core {
    let config = Config {
        journal: true,
        ..Config::default()
    };
    let submit = Input::Submit(Submit {
        kernel: "k".into(),
        cell: "c".into(),
        need: Need::gpus(1),
        class: Class::Interactive,
        print: 0,
    });
    let pool = || pool("main", 2);
    let before = [
        Input::Pool(pool()),
        Input::Node(facts("n1")),
        place("k"),
        up_on("n1"),
        submit,
    ];
    let (mut core, mut out) = (Core::new(config.clone(), now), Vec::new());
    for input in before {
        core.handle(input, now, &mut out);
    }
    assert_eq!(pilots(&out).len(), 1, "{out:?}");
    let journal = out.drain(..).filter_map(|o| match o {
        Output::Journal(entry) => Some(entry),
        _ => None,
    });
    let journal: Vec<Entry> = journal.collect();
    Core::restore(config, vec![pool()], journal, now, &mut out)
}

fn up_on(node: &str) -> Input {
    Input::ReplicaUp(hop_core::ReplicaFacts {
        kernel: "k".into(),
        incarnation: Incarnation(1),
        user: "ada".into(),
        account: None,
        pool: "main".into(),
        node: node.into(),
        seat: JobId(7),
        name: String::new(),
        holds: None,
        ended: None,
        waiting: Vec::new(),
        parked: None,
        fixed: None,
        standbys: Vec::new(),
        executes: None,
    })
}

#[test]
fn a_node_of_the_journal_takes_nothing_until_somebody_has_named_it() {
    let now = Timestamp(1_000_000);
    let mut core = restarted(now);
    core.sanity_check().unwrap();
    let mut tell = |input| {
        let mut out = Vec::new();
        core.handle(input, now, &mut out);
        core.sanity_check().unwrap();
        out
    };
    let cores = |name: &str| match place(name) {
        Input::PlaceKernel(place) => Input::PlaceKernel(PlaceReplica {
            default_need: Need {
                cpus: 1,
                ..Need::default()
            },
            ..place
        }),
        other => other,
    };
    assert_eq!(placed(&tell(cores("a"))), None);
    // The pilot that was asked for there before the restart has its node still.
    assert_eq!(pilots(&tell(Input::Node(facts("n1")))), [""; 0]);
    assert_eq!(placed(&tell(cores("a"))), Some("n1"));
    assert_eq!(pilots(&tell(gone("n1"))).len(), 1, "it is given up");
    assert_eq!(placed(&tell(cores("b"))), None);
}

/// The journal has a pilot of one GPU on n0, and another that Slurm has not started yet.
#[test]
fn a_coming_pilot_is_not_crowded_out_of_a_node_whose_size_nobody_has_told_yet() {
    let now = Timestamp(3_600_000_000);
    let (node, job) = (NodeName::from("n0"), JobId(7));
    let ticket = Value::Ticket(TicketImage {
        pool: "main".into(),
        partition: None,
        node: Some(node.clone()),
        gpus: 1,
        job: Some(JobId(8)),
        at: Timestamp(0),
        cell: None,
        gpu_type: None,
    });
    let pilot = Value::Pilot {
        node: node.clone(),
        pool: "main".into(),
    };
    let journal = [(Key::Pilot(job), pilot), (Key::Ticket(1), ticket)];
    let journal = journal.map(|(key, value)| Entry {
        key,
        value: Some(value),
    });
    let mut out = Vec::new();
    let mut core = Core::restore(Config::default(), vec![pool("main", 2)], journal, now, &mut out);
    assert_eq!(pilots(&out), [""; 0], "its cell has yet to say so again");
    let mut tell = |input| {
        core.handle(input, now, &mut out);
        core.sanity_check().unwrap();
        std::mem::take(&mut out)
    };
    let up = PilotUp {
        node,
        pilot: job,
        pool: "main".into(),
        gpus: vec![GpuSlot {
            index: GpuIndex(0),
            gpu_type: "".into(),
            mem_mib: 0,
            blocked: None,
        }],
        cpus: 4,
        ends: None,
        steps_left: 1000,
        leases: Vec::new(),
        starting: Vec::new(),
        ended: Vec::new(),
        draining: false,
        node_drains: false,
    };
    assert_eq!(tell(Input::PilotUp(up)), []);
    assert_eq!(tell(Input::Node(facts("n0"))), [], "both have room there");
    let small = NodeFacts {
        gpus: 1,
        ..facts("n0")
    };
    assert_eq!(
        pilots(&tell(Input::Node(small))),
        ["-1"],
        "Slurm has told its size"
    );
}

/// Time in Slurm's queue says nothing of the next pilot's boot.
#[test]
fn a_pilot_is_late_though_others_were_queued_for_hours() {
    let mut w = world(2);
    for ticket in 1..=3 {
        let (kernel, asked) = stays(&mut w, &format!("u{ticket}"), "n0");
        assert_eq!(asked, [format!("+{ticket} n0")]);
        let job = JobId(w.next_job + 1);
        assert_eq!(w.tell(Input::PilotQueued { ticket, job }), []);
        w.pass(Span::from_secs(6 * 3600));
        assert_eq!(w.pilot("n0", 2, 8), job);
        w.settle();
        let cell = w.running.keys().next().expect("its pilot is up").1.clone();
        w.end_cell(&kernel, &cell);
        w.agents.remove(&job);
        let cause = hop_words::lease::EndCause::Done;
        w.tell(Input::PilotLost { pilot: job, cause });
        w.lingering.clear();
    }
    let k = w.kernel("k", "ada", &["n0", "n1"], 2);
    let (_, out) = w.submit(&k, Need::gpus(2));
    assert_eq!(pilots(&out), ["+4 n1"]);
    queued(&mut w, 4);
    assert_eq!(passes(&mut w, 900), ["+5 n0", "-4"]);
}

/// A pool of two types of GPUs: Slurm's word is that these nodes have them.
fn typed(mut pool: PoolConfig, nodes: &[(&str, &str)]) -> World {
    pool.max_pilots = 2;
    let mut w = World::new(1, Config::default(), pool);
    for &(node, gpu_type) in nodes {
        w.tell(Input::Node(NodeFacts {
            gpu_type: gpu_type.into(),
            ..facts(node)
        }));
    }
    w
}

fn h100() -> Need {
    Need {
        gpu_type: Some("h100".into()),
        ..Need::gpus(1)
    }
}

const MIXED: [(&str, &str); 2] = [("a0", "a100"), ("h0", "h100")];

#[test]
fn a_kernel_moves_at_once_to_the_only_gpus_that_would_do() {
    let mut w = typed(pool("main", 2), &MIXED);
    // Its pilot on its way serves others alone.
    let other = w.kernel("other", "bob", &["a0"], 0);
    assert_eq!(pilots(&w.submit(&other, Need::gpus(1)).1), ["+1 a0"]);
    let k = w.kernel("k", "ada", &["a0"], 0);
    let (_, out) = w.submit(&k, h100());
    assert_eq!(pilots(&out), ["+2 h0"], "{out:?}");
    assert_eq!(w.migrations.len(), 1);
    assert_eq!(w.migrations[0].2.node.as_str(), "h0");
}

#[test]
fn no_pilot_is_asked_for_where_no_gpu_would_do() {
    let mut w = typed(pool("main", 2), &MIXED);
    let k = w.kernel("k", "ada", &["a0"], 0);
    w.tell(Input::KernelFixed {
        kernel: k.clone(),
        why: Some("its state is not saved".into()),
    });
    let (_, out) = w.submit(&k, h100());
    assert_eq!(pilots(&out), [""; 0]);
    assert_eq!(passes(&mut w, 3600), [""; 0]);
}

#[test]
fn a_pilot_of_another_type_does_not_serve_a_cell() {
    let mut w = typed(PoolConfig::fixed("main", 0, 2, 8), &MIXED);
    w.pilot_of("a0", "a100", 2, 8);
    let k = w.kernel("k", "ada", &["a0", "h0"], 0);
    let (_, out) = w.submit(&k, h100());
    assert_eq!(pilots(&out), ["+1 h0"], "{out:?}");
}

/// Slurm's word on a node of several types is the first of them.
#[test]
fn a_type_that_no_node_is_said_to_have_may_be_on_any() {
    let mut w = typed(pool("main", 2), &[("a0", "a100"), ("a1", "a100")]);
    let k = w.kernel("k", "ada", &["a0"], 0);
    let (_, out) = w.submit(&k, h100());
    assert_eq!(pilots(&out), ["+1 a0"], "{out:?}");
}

#[test]
fn pilots_smaller_than_the_need_are_told_as_gpus_in_use() {
    let mut w = World::new(1, Config::default(), on_demand(2, 8));
    w.tell(Input::Node(facts("n0")));
    w.pilot("n0", 1, 4);
    w.pilot("n0", 1, 4);
    let a = w.kernel("a", "ada", &["n0"], 1);
    w.submit(&a, Need::gpus(1));
    w.settle();
    let b = w.kernel("b", "bob", &["n0"], 2);
    w.submit(&b, Need::gpus(2));
    w.settle();
    let said = w.said(&b, None).expect("it waits").join(" ");
    assert!(
        said.contains("it needs 2 GPUs and 1 of the 2 on n0 is in use"),
        "{said}"
    );
    assert_eq!(w.core.waiting()[0].reason.word(), "Resources");
    let c = w.kernel("c", "ada", &["n0"], 2);
    w.submit(&c, Need::gpus(2));
    let said = w.said(&c, None).expect("it waits").join(" ");
    assert!(said.contains("in use by your notebook a"), "{said}");
}
