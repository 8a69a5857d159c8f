//! Commands on their way to the device. `encoder` records kernels and copies in the order of the ops;
//! its parts are `recording` (the batch), `bindings`, `buffers`, `uploads` (experts on their way),
//! `readback`, `serials` (which of them ran), `profiler` and `prerecording` (the step ahead). Over it `upload`, `read`, `timing` and
//! `prerecord` record what takes several commands, or wait. `submitter` encodes commands on background
//! threads and submits them, `encoded_cache` holds encoded ones that are expected again. `gather` and
//! `staging` are the two ways of experts to the device, `imports` what it reads of the host.

mod bindings;
mod buffers;
#[cfg(test)]
pub(crate) mod capture;
mod clock;
mod command;
mod encode;
mod encoded_cache;
pub(crate) mod encoder;
pub(crate) mod gather;
pub(crate) mod grid;
pub(crate) mod imports;
pub(crate) mod prerecord;
mod prerecording;
mod profiler;
pub(crate) mod read;
mod readback;
mod recording;
pub(crate) mod serials;
mod staging;
mod submitter;
pub(crate) mod timing;
pub(crate) mod upload;
mod uploads;
