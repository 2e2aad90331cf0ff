//! Identity of callers: MUNGE, behind a small trait.
//!
//! The trait exists for a test of the channel that must act as several users at once. Acting so takes root and a
//! `munged`; only the integration tests have both.

use hop_words::deadline::Patience;
use std::path::PathBuf;
use std::time::Duration;

/// A caller vouched for by MUNGE, and the payload of the credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Proven {
    pub uid: u32,
    pub gid: u32,
    /// May be a secret: not shown by `Debug`.
    pub payload: Vec<u8>,
}

impl std::fmt::Debug for Proven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proven")
            .field("uid", &self.uid)
            .field("gid", &self.gid)
            .finish_non_exhaustive()
    }
}

/// Why nobody could be proven. `Display` is the whole reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IdentityError(pub String);

/// Makes and believes credentials. Calls may block for about a millisecond.
pub trait Identity: Send + Sync + std::fmt::Debug + 'static {
    /// A credential with `payload` that only processes of `restrict_uid` can decode.
    fn encode(&self, payload: &[u8], restrict_uid: u32) -> Result<String, IdentityError>;
    /// Decodes a credential: good for a single use, and only if restricted to the calling process's uid.
    fn decode(&self, credential: &str) -> Result<Proven, IdentityError>;
}

/// The site's `munged`.
#[derive(Debug, Clone, Default)]
pub struct Munge {
    /// Socket of munged; `None` means MUNGE's own default.
    pub socket: Option<PathBuf>,
}

/// How long a hello's credential is good for: it is used at once.
const TTL: Duration = Duration::from_secs(60);

impl Identity for Munge {
    fn encode(&self, payload: &[u8], restrict_uid: u32) -> Result<String, IdentityError> {
        hop_munge::encode(payload, Some(restrict_uid), Some(TTL), self.socket.as_deref())
            .map_err(|e| IdentityError(e.to_string()))
    }

    fn decode(&self, credential: &str) -> Result<Proven, IdentityError> {
        let decoded = hop_munge::decode(credential, self.socket.as_deref())
            .map_err(|e| IdentityError(e.to_string()))?;
        if decoded.restricted_to.is_none() {
            return Err(IdentityError("the credential can be read by everybody".into()));
        }
        Ok(Proven {
            uid: decoded.uid,
            gid: decoded.gid,
            payload: decoded.payload,
        })
    }
}

/// The host's user database (NSS) may lie far away, as with LDAP, and hang.
static DATABASE: Patience = Patience::of(Duration::from_secs(5));

/// The host's user database gave no answer in time: a user is neither known nor unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this host's user database does not answer")]
pub struct SilentError;

/// The login name of a uid, if the host knows one.
///
/// # Errors
/// [`SilentError`].
pub fn user_name(uid: u32) -> Result<Option<String>, SilentError> {
    let asked = DATABASE.within(move || nix::unistd::User::from_uid(uid.into()));
    Ok(asked.ok_or(SilentError)?.ok().flatten().map(|u| u.name))
}

/// The uid of a login name, if the host knows it.
///
/// # Errors
/// [`SilentError`].
pub fn user_id(name: &str) -> Result<Option<u32>, SilentError> {
    let name = name.to_owned();
    let asked = DATABASE.within(move || nix::unistd::User::from_name(&name));
    Ok(asked.ok_or(SilentError)?.ok().flatten().map(|u| u.uid.as_raw()))
}
