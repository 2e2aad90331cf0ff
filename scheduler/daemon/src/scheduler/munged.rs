//! The watch over the host's `munged`: without `munged` no caller's identity can be proven, and nobody is served.

use super::{Due, Report, Scheduler};
use hop_api::identity::{Identity, Munge};
use hop_words::time::Span;
use std::time::Duration;
use tracing::{info, warn};

/// Between two credentials, each of which takes about a millisecond.
const EVERY: Span = Span::from_secs(10);
/// Time after which `munged` counts as away.
const PATIENCE: Duration = Duration::from_secs(10);

impl Scheduler {
    /// Asks for a credential that nobody needs.
    pub(super) fn ask_munged(&mut self) {
        let socket = self.config.munge_socket.clone();
        let reports = self.reports.clone();
        tokio::spawn(async move {
            let me = rustix::process::geteuid().as_raw();
            let asks = tokio::task::spawn_blocking(move || Munge { socket }.encode(b"", me));
            let answer = match tokio::time::timeout(PATIENCE, asks).await {
                Ok(Ok(Ok(_))) => Ok(()),
                Ok(Ok(Err(error))) => Err(error.to_string()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
            };
            let _ = reports.send(Report::Munged(answer));
        });
    }

    pub(super) fn munged(&mut self, answer: Result<(), String>) {
        self.due.insert((self.clock.now() + EVERY, Due::Munged));
        match answer {
            Ok(()) => {
                if self.news.relief("munge") {
                    info!("munged answers again: callers can be proven");
                }
            }
            Err(reason) => {
                let text = format!("MUNGE can't prove who is calling, so no new caller is served: {reason}");
                if self.news.trouble("munge", text.clone()) {
                    warn!("{text}");
                }
            }
        }
    }
}
