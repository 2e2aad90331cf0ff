//! Slurm's bracket notation, as far as gres.conf uses it: `n[1-3,7]`, `/dev/nvidia[0-7]`, comma-separated.
//!
//! Our own, since libslurm's hostlist functions may end the process that calls them.

/// More names than any node or device list has: bounds what a strange expression may cost.
const MAX_NAMES: usize = 65_536;

/// An expression that is no hostlist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a Slurm hostlist expression")]
pub struct BadHostlist(String);

/// All names that `text` stands for, in its order.
///
/// # Errors
/// Unbalanced brackets, ranges that are none, more than 65,536 names.
pub fn expand(text: &str) -> Result<Vec<String>, BadHostlist> {
    let bad = || BadHostlist(text.to_owned());
    let mut names = Vec::new();
    for part in split_outside_brackets(text).ok_or_else(bad)? {
        names.extend(expand_one(part).ok_or_else(bad)?);
        if names.len() > MAX_NAMES {
            return Err(bad());
        }
    }
    Ok(names)
}

fn split_outside_brackets(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return None;
        }
    }
    parts.push(&text[start..]);
    (depth == 0).then(|| {
        parts
            .into_iter()
            .map(str::trim)
            .filter(|p| !p.is_empty())
            .collect()
    })
}

/// Expands the first bracket and then what follows it.
fn expand_one(text: &str) -> Option<Vec<String>> {
    let Some((prefix, rest)) = text.split_once('[') else {
        return Some(vec![text.to_owned()]);
    };
    let (ranges, rest) = rest.split_once(']')?;
    let suffixes = expand_one(rest)?;
    let mut names = Vec::new();
    for number in expand_ranges(ranges)? {
        for suffix in &suffixes {
            names.push(format!("{prefix}{number}{suffix}"));
        }
        if names.len() > MAX_NAMES {
            return None;
        }
    }
    Some(names)
}

fn expand_ranges(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = if first.starts_with('0') { first.len() } else { 0 };
        let (low, high): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if low > high || high - low > MAX_NAMES {
            return None;
        }
        numbers.extend((low..=high).map(|n| format!("{n:0width$}")));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_expand_in_order() {
        assert_eq!(expand("n[1-3,7]").unwrap(), ["n1", "n2", "n3", "n7"]);
        assert_eq!(
            expand("/dev/nvidia[0-1],/dev/x").unwrap(),
            ["/dev/nvidia0", "/dev/nvidia1", "/dev/x"]
        );
        assert_eq!(expand("n[08-10]").unwrap(), ["n08", "n09", "n10"]);
        assert_eq!(expand("r[1-2]n[1-2]").unwrap(), ["r1n1", "r1n2", "r2n1", "r2n2"]);
        assert_eq!(expand("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_is_none_is_refused() {
        for bad in [
            "n[1",
            "n]1[",
            "n[2-1]",
            "n[a-b]",
            "n[[1]]",
            "n[0-99999999]",
            "n[0-999]x[0-999]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
