//! Blocks that model families are built from.

pub(crate) mod attention;
pub(crate) mod builder;
pub(crate) mod decoder;
pub(crate) mod delta_net;
pub(crate) mod dense;
pub(crate) mod dense_branch;
pub(crate) mod indexer;
pub(crate) mod layer;
pub(crate) mod linear;
pub(crate) mod lookahead;
pub(crate) mod mixer;
pub(crate) mod mla;
pub(crate) mod moe;
pub(crate) mod moe_lists;
pub(crate) mod mtp;
pub(crate) mod norm;
pub(crate) mod observe;
pub(crate) mod parallel_mlp;
pub(crate) mod predict;
pub(crate) mod rope;
pub(crate) mod routing;
pub(crate) mod step;
