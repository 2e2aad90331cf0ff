//! Slurm's host lists: `n[1-3,07-10],rack[0-1]n[0-3],login`.
//!
//! [`expand`] and [`compress`] work on text alone; neither knows which nodes exist.

use std::collections::{BTreeMap, BTreeSet};

/// More names than any list of ours can mean; `n[1-4000000000]` must not eat the memory.
const MAX_NAMES: usize = 1 << 20;

/// Why a text is no host list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostListError {
    #[error("unbalanced bracket in host list {0:?}")]
    Bracket(String),
    #[error("bad range {range:?} in host list {list:?}")]
    Range { list: String, range: String },
    #[error("host list {0:?} has an empty name")]
    Empty(String),
    #[error("host list {0:?} means more than {MAX_NAMES} names")]
    TooMany(String),
}

/// All names of `list`, in its order, with duplicates. Empty and `(null)` mean no names.
pub fn expand(list: &str) -> Result<Vec<String>, HostListError> {
    let mut names = Vec::new();
    if list.is_empty() || list == "(null)" {
        return Ok(names);
    }
    for item in split_outside_brackets(list)? {
        expand_item(list, item, &mut names)?;
    }
    Ok(names)
}

/// The shortest usual way to write the set of `names`: sorted, without duplicates, trailing numbers in ranges.
pub fn compress<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut plain = BTreeSet::new();
    let mut numbered: BTreeMap<String, BTreeSet<(u64, usize)>> = BTreeMap::new();
    for name in names {
        match split_number(name.as_ref()) {
            Some((prefix, number, width)) => {
                numbered
                    .entry(prefix.to_owned())
                    .or_default()
                    .insert((number, width));
            }
            None => {
                plain.insert(name.as_ref().to_owned());
            }
        }
    }
    let mut parts: Vec<String> = plain.into_iter().collect();
    parts.extend(
        numbered
            .into_iter()
            .map(|(prefix, numbers)| write_group(&prefix, &numbers)),
    );
    parts.join(",")
}

/// Splits at commas that stand outside brackets.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, HostListError> {
    let (mut items, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err(HostListError::Bracket(list.to_owned())),
            ',' if !inside => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(HostListError::Bracket(list.to_owned()));
    }
    items.push(&list[start..]);
    if items.iter().any(|item| item.is_empty()) {
        return Err(HostListError::Empty(list.to_owned()));
    }
    Ok(items)
}

/// Expands one item with any number of bracket groups: their product, with the last group running fastest.
fn expand_item(list: &str, item: &str, names: &mut Vec<String>) -> Result<(), HostListError> {
    let mut stems = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, after) = after
            .split_once(']')
            .ok_or_else(|| HostListError::Bracket(list.to_owned()))?;
        let numbers = expand_ranges(list, inside)?;
        if stems.len().saturating_mul(numbers.len()) > MAX_NAMES {
            return Err(HostListError::TooMany(list.to_owned()));
        }
        stems = stems
            .iter()
            .flat_map(|stem| numbers.iter().map(move |n| format!("{stem}{before}{n}")))
            .collect();
        rest = after;
    }
    if names.len() + stems.len() > MAX_NAMES {
        return Err(HostListError::TooMany(list.to_owned()));
    }
    names.extend(stems.into_iter().map(|stem| stem + rest));
    Ok(())
}

/// The inside of a bracket: `1-3,07-10`.
fn expand_ranges(list: &str, inside: &str) -> Result<Vec<String>, HostListError> {
    let mut numbers = Vec::new();
    for range in inside.split(',') {
        let wrong = || HostListError::Range {
            list: list.to_owned(),
            range: range.to_owned(),
        };
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (digits(low).ok_or_else(wrong)?, digits(high).ok_or_else(wrong)?);
        if from > to {
            return Err(wrong());
        }
        if to - from >= MAX_NAMES as u64 || numbers.len() >= MAX_NAMES {
            return Err(HostListError::TooMany(list.to_owned()));
        }
        numbers.extend((from..=to).map(|n| format!("{n:0width$}", width = low.len())));
    }
    Ok(numbers)
}

fn digits(text: &str) -> Option<u64> {
    let fits = !text.is_empty() && text.len() <= 18 && text.bytes().all(|b| b.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}

/// `n007` as ("n", 7, 3): prefix, number, count of digits.
fn split_number(name: &str) -> Option<(&str, u64, usize)> {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = digits(&name[stem.len()..])?;
    Some((stem, number, name.len() - stem.len()))
}

fn write_group(prefix: &str, numbers: &BTreeSet<(u64, usize)>) -> String {
    // (first, last, digits of the first): the next number joins if padding to these digits gives its own digits.
    let mut ranges: Vec<(u64, u64, usize)> = Vec::new();
    for &(number, width) in numbers {
        match ranges.last_mut() {
            Some((_, last, first_width))
                if *last + 1 == number && width == number.to_string().len().max(*first_width) =>
            {
                *last = number;
            }
            _ => ranges.push((number, number, width)),
        }
    }
    if let [(low, high, width)] = ranges[..]
        && low == high
    {
        return format!("{prefix}{low:0width$}");
    }
    let inside: Vec<String> = ranges
        .iter()
        .map(|&(low, high, width)| match low == high {
            true => format!("{low:0width$}"),
            false => format!("{low:0width$}-{high:0width$}"),
        })
        .collect();
    format!("{prefix}[{}]", inside.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_padding_and_several_brackets_expand() {
        assert_eq!(
            expand("n[1-3,5],login").unwrap(),
            ["n1", "n2", "n3", "n5", "login"]
        );
        assert_eq!(expand("n[08-10]").unwrap(), ["n08", "n09", "n10"]);
        assert_eq!(
            expand("r[0-1]n[0-1]-ib").unwrap(),
            ["r0n0-ib", "r0n1-ib", "r1n0-ib", "r1n1-ib"]
        );
        assert!(expand("").unwrap().is_empty());
        assert!(expand("(null)").unwrap().is_empty());
    }

    #[test]
    fn wrong_lists_are_named() {
        assert!(matches!(expand("n[1-2"), Err(HostListError::Bracket(_))));
        assert!(matches!(expand("n1]"), Err(HostListError::Bracket(_))));
        assert!(matches!(expand("n[[1]]"), Err(HostListError::Bracket(_))));
        assert!(matches!(expand("n[3-1]"), Err(HostListError::Range { .. })));
        assert!(matches!(expand("n[a]"), Err(HostListError::Range { .. })));
        assert!(matches!(expand("n[]"), Err(HostListError::Range { .. })));
        assert!(matches!(expand("a,,b"), Err(HostListError::Empty(_))));
        assert!(matches!(
            expand("n[0-4000000000]"),
            Err(HostListError::TooMany(_))
        ));
        assert!(matches!(
            expand("n[0-99999][0-99999]"),
            Err(HostListError::TooMany(_))
        ));
    }

    #[test]
    fn compression_keeps_padding_apart() {
        assert_eq!(compress(["n3", "n1", "n2", "n2"]), "n[1-3]");
        assert_eq!(compress(["n8", "n9", "n10"]), "n[8-10]");
        assert_eq!(compress(["n08", "n09", "n10"]), "n[08-10]");
        assert_eq!(compress(["n1", "n01"]), "n[1,01]");
        assert_eq!(compress(["login", "n7", "m1", "m2"]), "login,m[1-2],n7");
        assert_eq!(compress(Vec::<String>::new()), "");
    }

    proptest! {
        #[test]
        fn compressed_sets_expand_to_themselves(
            names in proptest::collection::btree_set("[a-z]{1,3}(-ib)?[0-9]{0,3}", 0..40)
        ) {
            let back: BTreeSet<String> = expand(&compress(&names)).unwrap().into_iter().collect();
            prop_assert_eq!(back, names);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-c\\[\\],0-3-]{0,16}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']', ','])));
            }
        }
    }
}
