//! Pilots that were asked for and don't come: given up, and asked for elsewhere.

use crate::core::Core;
use crate::index::Idx;
use crate::output::Output;
use crate::state::{Node, Ticket, Waiting};
use hop_words::time::Span;
use std::collections::BTreeSet;

/// A pilot is waited for at least so long: longer than `slurmd` or a node takes to restart.
const GIVEN_UP: Span = Span::from_secs(300);

impl Core {
    /// Whether Slurm should have started the pilot long ago, and may be asked for another instead. Slurm itself ends
    /// the job whose burst node doesn't boot.
    pub(crate) fn is_stuck(&self, ticket: &Ticket) -> bool {
        !ticket.bursts && self.now.since(ticket.at) >= GIVEN_UP && self.is_late_to_boot(ticket)
    }

    /// Cancels these of the pilots that were asked for on the node, and looks for others for their cells and pools.
    pub(crate) fn give_up_tickets(
        &mut self,
        node: Idx<Node>,
        which: impl Fn(&Self, &Ticket) -> bool,
        out: &mut Vec<Output>,
    ) {
        let here = self.supply.tickets.on(node);
        let given_up = here.filter(|(_, t)| which(self, t)).map(|(number, _)| number);
        let given_up: Vec<u64> = given_up.collect();
        self.give_up(&given_up, out);
    }

    /// Cancels requested pilots for which the node has no room any more. They would wait in Slurm's queue for our own
    /// pilots' GPUs, and their cells with them. Of a node of unknown size nothing can be told.
    pub(crate) fn cancel_crowded_out(&mut self, node: Idx<Node>, out: &mut Vec<Output>) {
        let n = &self.supply.nodes[node];
        if !n.sized {
            return;
        }
        let mut room = n.gpus.saturating_sub(self.gpus_up(node));
        let here = self.supply.tickets.on(node).filter(|(_, t)| {
            let fits = t.gpus <= room;
            room -= if fits { t.gpus } else { 0 };
            !fits
        });
        let crowded_out: Vec<u64> = here.map(|(number, _)| number).collect();
        self.give_up(&crowded_out, out);
    }

    fn give_up(&mut self, tickets: &[u64], out: &mut Vec<Output>) {
        let given_up: Vec<Ticket> = tickets
            .iter()
            .filter_map(|&t| self.cancel_ticket(t, out))
            .collect();
        let pools: BTreeSet<_> = given_up.iter().map(|t| t.pool).collect();
        for pool in pools {
            self.keep_pilots(pool, out);
        }
        for ticket in given_up {
            self.instead_of(ticket.cell, out);
        }
    }

    fn cancel_ticket(&mut self, ticket: u64, out: &mut Vec<Output>) -> Option<Ticket> {
        let dropped = self.drop_ticket(ticket, out)?;
        out.push(Output::CancelPilot {
            ticket,
            job: dropped.job,
        });
        Some(dropped)
    }

    /// The pilot for this cell doesn't come: the cell may need another.
    fn instead_of(&mut self, waiting: Option<Waiting>, out: &mut Vec<Output>) {
        if let Some((cell, seq)) = waiting
            && self.is_same(cell, seq)
        {
            self.demand_grew(cell, out);
        }
    }
}
