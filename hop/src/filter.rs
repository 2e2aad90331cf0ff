//! Filters of the commands that list records: by pool, account, node and state. An empty filter lets everything through.

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
    /// Only on these nodes
    #[arg(short = 'N', long = "nodelist", value_name = "NODES", value_delimiter = ',')]
    nodes: Vec<String>,
}

impl Nodes {
    pub(crate) fn has(&self, node: &NodeName) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|wanted| wanted == node.as_str())
    }

    /// The names for a query to `hopd`.
    pub(crate) fn names(&self) -> Vec<NodeName> {
        self.nodes
            .iter()
            .map(|node| NodeName::from(node.as_str()))
            .collect()
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
}
