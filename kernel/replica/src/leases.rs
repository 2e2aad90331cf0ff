//! Leases as the replica sees them: requests to `hopd` one way, news the other. Behind it stands the connection to
//! `hopd`, or, without Slurm, nobody who has a GPU.

use anyhow::Result;
use hop_api::client::{self, Item};
use hop_api::config::Config;
use hop_api::message::{Event, Request, Role};
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
    Event(Event),
}

/// One end of the conversation. What is sent while the connection is down is dropped; what must not be lost is said
/// again when it is up.
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
                    Some(Item::Refused(refusal)) => {
                        tracing::warn!(%refusal, "hopd refused a request");
                        continue;
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

    /// Nobody lends here: every cell that asks is refused with this reason.
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
