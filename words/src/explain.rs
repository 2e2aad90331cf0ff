//! An explanation of a cell's wait, item by item: its reason, its place, its expected start, and the lease it runs on.
//!
//! The core decides the items, the wire carries them, and an item's `Display` is its sentence. Items on a kernel's
//! start, sleep and moves are `hopd`'s own: `scheduler/api` has them, but for the replicas' [`Parts`].

use crate::id::{Incarnation, KernelId, LeaseId, NodeName, UserName};
use crate::lease::ParkAsk;
use crate::reason::{Reason, plural};
use crate::replica::{ReplicaRole, ReplicaRow};
use crate::time::{Span, spell};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A statement on a cell, or on the lease of its kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "item", rename_all = "kebab-case")]
pub enum Item {
    /// The cell could start at once if its kernel sat on another node.
    FreeElsewhere {
        kernel: KernelId,
        /// Node of the kernel.
        here: NodeName,
        /// The first nodes that have everything the cell needs.
        on: Vec<NodeName>,
        /// Number of further nodes.
        more: u32,
    },
    /// Why the cell waits.
    Waits(Reason),
    /// Number of cells before it for the same GPUs.
    Position { ahead: u32 },
    /// Expected time until its start. `None` means that too few cells like the ones ahead were seen.
    Expected { within: Option<Span> },
    /// The cell was parked after this run.
    Parked { ran: Span },
    /// Time since the cell's submission.
    Waited { time: Span },
    /// The cell has waited so long that it goes before all later ones.
    Due,
    /// GPU-hours that fair share counts for the cell's user.
    FairShare { user: UserName, gpu_hours: f64 },
    /// The kernel's lease.
    Lease {
        lease: LeaseId,
        gpus: u16,
        cpus: u16,
        node: NodeName,
        phase: LeasePhase,
        /// Time in this phase.
        time: Span,
    },
    /// The kernel can't let go of its lease.
    Holds {
        lease: LeaseId,
        gpus: u16,
        cpus: u16,
        node: NodeName,
        /// Time since the news of it.
        time: Span,
        why: String,
        /// Nobody waits for the GPUs: the lease lingers.
        lingers: bool,
    },
    /// How long the cell on the lease may run while others wait.
    Quantum { after: Span, asked: ParkAsk },
}

/// Phases of a lease, from the order to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeasePhase {
    /// Ordered while slurmctld doesn't answer.
    Delayed,
    Starting,
    Running,
    Lingering,
    Ending,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FreeElsewhere {
                kernel,
                here,
                on,
                more,
            } => write!(
                f,
                "What it needs is free on {}, but its kernel sits on {here}: `hop migrate {kernel}` takes the kernel \
                 there with its variables, a restarted kernel goes there without them.",
                nodes(on, *more)
            ),
            Self::Waits(reason) => write!(f, "The cell waits because {reason}."),
            Self::Position { ahead: 0 } => f.write_str("It is the next in line for these GPUs."),
            Self::Position { ahead: 1 } => f.write_str("One cell goes before it."),
            Self::Position { ahead } => write!(f, "{ahead} cells go before it."),
            Self::Expected { within: Some(within) } => {
                write!(f, "It is expected to start in {}.", spell(*within))
            }
            Self::Expected { within: None } => f.write_str(
                "How long it waits is not known yet: that is told once cells like those before it were seen a few times.",
            ),
            Self::Parked { ran } => write!(
                f,
                "It ran for {} and was parked for others; it goes on where its memory lies.",
                spell(*ran)
            ),
            Self::Waited { time } => write!(f, "It has waited for {}.", spell(*time)),
            Self::Due => f.write_str("It has waited so long that it goes before all that came later."),
            Self::FairShare { user, gpu_hours } => write!(
                f,
                "User {user} has used {gpu_hours:.1} GPU-hours lately; who has used less of their share goes first."
            ),
            Self::Lease { .. } | Self::Holds { .. } | Self::Quantum { .. } => self.write_lease(f),
        }
    }
}

impl Item {
    fn write_lease(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease {
                lease,
                gpus,
                cpus,
                node,
                phase,
                time,
            } => {
                let (lent, time) = (lent(*gpus, *cpus), spell(*time));
                match phase {
                    LeasePhase::Delayed => write!(
                        f,
                        "Lease {lease} of {lent} on {node} is to be started since {time}: Slurm's controller does not \
                         answer."
                    ),
                    LeasePhase::Starting => {
                        write!(
                            f,
                            "Lease {lease} of {lent} on {node} is being started since {time}."
                        )
                    }
                    LeasePhase::Running => {
                        write!(
                            f,
                            "The cell has run on lease {lease} of {lent} on {node} for {time}."
                        )
                    }
                    LeasePhase::Lingering => write!(
                        f,
                        "No cell waits; lease {lease} of {lent} on {node} is kept for the next."
                    ),
                    LeasePhase::Ending => {
                        write!(
                            f,
                            "Lease {lease} of {lent} on {node} is being ended since {time}."
                        )
                    }
                }
            }
            Self::Holds {
                lease,
                gpus,
                cpus,
                node,
                time,
                why,
                lingers,
            } => {
                let (lent, time) = (lent(*gpus, *cpus), spell(*time));
                let then = match lingers {
                    true => {
                        "Nobody waits for it, so it stays there, and counts as used. Once somebody waits, the kernel is \
                         warned first"
                    }
                    false => "It is warned",
                };
                write!(
                    f,
                    "No cell runs; the kernel can't let go of lease {lease} of {lent} on {node} since {time} ({why}). \
                     {then}, and ended if it still holds on."
                )
            }
            Self::Quantum { after, asked } => match asked {
                ParkAsk::Asked => f.write_str("It is asked to park: it has run for long, and others wait."),
                ParkAsk::Refused => {
                    f.write_str("It was asked to park for others and can't: it runs to its end.")
                }
                ParkAsk::No => write!(
                    f,
                    "After {} it may be parked, if it can be, for others who wait for its GPUs.",
                    spell(*after)
                ),
            },
            _ => Ok(()),
        }
    }
}

/// The part of each of a kernel's replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// The replica that runs the cells.
    pub executor: Incarnation,
    /// Node of the executor.
    pub node: NodeName,
    /// The executor's connection to `hopd` is lost.
    #[serde(default)]
    pub away: bool,
    /// The replica that leads the kernel's log. `None` means that none of these replicas is known to lead.
    pub leader: Option<Incarnation>,
    pub standbys: Vec<ReplicaRow>,
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leads = self.leader == Some(self.executor);
        write!(f, "Its replica {} on {}", self.executor, self.node)?;
        if self.away {
            // The standbys are known from the executor as well.
            f.write_str(" has lost its connection to the scheduler. By its last word it")?;
        }
        f.write_str(" runs its cells")?;
        if leads {
            f.write_str(" and leads its log")?;
        }
        for s in &self.standbys {
            let does = match (s.role, self.leader == Some(s.incarnation)) {
                (ReplicaRole::Hot, false) => "has its variables as well",
                (ReplicaRole::Hot, true) => "has its variables as well and leads its log",
                (ReplicaRole::Executor | ReplicaRole::Warm, false) => "has its log",
                (ReplicaRole::Executor | ReplicaRole::Warm, true) => "leads its log",
            };
            write!(f, "; replica {} on {} {does}", s.incarnation, s.node)?;
            match s.behind {
                Some(0) => Ok(()),
                Some(1) => f.write_str(", and is 1 entry behind"),
                Some(n) => write!(f, ", and is {} entries behind", thousands(n)),
                // The executor's seat leads, and would know.
                None if leads => f.write_str(", and has not answered the leader"),
                None => Ok(()),
            }?;
        }
        f.write_str(".")
    }
}

/// The number with a comma before each third digit.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut said = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            said.push(',');
        }
        said.push(digit);
    }
    said
}

fn lent(gpus: u16, cpus: u16) -> String {
    match gpus {
        0 => format!("{cpus} core{}", plural(cpus)),
        _ => format!("{gpus} GPU{}", plural(gpus)),
    }
}

/// "a", "a and b", "a, b and c", "a, b, c and 2 more nodes".
fn nodes(on: &[NodeName], more: u32) -> String {
    let more = (more > 0).then(|| format!("{more} more node{}", if more == 1 { "" } else { "s" }));
    let names: Vec<String> = on.iter().map(NodeName::to_string).chain(more).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;

    #[test]
    fn an_item_is_a_sentence() {
        let minute = Span::from_secs(600);
        let lease = |gpus, phase| Item::Lease {
            lease: LeaseId(7),
            gpus,
            cpus: 4,
            node: "n1".into(),
            phase,
            time: minute,
        };
        let holds = |lingers| Item::Holds {
            lease: LeaseId(7),
            gpus: 2,
            cpus: 4,
            node: "n1".into(),
            time: minute,
            why: "process 9 holds it".into(),
            lingers,
        };
        let elsewhere = |on: &[&str], more| Item::FreeElsewhere {
            kernel: "k".into(),
            here: "n0".into(),
            on: on.iter().map(|&n| n.into()).collect(),
            more,
        };
        let quantum = |asked| Item::Quantum { after: minute, asked };
        let one_core = Item::Lease {
            lease: LeaseId(7),
            gpus: 0,
            cpus: 1,
            node: "n1".into(),
            phase: LeasePhase::Ending,
            time: minute,
        };
        let table = [
            (one_core, "Lease 7 of 1 core on n1 is being ended since 10 min."),
            (
                elsewhere(&["n1", "n2", "n3"], 1),
                "What it needs is free on n1, n2, n3 and 1 more node, but its kernel sits on n0: `hop migrate k` takes the kernel there with its variables, a restarted kernel goes there without them.",
            ),
            (
                elsewhere(&["n1", "n2", "n3"], 2),
                "What it needs is free on n1, n2, n3 and 2 more nodes, but its kernel sits on n0: `hop migrate k` takes the kernel there with its variables, a restarted kernel goes there without them.",
            ),
            (
                elsewhere(&["n1"], 0),
                "What it needs is free on n1, but its kernel sits on n0: `hop migrate k` takes the kernel there with its variables, a restarted kernel goes there without them.",
            ),
            (
                Item::Waits(Reason::NoReplica),
                "The cell waits because no process of this kernel is up yet.",
            ),
            (
                Item::Position { ahead: 0 },
                "It is the next in line for these GPUs.",
            ),
            (Item::Position { ahead: 1 }, "One cell goes before it."),
            (Item::Position { ahead: 2 }, "2 cells go before it."),
            (
                Item::Expected { within: Some(minute) },
                "It is expected to start in 10 min.",
            ),
            (
                Item::Expected { within: None },
                "How long it waits is not known yet: that is told once cells like those before it were seen a few times.",
            ),
            (
                Item::Parked { ran: minute },
                "It ran for 10 min and was parked for others; it goes on where its memory lies.",
            ),
            (Item::Waited { time: minute }, "It has waited for 10 min."),
            (
                Item::Due,
                "It has waited so long that it goes before all that came later.",
            ),
            (
                Item::FairShare {
                    user: "ada".into(),
                    gpu_hours: 1.25,
                },
                "User ada has used 1.2 GPU-hours lately; who has used less of their share goes first.",
            ),
            (
                lease(1, LeasePhase::Delayed),
                "Lease 7 of 1 GPU on n1 is to be started since 10 min: Slurm's controller does not answer.",
            ),
            (
                lease(2, LeasePhase::Starting),
                "Lease 7 of 2 GPUs on n1 is being started since 10 min.",
            ),
            (
                lease(0, LeasePhase::Running),
                "The cell has run on lease 7 of 4 cores on n1 for 10 min.",
            ),
            (
                lease(1, LeasePhase::Lingering),
                "No cell waits; lease 7 of 1 GPU on n1 is kept for the next.",
            ),
            (
                lease(1, LeasePhase::Ending),
                "Lease 7 of 1 GPU on n1 is being ended since 10 min.",
            ),
            (
                holds(true),
                "No cell runs; the kernel can't let go of lease 7 of 2 GPUs on n1 since 10 min (process 9 holds it). Nobody waits for it, so it stays there, and counts as used. Once somebody waits, the kernel is warned first, and ended if it still holds on.",
            ),
            (
                holds(false),
                "No cell runs; the kernel can't let go of lease 7 of 2 GPUs on n1 since 10 min (process 9 holds it). It is warned, and ended if it still holds on.",
            ),
            (
                quantum(ParkAsk::Asked),
                "It is asked to park: it has run for long, and others wait.",
            ),
            (
                quantum(ParkAsk::Refused),
                "It was asked to park for others and can't: it runs to its end.",
            ),
            (
                quantum(ParkAsk::No),
                "After 10 min it may be parked, if it can be, for others who wait for its GPUs.",
            ),
        ];
        for (item, sentence) in table {
            assert_eq!(item.to_string(), sentence);
        }
    }

    #[test]
    fn the_parts_of_the_replicas_are_a_sentence() {
        use ReplicaRole::{Hot, Warm};
        let parts = |leader: Option<u32>, standbys: [(ReplicaRole, Option<u64>); 2]| Parts {
            executor: Incarnation(1),
            node: "n0".into(),
            away: false,
            leader: leader.map(Incarnation),
            standbys: (2..)
                .zip(standbys)
                .map(|(number, (role, behind))| ReplicaRow {
                    incarnation: Incarnation(number),
                    role,
                    node: format!("n{}", number - 1).as_str().into(),
                    seat: JobId(7),
                    behind,
                })
                .collect(),
        };
        let table = [
            (
                parts(Some(1), [(Warm, Some(0)), (Warm, Some(1_204))]),
                "Its replica 1 on n0 runs its cells and leads its log; replica 2 on n1 has its log; replica 3 on n2 has its log, and is 1,204 entries behind.",
            ),
            (
                parts(Some(1), [(Hot, Some(1)), (Warm, None)]),
                "Its replica 1 on n0 runs its cells and leads its log; replica 2 on n1 has its variables as well, and is 1 entry behind; replica 3 on n2 has its log, and has not answered the leader.",
            ),
            (
                parts(Some(2), [(Warm, Some(0)), (Hot, None)]),
                "Its replica 1 on n0 runs its cells; replica 2 on n1 leads its log; replica 3 on n2 has its variables as well.",
            ),
            (
                parts(Some(3), [(Warm, None), (Hot, Some(12))]),
                "Its replica 1 on n0 runs its cells; replica 2 on n1 has its log; replica 3 on n2 has its variables as well and leads its log, and is 12 entries behind.",
            ),
            (
                parts(Some(1), [(Warm, Some(120)), (Warm, Some(123_456))]),
                "Its replica 1 on n0 runs its cells and leads its log; replica 2 on n1 has its log, and is 120 entries behind; replica 3 on n2 has its log, and is 123,456 entries behind.",
            ),
            (
                parts(None, [(Warm, None), (Warm, None)]),
                "Its replica 1 on n0 runs its cells; replica 2 on n1 has its log; replica 3 on n2 has its log.",
            ),
            (
                Parts {
                    away: true,
                    ..parts(Some(1), [(Warm, Some(0)), (Warm, None)])
                },
                "Its replica 1 on n0 has lost its connection to the scheduler. By its last word it runs its cells and leads its log; replica 2 on n1 has its log; replica 3 on n2 has its log, and has not answered the leader.",
            ),
        ];
        for (parts, sentence) in table {
            assert_eq!(parts.to_string(), sentence);
        }
    }
}
