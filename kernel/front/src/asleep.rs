//! The front of a hibernating kernel keeps a connection to `hopd`, for `hop wake` to reach the front.

use hop_api::client::{self, Item};
use hop_api::config::Config;
use hop_api::message::{Event, Request, Role};
use hop_words::id::KernelId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The connection, while it is kept.
#[derive(Debug)]
pub(crate) struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Listens for the kernel's wake. Without a configuration the front has no `hopd` to hear.
pub(crate) fn listen(kernel: KernelId, wakes: mpsc::UnboundedSender<()>) -> Option<Listener> {
    let config = Config::load().ok()?;
    let options = client::Options::from_config(&config, Role::Front).ok()?;
    Some(Listener(tokio::spawn(async move {
        let (client, mut items) = client::start(options);
        while let Some(item) = items.next().await {
            let up = Request::FrontUp {
                kernel: kernel.clone(),
            };
            match item {
                // An error means that the connection is gone: said again on the next.
                Item::Connected(_) => drop(client.send(up).await),
                // The front may have ended first.
                Item::Event(Event::Wake { .. }) => drop(wakes.send(())),
                _ => {}
            }
        }
    })))
}
