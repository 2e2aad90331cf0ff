//! The cluster that is simulated: nodes, latencies, and the knobs of our own policy.

use crate::rng::Rng;
use crate::trace::Trace;
use hop_core::config::{Linger, Migrate, Quantum, Scale, duration};
use hop_words::time::Span;
use serde::{Deserialize, Serialize};

/// A cluster, as a TOML file describes it. Every field has a default; `nodes = 0` means as many as reservation
/// needs for the trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    pub nodes: u32,
    pub gpus_per_node: u16,
    pub cpus_per_node: u16,
    /// Host memory of a node that may hold parked GPU memory, in GB.
    pub mem_gb_per_node: f64,
    /// Replicas of each kernel.
    pub replicas: u16,
    pub people: People,
    pub latency: Latencies,
    pub policy: Knobs,
    /// Minutes without a cell after which `idle-cull` ends a session.
    pub idle_cull_min: u64,
    /// Containers that `warm-pool` keeps ready on each node.
    pub warm_per_node: u16,
    /// Nodes that boot on demand and cost money, for `ours` alone; the cheapest first.
    pub burst: Vec<BurstNodes>,
    /// Jobs of other users that fill the GPUs without pilots, for `ours` alone. `None` means that nobody else wants the
    /// nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchQueue>,
}

/// A batch queue that never runs empty, on the pool's own nodes. Pilots go before its jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchQueue {
    /// GPUs of each job.
    pub gpus: u16,
    /// How long a job runs; seconds.
    pub run: Dist,
    /// Time for which GPUs are free before a job starts on them.
    #[serde(rename = "starts_after_s", with = "duration")]
    pub starts_after: Span,
    /// Time for a job to leave, once a pilot wants its GPUs. `None` means that jobs aren't stopped.
    #[serde(
        rename = "yields_s",
        with = "duration::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub yields: Option<Span>,
    /// A stopped job has to do again at most so much. `None` means all.
    #[serde(
        rename = "checkpoint_s",
        with = "duration::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub checkpoint: Option<Span>,
}

impl BatchQueue {
    fn in_range(&self, gpus_per_node: u16) -> Result<(), ClusterError> {
        let bad = |what, value, must| Err(ClusterError::Range { what, value, must });
        if self.gpus == 0 || self.gpus > gpus_per_node {
            return bad("batch.gpus", self.gpus.into(), "from 1 to gpus_per_node");
        }
        for value in [self.run.p50, self.run.p99] {
            // Shorter jobs would make up the whole simulation.
            if !(60.0..=864_000.0).contains(&value) {
                return bad("batch.run", value, "from 60 to 864000");
            }
        }
        let spans = [
            ("batch.starts_after_s", Some(self.starts_after)),
            ("batch.yields_s", self.yields),
            ("batch.checkpoint_s", self.checkpoint),
        ];
        for (what, span) in spans {
            let value = span.unwrap_or_default().as_secs_f64();
            if !(0.0..=86_400.0).contains(&value) {
                return bad(what, value, "from 0 to 86400");
            }
        }
        Ok(())
    }
}

impl Default for BatchQueue {
    fn default() -> Self {
        Self {
            gpus: 1,
            run: Dist::new(3600.0, 43_200.0),
            starts_after: Span::from_secs(30),
            yields: None,
            checkpoint: None,
        }
    }
}

/// A partition of nodes that are off until a pilot is submitted to them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstNodes {
    pub partition: String,
    pub nodes: u32,
    /// From a pilot's submission to its agent's first word, where the node must boot; seconds.
    pub boot: Dist,
    /// Price of a GPU-hour.
    pub price: f64,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            nodes: 0,
            gpus_per_node: 8,
            cpus_per_node: 64,
            mem_gb_per_node: 1024.0,
            replicas: 1,
            people: People::default(),
            latency: Latencies::default(),
            policy: Knobs::default(),
            idle_cull_min: 30,
            warm_per_node: 1,
            burst: Vec::new(),
            batch: None,
        }
    }
}

/// What a trace doesn't say of people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct People {
    /// Seconds for which a notebook is open before the first cell, and after the last cell. `None` means that the
    /// trace tells.
    pub opens_before: Option<Dist>,
    pub closes_after: Option<Dist>,
    /// GPUs of the kernelspec's default need, the only known need of a newly opened kernel.
    pub default_gpus: u16,
}

impl Default for People {
    fn default() -> Self {
        Self {
            opens_before: Some(Dist::new(120.0, 3600.0)),
            closes_after: Some(Dist::new(3600.0, 86_400.0)),
            default_gpus: 1,
        }
    }
}

/// Nothing takes longer, however wide its distribution.
pub(crate) const LONGEST: Span = Span::from_secs(10 * 86_400);

/// A duration by its median and its 99th percentile in seconds, lognormal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dist {
    pub p50: f64,
    pub p99: f64,
}

impl Dist {
    pub const fn new(p50: f64, p99: f64) -> Self {
        Self { p50, p99 }
    }

    pub fn draw(&self, rng: &mut Rng) -> Span {
        if self.p50 <= 0.0 {
            return Span::ZERO;
        }
        let sigma = (self.p99.max(self.p50) / self.p50).ln() / 2.326_35;
        Span((rng.lognormal(self.p50.ln(), sigma) * 1e6) as u64).min(LONGEST)
    }
}

/// Durations and speeds. `docs/simulation/README.md` has their sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latencies {
    /// From the order of a lease to the handover.
    pub lease: Dist,
    /// From a cell's submission to the core's decision, and from a grant to the code's first line.
    pub message: Dist,
    /// Taking a device back, beside parking.
    pub take_back: Dist,
    /// From a pilot's submission to its agent's first word, on a node in service.
    pub pilot: Dist,
    /// From a pilot's drain or cancellation to its GPUs being Slurm's again.
    pub pilot_end: Dist,
    /// Starting a replica in a seat.
    pub replica: Dist,
    /// Fixed part of restoring a kernel's state, without the time for its size.
    pub restore: Dist,
    /// GPU memory of a kernel in GB per GPU.
    pub vram_gb: Dist,
    /// Seconds that any park and its way back take, and how fast the memory goes to the host and back, in GB/s.
    pub park_s: f64,
    pub park_gb_s: f64,
    pub unpark_s: f64,
    pub unpark_gb_s: f64,
    /// State of a kernel that moves, in GB, and how fast the store reads and writes, in GB/s.
    pub state_gb: Dist,
    pub store_gb_s: f64,
    /// Start of a new container with its framework, for policies with a container per cell or session.
    pub container: Dist,
    /// A warm container taken from the pool.
    pub warm: Dist,
    /// A new virtual machine, for `notebookos`'s autoscaler: seconds, normally distributed.
    pub host_mean: f64,
    pub host_sd: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            lease: Dist::new(0.049, 0.085),
            message: Dist::new(0.002, 0.010),
            take_back: Dist::new(0.045, 0.090),
            pilot: Dist::new(2.0, 6.0),
            pilot_end: Dist::new(1.0, 3.0),
            replica: Dist::new(3.0, 10.0),
            restore: Dist::new(0.5, 3.0),
            vram_gb: Dist::new(4.8, 38.9),
            // 1 and 16 GB by copying out and the driver's checkpoint, on an H200 (bench `park`).
            park_s: 0.5,
            park_gb_s: 28.0,
            unpark_s: 0.42,
            unpark_gb_s: 21.7,
            state_gb: Dist::new(1.0, 10.0),
            store_gb_s: 2.0,
            container: Dist::new(12.0, 40.0),
            warm: Dist::new(0.5, 2.0),
            host_mean: 15.0,
            host_sd: 2.0,
        }
    }
}

impl Latencies {
    /// How long so much memory of each of a kernel's GPUs takes to leave them.
    pub fn park(&self, gb: f64) -> Span {
        moving(self.park_s, gb, self.park_gb_s)
    }

    /// How long it takes to be back.
    pub fn unpark(&self, gb: f64) -> Span {
        moving(self.unpark_s, gb, self.unpark_gb_s)
    }

    /// How long the store takes to read or write so much.
    pub fn store(&self, gb: f64) -> Span {
        moving(0.0, gb, self.store_gb_s)
    }
}

fn moving(fixed_s: f64, gb: f64, gb_s: f64) -> Span {
    Span(((fixed_s + gb / gb_s) * 1e6) as u64)
}

/// The knobs of our own policy: the tables of `[pool.NAME]` in `gresshopper.toml`. The others are for experiments:
/// `hopd` has their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    pub linger: Linger,
    pub quantum: Quantum,
    pub scale: Option<Scale>,
    pub migrate: Option<Migrate>,
    pub fair_share: bool,
    /// Later cells of equal size that may start before a waiting cell is due.
    pub due_overtaken: u32,
    /// Share of the sessions whose cells can be parked in their middle; none: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parkable: Option<f64>,
}

impl Default for Knobs {
    fn default() -> Self {
        let core = hop_core::Config::default();
        Self {
            linger: Linger::default(),
            quantum: Quantum::default(),
            scale: Some(Scale::default()),
            migrate: Some(Migrate::default()),
            fair_share: core.fair_share,
            due_overtaken: core.due_overtaken,
            parkable: None,
        }
    }
}

impl Knobs {
    fn in_range(&self) -> Result<(), ClusterError> {
        let scale = self.scale.as_ref();
        let numbers = [
            ("policy.scale.immediate", scale.map(|s| s.immediate), 1.0),
            (
                "policy.scale.most_per_wait",
                scale.map(|s| s.most_per_wait),
                MOST_PER_WAIT,
            ),
            ("policy.scale.too_small", scale.map(|s| s.too_small), 1.0),
            ("policy.scale.spare_share", scale.map(|s| s.spare_share), 1.0),
            ("policy.scale.spares", scale.map(|s| s.spares.into()), MOST_NODES),
            (
                "policy.scale.spare_nodes",
                scale.map(|s| s.spare_nodes.into()),
                MOST_NODES,
            ),
            ("policy.parkable", self.parkable, 1.0),
        ];
        for (what, value, most) in numbers {
            if let Some(value) = value.filter(|v| !(0.0..=most).contains(v)) {
                return Err(ClusterError::Most { what, value, most });
            }
        }
        Ok(())
    }
}

/// Idle GPU-seconds that no wait is worth.
const MOST_PER_WAIT: f64 = 1e12;
const MOST_NODES: f64 = 100_000.0;

/// Why a trace can't be run on a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("session {session} asks for {asked} {what} on one node, and the cluster's nodes have {most}")]
pub struct Misfit {
    pub session: String,
    pub asked: u16,
    pub what: &'static str,
    pub most: u16,
}

/// Why a cluster file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("the cluster file has no number {0}; docs/trace-format.md and docs/configuration.md list them")]
    NoNumber(String),
    #[error("{key} is a whole number, and {value} is none")]
    NotWhole { key: String, value: f64 },
    #[error("the cluster file is not as it should be")]
    Toml(#[from] toml::de::Error),
    #[error("gpus_per_node is {0}; it must be from 1 to 64")]
    Gpus(u16),
    #[error("{what} is {value}; it must be {must}")]
    Range {
        what: &'static str,
        value: f64,
        must: &'static str,
    },
    #[error("{what} is {value}; it must be from 0 to {most}")]
    Most {
        what: &'static str,
        value: f64,
        most: f64,
    },
    #[error(
        "a kernel can't have {replicas} replicas on {nodes} nodes: replicas must be at least 1, and each has a node of its own"
    )]
    Replicas { nodes: u32, replicas: u16 },
}

impl Cluster {
    /// # Errors
    /// What is wrong with the file.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let mut cluster: Self = toml::from_str(text)?;
        let says = |key| toml::from_str::<toml::Table>(text).is_ok_and(|t| t.contains_key(key));
        if (1..3).contains(&cluster.nodes) && !says("replicas") {
            // A majority of two is no more than one.
            cluster.replicas = 1;
        }
        if cluster.cpus_per_node < cluster.gpus_per_node && !says("cpus_per_node") {
            cluster.cpus_per_node = cluster.gpus_per_node;
        }
        if cluster.gpus_per_node == 0 || cluster.gpus_per_node > 64 {
            return Err(ClusterError::Gpus(cluster.gpus_per_node));
        }
        let too_few = cluster.nodes > 0 && u32::from(cluster.replicas) > cluster.nodes;
        if cluster.replicas == 0 || too_few {
            return Err(ClusterError::Replicas {
                nodes: cluster.nodes,
                replicas: cluster.replicas,
            });
        }
        cluster.in_range()?;
        Ok(cluster)
    }

    /// The same cluster with another value of a number, by the number's key in the file, such as `nodes` or
    /// `policy.scale.immediate`.
    ///
    /// # Errors
    /// No such number exists, or the value makes no sense.
    pub fn with(&self, key: &str, value: f64) -> Result<Self, ClusterError> {
        let none = || ClusterError::NoNumber(key.to_owned());
        let mut file = toml::Value::try_from(self).expect("a cluster has nothing that TOML can't say");
        let mut at = &mut file;
        for part in key.split('.') {
            at = at.get_mut(part).ok_or_else(none)?;
        }
        *at = match at {
            toml::Value::Integer(_) if value.fract() == 0.0 => toml::Value::Integer(value as i64),
            toml::Value::Integer(_) => {
                return Err(ClusterError::NotWhole {
                    key: key.to_owned(),
                    value,
                });
            }
            toml::Value::Float(_) => toml::Value::Float(value),
            _ => return Err(none()),
        };
        Self::parse(&toml::to_string(&file).expect("it was read from TOML just now"))
    }

    fn burst_in_range(&self) -> Result<(), ClusterError> {
        let bad = |what, value, must| Err(ClusterError::Range { what, value, must });
        let day = |x: f64| (0.0..=86_400.0).contains(&x);
        for b in &self.burst {
            if !day(b.boot.p50) || !day(b.boot.p99) {
                let value = if day(b.boot.p50) { b.boot.p99 } else { b.boot.p50 };
                return bad("burst.boot", value, "from 0 to 86400");
            }
            if !(0.0..1e9).contains(&b.price) {
                return bad("burst.price", b.price, "from 0 to 1e9");
            }
            if b.nodes > 100_000 {
                return bad("burst.nodes", b.nodes.into(), "at most 100000");
            }
        }
        Ok(())
    }

    fn in_range(&self) -> Result<(), ClusterError> {
        let l = &self.latency;
        let spans = [
            ("latency.lease", l.lease),
            ("latency.message", l.message),
            ("latency.take_back", l.take_back),
            ("latency.pilot", l.pilot),
            ("latency.pilot_end", l.pilot_end),
            ("latency.replica", l.replica),
            ("latency.restore", l.restore),
            (
                "people.opens_before",
                self.people.opens_before.unwrap_or(Dist::new(0.0, 0.0)),
            ),
            (
                "people.closes_after",
                self.people.closes_after.unwrap_or(Dist::new(0.0, 0.0)),
            ),
            ("latency.vram_gb", l.vram_gb),
            ("latency.state_gb", l.state_gb),
            ("latency.container", l.container),
            ("latency.warm", l.warm),
        ];
        let day = |x: f64| (0.0..=86_400.0).contains(&x);
        let bad = |what, value, must| Err(ClusterError::Range { what, value, must });
        for (what, d) in spans {
            if !day(d.p50) || !day(d.p99) {
                return bad(what, if day(d.p50) { d.p99 } else { d.p50 }, "from 0 to 86400");
            }
        }
        let speeds = [
            ("latency.park_gb_s", l.park_gb_s),
            ("latency.unpark_gb_s", l.unpark_gb_s),
            ("latency.store_gb_s", l.store_gb_s),
        ];
        for (what, value) in speeds {
            if !(value.is_finite() && value > 0.0) {
                return bad(what, value, "above 0, and finite");
            }
        }
        let fixed = [
            ("latency.host_mean", l.host_mean),
            ("latency.host_sd", l.host_sd),
            ("latency.park_s", l.park_s),
            ("latency.unpark_s", l.unpark_s),
        ];
        for (what, value) in fixed {
            if !day(value) {
                return bad(what, value, "from 0 to 86400");
            }
        }
        self.policy.in_range()?;
        self.burst_in_range()?;
        if let Some(batch) = &self.batch {
            batch.in_range(self.gpus_per_node)?;
        }
        if self.nodes > 100_000 {
            return bad("nodes", self.nodes.into(), "at most 100000");
        }
        // Each on a node of its own, all of which are made for a trace.
        if self.replicas > 9 {
            return bad("replicas", self.replicas.into(), "from 1 to 9");
        }
        if self.cpus_per_node < self.gpus_per_node {
            let value = self.cpus_per_node.into();
            return bad("cpus_per_node", value, "at least gpus_per_node");
        }
        if !(0.0..=1e9).contains(&self.mem_gb_per_node) {
            return bad("mem_gb_per_node", self.mem_gb_per_node, "from 0 to 1e9");
        }
        if self.people.default_gpus > self.gpus_per_node {
            let value = self.people.default_gpus.into();
            return bad("people.default_gpus", value, "at most gpus_per_node");
        }
        if self.idle_cull_min > 10_000_000 {
            return bad("idle_cull_min", self.idle_cull_min as f64, "at most 10000000");
        }
        Ok(())
    }

    /// Whether every cell of the trace fits on one node.
    ///
    /// # Errors
    /// The first session that asks for more.
    pub fn fits(&self, trace: &Trace) -> Result<(), Misfit> {
        for s in &trace.sessions {
            let cpus = s.cells.iter().map(|c| c.cpus).max().unwrap_or(0);
            let asked = [
                (s.gpus(), "GPUs", self.gpus_per_node),
                (cpus, "cores", self.cpus_per_node),
            ];
            if let Some(&(asked, what, most)) = asked.iter().find(|(n, _, most)| n > most) {
                return Err(Misfit {
                    session: s.id.clone(),
                    asked,
                    what,
                    most,
                });
            }
        }
        Ok(())
    }

    /// With as many nodes as reservation needs, where the file doesn't say how many.
    #[must_use]
    pub fn sized_for(mut self, trace: &Trace) -> Self {
        if self.nodes == 0 {
            self.nodes = nodes_for_reservation(trace, self.gpus_per_node).max(u32::from(self.replicas));
        }
        self
    }

    pub fn gpus(&self) -> u32 {
        self.nodes * u32::from(self.gpus_per_node)
    }

    /// Cores that come with `gpus` of a node's GPUs: all cores with all GPUs.
    pub(crate) fn cores_of(&self, gpus: u16) -> u16 {
        let part = u32::from(self.cpus_per_node) * u32::from(gpus) / u32::from(self.gpus_per_node);
        u16::try_from(part).unwrap_or(self.cpus_per_node)
    }

    /// A short name for the whole configuration.
    pub fn hash(&self) -> String {
        let text = serde_json::to_string(self).expect("a cluster has nothing that JSON can't say");
        blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// Nodes with which reservation has no session wait: best fit, sessions by their opening.
pub fn nodes_for_reservation(trace: &Trace, gpus: u16) -> u32 {
    let mut changes = Vec::new();
    for (i, s) in trace.sessions.iter().enumerate() {
        changes.push((s.open, true, i));
        changes.push((s.close, false, i));
    }
    // Closings first.
    changes.sort_by_key(|&(t, opens, i)| (t, opens, i));
    let mut free: Vec<u16> = Vec::new();
    let mut home = vec![usize::MAX; trace.sessions.len()];
    for (_, opens, i) in changes {
        let need = trace.sessions[i].gpus();
        if !opens {
            free[home[i]] += need;
            continue;
        }
        let fit = (0..free.len())
            .filter(|&n| free[n] >= need)
            .min_by_key(|&n| (free[n], n));
        let n = fit.unwrap_or_else(|| {
            free.push(gpus);
            free.len() - 1
        });
        free[n] = free[n].saturating_sub(need);
        home[i] = n;
    }
    free.len() as u32
}
