//! Views between the core's types and the wire's: people's queries, and agents' reports.

use hop_api::config::{Config, Pool};
use hop_api::message::{
    AcctRow, AgentUp, CancelTarget, EndedLease, InfoReport, NodeInfo, QueueRow, Refusal, Told,
};
use hop_core::config::PoolConfig;
use hop_core::{Core, LeaseView, PilotUp, ReportedEnd, ReportedLease};
use hop_words::clock::Skew;
use hop_words::id::{CellId, JobId, KernelId, LeaseId, NodeName, PoolName, Term, UserName};
use hop_words::lease::LeaseEnd;
use hop_words::need::Need;
use hop_words::reason::Reason;
use hop_words::time::{Span, Timestamp};
use std::collections::HashMap;

/// The pools as the core knows them.
pub(crate) fn pools(config: &Config) -> Vec<PoolConfig> {
    config
        .pool
        .iter()
        .map(|(name, pool)| core_pool(name, pool))
        .collect()
}

fn core_pool(name: &PoolName, pool: &Pool) -> PoolConfig {
    PoolConfig {
        min_pilots: pool.min_pilots,
        max_pilots: pool.max_pilots,
        linger: pool.linger(),
        grace: pool.grace(),
        quantum: pool.quantum.unwrap_or_default(),
        rotate_before: Span::from_secs(pool.rotate_before_s.into()),
        scale: pool.scale.clone(),
        burst: pool.burst.clone(),
        migrate: pool.migrate.clone(),
        ..PoolConfig::fixed(name.as_str(), 0, pool.gpus_per_pilot, pool.cpus_per_pilot)
    }
}

/// An agent's report. Slurm's time of the pilot's end is told by the wall clock.
pub(crate) fn pilot_up(up: AgentUp, skew: Skew, node_drains: bool) -> PilotUp {
    PilotUp {
        node: up.node,
        pilot: up.pilot,
        pool: up.pool,
        gpus: up.gpus,
        cpus: up.cpus,
        ends: up.ends.map(|at| skew.of_wall(at)),
        steps_left: up.steps_max.saturating_sub(up.steps_used),
        leases: up
            .leases
            .into_iter()
            .map(|l| ReportedLease {
                lease: l.order.lease,
                kernel: l.order.kernel,
                devices: l.handover.devices.iter().map(|d| d.index).collect(),
            })
            .collect(),
        starting: up.starting,
        ended: up.ended.iter().map(reported_end).collect(),
        draining: up.draining,
        node_drains,
    }
}

/// An agent's word of a lease's end.
pub(crate) fn reported_end(ended: &EndedLease) -> ReportedEnd {
    ReportedEnd {
        lease: ended.order.lease,
        cause: ended.end.cause,
        clean: ended.end.clean,
        detail: end_of(&ended.end),
    }
}

/// The end of a lease for the books: what its node says, and whom the take-back ended.
fn end_of(end: &LeaseEnd) -> String {
    const NAMED: usize = 8;
    if end.ended_pids.is_empty() {
        return end.detail.clone();
    }
    let named: Vec<String> = end.ended_pids.iter().take(NAMED).map(u32::to_string).collect();
    let others = if end.ended_pids.len() > NAMED {
        " and others"
    } else {
        ""
    };
    let between = if end.detail.is_empty() { "" } else { "; " };
    format!(
        "{}{between}what still held its GPU was ended (process {}{others})",
        end.detail,
        named.join(", ")
    )
}

/// Leases in use, then waiting cells; `users` none: everybody's.
pub(crate) fn queue(
    core: &Core,
    users: Option<&[UserName]>,
    now: Timestamp,
    worded: impl Fn(&Reason) -> String,
) -> Vec<QueueRow> {
    let wanted = |user: &UserName| users.is_none_or(|u| u.contains(user));
    let leases = core.leases().into_iter().filter(|l| wanted(&l.user));
    let waiting = core.waiting_where(wanted).into_iter();
    leases
        .map(|l| QueueRow {
            kernel: l.kernel,
            cell: l.cell,
            lease: Some(l.lease),
            user: l.user,
            name: l.name,
            state: l.state.into(),
            need: Need {
                gpus: l.gpus,
                cpus: l.cpus,
                ..l.need.unwrap_or_default()
            },
            node: Some(l.node),
            gpus: l.devices,
            submit: l.submit,
            time: now.since(l.since),
            position: None,
            estimate: None,
            why: l.held.as_ref().map_or_else(String::new, |_| "StillHeld".into()),
            reason: l
                .held
                .map_or_else(String::new, |(_, why)| format!("its kernel can't let go: {why}")),
        })
        .chain(waiting.map(|c| {
            QueueRow {
                kernel: c.kernel,
                cell: Some(c.cell),
                lease: None,
                user: c.user,
                name: c.name,
                // Slurm's word for a job at a standstill.
                state: if c.parked.is_some() {
                    "SUSPENDED"
                } else {
                    "PENDING"
                }
                .into(),
                need: c.need,
                node: None,
                gpus: Vec::new(),
                submit: c.submitted,
                time: now.since(c.submitted),
                position: Some(c.position),
                estimate: c.estimate,
                why: c.reason.word().into(),
                reason: worded(&c.reason),
            }
        }))
        .collect()
}

/// A node without anything lent now.
pub(crate) fn absent(
    node: NodeName,
    pool: PoolName,
    pilot: Option<JobId>,
    state: &str,
    reason: String,
) -> NodeInfo {
    NodeInfo {
        node,
        pool,
        pilot: pilot.unwrap_or(JobId(0)),
        state: state.into(),
        gpus: 0,
        gpus_leased: 0,
        gpus_lingering: 0,
        gpus_blocked: 0,
        gpu_types: Vec::new(),
        cpus: 0,
        cpus_leased: 0,
        reason,
        quantum: Vec::new(),
        isolation: String::new(),
        blocked: Vec::new(),
        asked: None,
    }
}

pub(crate) fn info(
    core: &Core,
    config: &Config,
    term: Term,
    started: Timestamp,
    problems: Vec<String>,
) -> InfoReport {
    let seconds = |span: Span| u32::try_from(span.0 / 1_000_000).unwrap_or(u32::MAX);
    let quantum = |pool: &PoolName| {
        let quantum = config.pool.get(pool)?.quantum.as_ref()?;
        Some(
            quantum
                .classes()
                .map(|(class, span)| (class, seconds(span)))
                .collect(),
        )
    };
    let nodes = core.pilots().into_iter().map(|p| NodeInfo {
        quantum: quantum(&p.pool).unwrap_or_default(),
        node: p.node,
        pool: p.pool,
        pilot: p.pilot,
        state: p.state.into(),
        gpus: p.gpus,
        gpus_leased: p.leased,
        gpus_lingering: p.lingering,
        gpus_blocked: u16::try_from(p.blocked.len()).unwrap_or(u16::MAX),
        blocked: p.blocked,
        isolation: String::new(),
        asked: None,
        gpu_types: p.gpu_types,
        cpus: p.cpus,
        cpus_leased: p.cpus_leased,
        reason: p.reason,
    });
    InfoReport {
        version: env!("CARGO_PKG_VERSION").into(),
        term,
        started,
        nodes: nodes.collect(),
        kernels: u32::try_from(core.kernel_count()).unwrap_or(u32::MAX),
        waiting: u32::try_from(core.waiting_count()).unwrap_or(u32::MAX),
        problems,
    }
}

/// Returns the core's explanation of the cell, or of the kernel's lease.
pub(crate) fn explain(core: &Core, kernel: &KernelId, cell: Option<&CellId>) -> Result<Vec<Told>, Refusal> {
    let items = core.explain(kernel, cell).ok_or_else(|| Refusal::NotFound {
        what: match cell {
            Some(cell) => {
                format!("cell {cell} that waits or runs; `hop acct` lists those that are over")
            }
            None => format!("waiting cell or lease of kernel {kernel}"),
        },
    })?;
    Ok(items.into_iter().map(Told::from).collect())
}

/// Whether the caller may cancel the target. `owns` says whether a kernel is the caller's.
pub(crate) fn may_cancel(
    core: &Core,
    target: &CancelTarget,
    owns: impl Fn(&KernelId) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    match target {
        CancelTarget::Lease { lease } => {
            let unknown = || Refusal::NotFound {
                what: format!("live lease {lease} of yours"),
            };
            let view = core.lease(*lease).ok_or_else(unknown)?;
            owns(&view.kernel).map_err(|_| unknown())
        }
        CancelTarget::Cell { kernel, .. } | CancelTarget::Kernel { kernel } => owns(kernel),
    }
}

/// The leases of this moment, by id.
pub(crate) fn live_leases(core: &Core) -> HashMap<LeaseId, LeaseView> {
    core.leases().into_iter().map(|l| (l.lease, l)).collect()
}

/// Adds the core's present knowledge to rows of running leases.
pub(crate) fn freshen(rows: &mut [AcctRow], live: &HashMap<LeaseId, LeaseView>, now: Timestamp) {
    for row in rows.iter_mut().filter(|r| r.cell.is_none() && r.end.is_none()) {
        let Some(l) = live.get(&row.lease) else { continue };
        let here = now.since(l.since);
        row.run = l.run;
        row.linger = l.linger;
        match l.state {
            "RUNNING" => row.run = Span(l.run.0 + here.0),
            "LINGERING" => row.linger = Span(l.linger.0 + here.0),
            _ => {}
        }
        // An ending lease still holds the GPUs, and no cell runs on the lease.
        row.state = match (l.started, l.state) {
            (None, _) => "PENDING",
            (Some(_), "ENDING") => "LINGERING",
            (Some(_), state) => state,
        }
        .into();
        if let Some((_, why)) = &l.held {
            row.reason = format!("its kernel can't let go of it: {why}");
        }
        row.cells = l.cells;
        row.wait = l.wait;
        row.held = l.started.map_or(Span::ZERO, |s| now.since(s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::lease::EndCause;

    #[test]
    fn whom_the_take_back_ended_is_in_the_books() {
        let mut end = LeaseEnd {
            cause: EndCause::Claimed,
            clean: true,
            ended_pids: vec![],
            at: Timestamp(1),
            detail: String::new(),
        };
        assert_eq!(end_of(&end), "");
        end.ended_pids = vec![7, 9];
        assert_eq!(end_of(&end), "what still held its GPU was ended (process 7, 9)");
        end.detail = "its Slurm step ended".into();
        assert_eq!(
            end_of(&end),
            "its Slurm step ended; what still held its GPU was ended (process 7, 9)"
        );
        end.ended_pids = (1..=9).collect();
        assert!(end_of(&end).ends_with("(process 1, 2, 3, 4, 5, 6, 7, 8 and others)"));
    }
}
