//! Pilots that were asked for and don't come: given up, and asked for elsewhere.
//!
//! A pilot not started by Slurm stays in Slurm's queue until others need the room: the pilot may be the first to
//! get the node's GPUs. But a waiting pilot keeps nobody from asking for a pilot on another node. Pilots are first
//! asked for where the jobs of others leave room for them.

use crate::core::Core;
use crate::index::Idx;
use crate::input::Room;
use crate::output::Output;
use crate::state::{Cell, Node, Pool, Shunned, Ticket, Timer, Waiting};
use hop_words::id::{GpuType, NodeName};
use hop_words::time::Span;
use std::collections::BTreeSet;

/// The least wait for a pilot: longer than `slurmd` or a node takes to restart.
pub(crate) const GIVEN_UP: Span = Span::from_secs(300);

/// After a pilot was given up, no pilot is asked for on the node for this long: a new pilot would go the same way.
const SHUNNED: Span = Span::from_secs(600);

/// The longest such pause, after several in a row.
const SHUNNED_AT_MOST: Span = Span::from_secs(4 * 3600);

impl Core {
    /// Whether Slurm should have started the pilot long ago, and may be asked for another instead. Slurm itself ends
    /// the job whose burst node doesn't boot.
    pub(crate) fn is_stuck(&self, ticket: &Ticket) -> bool {
        !ticket.bursts && self.now.since(ticket.at) >= GIVEN_UP && self.is_late_to_boot(ticket)
    }

    /// Whether a pilot asked for on the node should come soon. No other is asked for beside one that Slurm doesn't
    /// start.
    pub(crate) fn is_trusted(&self, node: Idx<Node>) -> bool {
        let shunned = self.supply.nodes[node].shunned;
        let mut coming = self.supply.tickets.on(node);
        shunned.is_none_or(|s| s.until <= self.now) && !coming.any(|(_, t)| self.is_stuck(t))
    }

    /// Slurm has told how much room the jobs of others leave on the node. More room than before ends the pause after
    /// which pilots are asked for there again.
    pub(crate) fn node_room(&mut self, name: &NodeName, room: Room) {
        if let Some(i) = self.find_node(name) {
            let node = &mut self.supply.nodes[i];
            let pool = (room.taken != node.room.taken).then_some(node.pool);
            let crowded = room.taken > node.room.taken;
            // The pause is over; the next one is longer all the same.
            if room.taken < node.room.taken
                && let Some(shunned) = &mut node.shunned
            {
                shunned.until = shunned.until.min(self.now);
            }
            node.room = room;
            if crowded {
                self.lose_hold_in_vain(i);
            }
            self.work.unheld.extend(pool);
        }
    }

    /// Whether the jobs of others are in the way of so many GPUs more on the node: a pilot there would wait for them.
    pub(crate) fn is_taken(&self, node: Idx<Node>, size: u16) -> bool {
        self.supply.nodes[node].room.taken > 0 && !self.has_room(node, size)
    }

    /// Whether so many GPUs more are free on the node, beside our pilots and the jobs of others.
    pub(crate) fn has_room(&self, node: Idx<Node>, size: u16) -> bool {
        self.spare_gpus(node) >= size.saturating_add(self.supply.nodes[node].room.taken)
    }

    /// A pilot was asked for on the node in vain: the next is asked for after a pause, twice as long as the last one.
    fn shun(&mut self, node: Idx<Node>) {
        let last = self.supply.nodes[node].shunned.map_or(Span::ZERO, |s| s.pause);
        let pause = Span(last.0.saturating_mul(2)).clamp(SHUNNED, SHUNNED_AT_MOST);
        let until = self.now + pause;
        self.supply.nodes[node].shunned = Some(Shunned { until, pause });
    }

    /// Whether Slurm doesn't start a pilot asked for on account of the cell.
    pub(crate) fn has_stuck(&self, cell: Idx<Cell>) -> bool {
        let mut own = self.supply.tickets.for_cell((cell, self.work.cells[cell].seq));
        own.any(|(_, t)| self.is_stuck(t))
    }

    /// GPUs of the pool's coming pilots on its own nodes that Slurm doesn't start.
    pub(crate) fn gpus_stuck(&self, pool: Idx<Pool>) -> u32 {
        self.stuck_in(pool).map(|(_, t)| u32::from(t.gpus)).sum()
    }

    fn stuck_in(&self, pool: Idx<Pool>) -> impl Iterator<Item = (u64, &Ticket)> {
        let all = self.supply.tickets.numbered();
        all.filter(move |(_, t)| t.pool == pool && self.is_stuck(t))
    }

    /// Another pilot of so many GPUs is asked for: as many of the pilots that Slurm doesn't start are given up as the
    /// pool's maximum asks for, the oldest first.
    pub(crate) fn take_place_of_stuck(&mut self, pool: Idx<Pool>, gpus: u16, out: &mut Vec<Output>) {
        let mut excess = self.too_many_in_all(pool, gpus);
        if excess == 0 {
            return;
        }
        let mut given_up = Vec::new();
        for (number, ticket) in self.stuck_in(pool) {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(ticket.gpus.into());
            given_up.push(number);
        }
        self.give_up_stuck(&given_up, out);
    }

    /// Another pilot was asked for on account of the cell: gives up the cell's pilots that Slurm doesn't start.
    pub(crate) fn give_up_stuck_for(&mut self, cell: Idx<Cell>, out: &mut Vec<Output>) {
        let this = (cell, self.work.cells[cell].seq);
        let stuck = self.supply.tickets.for_cell(this);
        let stuck = stuck.filter(|(_, t)| self.is_stuck(t)).map(|(number, _)| number);
        let stuck: Vec<u64> = stuck.collect();
        self.give_up_stuck(&stuck, out);
    }

    /// Cancels these pilots. Cells that wait on their nodes, and the pool's minimum, are looked at once the present
    /// request is made.
    fn give_up_stuck(&mut self, tickets: &[u64], out: &mut Vec<Output>) {
        for &ticket in tickets {
            let Some(given_up) = self.cancel_ticket(ticket, out) else {
                continue;
            };
            if let Some(node) = given_up.node {
                self.shun(node);
                self.work.demanding.insert(node);
            }
            self.at(self.now, Timer::Scale(given_up.pool));
        }
    }

    /// A pilot that Slurm doesn't start, and for which nobody waits, is given up.
    pub(crate) fn stuck_due(&mut self, ticket: u64, out: &mut Vec<Output>) {
        let Some(t) = self.supply.tickets.get(ticket) else {
            return;
        };
        let Some(node) = t.node.filter(|_| !t.bursts) else {
            return;
        };
        let has_cell = t.cell.is_some_and(|(cell, seq)| self.is_same(cell, seq));
        if has_cell || !self.supply.nodes[node].queue.is_empty() || !self.is_stuck(t) {
            return self.at(self.now + GIVEN_UP, Timer::Stuck(ticket));
        }
        self.shun(node);
        self.give_up(&[ticket], out);
    }

    /// A node without a type that Slurm doesn't name first for it serves other pilots as before.
    fn refused_on(&mut self, node: Idx<Node>, asked: Option<GpuType>) {
        let n = &mut self.supply.nodes[node];
        match asked.filter(|t| *t != n.gpu_type) {
            Some(gpu_type) => _ = n.lacks.insert(gpu_type),
            None => self.shun(node),
        }
    }

    /// Slurm can't start the pilot on its node, however long it waits. A pilot for no node in particular has merely
    /// failed: there is no other place for it, and the next attempt would go the same way.
    pub(crate) fn pilot_refused(&mut self, ticket: u64, out: &mut Vec<Output>) {
        let Some(node) = self.supply.tickets.get(ticket).and_then(|t| t.node) else {
            return self.pilot_failed(ticket, out);
        };
        if let Some(t) = self.drop_ticket(ticket, out) {
            self.refused_on(node, t.gpu_type);
            self.keep_pilots(t.pool, out);
            self.instead_of(t.cell, out);
        }
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
