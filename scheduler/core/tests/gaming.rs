//! Two people who want the only GPU all the time: an honest one with one kernel, and one with eight cells at a time who goes
//! round fair share.

use crate::world::{World, by_hand};
use hop_core::config::Config;
use hop_words::id::{CellId, KernelId};
use hop_words::need::{Class, Need};
use hop_words::time::Span;

const AT_A_TIME: usize = 8;

/// The cheat's part of the cells of a minute that begin.
fn part(cheats: impl Fn(usize, &World) -> (String, Need, Class)) -> f64 {
    let mut w = World::new(1, Config::default(), by_hand(2, 8));
    w.pilot("n0", 1, 8);
    let honest = w.kernel("honest", "ada", &["n0"], 1);
    let mut own = w.submit(&honest, Need::gpus(1)).0;
    let mut begun = 0;
    let mut next = |w: &mut World| -> (KernelId, CellId) {
        let (name, need, class) = cheats(begun, w);
        begun += 1;
        let kernel = name.as_str().into();
        let kernel = if w.kernels.contains_key(&kernel) {
            kernel
        } else {
            w.kernel(&name, "bob", &["n0"], 1)
        };
        let cell = w.submit_of(&kernel, need, class).0;
        (kernel, cell)
    };
    let mut cells: Vec<_> = (0..AT_A_TIME).map(|_| next(&mut w)).collect();
    let (mut theirs, all) = (0, 300);
    for _ in 0..all {
        w.settle();
        let lease = w
            .core
            .leases()
            .into_iter()
            .find(|l| l.state == "RUNNING")
            .expect("somebody runs");
        w.pass(Span::from_secs(60));
        if lease.kernel == honest {
            w.end_cell(&honest, &own);
            own = w.submit(&honest, Need::gpus(1)).0;
        } else {
            theirs += 1;
            let at = cells
                .iter()
                .position(|(k, c)| w.running.contains_key(&(k.clone(), c.clone())))
                .expect("one of theirs");
            let (kernel, cell) = cells.remove(at);
            w.end_cell(&kernel, &cell);
            cells.push(next(&mut w));
        }
    }
    f64::from(theirs) / f64::from(all)
}

/// By users alone it would be a half. `docs/security.md` has the rest as open.
#[test]
fn a_new_kernel_for_every_cell_is_worth_little() {
    let eight = |n: usize, _: &World| (format!("k{}", n % AT_A_TIME), Need::gpus(1), Class::Interactive);
    let new = |n: usize, _: &World| (format!("k{n}"), Need::gpus(1), Class::Interactive);
    let far = |n: usize, w: &World| {
        let deadline = Some(w.now + Span::from_secs(30 * 86_400));
        let need = Need {
            deadline,
            ..Need::gpus(1)
        };
        (format!("k{}", n % AT_A_TIME), need, Class::Deadline)
    };
    let parts = [part(eight), part(new), part(far)];
    assert!(parts[0] < 0.9 && parts[1] < 0.95 && parts[2] < 0.9, "{parts:?}");
}
