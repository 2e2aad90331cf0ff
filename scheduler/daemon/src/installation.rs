//! The identity of a state directory, by which its `hopd` tells its pilots from those of another `hopd`.
//!
//! Several `hopd`s may run under one service account, each with a state directory of its own: a test installation
//! beside the site's. Their pilots bear the same names. The id stands in the comment of a pilot's job. Pilots run as
//! the service account, so no user can write it. `state_dir` makes and keeps the id.

use std::fmt;

/// Before the id in the comment of a pilot's job.
const COMMENT: &str = "gresshopper ";

/// The id of a state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Installation(String);

impl Installation {
    /// A new id of random digits.
    pub(crate) fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }

    /// `None` if the text is no id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_id = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_id.then(|| Self(text.to_ascii_lowercase()))
    }

    /// The comment of the job of a pilot.
    pub(crate) fn comment(&self) -> String {
        format!("{COMMENT}{self}")
    }

    /// The id in the comment of a pilot's job. `None` means a pilot of a release that wrote none, or that the site has
    /// written another comment.
    pub(crate) fn of_comment(comment: Option<&str>) -> Option<Self> {
        comment?.strip_prefix(COMMENT).and_then(Self::parse)
    }
}

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pilots_comment_tells_its_installation() {
        let id = Installation::random();
        assert_ne!(id, Installation::random());
        assert_eq!(Installation::of_comment(Some(&id.comment())), Some(id.clone()));
        for other in [
            None,
            Some("gresshopper"),
            Some("gresshopper x"),
            Some(&*id.to_string()),
        ] {
            assert_eq!(Installation::of_comment(other), None);
        }
    }
}
