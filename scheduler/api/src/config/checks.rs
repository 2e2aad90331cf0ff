//! Refuses settings of a site that have the right type and make no sense.

use super::{Config, Hopd, Linger, MOST_GPUS, Pool, Quantum, Quota, Scale, Seat, USER};
use hop_words::net::PortRange;
use hop_words::time::Span;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Component, Path};

/// Idle GPU-seconds that no wait is worth.
const MOST_PER_WAIT: f64 = 1e12;
/// Longest grace that the plugin accepts (`slurm-plugin/handover`).
const MAX_GRACE_MS: u64 = 30_000;
/// Least memory of a process or a pilot, in MiB: an agent or an interpreter takes as much.
const LEAST_MEM_MIB: u64 = 64;
/// The longest name of a user, an account, a partition or a type.
const MOST_LETTERS: usize = 255;
/// Most memory of a process, a pilot or a GPU, in MiB.
const MOST_MEM_MIB: u64 = 1 << 40;
/// The longest linger, in milliseconds: ten years.
const MOST_LINGER_MS: u64 = 10 * 366 * 86_400_000;
/// The largest share of spare GPUs, of those that are leased.
const MOST_SPARE_SHARE: f64 = 1000.0;
/// The highest price of a GPU-hour, in any currency.
const MOST_PRICE: f64 = 1e12;

/// The longest time limit of a job, in minutes: ten years.
const MOST_MINUTES: u32 = 10 * 366 * 1440;
/// The longest time before a job's end, in seconds: a month.
const MOST_BEFORE_S: u32 = 31 * 86_400;
/// Most pilots of a pool, more than any site has nodes.
const MOST_PILOTS: u32 = 100_000;
/// Most spare interpreters in a seat, each of some 100 MB.
const MOST_SPARES: u32 = 64;
/// The largest quota of a user's.
const MOST_OF_QUOTA: usize = 1_000_000;

/// A key, and the reason against its value.
type Wrong = (String, String);

fn wrong<T>(key: &str, reason: &str) -> Result<T, Wrong> {
    Err((key.to_owned(), reason.to_owned()))
}

fn check_range<T: PartialOrd + Display>(
    key: &str,
    value: T,
    allowed: RangeInclusive<T>,
) -> Result<(), Wrong> {
    match allowed.contains(&value) {
        true => Ok(()),
        false => wrong(
            key,
            &format!("{value} is not from {} to {}", allowed.start(), allowed.end()),
        ),
    }
}

impl Config {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        if ["root", "0"].contains(&self.service_user.as_str()) {
            return wrong("service_user", "it must be an account of its own, not root");
        }
        check_user("service_user", self.service_user.as_str())?;
        for operator in &self.operators {
            check_user("operators", operator.as_str())?;
        }
        check_once("operators", self.operators.iter())?;
        if self
            .port_range
            .is_some_and(|PortRange(first, last)| first < 1024 || last < first)
        {
            return wrong("port_range", "the first and the last port, from 1024 on");
        }
        if self.hopd.connect.is_empty() {
            return wrong("hopd.connect", "at least one address is needed");
        }
        check_address("hopd.listen", &self.hopd.listen)?;
        for address in &self.hopd.connect {
            let host = check_address("hopd.connect", address)?;
            if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) {
                return wrong(
                    "hopd.connect",
                    &format!("nobody can connect to {address}: name hopd's host"),
                );
            }
        }
        check_once("hopd.connect", self.hopd.connect.iter())?;
        if let Some(url) = &self.jupyterhub_url {
            check_url("jupyterhub_url", url)?;
        }
        self.seat.check()?;
        self.hopd.check()?;
        self.quota.check()?;
        check_range("agent.start_timeout_s", self.agent.start_timeout_s, 1..=3600)?;
        for (key, path) in [
            ("prefix", Some(&self.prefix)),
            ("hopd.state_dir", Some(&self.hopd.state_dir)),
            ("agent.state_dir", Some(&self.agent.state_dir)),
            ("munge_socket", self.munge_socket.as_ref()),
            ("jupyter_python", self.jupyter_python.as_ref()),
            ("seat.log_dir", self.seat.log_dir.as_ref()),
        ] {
            path.map_or(Ok(()), |path| check_path(key, path))?;
        }
        for (key, path) in [
            ("hopd.state_dir", &self.hopd.state_dir),
            ("agent.state_dir", &self.agent.state_dir),
        ] {
            if path.parent().is_none() {
                return wrong(key, "a folder of its own is needed, not the root");
            }
        }
        if self.agent.state_dir == self.hopd.state_dir {
            return wrong(
                "agent.state_dir",
                "it is hopd.state_dir: each needs a folder of its own",
            );
        }
        for (name, pool) in &self.pool {
            check_pool_name(name.as_str())?;
            pool.check()
                .map_err(|(key, reason)| (format!("pool.{name}.{key}"), reason))?;
        }
        Ok(())
    }
}

impl Config {
    /// What may be meant, but has no effect or a strange one, in sentences.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let listens = self
            .hopd
            .listen
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        if let (Some(PortRange(first, last)), Some(port)) = (self.port_range, listens)
            && (first..=last).contains(&port)
        {
            doubts.push(format!(
                "A front on hopd's host may take hopd's port {port}: it is in port_range."
            ));
        }
        for (name, pool) in &self.pool {
            if pool.max_pilots == 0 {
                doubts.push(format!("Pool {name} lends nothing: its max_pilots is 0."));
            }
            if pool.linger_ms.is_some() && pool.linger != Linger::default() {
                doubts.push(format!(
                    "Pool {name} has linger_ms, so its table linger has no effect."
                ));
            }
            let first = self.pool.iter().find(|(_, other)| other.overlaps(pool));
            if let Some((first, _)) = first.filter(|(first, _)| *first < name) {
                doubts.push(format!(
                    "Pool {name} is not lent: its pilots could go to the nodes of pool {first}. Give each a partition or \
                     a gpu_type of its own."
                ));
            }
        }
        doubts
    }
}

impl Hopd {
    fn check(&self) -> Result<(), Wrong> {
        check_range("hopd.grace_s", self.grace_s, 1..=3600)?;
        check_range("hopd.poll_s", self.poll_s, 1..=3600)?;
        check_range("hopd.refresh_s", self.refresh_s, 1..=86_400)?;
        // A hundred years.
        check_range("hopd.accounting_days", self.accounting_days, 0..=36_600)
    }
}

impl Quota {
    fn check(&self) -> Result<(), Wrong> {
        check_range("quota.connections", self.connections, 1..=MOST_OF_QUOTA)?;
        check_range("quota.kernels", self.kernels, 1..=MOST_OF_QUOTA)?;
        check_range("quota.asleep", self.asleep, 0..=MOST_OF_QUOTA)?;
        check_range("quota.cells", self.cells, 1..=MOST_OF_QUOTA)?;
        check_range(
            "quota.messages_per_s",
            self.messages_per_s as usize,
            1..=MOST_OF_QUOTA,
        )
    }
}

impl Seat {
    fn check(&self) -> Result<(), Wrong> {
        check_word("seat.partition", &self.partition)?;
        check_range("seat.time_limit_min", self.time_limit_min, 0..=MOST_MINUTES)?;
        check_range("seat.replace_before_s", self.replace_before_s, 0..=MOST_BEFORE_S)?;
        check_range("seat.spares", self.spares, 0..=MOST_SPARES)?;
        check_range("seat.mem_mib", self.mem_mib, LEAST_MEM_MIB..=MOST_MEM_MIB)?;
        check_range("seat.cpus", self.cpus, 1..=u16::MAX)?;
        // The usual kernel must be able to start.
        if let Some(most) = self.most_mem_mib {
            check_range("seat.most_mem_mib", most, self.mem_mib..=MOST_MEM_MIB)?;
        }
        if let Some(most) = self.most_cpus {
            check_range("seat.most_cpus", most, self.cpus..=u16::MAX)?;
        }
        self.store.as_deref().map_or(Ok(()), check_store)
    }
}

/// Users' variables must never lie in one folder for all.
fn check_store(text: &str) -> Result<(), Wrong> {
    let path = Path::new(text);
    let up = path.components().any(|part| part == Component::ParentDir);
    let reason = if !path.is_absolute() {
        "an absolute path is needed"
    } else if !text.contains(USER) {
        "each user needs a folder of their own: name it with {user}"
    } else if text.replace(USER, "").contains(['{', '}']) {
        "{user} is the user's name, and no other braces are known"
    } else if text.contains(['$', '~']) {
        "no variable is replaced but {user}"
    } else if text.contains(char::is_control) {
        "it has a control character"
    } else if up {
        "it may not have \"..\""
    } else {
        return Ok(());
    };
    wrong("seat.store", reason)
}

/// The name stands in the names of Slurm's jobs.
fn check_pool_name(name: &str) -> Result<(), Wrong> {
    check_word("pool", name).map_err(|(key, _)| (key, format!("a name is needed, not {name:?}")))
}

/// Returns the host.
fn check_address<'a>(key: &str, text: &'a str) -> Result<&'a str, Wrong> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let of_name = |c: char| c.is_alphanumeric() || "-._".contains(c);
    let is_host = match bare {
        Some(v6) => v6.parse::<Ipv6Addr>().is_ok(),
        None if host.chars().all(|c| c.is_ascii_digit() || c == '.') => host.parse::<Ipv4Addr>().is_ok(),
        None => host.chars().all(of_name) && has_letters_of_name(host),
    };
    match port.parse::<u16>() {
        Ok(1..) if is_host => Ok(bare.unwrap_or(host)),
        _ => wrong(key, &format!("an address HOST:PORT is needed, not {text:?}")),
    }
}

/// Whether a name begins as no option does, and is neither empty nor endless.
fn has_letters_of_name(name: &str) -> bool {
    (1..=MOST_LETTERS).contains(&name.len()) && !name.starts_with('-')
}

/// Refuses white space, control characters and the `foreign` ones.
fn check_name(key: &str, what: &str, foreign: &str, name: &str) -> Result<(), Wrong> {
    let is_foreign = |c: char| c.is_whitespace() || c.is_control() || foreign.contains(c);
    match name.contains(is_foreign) || !has_letters_of_name(name) {
        true => wrong(key, &format!("{what} is needed, not {name:?}")),
        false => Ok(()),
    }
}

fn check_user(key: &str, name: &str) -> Result<(), Wrong> {
    check_name(key, "a user's name", ",:;/*'\"", name)
}

fn check_once<'a, T: Ord + Display + 'a>(key: &str, names: impl Iterator<Item = &'a T>) -> Result<(), Wrong> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return wrong(key, &format!("{name} is named twice"));
        }
    }
    Ok(())
}

fn check_path(key: &str, path: &Path) -> Result<(), Wrong> {
    if !path.is_absolute() {
        return wrong(key, "an absolute path is needed");
    }
    match path.to_string_lossy().contains(char::is_control) {
        true => wrong(key, "it has a control character"),
        false => Ok(()),
    }
}

fn check_url(key: &str, text: &str) -> Result<(), Wrong> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(rest)
            if !rest.starts_with(['/', ':'])
                && !rest.is_empty()
                && !text.contains(|c: char| c.is_whitespace() || c.is_control()) =>
        {
            Ok(())
        }
        _ => wrong(key, &format!("an address https://HOST is needed, not {text:?}")),
    }
}

/// A name of Slurm's: none of the characters that divide Slurm's lists, and none that a shell or Slurm's tables add.
fn check_word(key: &str, text: &str) -> Result<(), Wrong> {
    check_name(key, "one name of Slurm's", ",:;=|*()/\\'\"", text)
}

impl Pool {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        check_word("partition", &self.partition)?;
        if let Some(account) = &self.account {
            check_word("account", account.as_str())?;
        }
        if let Some(gpu_type) = &self.gpu_type {
            check_word("gpu_type", gpu_type)?;
        }
        self.check_bounds()?;
        if self.time_limit_min > 0
            && u64::from(self.time_limit_min) * 60 < 2 * u64::from(self.rotate_before_s)
        {
            let reason = format!(
                "time_limit_min, {}, must be at least twice this",
                self.time_limit_min
            );
            return wrong("rotate_before_s", &reason);
        }
        if self.gpus_per_pilot > MOST_GPUS {
            return wrong("gpus_per_pilot", &format!("at most {MOST_GPUS}"));
        }
        if self.cpus_per_pilot < self.gpus_per_pilot.max(1) {
            return wrong("cpus_per_pilot", "each GPU is lent with at least one core");
        }
        if self.grace_ms > MAX_GRACE_MS {
            let reason = format!(
                "at most {MAX_GRACE_MS}: the plugin doesn't wait longer, since Slurm drains a node for it"
            );
            return wrong("grace_ms", &reason);
        }
        if let Some(quantum) = &self.quantum {
            check_quantum(quantum)?;
        }
        if self.linger.most < self.linger.least {
            return wrong("linger", "most_s is less than least_s");
        }
        if let Some(burst) = self
            .burst
            .iter()
            .find(|b| b.partition == self.partition || b.max_pilots == 0)
        {
            let reason = format!(
                "burst partition {} must be another and have pilots",
                burst.partition
            );
            return wrong("burst", &reason);
        }
        if !self.burst.is_empty() && self.scale.is_none() {
            return wrong(
                "burst",
                "pilots there follow demand: the pool needs a table `scale`",
            );
        }
        if let Some(scale) = &self.scale {
            check_scale(scale)?;
        }
        if self.max_pilots < self.min_pilots {
            return wrong("max_pilots", "it is less than min_pilots");
        }
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), Wrong> {
        for burst in &self.burst {
            check_word("burst.partition", &burst.partition)?;
            check_range("burst.price", burst.price, 0.0..=MOST_PRICE)?;
            check_range("burst.max_pilots", burst.max_pilots, 0..=MOST_PILOTS)?;
        }
        check_once("burst", self.burst.iter().map(|burst| &burst.partition))?;
        // 0 is Slurm's default.
        if self.mem_mib != 0 {
            check_range("mem_mib", self.mem_mib, LEAST_MEM_MIB..=MOST_MEM_MIB)?;
        }
        check_range("gpu_mem_mib", self.gpu_mem_mib, 0..=MOST_MEM_MIB)?;
        check_range("max_pilots", self.max_pilots, 0..=MOST_PILOTS)?;
        check_range("time_limit_min", self.time_limit_min, 0..=MOST_MINUTES)?;
        check_range("rotate_before_s", self.rotate_before_s, 0..=MOST_BEFORE_S)?;
        self.linger_ms
            .map_or(Ok(()), |ms| check_range("linger_ms", ms, 0..=MOST_LINGER_MS))
    }

    /// Whether pilots of both could go to the same GPUs, by their configuration.
    fn overlaps(&self, other: &Self) -> bool {
        let kinds = (&self.gpu_type, &other.gpu_type);
        let apart = matches!(kinds, (Some(one), Some(two)) if one != two);
        self.partition == other.partition && !apart
    }
}

fn check_scale(scale: &Scale) -> Result<(), Wrong> {
    if scale.idle_max < scale.idle_min {
        return wrong("scale", "idle_max_s is less than idle_min_s");
    }
    check_range("scale.immediate", scale.immediate, 0.0..=1.0)?;
    check_range("scale.most_per_wait", scale.most_per_wait, 0.0..=MOST_PER_WAIT)?;
    check_range("scale.too_small", scale.too_small, 0.0..=1.0)?;
    check_range("scale.spares", scale.spares, 0..=MOST_PILOTS)?;
    check_range("scale.spare_nodes", scale.spare_nodes, 0..=MOST_PILOTS)?;
    check_range("scale.spare_share", scale.spare_share, 0.0..=MOST_SPARE_SHARE)
}

fn check_quantum(quantum: &Quantum) -> Result<(), Wrong> {
    if quantum.is_off() {
        let reason = "it names no class: set interactive_s, batch_s or deadline_s, or leave the table out";
        return Err(("quantum".into(), reason.into()));
    }
    match quantum.classes().find(|(_, span)| *span < Span::from_secs(1)) {
        Some((class, _)) => Err((
            format!("quantum.{}_s", class.name()),
            "at least one second; leave the key out to let these cells run to their end".into(),
        )),
        None => Ok(()),
    }
}
