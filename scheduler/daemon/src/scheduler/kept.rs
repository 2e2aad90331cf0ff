//! Memory of kernels beyond their replicas: hibernated kernels, requests to kernels, moves, and losses of executors.
//! Pure.

use hop_api::message::{LossRow, LossStage, MoveCause, MoveFailure, MoveRow};
use hop_words::id::{Incarnation, KernelId, NodeName, PoolName, Tenure, UserName};
use hop_words::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// A kernel that hibernates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asleep {
    pub(crate) user: UserName,
    pub(crate) name: String,
    pub(crate) pool: PoolName,
    pub(crate) since: Timestamp,
    /// The tenure that hibernated the kernel: only a later tenure wakes the kernel.
    pub(crate) tenure: Tenure,
}

/// A replica on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// The new replica.
    pub(super) incarnation: Incarnation,
    pub(super) row: MoveRow,
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    asleep: BTreeMap<KernelId, Asleep>,
    /// Kernels that were asked to hibernate and have not answered.
    asked: HashMap<KernelId, Timestamp>,
    /// Why a kernel did not hibernate when it was asked to last.
    stayed: HashMap<KernelId, String>,
    moves: HashMap<KernelId, Move>,
    failed: HashMap<KernelId, MoveFailure>,
    /// Kernels whose executor is silent or lost, until a replica reports.
    losses: HashMap<KernelId, LossRow>,
}

impl Kept {
    // --- asleep ---

    pub(super) fn falls_asleep(&mut self, kernel: KernelId, asleep: Asleep) {
        self.forget_awake(&kernel);
        self.asleep.insert(kernel, asleep);
    }

    /// The kernel is awake, or nobody's any more; says whether it slept.
    pub(super) fn wakes(&mut self, kernel: &KernelId) -> bool {
        self.asleep.remove(kernel).is_some()
    }

    /// Gives a hibernated kernel's notebook another name. Returns the record if the name is new.
    pub(super) fn rename(&mut self, kernel: &KernelId, name: String) -> Option<&Asleep> {
        let asleep = self.asleep.get_mut(kernel).filter(|known| known.name != name)?;
        asleep.name = name;
        Some(asleep)
    }

    pub(super) fn asleep(&self, kernel: &KernelId) -> Option<&Asleep> {
        self.asleep.get(kernel)
    }

    pub(super) fn all_asleep(&self) -> impl Iterator<Item = (&KernelId, &Asleep)> {
        self.asleep.iter()
    }

    /// Hibernated kernels of the user beyond the `most` that are kept, the longest asleep first.
    pub(super) fn too_many(&self, user: &UserName, most: usize) -> Vec<KernelId> {
        let theirs = self.asleep.iter().filter(|(_, a)| a.user == *user);
        let mut theirs: Vec<_> = theirs.map(|(id, a)| (a.since, id.clone())).collect();
        theirs.sort();
        let beyond = theirs.len().saturating_sub(most);
        theirs.into_iter().take(beyond).map(|(_, id)| id).collect()
    }

    // --- asked to hibernate ---

    pub(super) fn asked_to_sleep(&mut self, kernel: KernelId, now: Timestamp) {
        self.stayed.remove(&kernel);
        self.asked.insert(kernel, now);
    }

    pub(super) fn saves_since(&self, kernel: &KernelId) -> Option<Timestamp> {
        self.asked.get(kernel).copied()
    }

    /// The kernel goes on, though it was asked to hibernate.
    pub(super) fn stays(&mut self, kernel: &KernelId, why: String) {
        if self.asked.remove(kernel).is_some() {
            self.stayed.insert(kernel.clone(), why);
        }
    }

    pub(super) fn stayed(&self, kernel: &KernelId) -> Option<&String> {
        self.stayed.get(kernel)
    }

    // --- moves ---

    pub(super) fn moves(
        &mut self,
        kernel: KernelId,
        incarnation: Incarnation,
        to: NodeName,
        cause: MoveCause,
        since: Timestamp,
    ) {
        self.failed.remove(&kernel);
        let row = MoveRow { to, cause, since };
        self.moves.insert(kernel, Move { incarnation, row });
    }

    /// The move under way.
    pub(super) fn moving(&self, kernel: &KernelId) -> Option<&Move> {
        self.moves.get(kernel)
    }

    pub(super) fn has_moved(&mut self, kernel: &KernelId) {
        self.moves.remove(kernel);
        self.failed.remove(kernel);
    }

    /// The move to this replica failed.
    pub(super) fn move_failed(
        &mut self,
        kernel: &KernelId,
        incarnation: Incarnation,
        reason: String,
        at: Timestamp,
    ) {
        let Some(moved) = self.moves.get(kernel).filter(|m| m.incarnation == incarnation) else {
            return;
        };
        let to = moved.row.to.clone();
        self.moves.remove(kernel);
        self.failed.insert(kernel.clone(), MoveFailure { to, reason, at });
    }

    pub(super) fn failure(&self, kernel: &KernelId) -> Option<&MoveFailure> {
        self.failed.get(kernel)
    }

    // --- losses ---

    /// The kernel's executor on the node is lost, as far as this stage says. A stage before the present one is no news.
    pub(super) fn loses(&mut self, kernel: &KernelId, node: NodeName, stage: LossStage, since: Timestamp) {
        if self.losses.get(kernel).is_none_or(|known| known.stage < stage) {
            self.losses.insert(kernel.clone(), LossRow { node, stage, since });
        }
    }

    /// A replica of the kernel is there.
    pub(super) fn reports(&mut self, kernel: &KernelId) {
        self.losses.remove(kernel);
    }

    pub(super) fn loss(&self, kernel: &KernelId) -> Option<&LossRow> {
        self.losses.get(kernel)
    }

    /// Forgets a kernel without processes. A hibernated kernel's entry stays.
    pub(super) fn forget_awake(&mut self, kernel: &KernelId) {
        self.asked.remove(kernel);
        self.stayed.remove(kernel);
        self.moves.remove(kernel);
        self.failed.remove(kernel);
        self.losses.remove(kernel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asleep(user: &str, since: u64) -> Asleep {
        Asleep {
            user: user.into(),
            name: "a.ipynb".into(),
            pool: "main".into(),
            since: Timestamp(since),
            tenure: Tenure(1),
        }
    }

    #[test]
    fn the_first_to_fall_asleep_go_first() {
        let mut kept = Kept::default();
        for (id, user, since) in [("a", "ada", 3), ("b", "ada", 1), ("c", "bob", 0), ("d", "ada", 2)] {
            kept.falls_asleep(id.into(), asleep(user, since));
        }
        assert_eq!(kept.too_many(&"ada".into(), 3), []);
        assert_eq!(kept.too_many(&"ada".into(), 1), ["b".into(), "d".into()]);
        assert_eq!(kept.too_many(&"eve".into(), 0), []);
    }

    #[test]
    fn a_late_answer_of_an_earlier_move_says_nothing_of_this_one() {
        let mut kept = Kept::default();
        let kernel = KernelId::from("a");
        kept.moves(
            kernel.clone(),
            Incarnation(4),
            "n1".into(),
            MoveCause::Asked,
            Timestamp(1),
        );
        kept.move_failed(&kernel, Incarnation(3), "late".into(), Timestamp(2));
        assert!(kept.moving(&kernel).is_some() && kept.failure(&kernel).is_none());
        kept.move_failed(&kernel, Incarnation(4), "no seat".into(), Timestamp(2));
        assert!(kept.moving(&kernel).is_none());
        assert_eq!(kept.failure(&kernel).unwrap().reason, "no seat");
    }

    #[test]
    fn only_a_kernel_that_was_asked_has_stayed() {
        let mut kept = Kept::default();
        let kernel = KernelId::from("a");
        kept.stays(&kernel, "nobody asked".into());
        assert_eq!(kept.stayed(&kernel), None);
        kept.asked_to_sleep(kernel.clone(), Timestamp(1));
        kept.stays(&kernel, "a cell runs".into());
        assert_eq!(kept.stayed(&kernel).unwrap(), "a cell runs");
    }
}
