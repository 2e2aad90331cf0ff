//! Nodes and partitions as Slurm tells them.

use crate::gres::Gres;
use crate::record::{ParseError, node_names, number, some_text, value_of};
use crate::span::TimeLimit;
use crate::state::NodeState;
use hop_words::id::NodeName;
use serde::{Deserialize, Serialize};

/// A node as slurmctld knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub name: NodeName,
    pub state: NodeState,
    pub reason: Option<String>,
    pub cpus: u32,
    pub cpus_allocated: u32,
    /// CPUs of a core (`ThreadsPerCore`).
    #[serde(default = "one")]
    pub threads_per_core: u16,
    pub mem_mib: u64,
    pub mem_allocated_mib: u64,
    /// Configured, all types.
    pub gres: Vec<Gres>,
    /// Configured items that can't be read, and so count for nothing.
    #[serde(default)]
    pub gres_unread: Vec<String>,
    /// In use, with `IDX`.
    pub gres_used: Vec<Gres>,
    pub features: Vec<String>,
    pub partitions: Vec<String>,
    /// slurmd's; none while it has not registered.
    pub version: Option<String>,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    pub name: String,
    /// `UP`, `DOWN`, `DRAIN`, `INACTIVE`.
    pub state: String,
    pub nodes: Vec<NodeName>,
    pub is_default: bool,
    pub max_time: TimeLimit,
    pub default_time: TimeLimit,
    /// `NO`, `EXCLUSIVE`, `FORCE:4`, ...
    pub oversubscribe: String,
    /// Its nodes are one user's at a time (`ExclusiveUser`).
    #[serde(default)]
    pub exclusive_user: bool,
    /// `OFF`, `REQUEUE`, `SUSPEND`, ...: the possible fate of its jobs.
    pub preempt_mode: String,
    #[serde(default)]
    pub admits: Admits,
    /// The partition's own QOS, whose limits bind all of its jobs.
    pub qos: Option<String>,
}

/// Rules on who may use a partition (slurm.conf(5), `AllowAccounts` and the like). `None` means that all are allowed.
/// Slurm ignores a list of denied names if a list of allowed names is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admits {
    pub accounts: Option<Vec<String>>,
    pub not_accounts: Vec<String>,
    pub groups: Option<Vec<String>>,
    pub qos: Option<Vec<String>>,
    pub not_qos: Vec<String>,
}

impl Partition {
    /// Its jobs may be suspended in favour of others: no place for leases.
    pub fn may_suspend(&self) -> bool {
        self.preempt_mode.contains("SUSPEND")
            || self.preempt_mode.contains("GANG")
            || self.oversubscribe.starts_with("FORCE:")
    }

    /// The setting by which nobody else's job can be beside a job of the partition's: no seat beside a pilot.
    pub fn gives_whole_nodes(&self) -> Option<&'static str> {
        match (self.oversubscribe.as_str(), self.exclusive_user) {
            ("EXCLUSIVE", _) => Some("OverSubscribe=EXCLUSIVE"),
            (_, true) => Some("ExclusiveUser=YES"),
            _ => None,
        }
    }
}

fn one() -> u16 {
    1
}

pub(crate) fn parse_nodes(output: &str) -> Result<Vec<Node>, ParseError> {
    output
        .lines()
        .filter(|line| line.starts_with("NodeName="))
        .map(parse_node)
        .collect()
}

fn parse_node(line: &str) -> Result<Node, ParseError> {
    let value = |key: &'static str| value_of(line, key).ok_or(ParseError::Missing(key));
    let optional = |key: &str| value_of(line, key).and_then(some_text);
    Ok(Node {
        name: value("NodeName")?.into(),
        state: NodeState::parse(value("State")?),
        reason: optional("Reason"),
        cpus: number("CPUTot", value("CPUTot")?)?,
        cpus_allocated: number("CPUAlloc", value("CPUAlloc")?)?,
        threads_per_core: value_of(line, "ThreadsPerCore").map_or(Ok(1), |n| number("ThreadsPerCore", n))?,
        mem_mib: number("RealMemory", value("RealMemory")?)?,
        mem_allocated_mib: number("AllocMem", value("AllocMem")?)?,
        gres: Gres::parse_list(value("Gres")?),
        gres_unread: Gres::unread(value("Gres")?),
        gres_used: Gres::parse_list(value_of(line, "GresUsed").unwrap_or_default()),
        features: words(optional("ActiveFeatures")),
        partitions: words(optional("Partitions")),
        version: optional("Version"),
    })
}

pub(crate) fn parse_partitions(output: &str) -> Result<Vec<Partition>, ParseError> {
    output
        .lines()
        .filter(|line| line.starts_with("PartitionName="))
        .map(parse_partition)
        .collect()
}

fn parse_partition(line: &str) -> Result<Partition, ParseError> {
    let value = |key: &'static str| value_of(line, key).ok_or(ParseError::Missing(key));
    let allowed = |key: &str| {
        let list = value_of(line, key).filter(|list| *list != "ALL")?;
        Some(words(some_text(list)))
    };
    let denied = |key: &str| words(value_of(line, key).and_then(some_text));
    Ok(Partition {
        name: value("PartitionName")?.to_owned(),
        state: value("State")?.to_owned(),
        nodes: node_names(value("Nodes")?)?,
        is_default: value("Default")? == "YES",
        max_time: TimeLimit::parse(value("MaxTime")?)?,
        default_time: TimeLimit::parse(value("DefaultTime")?)?,
        oversubscribe: value("OverSubscribe")?.to_owned(),
        exclusive_user: value_of(line, "ExclusiveUser") == Some("YES"),
        preempt_mode: value("PreemptMode")?.to_owned(),
        admits: Admits {
            accounts: allowed("AllowAccounts"),
            not_accounts: denied("DenyAccounts"),
            groups: allowed("AllowGroups"),
            qos: allowed("AllowQos"),
            not_qos: denied("DenyQos"),
        },
        qos: value_of(line, "QoS").and_then(some_text).filter(|q| q != "N/A"),
    })
}

fn words(list: Option<String>) -> Vec<String> {
    list.map(|list| list.split(',').map(str::to_owned).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gres::gpus;
    use crate::state::NodeBase;

    #[test]
    fn nodes_of_22_05() {
        let nodes = parse_nodes(include_str!("../tests/recorded/22.05/nodes.txt")).unwrap();
        assert_eq!(nodes.len(), 4);
        let first = &nodes[0];
        assert_eq!(
            (first.name.as_str(), &first.state.base),
            ("c2n1", &NodeBase::Mixed)
        );
        assert_eq!(
            (
                first.cpus,
                first.cpus_allocated,
                first.mem_mib,
                first.mem_allocated_mib
            ),
            (32, 2, 65536, 256)
        );
        assert_eq!((gpus(&first.gres), gpus(&first.gres_used)), (2, 1));
        assert_eq!(
            (first.partitions.as_slice(), first.version.as_deref()),
            (&["notebook".to_owned()][..], Some("22.05.8"))
        );
        assert!(
            nodes
                .iter()
                .all(|node| node.state.is_usable() && node.reason.is_none())
        );
    }

    #[test]
    fn a_gres_that_cannot_be_read_costs_no_node() {
        let recorded = include_str!("../tests/recorded/24.11/nodes.txt");
        let odd = recorded.replace(" Gres=gpu:2", " Gres=gpu:3090:4,odd:a:b:c:1");
        assert_ne!(recorded, odd);
        let (before, after) = (parse_nodes(recorded).unwrap(), parse_nodes(&odd).unwrap());
        assert_eq!(before.len(), after.len());
        assert!(before.iter().all(|node| node.gres_unread.is_empty()));
        let changed = after.iter().find(|node| gpus(&node.gres) == 4).unwrap();
        assert_eq!(changed.gres_unread, ["odd:a:b:c:1"]);
    }

    #[test]
    fn nodes_of_24_11() {
        let nodes = parse_nodes(include_str!("../tests/recorded/24.11/nodes.txt")).unwrap();
        assert!(nodes.iter().all(|node| node.threads_per_core == 1));
        let cloud = nodes.iter().find(|node| node.name == "c2b1".into()).unwrap();
        assert!(cloud.state.is_powered_down() && !cloud.state.is_usable() && cloud.version.is_none());
        assert!(
            nodes
                .iter()
                .any(|node| node.state.is_usable() && node.version.as_deref() == Some("24.11.5"))
        );
    }

    #[test]
    fn partitions_of_both_series() {
        let [old, new] = [
            include_str!("../tests/recorded/22.05/partitions.txt"),
            include_str!("../tests/recorded/24.11/partitions.txt"),
        ]
        .map(|output| parse_partitions(output).unwrap());
        assert_eq!(old, new);
        let partitions = old;
        let [notebook, burst] = &partitions[..] else {
            panic!("{partitions:#?}")
        };
        assert_eq!(
            (notebook.name.as_str(), notebook.nodes.len(), notebook.is_default),
            ("notebook", 4, true)
        );
        assert_eq!(
            (burst.nodes.as_slice(), burst.max_time),
            (&[NodeName::from("c2b1")][..], TimeLimit::Unlimited)
        );
        assert!(!notebook.may_suspend() && notebook.admits == Admits::default());
        assert_eq!(notebook.gives_whole_nodes(), None);
        let text = include_str!("../tests/recorded/24.11/partitions.txt");
        for (from, to) in [
            ("OverSubscribe=NO", "OverSubscribe=EXCLUSIVE"),
            ("ExclusiveUser=NO", "ExclusiveUser=YES"),
        ] {
            let changed = parse_partitions(&text.replace(from, to)).unwrap();
            assert_eq!(changed[0].gives_whole_nodes(), Some(to));
        }
    }
}
