//! Ship, recompute or leave: the cheapest way to have every group of variables at the target.
//!
//! For each active group g, `s(g)` is the cost to ship the group: serialise + bytes / bandwidth + load. The cost is
//! infinite if the round trip failed, and nothing if the target has the group. `rec(g)` are the cells to run to rebuild
//! the group: cells reached backwards from its producer, stopping at active versions. The plan picks the set S of
//! shipped groups that minimises the sum of s over S plus the sum of run times over the *union* of rec(g) for g outside
//! S. The plan is a minimum cut: source -> g with s(g), g -> c without limit for c in rec(g), c -> sink with r(c).
//!
//! A cell of rec(g) that reads an active version of another group needs that group at the target, shipped or rebuilt.
//! If neither is possible, g can't be rebuilt.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// What a plan is made from. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    pub cells: Vec<Cell>,
    pub groups: Vec<Group>,
}

/// One execution of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Seconds of the cell's run; `None` for a cell that mustn't run again.
    pub run: Option<f64>,
    /// Versions that it read.
    pub reads: Vec<VersionId>,
}

/// A group's content as left by a cell: the cell's number, from 0, and the group's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VersionId {
    pub cell: usize,
    /// Index in [`Problem::groups`] if this version is the group's present version.
    pub active: Option<usize>,
}

/// A group as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The cell that made this version.
    pub producer: usize,
    /// Seconds to ship the group; `None` if it can't be shipped.
    pub ship: Option<f64>,
    /// Whether the target has this version.
    #[serde(default)]
    pub there: bool,
    /// Another cell that a rebuild needs: the trial of an unshipped group, or a barred cell for a group that must not
    /// be rebuilt.
    #[serde(default)]
    pub also: Option<usize>,
}

/// What to do with a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The target has this version already.
    Leave,
    Ship,
    /// Run the group's cells.
    Recompute,
    /// Neither way is open.
    Placeholder,
}

/// A decision for each group, and the plan's cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub choices: Vec<Choice>,
    /// Cells to run, in order.
    pub rerun: Vec<usize>,
    /// Seconds in all.
    pub cost: f64,
}

/// The cells that must run to rebuild a group: back from its producer, stopping at active versions of other groups.
pub fn rebuilding(problem: &Problem, group: usize) -> BTreeSet<usize> {
    let mut cells = BTreeSet::new();
    let mut queue: VecDeque<usize> = [problem.groups[group].producer].into();
    queue.extend(problem.groups[group].also);
    while let Some(cell) = queue.pop_front() {
        if cell < problem.cells.len() && cells.insert(cell) {
            queue.extend(
                problem.cells[cell]
                    .reads
                    .iter()
                    .filter(|v| v.active.is_none())
                    .map(|v| v.cell),
            );
        }
    }
    cells
}

/// What it takes to rebuild one group.
struct Rebuilt {
    cells: BTreeSet<usize>,
    /// Whether all of it can be had.
    open: bool,
}

/// Cells of each group's rebuild, and whether it is possible.
fn rebuilt(problem: &Problem) -> Vec<Rebuilt> {
    let mut groups: Vec<Rebuilt> = (0..problem.groups.len())
        .map(|g| Rebuilt {
            cells: rebuilding(problem, g),
            open: false,
        })
        .collect();
    let shipped = |g: usize| problem.groups[g].there || ship_cost(&problem.groups[g]).is_finite();
    let had = |groups: &[Rebuilt], g: usize| shipped(g) || groups[g].open;
    // Groups open one after the other, until no more do.
    while let Some(next) = (0..groups.len()).find(|&g| {
        !groups[g].open
            && groups[g].cells.iter().all(|&c| {
                let cell = &problem.cells[c];
                let inputs = cell.reads.iter().filter_map(|v| v.active);
                cell.run.is_some() && inputs.into_iter().all(|h| had(&groups, h))
            })
    }) {
        groups[next].open = true;
    }
    groups
}

/// Seconds to ship a group, infinite where it can't be.
fn ship_cost(group: &Group) -> f64 {
    match group.ship {
        _ if group.there => 0.0,
        Some(seconds) if seconds.is_finite() => seconds,
        _ => f64::INFINITY,
    }
}

/// The cheapest plan. On ties, ship.
pub fn plan(problem: &Problem) -> Plan {
    let rebuilt = rebuilt(problem);
    let ship: Vec<f64> = problem.groups.iter().map(ship_cost).collect();
    let mut graph = Flow::new(2 + problem.groups.len() + problem.cells.len());
    let (source, sink) = (0, 1);
    let group_node = |g: usize| 2 + g;
    let cell_node = |c: usize| 2 + problem.groups.len() + c;
    for (g, group) in rebuilt.iter().enumerate() {
        // A group with a single way is decided; a group without any is a placeholder and costs nothing.
        if !group.open || ship[g] <= 0.0 {
            continue;
        }
        graph.edge(source, group_node(g), ship[g]);
        for &c in &group.cells {
            graph.edge(group_node(g), cell_node(c), f64::INFINITY);
        }
    }
    for (c, cell) in problem.cells.iter().enumerate() {
        graph.edge(cell_node(c), sink, cell.run.unwrap_or(f64::INFINITY));
    }
    graph.saturate(source, sink);
    // The source's side of the cut is the smallest possible: a tie falls to shipping.
    let recomputed = graph.reachable(source);
    let choices = (0..problem.groups.len())
        .map(
            |g| match (problem.groups[g].there, rebuilt[g].open, ship[g].is_finite()) {
                (true, _, _) => Choice::Leave,
                (_, false, true) => Choice::Ship,
                (_, false, false) => Choice::Placeholder,
                _ if ship[g] > 0.0 && recomputed[group_node(g)] => Choice::Recompute,
                _ => Choice::Ship,
            },
        )
        .collect();
    finish(problem, &rebuilt, &ship, choices)
}

fn finish(problem: &Problem, rebuilt: &[Rebuilt], ship: &[f64], choices: Vec<Choice>) -> Plan {
    let rerun: BTreeSet<usize> = choices
        .iter()
        .zip(rebuilt)
        .filter(|(choice, _)| **choice == Choice::Recompute)
        .flat_map(|(_, group)| group.cells.iter().copied())
        .collect();
    let shipped: f64 = choices
        .iter()
        .zip(ship)
        .filter(|(c, _)| **c == Choice::Ship)
        .map(|(_, s)| s)
        .sum();
    let ran: f64 = rerun.iter().filter_map(|&c| problem.cells[c].run).sum();
    Plan {
        choices,
        rerun: rerun.into_iter().collect(),
        cost: shipped + ran,
    }
}

/// A flow network with real capacities.
struct Flow {
    edges: Vec<Edge>,
    from: Vec<Vec<usize>>,
}

struct Edge {
    to: usize,
    left: f64,
}

impl Flow {
    fn new(nodes: usize) -> Self {
        Self {
            edges: Vec::new(),
            from: vec![Vec::new(); nodes],
        }
    }

    fn edge(&mut self, from: usize, to: usize, capacity: f64) {
        self.from[from].push(self.edges.len());
        self.edges.push(Edge { to, left: capacity });
        self.from[to].push(self.edges.len());
        self.edges.push(Edge { to: from, left: 0.0 });
    }

    /// Pushes along shortest paths until none is left (Edmonds and Karp).
    fn saturate(&mut self, source: usize, sink: usize) {
        while let Some(path) = self.path(source, sink) {
            let least = path
                .iter()
                .map(|&e| self.edges[e].left)
                .fold(f64::INFINITY, f64::min);
            if !least.is_finite() {
                break;
            }
            for e in path {
                self.edges[e].left -= least;
                self.edges[e ^ 1].left += least;
            }
        }
    }

    fn path(&self, source: usize, sink: usize) -> Option<Vec<usize>> {
        let mut by: Vec<Option<usize>> = vec![None; self.from.len()];
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &e in &self.from[node] {
                let to = self.edges[e].to;
                if self.edges[e].left > 0.0 && to != source && by[to].is_none() {
                    by[to] = Some(e);
                    queue.push_back(to);
                }
            }
        }
        let mut path = Vec::new();
        let mut at = sink;
        while at != source {
            let e = by[at]?;
            path.push(e);
            at = self.edges[e ^ 1].to;
        }
        Some(path)
    }

    fn reachable(&self, source: usize) -> Vec<bool> {
        let mut seen = vec![false; self.from.len()];
        let mut stack = vec![source];
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut seen[node], true) {
                stack.extend(
                    self.from[node]
                        .iter()
                        .filter(|&&e| self.edges[e].left > 0.0)
                        .map(|&e| self.edges[e].to),
                );
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(producer: usize, ship: Option<f64>) -> Group {
        Group {
            producer,
            ship,
            there: false,
            also: None,
        }
    }

    fn cell(run: Option<f64>, reads: &[(usize, Option<usize>)]) -> Cell {
        Cell {
            run,
            reads: reads
                .iter()
                .map(|&(cell, active)| VersionId { cell, active })
                .collect(),
        }
    }

    #[test]
    fn cheap_cells_run_again_and_dear_ones_are_shipped() {
        let problem = Problem {
            cells: vec![cell(Some(1.0), &[]), cell(Some(100.0), &[(0, Some(0))])],
            groups: vec![group(0, Some(5.0)), group(1, Some(5.0))],
        };
        let plan = plan(&problem);
        assert_eq!(
            plan,
            Plan {
                choices: vec![Choice::Recompute, Choice::Ship],
                rerun: vec![0],
                cost: 6.0
            }
        );
    }

    #[test]
    fn a_cell_that_serves_two_groups_is_paid_once() {
        let problem = Problem {
            cells: vec![cell(Some(8.0), &[])],
            groups: vec![group(0, Some(5.0)), group(0, Some(5.0))],
        };
        assert_eq!(plan(&problem).choices, [Choice::Recompute; 2]);
    }

    #[test]
    fn barred_cells_and_unpicklable_groups_leave_placeholders() {
        let problem = Problem {
            cells: vec![cell(None, &[]), cell(Some(1.0), &[(0, None)])],
            groups: vec![group(1, None), group(1, Some(3.0))],
        };
        assert_eq!(plan(&problem).choices, [Choice::Placeholder, Choice::Ship]);
    }

    #[test]
    fn what_is_there_is_left_and_ties_ship() {
        let mut problem = Problem {
            cells: vec![cell(Some(2.0), &[])],
            groups: vec![group(0, Some(2.0))],
        };
        assert_eq!(plan(&problem).choices, [Choice::Ship]);
        problem.groups[0].there = true;
        assert_eq!(
            plan(&problem),
            Plan {
                choices: vec![Choice::Leave],
                rerun: vec![],
                cost: 0.0
            }
        );
    }

    #[test]
    fn what_reads_a_placeholder_is_not_rebuilt() {
        let mut problem = Problem {
            cells: vec![cell(None, &[]), cell(Some(1.0), &[(0, Some(0))])],
            groups: vec![group(0, None), group(1, None)],
        };
        assert_eq!(plan(&problem).choices, [Choice::Placeholder; 2]);
        problem.groups[0].ship = Some(1.0);
        assert_eq!(plan(&problem).choices, [Choice::Ship, Choice::Recompute]);
    }

    #[test]
    fn a_trial_is_paid_once_by_those_that_need_it() {
        let mut problem = Problem {
            cells: vec![cell(Some(2.0), &[]), cell(Some(1.0), &[]), cell(Some(1.0), &[])],
            groups: vec![group(1, Some(2.5)), group(2, Some(2.5)), group(1, None)],
        };
        for g in 0..2 {
            problem.groups[g].also = Some(0);
        }
        let both = plan(&problem);
        assert_eq!(
            (both.choices[0], both.choices[1], both.cost),
            (Choice::Recompute, Choice::Recompute, 4.0)
        );
        problem.groups.remove(1);
        let one = plan(&problem);
        assert_eq!((one.choices, one.rerun), (vec![Choice::Recompute; 2], vec![0, 1]));
        problem.groups[0].ship = Some(1.5);
        assert_eq!(plan(&problem).choices, [Choice::Ship, Choice::Recompute]);
    }

    /// Groups that can be rebuilt: a fixed point over the reasons against.
    fn can_be_rebuilt(problem: &Problem) -> Vec<bool> {
        let n = problem.groups.len();
        let mut open = vec![false; n];
        for _ in 0..=n {
            for g in 0..n {
                open[g] = rebuilding(problem, g).iter().all(|&c| {
                    problem.cells[c].run.is_some()
                        && problem.cells[c].reads.iter().all(|v| {
                            v.active.is_none_or(|h| {
                                problem.groups[h].there || problem.groups[h].ship.is_some() || open[h]
                            })
                        })
                });
            }
        }
        open
    }

    /// Tries every set of shipped groups.
    fn brute(problem: &Problem) -> f64 {
        let n = problem.groups.len();
        let open_groups = can_be_rebuilt(problem);
        let mut best = f64::INFINITY;
        for set in 0..1u32 << n {
            let mut cost = 0.0;
            let mut cells = BTreeSet::new();
            for (g, &open) in open_groups.iter().enumerate() {
                let cells_of = rebuilding(problem, g);
                let ship = if problem.groups[g].there {
                    Some(0.0)
                } else {
                    problem.groups[g].ship
                };
                if ship.is_none() && !open {
                    continue;
                }
                if set >> g & 1 == 1 {
                    cost += ship.unwrap_or(f64::INFINITY);
                } else if open {
                    cells.extend(cells_of);
                } else {
                    cost = f64::INFINITY;
                }
            }
            cost += cells
                .iter()
                .map(|&c| problem.cells[c].run.unwrap_or(f64::INFINITY))
                .sum::<f64>();
            best = best.min(cost);
        }
        best
    }

    fn problems() -> impl Strategy<Value = Problem> {
        (1usize..6, 0usize..7).prop_flat_map(|(cells, groups)| {
            let run = proptest::option::weighted(0.85, (0u32..20).prop_map(f64::from));
            let reads = proptest::collection::vec((0usize..6, proptest::option::of(0usize..7)), 0..4);
            let cell = proptest::collection::vec((run, reads), cells);
            let ship = proptest::option::weighted(0.85, (0u32..20).prop_map(f64::from));
            let also = proptest::option::weighted(0.2, 0..cells);
            let group =
                proptest::collection::vec((0..cells, ship, proptest::bool::weighted(0.1), also), groups);
            (cell, group).prop_map(|(cells, groups)| {
                let n = groups.len();
                Problem {
                    cells: cells
                        .into_iter()
                        .enumerate()
                        .map(|(i, (run, reads))| Cell {
                            run,
                            reads: reads
                                .into_iter()
                                .filter(|(c, _)| *c < i)
                                .map(|(cell, active)| VersionId {
                                    cell,
                                    active: active.filter(|&a| a < n),
                                })
                                .collect(),
                        })
                        .collect(),
                    groups: groups
                        .into_iter()
                        .map(|(producer, ship, there, also)| Group {
                            producer,
                            ship,
                            there,
                            also,
                        })
                        .collect(),
                }
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn equals_brute_force(problem in problems()) {
            let made = plan(&problem);
            prop_assert!((made.cost - brute(&problem)).abs() < 1e-9, "{:?} {:?}", made, brute(&problem));
            let rebuilt = rebuilt(&problem);
            for (g, choice) in made.choices.iter().enumerate() {
                if *choice == Choice::Recompute {
                    prop_assert!(rebuilt[g].cells.iter().all(|c| made.rerun.contains(c) && problem.cells[*c].run.is_some()));
                }
            }
        }
    }
}
