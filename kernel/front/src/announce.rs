//! The front's address for its replicas, and the keys for mutual proof: all of `front.json` but the replica itself,
//! which [`crate::launch`] adds.

use crate::owner::Start;
use anyhow::{Context, Result};
use hop_api::config::Config;
use hop_protocol::file::FrontFile;
use hop_protocol::message::VERSION;
use hop_protocol::tls::KernelKeys;
use hop_words::net::{listen, route_to};
use std::net::Ipv4Addr;
use std::path::Path;
use tokio::net::TcpListener;

/// Listens for replicas. A front in takeover keeps the kernel's keys, incarnation and state, and has a later epoch than
/// the front before.
pub(crate) fn announce(start: &mut Start, dir: &Path) -> Result<(FrontFile, TcpListener)> {
    let ip = if start.launch.local {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    // Without a configuration the kernel still starts, wherever Slurm has room.
    let range = Config::load().ok().and_then(|config| config.port_range);
    let listener = listen(ip.into(), range.filter(|_| !start.launch.local));
    let listener = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    let listener = listener.context("can't listen for the replica")?;
    let port = listener.local_addr()?.port();
    let before = match start.resume {
        true => Some(FrontFile::read(dir).context("can't take over: the front before left no keys")?),
        false => None,
    };
    let takeover = before.as_ref().and_then(|f| f.takeover.clone());
    // A Jupyter server counts its kernel's fronts from 1, even if the kernel also ran under an earlier server.
    start.epoch = start.epoch.max(before.as_ref().map_or(0, |f| f.epoch + 1));
    // The kernel's processes have the key for as long as there are any.
    let signing_key = before.as_ref().map_or(&start.key, |f| &f.signing_key).clone();
    let file = FrontFile {
        version: VERSION,
        kernel: start.kernel.clone(),
        incarnation: before.as_ref().map_or(start.incarnation, |f| f.incarnation),
        epoch: start.epoch,
        state: before.as_ref().and_then(|f| f.state.clone()),
        addresses: addresses(start.launch.local)
            .into_iter()
            .map(|host| format!("{host}:{port}"))
            .collect(),
        keys: match before {
            Some(file) => file.keys,
            None => KernelKeys::generate()?,
        },
        signing_key,
        launch: start.launch.clone(),
        takeover,
    };
    if start.resume {
        file.write(dir)?;
    }
    Ok((file, listener))
}

/// Names of this host for compute nodes, the likeliest first. A wrong name costs a replica a try: the listener under
/// that name doesn't have the kernel's key.
fn addresses(local: bool) -> Vec<String> {
    let mut hosts = Vec::new();
    if let Ok(host) = std::env::var("GRESSHOPPER_FRONT_HOST") {
        hosts.push(host);
    }
    if !local {
        let hopd = Config::load().ok().and_then(|c| c.hopd.connect.first().cloned());
        hosts.extend(hopd.and_then(|hopd| route_to(&hopd)).map(|ip| ip.to_string()));
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        hosts.push(name);
    }
    hosts.push(Ipv4Addr::LOCALHOST.to_string());
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(key: &str, resume: bool) -> Start {
        let launch = serde_json::json!({"argv": ["python"], "cwd": null, "local": true});
        let order = serde_json::json!({
            "version": crate::owner::VERSION, "kernel": "k", "incarnation": 1, "epoch": 1, "resume": resume, "key": key,
            "launch": launch,
        });
        serde_json::from_value(order).unwrap()
    }

    #[tokio::test]
    async fn the_front_of_another_owner_comes_after_the_one_before_and_keeps_the_kernels_key() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = order("first", false);
        let (file, _) = announce(&mut first, dir.path()).unwrap();
        file.write(dir.path()).unwrap();
        for epoch in [2, 3] {
            let mut next = order("second", true);
            let (file, _) = announce(&mut next, dir.path()).unwrap();
            assert_eq!((file.epoch, next.epoch), (epoch, epoch));
            assert_eq!((&*file.signing_key, &*next.key), ("first", "second"));
        }
    }
}
