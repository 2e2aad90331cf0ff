//! Drained nodes: nothing new starts there, and their kernels are moved.

use super::asked::Asked;
use super::{Due, Scheduler};
use hop_core::{Input, MoveCause};
use hop_words::id::NodeName;
use std::collections::BTreeMap;
use tracing::info;

/// The nodes that Slurm drains, each with Slurm's reason.
#[derive(Debug, Default)]
pub(super) struct Drains {
    nodes: BTreeMap<NodeName, String>,
    asked: Asked,
}

impl Drains {
    pub(super) fn reason(&self, node: &NodeName) -> Option<&String> {
        self.nodes.get(node)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// Takes in Slurm's drained nodes, and returns the newly drained ones and those drained no more.
    fn look(&mut self, now: BTreeMap<NodeName, String>) -> (Vec<NodeName>, Vec<NodeName>) {
        let missing = |of: &BTreeMap<NodeName, String>, from: &BTreeMap<NodeName, String>| {
            let names = of.keys().filter(|n| !from.contains_key(*n));
            names.cloned().collect::<Vec<_>>()
        };
        let (new, over) = (missing(&now, &self.nodes), missing(&self.nodes, &now));
        self.nodes = now;
        (new, over)
    }
}

impl Scheduler {
    /// Takes in the drained nodes from a look at Slurm's queue.
    pub(super) fn drained(&mut self, nodes: BTreeMap<NodeName, String>) {
        let (new, over) = self.drains.look(nodes);
        for node in &new {
            self.node_drains(node);
        }
        self.drain_pilots();
        for node in &over {
            info!(%node, "Slurm drains the node no longer");
        }
        if !over.is_empty() {
            // The node may have pilots again.
            self.due.retain(|(_, due)| *due != Due::Facts);
            self.due.insert((self.clock.now(), Due::Facts));
        }
        if self.drains.nodes.is_empty() {
            self.drains.asked.forget();
        } else {
            self.move_away();
        }
    }

    fn node_drains(&mut self, node: &NodeName) {
        let reason = self.drains.reason(node).map_or("", String::as_str);
        info!(%node, "Slurm drains the node: {reason}");
        self.todo.push_back(Input::NodeDown { node: node.clone() });
    }

    /// Drains the pilots on all drained nodes: a pilot may have come since the first look that saw its node drained.
    fn drain_pilots(&mut self) {
        let pilots = self.core.pilots().into_iter();
        let here = pilots.filter(|p| p.state != "DRAINING" && self.drains.reason(&p.node).is_some());
        self.todo
            .extend(here.map(|p| Input::PilotDraining { pilot: p.pilot }));
    }

    /// Asks the kernels on drained nodes to leave, as far as they can.
    fn move_away(&mut self) {
        // The core must learn first where these kernels can't go.
        self.settle();
        let now = self.clock.now();
        let nodes: Vec<NodeName> = self.drains.nodes.keys().cloned().collect();
        for node in nodes {
            for id in self.registry.on_node(&node) {
                let kernel = id.kernel;
                if self.free_to_leave(&kernel).is_none() || !self.drains.asked.may_ask(&kernel, now) {
                    continue;
                }
                let asked = self.ask_core_to_move(&kernel, Some(node.clone()), None, MoveCause::Drain);
                if let Err(why) = asked {
                    info!(%kernel, %node, "it can't leave the node that Slurm drains: {why}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_and_what_is_over_is_told_once() {
        let mut drains = Drains::default();
        let at = |names: &[&str]| {
            let nodes = names.iter().map(|n| ((*n).into(), "a fan".to_owned()));
            nodes.collect::<BTreeMap<NodeName, String>>()
        };
        assert_eq!(
            drains.look(at(&["n1", "n2"])),
            (vec!["n1".into(), "n2".into()], vec![])
        );
        assert_eq!(drains.look(at(&["n1", "n2"])), (vec![], vec![]));
        assert_eq!(
            drains.look(at(&["n2", "n3"])),
            (vec!["n3".into()], vec!["n1".into()])
        );
        assert_eq!(drains.reason(&"n3".into()).unwrap(), "a fan");
    }
}
