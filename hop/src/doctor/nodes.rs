//! Looking at each node of the pools: `hop doctor --here` as a step in its pilot, or as a small job where none is.

use super::facts::{ASKER, CREDENTIAL, Facts};
use super::{Finding, Report, lease};
use hop_api::config::{Config, Pool};
use hop_api::identity::{Identity as _, Munge};
use hop_api::message::NodeInfo;
use hop_slurm::Node;
use hop_slurm::gres::Gres;
use hop_words::id::PoolName;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The pool that a node is looked at for, and a partition of the pool's that has the node.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place<'a> {
    name: &'a PoolName,
    pool: &'a Pool,
    partition: &'a str,
}

/// `told` is hopd's word. `None`: the node is no pool's, or one of a burst partition without power, which a look would
/// start.
fn place_of<'a>(node: &Node, told: Option<&PoolName>, config: &'a Config) -> Option<Place<'a>> {
    let places = config.pool.iter().flat_map(|(name, pool)| {
        let bursts = pool.burst.iter().filter(|_| !node.state.is_powered_down());
        std::iter::once(pool.partition.as_str())
            .chain(bursts.map(|burst| burst.partition.as_str()))
            .map(move |partition| Place {
                name,
                pool,
                partition,
            })
    });
    let there = places.filter(|place| node.partitions.iter().any(|name| name == place.partition));
    there.min_by_key(|place| {
        let of_type = |gres: &Gres| gres.is_gpu_of(place.pool.gpu_type.as_deref());
        // A node whose GPUs Slurm doesn't know is to be looked at all the same.
        (told != Some(place.name), !node.gres.iter().any(of_type))
    })
}

/// The user for the steps: the service account if root asks, the owner of the pilots' jobs.
struct Starter {
    uid: u32,
    gid: u32,
    is_other: bool,
}

pub(crate) fn look(facts: &Facts, is_root: bool) -> Vec<Finding> {
    let (Ok(config), Ok(slurm)) = (&facts.config, &facts.slurm) else {
        let says = "the nodes can't be looked at before the configuration and slurmctld are right";
        return vec![Finding::unknown("nodes", says)];
    };
    let Some(starter) = starter(facts, config, is_root) else {
        return vec![Finding::unknown(
            "nodes",
            "there is no service account to start steps as",
        )];
    };
    let rows = facts.hopd.as_ref().map_or(&[][..], |info| &info.nodes);
    let placed = slurm.nodes.iter().filter_map(|node| {
        let told = rows.iter().find(|row| row.node == node.name);
        Some((node, place_of(node, told.map(|row| &row.pool), config)?))
    });
    let placed: Vec<(&Node, Place<'_>)> = placed.collect();
    at_most(AT_ONCE, &placed, |(node, place)| {
        of_node(node, facts, config, place, &starter)
    })
}

/// Steps at once: more would be a burden for slurmctld.
const AT_ONCE: usize = 16;

/// The findings of all items in their order, with at most `threads` looks at once. Each thread waits for Slurm, not for
/// this host.
fn at_most<T: Sync, F: Send>(threads: usize, all: &[T], look: impl Fn(&T) -> Vec<F> + Sync) -> Vec<F> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let one_by_one = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = all.get(at) else { break };
            let rows = look(item);
            found
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(at, rows);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(all.len()) {
            scope.spawn(one_by_one);
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.into_values().flatten().collect()
}

fn starter(facts: &Facts, config: &Config, is_root: bool) -> Option<Starter> {
    let own = rustix::process::geteuid().as_raw();
    let other = facts.service_uid.filter(|uid| is_root && *uid != own);
    let uid = other.unwrap_or(own);
    let gid = match other {
        Some(_) => group_of(config.service_user.as_str())?,
        None => rustix::process::getegid().as_raw(),
    };
    Some(Starter {
        uid,
        gid,
        is_other: other.is_some(),
    })
}

fn group_of(user: &str) -> Option<u32> {
    let out = Command::new("id").args(["-g", "--", user]).output().ok()?;
    String::from_utf8(out.stdout).ok()?.trim().parse().ok()
}

fn of_node(
    node: &Node,
    facts: &Facts,
    config: &Config,
    place: &Place<'_>,
    starter: &Starter,
) -> Vec<Finding> {
    let name = node.name.as_str();
    let here = |mut row: Finding| {
        row.node = Some(name.to_owned());
        row
    };
    let pilot = pilot_of(node, facts, starter);
    if pilot.is_none() && !node.state.is_usable() {
        let why = node
            .reason
            .as_ref()
            .map_or_else(String::new, |why| format!(": {why}"));
        let says = format!("Slurm starts nothing there, it is {}{why}", node.state);
        return vec![here(Finding::unknown("step", says))];
    }
    let mut command = srun(node, pilot, facts, config, place, starter);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            return vec![here(Finding::failed(
                "step",
                format!("srun can't be started: {error}"),
                "Install Slurm's client commands here.",
            ))];
        }
    };
    let Ok(report) = serde_json::from_slice::<Report>(&output.stdout) else {
        let said = last_line(&output.stderr);
        if has_no_room(&said) {
            let says = format!("no job could look at it; srun said: {said}");
            return vec![here(Finding::unknown("step", says))];
        }
        return vec![here(Finding::failed(
            "step",
            format!("no step could look at it; srun said: {said}"),
            format!(
                "Look at `scontrol show node {name}` and at slurmd's log there, and at {}/bin/hop.",
                config.prefix.display()
            ),
        ))];
    };
    let mut rows: Vec<Finding> = report.rows.into_iter().map(here).collect();
    rows.push(here(credential_from(report.credential, config, starter)));
    rows.push(here(lease_on(node, facts, config, place, starter)));
    rows
}

/// Has a job on the node lease a GPU for a moment.
fn lease_on(node: &Node, facts: &Facts, config: &Config, place: &Place<'_>, starter: &Starter) -> Finding {
    if let Err(why) = &facts.hopd {
        return Finding::unknown(lease::CHECK, format!("hopd has to answer first: {why}"));
    }
    let mut command = bare_srun(node);
    own_job(&mut command, place);
    hop_there(&mut command, node, facts, config, starter);
    command.args(["--lease", "--pool", place.name.as_str()]);
    command.env(lease::KERNEL, uuid::Uuid::new_v4().to_string());
    let said = match command.output() {
        Ok(output) => match serde_json::from_slice::<Report>(&output.stdout) {
            Ok(report) => return report.rows.into_iter().next().unwrap_or_else(nothing),
            Err(_) => last_line(&output.stderr),
        },
        Err(error) => error.to_string(),
    };
    // A full node has no room for the job.
    Finding::unknown(lease::CHECK, format!("no job could try it; srun said: {said}"))
}

/// Whether srun had no allocation, in the words that it has for each reason.
fn has_no_room(said: &str) -> bool {
    said.contains("Unable to allocate resources")
}

fn nothing() -> Finding {
    Finding::unknown(lease::CHECK, "the job said nothing")
}

fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.unwrap_or("nothing").to_owned()
}

/// Checks that this host can decode the node's credential.
fn credential_from(made: Option<String>, config: &Config, starter: &Starter) -> Finding {
    let munge = Munge {
        socket: config.munge_socket.clone(),
    };
    let Some(made) = made else {
        return Finding::unknown("munge-back", "the node could make no credential");
    };
    match munge.decode(&made) {
        Ok(_) if !starter.is_other => Finding::ok("munge-back", "a credential of the node is believed here"),
        Ok(proven) if proven.uid == starter.uid => Finding::ok(
            "munge-back",
            "a credential of the node is believed here, uids agree",
        ),
        Ok(proven) => Finding::failed(
            "munge-back",
            format!(
                "{} has uid {} here and {} there",
                config.service_user, starter.uid, proven.uid
            ),
            "Give the service account one uid on all hosts.",
        ),
        Err(error) => Finding::failed(
            "munge-back",
            format!("a credential of the node isn't believed here: {error}"),
            "Install one munge.key on all hosts, restart munge, and keep the clocks together.",
        ),
    }
}

/// The node's pilot, if steps can be started there.
fn pilot_of<'a>(node: &Node, facts: &'a Facts, starter: &Starter) -> Option<&'a NodeInfo> {
    let own = rustix::process::geteuid().as_raw();
    if !starter.is_other && facts.service_uid != Some(own) {
        return None;
    }
    let info = facts.hopd.as_ref().ok()?;
    info.nodes
        .iter()
        .find(|row| row.node == node.name && row.state == "UP")
}

fn srun(
    node: &Node,
    pilot: Option<&NodeInfo>,
    facts: &Facts,
    config: &Config,
    place: &Place<'_>,
    starter: &Starter,
) -> Command {
    let mut command = bare_srun(node);
    match pilot {
        Some(row) => {
            command
                .arg(format!("--jobid={}", row.pilot))
                .args(["--overlap", "--gres=none", "--mem=0"]);
        }
        None => own_job(&mut command, place),
    }
    hop_there(&mut command, node, facts, config, starter);
    command
}

/// Builds an srun of a single task on the node, independent of the job around this process.
fn bare_srun(node: &Node) -> Command {
    let mut command = Command::new("srun");
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        if (text.starts_with("SLURM_") && text != "SLURM_CONF") || text.starts_with("SRUN_") {
            command.env_remove(&variable);
        }
    }
    command.args(["-Q", "-n1", "-N1", "-c1", "-w", node.name.as_str(), "--chdir=/"]);
    command
}

/// A small job in the pool's partition.
fn own_job(command: &mut Command, place: &Place<'_>) {
    command.args(["--mem=64", "--time=2", "--immediate=20", "--job-name=hop-doctor"]);
    command.arg(format!("--partition={}", place.partition));
    let account = place.pool.account.as_ref();
    command.args(account.map(|name| format!("--account={name}")));
}

/// `hop doctor --here` as the task's command.
fn hop_there(command: &mut Command, node: &Node, facts: &Facts, config: &Config, starter: &Starter) {
    command
        .arg(config.prefix.join("bin/hop"))
        .args(["doctor", "--here", "--node", node.name.as_str()]);
    command
        .env("GRESSHOPPER_CONF", &facts.config_path)
        .current_dir(Path::new("/"));
    command.env(ASKER, rustix::process::geteuid().as_raw().to_string());
    let munge = Munge {
        socket: config.munge_socket.clone(),
    };
    if let Ok(credential) = munge.encode(b"hop doctor", starter.uid) {
        command.env(CREDENTIAL, credential);
    }
    if starter.is_other {
        command.uid(starter.uid).gid(starter.gid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_looked_at_once_and_told_in_its_place() {
        let all: Vec<u32> = (0..40).collect();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let look = |n: &u32| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            vec![*n, *n]
        };
        let found = at_most(4, &all, look);
        assert_eq!(found, all.iter().flat_map(|n| [*n, *n]).collect::<Vec<_>>());
        assert!(most.into_inner() <= 4);
    }

    fn node(partition: &str, gres: &str, state: &str) -> Node {
        Node {
            name: "n1".into(),
            state: hop_slurm::state::NodeState::parse(state),
            reason: None,
            cpus: 8,
            cpus_allocated: 0,
            threads_per_core: 1,
            mem_mib: 1000,
            mem_allocated_mib: 0,
            gres: Gres::parse_list(gres),
            gres_unread: Vec::new(),
            gres_used: Vec::new(),
            features: Vec::new(),
            partitions: vec!["all".into(), partition.into()],
            version: None,
        }
    }

    #[test]
    fn a_node_is_looked_at_for_its_own_pool() {
        let pool = |name: &str, gpu: &str| {
            format!(
                "[pool.{name}]\npartition = 'gpu'\n{gpu}\ngpus_per_pilot = 1\ncpus_per_pilot = 1\nmin_pilots = 0\n\
                 max_pilots = 1\nscale = {{}}\nburst = [{{partition = 'cloud-{name}', max_pilots = 1}}]\n"
            )
        };
        let text = pool("a", "gpu_type = 'a100'") + &pool("b", "gpu_type = 'h100'");
        let config = Config::parse(&text, Path::new("test")).unwrap();
        let of = |node: &Node, told: Option<&str>| {
            let told = told.map(PoolName::from);
            let place = place_of(node, told.as_ref(), &config)?;
            assert_eq!(config.pool.get(place.name), Some(place.pool));
            Some((place.name.to_string(), place.partition.to_owned()))
        };
        let is = |name: &str, partition: &str| Some((name.to_owned(), partition.to_owned()));
        assert_eq!(of(&node("gpu", "gpu:a100:4", "IDLE"), None), is("a", "gpu"));
        assert_eq!(of(&node("gpu", "gpu:h100:4", "IDLE"), None), is("b", "gpu"));
        let unknown = node("gpu", "", "IDLE");
        assert_eq!(of(&unknown, Some("b")), is("b", "gpu"), "by hopd's word");
        assert_eq!(of(&unknown, None), is("a", "gpu"));
        assert_eq!(of(&node("other", "gpu:a100:4", "IDLE"), None), None);
        let burst = |state| of(&node("cloud-b", "gpu:h100:1", state), None);
        assert_eq!(burst("IDLE+CLOUD"), is("b", "cloud-b"));
        assert_eq!(burst("IDLE+CLOUD+POWERED_DOWN"), None);
    }

    #[test]
    fn a_full_node_is_told_from_one_whose_step_fails() {
        assert!(has_no_room(
            "srun: error: Unable to allocate resources: Requested nodes are busy"
        ));
        assert!(!has_no_room("srun: error: n1: task 0: Exited with exit code 1"));
    }
}
