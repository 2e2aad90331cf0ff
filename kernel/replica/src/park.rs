//! Where what the kernel holds on its GPUs is, and what becomes of it when leases come and go. Pure: whoever calls it
//! takes it off and brings it back (`run::parking`).

/// Where it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Park {
    /// On its GPUs, or there is nothing.
    #[default]
    Home,
    /// Being taken off. `wanted`: a new lease waits for the end of that.
    Leaving { wanted: bool },
    /// In host memory.
    Away,
    /// Being brought back for a lease.
    Returning(Lease),
}

/// What became meanwhile of the lease that something is brought back for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    Held,
    Over,
    /// It is over, and there is another.
    Another,
}

/// How taking it off ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// Nothing was held.
    Nothing,
    Parked,
    /// Some of it is in host memory, the rest still on the GPU. The text says why.
    Half(String),
    /// It is on the GPU. The text says why.
    Failed(String),
}

/// How bringing it back ended. The texts say why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    Back,
    StillAway(String),
    Half(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Leave,
    Return,
    /// The lease that waits can be used.
    Proceed,
    /// It can't.
    Refuse(String),
    /// The kernel's user should know that it is still on a GPU whose lease is over.
    Warn(String),
}

impl Park {
    /// A lease of GPUs was granted: nothing else may be granted before [`Output::Proceed`] or [`Output::Refuse`].
    pub fn granted(&mut self) -> Vec<Output> {
        match self {
            Self::Home => vec![Output::Proceed],
            Self::Leaving { wanted } => {
                *wanted = true;
                Vec::new()
            }
            Self::Away => self.go_back(),
            Self::Returning(lease) => {
                *lease = Lease::Another;
                Vec::new()
            }
        }
    }

    /// The lease is over, and no cell runs on it.
    pub fn lease_over(&mut self) -> Vec<Output> {
        match self {
            Self::Home => self.leave(false),
            Self::Leaving { wanted } => {
                *wanted = false;
                Vec::new()
            }
            Self::Away => Vec::new(),
            Self::Returning(lease) => {
                *lease = Lease::Over;
                Vec::new()
            }
        }
    }

    pub fn left(&mut self, how: Left) -> Vec<Output> {
        let Self::Leaving { wanted } = *self else {
            return Vec::new();
        };
        match how {
            Left::Nothing => {
                *self = Self::Home;
                proceed(wanted).collect()
            }
            Left::Parked if wanted => self.go_back(),
            Left::Parked => {
                *self = Self::Away;
                Vec::new()
            }
            Left::Half(why) => {
                let mut out = vec![Output::Warn(why)];
                *self = Self::Away;
                if wanted {
                    out.extend(self.go_back());
                }
                out
            }
            Left::Failed(why) => {
                *self = Self::Home;
                std::iter::once(Output::Warn(why))
                    .chain(proceed(wanted))
                    .collect()
            }
        }
    }

    pub fn returned(&mut self, how: Returned) -> Vec<Output> {
        let Self::Returning(lease) = *self else {
            return Vec::new();
        };
        match (how, lease) {
            (Returned::Back, Lease::Held) => {
                *self = Self::Home;
                vec![Output::Proceed]
            }
            (Returned::Back | Returned::Half(_), Lease::Over) => self.leave(false),
            // On the GPU of a lease that is over: off it, and onto the other's.
            (Returned::Back | Returned::Half(_), Lease::Another) => self.leave(true),
            (Returned::StillAway(_), Lease::Another) => self.go_back(),
            (Returned::StillAway(_), Lease::Over) => {
                *self = Self::Away;
                Vec::new()
            }
            (Returned::StillAway(why), Lease::Held) => {
                *self = Self::Away;
                vec![Output::Refuse(why)]
            }
            (Returned::Half(why), Lease::Held) => {
                let mut out = vec![Output::Refuse(why)];
                out.extend(self.leave(false));
                out
            }
        }
    }

    /// Whether it is on its way off a GPU whose lease is over, or will be once it is back.
    pub fn is_leaving(&self) -> bool {
        matches!(
            self,
            Self::Leaving { .. } | Self::Returning(Lease::Over | Lease::Another)
        )
    }

    fn leave(&mut self, wanted: bool) -> Vec<Output> {
        *self = Self::Leaving { wanted };
        vec![Output::Leave]
    }

    fn go_back(&mut self) -> Vec<Output> {
        *self = Self::Returning(Lease::Held);
        vec![Output::Return]
    }
}

fn proceed(wanted: bool) -> impl Iterator<Item = Output> {
    wanted.then_some(Output::Proceed).into_iter()
}

#[cfg(test)]
mod tests {
    use super::Output::*;
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
                        Warn(_) => {}
                    }
                }
            }
            assert!(!busy && !waits, "{number}: {park:?}");
        }
    }
}
