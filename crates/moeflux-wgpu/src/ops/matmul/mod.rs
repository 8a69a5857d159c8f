//! Products with weights: `products` sorts jobs by kernel, `kernel` dispatches them, `layouts`
//! chooses how kernels share the work, `turns` cuts what takes long, `quantize` prepares inputs, `activation` runs between the
//! products of experts.

pub(crate) mod activation;
mod head_product;
pub(crate) mod jobs;
pub(crate) mod kernel;
pub(crate) mod layouts;
pub(crate) mod products;
mod project;
pub(crate) mod quantize;
pub(crate) mod repeated;
pub(crate) mod source;
mod turns;
pub(crate) mod workgroups;

pub(crate) use head_product::head_product;
pub(crate) use project::project;
