//! Slurm's limits and fair shares, in the core's terms.
//!
//! In pool mode Slurm sees the service account alone, so `hopd` must enforce what associations and QOS allow each
//! user. Pure: the input is the output of `sacctmgr`, `sshare` and the queue, the output is the core's limits.
//! `docs/policy.md` has the rules, and the parts of Slurm's that aren't taken over.

use hop_core::config::{Count, Limit, LimitOf, Limits, Share, Shares};
use hop_slurm::{Association, Job, Partition};
use hop_words::id::{AccountName, PoolName, UserName};
use hop_words::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// A user in an account, or where Slurm has not said in which.
type Member = (UserName, Option<AccountName>);

/// What is known of people in Slurm.
#[derive(Debug)]
pub(crate) struct SlurmAccounts<'a> {
    pub associations: &'a [Association],
    /// Limits of QOS.
    pub qos: &'a [hop_slurm::Limits],
    pub partitions: &'a [Partition],
    /// People's own: none of the service account's.
    pub jobs: &'a [Job],
    /// Pools, by name, with their partitions.
    pub pools: &'a [(PoolName, String)],
    /// The service account. No limit of a user's is its own.
    pub service: &'a UserName,
}

impl SlurmAccounts<'_> {
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Vec::new();
        for row in self.associations {
            match &row.user {
                None => self.of_account(row, &mut limits),
                Some(user) if user != self.service => self.of_user(row, user, &mut limits),
                Some(_) => {}
            }
        }
        self.of_leases(&mut limits);
        for qos in self.qos {
            self.of_qos(qos, &mut limits);
        }
        self.of_pools(&mut limits);
        Limits {
            limits,
            elsewhere: self.elsewhere(),
        }
    }

    /// GrpTRES of an account: a limit on all users and accounts below it together.
    fn of_account(&self, row: &Association, limits: &mut Vec<Limit>) {
        let below = self.below(&row.account);
        let who = self.members(|a| below.contains(&a.account));
        let group = self.ungoverned(&who, |q| q.group.gpus());
        push(
            limits,
            group,
            Count::Accounts,
            row.limits.group.gpus(),
            None,
            || format!("GrpTRES of account {}", row.account),
        );
        let minutes = self.ungoverned(&who, |q| q.group_minutes.gpus());
        push(
            limits,
            minutes,
            Count::Accounts,
            None,
            row.limits.group_minutes.gpus(),
            || format!("GrpTRESMins of account {}", row.account),
        );
    }

    /// GrpTRES of a user's association.
    fn of_user(&self, row: &Association, user: &UserName, limits: &mut Vec<Limit>) {
        if !self.concerns(row) {
            return;
        }
        let name = |what: &str| match &row.partition {
            Some(p) => format!("{what} of {user} in account {} and partition {p}", row.account),
            None => format!("{what} of {user} in account {}", row.account),
        };
        let who = vec![(user.clone(), Some(row.account.clone())), (user.clone(), None)];
        let group = self.ungoverned(&who, |q| q.group.gpus());
        push(limits, group, Count::Users, row.limits.group.gpus(), None, || {
            name("GrpTRES")
        });
        let minutes = self.ungoverned(&who, |q| q.group_minutes.gpus());
        push(
            limits,
            minutes,
            Count::Users,
            None,
            row.limits.group_minutes.gpus(),
            || name("GrpTRESMins"),
        );
    }

    /// MaxTRES, which Slurm looks for in the QOS, then in the user's association, then upwards.
    fn of_leases(&self, limits: &mut Vec<Limit>) {
        let mut found: BTreeMap<(String, u64), Vec<Member>> = BTreeMap::new();
        for row in self.people() {
            let Some(user) = &row.user else { continue };
            if self.qos_of(row).is_some_and(|q| q.per_job.gpus().is_some()) {
                continue;
            }
            let own = row
                .limits
                .per_job
                .gpus()
                .map(|n| (format!("MaxTRES of {user}"), n));
            let inherited = || {
                self.upwards(&row.account).find_map(|a| {
                    let gpus = a.limits.per_job.gpus()?;
                    Some((format!("MaxTRES of account {}", a.account), gpus))
                })
            };
            if let Some(limit) = own.or_else(inherited) {
                let who = found.entry(limit).or_default();
                who.extend([(user.clone(), Some(row.account.clone())), (user.clone(), None)]);
            }
        }
        for ((name, gpus), who) in found {
            push(limits, who, Count::PerLease, Some(gpus), None, || name);
        }
    }

    fn of_qos(&self, qos: &hop_slurm::Limits, limits: &mut Vec<Limit>) {
        let hop_slurm::LimitScope::Qos { qos: name } = &qos.scope else {
            return;
        };
        let who = self.members(|a| self.qos_name(a).as_deref() == Some(name));
        for (what, count, gpus, minutes) in [
            ("GrpTRES", Count::Users, qos.group.gpus(), None),
            ("GrpTRESMins", Count::Users, None, qos.group_minutes.gpus()),
            ("MaxTRESPerUser", Count::PerUser, qos.per_user.gpus(), None),
            (
                "MaxTRESPerAccount",
                Count::PerAccount,
                qos.per_account.gpus(),
                None,
            ),
            ("MaxTRES", Count::PerLease, qos.per_job.gpus(), None),
        ] {
            push(limits, who.clone(), count, gpus, minutes, || {
                format!("{what} of QOS {name}")
            });
        }
    }

    /// The QOS of a partition binds all leases of its pool.
    fn of_pools(&self, limits: &mut Vec<Limit>) {
        for (pool, partition) in self.pools {
            let of_partition = self.partitions.iter().find(|p| p.name == *partition);
            let Some(name) = of_partition.and_then(|p| p.qos.as_deref()) else {
                continue;
            };
            let Some(qos) = self.find_qos(name) else { continue };
            for (what, of, gpus) in [
                ("GrpTRES", LimitOf::Pool(pool.clone()), qos.group.gpus()),
                (
                    "MaxTRESPerUser",
                    LimitOf::EachUserOf(pool.clone()),
                    qos.per_user.gpus(),
                ),
            ] {
                limits.extend(gpus.map(|gpus| Limit {
                    of,
                    gpus: Some(clip(gpus)),
                    gpu_minutes: None,
                    name: format!("{what} of QOS {name} of partition {partition}"),
                }));
            }
        }
    }

    /// GPUs of people's own jobs that run.
    fn elsewhere(&self) -> Vec<(UserName, AccountName, u32)> {
        let mut held: BTreeMap<(UserName, AccountName), u64> = BTreeMap::new();
        for job in self.jobs {
            let runs = !job.state.is_over() && !job.state.is_waiting();
            let gpus = hop_slurm::gres::gpus(&job.gres) * job.nodes.len().max(1) as u64;
            if let Some(account) = &job.account
                && runs
                && gpus > 0
            {
                *held.entry((job.user.clone(), account.clone())).or_default() += gpus;
            }
        }
        let rows = held.into_iter();
        rows.map(|((user, account), n)| (user, account, clip(n)))
            .collect()
    }

    // --- who is who ---

    /// Rows of people with possible leases under these limits.
    fn people(&self) -> impl Iterator<Item = &Association> {
        self.associations
            .iter()
            .filter(|a| a.user.as_ref().is_some_and(|u| u != self.service) && self.concerns(a))
    }

    /// Whether an association concerns leases: one for a partition does only if a pool is in the partition.
    fn concerns(&self, row: &Association) -> bool {
        let here = |p: &String| self.pools.iter().any(|(_, partition)| partition == p);
        row.partition.as_ref().is_none_or(here)
    }

    fn members(&self, wanted: impl Fn(&Association) -> bool) -> Vec<Member> {
        let rows = self.people().filter(|a| wanted(a));
        let all: BTreeSet<Member> = rows
            .filter_map(|a| Some((a.user.clone()?, a.account.clone())))
            .flat_map(|(user, account)| [(user.clone(), Some(account)), (user, None)])
            .collect();
        all.into_iter().collect()
    }

    /// The account with all accounts below it.
    fn below(&self, top: &AccountName) -> BTreeSet<AccountName> {
        let mut found = BTreeSet::from([top.clone()]);
        loop {
            let before = found.len();
            let accounts = self.associations.iter().filter(|a| a.user.is_none());
            for a in accounts {
                if a.parent.as_ref().is_some_and(|p| found.contains(p)) {
                    found.insert(a.account.clone());
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// Rows of the account and its parents.
    fn upwards(&self, account: &AccountName) -> impl Iterator<Item = &Association> {
        let row = |name: &AccountName| {
            let mut rows = self.associations.iter();
            rows.find(|a| a.user.is_none() && a.account == *name)
        };
        // A tree can't be deeper than it has rows.
        std::iter::successors(row(account), move |a| {
            a.parent.as_ref().filter(|p| **p != a.account).and_then(row)
        })
        .take(self.associations.len())
    }

    /// QOS of an association without a named QOS: its default, an inherited QOS, `normal`, or the only QOS.
    fn qos_name(&self, row: &Association) -> Option<String> {
        let default = row.default_qos.clone();
        let inherited = || self.upwards(&row.account).find_map(|a| a.default_qos.clone());
        let usual = || {
            let normal = row.qos.iter().find(|q| *q == "normal");
            normal
                .or_else(|| row.qos.first().filter(|_| row.qos.len() == 1))
                .cloned()
        };
        default.or_else(inherited).or_else(usual)
    }

    fn find_qos(&self, name: &str) -> Option<&hop_slurm::Limits> {
        let is =
            |l: &&hop_slurm::Limits| matches!(&l.scope, hop_slurm::LimitScope::Qos { qos } if qos == name);
        self.qos.iter().find(is)
    }

    fn qos_of(&self, row: &Association) -> Option<&hop_slurm::Limits> {
        self.find_qos(&self.qos_name(row)?)
    }

    /// Members whose QOS doesn't state this limit: a QOS with the limit takes precedence over associations, as in
    /// Slurm.
    fn ungoverned(&self, who: &[Member], stated: impl Fn(&hop_slurm::Limits) -> Option<u64>) -> Vec<Member> {
        let governed: BTreeSet<(&UserName, &AccountName)> = self
            .people()
            .filter(|a| self.qos_of(a).is_some_and(|q| stated(q).is_some()))
            .filter_map(|a| Some((a.user.as_ref()?, &a.account)))
            .collect();
        let of_user = |user: &UserName| governed.iter().any(|(u, _)| *u == user);
        let stays = |(user, account): &&Member| match account {
            Some(account) => !governed.contains(&(user, account)),
            None => !of_user(user),
        };
        who.iter().filter(stays).cloned().collect()
    }
}

fn push(
    limits: &mut Vec<Limit>,
    who: Vec<Member>,
    count: Count,
    gpus: Option<u64>,
    minutes: Option<u64>,
    name: impl FnOnce() -> String,
) {
    if who.is_empty() || gpus.is_none() && minutes.is_none() {
        return;
    }
    limits.push(Limit {
        of: LimitOf::Members { who, count },
        gpus: gpus.map(clip),
        gpu_minutes: minutes,
        name: name(),
    });
}

fn clip(gpus: u64) -> u32 {
    u32::try_from(gpus).unwrap_or(u32::MAX)
}

/// Weights, and what people's own jobs have used by Slurm's word of `at`. An account weighs its share of the whole
/// tree, a user their share in an account (the largest of several). GPU-minutes are Slurm's own, decayed alike.
///
/// An account's usage is the sum of its users' usage. The account's own row has more. It includes the pilots' usage if
/// the service account is in it; the core charges that usage to the users of the leases. It includes also the usage of
/// the accounts below, which have rows of their own.
pub(crate) fn shares(rows: &[hop_slurm::Share], service: &UserName, at: Timestamp) -> Shares {
    let mut accounts: BTreeMap<AccountName, Share> = BTreeMap::new();
    let mut users: BTreeMap<UserName, Share> = BTreeMap::new();
    let mut associations: BTreeMap<(UserName, AccountName), Share> = BTreeMap::new();
    for row in rows {
        let Some(user) = &row.user else {
            let weight = row.norm_shares.filter(|n| *n > 0.0).unwrap_or(1.0);
            accounts.entry(row.account.clone()).or_insert(UNUSED).weight = weight;
            continue;
        };
        if user == service {
            continue;
        }
        let usage = 60.0 * row.tres_minutes.gpus().unwrap_or(0) as f64;
        let share = users.entry(user.clone()).or_insert(Share {
            weight: 0.0,
            ..UNUSED
        });
        share.weight = share.weight.max(row.raw_shares.map_or(1.0, |n| n as f64));
        share.usage += usage;
        accounts.entry(row.account.clone()).or_insert(UNUSED).usage += usage;
        let association = (user.clone(), row.account.clone());
        associations.entry(association).or_insert(UNUSED).usage += usage;
    }
    Shares {
        at,
        users: users.into_iter().collect(),
        accounts: accounts.into_iter().collect(),
        associations: associations
            .into_iter()
            .map(|((user, account), share)| (user, account, share))
            .collect(),
    }
}

const UNUSED: Share = Share {
    weight: 1.0,
    usage: 0.0,
};

#[cfg(test)]
mod tests {
    use super::*;
    use hop_slurm::gres::Tres;
    use hop_slurm::{LimitScope, Limits as SlurmLimits};

    fn tres(gpus: u64) -> Tres {
        match gpus {
            0 => Tres::default(),
            n => Tres::parse(&format!("cpu=8,gres/gpu={n}")).unwrap(),
        }
    }

    fn none(scope: LimitScope) -> SlurmLimits {
        SlurmLimits {
            scope,
            group: tres(0),
            group_minutes: tres(0),
            per_user: tres(0),
            per_account: tres(0),
            per_job: tres(0),
        }
    }

    fn row(account: &str, parent: Option<&str>, user: Option<&str>, group: u64) -> Association {
        let account = AccountName::from(account);
        Association {
            parent: parent.map(Into::into),
            user: user.map(Into::into),
            partition: None,
            qos: vec!["normal".into()],
            default_qos: None,
            limits: SlurmLimits {
                group: tres(group),
                ..none(LimitScope::Account {
                    account: account.clone(),
                })
            },
            account,
        }
    }

    fn qos(name: &str) -> SlurmLimits {
        none(LimitScope::Qos { qos: name.into() })
    }

    fn tree() -> Vec<Association> {
        vec![
            row("root", None, None, 0),
            row("science", Some("root"), None, 8),
            row("lab", Some("science"), None, 0),
            row("lab", None, Some("alice"), 1),
            row("lab", None, Some("bob"), 0),
            row("arts", Some("root"), None, 0),
            row("arts", None, Some("alice"), 0),
            row("pool", Some("root"), None, 0),
            row("pool", None, Some("gresshopper"), 2),
        ]
    }

    fn said(associations: &[Association], qos: &[SlurmLimits]) -> Vec<(String, Option<u32>, Vec<String>)> {
        let accounts = SlurmAccounts {
            associations,
            qos,
            partitions: &[],
            jobs: &[],
            pools: &[("main".into(), "notebook".into())],
            service: &"gresshopper".into(),
        };
        let limits = accounts.limits().limits.into_iter();
        limits
            .map(|l| {
                let LimitOf::Members { who, count } = l.of else {
                    panic!()
                };
                let word =
                    |(u, a): Member| format!("{u}@{}", a.map_or_else(|| "-".to_owned(), |a| a.to_string()));
                let who = who.into_iter().map(word).chain([format!("{count:?}")]);
                (l.name, l.gpus, who.collect())
            })
            .collect()
    }

    #[test]
    fn an_account_binds_all_below_it_and_an_association_its_user_alone() {
        let limits = said(&tree(), &[qos("normal")]);
        assert_eq!(
            limits,
            [
                (
                    "GrpTRES of account science".to_owned(),
                    Some(8),
                    ["alice@-", "alice@lab", "bob@-", "bob@lab", "Accounts"]
                        .map(str::to_owned)
                        .to_vec()
                ),
                (
                    "GrpTRES of alice in account lab".to_owned(),
                    Some(1),
                    ["alice@lab", "alice@-", "Users"].map(str::to_owned).to_vec()
                ),
            ]
        );
    }

    #[test]
    fn a_qos_binds_those_who_have_it_by_default_and_goes_before_their_associations() {
        let mut rows = tree();
        rows[4].default_qos = Some("gpu".into());
        rows[2].limits.per_job = tres(4);
        let gpu = SlurmLimits {
            group: tres(6),
            per_user: tres(2),
            per_account: tres(5),
            per_job: tres(1),
            ..qos("gpu")
        };
        let limits = said(&rows, &[qos("normal"), gpu]);
        let of = |name: &str| {
            let found = limits.iter().find(|(n, ..)| n == name);
            found.map(|(_, gpus, who)| (gpus.unwrap(), who.join(" ")))
        };
        let bob = |n, count: &str| Some((n, format!("bob@- bob@lab {count}")));
        assert_eq!(of("GrpTRES of QOS gpu"), bob(6, "Users"));
        assert_eq!(of("MaxTRESPerUser of QOS gpu"), bob(2, "PerUser"));
        assert_eq!(of("MaxTRESPerAccount of QOS gpu"), bob(5, "PerAccount"));
        assert_eq!(of("MaxTRES of QOS gpu"), bob(1, "PerLease"));
        // Bob's QOS says GrpTRES and MaxTRES itself.
        assert_eq!(
            of("GrpTRES of account science"),
            Some((8, "alice@- alice@lab Accounts".into()))
        );
        assert_eq!(
            of("MaxTRES of account lab"),
            Some((4, "alice@lab alice@- PerLease".into()))
        );
        assert_eq!(limits.len(), 7);
    }

    #[test]
    fn a_partitions_qos_binds_its_pool() {
        let partition = Partition {
            name: "notebook".into(),
            state: "UP".into(),
            nodes: vec![],
            is_default: true,
            max_time: hop_slurm::span::TimeLimit::Unlimited,
            default_time: hop_slurm::span::TimeLimit::Unlimited,
            oversubscribe: "NO".into(),
            exclusive_user: false,
            preempt_mode: "OFF".into(),
            admits: hop_slurm::Admits::default(),
            qos: Some("part".into()),
        };
        let accounts = SlurmAccounts {
            associations: &[],
            qos: &[SlurmLimits {
                per_user: tres(3),
                ..qos("part")
            }],
            partitions: &[partition],
            jobs: &[],
            pools: &[("main".into(), "notebook".into())],
            service: &"gresshopper".into(),
        };
        let limits = accounts.limits().limits;
        assert_eq!(limits.len(), 1);
        assert_eq!(
            (&limits[0].of, limits[0].gpus),
            (&LimitOf::EachUserOf("main".into()), Some(3))
        );
    }

    #[test]
    fn shares_weigh_users_and_accounts() {
        let share = |account: &str, user: Option<&str>, raw, norm, gpus| hop_slurm::Share {
            account: account.into(),
            user: user.map(Into::into),
            raw_shares: raw,
            norm_shares: Some(norm),
            raw_usage: 0,
            tres_minutes: tres(gpus),
            effective_usage: None,
            fair_share: None,
        };
        // Slurm's sums: "science" has "lab" below it, and the pilots are in "lab".
        let rows = [
            share("science", None, Some(1), 0.5, 1097),
            share("science", Some("bob"), Some(1), 0.5, 7),
            share("lab", None, Some(3), 0.75, 1090),
            share("lab", Some("alice"), Some(2), 0.5, 60),
            share("lab", Some("carol"), Some(2), 0.5, 30),
            share("lab", Some("gresshopper"), Some(1), 1.0, 1000),
            share("arts", Some("alice"), None, 0.5, 30),
        ];
        let shares = shares(&rows, &"gresshopper".into(), Timestamp(5));
        let weight = |weight, usage| Share { weight, usage };
        assert_eq!(shares.at, Timestamp(5));
        assert_eq!(
            shares.users,
            [
                ("alice".into(), weight(2.0, 60.0 * 90.0)),
                ("bob".into(), weight(1.0, 60.0 * 7.0)),
                ("carol".into(), weight(2.0, 60.0 * 30.0)),
            ]
        );
        assert_eq!(
            shares.accounts,
            [
                ("arts".into(), weight(1.0, 60.0 * 30.0)),
                ("lab".into(), weight(0.75, 60.0 * 90.0)),
                ("science".into(), weight(0.5, 60.0 * 7.0)),
            ]
        );
        assert_eq!(
            shares.associations,
            [
                ("alice".into(), "arts".into(), weight(1.0, 60.0 * 30.0)),
                ("alice".into(), "lab".into(), weight(1.0, 60.0 * 60.0)),
                ("bob".into(), "science".into(), weight(1.0, 60.0 * 7.0)),
                ("carol".into(), "lab".into(), weight(1.0, 60.0 * 30.0)),
            ]
        );
    }
}
