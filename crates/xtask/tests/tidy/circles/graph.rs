//! Circles of a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// From which file or module to which, and the names that are imported.
pub(crate) type Graph<N> = BTreeMap<(N, N), BTreeSet<String>>;

/// The strongly connected components of more than one node (Tarjan, 1972).
pub(crate) fn circles<N: Clone + Ord>(graph: &Graph<N>) -> Vec<BTreeSet<N>> {
    let mut search = Search {
        next: BTreeMap::new(),
        seen: BTreeMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for (from, to) in graph.keys() {
        search.next.entry(from).or_default().push(to);
    }
    let nodes: BTreeSet<&N> = graph.keys().flat_map(|(from, to)| [from, to]).collect();
    for node in nodes {
        if !search.seen.contains_key(node) {
            search.visit(node);
        }
    }
    search.found
}

struct Search<'a, N> {
    next: BTreeMap<&'a N, Vec<&'a N>>,
    /// The number of each node that was visited; [`DONE`] once its component is known.
    seen: BTreeMap<&'a N, usize>,
    stack: Vec<&'a N>,
    found: Vec<BTreeSet<N>>,
}

const DONE: usize = usize::MAX;

impl<'a, N: Clone + Ord> Search<'a, N> {
    /// Visits a node; the lowest number that it reaches.
    fn visit(&mut self, node: &'a N) -> usize {
        let own = self.seen.len();
        self.seen.insert(node, own);
        self.stack.push(node);
        let mut lowest = own;
        for next in self.next.get(node).cloned().unwrap_or_default() {
            let reached = match self.seen.get(next) {
                Some(number) => *number,
                None => self.visit(next),
            };
            lowest = lowest.min(reached);
        }
        if lowest == own {
            let at = self.stack.iter().position(|member| *member == node).expect("it was pushed");
            let component = self.stack.split_off(at);
            for node in &component {
                self.seen.insert(node, DONE);
            }
            if component.len() > 1 {
                self.found.push(component.into_iter().cloned().collect());
            }
        }
        lowest
    }
}
