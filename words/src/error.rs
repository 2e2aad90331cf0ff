//! Errors in the words that a person reads.

use std::error::Error;
use std::io;

/// Returns an error and its causes on a single line, separated by colons, without numbers of the system. A cause already in
/// the line is left out: many libraries repeat their source in their own message.
pub fn chain(error: &dyn Error) -> String {
    let mut text = without_numbers(&error.to_string());
    let mut source = error.source();
    while let Some(cause) = source {
        let more = without_numbers(&cause.to_string());
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

/// The system's words for an error, without its number: "Permission denied", and no "(os error 13)".
pub fn system_words(error: &io::Error) -> String {
    without_numbers(&error.to_string())
}

/// The text without the numbers that Rust adds to the system's errors.
pub fn without_numbers(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut parts = text.split(NUMBER);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => plain.push_str(rest),
            _ => {
                plain.push_str(NUMBER);
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_system_are_left_out() {
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(system_words(&refused), "Connection refused");
        assert_eq!(chain(&refused), "Connection refused");
        let twice = "a: no (os error 2), b: no (os error 13)";
        assert_eq!(without_numbers(twice), "a: no, b: no");
        for kept in ["", "no (os error", "no (os error x)", "no (os error 2"] {
            assert_eq!(without_numbers(kept), kept);
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Step {
        text: &'static str,
        source: Option<Box<Step>>,
    }

    fn step(text: &'static str, source: Option<Step>) -> Step {
        let source = source.map(Box::new);
        Step { text, source }
    }

    #[test]
    fn causes_follow_in_order() {
        let error = step(
            "can't start",
            Some(step("can't read the file", Some(step("no such file", None)))),
        );
        assert_eq!(chain(&error), "can't start: can't read the file: no such file");
    }

    #[test]
    fn a_repeated_cause_is_told_once() {
        let error = step(
            "can't read the file: no such file",
            Some(step("no such file", None)),
        );
        assert_eq!(chain(&error), "can't read the file: no such file");
    }
}
