//! Fair share and limits: who goes first, and who may not go now.

use crate::config::{Count, LimitOf};
use crate::core::Core;
use crate::id::LeaseId;
use crate::journal::{Key, Value};
use crate::output::Output;
use crate::reason::{Reason, RefusedBecause};
use crate::state::{Cell, Lease, Rank, Scope, Timer};
use crate::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How often what running leases use is added to their users' usage.
const CHARGE_EVERY: Span = Span::from_secs(60);

/// At most once in this part of the time since the last lease began, and so long at most.
const CHARGE_PART: u64 = 100;
const CHARGE_MOST: Span = Span::from_secs(3600);

/// What a limit says now.
pub(crate) struct Over {
    pub scope: Scope,
    pub name: String,
    pub used: u32,
    pub limit: u32,
}

/// Limits on Slurm's associations, made quick to look up.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Members {
    /// Limits, by their index, that bind a user in an account. Looked up, never iterated.
    binding: HashMap<(u32, u32), Vec<u32>>,
    /// GPUs held, by limit and whom it counts.
    held: BTreeMap<(u32, u32), u32>,
    /// Users and accounts whose usage counts for a limit's GPU-minutes.
    used_by: BTreeMap<u32, (BTreeSet<u32>, BTreeSet<u32>)>,
}

impl Members {
    pub(crate) fn held(&self) -> &BTreeMap<(u32, u32), u32> {
        &self.held
    }

    fn binding(&self, user: u32, account: u32) -> &[u32] {
        self.binding.get(&(user, account)).map_or(&[], Vec::as_slice)
    }
}

impl Core {
    /// GPU-seconds used now, as if used at the origin.
    pub(crate) fn inflate(&self, gpu_seconds: f64) -> f64 {
        let half_lives = self.now.since(self.origin).as_secs_f64() / self.half_life();
        gpu_seconds * half_lives.exp2()
    }

    fn half_life(&self) -> f64 {
        self.config.usage_half_life.as_secs_f64().max(1.0)
    }

    /// Usage decayed to now.
    pub(crate) fn deflate(&self, inflated: f64) -> f64 {
        let half_lives = self.now.since(self.origin).as_secs_f64() / self.half_life();
        inflated * (-half_lives).exp2()
    }

    pub(crate) fn rank(&self, cell: &Cell) -> Rank {
        let kernel = &self.kernels[cell.kernel];
        let aged = self.now.since(cell.submitted) >= self.config.aging;
        let (account, user) = if self.config.fair_share && !aged {
            (
                self.accounts[kernel.account as usize].usage.level(),
                self.users[kernel.user as usize].usage.level(),
            )
        } else {
            (0, 0)
        };
        Rank {
            band: match (aged, cell.parked) {
                (true, _) => 0,
                (false, None) => 1,
                // Behind whom it was parked for.
                (false, Some(_)) => 2,
            },
            account,
            user,
            class: if aged {
                crate::need::Class::Interactive
            } else {
                cell.class
            },
            latest: if aged {
                Timestamp(u64::MAX)
            } else {
                self.latest_start(cell)
            },
            submitted: cell.submitted,
            seq: cell.seq,
        }
    }

    /// The cell's deadline less the time that it is expected to run.
    fn latest_start(&self, cell: &Cell) -> Timestamp {
        let Some(deadline) = cell
            .need
            .deadline
            .filter(|_| cell.class == crate::need::Class::Deadline)
        else {
            return Timestamp(u64::MAX);
        };
        let ran = cell.parked.map_or(Span::ZERO, |(_, ran)| ran);
        let run = self.run_left(cell.kernel, cell.print, ran);
        Timestamp(deadline.0.saturating_sub(run.unwrap_or(Span::ZERO).0))
    }

    /// Moves the cell to where its rank now is.
    pub(crate) fn rerank(&mut self, cell: u32) {
        let new = self.rank(&self.cells[cell]);
        if new != self.cells[cell].rank {
            self.dequeue(cell);
            self.cells[cell].rank = new;
            self.enqueue(cell);
            self.stale_around(self.cells[cell].kernel);
        }
    }

    pub(crate) fn rerank_all(&mut self) {
        let all: Vec<u32> = self.cells.iter().map(|(i, _)| i).collect();
        for cell in all {
            self.rerank(cell);
        }
    }

    /// Adds what the lease has used since the last time to its user's and account's usage.
    pub(crate) fn charge(&mut self, id: LeaseId, out: &mut Vec<Output>) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        let seconds = self.now.since(lease.charged).as_secs_f64() * f64::from(lease.gpus);
        lease.charged = self.now;
        let (user, account) = (lease.user, lease.account);
        if seconds <= 0.0 {
            return;
        }
        let inflated = self.inflate(seconds);
        let u = &mut self.users[user as usize];
        let before = (u.usage.level(), self.accounts[account as usize].usage.level());
        u.usage.inflated += inflated;
        self.accounts[account as usize].usage.inflated += inflated;
        let after = (
            self.users[user as usize].usage.level(),
            self.accounts[account as usize].usage.level(),
        );
        if before.0 != after.0 {
            let cells: Vec<u32> = self.users[user as usize].cells.iter().copied().collect();
            for cell in cells {
                self.rerank(cell);
            }
        }
        if before.1 != after.1 {
            self.rerank_account(account);
        }
        self.note_usage(user, account, out);
    }

    fn rerank_account(&mut self, account: u32) {
        let cells: Vec<u32> = self
            .cells
            .iter()
            .filter(|(_, c)| self.kernels[c.kernel].account == account)
            .map(|(i, _)| i)
            .collect();
        for cell in cells {
            self.rerank(cell);
        }
    }

    fn note_usage(&self, user: u32, account: u32, out: &mut Vec<Output>) {
        let (user, account) = (&self.users[user as usize], &self.accounts[account as usize]);
        let value = |inflated| {
            Some(Value::Usage {
                usage: self.deflate(inflated),
                at: self.now,
            })
        };
        self.note(
            || Key::User(user.name.clone()),
            || value(user.usage.inflated),
            out,
        );
        if let Some(name) = &account.name {
            self.note(
                || Key::Account(name.clone()),
                || value(account.usage.inflated),
                out,
            );
        }
    }

    /// Long leases are charged while they live, so that nobody rides free until the end of a long cell.
    pub(crate) fn charge_all(&mut self, out: &mut Vec<Output>) {
        self.charging = false;
        let ids: Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in ids {
            self.charge(id, out);
        }
        self.keep_charging();
    }

    pub(crate) fn keep_charging(&mut self) {
        if !self.charging && !self.leases.is_empty() {
            self.charging = true;
            // Where nothing has started for hours, usage is known well enough for longer.
            let last = self.leases.values().next_back();
            let quiet = last.map_or(Span::ZERO, |l| self.now.since(l.ordered));
            let every = (quiet.0 / CHARGE_PART).clamp(CHARGE_EVERY.0, CHARGE_MOST.0);
            self.at(self.now + Span(every), Timer::Charge);
        }
    }

    // --- limits ---

    /// The limit that keeps this cell from starting now.
    pub(crate) fn over_limit(&self, cell: &Cell) -> Option<Over> {
        let kernel = &self.kernels[cell.kernel];
        self.over(cell.need.gpus, kernel.user, kernel.account, kernel.pool)
    }

    /// The limit that so many GPUs more would break now.
    pub(crate) fn over(&self, gpus: u16, user: u32, account: u32, pool: u32) -> Option<Over> {
        let asked = u32::from(gpus);
        if asked == 0 {
            return None;
        }
        let over = |name: &str, most: Option<u32>, (scope, used): (Scope, u32)| {
            let limit = most?;
            (used + asked > limit).then(|| Over {
                scope,
                name: name.to_owned(),
                used,
                limit,
            })
        };
        let plain = self.limits.limits.iter().find_map(|l| {
            let counted = self.scope_of(&l.of, user, account, pool)?;
            over(&l.name, l.gpus, counted)
        });
        let bound = || {
            self.members.binding(user, account).iter().find_map(|&i| {
                let l = &self.limits.limits[i as usize];
                over(&l.name, l.gpus, self.counted(i, user, account)?)
            })
        };
        plain.or_else(bound)
    }

    /// What a limit on associations counts for this user in this account, and how many GPUs that is now; none: it
    /// counts no more than one lease.
    fn counted(&self, limit: u32, user: u32, account: u32) -> Option<(Scope, u32)> {
        let key = self.member_key(limit, user, account)?;
        let held = self.members.held.get(&(limit, key)).copied().unwrap_or(0);
        Some((Scope::Members(limit, key), held))
    }

    fn member_key(&self, limit: u32, user: u32, account: u32) -> Option<u32> {
        let LimitOf::Members { count, .. } = &self.limits.limits[limit as usize].of else {
            return None;
        };
        match count {
            Count::Accounts | Count::Users => Some(0),
            Count::PerUser => Some(user),
            Count::PerAccount => Some(account),
            Count::PerLease => None,
        }
    }

    /// Whether a limit on associations counts this lease as that.
    pub(crate) fn is_counted(&self, lease: &Lease, limit: u32, key: u32) -> bool {
        self.members.binding(lease.user, lease.account).contains(&limit)
            && self.member_key(limit, lease.user, lease.account) == Some(key)
    }

    /// Looks up whom the limits on associations bind, and counts what these hold.
    pub(crate) fn members_of_limits(&mut self) -> Members {
        let mut members = Members::default();
        let limits = std::mem::take(&mut self.limits);
        for (i, limit) in limits.limits.iter().enumerate() {
            let LimitOf::Members { who, count } = &limit.of else {
                continue;
            };
            let i = i as u32;
            for (user, name) in who {
                let user = self.user_index(user);
                let account = self.account_index(name.as_ref());
                members.binding.entry((user, account)).or_default().push(i);
                let (users, accounts) = members.used_by.entry(i).or_default();
                if *count == Count::Accounts {
                    accounts.extend(name.is_some().then_some(account));
                } else {
                    users.insert(user);
                }
            }
        }
        let elsewhere: Vec<(u32, u32, u32)> = limits
            .elsewhere
            .iter()
            .map(|(user, account, gpus)| (self.user_index(user), self.account_index(Some(account)), *gpus))
            .collect();
        self.limits = limits;
        let leased = self
            .leases
            .values()
            .map(|l| (l.user, l.account, u32::from(l.gpus)));
        for (user, account, gpus) in elsewhere.into_iter().chain(leased) {
            for &limit in members.binding(user, account).to_vec().iter() {
                if let Some(key) = self.member_key(limit, user, account) {
                    *members.held.entry((limit, key)).or_default() += gpus;
                }
            }
        }
        members
    }

    /// What a limit counts for this user, and how many GPUs that is now; none: it doesn't bind them.
    fn scope_of(&self, of: &LimitOf, user: u32, account: u32, pool: u32) -> Option<(Scope, u32)> {
        let u = &self.users[user as usize];
        let pool_name = &self.pools[pool as usize].config.name;
        let mine = |n: &crate::id::UserName| *n == u.name;
        match of {
            LimitOf::User(n) if mine(n) => Some((Scope::User(user), u.held)),
            LimitOf::EachUser => Some((Scope::User(user), u.held)),
            LimitOf::Account(n) => {
                let a = &self.accounts[account as usize];
                (a.name.as_ref() == Some(n)).then_some((Scope::Account(account), a.held))
            }
            LimitOf::Pool(n) if n == pool_name => Some((Scope::Pool(pool), self.pools[pool as usize].held)),
            LimitOf::EachUserOf(n) if n == pool_name => {
                let held = u.held_in.iter().find(|(p, _)| *p == pool).map_or(0, |(_, n)| *n);
                Some((Scope::UserInPool(user, pool), held))
            }
            LimitOf::User(_) | LimitOf::Pool(_) | LimitOf::EachUserOf(_) | LimitOf::Members { .. } => None,
        }
    }

    /// Whether a limit makes it impossible that this need is ever served.
    pub(crate) fn never_within_limits(&self, kernel: u32, gpus: u16) -> Option<RefusedBecause> {
        let k = &self.kernels[kernel];
        let plain = (0u32..).zip(&self.limits.limits);
        let plain = plain.filter(|(_, l)| self.scope_of(&l.of, k.user, k.account, k.pool).is_some());
        let bound = self.members.binding(k.user, k.account).iter();
        let bound = bound.map(|&i| (i, &self.limits.limits[i as usize]));
        for (i, limit) in plain.chain(bound) {
            if let Some(most) = limit.gpus
                && u32::from(gpus) > most
            {
                return Some(RefusedBecause::OverLimit {
                    name: limit.name.clone(),
                    asked: gpus,
                    limit: most,
                });
            }
            if let Some(minutes) = limit.gpu_minutes
                && let Some(used) = self.usage_under(i, &limit.of, k.user, k.account)
            {
                let used = (self.deflate(used) / 60.0) as u64;
                if gpus > 0 && used >= minutes {
                    return Some(RefusedBecause::UsedUp {
                        name: limit.name.clone(),
                        used,
                        limit: minutes,
                    });
                }
            }
        }
        None
    }

    /// Usage that counts for a limit's GPU-minutes; none: it has none.
    fn usage_under(&self, limit: u32, of: &LimitOf, user: u32, account: u32) -> Option<f64> {
        match of {
            LimitOf::Account(_) => Some(self.accounts[account as usize].usage.inflated),
            LimitOf::User(_) | LimitOf::EachUser => Some(self.users[user as usize].usage.inflated),
            LimitOf::Members { .. } => {
                let (users, accounts) = self.members.used_by.get(&limit)?;
                let users = users.iter().map(|&u| self.users[u as usize].usage.inflated);
                let accounts = accounts.iter().map(|&a| self.accounts[a as usize].usage.inflated);
                Some(users.chain(accounts).sum())
            }
            LimitOf::Pool(_) | LimitOf::EachUserOf(_) => None,
        }
    }

    pub(crate) fn limit_reason(over: &Over) -> Reason {
        Reason::Limit {
            name: over.name.clone(),
            used: over.used,
            limit: over.limit,
        }
    }

    /// Counts the lease's GPUs (`taken`) or no longer.
    pub(crate) fn count_held(&mut self, lease: &Lease, taken: bool) {
        let gpus = u32::from(lease.gpus);
        let apply = |n: &mut u32| {
            if taken {
                *n += gpus;
            } else {
                *n -= gpus;
            }
        };
        let user = &mut self.users[lease.user as usize];
        apply(&mut user.held);
        match user.held_in.iter_mut().find(|(p, _)| *p == lease.pool) {
            Some((_, n)) => apply(n),
            None => user.held_in.push((lease.pool, gpus)),
        }
        apply(&mut self.accounts[lease.account as usize].held);
        apply(&mut self.pools[lease.pool as usize].held);
        for limit in self.members.binding(lease.user, lease.account).to_vec() {
            if let Some(key) = self.member_key(limit, lease.user, lease.account) {
                apply(self.members.held.entry((limit, key)).or_default());
            }
        }
    }

    /// Takes the cell off the list of those that wait for a limit.
    pub(crate) fn unlimit(&mut self, cell: u32) {
        let Some(scope) = self.cells[cell].limited.take() else {
            return;
        };
        if let Some(set) = self.limited.get_mut(&scope) {
            set.remove(&cell);
            if set.is_empty() {
                self.limited.remove(&scope);
            }
        }
    }

    /// Cells that may start now because this lease is over.
    pub(crate) fn freed_from_limits(&self, user: u32, account: u32, pool: u32) -> Vec<u32> {
        if self.limited.is_empty() {
            return Vec::new();
        }
        let scopes = [
            Scope::User(user),
            Scope::Account(account),
            Scope::Pool(pool),
            Scope::UserInPool(user, pool),
        ];
        let of_members = self.members.binding(user, account).iter();
        let of_members =
            of_members.filter_map(|&i| Some(Scope::Members(i, self.member_key(i, user, account)?)));
        let mut cells: Vec<u32> = scopes
            .into_iter()
            .chain(of_members)
            .filter_map(|s| self.limited.get(&s))
            .flatten()
            .copied()
            .collect();
        cells.sort_by_key(|&c| self.cells[c].rank);
        cells
    }
}
