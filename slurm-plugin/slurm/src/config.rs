//! The installed Slurm: version and settings.

use crate::record::ParseError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A release of Slurm: 24.11.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
    pub micro: u16,
}

impl Version {
    /// Reads `24.11.5`, `22.05.8-1`, `slurm-wlm 22.05.8`, `slurm 25.05.0rc1`.
    pub fn parse(text: &str) -> Option<Self> {
        let word = text
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        let mut numbers = word.split('.').map(|part| {
            let digits = part
                .find(|c: char| !c.is_ascii_digit())
                .map_or(part, |end| &part[..end]);
            digits.parse::<u16>().ok()
        });
        Some(Self {
            major: numbers.next()??,
            minor: numbers.next()??,
            micro: numbers.next().flatten().unwrap_or(0),
        })
    }

    /// `SLURM_VERSION_NUMBER`, and what `slurm_api_version()` returns.
    pub fn from_number(number: u32) -> Self {
        Self {
            major: (number >> 16 & 0xff) as u16,
            minor: (number >> 8 & 0xff) as u16,
            micro: (number & 0xff) as u16,
        }
    }

    /// Major and minor: what Slurm's ABI is bound to.
    pub fn series(self) -> (u16, u16) {
        (self.major, self.minor)
    }

    /// `sbatch --stepmgr` exists (24.05). It also needs `PrologFlags=Contain`: [`Config::has_stepmgr`].
    pub fn has_stepmgr(self) -> bool {
        self.series() >= (24, 5)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{}", self.major, self.minor, self.micro)
    }
}

/// Words of `PrivateData`, but those of reservations, events and clouds.
const HIDEABLE: [&str; 6] = ["accounts", "jobs", "nodes", "partitions", "usage", "users"];

/// `scontrol show config`: slurm.conf and cgroup.conf as slurmctld runs with them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config(BTreeMap<String, String>);

impl Config {
    /// A setting, its name in any case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// slurmctld's own version.
    pub fn version(&self) -> Option<Version> {
        Version::parse(self.get("SLURM_VERSION")?)
    }

    pub fn cluster(&self) -> Option<&str> {
        self.get("ClusterName")
    }

    /// Steps that one job may have.
    pub fn max_step_count(&self) -> Option<u32> {
        self.get("MaxStepCount")?.parse().ok()
    }

    /// cgroup.conf's `ConstrainDevices`: without it nothing keeps a process from any GPU.
    pub fn constrains_devices(&self) -> bool {
        self.is_yes("ConstrainDevices") && self.has_word("TaskPlugin", "task/cgroup")
    }

    pub fn constrains_cores(&self) -> bool {
        self.is_yes("ConstrainCores") && self.has_word("TaskPlugin", "task/cgroup")
    }

    /// Slurm holds people to the limits of their associations and QOS.
    pub fn enforces_limits(&self) -> bool {
        let word = |word| self.has_word("AccountingStorageEnforce", word);
        word("limits") || word("safe")
    }

    /// The kinds of facts needed for leases that `PrivateData` hides from people without `AdminLevel=Operator`.
    pub fn hides(&self) -> impl Iterator<Item = &str> {
        let words = self.get("PrivateData").unwrap_or_default().split(',');
        words.map(str::trim).filter(|word| HIDEABLE.contains(word))
    }

    /// Slurm's own account, which sees all.
    pub fn slurm_user(&self) -> Option<&str> {
        self.get("SlurmUser")?.split('(').next()
    }

    /// Pilots can have a step manager of their own.
    pub fn has_stepmgr(&self) -> bool {
        self.version().is_some_and(Version::has_stepmgr) && self.has_word("PrologFlags", "Contain")
    }

    fn is_yes(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| value.eq_ignore_ascii_case("yes"))
    }

    fn has_word(&self, name: &str, word: &str) -> bool {
        self.get(name)
            .is_some_and(|value| value.split(',').any(|item| item.eq_ignore_ascii_case(word)))
    }

    pub(crate) fn parse(output: &str) -> Result<Self, ParseError> {
        let map: BTreeMap<String, String> = output
            .lines()
            .filter_map(|line| {
                line.split_once(" = ")
                    .or_else(|| line.trim_end().strip_suffix(" =").map(|key| (key, "")))
            })
            .map(|(key, value)| (key.trim().to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        match map.contains_key("slurm_version") {
            true => Ok(Self(map)),
            false => Err(ParseError::Missing("SLURM_VERSION")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |text| Version::parse(text).unwrap();
        assert_eq!(version("slurm-wlm 22.05.8").to_string(), "22.05.8");
        assert_eq!(version("slurm 25.05.0rc1").to_string(), "25.05.0");
        assert_eq!(Version::from_number(0x16_05_08), version("22.05.8"));
        assert!(!version("23.11.10").has_stepmgr() && version("24.05.0").has_stepmgr());
        assert_eq!(Version::parse("slurm"), None);
    }

    #[test]
    fn settings_of_both_series() {
        let config = Config::parse(include_str!("../tests/recorded/22.05/config.txt")).unwrap();
        assert_eq!(config.version(), Version::parse("22.05.8"));
        assert_eq!(
            (config.cluster(), config.max_step_count()),
            (Some("hopdev2"), Some(40_000))
        );
        assert!(config.constrains_devices() && !config.constrains_cores() && !config.has_stepmgr());
        assert_eq!(config.get("taskplugin"), Some("task/cgroup"));
        let new = Config::parse(include_str!("../tests/recorded/24.11/config.txt")).unwrap();
        assert!(new.has_stepmgr() && new.constrains_devices());
        assert_eq!((new.hides().count(), new.slurm_user()), (0, Some("slurm")));
        assert!(Config::parse("slurm_load_ctl_conf error").is_err());
    }

    #[test]
    fn what_is_hidden_is_read_without_what_leases_need_not() {
        let text = "PrivateData             = cloud,jobs,reservations,users\nSLURM_VERSION = 24.11.5\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.hides().collect::<Vec<_>>(), ["jobs", "users"]);
    }
}
