//! Limits of users, accounts, pools and Slurm's associations: who may not go now.

use crate::config::{Count, Limit, LimitOf};
use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::state::{Account, Cell, Kernel, Lease, Member, Members, Pool, Scope, User};
use hop_words::reason::{Reason, RefusedBecause};

/// What a limit says now.
pub(crate) struct Over {
    pub scope: Scope,
    pub name: String,
    pub used: u32,
    /// GPUs on their way for other cells, where these count.
    pub coming: u32,
    pub limit: u32,
    pub asked: u32,
}

impl Over {
    /// GPUs that must be given back before the cell may start.
    pub(crate) fn excess(&self) -> u32 {
        (self.used + self.asked).saturating_sub(self.limit)
    }
}

impl Core {
    /// The limit against this cell's start, if any.
    pub(crate) fn over_limit(&self, cell: &Cell) -> Option<Over> {
        let kernel = &self.work.kernels[cell.kernel];
        self.over(cell.need.gpus, kernel.user, kernel.account, kernel.pool)
    }

    /// All limits against this cell's start.
    pub(crate) fn limits_over(&self, cell: &Cell) -> impl Iterator<Item = Over> + '_ {
        let kernel = &self.work.kernels[cell.kernel];
        self.overs(cell.need.gpus, kernel.user, kernel.account, kernel.pool)
    }

    /// The limit against `gpus` more GPUs now, if any.
    pub(crate) fn over(
        &self,
        gpus: u16,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
    ) -> Option<Over> {
        self.overs(gpus, user, account, pool).next()
    }

    /// All limits against `gpus` more GPUs now.
    fn overs(
        &self,
        gpus: u16,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
    ) -> impl Iterator<Item = Over> + '_ {
        let asked = u32::from(gpus);
        let counted = self.counted_by_limits(user, account, pool);
        let overs = counted.filter_map(move |(l, scope, used)| {
            let limit = l.gpus?;
            (used + asked > limit).then(|| Over {
                scope,
                name: l.name.clone(),
                used,
                coming: 0,
                limit,
                asked,
            })
        });
        // Nothing is asked for at most places: no limit is looked at for it.
        overs.take(if asked > 0 { usize::MAX } else { 0 })
    }

    /// The limits on GPUs of a user in an account and pool, each with the scope and the GPUs now held in the
    /// scope.
    fn counted_by_limits(
        &self,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
    ) -> impl Iterator<Item = (&Limit, Scope, u32)> {
        let plain = self.people.limits.values().filter_map(move |l| {
            let (scope, used) = self.scope_of(&l.of, user, account, pool)?;
            Some((l, scope, used))
        });
        let bound = self.people.members.binding(user, account).iter();
        let bound = bound.filter_map(move |&i| {
            let (scope, used) = self.counted(i, user, account)?;
            Some((&self.people.limits[i], scope, used))
        });
        plain.chain(bound)
    }

    /// GPUs left now by each limit to a user in an account and pool, with the limit's scope.
    pub(crate) fn left_by_limits(
        &self,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
    ) -> impl Iterator<Item = (Scope, u32)> {
        let counted = self.counted_by_limits(user, account, pool);
        counted.filter_map(|(l, scope, used)| Some((scope, l.gpus?.saturating_sub(used))))
    }

    /// Scope in which a limit on associations counts a user in an account, and the GPUs now held in the scope.
    /// `None` means that the limit counts no more than a single lease.
    fn counted(&self, limit: Idx<Limit>, user: Idx<User>, account: Idx<Account>) -> Option<(Scope, u32)> {
        let key = self.member_key(limit, user, account)?;
        let held = self.people.members.held.get(&(limit, key)).copied().unwrap_or(0);
        Some((Scope::Members(limit, key), held))
    }

    fn member_key(&self, limit: Idx<Limit>, user: Idx<User>, account: Idx<Account>) -> Option<Member> {
        let LimitOf::Members { count, .. } = &self.people.limits[limit].of else {
            return None;
        };
        match count {
            Count::Accounts | Count::Users => Some(Member::All),
            Count::PerUser => Some(Member::User(user)),
            Count::PerAccount => Some(Member::Account(account)),
            Count::PerLease => None,
        }
    }

    /// Whether a limit of `scope` counts the leases of a user in an account and pool.
    pub(crate) fn counts(
        &self,
        scope: Scope,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
    ) -> bool {
        match scope {
            Scope::User(u) => user == u,
            Scope::Account(a) => account == a,
            Scope::Pool(p) => pool == p,
            Scope::UserInPool(u, p) => user == u && pool == p,
            Scope::Members(limit, key) => {
                let bound = self.people.members.binding(user, account);
                bound.contains(&limit) && self.member_key(limit, user, account) == Some(key)
            }
        }
    }

    /// Looks up the members of the limits on associations, and counts their leases.
    pub(crate) fn members_of_limits(&mut self) -> Members {
        let mut members = Members::default();
        let limits = std::mem::take(&mut self.people.limits);
        for (i, limit) in limits.iter() {
            let LimitOf::Members { who, count } = &limit.of else {
                continue;
            };
            for (user, name) in who {
                let user = self.user_index(user);
                let account = self.account_index(name.as_ref());
                members.binding.entry((user, account)).or_default().push(i);
                let used_by = members.used_by.entry(i).or_default();
                if *count == Count::Accounts {
                    used_by.accounts.extend(name.is_some().then_some(account));
                } else {
                    used_by.associations.insert((user, account));
                }
            }
        }
        self.people.limits = limits;
        let elsewhere = self.people.elsewhere.clone();
        let elsewhere: Vec<(Idx<User>, Idx<Account>, u32)> = elsewhere
            .iter()
            .map(|(user, account, gpus)| (self.user_index(user), self.account_index(Some(account)), *gpus))
            .collect();
        let leased = self
            .work
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

    /// Scope in which a limit counts a user, and the GPUs now held in the scope. `None` means that the limit
    /// doesn't bind the user.
    fn scope_of(
        &self,
        of: &LimitOf,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
    ) -> Option<(Scope, u32)> {
        let u = &self.people.users[user];
        let pool_name = &self.supply.pools[pool].config.name;
        let mine = |n: &hop_words::id::UserName| *n == u.name;
        match of {
            LimitOf::User(n) if mine(n) => Some((Scope::User(user), u.held)),
            LimitOf::EachUser => Some((Scope::User(user), u.held)),
            LimitOf::Account(n) => {
                let a = &self.people.accounts[account];
                (a.name.as_ref() == Some(n)).then_some((Scope::Account(account), a.held))
            }
            LimitOf::Pool(n) if n == pool_name => Some((Scope::Pool(pool), self.supply.pools[pool].held)),
            LimitOf::EachUserOf(n) if n == pool_name => {
                let held = u.held_in.iter().find(|(p, _)| *p == pool).map_or(0, |(_, n)| *n);
                Some((Scope::UserInPool(user, pool), held))
            }
            LimitOf::User(_) | LimitOf::Pool(_) | LimitOf::EachUserOf(_) | LimitOf::Members { .. } => None,
        }
    }

    /// The limits on the kernel's user in its account and pool.
    fn limits_on(&self, k: &Kernel) -> impl Iterator<Item = (Idx<Limit>, &Limit)> {
        let (user, account, pool) = (k.user, k.account, k.pool);
        let plain = self.people.limits.iter();
        let plain = plain.filter(move |(_, l)| self.scope_of(&l.of, user, account, pool).is_some());
        let bound = self.people.members.binding(user, account).iter();
        plain.chain(bound.map(|&i| (i, &self.people.limits[i])))
    }

    /// The limit, if any, that is lower than this need. Waiting is of no use to such a cell.
    pub(crate) fn beyond_limits(&self, kernel: Idx<Kernel>, gpus: u16) -> Option<RefusedBecause> {
        let mut limits = self.limits_on(&self.work.kernels[kernel]);
        limits.find_map(|(_, limit)| beyond(limit, gpus))
    }

    /// Refuses the waiting cells with needs beyond limits that have changed.
    pub(crate) fn refuse_beyond_limits(&mut self, out: &mut Vec<Output>) {
        let waiting = self.work.cells.iter();
        let refused = waiting.filter_map(|(i, c)| Some((i, self.beyond_limits(c.kernel, c.need.gpus)?)));
        for (cell, reason) in refused.collect::<Vec<_>>() {
            self.drop_cell(cell, Some(reason), out);
        }
    }

    /// The limit, if any, that forbids this need, however long the cell would wait.
    pub(crate) fn never_within_limits(&self, kernel: Idx<Kernel>, gpus: u16) -> Option<RefusedBecause> {
        let k = &self.work.kernels[kernel];
        for (i, limit) in self.limits_on(k) {
            let beyond = beyond(limit, gpus);
            if beyond.is_some() {
                return beyond;
            }
            if let Some(minutes) = limit.gpu_minutes
                && let Some(used) = self.usage_under(i, &limit.of, k.user, k.account)
            {
                let used = (self.decay().deflate(used, self.now) / 60.0) as u64;
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

    /// Usage under a limit's GPU-minutes. `None` means that the limit has no GPU-minutes.
    fn usage_under(
        &self,
        limit: Idx<Limit>,
        of: &LimitOf,
        user: Idx<User>,
        account: Idx<Account>,
    ) -> Option<f64> {
        match of {
            LimitOf::Account(_) => Some(self.used(&self.people.accounts[account].usage)),
            LimitOf::User(_) | LimitOf::EachUser => Some(self.used(&self.people.users[user].usage)),
            LimitOf::Members { .. } => {
                let used_by = self.people.members.used_by.get(&limit)?;
                let own = used_by.associations.iter();
                let own = own.filter_map(|one| self.people.used_in.get(one));
                let own = own.map(|usage| self.used(usage));
                let accounts = used_by
                    .accounts
                    .iter()
                    .map(|&a| self.used(&self.people.accounts[a].usage));
                Some(own.chain(accounts).sum())
            }
            LimitOf::Pool(_) | LimitOf::EachUserOf(_) => None,
        }
    }

    pub(crate) fn limit_reason(&self, over: &Over, c: &Cell) -> Reason {
        let user = &self.people.users[self.work.kernels[c.kernel].user];
        let leases = match over.scope {
            Scope::Account(_) | Scope::Pool(_) | Scope::Members(_, Member::All | Member::Account(_)) => None,
            Scope::User(_) | Scope::UserInPool(..) | Scope::Members(_, Member::User(_)) => Some(&user.leases),
        };
        let leases = leases.into_iter().flatten().map(|id| &self.work.leases[id]);
        let in_scope = |l: &&Lease| !matches!(over.scope, Scope::UserInPool(_, pool) if l.pool != pool);
        Reason::Limit {
            name: over.name.clone(),
            used: over.used,
            limit: over.limit,
            coming: over.coming,
            yours: self.work.yours(c, leases.filter(in_scope)),
        }
    }

    /// Counts the lease's GPUs (`taken`) or no longer.
    pub(crate) fn count_held(&mut self, lease: &Lease, taken: bool) {
        self.use_gpus(lease, taken);
        let gpus = u32::from(lease.gpus);
        let apply = |n: &mut u32| {
            if taken {
                *n += gpus;
            } else {
                *n -= gpus;
            }
        };
        let user = &mut self.people.users[lease.user];
        match taken {
            true => _ = user.leases.insert(lease.id),
            false => _ = user.leases.remove(&lease.id),
        }
        apply(&mut user.held);
        match user.held_in.iter_mut().find(|(p, _)| *p == lease.pool) {
            Some((_, n)) => apply(n),
            None => user.held_in.push((lease.pool, gpus)),
        }
        apply(&mut self.people.accounts[lease.account].held);
        apply(&mut self.supply.pools[lease.pool].held);
        for limit in self.people.members.binding(lease.user, lease.account).to_vec() {
            if let Some(key) = self.member_key(limit, lease.user, lease.account) {
                apply(self.people.members.held.entry((limit, key)).or_default());
            }
        }
    }

    /// Whether a limit makes a pilot for the cell useless: the cell couldn't start now, or not beside others with
    /// pilots on their way. The cell is then tried again as soon as the limit counts fewer GPUs.
    pub(crate) fn limits_demand(&mut self, cell: Idx<Cell>) -> bool {
        // A limit against the cell now comes first. A limit that is against the cell only with pilots on their way may
        // never be reached, and the cell would not be tried when the first limit counts fewer GPUs.
        let now = self.over_limit(&self.work.cells[cell]);
        let over = now.or_else(|| self.over_limit_soon(cell)).map(|over| over.scope);
        match over {
            Some(scope) => self.limit(cell, scope),
            None => self.unlimit(cell),
        }
        over.is_some()
    }

    /// The limit against this cell's start, after the starts of all cells whose pilots are on their way.
    pub(crate) fn over_limit_soon(&self, cell: Idx<Cell>) -> Option<Over> {
        let c = &self.work.cells[cell];
        let k = &self.work.kernels[c.kernel];
        if c.need.gpus == 0 || self.people.limits.values().next().is_none() {
            return None;
        }
        let tickets = self.supply.tickets.values().filter(|t| !self.is_stuck(t));
        let coming = tickets.filter_map(|t| t.cell).filter(|(o, _)| *o != cell);
        let coming = coming.filter(|&(o, seq)| self.is_same(o, seq));
        let coming: Vec<&Cell> = coming.map(|(o, _)| &self.work.cells[o]).collect();
        let asked = coming.iter().map(|o| o.need.gpus);
        let asked = asked.fold(c.need.gpus, u16::saturating_add);
        let within = |o: &Cell, scope: Scope| {
            let k = &self.work.kernels[o.kernel];
            self.counts(scope, k.user, k.account, k.pool)
        };
        let mut overs = self.overs(asked, k.user, k.account, k.pool);
        overs.find_map(|over| {
            let coming = coming.iter().filter(|o| within(o, over.scope));
            let coming: u32 = coming.map(|o| u32::from(o.need.gpus)).sum();
            let exceeds = over.used + coming + u32::from(c.need.gpus) > over.limit;
            exceeds.then_some(Over { coming, ..over })
        })
    }

    /// Puts the cell on this limit's list of waiting cells.
    pub(crate) fn limit(&mut self, cell: Idx<Cell>, scope: Scope) {
        if self.work.cells[cell].limited != Some(scope) {
            self.unlimit(cell);
            self.work.cells[cell].limited = Some(scope);
            self.people.limited.entry(scope).or_default().insert(cell);
            self.reconsider_hold(cell);
        }
    }

    /// Takes the cell off its limit's list of waiting cells.
    pub(crate) fn unlimit(&mut self, cell: Idx<Cell>) {
        let Some(scope) = self.work.cells[cell].limited.take() else {
            return;
        };
        self.reconsider_hold(cell);
        if let Some(set) = self.people.limited.get_mut(&scope) {
            set.remove(&cell);
            if set.is_empty() {
                self.people.limited.remove(&scope);
            }
        }
    }

    /// Cells free to start after this lease's end.
    pub(crate) fn freed_from_limits(
        &self,
        user: Idx<User>,
        account: Idx<Account>,
        pool: Idx<Pool>,
    ) -> Vec<Idx<Cell>> {
        if self.people.limited.is_empty() {
            return Vec::new();
        }
        let scopes = [
            Scope::User(user),
            Scope::Account(account),
            Scope::Pool(pool),
            Scope::UserInPool(user, pool),
        ];
        let of_members = self.people.members.binding(user, account).iter();
        let of_members =
            of_members.filter_map(|&i| Some(Scope::Members(i, self.member_key(i, user, account)?)));
        let mut cells: Vec<Idx<Cell>> = scopes
            .into_iter()
            .chain(of_members)
            .filter_map(|s| self.people.limited.get(&s))
            .flatten()
            .copied()
            .collect();
        cells.sort_by_key(|&c| self.work.cells[c].rank);
        cells
    }
}

/// The refusal of a need beyond what the limit ever allows.
fn beyond(limit: &Limit, gpus: u16) -> Option<RefusedBecause> {
    let most = limit.gpus.filter(|&most| u32::from(gpus) > most)?;
    Some(RefusedBecause::OverLimit {
        name: limit.name.clone(),
        asked: gpus,
        limit: most,
    })
}
