//! Filters of the commands that list records: by pool, account, node and state. An empty filter lets everything through.

use crate::failure::Failure;
use hop_slurm::hostlist::{self, HostListError};
use hop_words::id::{AccountName, NodeName, PoolName};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Pools {
    /// Only these pools
    #[arg(
        short = 'r',
        long = "pool",
        visible_alias = "partition",
        value_name = "POOLS",
        value_delimiter = ','
    )]
    pools: Vec<String>,
}

impl Pools {
    pub(crate) fn has(&self, pool: &PoolName) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|wanted| wanted == pool.as_str())
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Accounts {
    /// Only these accounts
    #[arg(
        short = 'A',
        long = "accounts",
        value_name = "ACCOUNTS",
        value_delimiter = ','
    )]
    accounts: Vec<String>,
}

impl Accounts {
    /// The names for a query to `hopd`.
    pub(crate) fn names(&self) -> Vec<AccountName> {
        self.accounts
            .iter()
            .map(|account| AccountName::from(account.as_str()))
            .collect()
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Nodes {
    /// Only on these nodes: n1,n[3-5]
    #[arg(short = 'N', long = "nodelist", value_name = "NODES", value_parser = read_nodes)]
    nodes: Vec<NodeList>,
}

/// The nodes of a hostlist, as Slurm writes them.
#[derive(Debug, Clone)]
struct NodeList(Vec<NodeName>);

fn read_nodes(list: &str) -> Result<NodeList, HostListError> {
    hostlist::expand(list).map(|names| NodeList(names.into_iter().map(NodeName::from).collect()))
}

impl Nodes {
    pub(crate) fn has(&self, node: &NodeName) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|list| list.0.contains(node))
    }

    /// The names for a query to `hopd`.
    pub(crate) fn names(&self) -> Vec<NodeName> {
        self.nodes.iter().flat_map(|list| list.0.clone()).collect()
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct States {
    /// Only in these states, in any case
    #[arg(
        short = 't',
        short_alias = 's',
        long = "states",
        visible_alias = "state",
        value_name = "STATES",
        value_delimiter = ','
    )]
    states: Vec<String>,
}

impl States {
    pub(crate) fn has(&self, word: &str) -> bool {
        self.states.is_empty() || self.states.iter().any(|wanted| wanted.eq_ignore_ascii_case(word))
    }

    /// A misspelt state is a mistake of the user's, and must not look like an empty table.
    pub(crate) fn check(&self, all: &[&str]) -> Result<(), Failure> {
        let is_one = |word: &String| all.iter().any(|known| known.eq_ignore_ascii_case(word));
        match self.states.iter().find(|word| !is_one(word)) {
            None => Ok(()),
            Some(word) => Err(no_state(word, all)),
        }
    }
}

pub(crate) fn no_state(word: &str, all: &[&str]) -> Failure {
    let all = all.join(", ");
    Failure::Usage(format!("there is no state {word:?}: there are {all}"))
}
