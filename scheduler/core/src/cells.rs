//! Waiting cells: how one comes in, where it stands, and how it gets its lease.

use crate::core::Core;
use crate::id::{CellId, Incarnation, KernelId, LeaseId};
use crate::need::{Class, Need};
use crate::output::{Output, Record, StartLease};
use crate::reason::{Reason, RefusedBecause};
use crate::state::{Cell, Lease, LeaseState, ParkAsk, Pilot, PilotState, Rank, Running, Timer};
use crate::time::{Span, Timestamp};
use std::collections::BTreeSet;

/// A waiting cell is looked at again after this part of the time that it has waited, at most after so long.
const REPORT_PART: u64 = 100;
const REPORT_MOST: Span = Span::from_secs(300);

/// Where a cell could start now.
#[derive(Debug, Clone, Copy)]
struct Spot {
    pilot: u32,
    group: Option<usize>,
    executor: crate::id::Incarnation,
}

impl Core {
    pub(crate) fn submit(
        &mut self,
        kernel_id: KernelId,
        id: CellId,
        need: Need,
        class: Class,
        print: u64,
        out: &mut Vec<Output>,
    ) {
        let refuse = |reason, out: &mut Vec<Output>| {
            out.push(Output::Refused {
                kernel: kernel_id.clone(),
                cell: id.clone(),
                reason,
            });
        };
        let open = |k: &u32| !self.kernels[*k].closed;
        let Some(kernel) = self.find_kernel(&kernel_id).filter(open) else {
            return refuse(RefusedBecause::NoKernel, out);
        };
        if self.asked_before(kernel, &id, out) {
            return;
        }
        if let Some(reason) = self.never(kernel, &need) {
            return refuse(reason, out);
        }
        self.learn_think(kernel, &need);
        self.learn_size(kernel, need.gpus);
        let cpus = self.cpus_of(self.kernels[kernel].pool, &need);
        if let Some(lease) = self.lingering_for(kernel, &need, cpus) {
            let (since, wait) = (self.now, Span::ZERO);
            let running = Running {
                cell: id,
                need,
                class,
                submitted: since,
                since,
                print,
                ran: Span::ZERO,
            };
            return self.grant_lingering(lease, running, wait, out);
        }
        self.end_unfit_lingering(kernel, out);
        let cell = self.new_cell(kernel, id, need, cpus, class, print, self.now, None);
        if !self.try_start(cell, out) {
            self.wait(cell, out);
        }
    }

    /// Answers again for a cell that waits or has its lease: its replica may have asked on a connection that broke.
    pub(crate) fn asked_before(&mut self, kernel: u32, id: &CellId, out: &mut Vec<Output>) -> bool {
        let k = &self.kernels[kernel];
        if let Some(&cell) = k.cells.iter().find(|&&c| self.cells[c].id == *id) {
            self.cells[cell].told = None;
            self.tell(cell, out);
            return true;
        }
        let lease = k.leases.iter().find_map(|l| match &self.leases[l].state {
            LeaseState::Starting { cell } if cell.id == *id => Some((*l, None)),
            LeaseState::Running(r) if r.cell == *id => Some((*l, Some(r.since.since(r.submitted)))),
            _ => None,
        });
        let Some((lease, running)) = lease else {
            return false;
        };
        // One that starts is granted in its own time.
        if let Some(waited) = running {
            let l = &self.leases[&lease];
            out.push(Output::Granted {
                kernel: k.id.clone(),
                cell: id.clone(),
                lease,
                node: self.nodes[self.pilots[l.pilot].node as usize].name.clone(),
                executor: l.executor,
                lingering: l.cells > 1,
                waited,
            });
        }
        true
    }

    /// Why this need can't ever be served.
    fn never(&self, kernel: u32, need: &Need) -> Option<RefusedBecause> {
        if need.is_none() {
            return Some(RefusedBecause::NeedsNothing);
        }
        self.never_in(self.kernels[kernel].pool, need)
            .or_else(|| self.never_within_limits(kernel, need.gpus))
    }

    fn learn_size(&mut self, kernel: u32, gpus: u16) {
        const DECAY: f32 = 0.93;
        if gpus == 0 {
            return;
        }
        let sizes = &mut self.kernels[kernel].sizes;
        for (_, w) in sizes.iter_mut() {
            *w *= DECAY;
        }
        match sizes.iter_mut().find(|(g, _)| *g == gpus) {
            Some((_, w)) => *w += 1.0,
            None => sizes.push((gpus, 1.0)),
        }
    }

    fn learn_think(&mut self, kernel: u32, need: &Need) {
        if need.gpus > 0
            && let Some(end) = self.kernels[kernel].last_end.take()
        {
            self.learn_pace(kernel, self.now.since(end));
        }
    }

    /// Cores of a lease for this need: what it names, else what its GPUs bring, at least one.
    pub(crate) fn cpus_of(&self, pool: u32, need: &Need) -> u16 {
        if need.cpus > 0 {
            return need.cpus;
        }
        let config = &self.pools[pool as usize].config;
        let most = config.cpus_per_pilot.max(1);
        (need.gpus * config.cpus_per_gpu).clamp(1, most)
    }

    /// A lease of the kernel's that lies idle and is just what the cell needs.
    pub(crate) fn lingering_for(&self, kernel: u32, need: &Need, cpus: u16) -> Option<LeaseId> {
        self.kernels[kernel].leases.iter().copied().find(|id| {
            let lease = &self.leases[id];
            let group = lease.group.map(|g| &self.pilots[lease.pilot].groups[g]);
            matches!(lease.state, LeaseState::Lingering { .. })
                && lease.gpus == need.gpus
                && lease.cpus == cpus
                && group.is_none_or(|g| g.fits(need))
        })
    }

    fn end_unfit_lingering(&mut self, kernel: u32, out: &mut Vec<Output>) {
        let idle: Vec<LeaseId> = self.kernels[kernel]
            .leases
            .iter()
            .copied()
            .filter(|id| matches!(self.leases[id].state, LeaseState::Lingering { .. }))
            .collect();
        for id in idle {
            self.end_lease(id, crate::lease::EndCause::Done, out);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is the cell")]
    pub(crate) fn new_cell(
        &mut self,
        kernel: u32,
        id: CellId,
        need: Need,
        cpus: u16,
        class: Class,
        print: u64,
        submitted: Timestamp,
        parked: Option<(Incarnation, Span)>,
    ) -> u32 {
        let seq = self.new_seq();
        let rank = Rank {
            band: 1,
            account: 0,
            user: 0,
            class,
            latest: Timestamp(u64::MAX),
            submitted,
            seq,
        };
        let cell = Cell {
            kernel,
            id,
            need,
            cpus,
            class,
            print,
            submitted,
            seq,
            failures: 0,
            rank,
            reserved: None,
            told: None,
            limited: None,
            parked,
        };
        self.insert_cell(cell)
    }

    /// Puts a cell into the queue.
    pub(crate) fn insert_cell(&mut self, mut cell: Cell) -> u32 {
        cell.rank = self.rank(&cell);
        let (kernel, user) = (cell.kernel, self.kernels[cell.kernel].user);
        let i = self.cells.insert(cell);
        self.kernels[kernel].cells.push(i);
        if let Some((replica, _)) = self.cells[i].parked {
            self.kernels[kernel].parked = Some(replica);
            self.unreserve_where_it_is_not(kernel);
        }
        self.users[user as usize].cells.insert(i);
        self.enqueue(i);
        i
    }

    pub(crate) fn enqueue(&mut self, cell: u32) {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        self.pools[k.pool as usize].queue.insert((c.rank, cell));
        for r in &k.replicas {
            self.nodes[r.node as usize].queue.insert((c.rank, cell));
        }
    }

    pub(crate) fn dequeue(&mut self, cell: u32) {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        self.pools[k.pool as usize].queue.remove(&(c.rank, cell));
        for r in &k.replicas {
            self.nodes[r.node as usize].queue.remove(&(c.rank, cell));
        }
    }

    /// Takes a cell out of the queue for good, with what was held back for it. Returns the node whose GPUs were.
    pub(crate) fn take_cell(&mut self, cell: u32) -> (Cell, Option<u32>) {
        self.dequeue(cell);
        self.unlimit(cell);
        let held_back = self.unreserve(cell);
        let c = self.cells.remove(cell).expect("a cell is taken once");
        let k = &mut self.kernels[c.kernel];
        k.cells.retain(|&x| x != cell);
        let user = k.user;
        if c.parked.is_some() {
            k.parked = None;
            self.stale_around(c.kernel);
        }
        self.users[user as usize].cells.remove(&cell);
        for (span, timer) in [
            (self.config.reserve_after, Timer::Reserve(cell, c.seq)),
            (self.config.aging, Timer::Age(cell, c.seq)),
        ] {
            self.timers.remove(&(c.submitted + span, timer));
        }
        (c, held_back)
    }

    /// No longer holds GPUs back for this cell. Returns the node where it did.
    pub(crate) fn unreserve(&mut self, cell: u32) -> Option<u32> {
        let pilot = self.cells[cell].reserved.take()?;
        self.pilots[pilot].reserved = None;
        let node = self.pilots[pilot].node;
        self.stale.insert(node);
        Some(node)
    }

    // --- starting ---

    /// Starts the cell on a lease if one can be had now.
    pub(crate) fn try_start(&mut self, cell: u32, out: &mut Vec<Output>) -> bool {
        let Some(spot) = self.spot(cell) else {
            return false;
        };
        if let Some(over) = self.over_limit(&self.cells[cell]) {
            if self.cells[cell].limited != Some(over.scope) {
                self.unlimit(cell);
                self.cells[cell].limited = Some(over.scope);
                self.limited.entry(over.scope).or_default().insert(cell);
            }
            return false;
        }
        self.start(cell, spot, out);
        true
    }

    /// Where the cell could start now: where it ran last if possible, else where the fewest GPUs stay over.
    fn spot(&self, cell: u32) -> Option<Spot> {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        let mut best: Option<(bool, u16, Spot)> = None;
        for r in k.able() {
            if k.migrating.is_some_and(|m| m.victim == r.incarnation)
                || self.own_lease_ending(c.kernel, r.node)
            {
                continue;
            }
            let affinity = self.pools[k.pool as usize].config.affinity;
            let elsewhere = affinity && k.home != Some(r.node);

            for &pilot in &self.nodes[r.node as usize].pilots {
                let Some(group) = self.room(&self.pilots[pilot], cell) else {
                    continue;
                };
                let spot = Spot {
                    pilot,
                    group,
                    executor: r.incarnation,
                };
                let key = (elsewhere, self.pilots[pilot].free_gpus());
                if best.is_none_or(|(e, f, _)| key < (e, f)) {
                    best = Some((key.0, key.1, spot));
                }
            }
        }
        best.map(|(_, _, spot)| spot)
    }

    /// Whether nothing keeps the cell from starting now.
    pub(crate) fn could_start(&self, cell: u32) -> bool {
        self.spot(cell).is_some() && self.over_limit(&self.cells[cell]).is_none()
    }

    /// A process must have let go of one device before it gets another on the same node.
    pub(crate) fn own_lease_ending(&self, kernel: u32, node: u32) -> bool {
        self.kernels[kernel].leases.iter().any(|id| {
            let lease = &self.leases[id];
            matches!(lease.state, LeaseState::Ending { .. }) && self.pilots[lease.pilot].node == node
        })
    }

    /// Whether the pilot can take the cell now: `Some(group)`, with no group for cores alone.
    fn room(&self, pilot: &Pilot, cell: u32) -> Option<Option<usize>> {
        let c = &self.cells[cell];
        if pilot.state != PilotState::Up || pilot.pool != self.kernels[c.kernel].pool {
            return None;
        }
        // What is held back for a cell that goes before this one isn't there for this one.
        let held = pilot.reserved.filter(|&r| r != cell).map(|r| &self.cells[r]);
        let held = held.filter(|h| h.rank < c.rank);
        let cpus_held = held.map_or(0, |h| h.cpus);
        if pilot.cpus_free() < c.cpus.saturating_add(cpus_held) {
            return None;
        }
        if c.need.gpus == 0 {
            return Some(None);
        }
        pilot
            .groups
            .iter()
            .position(|g| {
                let gpus_held = held.filter(|h| g.fits(&h.need)).map_or(0, |h| h.need.gpus);
                g.fits(&c.need) && g.free() >= c.need.gpus + gpus_held
            })
            .map(Some)
    }

    fn start(&mut self, cell: u32, spot: Spot, out: &mut Vec<Output>) {
        let (c, held_back) = self.take_cell(cell);
        let id = self.new_lease_id(out);
        let now = self.now;
        let pilot = &mut self.pilots[spot.pilot];
        let gpu_type = spot.group.map(|g| pilot.groups[g].gpu_type.clone());
        let named = gpu_type
            .filter(|t| !t.as_str().is_empty() && (pilot.groups.len() > 1 || c.need.gpu_type.is_some()));
        if let Some(g) = spot.group {
            pilot.groups[g].used += c.need.gpus;
        }
        pilot.cpus_used += c.cpus;
        pilot.steps_left = pilot.steps_left.saturating_sub(1);
        pilot.leases.push(id);
        pilot.idle_since = None;
        let (job, node, pool) = (pilot.job, pilot.node, pilot.pool);
        let k = &mut self.kernels[c.kernel];
        k.leases.push(id);
        k.last_gpus = c.need.gpus;
        let lease = Lease {
            id,
            kernel: c.kernel,
            user: k.user,
            account: k.account,
            pool,
            pilot: spot.pilot,
            group: spot.group,
            gpus: c.need.gpus,
            gpu_type: named,
            cpus: c.cpus,
            executor: spot.executor,
            devices: Vec::new(),
            submit: c.submitted,
            ordered: now,
            start_by: now + self.config.start_timeout,
            started: None,
            run: Span::ZERO,
            linger: Span::ZERO,
            wait: now.since(c.submitted),
            cells: 0,
            charged: now,
            expected: std::cell::Cell::new(Timestamp(0)),
            asked: ParkAsk::No,
            state: LeaseState::Starting { cell: Box::new(c) },
        };
        self.count_held(&lease, true);
        self.leases.insert(id, lease);
        self.at(now + self.config.start_timeout, Timer::StartTimeout(id));
        self.keep_charging();
        self.note_lease(id, out);
        self.announce_start(id, job, node, out);
        self.foresee_soon(pool);
        self.wear(spot.pilot, out);
        if let Some(n) = held_back.filter(|&n| n != node) {
            self.dispatch_node(n, out);
        }
    }

    fn announce_start(&self, id: LeaseId, pilot: crate::id::JobId, node: u32, out: &mut Vec<Output>) {
        let lease = &self.leases[&id];
        let LeaseState::Starting { cell } = &lease.state else {
            return;
        };
        let k = &self.kernels[lease.kernel];
        let user = self.users[lease.user as usize].name.clone();
        let node = self.nodes[node as usize].name.clone();
        out.push(Output::Record(Record::LeaseOpened {
            lease: id,
            kernel: k.id.clone(),
            name: k.name.clone(),
            user: user.clone(),
            account: self.accounts[lease.account as usize].name.clone(),
            pool: self.pools[lease.pool as usize].config.name.clone(),
            node: node.clone(),
            pilot,
            gpus: lease.gpus,
            cpus: lease.cpus,
            submit: lease.submit,
            at: lease.ordered,
        }));
        out.push(Output::StartLease(StartLease {
            lease: id,
            pilot,
            node,
            user,
            kernel: k.id.clone(),
            cell: cell.id.clone(),
            executor: lease.executor,
            gpus: lease.gpus,
            gpu_type: lease.gpu_type.clone(),
            cpus: lease.cpus,
        }));
        self.tell_starting(id, out);
    }

    // --- waiting ---

    /// The cell can't start now: make room for it, come back to it, and say so.
    pub(crate) fn wait(&mut self, cell: u32, out: &mut Vec<Output>) {
        let (submitted, seq) = (self.cells[cell].submitted, self.cells[cell].seq);
        self.at(submitted + self.config.reserve_after, Timer::Reserve(cell, seq));
        if self.cells[cell].rank.band > 0 {
            self.at(submitted + self.config.aging, Timer::Age(cell, seq));
        }
        if self.config.report_every > Span::ZERO {
            self.at(self.now + self.config.report_every, Timer::Report(cell, seq));
        }
        self.claim(cell, out);
        self.make_room_for(cell, seq, out);
    }

    /// Pilots, moves, parks: whatever gets the cell its GPUs sooner. It may have started by then.
    fn make_room_for(&mut self, cell: u32, seq: u64, out: &mut Vec<Output>) {
        let steps: [fn(&mut Self, u32, &mut Vec<Output>); 4] = [
            Self::demand_grew,
            Self::consider_moving,
            |core, cell, out| {
                core.ask_to_park(cell, out);
            },
            Self::tell,
        ];
        for step in steps {
            if self.is_same(cell, seq) {
                step(self, cell, out);
            }
        }
    }

    /// Whether it is still the cell that was meant.
    pub(crate) fn is_same(&self, cell: u32, seq: u64) -> bool {
        self.cells.get(cell).is_some_and(|c| c.seq == seq)
    }

    pub(crate) fn reserve_due(&mut self, cell: u32, seq: u64, out: &mut Vec<Output>) {
        if self.is_same(cell, seq) && self.cells[cell].reserved.is_none() {
            self.reserve(cell, out);
        }
    }

    pub(crate) fn age_due(&mut self, cell: u32, seq: u64, out: &mut Vec<Output>) {
        if self.is_same(cell, seq) {
            self.rerank(cell);
            // What was held back for others may be its own now.
            if !self.try_start(cell, out) {
                self.reserve(cell, out);
            }
        }
    }

    pub(crate) fn report_due(&mut self, cell: u32, seq: u64, out: &mut Vec<Output>) {
        if self.is_same(cell, seq) {
            // Who has waited for hours is looked at less often.
            let waited = self.now.since(self.cells[cell].submitted);
            let least = self.config.report_every.0;
            let every = Span((waited.0 / REPORT_PART).clamp(least, REPORT_MOST.0.max(least)));
            self.at(self.now + every, Timer::Report(cell, seq));
            if self.cells[cell].reserved.is_none() {
                self.reserve(cell, out);
            }
            self.make_room_for(cell, seq, out);
        }
    }

    /// Tells position, reason and estimate, unless position and kind of reason are as told before.
    pub(crate) fn tell(&mut self, cell: u32, out: &mut Vec<Output>) {
        let reason = self.reason(cell);
        let position = self.position(cell);
        let kind = std::mem::discriminant(&reason);
        if self.cells[cell].told == Some((position, kind)) {
            return;
        }
        let estimate = self.estimate(cell);
        let c = &mut self.cells[cell];
        c.told = Some((position, kind));
        out.push(Output::Queued {
            kernel: self.kernels[c.kernel].id.clone(),
            cell: c.id.clone(),
            position,
            reason,
            estimate,
        });
    }

    /// Ends idle leases if that makes room for the cell, and holds that room back for it.
    pub(crate) fn claim(&mut self, cell: u32, out: &mut Vec<Output>) {
        if let Some(over) = self.over_limit(&self.cells[cell]) {
            return self.claim_within_limit(&over, self.cells[cell].need.gpus, out);
        }
        if self.pools[self.kernels[self.cells[cell].kernel].pool as usize]
            .config
            .affinity
            && self.home_can_start(cell)
        {
            return;
        }
        let Some((pilot, group)) = self.claimable(cell) else {
            return;
        };
        if !self.hold_back(pilot, cell) {
            return;
        }
        let (need_gpus, need_cpus) = (self.cells[cell].need.gpus, self.cells[cell].cpus);
        let p = &self.pilots[pilot];
        let mut gpus = group.map_or(0, |g| p.groups[g].free());
        let mut cpus = p.cpus_free();
        let mut idle = Vec::new();
        for id in &p.leases {
            let lease = &self.leases[id];
            match lease.state {
                LeaseState::Ending { .. } => {
                    gpus += if lease.group == group { lease.gpus } else { 0 };
                    cpus += lease.cpus;
                }
                LeaseState::Lingering { since, .. } => idle.push((since, *id)),
                LeaseState::Starting { .. } | LeaseState::Running(_) => {}
            }
        }
        idle.sort_unstable();
        let mut victims = Vec::new();
        for (_, id) in idle {
            if gpus >= need_gpus && cpus >= need_cpus {
                break;
            }
            let lease = &self.leases[&id];
            if need_gpus > 0 && gpus < need_gpus && lease.group != group {
                continue;
            }
            gpus += if lease.group == group { lease.gpus } else { 0 };
            cpus += lease.cpus;
            victims.push(id);
        }
        for id in victims {
            self.end_lease(id, crate::lease::EndCause::Claimed, out);
        }
    }

    /// The pilot where the fewest idle leases must end for the cell to start, if any will do.
    fn claimable(&self, cell: u32) -> Option<(u32, Option<usize>)> {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        let mut best: Option<(u16, u32, Option<usize>)> = None;
        for r in k.able() {
            for &pilot in &self.nodes[r.node as usize].pilots {
                let p = &self.pilots[pilot];
                let taken = p
                    .reserved
                    .is_some_and(|o| o != cell && self.cells[o].rank < c.rank);
                if p.state != PilotState::Up || p.pool != k.pool || taken {
                    continue;
                }
                let groups: Vec<Option<usize>> = if c.need.gpus == 0 {
                    vec![None]
                } else {
                    (0..p.groups.len())
                        .filter(|&g| p.groups[g].fits(&c.need))
                        .map(Some)
                        .collect()
                };
                for group in groups {
                    if let Some(idle) = self.idle_needed(p, group, c)
                        && best.is_none_or(|(n, _, _)| idle < n)
                    {
                        best = Some((idle, pilot, group));
                    }
                }
            }
        }
        best.map(|(_, pilot, group)| (pilot, group))
    }

    /// How many GPUs of idle leases must be taken for the cell; none: all of them wouldn't do.
    fn idle_needed(&self, p: &Pilot, group: Option<usize>, c: &Cell) -> Option<u16> {
        let mut gpus = group.map_or(0, |g| p.groups[g].free());
        let mut cpus = p.cpus_free();
        let (mut idle_gpus, mut idle_cpus) = (0, 0);
        for id in &p.leases {
            let lease = &self.leases[id];
            let mine = if lease.group == group { lease.gpus } else { 0 };
            match lease.state {
                LeaseState::Ending { .. } => {
                    gpus += mine;
                    cpus += lease.cpus;
                }
                LeaseState::Lingering { .. } => {
                    idle_gpus += mine;
                    idle_cpus += lease.cpus;
                }
                LeaseState::Starting { .. } | LeaseState::Running(_) => {}
            }
        }
        let enough = gpus + idle_gpus >= c.need.gpus && cpus + idle_cpus >= c.cpus;
        enough.then(|| c.need.gpus.saturating_sub(gpus))
    }

    /// Holds the pilot's GPUs back for the cell, if nobody who goes before it has them held back already.
    pub(crate) fn hold_back(&mut self, pilot: u32, cell: u32) -> bool {
        if let Some(other) = self.pilots[pilot].reserved {
            if other == cell {
                return true;
            }
            if self.cells[other].rank < self.cells[cell].rank {
                return false;
            }
            self.cells[other].reserved = None;
        }
        self.unreserve(cell);
        self.pilots[pilot].reserved = Some(cell);
        self.cells[cell].reserved = Some(pilot);
        self.stale.insert(self.pilots[pilot].node);
        true
    }

    fn claim_within_limit(&mut self, over: &crate::fair::Over, gpus: u16, out: &mut Vec<Output>) {
        let mut excess = (over.used + u32::from(gpus)).saturating_sub(over.limit);
        let mut victims = Vec::new();
        for (id, lease) in &self.leases {
            let counted = match over.scope {
                crate::state::Scope::User(u) => lease.user == u,
                crate::state::Scope::Account(a) => lease.account == a,
                crate::state::Scope::Pool(p) => lease.pool == p,
                crate::state::Scope::UserInPool(u, p) => lease.user == u && lease.pool == p,
                crate::state::Scope::Members(limit, key) => self.is_counted(lease, limit, key),
            };
            if !counted || excess == 0 {
                continue;
            }
            match lease.state {
                LeaseState::Ending { .. } => excess = excess.saturating_sub(u32::from(lease.gpus)),
                LeaseState::Lingering { .. } => {
                    excess = excess.saturating_sub(u32::from(lease.gpus));
                    victims.push(*id);
                }
                LeaseState::Starting { .. } | LeaseState::Running(_) => {}
            }
        }
        for id in victims {
            self.end_lease(id, crate::lease::EndCause::Claimed, out);
        }
    }

    /// Holds GPUs back for a cell that has waited long, where they are expected first.
    pub(crate) fn reserve(&mut self, cell: u32, out: &mut Vec<Output>) {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        let mut best: Option<(Span, u32)> = None;
        for r in k.able() {
            for &pilot in &self.nodes[r.node as usize].pilots {
                let p = &self.pilots[pilot];
                let taken = p
                    .reserved
                    .is_some_and(|o| o != cell && self.cells[o].rank < c.rank);
                if taken || p.state != PilotState::Up {
                    continue;
                }
                if let Some(span) = self.free_in(p, c)
                    && best.is_none_or(|(b, _)| span < b)
                {
                    best = Some((span, pilot));
                }
            }
        }
        if let Some((_, pilot)) = best
            && self.cells[cell].reserved != Some(pilot)
        {
            let left = self.unreserve(cell);
            self.hold_back(pilot, cell);
            self.end_idle_for(pilot, cell, out);
            if let Some(node) = left {
                self.dispatch_node(node, out);
            }
        }
    }

    /// Ends the idle leases in the pilot that is held back for the cell: all of it is needed sooner or later.
    fn end_idle_for(&mut self, pilot: u32, cell: u32, out: &mut Vec<Output>) {
        for id in self.pilots[pilot].leases.clone() {
            if matches!(self.leases[&id].state, LeaseState::Lingering { .. }) && self.helps(id, cell) {
                self.end_lease(id, crate::lease::EndCause::Claimed, out);
            }
        }
    }

    // --- dispatch ---

    /// Who waits where the kernel is may be able to start now.
    pub(crate) fn stale_around(&mut self, kernel: u32) {
        let nodes = self.kernels[kernel].replicas.iter().map(|r| r.node);
        self.stale.extend(nodes);
    }

    /// GPUs or cores of this node have become free: start who waits for them, in order.
    pub(crate) fn dispatch_node(&mut self, node: u32, out: &mut Vec<Output>) {
        if self.nodes[node as usize].queue.is_empty() {
            return;
        }
        let waiting: Vec<u32> = self.nodes[node as usize].queue.iter().map(|&(_, c)| c).collect();
        for cell in waiting {
            let n = &self.nodes[node as usize];
            let free = |p: &u32| self.pilots[*p].state == PilotState::Up && self.pilots[*p].cpus_free() > 0;
            if !n.pilots.iter().any(free) {
                return;
            }
            if self.cells.get(cell).is_some() {
                self.try_start(cell, out);
            }
        }
    }

    /// Tries these cells again, in the queue's order, and makes those that still can't start wait on.
    pub(crate) fn retry(&mut self, cells: &BTreeSet<u32>, out: &mut Vec<Output>) {
        let mut order: Vec<u32> = cells
            .iter()
            .copied()
            .filter(|&c| self.cells.get(c).is_some())
            .collect();
        order.sort_by_key(|&c| self.cells[c].rank);
        for cell in order {
            if self.cells.get(cell).is_some() && !self.try_start(cell, out) {
                self.claim(cell, out);
                self.tell(cell, out);
            }
        }
    }

    /// Who would start if this lease ended: the first in the queue that its pilot then had room for.
    pub(crate) fn claimant(&self, id: LeaseId) -> Option<u32> {
        let lease = &self.leases[&id];
        let p = &self.pilots[lease.pilot];
        if p.state != PilotState::Up {
            return None;
        }
        self.nodes[p.node as usize]
            .queue
            .iter()
            .map(|&(_, c)| c)
            .find(|&cell| {
                let c = &self.cells[cell];
                if !self.kernels[c.kernel].able().any(|r| r.node == p.node) {
                    return false;
                }
                let held = p.reserved.filter(|&r| r != cell && self.cells[r].rank < c.rank);
                if held.is_some() || c.limited.is_some() || self.kernels[c.kernel].pool != p.pool {
                    return false;
                }
                let extra = |g: usize| if lease.group == Some(g) { lease.gpus } else { 0 };
                let cpus = p.cpus_free() + lease.cpus >= c.cpus;
                // A lease that the cell could have started without doesn't hold it up.
                let gpus = match c.need.gpus {
                    0 => p.cpus_free() < c.cpus,
                    n => p.groups.iter().enumerate().any(|(g, group)| {
                        group.fits(&c.need) && extra(g) > 0 && group.free() + extra(g) >= n
                    }),
                };
                cpus && gpus
            })
    }

    // --- leaving ---

    /// Takes a waiting cell away, or ends the lease that runs it. `because`: told to the kernel; none where the
    /// kernel itself asked.
    pub(crate) fn cancel_cell(
        &mut self,
        kernel_id: &KernelId,
        id: &CellId,
        because: Option<RefusedBecause>,
        out: &mut Vec<Output>,
    ) {
        let Some(kernel) = self.find_kernel(kernel_id) else {
            return;
        };
        let k = &self.kernels[kernel];
        if let Some(&cell) = k.cells.iter().find(|&&c| self.cells[c].id == *id) {
            return self.drop_cell(cell, because, out);
        }
        let holds = |l: &&LeaseId| match &self.leases[*l].state {
            LeaseState::Starting { cell } => cell.id == *id,
            LeaseState::Running(r) => r.cell == *id,
            LeaseState::Lingering { .. } | LeaseState::Ending { .. } => false,
        };
        if let Some(&lease) = k.leases.iter().find(holds) {
            self.drop_started(lease, because, out);
        }
    }

    fn drop_started(&mut self, lease: LeaseId, because: Option<RefusedBecause>, out: &mut Vec<Output>) {
        let cause = crate::lease::EndCause::Cancelled;
        if let Some(cell) = self.end_lease_keep_cell(lease, cause, out)
            && let Some(reason) = because
        {
            out.push(Output::Refused {
                kernel: self.kernels[cell.kernel].id.clone(),
                cell: cell.id,
                reason,
            });
        }
    }

    pub(crate) fn drop_cell(&mut self, cell: u32, because: Option<RefusedBecause>, out: &mut Vec<Output>) {
        let (c, held_back) = self.take_cell(cell);
        if let Some(reason) = because {
            out.push(Output::Refused {
                kernel: self.kernels[c.kernel].id.clone(),
                cell: c.id,
                reason,
            });
        }
        if let Some(node) = held_back {
            self.dispatch_node(node, out);
        }
    }

    /// A cell whose lease came to nothing waits again, where it stood.
    pub(crate) fn requeue(&mut self, cell: Cell, why: &str, out: &mut Vec<Output>) {
        if self.kernels[cell.kernel].closed {
            return;
        }
        if cell.failures > self.config.start_retries {
            out.push(Output::Refused {
                kernel: self.kernels[cell.kernel].id.clone(),
                cell: cell.id,
                reason: RefusedBecause::StartFailed {
                    tries: cell.failures,
                    reason: why.to_owned(),
                },
            });
            return;
        }
        let fresh = Cell {
            reserved: None,
            told: None,
            limited: None,
            ..cell
        };
        let cell = self.insert_cell(fresh);
        if !self.try_start(cell, out) {
            self.wait(cell, out);
        }
    }

    /// The reason for which the cell waits, recomputed.
    pub(crate) fn reason(&self, cell: u32) -> Reason {
        let c = &self.cells[cell];
        let k = &self.kernels[c.kernel];
        if let Some(m) = &k.migrating {
            return Reason::Migrating {
                to: self.nodes[m.to as usize].name.clone(),
            };
        }
        if k.replicas.is_empty() {
            return Reason::NoReplica;
        }
        if let Some(over) = self.over_limit(c) {
            return Self::limit_reason(&over);
        }
        if let Some(p) = c.reserved
            && self.idle_needed_now(p, c)
        {
            let node = self.pilots[p].node;
            return Reason::Claiming {
                node: self.nodes[node as usize].name.clone(),
            };
        }
        if k.able().all(|r| self.own_lease_ending(c.kernel, r.node)) {
            return Reason::OwnLease;
        }
        if let Some(p) = c.reserved
            && self.is_asked(p)
        {
            let node = self.nodes[self.pilots[p].node as usize].name.clone();
            return Reason::Parking { node };
        }
        self.reason_on_nodes(cell)
    }

    /// Whether what is ending already on the pilot will do for the cell.
    fn idle_needed_now(&self, pilot: u32, c: &Cell) -> bool {
        let p = &self.pilots[pilot];
        if c.need.gpus == 0 {
            return self.idle_needed(p, None, c).is_some();
        }
        (0..p.groups.len())
            .filter(|&g| p.groups[g].fits(&c.need))
            .any(|g| self.idle_needed(p, Some(g), c) == Some(0))
    }
}
