//! MUNGE credentials: who is calling, proven by the site's own `munged`.
//!
//! libmunge is loaded on first use: nothing links the library, and everything builds and starts without the library. A
//! missing library is [`Error::Library`] at the first call. The meaning of payloads is left to the caller. Calls block
//! on a local socket for about half a millisecond: an async caller uses a blocking thread.
//!
//! A credential is encrypted: the payload may be a secret if only the reader's uid may decode the credential. `munged`
//! lets each credential be decoded once per host (its replay cache), and root is no exception from the restriction to a
//! uid.

#![allow(unsafe_code)] // FFI: the calls of libmunge, through function pointers that libloading found.

mod ffi;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The environment variable that names `munged`'s socket where the caller doesn't.
pub const SOCKET_VARIABLE: &str = "MUNGE_SOCKET";

/// A decoded credential: payload and author.
#[derive(Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The payload given to [`encode`]; possibly a secret, so `Debug` hides the payload.
    pub payload: Vec<u8>,
    /// Effective uid of the encoding process, as seen by that host's `munged`.
    pub uid: u32,
    /// Its effective gid.
    pub gid: u32,
    /// When it was encoded, by the encoding host's clock; seconds.
    pub encoded: SystemTime,
    /// Time of decoding in seconds, by this host's clock.
    pub decoded: SystemTime,
    /// How long it is good for.
    pub ttl: Duration,
    /// The only uid that may decode the credential, if restricted.
    pub restricted_to: Option<u32>,
}

impl std::fmt::Debug for Decoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoded")
            .field("payload_len", &self.payload.len())
            .field("uid", &self.uid)
            .field("gid", &self.gid)
            .field("encoded", &self.encoded)
            .field("ttl", &self.ttl)
            .field("restricted_to", &self.restricted_to)
            .finish_non_exhaustive()
    }
}

/// Why a credential could not be made or believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("libmunge could not be loaded: install the package libmunge2 (munge-libs)")]
    Library(#[source] libloading::Error),
    #[error("munged does not answer on {}: is it running?", socket_name(.socket.as_deref()))]
    SocketDown { socket: Option<PathBuf>, detail: String },
    #[error("the credential was used before")]
    Replayed,
    #[error("the credential has expired")]
    Expired,
    #[error("the credential comes from the future: the hosts' clocks differ")]
    Rewound,
    #[error("the credential is meant for another uid")]
    Unauthorised,
    #[error("not a valid credential of this site: {detail}")]
    Invalid { detail: String },
    #[error("the payload or socket path can't be given to munge: {detail}")]
    Argument { detail: String },
    #[error("munge failed: {detail}")]
    Other { code: i32, detail: String },
}

fn socket_name(socket: Option<&Path>) -> String {
    socket.map_or_else(|| "its default socket".to_owned(), |s| s.display().to_string())
}

/// Makes a credential that carries `payload`.
///
/// `restrict_uid`: the only uid that may decode the credential. `ttl`: the time to live, rounded up to whole seconds
/// (`None`: munged's default, 300 s; munged caps the value). `socket`: munged's socket (`None`: `$MUNGE_SOCKET`, else
/// libmunge's default).
///
/// # Errors
/// [`Error::Library`], [`Error::SocketDown`], [`Error::Argument`] for a payload over `c_int::MAX`, and
/// [`Error::Other`].
pub fn encode(
    payload: &[u8],
    restrict_uid: Option<u32>,
    ttl: Option<Duration>,
    socket: Option<&Path>,
) -> Result<String, Error> {
    let socket = socket_or_env(socket);
    let mut context = ffi::Context::new(socket.as_deref())?;
    context.set_number(ffi::OPT_CIPHER_TYPE, ffi::CIPHER_AES128)?;
    if let Some(uid) = restrict_uid {
        context.set_id(ffi::OPT_UID_RESTRICTION, uid)?;
    }
    if let Some(ttl) = ttl {
        context.set_number(ffi::OPT_TTL, whole_seconds(ttl))?;
    }
    context.encode(payload)
}

/// Believes or refuses a credential. A second decode of the same credential on this host is [`Error::Replayed`].
///
/// # Errors
/// Each kind of disbelief has its own variant; [`Error::SocketDown`] where munged can't be asked.
pub fn decode(credential: &str, socket: Option<&Path>) -> Result<Decoded, Error> {
    let socket = socket_or_env(socket);
    ffi::Context::new(socket.as_deref())?.decode(credential)
}

fn socket_or_env(socket: Option<&Path>) -> Option<PathBuf> {
    socket.map(Path::to_owned).or_else(|| {
        std::env::var_os(SOCKET_VARIABLE)
            .filter(|v| !v.is_empty())
            .map(Into::into)
    })
}

/// Rounded up, at least one: 0 and less have meanings of their own to munge.
fn whole_seconds(ttl: Duration) -> i32 {
    let up = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i32::try_from(up.max(1)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_seconds() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1500)), 2);
        assert_eq!(whole_seconds(Duration::from_secs(30)), 30);
        assert_eq!(whole_seconds(Duration::from_secs(u64::MAX / 2)), i32::MAX);
    }

    #[test]
    fn the_payload_stays_out_of_debug_output() {
        let decoded = Decoded {
            payload: b"secret".to_vec(),
            uid: 1,
            gid: 2,
            encoded: SystemTime::UNIX_EPOCH,
            decoded: SystemTime::UNIX_EPOCH,
            ttl: Duration::from_secs(1),
            restricted_to: None,
        };
        let text = format!("{decoded:?}");
        assert!(!text.contains("secret") && !text.contains("115"), "{text}");
    }
}
