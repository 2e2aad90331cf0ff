//! Values on the command line that several commands take, each within what can be meant.

use std::ops::RangeInclusive;

/// Seconds of a wait: up to a year.
pub(crate) const SECONDS: RangeInclusive<u64> = 0..=31_536_000;

/// Cores and GPUs of one cell; more than any node has.
pub(crate) const CORES: RangeInclusive<i64> = 0..=1024;

/// Memory of a kernel in MiB. A Python with nothing in it takes the least, and no node has the most.
const MEMORY: RangeInclusive<u64> = 64..=64 << 20;

/// The longest name of an account, a pool, a GPU type.
const NAME: usize = 200;

/// Memory in MiB, as Slurm's `--mem` takes it: `8192`, `8192M`, `8G`, `1T`. 0 is the site's default.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    let must = || {
        format!(
            "write MiB, or a size such as 8G: from {} MiB to 64 TiB, or 0 for the site's default",
            MEMORY.start()
        )
    };
    let upper = text.to_ascii_uppercase();
    let number = upper.trim_end_matches("IB").trim_end_matches('B');
    let (digits, factor) = match number.char_indices().next_back() {
        Some((at, 'M')) => (&number[..at], 1),
        Some((at, 'G')) => (&number[..at], 1 << 10),
        Some((at, 'T')) => (&number[..at], 1 << 20),
        _ => (number, 1),
    };
    let mib = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    let mib = mib.filter(|n| *n == 0 || MEMORY.contains(n));
    mib.ok_or_else(must)
}

/// A name in Slurm or in our configuration: an account, a QOS, a reservation, a pool, a GPU type.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let may = |c: char| !c.is_control() && !c.is_whitespace() && !",|=\"'".contains(c);
    match text.chars().count() {
        1..=NAME if text.chars().all(may) && !text.starts_with('-') => Ok(text.to_owned()),
        _ => Err(format!(
            "a name has up to {NAME} characters, without blanks, commas and quotes, and doesn't begin with a dash"
        )),
    }
}

/// A name that people read.
pub(crate) fn shown_name(text: &str) -> Result<String, String> {
    match text.chars().count() {
        1..=NAME if !text.chars().any(char::is_control) && !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(format!(
            "a name that people read has 1 to {NAME} characters, all printable"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_slurm_takes_and_a_node_may_have() {
        for (text, mib) in [
            ("0", 0),
            ("8192", 8192),
            ("8192M", 8192),
            ("8g", 8192),
            ("8GiB", 8192),
            ("8GB", 8192),
            ("1T", 1 << 20),
            ("64T", 64 << 20),
        ] {
            assert_eq!(memory(text), Ok(mib), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "1.5G",
            "8 G",
            "63",
            "99999999999",
            "65T",
            "8K",
            "18446744073709551615G",
            "8é",
        ] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_words() {
        for text in ["a", "physics-2026", "gpu_h100.80gb", "größe", "a:b/c"] {
            assert_eq!(name(text).as_deref(), Ok(text));
        }
        let long = "x".repeat(NAME + 1);
        for text in [
            "",
            " ",
            "a b",
            "a\nb",
            "a,b",
            "--array=1",
            "a\u{0}",
            "x=y",
            "'a'",
            long.as_str(),
        ] {
            assert!(name(text).is_err(), "{text:?}");
            let may_be_shown = ["a b", "a,b", "--array=1", "x=y", "'a'"].contains(&text);
            assert_eq!(shown_name(text).is_ok(), may_be_shown, "{text:?}");
        }
    }
}
