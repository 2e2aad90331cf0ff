//! Asking `hopd` one thing.

use crate::failure::Failure;
use hop_api::client::{CallError, call_blocking};
use hop_api::config::{Config, ConfigError};
use hop_api::message::{Request, Response};
use hop_words::error::chain;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A source of answers: `hopd`, or a test's stand-in.
pub(crate) trait Hopd {
    fn ask(&self, request: Request) -> Result<Response, Failure>;
}

/// The daemon that the configuration names.
pub(crate) struct Wire;

impl Hopd for Wire {
    fn ask(&self, request: Request) -> Result<Response, Failure> {
        let config = Config::load().map_err(|error| config_failure(&error))?;
        let (done, result) = channel();
        let asking = std::thread::spawn(move || {
            let _ = done.send(call_blocking(&config, request));
        });
        let answer = match result.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => {
                let spinner = spinner();
                let answer = result.recv();
                spinner.finish_and_clear();
                answer.ok()
            }
            answer => answer.ok(),
        };
        let _ = asking.join();
        match answer {
            Some(Ok(Response::Refused(refusal))) => Err(Failure::Failed(refusal.to_string())),
            Some(Ok(response)) => Ok(response),
            Some(Err(error)) => Err(call_failure(error)),
            None => Err(Failure::Failed("asking hopd ended without an answer".to_owned())),
        }
    }
}

/// Shown on a terminal alone.
fn spinner() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message("waiting for hopd");
    spinner.set_style(ProgressStyle::default_spinner());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

fn config_failure(error: &ConfigError) -> Failure {
    match error {
        ConfigError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Failure::Unconfigured(chain(error))
        }
        error => Failure::Unreachable(chain(error)),
    }
}

fn call_failure(error: CallError) -> Failure {
    match error {
        CallError::Refused(refusal) => Failure::Failed(refusal.to_string()),
        CallError::Unreachable { .. } | CallError::Disconnected | CallError::Timeout(_) => {
            Failure::Unreachable(format!(
                "{error}; running cells go on without it. Try again, or ask the operators to look at hopd on its service host"
            ))
        }
        CallError::NoServiceUser { .. } | CallError::NoUsers(_) => {
            Failure::Unreachable(format!("{error}; `hop doctor` says what mends it"))
        }
    }
}

/// An answer of another kind than the question's: two releases that don't fit.
pub(crate) fn unexpected(response: &Response) -> Failure {
    let text = format!("{response:?}");
    let kind = text.split([' ', '(', '{']).next().unwrap_or_default();
    Failure::Failed(format!(
        "hopd answered with {kind}, which this hop does not expect: install the same release on both"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_the_service_account_says_what_mends_it() {
        let user = "gresshopper".into();
        let failure = call_failure(CallError::NoServiceUser { user });
        assert!(
            matches!(&failure, Failure::Unreachable(said) if said.ends_with("`hop doctor` says what mends it"))
        );
    }
}
