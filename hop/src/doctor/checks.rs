//! Conditions for a lease, and cures for each that fails. Pure: from facts to findings.

use super::Finding;
use super::facts::{Facts, NodeSeen, PluginSeen, Seen, SlurmSeen, log_dir};
use hop_api::config::{Config, Isolation, Pool};
use hop_handover::options::Options;
use hop_protocol::mount::Kind;
use hop_slurm::{Partition, Version};
use hop_words::id::UserName;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The oldest series on which leases were tried.
const OLDEST: (u16, u16) = (22, 5);
const CONFIG_MEND: &str = "Write it as docs/install.md shows; `hopd --check` reads it.";

/// Everything that one host can tell.
pub(crate) fn of_host(facts: &Facts) -> Vec<Finding> {
    let mut found = configuration(facts);
    found.push(munge(facts));
    found.extend(locks(facts));
    found.extend(stores(facts));
    let Ok(slurm) = &facts.slurm else {
        let said = facts.slurm.as_ref().err().cloned().unwrap_or_default();
        found.push(Finding::failed(
            "slurm",
            said,
            "Start slurmctld, and name slurm.conf by SLURM_CONF where it isn't /etc/slurm/slurm.conf.",
        ));
        return found;
    };
    found.push(version(slurm));
    found.extend(settings(slurm, facts.config.as_ref().ok()));
    found.extend(plugin(&facts.plugin, slurm, facts));
    found.extend(unread_gres(slurm));
    if let Ok(config) = &facts.config {
        found.extend(accounts(slurm, config));
        found.extend(
            config
                .pool
                .iter()
                .flat_map(|(name, pool)| partition(name.as_str(), pool, slurm)),
        );
        found.extend(seat_partition(slurm, config));
        found.extend(node(facts));
        found.extend(hopd_state(facts, config));
        found.extend(hopd(facts));
        found.extend(pilots(facts, config));
    }
    found
}

/// Findings on a node, for another host.
pub(crate) fn of_node(facts: &Facts) -> Vec<Finding> {
    let mut found = configuration(facts);
    found.push(munge(facts));
    found.extend(locks(facts));
    found.extend(stores(facts));
    if let Some(carried) = &facts.carried {
        found.push(match carried {
            Ok(()) => Finding::ok("munge-here", "a credential of the asking host is believed"),
            Err(why) => Finding::failed(
                "munge-here",
                format!("a credential of the asking host isn't believed: {why}"),
                "Install one munge.key on all hosts, restart munge, and keep the clocks together.",
            ),
        });
    }
    if let Ok(slurm) = &facts.slurm {
        found.extend(plugin(&facts.plugin, slurm, facts));
    }
    found.extend(node(facts));
    found.extend(hopd(facts).into_iter().take(1));
    found
}

fn configuration(facts: &Facts) -> Vec<Finding> {
    let path = facts.config_path.display();
    let config = match &facts.config {
        Ok(config) => config,
        Err(why) => return vec![Finding::failed("configuration", why.clone(), CONFIG_MEND)],
    };
    let readable = facts
        .config_file
        .as_ref()
        .is_some_and(|file| file.mode & 0o044 == 0o044);
    let mut found = vec![match (readable, config.pool.is_empty()) {
        (false, _) => Finding::failed(
            "configuration",
            format!("not everybody may read {path}: users' kernels do"),
            format!("chmod 644 {path}; it holds no secret."),
        ),
        (true, true) => Finding::failed(
            "configuration",
            format!("{path} has no pool"),
            "Add a table [pool.main]: docs/configuration.md.",
        ),
        (true, false) => Finding::ok("configuration", path.to_string()),
    }];
    let user = &config.service_user;
    found.push(match facts.service_uid {
        Some(uid) => Finding::ok("account", format!("{user} has uid {uid}")),
        None => Finding::failed(
            "account",
            format!("this host knows no user {user} (service_user)"),
            format!("systemd-sysusers, or useradd --system {user}, with the same uid on all hosts."),
        ),
    });
    found.push(programs(facts, config));
    found
}

fn programs(facts: &Facts, config: &Config) -> Finding {
    let prefix = config.prefix.display();
    let list = |names: Vec<&str>| names.join(", ");
    let missing: Vec<&str> = facts
        .installed
        .iter()
        .filter(|(_, seen)| seen.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    if !missing.is_empty() {
        return Finding::failed(
            "programs",
            format!("{prefix} lacks {}", list(missing)),
            format!("Install the packages on this host; prefix = \"{prefix}\" must be where they are."),
        );
    }
    let loose = |seen: &Option<Seen>| {
        seen.as_ref()
            .is_some_and(|seen| seen.uid != 0 || seen.mode & 0o022 != 0)
    };
    let theirs: Vec<&str> = facts
        .installed
        .iter()
        .filter(|(_, seen)| loose(seen))
        .map(|(name, _)| name.as_str())
        .collect();
    if !theirs.is_empty() {
        return Finding::failed(
            "programs",
            format!("others than root may change {}", list(theirs)),
            format!("chown -R root: {prefix}; chmod -R go-w {prefix}"),
        );
    }
    let closed = |seen: &Option<Seen>| seen.as_ref().is_some_and(|seen| seen.mode & 0o004 == 0);
    match facts.installed.values().any(closed) {
        true => Finding::failed(
            "programs",
            format!("users can't read all of {prefix}"),
            format!("chmod -R a+rX {prefix}"),
        ),
        false => Finding::ok("programs", prefix.to_string()),
    }
}

fn munge(facts: &Facts) -> Finding {
    match &facts.munge {
        Ok(()) => Finding::ok("munge", "a credential made here is believed here"),
        Err(why) => Finding::failed(
            "munge",
            why.clone(),
            "systemctl start munge; where its socket is elsewhere, set munge_socket in gresshopper.toml.",
        ),
    }
}

/// A kernel's front holds a lock in the user's home, as a sign of life for others.
fn locks(facts: &Facts) -> Option<Finding> {
    let home = facts.home.as_ref()?;
    let folder = home.folder.display();
    Some(match &home.lock {
        Ok(()) => Finding::ok("locks", format!("{folder} has file locks")),
        Err(why) => Finding::failed(
            "locks",
            format!(
                "{folder} ({}) has no file locks ({why}): a kernel is not found again if its server and its node are lost",
                home.kind.network().unwrap_or("a local disk")
            ),
            "Lustre: mount it with -o flock. NFSv3: start rpc-statd here and lockd on the server, or mount NFSv4.",
        ),
    })
}

/// A kernel whose site's store is missing on a host, or could be replaced by other users, runs there unsaved.
fn stores(facts: &Facts) -> Option<Finding> {
    const CHECK: &str = "store";
    let seat = &facts.config.as_ref().ok()?.seat;
    let above = seat.stores()?;
    let path = above.display();
    let Some(seen) = facts.stores.as_ref().filter(|seen| seen.is_dir) else {
        return Some(Finding::failed(
            CHECK,
            format!("{path} (seat.store) is no folder here: kernels are not saved"),
            "Mount its file system on all nodes and on the hosts of the Jupyter servers.",
        ));
    };
    let mode = seen.mode;
    // Elsewhere each store lies in a folder of its user's.
    Some(match seat.are_stores_side_by_side() {
        true if mode & 0o1002 == 0o002 => Finding::failed(
            CHECK,
            format!(
                "in {path} (seat.store) anybody may replace anybody's folder (mode {mode:o}): kernels are not saved"
            ),
            format!("chmod 1777 {path}, or name a folder within each user's own by seat.store."),
        ),
        true if mode & 0o003 != 0o003 => Finding::unknown(
            CHECK,
            format!(
                "users can't make folders in {path} (seat.store, mode {mode:o}): a kernel is saved only if the site has \
                 made its user's folder there, with mode 700"
            ),
        ),
        _ => Finding::ok(CHECK, format!("{path} is there")),
    })
}

fn version(slurm: &SlurmSeen) -> Finding {
    match slurm.version {
        Some(version) if version.series() < OLDEST => Finding::failed(
            "slurm",
            format!("slurmctld is {version}"),
            "Gresshopper needs Slurm 22.05 or later.",
        ),
        Some(version) => Finding::ok("slurm", format!("slurmctld {version} answers")),
        None => Finding::unknown("slurm", "slurmctld doesn't tell its version"),
    }
}

/// Required settings of slurm.conf and cgroup.conf: name of the check, setting, required value, reason.
const WANTED: [(&str, &str, &str, &str); 7] = [
    (
        "select-type",
        "SelectType",
        "select/cons_tres",
        "Slurm lends single GPUs by it",
    ),
    ("gres-types", "GresTypes", "gpu", "without it Slurm has no GPUs"),
    (
        "tres",
        "AccountingStorageTRES",
        "gres/gpu",
        "accounting and limits count GPUs by it",
    ),
    (
        "prolog-flags",
        "PrologFlags",
        "Contain",
        "a job's processes stay in its cgroup by it",
    ),
    (
        "proctrack",
        "ProctrackType",
        "proctrack/cgroup",
        "a step's processes are found by it",
    ),
    (
        "task-plugin",
        "TaskPlugin",
        "task/cgroup",
        "it keeps jobs away from devices that aren't theirs",
    ),
    (
        "constrain",
        "ConstrainDevices",
        "yes",
        "without it every process opens every GPU",
    ),
];

fn settings(slurm: &SlurmSeen, config: Option<&Config>) -> Vec<Finding> {
    let open = config.is_some_and(|config| {
        !config.pool.is_empty() && config.pool.values().all(|pool| pool.isolation == Isolation::None)
    });
    WANTED
        .iter()
        .filter(|(check, ..)| !(open && *check == "constrain"))
        .map(|(check, key, wanted, why)| {
            let value = slurm.settings.get(*key).map_or("nothing", String::as_str);
            let has = value
                .split(',')
                .any(|word| word.trim().eq_ignore_ascii_case(wanted));
            let file = if *key == "ConstrainDevices" {
                "cgroup.conf"
            } else {
                "slurm.conf"
            };
            match has {
                true => Finding::ok(check, format!("{key}={value}")),
                false => Finding::failed(
                    check,
                    format!("{key} is {value}, without {wanted}: {why}"),
                    format!("Set {key} to {wanted} in {file} and restart slurmctld and slurmd."),
                ),
            }
        })
        .collect()
}

fn plugin(seen: &PluginSeen, slurm: &SlurmSeen, facts: &Facts) -> Vec<Finding> {
    let plugstack = seen.plugstack.display();
    let prefix = facts
        .config
        .as_ref()
        .map_or_else(|_| "/opt/gresshopper".into(), |config| config.prefix.clone());
    let Some(line) = &seen.line else {
        return vec![Finding::failed(
            "plugstack",
            format!("{plugstack} has no line for gresshopper.so: no lease is handed over"),
            format!(
                "hop plugin install {plugstack} --plugin {}/lib/gresshopper.so",
                prefix.display()
            ),
        )];
    };
    let path = line.first().map(String::as_str).unwrap_or_default();
    let mut found = vec![arguments(line, facts, &seen.plugstack)];
    let Some(file) = &seen.file else {
        found.push(Finding::failed("plugin", format!("{path}, which {plugstack} names, isn't there: each srun says so"), "Install the plugin's package for this Slurm series on this host, or take the line out by `hop plugin remove`."));
        return found;
    };
    if file.uid != 0 || file.mode & 0o022 != 0 {
        found.push(Finding::failed(
            "plugin",
            format!("others than root may change {path}, which slurmstepd loads as root"),
            format!("chown root: {path}; chmod 755 {path}"),
        ));
        return found;
    }
    found.push(match (&seen.version, slurm.version) {
        (Err(why), _) => Finding::failed(
            "plugin",
            format!("{path}: {why}"),
            "Install the plugin's package for this Slurm series.",
        ),
        (Ok(Some(built)), Some(runs)) if built.series() != runs.series() => Finding::failed(
            "plugin",
            format!(
                "{path} is built for Slurm {}, and this is {runs}: Slurm doesn't load it",
                series(*built)
            ),
            format!("Install the plugin's package for Slurm {}.", series(runs)),
        ),
        (Ok(built), _) => Finding::ok(
            "plugin",
            built.map_or(path.to_owned(), |built| {
                format!("{path}, for Slurm {}", series(built))
            }),
        ),
    });
    found
}

fn series(version: Version) -> String {
    let (major, minor) = version.series();
    format!("{major}.{minor:02}")
}

/// The line's arguments say the same as gresshopper.toml.
fn arguments(line: &[String], facts: &Facts, plugstack: &Path) -> Finding {
    let mend = "Write the line anew by `hop plugin install`, with what gresshopper.toml says.";
    let options = match Options::parse(line.iter().skip(1).map(String::as_str)) {
        Ok(options) => options,
        Err(error) => return Finding::failed("plugstack", error.to_string(), mend),
    };
    let Ok(config) = &facts.config else {
        return Finding::unknown(
            "plugstack",
            "its arguments can't be held to the configuration yet",
        );
    };
    let by_uid = facts
        .service_uid
        .is_some_and(|uid| options.service_user == uid.to_string());
    if options.service_user != config.service_user.as_str() && !by_uid {
        return Finding::failed(
            "plugstack",
            format!(
                "the plugin believes tokens of {}, and gresshopper.toml says service_user = \"{}\"",
                options.service_user, config.service_user
            ),
            mend,
        );
    }
    if options.agent_dir != config.agent.state_dir {
        return Finding::failed(
            "plugstack",
            format!(
                "the plugin looks for agents in {}, and gresshopper.toml says agent.state_dir = \"{}\"",
                options.agent_dir.display(),
                config.agent.state_dir.display()
            ),
            mend,
        );
    }
    Finding::ok("plugstack", plugstack.display().to_string())
}

/// Each unreadable GRES of Slurm's, with the first node that has the GRES.
fn unread_gres(slurm: &SlurmSeen) -> Vec<Finding> {
    let mut unread = BTreeMap::new();
    for node in &slurm.nodes {
        for gres in &node.gres_unread {
            unread.entry(gres).or_insert(&node.name);
        }
    }
    let says = |(gres, node)| format!("{gres:?} of {node} can't be read, and counts for nothing");
    unread
        .into_iter()
        .map(|row| Finding::unknown("gres", says(row)))
        .collect()
}

fn accounts(slurm: &SlurmSeen, config: &Config) -> Vec<Finding> {
    let user = &config.service_user;
    let storage = slurm
        .settings
        .get("AccountingStorageType")
        .map_or("", String::as_str);
    if !storage.ends_with("slurmdbd") {
        return vec![Finding::failed(
            "slurmdbd",
            "Slurm keeps no accounting in slurmdbd: no limit and no fair share is known",
            "Set AccountingStorageType=accounting_storage/slurmdbd.",
        )];
    }
    let associations = match &slurm.associations {
        Ok(associations) => associations,
        Err(why) => {
            return vec![Finding::failed(
                "slurmdbd",
                why.clone(),
                "Start slurmdbd; limits known last hold meanwhile.",
            )];
        }
    };
    let mut found = vec![Finding::ok("slurmdbd", "it answers"), private_data(slurm, user)];
    for (name, pool) in &config.pool {
        let is_ours = |row: &&hop_slurm::Association| {
            row.user.as_ref() == Some(user)
                && pool.account.as_ref().is_none_or(|wanted| *wanted == row.account)
        };
        let account = pool
            .account
            .as_ref()
            .map_or_else(|| "its default account".to_owned(), ToString::to_string);
        found.push(match associations.iter().find(is_ours) {
            Some(_) => Finding::ok(
                "association",
                format!("{user} may charge {account} (pool {name})"),
            ),
            None => Finding::failed(
                "association",
                format!("{user} has no association in {account}: Slurm refuses the pilots of pool {name}"),
                format!("sacctmgr add account {account}; sacctmgr add user {user} account={account}"),
            ),
        });
    }
    found
}

/// Whether hopd sees what it decides by.
fn private_data(slurm: &SlurmSeen, user: &UserName) -> Finding {
    const CHECK: &str = "private-data";
    let words = match &slurm.hidden {
        Ok(words) if words.is_empty() => {
            return Finding::ok(CHECK, format!("Slurm hides nothing from {user}"));
        }
        Ok(words) => words,
        Err(why) => return Finding::unknown(CHECK, why.clone()),
    };
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    let unknown = if has(&["jobs"]) {
        "whose job a kernel runs in, and lends it nothing"
    } else if has(&["nodes", "partitions"]) {
        "what there is to lend"
    } else {
        "users' limits and shares"
    };
    Finding::failed(
        CHECK,
        format!(
            "PrivateData={} hides them from {user}: hopd doesn't know {unknown}",
            words.join(",")
        ),
        format!("sacctmgr -i modify user {user} set adminlevel=Operator"),
    )
}

fn partition(name: &str, pool: &Pool, slurm: &SlurmSeen) -> Vec<Finding> {
    let Some(partition) = slurm
        .partitions
        .iter()
        .find(|partition| partition.name == pool.partition)
    else {
        return vec![Finding::failed(
            "partition",
            format!("Slurm has no partition {} (pool {name})", pool.partition),
            "Make it in slurm.conf, or name another in gresshopper.toml.",
        )];
    };
    let mut found = Vec::new();
    if partition.may_suspend() && pool.isolation == Isolation::Devices {
        found.push(Finding::failed(
            "partition",
            format!(
                "jobs of {} may be suspended: the GPUs of a suspended job are not its own",
                partition.name
            ),
            "Use a partition without PreemptMode=SUSPEND, GANG and OverSubscribe=FORCE.",
        ));
    }
    if partition.state != "UP" {
        found.push(Finding::failed(
            "partition",
            format!("partition {} is {}", partition.name, partition.state),
            format!("scontrol update PartitionName={} State=UP", partition.name),
        ));
    }
    let gpu_type = pool.gpu_type.as_deref();
    let most = |node: &hop_slurm::Node| hop_slurm::gres::gpus_of(&node.gres, gpu_type);
    let there = slurm
        .nodes
        .iter()
        .filter(|node| partition.nodes.contains(&node.name))
        .map(most)
        .max();
    if there.is_some_and(|most| most < u64::from(pool.gpus_per_pilot)) {
        let most = there.unwrap_or_default();
        let of_type = gpu_type.map_or_else(String::new, |t| format!(" of type {t}"));
        found.push(Finding::failed(
            "partition",
            format!(
                "pool {name} asks for {} GPUs{of_type} on a node, and no node of {} has more than {most}",
                pool.gpus_per_pilot, partition.name
            ),
            "Set Gres=gpu:N for the nodes in slurm.conf, or lower gpus_per_pilot.",
        ));
    }
    found.extend(whole_cores(name, pool, partition, slurm));
    if found.is_empty() {
        found.push(Finding::ok(
            "partition",
            format!("{} for pool {name}", partition.name),
        ));
    }
    found
}

/// A step has whole cores: where a core has several CPUs, each lease's CPUs are rounded up.
fn whole_cores(name: &str, pool: &Pool, partition: &Partition, slurm: &SlurmSeen) -> Option<Finding> {
    let there = slurm
        .nodes
        .iter()
        .filter(|node| partition.nodes.contains(&node.name));
    let threads = there.map(|node| node.threads_per_core).max()?.max(1);
    let rounded = |cpus: u16| u32::from(cpus.div_ceil(threads)) * u32::from(threads);
    let gpus = u32::from(pool.gpus_per_pilot);
    let (taken, all) = (gpus * rounded(pool.cpus_for(1)), rounded(pool.cpus_per_pilot));
    (taken > all).then(|| {
        Finding::failed(
            "partition",
            format!(
                "cores of {} have {threads} CPUs, and Slurm gives a lease whole cores: \
                 {gpus} leases of one GPU take {taken} CPUs, and a pilot has {all}",
                partition.name
            ),
            format!(
                "Set cpus_per_pilot of pool {name} to {taken}, or to another multiple of {}.",
                gpus * u32::from(threads)
            ),
        )
    })
}

/// Whether users' seats can be on the pilots' nodes.
fn seat_partition(slurm: &SlurmSeen, config: &Config) -> Vec<Finding> {
    let name = &config.seat.partition;
    let find = |name: &String| slurm.partitions.iter().find(|partition| partition.name == *name);
    let Some(seats) = find(name) else {
        return vec![Finding::failed(
            "seats",
            format!("Slurm has no partition {name}, where kernels' seats are to run"),
            "Name one in gresshopper.toml: [seat] partition.",
        )];
    };
    let mut found = Vec::new();
    let pools = config.pool.values().map(|pool| &pool.partition);
    let bursts = config
        .pool
        .values()
        .flat_map(|pool| &pool.burst)
        .map(|b| &b.partition);
    let names: BTreeSet<&String> = pools.chain(bursts).chain([name]).collect();
    for partition in names.into_iter().filter_map(find) {
        if let Some(setting) = partition.gives_whole_nodes() {
            found.push(Finding::failed(
                "seats",
                format!(
                    "partition {} has {setting}: no user's seat can be beside a pilot",
                    partition.name
                ),
                "Use partitions without it for pools and seats.",
            ));
        }
    }
    for (pool_name, pool) in &config.pool {
        let Some(own) = find(&pool.partition).filter(|own| !own.nodes.is_empty()) else {
            continue;
        };
        if !seats.nodes.iter().any(|node| own.nodes.contains(node)) {
            found.push(Finding::failed(
                "seats",
                format!(
                    "partition {name} of the seats has no node of {}: kernels can't reach the GPUs of pool {pool_name}",
                    own.name
                ),
                "Name a partition with the pool's nodes in gresshopper.toml: [seat] partition.",
            ));
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("seats", format!("{name} for kernels' seats")));
    }
    found
}

fn node(facts: &Facts) -> Vec<Finding> {
    match (&facts.node, &facts.asked_node, &facts.slurm) {
        (Some(node), ..) => node_itself(node, facts),
        (None, Some(name), Ok(_)) => vec![Finding::failed(
            "node",
            format!("Slurm knows no node {name}"),
            "`sinfo -N` lists the names.",
        )],
        // The service host, a login node, or Slurm is away.
        _ => Vec::new(),
    }
}

fn node_itself(node: &NodeSeen, facts: &Facts) -> Vec<Finding> {
    vec![devices(node), agent_state(node, facts), seat_log(node, facts)]
}

fn devices(node: &NodeSeen) -> Finding {
    let name = &node.name;
    let devices = match &node.devices {
        Ok(devices) => devices,
        Err(why) if node.gpus > 0 => {
            return Finding::failed(
                "gres",
                why.clone(),
                "Write gres.conf beside slurm.conf, with a File= for each GPU, or AutoDetect=nvml.",
            );
        }
        Err(_) => return Finding::ok("gres", format!("{name} has no GPU")),
    };
    let lost: Vec<String> = devices
        .iter()
        .filter(|(_, there)| !there)
        .map(|(path, _)| path.display().to_string())
        .collect();
    if !lost.is_empty() {
        return Finding::failed(
            "gres",
            format!("gres.conf names {}, which {name} doesn't have", lost.join(", ")),
            "Load the driver (nvidia-smi makes the device files), or mend gres.conf.",
        );
    }
    if node.several_files {
        return Finding::failed(
            "gres",
            format!("gres.conf gives each GPU several files (MIG) on {name}: such GPUs can't be lent"),
            "Keep nodes with MultipleFiles out of the pools' partitions, or switch MIG off there.",
        );
    }
    let named = devices.len() as u64;
    match !node.autodetect && named < node.gpus {
        true => Finding::failed(
            "gres",
            format!(
                "Slurm has {} GPUs on {name}, and gres.conf names {named} device files",
                node.gpus
            ),
            "Give each GPU its File= in gres.conf: the plugin hands device files over.",
        ),
        false => Finding::ok("gres", format!("{} GPUs on {name}", node.gpus)),
    }
}

fn agent_state(node: &NodeSeen, facts: &Facts) -> Finding {
    let Ok(config) = &facts.config else {
        return Finding::unknown("agent-state", "no configuration says where it is");
    };
    let path = &config.agent.state_dir;
    folder("agent-state", path, node.state_dir.as_ref(), facts, false)
        .unwrap_or_else(|| Finding::ok("agent-state", path.display().to_string()))
}

/// A seat passes an unfit folder over, and a kernel without any has one replica: only the site can mend it.
fn seat_log(node: &NodeSeen, facts: &Facts) -> Finding {
    const CHECK: &str = "seat-log";
    let Ok(config) = &facts.config else {
        return Finding::unknown(CHECK, "no configuration says where it is");
    };
    let path = log_dir(config).display();
    let mend = format!("install -d -m 1777 {path}, on a local disk, or set seat.log_dir.");
    let wrong = match &node.log_dir {
        Some(seen) if seen.is_dir => match (seen.kind, seen.mode) {
            (Kind::Network(kind), _) => format!("{path} is on {kind}: seats don't keep their logs there"),
            (_, mode) if mode & 0o003 != 0o003 => format!("users can't write in {path} (mode {mode:o})"),
            (_, mode) if mode & 0o1000 == 0 => {
                format!("in {path} anybody may remove anybody's files (mode {mode:o}): seats don't use it")
            }
            (Kind::Memory, _) => return Finding::ok(CHECK, format!("{path}, in memory")),
            (Kind::Local, _) => return Finding::ok(CHECK, path.to_string()),
        },
        _ => format!("{path} is no folder here"),
    };
    Finding::failed(CHECK, wrong, mend)
}

/// Only the host that has the folder can be `hopd`'s.
fn hopd_state(facts: &Facts, config: &Config) -> Option<Finding> {
    facts.hopd_state.as_ref()?;
    let path = &config.hopd.state_dir;
    let wrong = folder("hopd-state", path, facts.hopd_state.as_ref(), facts, true);
    Some(wrong.unwrap_or_else(|| Finding::ok("hopd-state", path.display().to_string())))
}

fn folder(check: &str, path: &Path, seen: Option<&Seen>, facts: &Facts, private: bool) -> Option<Finding> {
    let path = path.display();
    let user = facts.config.as_ref().map_or_else(
        |_| "gresshopper".to_owned(),
        |config| config.service_user.to_string(),
    );
    let mode = if private { "700" } else { "755" };
    let mend = format!("install -d -o {user} -m {mode} {path}, on a local disk.");
    let seen = match seen {
        Some(seen) if seen.is_dir => seen,
        _ => return Some(Finding::failed(check, format!("{path} is no folder here"), mend)),
    };
    if facts.service_uid.is_some_and(|uid| uid != seen.uid) {
        return Some(Finding::failed(
            check,
            format!("{path} belongs to uid {}, not to {user}", seen.uid),
            mend,
        ));
    }
    let others = if private { 0o077 } else { 0o022 };
    if seen.mode & others != 0 {
        return Some(Finding::failed(
            check,
            format!("{path} is open to others (mode {:o})", seen.mode),
            mend,
        ));
    }
    seen.kind.network().map(|kind| {
        Finding::failed(
            check,
            format!("{path} is on {kind}: its locks and sockets must be local"),
            mend,
        )
    })
}

fn hopd(facts: &Facts) -> Vec<Finding> {
    let report = match &facts.hopd {
        Ok(report) => report,
        Err(why) => {
            return vec![Finding::failed(
                "hopd",
                why.clone(),
                "systemctl start hopd on the service host; open hopd.listen's port, and name it in hopd.connect.",
            )];
        }
    };
    let own = env!("CARGO_PKG_VERSION");
    let mut found = vec![match report.version == own {
        true => Finding::ok("hopd", format!("{own} answers")),
        false => Finding::failed(
            "hopd",
            format!("hopd is {}, and this host's hop is {own}", report.version),
            "Install one release everywhere and restart hopd.",
        ),
    }];
    for problem in &report.problems {
        found.push(Finding::failed(
            "hopd-says",
            problem.clone(),
            "See docs/operations.md, \"What happens when\".",
        ));
    }
    found
}

fn pilots(facts: &Facts, config: &Config) -> Vec<Finding> {
    let Ok(report) = &facts.hopd else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (name, pool) in &config.pool {
        let up = report
            .nodes
            .iter()
            .filter(|row| row.pool == *name && row.state == "UP")
            .count();
        found.push(match up as u64 >= u64::from(pool.min_pilots) {
            true => Finding::ok("pilots", format!("{up} up in pool {name}")),
            false => Finding::failed(
                "pilots",
                format!("{up} of {} pilots are up in pool {name}", pool.min_pilots),
                format!(
                    "`squeue -u {}` has Slurm's reason; a pilot's log is in agent.state_dir on its node.",
                    config.service_user
                ),
            ),
        });
    }
    for row in report.nodes.iter().filter(|row| row.gpus_blocked > 0) {
        found.push(Finding::failed(
            "blocked",
            format!(
                "{} GPUs of {} can't be lent: {}",
                row.gpus_blocked, row.node, row.reason
            ),
            "End the process that it names, then `hop release` the node.",
        ));
    }
    found
}

#[cfg(test)]
mod tests;
