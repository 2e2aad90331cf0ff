//! Leases as the replica sees them: requests to `hopd` one way, news the other. Without Slurm, no scheduler stands
//! behind this interface, and nobody has a GPU.

use anyhow::Result;
use hop_api::client::{self, Item};
use hop_api::config::Config;
use hop_api::message::{Event, Refusal, Request, Role};
use hop_words::id::{CellId, KernelId};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What comes from the other side.
#[derive(Debug)]
pub enum News {
    /// There is a (new) connection: register now.
    Up,
    /// There is none; tries go on.
    Down {
        reason: String,
    },
    /// `hopd` doesn't hear us for now; requests go on waiting.
    Unheard {
        reason: String,
    },
    Event(Event),
}

/// Pause after a refused registration: the reason for `hopd`'s refusal may have been mended by then.
pub(crate) const AGAIN: Duration = Duration::from_secs(20);

/// Whether `hopd` hears us.
#[derive(Debug, Default)]
struct Hearing {
    /// Why it refused to register us.
    why: Option<String>,
    /// When to register again.
    again: Option<Instant>,
}

impl Hearing {
    /// Meaning of a refused request for the waiting cell. Only an invalid request ends its cell. A request from before
    /// the registration, and one that `hopd` can't judge yet, is repeated with the next registration.
    fn refused(&mut self, refusal: Refusal, submitted: Option<(KernelId, CellId)>, now: Instant) -> News {
        if let (Refusal::Invalid { .. }, Some((kernel, cell))) = (&refusal, &submitted) {
            let (kernel, cell) = (kernel.clone(), cell.clone());
            let reason = refusal.to_string();
            return News::Event(Event::Refused { kernel, cell, reason });
        }
        // A newer tenure has taken our place for good.
        if !matches!(refusal, Refusal::Superseded { .. }) {
            self.again.get_or_insert(now + AGAIN);
        }
        let is_unjudged = matches!(refusal, Refusal::Unavailable { .. });
        let said = match refusal {
            Refusal::Forbidden { reason } | Refusal::Unavailable { reason } => reason,
            other => other.to_string(),
        };
        if submitted.is_none() {
            self.why = Some(said.clone());
        }
        let known = self.why.clone().filter(|_| !is_unjudged);
        let reason = known.unwrap_or(said);
        News::Unheard { reason }
    }
}

/// One end of the conversation. Messages are dropped while the connection is down; important ones are repeated when
/// it is up.
#[derive(Debug)]
pub struct Leases {
    pub requests: mpsc::UnboundedSender<Request>,
    pub news: mpsc::UnboundedReceiver<News>,
    /// Whether there is anybody who could lend.
    pub lends: bool,
}

impl Leases {
    /// The other end, for whoever lends.
    pub fn pair() -> (
        Self,
        mpsc::UnboundedReceiver<Request>,
        mpsc::UnboundedSender<News>,
    ) {
        let (requests, incoming) = mpsc::unbounded_channel();
        let (outgoing, news) = mpsc::unbounded_channel();
        (
            Self {
                requests,
                news,
                lends: true,
            },
            incoming,
            outgoing,
        )
    }

    /// A connection to the `hopd` of the configuration.
    pub fn hopd(config: &Config) -> Result<Self> {
        let options = client::Options::from_config(config, Role::Replica)?;
        let (leases, mut requests, news) = Self::pair();
        tokio::spawn(async move {
            let (client, mut items) = client::start(options);
            let mut hearing = Hearing::default();
            loop {
                let again = hearing.again;
                let item = tokio::select! {
                    () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                        hearing.again = None;
                        if news.send(News::Up).is_err() {
                            return;
                        }
                        continue;
                    }
                    request = requests.recv() => match request {
                        // An error means that the connection is gone: the next connection repeats the request.
                        Some(request) => { let _ = client.send(request).await; continue }
                        None => return,
                    },
                    item = items.next() => item,
                };
                let said = match item {
                    Some(Item::Connected(_)) => {
                        hearing = Hearing::default();
                        News::Up
                    }
                    Some(Item::Disconnected { reason, .. }) => {
                        hearing = Hearing::default();
                        News::Down { reason }
                    }
                    Some(Item::Event(event)) => {
                        hearing = Hearing::default();
                        News::Event(event)
                    }
                    Some(Item::Refused { refusal, submitted }) => {
                        tracing::warn!(%refusal, "hopd refused a request");
                        hearing.refused(refusal, submitted, Instant::now())
                    }
                    Some(Item::Order(_)) => continue,
                    None => return,
                };
                if news.send(said).is_err() {
                    return;
                }
            }
        });
        Ok(leases)
    }

    /// Nothing is lent here: every request is refused with this reason.
    pub fn nobody(reason: String) -> Self {
        let (leases, mut requests, news) = Self::pair();
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                if let Request::Submit { kernel, cell, .. } = request {
                    let reason = reason.clone();
                    // The replica may be gone first.
                    let _ = news.send(News::Event(Event::Refused { kernel, cell, reason }));
                }
            }
        });
        Self {
            lends: false,
            ..leases
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hop_words::id::Tenure;

    fn submitted() -> Option<(KernelId, CellId)> {
        Some((KernelId::from("k"), CellId::from("c")))
    }

    fn early() -> Refusal {
        Refusal::NotFound {
            what: "kernel k".into(),
        }
    }

    #[test]
    fn a_refused_submission_is_told_its_cell_and_one_that_came_too_early_waits_on() {
        let mut hearing = Hearing::default();
        let mut refused = |refusal, submitted| hearing.refused(refusal, submitted, Instant::now());
        let invalid = || Refusal::Invalid { reason: "no".into() };
        assert!(matches!(
            refused(invalid(), submitted()),
            News::Event(Event::Refused { cell, reason, .. }) if cell.as_str() == "c" && reason == "no"
        ));
        assert!(matches!(refused(early(), submitted()), News::Unheard { .. }));
        let unjudged = Refusal::Unavailable {
            reason: "Slurm has not said yet".into(),
        };
        assert!(matches!(
            refused(unjudged, submitted()),
            News::Unheard { reason } if reason == "Slurm has not said yet"
        ));
        assert!(matches!(refused(invalid(), None), News::Unheard { reason } if reason == "no"));
    }

    #[test]
    fn a_kernel_that_is_not_registered_reads_why_and_tries_again() {
        let (mut hearing, now) = (Hearing::default(), Instant::now());
        let hidden = Refusal::Unavailable {
            reason: "Slurm hides it".into(),
        };
        hearing.refused(hidden, None, now);
        // The next cell is told the reason, and not that hopd doesn't know its kernel.
        let told = hearing.refused(early(), submitted(), now + AGAIN / 2);
        assert!(matches!(told, News::Unheard { reason } if reason == "Slurm hides it"));
        assert_eq!(hearing.again, Some(now + AGAIN), "not put off by cells");
        // A cell that can't be judged yet has a reason of its own, and is asked for again.
        let mut hearing = Hearing::default();
        let unjudged = Refusal::Unavailable {
            reason: "Slurm is slow".into(),
        };
        hearing.refused(unjudged, submitted(), now);
        assert_eq!(hearing.again, Some(now + AGAIN));
        let mut hearing = Hearing::default();
        let (kernel, tenure) = (KernelId::from("k"), Tenure(2));
        hearing.refused(Refusal::Superseded { kernel, tenure }, None, now);
        assert_eq!(hearing.again, None);
    }
}
