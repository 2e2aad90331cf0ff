//! Members under a simulated network and a paused clock, each with a WAL of its own: elections, partitions, lost disks, growth.
//!
//! The keepers' failure detector is modelled; the leader's duties are the real ones (`hop_log::steward`). An executor proposes
//! cells with their records, as the replica does. After every step all members agree with one reference, entry by entry and
//! effect by effect, and with every acknowledged proposal. Once the faults are over, the group heals.
//!
//! Network, faults and order of actors come from the seed. A seed that failed once stays in `seeds.txt`.

#![allow(
    missing_debug_implementations,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test's own types and helpers"
)]

mod world;

use hop_log::Entry;
use hop_raft::{Feed, Group as _, News};
use hop_words::id::Incarnation;
use world::{Faults, World};

/// Virtual tenths of a second with faults, and then without.
const STEPS: usize = 150;
const HEALING: usize = 300;

fn run(seed: u64, faults: Faults) -> u64 {
    paused(async {
        let mut world = World::new(seed, faults).await;
        for _ in 0..STEPS {
            world.step().await;
        }
        world.heal(HEALING).await;
        world.acknowledged()
    })
}

/// Runs under a clock that stands while anybody has work.
fn paused<R>(work: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

fn run_all(seeds: impl Iterator<Item = u64>, faults: Faults) -> u64 {
    let mut sum = 0;
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| run(seed, faults));
        sum += ran.unwrap_or_else(|why| {
            let why = why.downcast_ref::<String>().map_or("", String::as_str);
            panic!("seed {seed} with {faults:?} failed: {why}")
        });
    }
    sum
}

fn count(default: u64) -> u64 {
    let told = std::env::var("HOP_SIM_SEEDS").ok();
    told.and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn without_faults_all_is_committed_at_once() {
    let acknowledged = run(1, Faults::NONE);
    assert!(acknowledged > 60, "{acknowledged} acknowledged");
}

/// The seat of a member that hears that it has left throws its log away: its vote would be one for a log that is gone.
#[test]
fn a_member_has_not_left_while_it_has_a_vote() {
    paused(async {
        let world = World::new(1, Faults::NONE).await;
        let founder = world.member(1).unwrap();
        let Feed { mut news, .. } = founder.subscribe();
        let incarnation = Incarnation(1);
        founder.propose(Entry::Left { incarnation }).await.unwrap();
        let shown = news.recv().await.unwrap();
        assert!(matches!(
            shown,
            News::Applied {
                entry: Entry::Left { .. },
                effect: Ok(_),
                ..
            }
        ));
        assert!(founder.standing().voters.contains(&incarnation));
        assert!(!founder.has_left(incarnation));
    });
}

#[test]
fn members_agree_under_cuts_and_delays() {
    run_all(0..count(8), Faults::LINKS);
}

#[test]
fn members_agree_over_crashes_and_lost_disks() {
    run_all(1000..1000 + count(8), Faults::NODES);
}

#[test]
fn members_agree_under_all_faults() {
    run_all(2000..2000 + count(10), Faults::ALL);
}

#[test]
fn seeds_that_failed_once() {
    let seeds = include_str!("seeds.txt");
    let seeds = seeds.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
    run_all(seeds.map(|l| l.parse().unwrap()), Faults::ALL);
}

/// The simulation sees a broken rule: a member without its log comes back under its old incarnation.
#[test]
#[should_panic(expected = "failed")]
fn a_forgetful_member_is_noticed() {
    run_all(3000..3100, Faults::FORGETFUL);
}
