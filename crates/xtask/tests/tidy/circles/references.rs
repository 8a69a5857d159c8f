//! The paths that an item mentions, also in the arguments of macros.

use proc_macro2::{TokenStream, TokenTree};
use syn::Item;
use syn::visit::Visit;

use super::modules::Names;

/// Every path of at least two names.
pub(crate) fn references_of(item: &Item) -> Vec<Names> {
    let mut found = Found(Vec::new());
    found.visit_item(item);
    found.0
}

struct Found(Vec<Names>);

impl<'ast> Visit<'ast> for Found {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&item.tree, Vec::new());
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.add_tokens(mac.tokens.clone());
        syn::visit::visit_macro(self, mac);
    }
}

impl Found {
    /// Imports within a function.
    fn add_tree(&mut self, tree: &syn::UseTree, mut before: Names) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_tree(&path.tree, before);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(tree, before.clone()));
            }
            syn::UseTree::Name(name) => {
                before.push(name.ident.to_string());
                self.0.push(before);
            }
            syn::UseTree::Rename(rename) => {
                before.push(rename.ident.to_string());
                self.0.push(before);
            }
            syn::UseTree::Glob(_) => {}
        }
    }

    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Names = Vec::new();
        let mut n_colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || n_colons == 2 => {
                    path.push(ident.to_string());
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    n_colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) => {
                    self.end(&mut path);
                    path.push(ident.to_string());
                }
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    self.add_tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.end(&mut path),
            }
            n_colons = 0;
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Names) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.0.push(path);
        }
    }
}
