//! What all requests to a server share, whatever model answers them.

use std::sync::Arc;
use std::time::Instant;

use crate::callers::Callers;
use crate::ids::{Ids, now};
use crate::journal::Journal;
use crate::kept::KeptResponses;
use crate::metrics::Metrics;
use crate::options::ServerOptions;

pub(crate) struct Common {
    pub(crate) options: ServerOptions,
    pub(crate) callers: Arc<Callers>,
    pub(crate) metrics: Metrics,
    /// Responses that requests may refer to.
    pub(crate) kept: KeptResponses,
    pub(crate) ids: Ids,
    pub(crate) journal: Arc<Journal>,
    pub(crate) started: Instant,
    /// Seconds since 1970.
    pub(crate) created: u64,
}

impl Common {
    pub(crate) fn new(options: ServerOptions, callers: Arc<Callers>) -> Common {
        let names: Vec<Arc<str>> =
            callers.all().iter().map(|caller| Arc::clone(&caller.name)).collect();
        let journal = Journal::new(options.log_format, options.log_requests, options.is_strict);
        Common {
            journal: Arc::new(journal),
            kept: KeptResponses::new(options.response_dir.as_deref(), options.log_format),
            metrics: Metrics::new(&names),
            options,
            callers,
            ids: Ids::new(),
            started: Instant::now(),
            created: now(),
        }
    }

    /// The name of the model where there is but one; empty where there are several.
    pub(crate) fn only_name(&self) -> &str {
        self.options.model_names.first().map_or("", String::as_str)
    }

    /// Logs a line.
    pub(crate) fn log(&self, line: &str) {
        self.journal.log(line);
    }
}
