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
    pub(crate) fn names(&self) -> Vec<PoolName> {
        self.pools.iter().map(|name| name.as_str().into()).collect()
    }

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
    /// Only in these states, in any case, or in all; a job's by Slurm's letters too, as PD or R
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
        let is_wanted = |wanted: &String| is_all(wanted) || is_state(wanted, word);
        self.states.is_empty() || self.states.iter().any(is_wanted)
    }

    /// A misspelt state is a mistake of the user's, and must not look like an empty table.
    pub(crate) fn check(&self, all: &[&str]) -> Result<(), Failure> {
        let is_one = |word: &String| is_all(word) || all.iter().any(|known| is_state(word, known));
        match self.states.iter().find(|word| !is_one(word)) {
            None => Ok(()),
            Some(word) => Err(no_state(word, all)),
        }
    }
}

/// squeue's word.
fn is_all(word: &str) -> bool {
    word.eq_ignore_ascii_case("all")
}

/// Whether a word of the user's means the state: its name, or squeue's letters for it.
pub(crate) fn is_state(word: &str, state: &str) -> bool {
    let letters = LETTERS.iter().find(|(_, long)| *long == state);
    word.eq_ignore_ascii_case(state) || letters.is_some_and(|(short, _)| word.eq_ignore_ascii_case(short))
}

const LETTERS: [(&str, &str); 9] = [
    ("PD", "PENDING"),
    ("S", "SUSPENDED"),
    ("R", "RUNNING"),
    ("L", "LINGERING"),
    ("CD", "COMPLETED"),
    ("CA", "CANCELLED"),
    ("F", "FAILED"),
    ("NF", "NODE_FAIL"),
    ("PR", "PREEMPTED"),
];

pub(crate) fn no_state(word: &str, all: &[&str]) -> Failure {
    let all = all.join(", ");
    Failure::Usage(format!("there is no state {word:?}: there are {all}"))
}
