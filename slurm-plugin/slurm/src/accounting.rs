//! slurmdbd's data: limits of associations and QOS, and fair shares.
//!
//! In pool mode Slurm sees the service account, so the limits of the real user are ours to enforce; this reads
//! them, the core applies them.

use crate::config::Config;
use crate::gres::Tres;
use crate::handle::Slurm;
use crate::record::{ParseError, number, pipe_table, some_text};
use crate::run::{Call, QueryError};
use hop_words::id::{AccountName, UserName};
use serde::{Deserialize, Serialize};

/// What a limit is on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "on", rename_all = "kebab-case")]
pub enum LimitScope {
    Account {
        account: AccountName,
    },
    User {
        account: AccountName,
        user: UserName,
        partition: Option<String>,
    },
    Qos {
        qos: String,
    },
}

/// The limits that concern leases. An empty [`Tres`] sets none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub scope: LimitScope,
    /// A limit on all jobs within the scope together (`GrpTRES`).
    pub group: Tres,
    /// TRES minutes over time, decaying (`GrpTRESMins`).
    pub group_minutes: Tres,
    /// Of one user at a time (`MaxTRESPU`; QOS only).
    pub per_user: Tres,
    /// Of one account at a time (`MaxTRESPA`; QOS only).
    pub per_account: Tres,
    /// Limit on a job (`MaxTRES`), and here on a lease.
    pub per_job: Tres,
}

/// An association: a user's right to charge an account, on a partition, with a list of QOS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Association {
    pub account: AccountName,
    pub parent: Option<AccountName>,
    /// None: the account's own.
    pub user: Option<UserName>,
    pub partition: Option<String>,
    pub qos: Vec<String>,
    pub default_qos: Option<String>,
    pub limits: Limits,
}

/// A row of `sshare`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub account: AccountName,
    pub user: Option<UserName>,
    /// None: the parent's share.
    pub raw_shares: Option<u64>,
    pub norm_shares: Option<f64>,
    /// Decayed billing seconds.
    pub raw_usage: u64,
    /// Decayed TRES minutes, rounded down (`GrpTRESRaw`).
    pub tres_minutes: Tres,
    pub effective_usage: Option<f64>,
    pub fair_share: Option<f64>,
}

const ASSOC_FORMAT: &str = "Account,ParentName,User,Partition,QOS,DefaultQOS,GrpTRES,GrpTRESMins,MaxTRES";
const QOS_FORMAT: &str = "Name,GrpTRES,GrpTRESMins,MaxTRESPU,MaxTRESPA,MaxTRES";
const SHARE_FORMAT: &str = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare,GrpTRESRaw";

impl Slurm {
    /// All associations of `cluster`, with their own limits (those of the parents are in the parents' rows).
    pub async fn associations(&self, cluster: &str) -> Result<Vec<Association>, QueryError> {
        let call = sacctmgr([
            "association",
            "where",
            &format!("cluster={cluster}"),
            &format!("format={ASSOC_FORMAT}"),
        ]);
        self.runner.query(&call, parse_associations).await
    }

    /// The limits of all QOS.
    pub async fn qos_limits(&self) -> Result<Vec<Limits>, QueryError> {
        let call = sacctmgr(["qos", &format!("format={QOS_FORMAT}")]);
        self.runner.query(&call, parse_qos).await
    }

    /// The kinds of facts needed for leases that `PrivateData` hides from this user. Operators and Slurm's own account
    /// see all.
    pub async fn hidden_from(&self, user: &UserName, config: &Config) -> Result<Vec<String>, QueryError> {
        let hidden: Vec<String> = config.hides().map(str::to_owned).collect();
        if hidden.is_empty() || config.slurm_user() == Some(user.as_str()) {
            return Ok(Vec::new());
        }
        let name = format!("name={user}");
        let call = sacctmgr(["user", "where", &name, "format=AdminLevel"]);
        match self.runner.query(&call, |out| Ok(is_operator(out))).await? {
            true => Ok(Vec::new()),
            false => Ok(hidden),
        }
    }

    /// Fair shares and decayed usage of all accounts and users.
    pub async fn shares(&self) -> Result<Vec<Share>, QueryError> {
        let format = format!("--format={SHARE_FORMAT}");
        let call = Call::new("sshare", ["--all", "--noheader", "--parsable2", &format]);
        self.runner.query(&call, parse_shares).await
    }
}

fn sacctmgr<const N: usize>(what: [&str; N]) -> Call {
    let fixed = ["--noheader", "--parsable2", "--readonly", "show"];
    Call::new(
        "sacctmgr",
        fixed.iter().chain(what.iter()).map(|word| (*word).to_owned()),
    )
}

fn is_operator(output: &str) -> bool {
    ["Operator", "Administrator"].contains(&output.trim())
}

fn parse_associations(output: &str) -> Result<Vec<Association>, ParseError> {
    pipe_table(output, 9)?
        .into_iter()
        .map(|row| parse_association(&row))
        .collect()
}

fn parse_association(row: &[&str]) -> Result<Association, ParseError> {
    let account = AccountName::from(row[0]);
    let (user, partition) = (some_text(row[2]).map(UserName::from), some_text(row[3]));
    let scope = match &user {
        Some(user) => LimitScope::User {
            account: account.clone(),
            user: user.clone(),
            partition: partition.clone(),
        },
        None => LimitScope::Account {
            account: account.clone(),
        },
    };
    Ok(Association {
        account,
        parent: some_text(row[1]).map(AccountName::from),
        user,
        partition,
        qos: some_text(row[4])
            .map(|list| list.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        default_qos: some_text(row[5]),
        limits: Limits {
            scope,
            group: Tres::parse(row[6])?,
            group_minutes: Tres::parse(row[7])?,
            per_user: Tres::default(),
            per_account: Tres::default(),
            per_job: Tres::parse(row[8])?,
        },
    })
}

fn parse_qos(output: &str) -> Result<Vec<Limits>, ParseError> {
    pipe_table(output, 6)?
        .into_iter()
        .map(|row| {
            Ok(Limits {
                scope: LimitScope::Qos {
                    qos: row[0].to_owned(),
                },
                group: Tres::parse(row[1])?,
                group_minutes: Tres::parse(row[2])?,
                per_user: Tres::parse(row[3])?,
                per_account: Tres::parse(row[4])?,
                per_job: Tres::parse(row[5])?,
            })
        })
        .collect()
}

fn parse_shares(output: &str) -> Result<Vec<Share>, ParseError> {
    pipe_table(output, 8)?
        .into_iter()
        .map(|row| {
            Ok(Share {
                account: row[0].into(),
                user: some_text(row[1]).map(UserName::from),
                raw_shares: row[2].parse().ok(),
                norm_shares: row[3].parse().ok(),
                raw_usage: number("RawUsage", row[4])?,
                effective_usage: row[5].parse().ok(),
                fair_share: row[6].parse().ok(),
                tres_minutes: Tres::parse(row[7])?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn associations_of_22_05() {
        let all = parse_associations(include_str!("../tests/recorded/22.05/associations.txt")).unwrap();
        let bob = all.iter().find(|row| row.user == Some("bob".into())).unwrap();
        assert_eq!(
            (bob.account.as_str(), bob.qos.as_slice()),
            ("lab", &["normal".to_owned()][..])
        );
        assert_eq!(
            (bob.limits.group_minutes.gpus(), bob.limits.group.gpus()),
            (Some(600), None)
        );
        let lab = all
            .iter()
            .find(|row| row.account == "lab".into() && row.user.is_none())
            .unwrap();
        assert_eq!(
            (lab.parent.as_ref(), &lab.limits.scope),
            (
                Some(&"root".into()),
                &LimitScope::Account {
                    account: "lab".into()
                }
            )
        );
    }

    #[test]
    fn operators_and_administrators_see_all() {
        assert!(is_operator("Operator\n") && is_operator("Administrator\n"));
        assert!(!is_operator("None\n") && !is_operator(""));
    }

    #[test]
    fn qos_and_shares_of_22_05() {
        let qos = parse_qos(include_str!("../tests/recorded/22.05/qos.txt")).unwrap();
        assert_eq!(
            (qos[0].group.gpus(), qos[0].per_user.gpus(), qos[0].per_job.gpus()),
            (Some(6), Some(2), None)
        );
        let shares = parse_shares(include_str!("../tests/recorded/22.05/shares.txt")).unwrap();
        let alice = shares
            .iter()
            .find(|row| row.user == Some("alice".into()))
            .unwrap();
        assert_eq!(
            (alice.account.as_str(), alice.raw_shares, alice.norm_shares),
            ("lab", Some(1), Some(0.333333))
        );
        assert_eq!(shares[0].raw_shares, None);
        assert_eq!(alice.tres_minutes.gpus(), Some(0));
    }

    #[test]
    fn the_same_of_24_11() {
        let new = parse_associations(include_str!("../tests/recorded/24.11/associations.txt")).unwrap();
        assert_eq!(
            new,
            parse_associations(include_str!("../tests/recorded/22.05/associations.txt")).unwrap()
        );
        assert!(
            parse_qos(include_str!("../tests/recorded/24.11/qos.txt")).unwrap()[0]
                .group
                .gpus()
                == Some(6)
        );
        assert!(
            !parse_shares(include_str!("../tests/recorded/24.11/shares.txt"))
                .unwrap()
                .is_empty()
        );
    }
}
