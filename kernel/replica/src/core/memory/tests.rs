//! The place of a kernel's GPU memory, in every order of events.

use super::Act::*;
use super::*;

fn why() -> String {
    "why".into()
}

#[test]
fn off_at_the_end_of_a_lease_and_back_before_the_next() {
    let mut park = Park::default();
    assert_eq!(park.granted(), [Proceed]);
    assert_eq!(park.lease_over(), [Leave]);
    assert_eq!(park.left(Left::Parked), []);
    assert_eq!(park.lease_over(), [], "of a lease without GPUs' use");
    assert_eq!(park.granted(), [Return]);
    assert_eq!(park.returned(Returned::Back), [Proceed]);
    assert_eq!(park, Park::Home);
}

#[test]
fn what_holds_nothing_goes_on() {
    let mut park = Park::default();
    park.lease_over();
    assert_eq!(park.granted(), []);
    assert_eq!(park.left(Left::Nothing), [Proceed]);
    assert_eq!(park, Park::Home);
}

#[test]
fn a_lease_that_comes_while_it_leaves_waits_for_there_and_back() {
    let mut park = Park::default();
    park.lease_over();
    assert_eq!(park.granted(), []);
    assert_eq!(park.left(Left::Parked), [Return]);
    assert_eq!(park.returned(Returned::Back), [Proceed]);
}

#[test]
fn what_cannot_leave_is_told_and_may_go_on_with_a_new_lease() {
    let mut park = Park::default();
    park.lease_over();
    assert_eq!(park.left(Left::Failed(why())), [Warn(why())]);
    assert_eq!(park.lease_over(), [Leave], "tried again with the next lease");
    assert_eq!(park.granted(), []);
    assert_eq!(park.left(Left::Failed(why())), [Warn(why()), Proceed]);
    park.lease_over();
    assert_eq!(park.left(Left::Half(why())), [Warn(why())]);
    assert_eq!(
        park.granted(),
        [Return],
        "what is in host memory comes back first"
    );
}

#[test]
fn what_cannot_come_back_refuses_the_lease_and_stays_safe() {
    let mut park = Park::Away;
    park.granted();
    assert_eq!(park.returned(Returned::StillAway(why())), [Refuse(why())]);
    assert_eq!(park, Park::Away);
    park.granted();
    assert_eq!(park.returned(Returned::Half(why())), [Refuse(why()), Leave]);
    assert_eq!(park.left(Left::Parked), []);
    assert_eq!(park, Park::Away);
}

#[test]
fn a_lease_that_ends_meanwhile_is_left_again() {
    for (how, out) in [
        (Returned::Back, vec![Leave]),
        (Returned::Half(why()), vec![Leave]),
        (Returned::StillAway(why()), vec![]),
    ] {
        let mut park = Park::Away;
        park.granted();
        assert_eq!(park.lease_over(), []);
        assert_eq!(park.returned(how), out);
    }
    let mut park = Park::Away;
    park.granted();
    park.lease_over();
    assert_eq!(park.granted(), []);
    assert_eq!(
        park.returned(Returned::Back),
        [Leave],
        "it is on the other lease's GPU"
    );
    assert_eq!(park.left(Left::Parked), [Return]);
    assert_eq!(park.returned(Returned::Back), [Proceed]);
}

#[test]
fn a_cell_is_stopped_in_its_middle_and_goes_on_with_the_next_lease() {
    let mut park = Park::default();
    park.granted();
    assert_eq!(park.asked(), [Stop]);
    assert_eq!(park.asked(), [], "asked twice");
    assert_eq!(park.stopped(Left::Parked), [Stopped]);
    assert_eq!(park.granted(), [Return]);
    assert_eq!(park.returned(Returned::Back), [Proceed]);
    assert_eq!(park.asked(), [Stop]);
    assert_eq!(park.stopped(Left::Failed(why())), [RunsOn(why())]);
    assert_eq!(park, Park::Home);
    for mut busy in [
        Park::Away,
        Park::Leaving { wanted: false },
        Park::Returning(Target::Held),
    ] {
        assert!(matches!(&busy.asked()[..], [RunsOn(_)]));
    }
}

#[test]
fn a_cell_that_ends_while_it_is_stopped_is_as_any_that_has_ended() {
    let stopping = || {
        let mut park = Park::default();
        park.asked();
        park.cell_ended();
        park
    };
    let mut park = stopping();
    assert_eq!(park.stopped(Left::Parked), []);
    assert_eq!(park, Park::Away);
    let mut park = stopping();
    assert_eq!(park.stopped(Left::Failed(why())), []);
    assert_eq!(park, Park::Home);
    // Its lease goes on with the next cell.
    let mut park = stopping();
    assert_eq!(park.granted(), []);
    assert_eq!(park.stopped(Left::Parked), [Return]);
    let mut park = stopping();
    park.granted();
    assert_eq!(park.stopped(Left::Failed(why())), [Proceed]);
    // Or is over.
    let mut park = stopping();
    assert_eq!(park.lease_over(), []);
    assert!(park.is_leaving());
    assert_eq!(park.stopped(Left::Failed(why())), [Leave], "the usual way");
    let mut park = stopping();
    park.lease_over();
    assert_eq!(park.stopped(Left::Parked), []);
    assert!(!park.is_leaving());
}

/// As its user and the scheduler see a kernel whose cells are stopped.
#[derive(Default)]
struct Seen {
    busy: bool,
    /// A grant waits to be answered, and an ask.
    waits: bool,
    asked: bool,
    runs: bool,
    stands: bool,
}

impl Seen {
    fn see(&mut self, out: Vec<Act>) {
        for output in out {
            match output {
                Leave | Return | Stop => {
                    assert!(!std::mem::replace(&mut self.busy, true), "two at once");
                    assert!(!self.runs || output == Stop, "a cell runs");
                }
                Proceed => {
                    assert!(std::mem::take(&mut self.waits), "nobody waits");
                    (self.runs, self.stands) = (true, false);
                }
                Refuse(_) => assert!(std::mem::take(&mut self.waits), "nobody waits"),
                Stopped => {
                    assert!(std::mem::take(&mut self.asked) && std::mem::take(&mut self.runs));
                    self.stands = true;
                }
                RunsOn(_) => assert!(std::mem::take(&mut self.asked) && self.runs),
                Warn(_) => {}
            }
        }
    }

    /// The present step ends.
    fn end(&mut self, park: &mut Park, well: bool) -> Vec<Act> {
        let (left, returned) = match well {
            true => (Left::Parked, Returned::Back),
            false => (Left::Failed(why()), Returned::StillAway(why())),
        };
        match (std::mem::take(&mut self.busy), *park) {
            (true, Park::Stopping(_)) => park.stopped(left),
            (true, Park::Leaving { .. }) => park.left(left),
            (true, Park::Returning(_)) => park.returned(returned),
            _ => Vec::new(),
        }
    }
}

/// Whatever comes in whatever order: who asks for a stop is answered once, while that cell runs; nothing leaves in
/// another way while one runs; and each grant is answered.
#[test]
fn every_order_of_stops_ends() {
    const STEPS: usize = 7;
    for number in 0..6usize.pow(STEPS as u32) {
        let (mut park, mut seen) = (Park::default(), Seen::default());
        let chosen = (0..STEPS).map(|i| number / 6usize.pow(i as u32) % 6);
        // At the end everything succeeds.
        for step in chosen.chain([4; 4]) {
            let out = match step {
                0 if !seen.waits && !seen.runs => {
                    seen.waits = true;
                    park.granted()
                }
                1 if !seen.runs => {
                    seen.waits = false;
                    park.lease_over()
                }
                2 if seen.runs => {
                    (seen.runs, seen.asked) = (false, false);
                    park.cell_ended();
                    Vec::new()
                }
                3 if seen.runs && !seen.asked => {
                    seen.asked = true;
                    park.asked()
                }
                4 => seen.end(&mut park, true),
                5 => seen.end(&mut park, false),
                _ => Vec::new(),
            };
            seen.see(out);
        }
        let open = seen.busy || seen.waits || seen.asked;
        assert!(!open, "{number}: {park:?}");
    }
}

/// Whatever comes in whatever order, each grant is answered once all that was begun has ended, and only one of
/// leaving and returning is under way.
#[test]
fn every_order_ends() {
    #[derive(Clone, Copy)]
    enum Do {
        Grant,
        Over,
        End(bool),
    }
    let steps = [Do::Grant, Do::Over, Do::End(true), Do::End(false)];
    for number in 0..4usize.pow(6) {
        let mut park = Park::default();
        let (mut busy, mut waits) = (false, false);
        let chosen = (0..6).map(|i| steps[number / 4usize.pow(i) % 4]);
        // At the end everything succeeds.
        for step in chosen.chain([Do::End(true); 4]) {
            let out = match step {
                Do::Grant if !waits => {
                    waits = true;
                    park.granted()
                }
                Do::Over => {
                    waits = false;
                    park.lease_over()
                }
                Do::End(well) => {
                    let was = std::mem::take(&mut busy);
                    match (park, well) {
                        (Park::Leaving { .. }, true) if was => park.left(Left::Parked),
                        (Park::Leaving { .. }, false) if was => park.left(Left::Failed(why())),
                        (Park::Returning(_), true) if was => park.returned(Returned::Back),
                        (Park::Returning(_), false) if was => park.returned(Returned::StillAway(why())),
                        _ => Vec::new(),
                    }
                }
                Do::Grant => Vec::new(),
            };
            for output in out {
                match output {
                    Leave | Return => {
                        assert!(!busy, "two at once");
                        busy = true;
                    }
                    Proceed | Refuse(_) => {
                        assert!(std::mem::take(&mut waits), "nobody waits");
                    }
                    Warn(_) | Stop | Stopped | RunsOn(_) => {}
                }
            }
        }
        assert!(!busy && !waits, "{number}: {park:?}");
    }
}
