//! Circles of a directed graph.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// From which file to which, and the names that are imported.
pub(crate) type Graph = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The strongly connected components of more than one file (Tarjan, 1972).
pub(crate) fn circles(graph: &Graph) -> Vec<BTreeSet<PathBuf>> {
    let mut search = Search {
        next: BTreeMap::new(),
        seen: BTreeMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for (from, to) in graph.keys() {
        search.next.entry(from).or_default().push(to);
    }
    let files: BTreeSet<&PathBuf> = graph.keys().flat_map(|(from, to)| [from, to]).collect();
    for file in files {
        if !search.seen.contains_key(file) {
            search.visit(file);
        }
    }
    search.found
}

struct Search<'a> {
    next: BTreeMap<&'a PathBuf, Vec<&'a PathBuf>>,
    /// The number of each file that was visited; [`DONE`] once its component is known.
    seen: BTreeMap<&'a PathBuf, usize>,
    stack: Vec<&'a PathBuf>,
    found: Vec<BTreeSet<PathBuf>>,
}

const DONE: usize = usize::MAX;

impl<'a> Search<'a> {
    /// Visits a file; the lowest number that it reaches.
    fn visit(&mut self, file: &'a PathBuf) -> usize {
        let own = self.seen.len();
        self.seen.insert(file, own);
        self.stack.push(file);
        let mut lowest = own;
        for next in self.next.get(file).cloned().unwrap_or_default() {
            let reached = match self.seen.get(next) {
                Some(number) => *number,
                None => self.visit(next),
            };
            lowest = lowest.min(reached);
        }
        if lowest == own {
            let at = self.stack.iter().position(|member| *member == file).expect("it was pushed");
            let component = self.stack.split_off(at);
            for file in &component {
                self.seen.insert(file, DONE);
            }
            if component.len() > 1 {
                self.found.push(component.into_iter().cloned().collect());
            }
        }
        lowest
    }
}
