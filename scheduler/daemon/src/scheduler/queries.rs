//! Requests of people through `hop`: queries and orders.

use super::requests::{Answer, DONE};
use super::{Report, Scheduler};
use crate::access::{self, Access};
use crate::caller::{ConnId, Outgoing};
use crate::pilot_jobs::Mute;
use crate::views;
use hop_api::channel::FROM_HOPD_LIMIT;
use hop_api::message::{
    ACCT_ROWS, AcctQuery, Expect, InfoReport, NodeInfo, Order, QueueQuery, Refusal, Request, Response,
    SumsQuery, ToHopd, add_rows,
};
use hop_core::Input;
use hop_store::{Accounting, AccountingError, First, Most};
use hop_words::error::chain;
use hop_words::id::{GpuIndex, JobId, KernelId, NodeName, UserName};
use hop_words::reason::Reason;
use hop_words::time::{Span, Timestamp};
use std::time::Duration;
use tokio::sync::oneshot;
use tracing::info;

/// Bounds of an answer from the accounting. The rest of a message is for the words round the rows, and for the times of
/// leases that go on.
const MOST: Most = Most {
    rows: ACCT_ROWS,
    bytes: FROM_HOPD_LIMIT - (4 << 20),
};

/// Most waits of one answer: some 10 bytes each.
const MOST_WAITS: usize = 4_000_000;

/// An agent usually reports this soon after its job's start.
const ON_ITS_WAY: Span = Span::from_secs(30);

impl Scheduler {
    pub(super) fn of_person(
        &mut self,
        conn: ConnId,
        access: &Access,
        message: ToHopd,
    ) -> Result<Answer, Refusal> {
        if self.connections.does_not_read(conn) && !matches!(message.body, Request::Cancel(_)) {
            return Ok(Answer::Now(access::too_many()));
        }
        match message.body {
            Request::Acct(query) => self.acct(conn, access, message.id, query),
            Request::Sums(query) => self.sums(conn, access, message.id, query),
            Request::Queue(query) => self.queue(access, &query),
            Request::Info => Ok(Answer::Now(Response::Info(self.info()))),
            Request::Explain { kernel, cell } => self.explain(access, kernel, cell),
            Request::Cancel(target) => {
                let owns = |kernel: &KernelId| access.owns(self.owner_of(kernel), kernel);
                views::may_cancel(&self.core, &target, owns)?;
                let by = access.caller.user.clone();
                self.todo.push_back(Input::Cancel { target, by });
                Ok(DONE)
            }
            Request::Kernels(_)
            | Request::Migrate { .. }
            | Request::Hibernate { .. }
            | Request::Wake { .. }
            | Request::Forget { .. } => self.of_owner(access, message.body),
            Request::Release { node, gpus } => self.release(access, &node, &gpus),
            _ => unreachable!("sorted by its sender"),
        }
    }

    /// Has the agents of a node look at its blocked GPUs again. The log says who wanted it.
    fn release(&mut self, access: &Access, node: &NodeName, gpus: &[GpuIndex]) -> Result<Answer, Refusal> {
        access.may_operate()?;
        access::check_name("node", node.as_str())?;
        let pilots: Vec<JobId> = self
            .core
            .pilots()
            .into_iter()
            .filter(|p| p.node == *node && p.state != "SILENT")
            .map(|p| p.pilot)
            .collect();
        if pilots.is_empty() {
            return Err(Refusal::NotFound {
                what: format!("agent on node {node}"),
            });
        }
        let operator = access.caller.user.clone();
        info!(%operator, %node, ?gpus, "blocked GPUs are to be released");
        let asked = self.clock.now().max(self.released + Span(1));
        self.released = asked;
        for pilot in pilots {
            let order = Order::Release {
                term: self.term,
                gpus: gpus.to_vec(),
                operator: operator.clone(),
                asked,
            };
            self.connections.order(pilot, order);
        }
        Ok(Answer::Now(Response::Looking { asked }))
    }

    /// Reads the rows of a query of the accounting.
    fn acct(
        &mut self,
        conn: ConnId,
        access: &Access,
        id: u64,
        mut query: AcctQuery,
    ) -> Result<Answer, Refusal> {
        let all = query.all_users || query.visible && access.caller.operator;
        (query.all_users, query.users) = whose(access.may_see(all, &query.users)?);
        let (now, live) = (self.clock.now(), views::live_leases(&self.core));
        Ok(self.read_accounting(conn, access, id, move |accounting, behind| {
            let First { mut rows, more } = accounting.first(&query, now, MOST)?;
            views::freshen(&mut rows, &live, now);
            Ok(Response::Acct { rows, more, behind })
        }))
    }

    /// Sums the rows of a query of the accounting.
    fn sums(
        &mut self,
        conn: ConnId,
        access: &Access,
        id: u64,
        mut query: SumsQuery,
    ) -> Result<Answer, Refusal> {
        (query.all_users, query.users) = whose(access.may_see(query.all_users, &query.users)?);
        let (now, live) = (self.clock.now(), views::live_leases(&self.core));
        if query.parts.len() > SumsQuery::MOST_PARTS {
            return Err(Refusal::Invalid {
                reason: format!("sums of more than {} parts", SumsQuery::MOST_PARTS),
            });
        }
        Ok(self.read_accounting(conn, access, id, move |accounting, behind| {
            let (mut more, mut waits) = (false, MOST_WAITS);
            let rows = query.by_parts(|query| {
                let mut summed = accounting.sums(query, now, waits)?;
                views::freshen(&mut summed.open, &live, now);
                add_rows(&mut summed.sums, query.by, &summed.open);
                waits = waits.saturating_sub(summed.sums.iter().map(|sums| sums.waits.len()).sum());
                more |= summed.more;
                Ok::<_, AccountingError>(summed.sums)
            })?;
            Ok(Response::Sums { rows, more, behind })
        }))
    }

    /// Reads the accounting on a thread of its own: a long report holds nobody up. `read` is given the number of entries
    /// that it may lack.
    fn read_accounting(
        &mut self,
        conn: ConnId,
        access: &Access,
        id: u64,
        read: impl FnOnce(&Accounting, usize) -> Result<Response, AccountingError> + Send + 'static,
    ) -> Answer {
        let accounting = self.records.accounting();
        // Rows that are still on their way to the disk belong to the answer.
        let flushed = accounting.record([]);
        let unsettled = self.records.unsettled();
        let Some(outgoing) = self.connections.get(conn).map(|c| c.outgoing.clone()) else {
            return Answer::Later;
        };
        let uid = access.caller.uid;
        if !self.connections.acct_begins(uid) {
            return Answer::Now(access::too_many());
        }
        let reports = self.reports.clone();
        tokio::spawn(async move {
            let flushed = tokio::time::timeout(Duration::from_secs(5), flushed.durable()).await;
            let behind = match flushed {
                Ok(Ok(())) => 0,
                Ok(Err(_)) | Err(_) => unsettled,
            };
            let answer = tokio::task::spawn_blocking(move || read(&accounting, behind)).await;
            let body = match answer {
                Ok(Ok(body)) => body,
                Ok(Err(error)) => unreadable(&chain(&error)),
                Err(error) => unreadable(&chain(&error)),
            };
            let (unread, read) = oneshot::channel();
            let unread = Some(unread);
            // Never waits: a caller who doesn't read has room for a thousand answers, and loses all beyond.
            let _ = outgoing.try_send(Outgoing { id, body, unread });
            // The connection ends once the scheduler forgets it.
            drop(outgoing);
            // The answer may be large: until its caller has read it, the query counts as one of the user's open ones.
            let _ = read.await;
            let _ = reports.send(Report::Answered { uid });
        });
        Answer::Later
    }

    fn queue(&mut self, access: &Access, query: &QueueQuery) -> Result<Answer, Refusal> {
        let users = access.may_see(query.all_users, &query.users)?;
        let worded = |reason: &Reason| self.worded(reason);
        let mut rows = views::queue(&self.core, users.as_deref(), self.clock.now(), worded);
        self.say_what_starts_wait_for(&mut rows);
        let expected = self.expected(access, &query.expect)?;
        Ok(Answer::Now(Response::Queue { rows, expected }))
    }

    /// Expected wait of each of these cells, were the caller to submit them now.
    fn expected(&mut self, access: &Access, cells: &[Expect]) -> Result<Vec<Option<Span>>, Refusal> {
        access::check_expect(cells)?;
        if cells.is_empty() {
            return Ok(Vec::new());
        }
        // The core's knowledge is as old as the last thing that happened.
        let mut out = Vec::new();
        self.core.handle(Input::Tick, self.clock.now(), &mut out);
        self.carry_out(out);
        let user = &access.caller.user;
        let mine = |kernel: &KernelId| self.owner_of(kernel) == Some(user);
        let waits = cells.iter().map(|cell| {
            self.core.would_wait(&hop_core::Prospect {
                kernel: cell.kernel.clone().filter(mine),
                user: user.clone(),
                pool: cell.pool.clone().unwrap_or_else(|| self.default_pool()),
                default_need: cell.default_need.clone(),
                need: cell.need.clone(),
                class: cell.class,
            })
        });
        Ok(waits.collect())
    }

    fn info(&self) -> InfoReport {
        let mut problems = self.news.problems();
        for pool in self.config.pool.keys() {
            if let Some(why) = self.pilot_jobs.refusal(pool) {
                problems.push(format!("Pool {pool} is not lent: {why}."));
            }
            if let Some(why) = self.occupied(pool) {
                problems.push(format!("Pool {pool} lacks pilots: {why}."));
            }
        }
        problems.extend(self.pilot_jobs.problems());
        problems.extend(self.records.problems());
        let mut report = views::info(&self.core, &self.config, self.term, self.started, problems);
        self.add_absent(&mut report.nodes);
        for node in &mut report.nodes {
            if let (true, Some(why)) = (node.reason.is_empty(), self.pilot_jobs.down(node.pilot)) {
                node.reason = why.to_string();
            }
            if let Some(standing) = self.standings.get(&node.pilot) {
                node.isolation.clone_from(&standing.isolation);
                node.asked = standing.asked;
                if !standing.why.is_empty() && node.reason.is_empty() {
                    node.reason = format!("nothing is counted: {}", standing.why);
                }
            }
            let slurm = self.drains.reason(&node.node);
            let slurm = slurm.map(|reason| format!("Slurm drains the node: {reason}"));
            let slurm = slurm.map(|said| said.trim_end_matches(": ").to_owned());
            let known = Some(std::mem::take(&mut node.reason)).filter(|text| !text.is_empty());
            let said = slurm.into_iter().chain(known);
            let said: Vec<String> = said.chain(self.failed_starts.told(node.pilot)).collect();
            node.reason = said.join("; ");
        }
        report
    }

    /// Rows of pilots that aren't up yet, and of drained nodes without a pilot.
    fn add_absent(&self, nodes: &mut Vec<NodeInfo>) {
        let now = self.clock.now();
        for coming in self.pilot_jobs.coming() {
            let up = |job: JobId| nodes.iter().any(|n| n.pilot == job);
            if coming.job.is_some_and(up) {
                continue;
            }
            let (state, reason) = match (coming.job, coming.waits) {
                (Some(_), Some(why)) => ("PENDING", format!("its job waits: {why}")),
                (Some(_), None) => (
                    "STARTING",
                    coming.mute.map_or_else(String::new, |m| said_of(&m, now)),
                ),
                (None, _) => (
                    "PENDING",
                    match coming.rejected {
                        Some(why) => format!("its job could not be submitted: {why}; hopd tries again"),
                        None => "its job is to be submitted".to_owned(),
                    },
                ),
            };
            let node = coming.node.unwrap_or_else(|| "".into());
            nodes.push(views::absent(node, coming.pool, coming.job, state, reason));
        }
        for node in self.drains.nodes() {
            let there = nodes.iter().any(|n| n.node == *node && n.state != "PENDING");
            if let (false, Some(pool)) = (there, self.pilot_jobs.pool_of(node)) {
                nodes.push(views::absent(
                    node.clone(),
                    pool.clone(),
                    None,
                    "DRAINED",
                    String::new(),
                ));
            }
        }
    }
}

/// Whether everybody's rows are wanted, and else whose.
fn whose(users: Option<Vec<UserName>>) -> (bool, Vec<UserName>) {
    (users.is_none(), users.unwrap_or_default())
}

/// Why a pilot whose job runs is not up; empty while it may just be on its way.
fn said_of(mute: &Mute, now: Timestamp) -> String {
    let silent = now.since(mute.since);
    match &mute.down {
        Some(why) => why.to_string(),
        None if silent < ON_ITS_WAY => String::new(),
        None => format!(
            "its job has run for {:.0} s, and its agent has not reported",
            silent.as_secs_f64()
        ),
    }
}

fn unreadable(reason: &str) -> Response {
    Response::Refused(Refusal::Unavailable {
        reason: format!("the accounting can't be read: {reason}"),
    })
}
