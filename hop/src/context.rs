//! Input and output of a subcommand; tests pass their own.

use crate::hopd::{Hopd, Wire};
use hop_api::config::Config;
use hop_words::time::Timestamp;
use jiff::tz::TimeZone;
use std::io::Write;
use terminal_size::terminal_size_of;

/// The world of one invocation.
pub(crate) struct Context<'a> {
    /// Data.
    pub(crate) out: &'a mut dyn Write,
    /// Everything else.
    pub(crate) err: &'a mut dyn Write,
    pub(crate) hopd: Box<dyn Hopd>,
    pub(crate) now: Timestamp,
    pub(crate) zone: TimeZone,
    pub(crate) env: fn(&str) -> Option<String>,
    pub(crate) is_root: bool,
    /// The name of the user with this name or uid, if the system knows the user.
    pub(crate) user: fn(&str) -> Option<String>,
    /// The site's configuration, if it can be read.
    pub(crate) config: Option<Config>,
    /// Columns of the terminal behind `out`, if any.
    pub(crate) columns: Option<usize>,
}

impl<'a> Context<'a> {
    pub(crate) fn of_process(out: &'a mut dyn Write, err: &'a mut dyn Write) -> Self {
        Self {
            out,
            err,
            hopd: Box::new(Wire),
            now: Timestamp(u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0)),
            zone: TimeZone::system(),
            env: |name| std::env::var(name).ok(),
            is_root: rustix::process::geteuid().is_root(),
            user,
            config: Config::load().ok(),
            columns: terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0)),
        }
    }
}

/// Asks the user database; where it can't be asked, anybody may exist.
fn user(name: &str) -> Option<String> {
    let asked = std::process::Command::new("id")
        .args(["-un", "--", name])
        .output();
    let Ok(done) = asked else {
        return Some(name.to_owned());
    };
    let known = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    done.status.success().then_some(known)
}
