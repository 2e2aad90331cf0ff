//! The answer to [`Request::Explain`](super::Request::Explain): typed items, and their sentences for callers that know
//! none.

use super::{LossRow, MoveFailure, MoveRow};
use hop_words::explain::{Item, Parts};
use hop_words::id::{CellId, JobId, KernelId};
use hop_words::time::{Span, spell};
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub kernel: KernelId,
    pub cell: Option<CellId>,
    /// The sentence of each item, the most important first.
    pub sentences: Vec<String>,
    /// Empty from a `hopd` of 2026-11 and before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Told>,
}

impl Explanation {
    pub fn new(kernel: KernelId, cell: Option<CellId>, items: Vec<Told>) -> Self {
        Self {
            kernel,
            cell,
            sentences: items.iter().filter_map(Told::sentence).collect(),
            items,
        }
    }
}

/// One statement of an explanation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Told {
    /// On the cell or its lease.
    Cell(Item),
    /// On the kernel.
    Kernel(KernelItem),
    /// An item of a newer `hopd`, or of one whose item has other fields: its sentence is at the same place among
    /// [`Explanation::sentences`].
    Newer(serde_json::Value),
}

impl Told {
    /// `None` means an item that only the sender can word.
    pub fn sentence(&self) -> Option<String> {
        match self {
            Self::Cell(item) => Some(item.to_string()),
            Self::Kernel(item) => Some(item.to_string()),
            Self::Newer(_) => None,
        }
    }
}

impl From<Item> for Told {
    fn from(item: Item) -> Self {
        Self::Cell(item)
    }
}

impl From<KernelItem> for Told {
    fn from(item: KernelItem) -> Self {
        Self::Kernel(item)
    }
}

/// A statement on a kernel: its start, its sleep, its moves, and the obstacles to them. No name of an item is one of
/// [`Item`]'s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "kebab-case")]
pub enum KernelItem {
    /// No cell of the kernel waits or has a lease.
    NoCell,
    /// No process of the kernel has reported in this time.
    Starts {
        time: Span,
    },
    /// A seat of its user's waits in Slurm's queue, with Slurm's word for the reason.
    SeatWaits {
        job: JobId,
        why: String,
    },
    Asleep,
    /// The loss of its executor, until a replica reports.
    Lost(LossRow),
    /// The part of each of its replicas.
    Replicas(Parts),
    Moves(MoveRow),
    /// Time until Slurm's time limit of the kernel's seat.
    SeatEnds {
        job: JobId,
        within: Span,
    },
    MoveFailed(MoveFailure),
    /// Why the kernel did not hibernate when last asked to.
    StayedAwake {
        why: String,
    },
    /// Why a kernel that captures is not saved now.
    Unsaved {
        why: String,
    },
    /// Why policy leaves the kernel where it is.
    Stays {
        why: String,
    },
    /// Why Slurm takes no pilot that its cells wait for.
    Unsubmitted {
        why: String,
    },
    /// Why Slurm has not started the pilot that its cells wait for, as a clause.
    Unstarted {
        why: String,
    },
}

impl fmt::Display for KernelItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCell => f.write_str("No cell of it waits or has a lease."),
            Self::Starts { time } => write!(
                f,
                "The kernel has been starting for {}, and all its cells wait for that: no process of it has reported. \
                 `squeue` shows whether the job of its seat waits, and for what.",
                spell(*time)
            ),
            Self::SeatWaits { job, why } => {
                write!(
                    f,
                    "A seat of its user's (job {job}) waits in Slurm's queue: {why}."
                )
            }
            Self::Asleep => f.write_str("The kernel sleeps: its state is in its user's home."),
            Self::Lost(loss) => write!(f, "The kernel runs no cell now: {loss}."),
            Self::Replicas(parts) => parts.fmt(f),
            Self::Moves(MoveRow { to, cause, .. }) => write!(f, "The kernel moves to {to}: {cause}."),
            Self::SeatEnds { job, within } => {
                let minutes = within.0 / 60_000_000;
                write!(
                    f,
                    "Its seat (job {job}) ends in {minutes} min by Slurm's time limit."
                )
            }
            Self::MoveFailed(MoveFailure { to, reason, .. }) => {
                write!(f, "Its last move, to {to}, failed: {reason}.")
            }
            Self::StayedAwake { why } => write!(f, "It was asked to hibernate and did not: {why}."),
            Self::Unsaved { why } => write!(
                f,
                "It is not saved: {why}. If its process or its node is lost, its variables are too."
            ),
            Self::Stays { why } => write!(f, "It is not moved to where GPUs are free: {why}."),
            Self::Unsubmitted { why } => write!(
                f,
                "The submission of a job with GPUs for it failed, and is tried again: {why}."
            ),
            Self::Unstarted { why } => write!(f, "{why}."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::LossStage;
    use hop_words::explain::LeasePhase;
    use hop_words::id::{Incarnation, LeaseId};
    use hop_words::lease::ParkAsk;
    use hop_words::reason::{Reason, Yours};
    use hop_words::replica::{MoveCause, ReplicaRole, ReplicaRow};
    use hop_words::time::Timestamp;

    fn every_item() -> Vec<Told> {
        let minute = Span::from_secs(60);
        let why = || "it holds a socket".to_owned();
        let of_cell = [
            Item::FreeElsewhere {
                kernel: "k".into(),
                here: "n0".into(),
                on: vec!["n1".into()],
                more: 2,
            },
            Item::Waits(Reason::NoReplica),
            Item::Waits(Reason::GpusBusy {
                node: "n0".into(),
                gpus: 1,
                fitting: 2,
                yours: Yours::default(),
            }),
            Item::Position { ahead: 1 },
            Item::Expected { within: Some(minute) },
            Item::Expected { within: None },
            Item::Parked { ran: minute },
            Item::Waited { time: minute },
            Item::Due,
            Item::FairShare {
                user: "ada".into(),
                gpu_hours: 1.5,
            },
            Item::Lease {
                lease: LeaseId(1),
                gpus: 1,
                cpus: 2,
                node: "n0".into(),
                phase: LeasePhase::Delayed,
                time: minute,
            },
            Item::Holds {
                lease: LeaseId(1),
                gpus: 1,
                cpus: 2,
                node: "n0".into(),
                time: minute,
                why: why(),
                lingers: true,
            },
            Item::Quantum {
                after: minute,
                asked: ParkAsk::No,
            },
        ];
        let of_kernel = [
            KernelItem::NoCell,
            KernelItem::Starts { time: minute },
            KernelItem::SeatWaits {
                job: JobId(7),
                why: "Resources".to_owned(),
            },
            KernelItem::Asleep,
            KernelItem::Lost(LossRow {
                node: "n0".into(),
                stage: LossStage::Lost,
                since: Timestamp(1),
            }),
            KernelItem::Replicas(Parts {
                executor: Incarnation(1),
                node: "n0".into(),
                away: false,
                leader: Some(Incarnation(2)),
                standbys: vec![ReplicaRow {
                    incarnation: Incarnation(2),
                    role: ReplicaRole::Warm,
                    node: "n1".into(),
                    seat: JobId(8),
                    behind: Some(3),
                }],
            }),
            KernelItem::Moves(MoveRow {
                to: "n1".into(),
                cause: MoveCause::Drain,
                since: Timestamp(1),
            }),
            KernelItem::SeatEnds {
                job: JobId(7),
                within: minute,
            },
            KernelItem::MoveFailed(MoveFailure {
                to: "n1".into(),
                reason: why(),
                at: Timestamp(1),
            }),
            KernelItem::StayedAwake { why: why() },
            KernelItem::Unsaved { why: why() },
            KernelItem::Stays { why: why() },
            KernelItem::Unsubmitted { why: why() },
            KernelItem::Unstarted { why: why() },
        ];
        let of_cell = of_cell.into_iter().map(Told::from);
        of_cell.chain(of_kernel.into_iter().map(Told::from)).collect()
    }

    #[test]
    fn every_item_is_read_as_it_was_written() {
        for told in every_item() {
            let text = serde_json::to_string(&told).unwrap();
            assert_eq!(serde_json::from_str::<Told>(&text).unwrap(), told, "{text}");
        }
    }

    #[test]
    fn an_item_of_a_newer_hopd_spoils_no_answer() {
        let text = r#"{"kernel": "k", "cell": null, "sentences": ["A.", "B.", "C.", "D."], "items": [
            {"item": "due"}, {"item": "of-2030", "x": 1}, {"item": "waits", "reason": "of-2030"}, 7]}"#;
        let read: Explanation = serde_json::from_str(text).unwrap();
        let [
            Told::Cell(Item::Due),
            Told::Newer(newer),
            Told::Newer(_),
            Told::Newer(_),
        ] = &read.items[..]
        else {
            panic!("{read:?}")
        };
        assert_eq!(newer["x"], 1, "kept for JSON");
    }

    #[test]
    fn an_older_hopds_sentence_on_the_replicas_is_shown() {
        let told: Told = serde_json::from_str(r#"{"item": "replicas", "roles": "A."}"#).unwrap();
        assert!(matches!(told, Told::Newer(_)), "{told:?}");
    }

    #[test]
    fn an_older_hopd_sends_sentences_alone() {
        let text = r#"{"kernel": "k", "cell": null, "sentences": ["A."]}"#;
        let read: Explanation = serde_json::from_str(text).unwrap();
        assert_eq!((read.sentences.len(), read.items.len()), (1, 0));
    }

    #[test]
    fn each_item_has_its_sentence() {
        let told = Explanation::new("k".into(), None, every_item());
        assert_eq!(told.sentences.len(), told.items.len());
    }
}
