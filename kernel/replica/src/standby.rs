//! A replica that waits in its seat for the kernel to move there: the kernel's process is started and heard, and has no
//! variables yet. The front welcomes the replica once it has opened the tenure for it.

use crate::dial::LinkEvent;
use crate::run::{PROBE_EVERY, Process};
use crate::sockets::FromKernel;
use anyhow::{Context, Result, bail};
use hop_protocol::file::FrontFile;
use hop_protocol::message::Hello;
use hop_words::id::Incarnation;
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep};

/// A home on the network may show a file that was replaced for a while longer.
const FILE_SEEN: Duration = Duration::from_secs(30);

/// Waits until the kernel's process listens.
pub(crate) async fn heard(process: &mut Process) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut connecting = Box::pin(process.sockets.connect_iopub());
    let mut connected = false;
    let mut probe = interval(PROBE_EVERY);
    loop {
        tokio::select! {
            status = process.kernel.wait() => {
                bail!("the kernel's process ended before it was heard: {}", process.kernel.reason(status?));
            }
            client = &mut connecting, if !connected => {
                connected = true;
                process.sockets.iopub_is_connected(client);
            }
            event = process.events.recv() => {
                let (socket, event) = event.context("the kernel's sockets are closed")?;
                if let Some(FromKernel::Heard) = process.sockets.sort(socket, event) {
                    process.heard = true;
                    return Ok(());
                }
            }
            _ = probe.tick(), if connected => process.sockets.probe().await,
            _ = terminate.recv() => bail!("the step was ended while it waited"),
        }
    }
}

/// Waits until the front gives this replica the kernel's tenure. Returns the first connection, and what the front's file
/// says by then.
pub(crate) async fn called(
    process: &mut Process,
    links: &mut mpsc::Receiver<LinkEvent>,
    hello: &Hello,
    dir: &Path,
) -> Result<(LinkEvent, FrontFile)> {
    let mut terminate = signal(SignalKind::terminate())?;
    let up = loop {
        tokio::select! {
            status = process.kernel.wait() => {
                bail!("the kernel's process ended while it waited: {}", process.kernel.reason(status?));
            }
            event = links.recv() => match event.context("the dialler ended")? {
                // The dialler may be gone first.
                LinkEvent::WantsHello(answer) => drop(answer.send(Hello { standby: true, ..hello.clone() })),
                up @ LinkEvent::Up { .. } => break up,
                LinkEvent::Down => {}
                LinkEvent::Over(gone) => bail!("the front doesn't want this replica: {gone:?}"),
            },
            _ = terminate.recv() => bail!("the step was ended while it waited"),
        }
    };
    Ok((up, file_for(dir, hello.incarnation).await?))
}

async fn file_for(dir: &Path, me: Incarnation) -> Result<FrontFile> {
    let since = Instant::now();
    loop {
        let file = FrontFile::read(dir)?;
        if file.incarnation == me {
            return Ok(file);
        }
        if since.elapsed() > FILE_SEEN {
            bail!(
                "front.json names replica {} and not this one ({me})",
                file.incarnation
            );
        }
        sleep(Duration::from_millis(20)).await;
    }
}
