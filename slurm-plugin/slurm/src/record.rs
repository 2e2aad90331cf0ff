//! Reading what Slurm's commands print: marked records, `KEY=value` text, `|`-separated tables.

use crate::gres::GresError;
use crate::hostlist::{self, HostListError};
use crate::id::IdError;
use crate::span::SpanError;
use hop_words::id::NodeName;

/// Why an output could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("a record of {found} fields where {expected} belong: {record:?}")]
    Fields {
        expected: usize,
        found: usize,
        record: String,
    },
    #[error("{field} is {value:?}")]
    Field { field: &'static str, value: String },
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is there twice, so somebody's job name or comment imitates Slurm's output")]
    Forged(&'static str),
    #[error("bad host list")]
    HostList(#[from] HostListError),
    #[error("bad GRES")]
    Gres(#[from] GresError),
    #[error("bad length of time")]
    Span(#[from] SpanError),
    #[error("bad id")]
    Id(#[from] IdError),
}

/// Separators of a single call, unguessable when a job was named.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    record: String,
    field: String,
}

impl Marks {
    pub(crate) fn random() -> Self {
        Self::of(&uuid::Uuid::new_v4().simple().to_string()[..16])
    }

    pub(crate) fn of(word: &str) -> Self {
        Self {
            record: format!("\u{1e}{word}"),
            field: format!("\u{1f}{word}"),
        }
    }

    /// The `--format` of these `%` letters.
    pub(crate) fn format(&self, letters: &[&str]) -> String {
        format!("{}{}", self.record, letters.join(&self.field))
    }

    /// The records of an output, `n` fields each.
    pub(crate) fn split<'a>(&'a self, output: &'a str, n: usize) -> Result<Vec<Vec<&'a str>>, ParseError> {
        output
            .split(self.record.as_str())
            .skip(1)
            .map(|record| {
                let fields: Vec<&str> = record.trim_end_matches('\n').split(self.field.as_str()).collect();
                match fields.len() == n {
                    true => Ok(fields),
                    false => Err(ParseError::Fields {
                        expected: n,
                        found: fields.len(),
                        record: record.chars().take(200).collect(),
                    }),
                }
            })
            .collect()
    }
}

/// A field that must be a number.
pub(crate) fn number<T: std::str::FromStr>(field: &'static str, value: &str) -> Result<T, ParseError> {
    value.trim().parse().map_err(|_| ParseError::Field {
        field,
        value: value.to_owned(),
    })
}

/// Slurm's ways to say "nothing".
pub(crate) fn some_text(value: &str) -> Option<String> {
    let value = value.trim();
    (!matches!(value, "" | "N/A" | "n/a" | "(null)" | "None" | "none")).then(|| value.to_owned())
}

/// The value of ` KEY=` in a one-line record of `scontrol -o`, up to the next of `keys` or the line's end.
///
/// Only for records that administrators alone write (nodes, partitions): a value could imitate a key.
pub(crate) fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let start = match line.strip_prefix(key).filter(|rest| rest.starts_with('=')) {
        Some(_) => key.len() + 1,
        None => line.find(&format!(" {key}="))? + key.len() + 2,
    };
    let rest = &line[start..];
    Some(rest[..next_key(rest)].trim_end())
}

/// Position of the next ` Word=` in a line.
fn next_key(rest: &str) -> usize {
    let mut from = 0;
    while let Some(space) = rest[from..].find(' ').map(|at| at + from) {
        let word = &rest[space + 1..];
        let key = word.split(['=', ' ']).next().unwrap_or_default();
        let is_key = word[key.len()..].starts_with('=')
            && key.starts_with(|c: char| c.is_ascii_uppercase())
            && key
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_/:()".contains(c));
        if is_key {
            return space;
        }
        from = space + 1;
    }
    rest.len()
}

/// Rows of `sacctmgr -nP` and `sshare -nP`, `n` fields each.
pub(crate) fn pipe_table(output: &str, n: usize) -> Result<Vec<Vec<&str>>, ParseError> {
    output
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split('|').map(str::trim).collect();
            match fields.len() == n {
                true => Ok(fields),
                false => Err(ParseError::Fields {
                    expected: n,
                    found: fields.len(),
                    record: line.chars().take(200).collect(),
                }),
            }
        })
        .collect()
}

/// The nodes of a hostlist, in which Slurm has several words for none.
pub(crate) fn node_names(list: &str) -> Result<Vec<NodeName>, ParseError> {
    let list = match list {
        "(null)" | "N/A" | "(None)" | "None" => "",
        list => list,
    };
    Ok(hostlist::expand(list)?.into_iter().map(NodeName::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_newlines_and_separators_forges_nothing() {
        let marks = Marks::of("0123456789abcdef");
        assert_eq!(
            marks.format(&["%A", "%j"]),
            "\u{1e}0123456789abcdef%A\u{1f}0123456789abcdef%j"
        );
        let output = "\u{1e}0123456789abcdef7\u{1f}0123456789abcdefevil\n\u{1e}8\u{1f}x\n\n\u{1e}0123456789abcdef9\u{1f}0123456789abcdef\n";
        let records = marks.split(output, 2).unwrap();
        assert_eq!(records, [["7", "evil\n\u{1e}8\u{1f}x"], ["9", ""]]);
        assert!(matches!(marks.split(output, 3), Err(ParseError::Fields { .. })));
    }

    #[test]
    fn values_with_spaces_end_at_the_next_key() {
        let line = "NodeName=n1 Arch=x86_64 OS=Linux 6.1 #1 SMP State=IDLE Reason=bad fan = hot [root@1]";
        assert_eq!(value_of(line, "NodeName"), Some("n1"));
        assert_eq!(value_of(line, "OS"), Some("Linux 6.1 #1 SMP"));
        assert_eq!(value_of(line, "Reason"), Some("bad fan = hot [root@1]"));
        assert_eq!(value_of(line, "Gres"), None);
    }
}
