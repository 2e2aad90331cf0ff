//! A set of cores and Linux's cpu list format ("0-3,8"). Applying it is left to [`crate::cores`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Cores, numbered as the kernel does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// Larger numbers than any kernel has: bounds what a strange list may cost.
const MAX_CPU: u32 = 16_384;

/// Text that is no cpu list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cpu list")]
pub struct BadCpuList(String);

impl CpuSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The cores in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// The cores of `self` that are not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = BadCpuList;

    fn from_str(text: &str) -> Result<Self, BadCpuList> {
        let bad = || BadCpuList(text.to_owned());
        let number = |s: &str| {
            s.trim()
                .parse::<u32>()
                .ok()
                .filter(|n| *n < MAX_CPU)
                .ok_or_else(bad)
        };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|p| !p.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = BadCpuList;

    fn try_from(text: String) -> Result<Self, BadCpuList> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_read_as_the_kernel_writes_them() {
        let set: CpuSet = "0-2,5\n".parse().unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!("".parse::<CpuSet>().unwrap(), CpuSet::default());
        for bad in ["a", "3-1", "1-2-3", "-1", "99999999"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn writing_and_reading_gives_the_same_set(cpus: BTreeSet<u16>) {
            let set: CpuSet = cpus.into_iter().map(|c| u32::from(c) % MAX_CPU).collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn narrowing_undoes_widening(base: BTreeSet<u8>, lease: BTreeSet<u8>) {
            let set = |s: BTreeSet<u8>| s.into_iter().map(u32::from).collect::<CpuSet>();
            let (base, lease) = (set(base), set(lease));
            let wide = base.union(&lease);
            prop_assert_eq!(wide.minus(&lease.minus(&base)), base);
        }
    }
}
