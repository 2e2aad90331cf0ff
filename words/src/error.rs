//! Errors in the words that a person reads.

use std::error::Error;

/// Returns an error and its causes on a single line, separated by colons. A cause already in the line is left out: many
/// libraries repeat their source in their own message.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
