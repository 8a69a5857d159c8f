//! Evicts the expert that has been unused for longest.

use super::rule::Policy;
use crate::experts::plan::Ordinal;

/// A doubly linked ring in a table of all experts. The last entry of the table is the head: its
/// `older` link leads to the most recent expert, its `newer` link to the oldest.
#[derive(Debug)]
pub(super) struct Lru {
    links: Vec<Link>,
}

/// Invariant: an expert that is not resident links to itself.
#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

impl Lru {
    pub(super) fn new(n_experts: usize) -> Lru {
        let n_experts = u32::try_from(n_experts).expect("experts should fit 32 bits");
        Lru { links: (0..=n_experts).map(|own| Link { newer: own, older: own }).collect() }
    }

    fn head(&self) -> u32 {
        u32::try_from(self.links.len() - 1).expect("experts should fit 32 bits")
    }

    fn link(&mut self, at: u32) -> &mut Link {
        &mut self.links[at as usize]
    }

    fn unlink(&mut self, at: u32) {
        let Link { newer, older } = *self.link(at);
        self.link(newer).older = older;
        self.link(older).newer = newer;
        *self.link(at) = Link { newer: at, older: at };
    }

    fn push(&mut self, at: u32) {
        let head = self.head();
        let newest = self.link(head).older;
        *self.link(at) = Link { newer: head, older: newest };
        self.link(newest).newer = at;
        self.link(head).older = at;
    }
}

impl Policy for Lru {
    fn touched(&mut self, expert: Ordinal, _n_uses: f32) {
        if self.links[expert.idx()].newer != expert.0 {
            self.unlink(expert.0);
            self.push(expert.0);
        }
    }

    fn inserted(&mut self, expert: Ordinal) {
        self.unlink(expert.0);
        self.push(expert.0);
    }

    fn removed(&mut self, expert: Ordinal) {
        self.unlink(expert.0);
    }

    fn victim(&self, may_leave: &dyn Fn(Ordinal) -> bool) -> Option<Ordinal> {
        let head = self.head();
        let mut at = self.links[head as usize].newer;
        while at != head {
            if may_leave(Ordinal(at)) {
                return Some(Ordinal(at));
            }
            at = self.links[at as usize].newer;
        }
        None
    }
}
