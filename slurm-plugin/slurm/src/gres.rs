//! Slurm's GRES and TRES strings: `gpu:h100:2(IDX:0-1)`, `cpu=4,mem=16G,gres/gpu=2`.

use hop_words::id::{GpuIndex, GpuType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One item of a GRES list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gres {
    /// `gpu`, `shard`, ...
    pub name: String,
    /// `h100`; none where the item names no type.
    pub kind: Option<String>,
    pub count: u64,
    /// Indices of `IDX:`, sorted; `None` if the item has no `IDX`.
    pub index: Option<Vec<GpuIndex>>,
}

/// Why a text is no GRES or TRES list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} can't be read")]
pub struct GresError {
    pub what: &'static str,
    pub text: String,
}

impl Gres {
    /// Reads one item.
    pub fn parse(text: &str) -> Result<Self, GresError> {
        Self::read(text).ok_or_else(|| GresError {
            what: "GRES",
            text: text.to_owned(),
        })
    }

    /// Reads a list as `scontrol` and `squeue` write them; empty, `N/A` and `(null)` are the empty list. An item that
    /// can't be read is left out: [`Gres::unread`] has it.
    pub fn parse_list(text: &str) -> Vec<Self> {
        items(text).filter_map(Self::read).collect()
    }

    /// The items of a list that can't be read.
    pub fn unread(text: &str) -> Vec<String> {
        let unread = items(text).filter(|item| Self::read(item).is_none());
        unread.map(str::to_owned).collect()
    }

    fn read(text: &str) -> Option<Self> {
        // squeue prefixes requests: "gres:gpu:2" up to 23.x, "gres/gpu:2" later.
        let text = text
            .strip_prefix("gres:")
            .or_else(|| text.strip_prefix("gres/"))
            .unwrap_or(text);
        // 22.05's form of a GRES without a type.
        let text = text.replacen(":(null)", "", 1);
        let text = text.as_str();
        let (plain, note) = match text.split_once('(') {
            Some((plain, note)) => (plain, Some(note.strip_suffix(')')?)),
            None => (text, None),
        };
        let index = match note.and_then(|note| note.strip_prefix("IDX:")) {
            Some(list) => Some(read_index(list)?),
            None => None,
        };
        // slurm.conf's `no_consume` says that jobs don't use the GRES up.
        let words: Vec<&str> = plain.split(':').filter(|word| *word != "no_consume").collect();
        let (name, rest) = words.split_first().filter(|(name, _)| is_word(name))?;
        let (kind, count) = match *rest {
            [] => (None, index.as_ref().map_or(1, |index| index.len() as u64)),
            [word] => match read_count(word) {
                Some(count) => (None, count),
                None if word.bytes().all(|b| b.is_ascii_digit()) => return None,
                None => (Some(word), 1),
            },
            // Types may be numbers, as of `gpu:3090:4`.
            [kind, count] => (Some(kind), read_count(count)?),
            _ => return None,
        };
        if kind.is_some_and(|kind| !is_word(kind)) {
            return None;
        }
        Some(Self {
            name: (*name).to_owned(),
            kind: kind.map(str::to_owned),
            count,
            index,
        })
    }

    /// Whether it is GPUs, and of this type; `None` means any.
    pub fn is_gpu_of(&self, kind: Option<&str>) -> bool {
        self.name == "gpu" && kind.is_none_or(|kind| self.kind.as_deref() == Some(kind))
    }

    /// The type as the core names it: empty where Slurm names none.
    pub fn gpu_type(&self) -> GpuType {
        GpuType::from(self.kind.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Gres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(kind) = &self.kind {
            write!(f, ":{kind}")?;
        }
        write!(f, ":{}", self.count)?;
        match &self.index {
            Some(index) if index.is_empty() => f.write_str("(IDX:N/A)"),
            Some(index) => write!(f, "(IDX:{})", write_index(index)),
            None => Ok(()),
        }
    }
}

/// GPUs in a list, of all types.
pub fn gpus(list: &[Gres]) -> u64 {
    gpus_of(list, None)
}

/// GPUs of this type in a list; `None` means all.
pub fn gpus_of(list: &[Gres], kind: Option<&str>) -> u64 {
    let mine = list.iter().filter(|gres| gres.is_gpu_of(kind));
    mine.map(|gres| gres.count).sum()
}

/// The indices of all GPUs in a list that has them.
pub fn gpu_index(list: &[Gres]) -> Vec<GpuIndex> {
    let mut all: Vec<GpuIndex> = list
        .iter()
        .filter(|gres| gres.name == "gpu")
        .flat_map(|gres| gres.index.iter().flatten().copied())
        .collect();
    all.sort();
    all
}

/// `0-1,3`, or `N/A`.
fn read_index(list: &str) -> Option<Vec<GpuIndex>> {
    let mut all = Vec::new();
    if list == "N/A" || list.is_empty() {
        return Some(all);
    }
    for range in list.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u16, u16) = (low.parse().ok()?, high.parse().ok()?);
        all.extend((low..=high).map(GpuIndex));
    }
    all.sort();
    all.dedup();
    Some(all)
}

/// The opposite of what `IDX:` is read with: sorted indices as `0-1,3`.
pub fn write_index(index: &[GpuIndex]) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &GpuIndex(i) in index {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == i => *last = i,
            _ => ranges.push((i, i)),
        }
    }
    let words: Vec<String> = ranges
        .iter()
        .map(|&(low, high)| {
            if low == high {
                low.to_string()
            } else {
                format!("{low}-{high}")
            }
        })
        .collect();
    words.join(",")
}

/// A count with Slurm's binary suffixes.
fn read_count(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(['K', 'k', 'M', 'm', 'G', 'g', 'T', 't', 'P', 'p']);
    let factor: u64 = match &text[number.len()..] {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        "T" | "t" => 1 << 40,
        "P" | "p" => 1 << 50,
        _ => return None,
    };
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.+/".contains(c))
}

/// The items of a list; Slurm has several words for none.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let is_empty = matches!(text, "" | "N/A" | "(null)" | "none" | "gres:none" | "gres/none");
    let items = (!is_empty).then(|| split_outside_parens(text));
    items.into_iter().flatten()
}

fn split_outside_parens(text: &str) -> Vec<&str> {
    let (mut items, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    items
}

/// Trackable resources: `cpu=4,mem=16G,gres/gpu=2`. Memory (`mem`) in MiB, all else as counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tres(pub BTreeMap<String, u64>);

impl Tres {
    /// Reads a list; empty, `N/A` and `(null)` are the empty one. A value of -1 (no limit) is left out.
    pub fn parse(text: &str) -> Result<Self, GresError> {
        let wrong = || GresError {
            what: "TRES",
            text: text.to_owned(),
        };
        let mut map = BTreeMap::new();
        if matches!(text, "" | "N/A" | "(null)") {
            return Ok(Self(map));
        }
        for item in text.split(',') {
            let (name, value) = item.split_once('=').ok_or_else(wrong)?;
            if value == "-1" {
                continue;
            }
            let value = match name {
                "mem" => read_mib(value),
                _ => read_count(value),
            };
            map.insert(name.to_owned(), value.ok_or_else(wrong)?);
        }
        Ok(Self(map))
    }

    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// `gres/gpu`; where only typed ones are given, their sum.
    pub fn gpus(&self) -> Option<u64> {
        self.get("gres/gpu").or_else(|| {
            let typed: Vec<u64> = self
                .0
                .iter()
                .filter(|(name, _)| name.starts_with("gres/gpu:"))
                .map(|(_, count)| *count)
                .collect();
            (!typed.is_empty()).then(|| typed.iter().sum())
        })
    }
}

impl fmt::Display for Tres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            let unit = if name == "mem" { "M" } else { "" };
            write!(f, "{}{name}={value}{unit}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Memory as Slurm writes it (`500M`, `1.50G`, `2T`; no suffix is MiB), in MiB, rounded down.
pub fn read_mib(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift: i32 = match &text[number.len()..] {
        "K" | "k" => -10,
        "" | "M" | "m" => 0,
        "G" | "g" => 10,
        "T" | "t" => 20,
        "P" | "p" => 30,
        _ => return None,
    };
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let value = number.parse::<f64>().ok()? * 2_f64.powi(shift);
    (value < 1e15).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gres(name: &str, kind: Option<&str>, count: u64, index: Option<&[u16]>) -> Gres {
        Gres {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            count,
            index: index.map(|i| i.iter().copied().map(GpuIndex).collect()),
        }
    }

    #[test]
    fn the_forms_that_slurm_writes() {
        let cases = [
            ("gpu:h100:2(IDX:0-1)", gres("gpu", Some("h100"), 2, Some(&[0, 1]))),
            ("gpu:2(IDX:0,2)", gres("gpu", None, 2, Some(&[0, 2]))),
            ("gpu:(null):1(IDX:1)", gres("gpu", None, 1, Some(&[1]))),
            ("gpu:0(IDX:N/A)", gres("gpu", None, 0, Some(&[]))),
            ("gpu:2", gres("gpu", None, 2, None)),
            ("gpu", gres("gpu", None, 1, None)),
            ("gpu:h100", gres("gpu", Some("h100"), 1, None)),
            ("gpu:a100:4(S:0-1)", gres("gpu", Some("a100"), 4, None)),
            ("gres:gpu:1", gres("gpu", None, 1, None)),
            ("gres/gpu:h100:1", gres("gpu", Some("h100"), 1, None)),
            ("craynetwork:4K", gres("craynetwork", None, 4096, None)),
            ("gpu:3090:4", gres("gpu", Some("3090"), 4, None)),
            ("gpu:2080:8(S:0-1)", gres("gpu", Some("2080"), 8, None)),
            ("gpu:3090:2(IDX:0,3)", gres("gpu", Some("3090"), 2, Some(&[0, 3]))),
            ("gres/gpu:3090:1", gres("gpu", Some("3090"), 1, None)),
            (
                "bandwidth:lustre:no_consume:4G",
                gres("bandwidth", Some("lustre"), 4 << 30, None),
            ),
            ("bandwidth:no_consume:2P", gres("bandwidth", None, 2 << 50, None)),
            ("license:no_consume", gres("license", None, 1, None)),
        ];
        for (text, expected) in cases {
            assert_eq!(Gres::parse(text).unwrap(), expected, "{text}");
        }
        let list = Gres::parse_list("gpu:h100:2(IDX:0-1),gpu:v100:1(IDX:3),shard:4(0/4,0/4)");
        assert_eq!((list.len(), gpus(&list)), (3, 3));
        assert_eq!(gpu_index(&list), [GpuIndex(0), GpuIndex(1), GpuIndex(3)]);
        assert!(Gres::parse_list("(null)").is_empty() && Gres::unread("(null)").is_empty());
    }

    #[test]
    fn an_item_that_cannot_be_read_costs_itself_alone_and_is_told() {
        let text = "gpu:3090:4,odd:a:b:c:1,gpu:a100:x,nic:2";
        let expected = [gres("gpu", Some("3090"), 4, None), gres("nic", None, 2, None)];
        assert_eq!(Gres::parse_list(text), expected);
        assert_eq!(Gres::unread(text), ["odd:a:b:c:1", "gpu:a100:x"]);
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            ":",
            "gpu:x:y",
            "gpu:a:1:2",
            "gpu:1(IDX:0",
            "gpu:1(IDX:b)",
            "g p u:1",
            "gpu:99999999999999999999",
        ] {
            assert!(Gres::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tres_units_and_typed_gpus() {
        let tres = Tres::parse("cpu=4,mem=16G,node=1,billing=4,gres/gpu=2,gres/gpu:h100=2").unwrap();
        assert_eq!((tres.get("mem"), tres.gpus()), (Some(16 * 1024), Some(2)));
        assert_eq!(Tres::parse("gres/gpu:a=1,gres/gpu:b=2").unwrap().gpus(), Some(3));
        assert_eq!(Tres::parse("gres/gpu=-1").unwrap().gpus(), None);
        assert_eq!(Tres::parse("mem=1.50G").unwrap().get("mem"), Some(1536));
        assert!(Tres::parse("cpu").is_err());
        assert!(Tres::parse("cpu=x").is_err());
    }

    proptest! {
        #[test]
        fn gres_reads_back_as_written(
            name in "[a-z]{1,6}", kind in proptest::option::of("[a-z0-9]|[a-z0-9][a-z0-9_-]{0,8}[a-z0-9]"),
            count in 0_u64..100_000, index in proptest::option::of(proptest::collection::btree_set(0_u16..64, 0..9))
        ) {
            let index = index.map(|i| i.into_iter().map(GpuIndex).collect());
            let gres = Gres { name, kind, count, index };
            prop_assert_eq!(Gres::parse(&gres.to_string()).unwrap(), gres);
        }

        #[test]
        fn tres_reads_back_as_written(map in proptest::collection::btree_map("[a-z/:]{1,10}", 0_u64..1_000_000, 0..6)) {
            let tres = Tres(map);
            prop_assert_eq!(Tres::parse(&tres.to_string()).unwrap(), tres);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let (read, unread) = (Gres::parse_list(&text), Gres::unread(&text));
            prop_assert_eq!(read.len() + unread.len(), items(&text).count());
            let _ = Tres::parse(&text);
        }
    }
}
