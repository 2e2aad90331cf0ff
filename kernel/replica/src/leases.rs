//! Leases as the replica sees them: requests to `hopd` one way, news the other. Behind it stands the connection to
//! `hopd`, or, without Slurm, nobody who has a GPU.

use anyhow::Result;
use hop_api::client::{self, Item};
use hop_api::config::Config;
use hop_api::message::{Event, Refusal, Request, Role};
use hop_words::id::{CellId, KernelId};
use tokio::sync::mpsc;

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

/// Meaning of a refused request for the waiting cell. A request sent before the registration is repeated with it.
fn refused(refusal: Refusal, submitted: Option<(KernelId, CellId)>) -> News {
    let reason = refusal.to_string();
    match (refusal, submitted) {
        (Refusal::Invalid { .. } | Refusal::Unavailable { .. }, Some((kernel, cell))) => {
            News::Event(Event::Refused { kernel, cell, reason })
        }
        _ => News::Unheard { reason },
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
            loop {
                let item = tokio::select! {
                    request = requests.recv() => match request {
                        // An error means that there is no connection: said again on the next.
                        Some(request) => { let _ = client.send(request).await; continue }
                        None => return,
                    },
                    item = items.next() => item,
                };
                let said = match item {
                    Some(Item::Connected(_)) => News::Up,
                    Some(Item::Disconnected { reason, .. }) => News::Down { reason },
                    Some(Item::Event(event)) => News::Event(event),
                    Some(Item::Refused { refusal, submitted }) => {
                        tracing::warn!(%refusal, "hopd refused a request");
                        refused(refusal, submitted)
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

    #[test]
    fn a_refused_submission_is_told_its_cell_and_one_that_came_too_early_waits_on() {
        let submitted = || Some((KernelId::from("k"), CellId::from("c")));
        let invalid = || Refusal::Invalid { reason: "no".into() };
        assert!(matches!(
            refused(invalid(), submitted()),
            News::Event(Event::Refused { cell, reason, .. }) if cell.as_str() == "c" && reason == "no"
        ));
        let early = Refusal::NotFound {
            what: "kernel k".into(),
        };
        assert!(matches!(refused(early, submitted()), News::Unheard { .. }));
        assert!(matches!(refused(invalid(), None), News::Unheard { reason } if reason == "no"));
    }
}
