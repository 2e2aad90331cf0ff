//! Why a state can't be carried, in sentences for its owner.

use hop_blobs::{GetError, PutError};
use hop_state::form::ReadError;
use hop_words::error::chain;
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error;

/// Why an object store can't take or give a state.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("{0}")]
    Settings(String),
    #[error(
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for a profile in \
         ~/.aws/credentials{0}"
    )]
    NoCredentials(String),
    #[error(
        "it doesn't take the credentials, or doesn't permit it with them ({0}): look at the keys and the bucket's policy"
    )]
    Refused(String),
    #[error("there is no such bucket: make it first, or look at AWS_ENDPOINT_URL and AWS_REGION")]
    NoBucket,
    #[error("the bucket is in another region: set AWS_REGION")]
    Region,
    #[error("it can't be reached ({0})")]
    Away(String),
    #[error("it has no room left ({0}): free some, for instance with `hop state gc`, or raise the quota")]
    Full(String),
    #[error("it failed: {0}")]
    Failed(String),
    #[error("there is no saved state")]
    NoState,
    #[error("what lies there can't be used")]
    State(#[source] ReadError),
    #[error("what lies there isn't this owner's, or was tampered with: it isn't replaced; take another name")]
    Foreign(#[source] ReadError),
    #[error("what lies there can't be used")]
    Content(#[source] GetError),
    #[error("the state {name} there can't be read, so nothing is removed")]
    Unknown {
        name: String,
        #[source]
        source: Box<RemoteError>,
    },
    #[error("{place} there is nothing that this release knows and may be a state, so nothing is removed")]
    Strange { place: String },
    #[error("somebody saved there meanwhile, and that isn't replaced: look at it, then run this again")]
    Changed,
    #[error(
        "content there is being collected as garbage (since {minutes} minutes): run this again when that is done; \
             if it was broken off, it stops counting after an hour"
    )]
    Collecting { minutes: u64 },
    #[error(
        "a state is being saved there (since {minutes} minutes), so nothing is removed: run this again when that is \
             done; if it was broken off, it stops counting after an hour"
    )]
    Saving { minutes: u64 },
    #[error("stopped")]
    Stopped,
    #[error("it took so long that others took this for broken off: run it again, which goes on")]
    Late,
    #[error("the local store can't give a chunk")]
    Get(#[source] GetError),
    #[error("the local store can't take a chunk")]
    Put(#[source] PutError),
}

impl RemoteError {
    /// Whether the same may work later without anybody changing anything of this user's.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Full(_))
    }
}

/// Codes of full servers.
const FULL: [&str; 4] = [
    "XMinioStorageFull",
    "QuotaExceeded",
    "XMinioAdminBucketQuotaExceeded",
    "InsufficientCapacity",
];
/// Host of a cloud machine's credentials.
const METADATA: &str = "169.254.169.254";

impl From<object_store::Error> for RemoteError {
    fn from(error: object_store::Error) -> Self {
        let text = chain(&error);
        if text.contains(METADATA) {
            return Self::NoCredentials("; this machine has none of its own either".to_owned());
        }
        if let Some(away) = transport(&error) {
            return away;
        }
        let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
        let status = between(&text, "status code: ", ":").unwrap_or_default();
        let said = said(&status, &code, &text);
        if code == "NoSuchBucket" {
            Self::NoBucket
        } else if status.starts_with("507") || FULL.contains(&code.as_str()) {
            Self::Full(said)
        } else if text.contains("Received redirect")
            || status.starts_with("30")
            || code == "AuthorizationHeaderMalformed"
        {
            Self::Region
        } else if status.starts_with('5') || status.starts_with("429") {
            Self::Away(said)
        } else if status.starts_with("401") || status.starts_with("403") {
            Self::Refused(said)
        } else {
            Self::Failed(said)
        }
    }
}

fn transport(error: &object_store::Error) -> Option<RemoteError> {
    let mut at: Option<&(dyn Error + 'static)> = Some(error);
    let mut root = String::new();
    let mut kind = None;
    while let Some(e) = at {
        root = e.to_string();
        kind = e.downcast_ref::<HttpError>().map(HttpError::kind).or(kind);
        at = e.source();
    }
    let why = clean(&root);
    Some(match kind? {
        HttpErrorKind::Timeout => {
            RemoteError::Away("it doesn't answer in time; AWS_TIMEOUT sets how long that is".to_owned())
        }
        HttpErrorKind::Decode => RemoteError::Failed(why),
        _ => RemoteError::Away(why),
    })
}

/// A server's message, without any repetition of the request.
fn said(status: &str, code: &str, text: &str) -> String {
    let message = between(text, "<Message>", "</Message>").unwrap_or_default();
    let parts: Vec<String> = [status, code, &message]
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| clean(part))
        .collect();
    if parts.is_empty() {
        clean(text)
    } else {
        parts.join(", ")
    }
}

fn between(text: &str, before: &str, after: &str) -> Option<String> {
    let rest = &text[text.find(before)? + before.len()..];
    Some(rest[..rest.find(after).unwrap_or(rest.len())].trim().to_owned())
}

/// Printable text in one line of limited length.
fn clean(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
