//! Fair share and GPU-minutes: what leases used, and what Slurm says of people's own jobs, each counted once.

use crate::world::{World, by_hand};
use hop_core::config::{Config, Count, Limit, LimitOf, Limits, PoolConfig, Share, Shares};
use hop_core::journal::Entry;
use hop_core::{Core, Input, Output};
use hop_words::explain::Item;
use hop_words::id::KernelId;
use hop_words::need::Need;
use hop_words::reason::RefusedBecause;
use hop_words::time::{Span, Timestamp};

const HOUR: f64 = 3600.0;

fn config() -> Config {
    Config {
        journal: true,
        ..Config::default()
    }
}

fn pool() -> PoolConfig {
    by_hand(2, 8)
}

/// Slurm's word at `at`: GPU-hours of each user, and of each account.
fn shares(at: Timestamp, users: &[(&str, f64)], accounts: &[(&str, f64)]) -> Shares {
    let share = |hours: f64| Share {
        weight: 1.0,
        usage: hours * HOUR,
    };
    Shares {
        at,
        users: users.iter().map(|(n, h)| ((*n).into(), share(*h))).collect(),
        accounts: accounts.iter().map(|(n, h)| ((*n).into(), share(*h))).collect(),
        associations: vec![],
    }
}

/// Kernels of Ada, of Bob and of Cy, whose cell has the only GPU.
struct House {
    w: World,
    ada: KernelId,
    bob: KernelId,
}

impl House {
    /// Ada has leased for half an hour.
    fn new() -> Self {
        let mut w = World::new(1, config(), pool());
        w.pilot("n0", 1, 8);
        let ada = w.kernel("a", "ada", &["n0"], 1);
        let (bob, cy) = (w.kernel("b", "bob1", &["n0"], 1), w.kernel("c", "cy", &["n0"], 1));
        let (cell, _) = w.submit(&ada, Need::gpus(1));
        w.settle();
        w.now = w.now + Span::from_secs(1800);
        w.end_cell(&ada, &cell);
        w.submit(&cy, Need::gpus(1));
        w.settle();
        Self { w, ada, bob }
    }

    fn says(&mut self, users: &[(&str, f64)], accounts: &[(&str, f64)]) {
        let told = Input::Shares(shares(self.w.now, users, accounts));
        assert!(self.w.tell(told).is_empty());
    }
}

fn entries(out: Vec<Output>) -> Vec<Entry> {
    let entry = |o| match o {
        Output::Journal(entry) => Some(entry),
        _ => None,
    };
    out.into_iter().filter_map(entry).collect()
}

/// GPU-hours that `hop explain` names for the kernel's user.
fn used(core: &Core, kernel: &KernelId) -> String {
    let items = core.explain(kernel, None).unwrap_or_default();
    let hours = items.iter().find_map(|item| match item {
        Item::FairShare { gpu_hours, .. } => Some(format!("{gpu_hours:.1}")),
        _ => None,
    });
    hours.unwrap_or_else(|| format!("{items:?}"))
}

#[test]
fn what_slurm_says_replaces_its_last_word_and_no_lease() {
    let mut h = House::new();
    h.w.submit(&h.ada.clone(), Need::gpus(1));
    assert_eq!(used(&h.w.core, &h.ada), "0.5", "her lease's");
    for (word, sum) in [(1.0, "1.5"), (1.0, "1.5"), (3.0, "3.5"), (2.0, "2.5")] {
        h.says(&[("ada", word)], &[]);
        assert_eq!(used(&h.w.core, &h.ada), sum);
    }
    h.says(&[("bob1", 1.0)], &[]);
    assert_eq!(
        used(&h.w.core, &h.ada),
        "0.5",
        "Slurm knows nothing of hers any more"
    );
}

#[test]
fn jobs_of_her_own_put_a_user_back_whenever_they_ran() {
    let order = |h: &House| -> Vec<String> {
        let waiting = h.w.core.waiting().into_iter();
        waiting.map(|cell| cell.kernel.to_string()).collect()
    };
    let mut h = House::new();
    h.says(&[("bob1", 0.0), ("ada", 0.0)], &[]);
    h.w.submit(&h.ada.clone(), Need::gpus(1));
    h.w.submit(&h.bob.clone(), Need::gpus(1));
    assert_eq!(order(&h), ["b", "a"], "she has leased, he has not");
    h.says(&[("bob1", 30.0), ("ada", 0.0)], &[]);
    assert_eq!(order(&h), ["a", "b"]);
    // By their accounts alone.
    h.says(
        &[("bob1", 0.0), ("ada", 0.0)],
        &[("acct-0", 900.0), ("acct-1", 0.0)],
    );
    assert_eq!(order(&h), ["a", "b"]);
    h.says(
        &[("bob1", 0.0), ("ada", 0.0)],
        &[("acct-0", 0.0), ("acct-1", 0.0)],
    );
    assert_eq!(order(&h), ["b", "a"]);
}

#[test]
fn gpu_minutes_are_the_leases_and_slurms() {
    let mut h = House::new();
    let limit = Limit {
        of: LimitOf::Account("acct-1".into()),
        gpus: None,
        gpu_minutes: Some(100),
        name: "GrpTRESMins of account acct-1".into(),
    };
    h.w.tell(Input::Limits(Limits {
        limits: vec![limit],
        ..Limits::default()
    }));
    let ada = h.ada.clone();
    // Her user's hours are those of the account, and count once.
    h.says(&[("ada", 1.5)], &[("acct-1", 1.5)]);
    let minutes = used_up(&mut h.w, &ada).unwrap();
    assert!(
        (118..=120).contains(&minutes),
        "30 leased and 90 of jobs: {minutes}"
    );
    h.says(&[("ada", 1.0)], &[("acct-1", 1.0)]);
    assert_eq!(used_up(&mut h.w, &ada), None, "90 of 100 are used");
}

/// Ada's association with the account of her kernels allows so many GPU-minutes.
fn minutes_of_ada(minutes: u64) -> Input {
    Input::Limits(Limits {
        limits: vec![Limit {
            of: LimitOf::Members {
                who: vec![("ada".into(), Some("acct-1".into())), ("ada".into(), None)],
                count: Count::Users,
            },
            gpus: None,
            gpu_minutes: Some(minutes),
            name: "GrpTRESMins of ada in account acct-1".into(),
        }],
        ..Limits::default()
    })
}

/// The GPU-minutes for which the kernel's next cell is refused.
fn used_up(w: &mut World, kernel: &KernelId) -> Option<u64> {
    let (_, out) = w.submit(kernel, Need::gpus(1));
    out.into_iter().find_map(|o| match o {
        Output::Refused {
            reason: RefusedBecause::UsedUp { used, .. },
            ..
        } => Some(used),
        _ => None,
    })
}

#[test]
fn gpu_minutes_of_an_association_are_those_of_its_account() {
    let mut h = House::new();
    h.w.tell(minutes_of_ada(100));
    let ada = h.ada.clone();
    let says = |h: &mut House, arts: f64, here: f64| {
        let all = [("ada", arts + here)];
        let mut shares = shares(h.w.now, &all, &[("arts", arts), ("acct-1", here)]);
        let share = |hours: f64| Share {
            weight: 1.0,
            usage: hours * HOUR,
        };
        shares.associations = vec![
            ("ada".into(), "arts".into(), share(arts)),
            ("ada".into(), "acct-1".into(), share(here)),
        ];
        h.w.tell(Input::Shares(shares));
    };
    says(&mut h, 30.0, 0.0);
    assert_eq!(
        used_up(&mut h.w, &ada),
        None,
        "she has used them in another account"
    );
    says(&mut h, 0.0, 1.5);
    let minutes = used_up(&mut h.w, &ada).unwrap();
    assert!(
        (118..=120).contains(&minutes),
        "30 leased and 90 of jobs: {minutes}"
    );
}

#[test]
fn the_journal_has_what_leases_used_and_the_driver_says_the_rest_again() {
    let mut w = World::new(1, config(), pool());
    w.pilot("n0", 1, 8);
    let ada = w.kernel("a", "ada", &["n0"], 1);
    let (cell, _) = w.submit(&ada, Need::gpus(1));
    w.settle();
    w.now = w.now + Span::from_secs(1800);
    w.end_cell(&ada, &cell);
    w.pass(Span::from_secs(2));
    w.settle();
    let (now, last) = (w.now, shares(w.now, &[("ada", 8.3)], &[]));
    w.tell(Input::Shares(shares(now, &[("ada", 1.0)], &[("acct-1", 1.0)])));
    // Usage is noted as the next lease begins.
    let journal = entries(w.submit(&ada, Need::gpus(1)).1);
    let waits = |journal: Vec<Entry>, now: Timestamp, told: Option<Shares>| {
        let lines = journal.iter().map(|e| serde_json::to_string(e).unwrap());
        let journal: Vec<Entry> = lines.map(|l| serde_json::from_str(&l).unwrap()).collect();
        let mut w = World::new(1, config(), pool());
        w.now = now;
        w.core = Core::restore(config(), vec![pool()], journal, now, &mut Vec::new());
        w.core.sanity_check().unwrap();
        if let Some(told) = told {
            w.tell(Input::Shares(told));
        }
        let ada = w.kernel("z", "ada", &["n9"], 1);
        w.submit(&ada, Need::gpus(1));
        let used = used(&w.core, &ada);
        // A limit on her association counts the leases alone.
        w.tell(minutes_of_ada(1));
        let other = w.kernel("y", "ada", &["n9"], 1);
        (used, used_up(&mut w, &other))
    };
    assert_eq!(waits(journal.clone(), now, None), ("0.5".into(), Some(30)));
    assert_eq!(
        waits(journal.clone(), now, Some(last.clone())),
        ("8.8".into(), Some(30))
    );
    // Slurm's last word is a week old: both parts are halved.
    let week = now + Span::from_secs(7 * 86_400);
    assert_eq!(waits(journal, week, Some(last)), ("4.4".into(), Some(15)));
}

/// Nobody says anything of shares: what Alice's cells use while others of hers wait puts those back by itself.
#[test]
fn use_while_cells_wait_puts_their_user_back() {
    let mut w = World::new(1, config(), pool());
    w.pilot("n0", 1, 8);
    let bob = w.kernel("b", "bob", &["n0"], 1);
    let (cell, _) = w.submit(&bob, Need::gpus(1));
    w.settle();
    w.pass(Span::from_secs(60));
    w.end_cell(&bob, &cell);
    w.settle();
    let alices: Vec<KernelId> = (0..30)
        .map(|i| w.kernel(&format!("a{i}"), "alice", &["n0"], 1))
        .collect();
    for kernel in &alices {
        w.submit(kernel, Need::gpus(1));
        w.settle();
    }
    w.submit(&bob, Need::gpus(1));
    let mut hours = 0;
    while w.waiting.iter().any(|(k, _)| *k == bob) {
        hours += 1;
        assert!(hours <= 2, "{:?}", w.core.waiting());
        (0..60).for_each(|_| _ = w.pass(Span::from_secs(60)));
        let (kernel, cell) = w.running.keys().next().expect("the GPU is taken").clone();
        w.end_cell(&kernel, &cell);
        w.settle();
        w.pass(Span::from_secs(2));
        w.settle();
    }
}
