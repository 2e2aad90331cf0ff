//! Users to whom a pool lends: the rules of its partition hold for leases as for jobs. Pure.
//!
//! In pool mode Slurm sees the service account alone. `hopd` must enforce the partition's `AllowAccounts`,
//! `DenyAccounts`, `AllowGroups`, `AllowQos` and `DenyQos` (slurm.conf(5)), on the account and QOS of the user's seat
//! and on the user's groups. An unknown user or account is not admitted.

use hop_slurm::Admits;
use hop_words::id::AccountName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The rules of one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rules {
    pub partition: String,
    pub admits: Admits,
    /// The account above each account, where a rule on an account holds for those below it (Slurm 23.02 and later).
    pub parents: BTreeMap<AccountName, AccountName>,
}

/// Somebody who wants a lease: their groups, and the account and QOS of their seat, as far as Slurm has said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Applicant<'a> {
    pub groups: &'a [String],
    pub account: Option<&'a AccountName>,
    pub qos: Option<&'a str>,
    /// Whether Slurm has said which account and QOS the seat has.
    pub told: bool,
}

/// Why a partition does not take an applicant, as a sentence's end: "pool main is not for you: ..".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error("{0}")]
    Rule(String),
    /// Slurm has yet to say what the partition's rule is about.
    #[error("{0}")]
    Unknown(String),
}

impl Rules {
    /// Whether the partition takes jobs of this applicant's.
    ///
    /// # Errors
    /// The rule against the request, or the facts that Slurm has yet to tell.
    pub(crate) fn judge(&self, applicant: Applicant<'_>) -> Result<(), NotAdmitted> {
        self.judge_groups(applicant.groups)?;
        let account = applicant.account.map(AccountName::as_str);
        let admits = &self.admits;
        self.judge_named(
            "account",
            ("AllowAccounts", admits.accounts.as_deref()),
            ("DenyAccounts", &admits.not_accounts),
            (account, applicant.told),
            |list, name| self.lists_account(list, name),
        )?;
        self.judge_named(
            "QOS",
            ("AllowQos", admits.qos.as_deref()),
            ("DenyQos", &admits.not_qos),
            (applicant.qos, applicant.told),
            lists,
        )
    }

    fn judge_groups(&self, groups: &[String]) -> Result<(), NotAdmitted> {
        let Some(allowed) = &self.admits.groups else {
            return Ok(());
        };
        if groups.iter().any(|g| allowed.contains(g)) {
            return Ok(());
        }
        Err(NotAdmitted::Rule(format!(
            "partition {} is for the groups {} (AllowGroups)",
            self.partition,
            allowed.join(", ")
        )))
    }

    /// Slurm ignores the list of denied names if a list of allowed names is set.
    fn judge_named(
        &self,
        what: &str,
        (allow, allowed): (&str, Option<&[String]>),
        (deny, denied): (&str, &[String]),
        (name, told): (Option<&str>, bool),
        is_listed: impl Fn(&[String], &str) -> bool,
    ) -> Result<(), NotAdmitted> {
        let partition = &self.partition;
        let rule = match allowed {
            Some(_) => allow,
            None if denied.is_empty() => return Ok(()),
            None => deny,
        };
        let name = match name {
            Some(name) => name,
            None if told => {
                return Err(NotAdmitted::Rule(format!(
                    "your seat has no {what}, and partition {partition} has rules on it ({rule})"
                )));
            }
            None => {
                return Err(NotAdmitted::Unknown(format!(
                    "the {what} of your seat is not known while Slurm does not answer, and partition {partition} has \
                     rules on it ({rule})"
                )));
            }
        };
        let fine = match allowed {
            Some(allowed) => is_listed(allowed, name),
            None => !is_listed(denied, name),
        };
        match fine {
            true => Ok(()),
            false => Err(NotAdmitted::Rule(format!(
                "{what} {name} may not use partition {partition} ({rule})"
            ))),
        }
    }

    /// Whether the list names the account or a parent of it.
    fn lists_account(&self, list: &[String], name: &str) -> bool {
        let mut account = name.to_owned();
        // A tree has no circles; Slurm's is not deeper than this.
        for _ in 0..100 {
            if lists(list, &account) {
                return true;
            }
            match self.parents.get(&AccountName::from(account.as_str())) {
                Some(parent) => account = parent.to_string(),
                None => return false,
            }
        }
        false
    }
}

/// Slurm writes accounts and QOS in lower case, whatever the configuration says.
fn lists(list: &[String], name: &str) -> bool {
    list.iter().any(|listed| listed.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|w| (*w).to_owned()).collect()
    }

    fn rules(admits: Admits) -> Rules {
        Rules {
            partition: "gpu".into(),
            admits,
            parents: BTreeMap::new(),
        }
    }

    fn judged(
        rules: &Rules,
        groups: &[&str],
        account: Option<&str>,
        qos: Option<&str>,
    ) -> Result<(), String> {
        judged_when(true, rules, groups, account, qos).map_err(|why| why.to_string())
    }

    fn judged_when(
        told: bool,
        rules: &Rules,
        groups: &[&str],
        account: Option<&str>,
        qos: Option<&str>,
    ) -> Result<(), NotAdmitted> {
        let account = account.map(AccountName::from);
        rules.judge(Applicant {
            groups: &words(groups),
            account: account.as_ref(),
            qos,
            told,
        })
    }

    #[test]
    fn a_partition_without_rules_is_everybodys() {
        assert_eq!(judged(&rules(Admits::default()), &[], None, None), Ok(()));
    }

    #[test]
    fn only_accounts_that_are_allowed_may_use_it() {
        let rules = rules(Admits {
            accounts: Some(words(&["Lab", "course"])),
            // Ignored beside a list of those allowed.
            not_accounts: words(&["lab"]),
            ..Admits::default()
        });
        assert_eq!(judged(&rules, &[], Some("lab"), None), Ok(()));
        let said = judged(&rules, &[], Some("other"), None).unwrap_err();
        assert_eq!(said, "account other may not use partition gpu (AllowAccounts)");
        let said = judged_when(false, &rules, &[], None, None).unwrap_err();
        assert!(
            matches!(&said, NotAdmitted::Unknown(why) if why.contains("is not known")),
            "{said}"
        );
        let said = judged(&rules, &[], None, None).unwrap_err();
        assert!(said.contains("your seat has no account"), "{said}");
    }

    #[test]
    fn accounts_that_are_denied_may_not_use_it() {
        let rules = rules(Admits {
            not_accounts: words(&["guests"]),
            ..Admits::default()
        });
        assert_eq!(judged(&rules, &[], Some("lab"), None), Ok(()));
        assert!(judged(&rules, &[], Some("guests"), None).is_err());
        assert!(judged(&rules, &[], None, None).is_err());
    }

    #[test]
    fn a_rule_on_an_account_holds_below_it_where_slurm_says_so() {
        let admits = Admits {
            accounts: Some(words(&["faculty"])),
            ..Admits::default()
        };
        let mut rules = rules(admits);
        assert!(judged(&rules, &[], Some("lab"), None).is_err());
        for (below, above) in [
            ("lab", "physics"),
            ("physics", "faculty"),
            ("faculty", "root"),
            ("x", "y"),
            ("y", "x"),
        ] {
            rules.parents.insert(below.into(), above.into());
        }
        assert_eq!(judged(&rules, &[], Some("lab"), None), Ok(()));
        assert!(judged(&rules, &[], Some("x"), None).is_err(), "a circle ends");
    }

    #[test]
    fn groups_and_qos_are_judged_too() {
        let rules = rules(Admits {
            groups: Some(words(&["staff"])),
            not_qos: words(&["scavenge"]),
            ..Admits::default()
        });
        assert_eq!(judged(&rules, &["users", "staff"], None, Some("normal")), Ok(()));
        let said = judged(&rules, &["users"], None, Some("normal")).unwrap_err();
        assert_eq!(said, "partition gpu is for the groups staff (AllowGroups)");
        let said = judged(&rules, &["staff"], None, Some("scavenge")).unwrap_err();
        assert_eq!(said, "QOS scavenge may not use partition gpu (DenyQos)");
    }
}
