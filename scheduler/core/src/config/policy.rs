//! How a pool is run: the tables `linger`, `quantum`, `scale`, `migrate` and `burst`.

use super::duration;
use hop_words::need::Class;
use hop_words::time::Span;
use serde::{Deserialize, Serialize};

/// Time for which a lease stays with its kernel after a cell, if nobody waits for the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Linger {
    /// Shortest linger.
    #[serde(rename = "least_s", with = "duration")]
    pub least: Span,
    /// Longest linger. Between the two, the kernel's own think times decide whether lingering pays.
    #[serde(rename = "most_s", with = "duration")]
    pub most: Span,
}

impl Linger {
    /// Always so long.
    pub const fn fixed(span: Span) -> Self {
        Self {
            least: span,
            most: span,
        }
    }
}

impl Default for Linger {
    fn default() -> Self {
        Self {
            least: Span::from_secs(2),
            most: Span::from_secs(1800),
        }
    }
}

/// How long cells of each class may run undisturbed; a class without a value runs to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quantum {
    #[serde(rename = "interactive_s", with = "duration::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<Span>,
    #[serde(rename = "deadline_s", with = "duration::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    #[serde(rename = "batch_s", with = "duration::option")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<Span>,
    /// A wait that is expected to be over by then isn't worth a park, which copies all of a GPU's memory.
    #[serde(rename = "worth_waiting_s", with = "duration")]
    pub worth_waiting: Span,
}

impl Default for Quantum {
    fn default() -> Self {
        Self {
            interactive: None,
            deadline: None,
            batch: None,
            worth_waiting: Span::from_secs(30),
        }
    }
}

impl Quantum {
    /// The same quantum for all classes but cells with a deadline, which could miss their deadline by a park.
    pub fn of_all(span: Span) -> Self {
        Self {
            interactive: Some(span),
            batch: Some(span),
            ..Self::default()
        }
    }

    pub const fn of(&self, class: Class) -> Option<Span> {
        match class {
            Class::Interactive => self.interactive,
            Class::Deadline => self.deadline,
            Class::Batch => self.batch,
        }
    }

    /// The classes that have one, with it.
    pub fn classes(&self) -> impl Iterator<Item = (Class, Span)> + use<> {
        let of = [
            (Class::Interactive, self.interactive),
            (Class::Deadline, self.deadline),
            (Class::Batch, self.batch),
        ];
        of.into_iter().filter_map(|(class, span)| Some((class, span?)))
    }

    pub fn is_off(&self) -> bool {
        self.classes().next().is_none()
    }
}

/// How pilots follow demand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scale {
    /// An idle pilot is kept for at least this long.
    #[serde(rename = "idle_min_s", with = "duration")]
    pub idle_min: Span,
    /// Longest time for which an idle pilot is kept after its last lease.
    #[serde(rename = "idle_max_s", with = "duration")]
    pub idle_max: Span,
    /// Share of cells that must not wait for a pilot. The core finds the price of a spared wait for this share.
    pub immediate: f64,
    /// The most to be paid for sparing a cell this wait, in idle GPU-seconds.
    pub most_per_wait: f64,
    /// Pilots are kept and started by the learnt think times of kernels; else an idle pilot is kept for `idle_max`, and
    /// a pilot is started only for a waiting cell.
    pub learn: bool,
    /// A pilot is as large as the need of its first cell; else all are of `gpus_per_pilot`.
    pub right_size: bool,
    /// Largest share of a kernel's cells that may ask for more GPUs than a pilot started for the kernel.
    pub too_small: f64,
    /// Most idle GPUs on spare nodes, counted in whole pilots, as far as they are worthwhile to the kernels there. Zero
    /// means no spare nodes.
    pub spares: u32,
    /// Most idle GPUs on spare nodes: a whole pilot's, or this share of the leased GPUs.
    pub spare_share: f64,
    /// How many nodes are set apart for them.
    pub spare_nodes: u32,
    /// Time from a pilot's submission to its first lease, until pilots have been seen.
    #[serde(rename = "boot_s", with = "duration")]
    pub boot: Span,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            idle_min: Span::from_secs(20),
            idle_max: Span::from_secs(24 * 3600),
            immediate: 0.97,
            most_per_wait: 25_000.0,
            learn: true,
            right_size: true,
            too_small: 0.4,
            spares: 1,
            spare_share: 0.05,
            spare_nodes: 3,
            boot: Span::from_secs(5),
        }
    }
}

/// When replicas move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Migrate {
    /// Expected time of a move until moves have been seen.
    #[serde(rename = "takes_s", with = "duration")]
    pub takes: Span,
    /// A move must be expected to save at least this much waiting.
    #[serde(rename = "margin_s", with = "duration")]
    pub margin: Span,
    /// Quiet kernels leave crowded nodes, ahead of need.
    pub ahead: bool,
}

impl Default for Migrate {
    fn default() -> Self {
        Self {
            takes: Span::from_secs(10),
            margin: Span::from_secs(5),
            ahead: true,
        }
    }
}

/// A partition whose nodes must boot first, or cost money.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    pub partition: String,
    pub max_pilots: u32,
    /// From submission to the agent's first word.
    #[serde(rename = "boot_s", with = "duration", default = "boot")]
    pub boot: Span,
    /// Price of a GPU-hour, in the site's own unit.
    #[serde(default)]
    pub price: f64,
}

fn boot() -> Span {
    Span::from_secs(120)
}
