//! The paths that an item mentions, also in the arguments of macros.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Expr, ImplItemFn, Item};

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

/// The methods of `self`, and functions of `Self` or of the type by its name, that a method mentions.
pub(crate) fn self_calls_of(method: &ImplItemFn, type_name: &str) -> BTreeSet<String> {
    let mut calls = SelfCalls { type_name, found: BTreeSet::new() };
    calls.visit_impl_item_fn(method);
    calls.found
}

struct SelfCalls<'a> {
    type_name: &'a str,
    found: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for SelfCalls<'_> {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if matches!(&*call.receiver, Expr::Path(receiver) if receiver.path.is_ident("self")) {
            self.found.insert(call.method.to_string());
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut names = path.segments.iter().rev().map(|segment| &segment.ident);
        if let (Some(name), Some(of)) = (names.next(), names.next())
            && (of == "Self" || of == self.type_name)
        {
            self.found.insert(name.to_string());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.add_tokens(mac.tokens.clone());
        syn::visit::visit_macro(self, mac);
    }
}

impl SelfCalls<'_> {
    /// Adds the calls in the arguments of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for four in tokens.windows(4) {
            match four {
                [
                    TokenTree::Ident(receiver),
                    TokenTree::Punct(dot),
                    TokenTree::Ident(name),
                    TokenTree::Group(arguments),
                ] if receiver == "self"
                    && dot.as_char() == '.'
                    && arguments.delimiter() == Delimiter::Parenthesis =>
                {
                    self.found.insert(name.to_string());
                }
                [
                    TokenTree::Ident(of),
                    TokenTree::Punct(one),
                    TokenTree::Punct(_),
                    TokenTree::Ident(name),
                ] if (of == "Self" || of == self.type_name) && one.as_char() == ':' => {
                    self.found.insert(name.to_string());
                }
                _ => {}
            }
        }
        for token in tokens {
            if let TokenTree::Group(group) = token {
                self.add_tokens(group.stream());
            }
        }
    }
}
