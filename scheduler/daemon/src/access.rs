//! Who may do what. Pure: every rule about users, roles and names that come from outside is here.

use crate::caller::Caller;
use hop_api::message::{Bound, EXPECT_MAX, Expect, PlaceKernel, Refusal, ReplicaUp, Request, Response, Role};
use hop_words::id::{Incarnation, JobId, KernelId, NodeName, UserName};
use hop_words::need::Need;
use hop_words::text::acts;

/// Longest id that a caller may choose, in bytes.
const NAME_LIMIT: usize = 200;
/// Above the numbers of all processes: `hopd` gives them one by one.
const INCARNATION_LIMIT: u32 = 1 << 31;
/// Most memory for one process, in MiB.
const MEM_LIMIT: u64 = 1 << 40;
/// Most nodes for one placement to avoid.
const AVOID_LIMIT: usize = 64;
/// Most reasons against a kernel's move that are kept, and the characters of each.
const BOUND_REASONS: usize = 16;
const BOUND_LENGTH: usize = 500;

/// A caller on a connection.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub caller: Caller,
    /// The pilot of an agent that has registered.
    pub pilot: Option<JobId>,
}

/// Who sends a request of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Anybody,
    Front,
    Seat,
    Replica,
    Agent,
    /// Somebody who asks or orders, through `hop`.
    Person,
}

impl Sender {
    const fn of(request: &Request) -> Self {
        match request {
            Request::Ping => Self::Anybody,
            Request::PlaceKernel(_)
            | Request::FrontUp { .. }
            | Request::CloseKernel { .. }
            | Request::LeaveKernel { .. }
            | Request::RenameKernel { .. } => Self::Front,
            Request::SeatUp { .. } => Self::Seat,
            Request::ReplicaUp(_)
            | Request::Submit { .. }
            | Request::CancelCell { .. }
            | Request::CellEnded { .. }
            | Request::ReleaseLease { .. }
            | Request::StillHeld { .. }
            | Request::CellParked { .. }
            | Request::ParkRefused { .. }
            | Request::KernelBound { .. }
            | Request::MigrationFailed { .. }
            | Request::Hibernated { .. }
            | Request::KernelEnded { .. }
            | Request::HibernateRefused { .. } => Self::Replica,
            Request::AgentUp(_)
            | Request::AgentFailed { .. }
            | Request::LeaseStarted { .. }
            | Request::LeaseFailed { .. }
            | Request::SlotBlocked { .. }
            | Request::SlotUnblocked { .. }
            | Request::NodeStands(_)
            | Request::LeaseEnded(_) => Self::Agent,
            Request::Acct(_)
            | Request::Sums(_)
            | Request::Queue(_)
            | Request::Info
            | Request::Explain { .. }
            | Request::Cancel(_)
            | Request::Kernels(_)
            | Request::Migrate { .. }
            | Request::Hibernate { .. }
            | Request::Wake { .. }
            | Request::Forget { .. }
            | Request::Release { .. } => Self::Person,
        }
    }
}

impl Access {
    /// Each role is heard for its own requests only. Says whose such requests are.
    pub(crate) fn judge(&self, request: &Request) -> Result<Sender, Refusal> {
        let (role, sender) = (self.caller.role, Sender::of(request));
        let right = match sender {
            Sender::Anybody => true,
            Sender::Front => role == Role::Front,
            Sender::Seat => role == Role::Seat,
            Sender::Replica => role == Role::Replica,
            Sender::Agent => role == Role::Agent,
            Sender::Person => role != Role::Agent,
        };
        if right {
            Ok(sender)
        } else {
            Err(Refusal::Forbidden {
                reason: format!("a connection of role {role:?} may not ask for this"),
            })
        }
    }

    /// The pilot that this agent speaks for.
    pub(crate) fn pilot(&self) -> Result<JobId, Refusal> {
        self.pilot.ok_or_else(|| Refusal::Invalid {
            reason: "the agent has not said which pilot it is".into(),
        })
    }

    /// The kernel is the caller's, or nobody's yet, or the caller is an operator.
    pub(crate) fn owns(&self, owner: Option<&UserName>, kernel: &KernelId) -> Result<(), Refusal> {
        check_name("kernel id", kernel.as_str())?;
        match owner {
            // An unknown kernel and another user's have the same answer: it reveals nothing about other users'
            // kernels.
            Some(owner) if *owner == self.caller.user || self.caller.operator && self.asks_only() => Ok(()),
            Some(_) => Err(not_yours(kernel)),
            None if self.asks_only() => Err(not_yours(kernel)),
            None => Ok(()),
        }
    }

    /// What concerns everybody is for operators.
    pub(crate) fn may_operate(&self) -> Result<(), Refusal> {
        if self.caller.operator && self.asks_only() {
            return Ok(());
        }
        Err(Refusal::Forbidden {
            reason: format!(
                "{} is no operator (operators in gresshopper.toml)",
                self.caller.user
            ),
        })
    }

    /// Operators look and cancel; they don't act as somebody's kernel.
    fn asks_only(&self) -> bool {
        self.caller.role == Role::Client
    }

    /// Users, among those asked for, whose rows the caller may see; `None` means all users.
    pub(crate) fn may_see(&self, all: bool, users: &[UserName]) -> Result<Option<Vec<UserName>>, Refusal> {
        let own = &self.caller.user;
        if self.caller.operator {
            return Ok(match (all, users) {
                (true, _) => None,
                (false, []) => Some(vec![own.clone()]),
                (false, users) => Some(users.to_vec()),
            });
        }
        if all || users.iter().any(|u| u != own) {
            return Err(Refusal::Forbidden {
                reason: format!("{own} is no operator and sees only their own rows"),
            });
        }
        Ok(Some(vec![own.clone()]))
    }
}

pub(crate) fn not_yours(kernel: &KernelId) -> Refusal {
    Refusal::NotFound {
        what: format!("kernel {} of yours", printable(kernel.as_str(), 64)),
    }
}

pub(crate) fn not_your_seat(job: JobId) -> Refusal {
    Refusal::Forbidden {
        reason: format!("Slurm has no running job {job} of yours"),
    }
}

/// Nothing is wrong with the caller: an administrator has to act, whom the words are for.
pub(crate) fn hidden_seat(job: JobId) -> Refusal {
    Refusal::Unavailable {
        reason: format!(
            "Slurm hides its job {job} from the scheduler (PrivateData=jobs). Tell your administrator: `hop doctor` says \
             what mends it"
        ),
    }
}

pub(crate) fn too_many() -> Response {
    Response::Refused(Refusal::Unavailable {
        reason: "too many requests wait on this connection".into(),
    })
}

/// Checks the part of a replica's report that needs no answer from Slurm.
pub(crate) fn check_replica(access: &Access, up: &ReplicaUp) -> Result<(), Refusal> {
    if up.seat.uid != access.caller.uid {
        return Err(Refusal::Forbidden {
            reason: format!(
                "the process is said to be of uid {}, the caller is {}",
                up.seat.uid, access.caller.uid
            ),
        });
    }
    check_name("node", up.node.as_str())?;
    check_incarnation(up.incarnation)?;
    up.standbys.iter().try_for_each(|standby| {
        check_name("node", standby.node.as_str())?;
        check_incarnation(standby.incarnation)
    })?;
    if let Some((_, Some(cell))) = &up.holds {
        check_name("cell id", cell.as_str())?;
    }
    up.waiting.iter().try_for_each(|waiting| {
        check_name("cell id", waiting.cell.as_str())?;
        check_need(&waiting.need)
    })
}

fn check_incarnation(incarnation: Incarnation) -> Result<(), Refusal> {
    if incarnation.0 < INCARNATION_LIMIT {
        return Ok(());
    }
    Err(Refusal::Invalid {
        reason: format!("hopd gives no process the number {incarnation}"),
    })
}

/// Checks the part of a placement that comes from outside and is stored.
pub(crate) fn check_place(place: &PlaceKernel) -> Result<(), Refusal> {
    check_name("kernel id", place.kernel.as_str())?;
    check_need(&place.default_need)?;
    place.first.map_or(Ok(()), check_incarnation)?;
    if place.mem_mib > MEM_LIMIT {
        return Err(Refusal::Invalid {
            reason: format!("{} MiB are more than a process can have", place.mem_mib),
        });
    }
    if place.avoid.len() > AVOID_LIMIT {
        return Err(Refusal::Invalid {
            reason: format!("more than {AVOID_LIMIT} nodes are to be avoided"),
        });
    }
    Ok(())
}

/// Cells whose wait is asked for.
pub(crate) fn check_expect(cells: &[Expect]) -> Result<(), Refusal> {
    if cells.len() > EXPECT_MAX {
        return Err(Refusal::Invalid {
            reason: format!("the wait of more than {EXPECT_MAX} cells is asked for"),
        });
    }
    let mut needs = cells.iter().flat_map(|c| [&c.need, &c.default_need]);
    needs.try_for_each(check_need)
}

pub(crate) fn check_need(need: &Need) -> Result<(), Refusal> {
    match &need.gpu_type {
        Some(gpu_type) => check_name("GPU type", gpu_type.as_str()),
        None => Ok(()),
    }
}

/// The seat's node, as Slurm has it.
pub(crate) fn not_its_node(job: JobId, node: &NodeName) -> Refusal {
    Refusal::Forbidden {
        reason: format!("Slurm job {job} does not run on node {node}"),
    }
}

/// More than a user may have at a time (`[quota]`).
pub(crate) fn over_quota(user: &UserName, what: &str, most: usize) -> Refusal {
    Refusal::Unavailable {
        reason: over_quota_words(user, what, most),
    }
}

pub(crate) fn over_quota_words(user: &UserName, what: &str, most: usize) -> String {
    format!("{user} has {most} {what} already, which is as many as [quota] allows")
}

/// An id that a caller has chosen: short, and without what would spoil a line of a table.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    let fine = !name.is_empty() && name.len() <= NAME_LIMIT && name.chars().all(|c| c.is_ascii_graphic());
    if fine {
        Ok(())
    } else {
        Err(Refusal::Invalid {
            reason: format!("a {what} has 1 to {NAME_LIMIT} printable ASCII characters without blanks"),
        })
    }
}

/// The longest reason of a kernel's that is kept, in characters.
pub(crate) const REASON: usize = 500;

/// Free text from a caller, cut to `most` characters.
pub(crate) fn printable(text: &str, most: usize) -> String {
    text.chars().filter(|c| !acts(*c)).take(most).collect()
}

/// Cuts a kernel's reasons to stay to what a table shows: they are kept, and operators are told all users' at once.
pub(crate) fn cut(bound: &mut Bound) {
    bound.holds.truncate(BOUND_REASONS);
    for reason in &mut bound.holds {
        *reason = printable(reason, BOUND_LENGTH);
    }
}

/// Name of a lease's Slurm step in `squeue -s` and `sacct`: the user and the notebook's name, or the kernel's id
/// without one. Its characters are safe for all tools.
pub(crate) fn step_name(user: &UserName, name: &str, kernel: &KernelId) -> String {
    let plain = |text: &str, most: usize| -> String {
        let tame = |c: char| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        };
        text.chars().map(tame).take(most).collect()
    };
    let base = name.rsplit('/').next().unwrap_or_default();
    let what = if base.is_empty() { kernel.as_str() } else { base };
    format!("{}/{}", plain(user.as_str(), 64), plain(what, 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_api::message::{AcctQuery, SeatStep};
    use hop_words::id::Tenure;

    fn access(user: &str, role: Role, operator: bool) -> Access {
        Access {
            caller: Caller {
                uid: 1001,
                user: user.into(),
                groups: [].into(),
                operator,
                role,
            },
            pilot: None,
        }
    }

    #[test]
    fn a_kernel_is_its_first_users_and_operators_only_look() {
        let kernel = KernelId::from("k");
        let (alice, bob) = (UserName::from("alice"), UserName::from("bob"));
        for role in [Role::Front, Role::Replica, Role::Client] {
            assert!(access("alice", role, false).owns(Some(&alice), &kernel).is_ok());
            assert!(access("alice", role, false).owns(Some(&bob), &kernel).is_err());
        }
        assert!(
            access("root", Role::Client, true)
                .owns(Some(&bob), &kernel)
                .is_ok()
        );
        assert!(
            access("root", Role::Replica, true)
                .owns(Some(&bob), &kernel)
                .is_err()
        );
        assert!(access("alice", Role::Replica, false).owns(None, &kernel).is_ok());
        assert!(access("alice", Role::Client, false).owns(None, &kernel).is_err());
    }

    #[test]
    fn whether_a_strangers_kernel_exists_is_not_told() {
        let kernel = KernelId::from("k");
        let alice = access("alice", Role::Client, false);
        assert_eq!(
            alice.owns(Some(&"bob".into()), &kernel).unwrap_err(),
            alice.owns(None, &kernel).unwrap_err()
        );
    }

    #[test]
    fn roles_are_heard_for_their_own_requests() {
        let acct = || Request::Acct(AcctQuery::default());
        assert!(access("a", Role::Client, false).judge(&acct()).is_ok());
        assert!(access("a", Role::Agent, false).judge(&acct()).is_err());
        let close = Request::CloseKernel { kernel: "k".into() };
        assert!(access("a", Role::Replica, false).judge(&close).is_err());
        let failed = Request::LeaseFailed {
            lease: hop_words::id::LeaseId(1),
            reason: String::new(),
            device_lost: false,
        };
        for role in [Role::Client, Role::Front, Role::Replica, Role::Seat] {
            assert!(access("a", role, true).judge(&failed).is_err());
        }
        assert!(access("a", Role::Agent, false).judge(&Request::Ping).is_ok());
        assert!(access("a", Role::Agent, false).pilot().is_err());
    }

    #[test]
    fn a_blocked_gpu_is_for_operators_who_ask_through_hop() {
        assert!(access("root", Role::Client, true).may_operate().is_ok());
        assert!(access("alice", Role::Client, false).may_operate().is_err());
        assert!(access("root", Role::Replica, true).may_operate().is_err());
    }

    #[test]
    fn others_rows_need_an_operator() {
        let alice = access("alice", Role::Client, false);
        let own = vec![UserName::from("alice")];
        assert_eq!(alice.may_see(false, &[]).unwrap(), Some(own.clone()));
        assert_eq!(alice.may_see(false, &own).unwrap(), Some(own));
        assert!(alice.may_see(true, &[]).is_err());
        assert!(alice.may_see(false, &["bob".into()]).is_err());
        let root = access("root", Role::Client, true);
        assert_eq!(root.may_see(true, &[]).unwrap(), None);
        assert_eq!(
            root.may_see(false, &["bob".into()]).unwrap(),
            Some(vec!["bob".into()])
        );
    }

    #[test]
    fn a_replica_speaks_for_its_own_uid() {
        let alice = access("alice", Role::Replica, false);
        let mut up = ReplicaUp {
            kernel: "k".into(),
            tenure: Tenure(0),
            incarnation: Incarnation(0),
            account: None,
            pool: None,
            node: "n1".into(),
            seat: SeatStep {
                job: JobId(1),
                step: 0,
                pid: 1,
                start_time: 1,
                uid: 1001,
            },
            name: String::new(),
            holds: None,
            ended: None,
            waiting: vec![],
            parks: false,
            parked: None,
            captured: false,
            unsaved: None,
            bound: Bound::default(),
            wanted: 0,
            standbys: Vec::new(),
            leader: None,
        };
        assert!(check_replica(&alice, &up).is_ok());
        up.seat.uid = 1002;
        assert!(matches!(
            check_replica(&alice, &up),
            Err(Refusal::Forbidden { .. })
        ));
    }

    #[test]
    fn names_from_outside_are_tamed() {
        assert_eq!(
            step_name(&"alice".into(), "lab/a b;c\n.ipynb", &"k".into()),
            "alice/a_b_c_.ipynb"
        );
        assert_eq!(step_name(&"alice".into(), "", &"0f3a/x".into()), "alice/0f3a_x");
        assert!(check_name("kernel id", "0f3a-b").is_ok());
        for bad in ["", "a b", "a\nb", &"x".repeat(201)] {
            assert!(check_name("kernel id", bad).is_err());
        }
        assert_eq!(printable("a\u{1b}[31mb", 3), "a[3");
    }
}
