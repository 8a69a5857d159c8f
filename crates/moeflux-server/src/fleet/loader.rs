//! Loads and unloads models.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux_core::show_bytes;
use moeflux_engine::Plan;

use super::about::About;
use super::catalog::{Catalog, refusal};
use super::roster::Roster;
use super::state::Resident;
use super::work::blocking;
use crate::common::Common;
use crate::error::{ApiError, ApiResult};
use crate::library::LibraryError;
use crate::served::Served;

/// Between two looks at whether the last reader of a model's figures is done.
const READER_PAUSE: Duration = Duration::from_millis(2);

/// Looks at readers of a model's figures at most.
const MAX_READER_LOOKS: u32 = 1000;

/// Between two looks at models that are not in use.
const EXPIRY_PAUSE: Duration = Duration::from_millis(250);

/// What loads and unloads models.
pub(super) struct Loader {
    pub(super) common: Arc<Common>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) roster: Arc<Roster>,
}

impl Loader {
    /// Begins to load the model that is next, where one is wanted and no other is coming.
    pub(super) fn load_next(self: &Arc<Loader>) {
        let Some(name) = self.roster.begin_next() else { return };
        let loader = Arc::clone(self);
        tokio::spawn(async move { loader.bring(name).await });
    }

    /// Loads a model for those who wait for it, and reports to them if it does not come.
    async fn bring(self: Arc<Loader>, name: Arc<str>) {
        let began = Instant::now();
        match self.load(&name).await {
            Ok(served) => {
                let loading = began.elapsed();
                self.common.log(&format!("{name} is loaded ({:.1} s)", loading.as_secs_f64()));
                self.add(served, loading);
            }
            Err(failure) => self.roster.fail(&name, &failure),
        }
    }

    /// Adds a model that is open.
    pub(super) fn add(&self, served: Served, loading: Duration) {
        let engine = served.loaded.engine();
        let has_tower = engine.vision().is_some();
        let about = About::new(engine.family(), engine.shape(), &served.text, has_tower);
        self.catalog.learn(served.model_name(), about);
        let keep = self.common.options.idle_timeout.filter(|_| !self.catalog.is_fixed);
        self.roster.arrive(served, keep, loading);
    }

    async fn load(&self, name: &Arc<str>) -> ApiResult<Served> {
        if !self.roster.is_empty() {
            let plan = self.catalog.inspect(name).await?.plan;
            self.make_room(name, &plan).await?;
        }
        self.common.log(&format!("loading {name}"));
        let engine = self.catalog.open(name).await?;
        let (model, common) = (self.catalog.listed(name), Arc::clone(&self.common));
        let served = blocking(move || Served::new(engine, &model, common)).await?;
        served.map_err(|err| refusal(name, LibraryError::Failed(err.to_string())))
    }

    /// Unloads models until another one has room.
    async fn make_room(&self, name: &Arc<str>, plan: &Plan) -> ApiResult<()> {
        loop {
            let changed = self.roster.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.roster.has_room(plan) {
                return Ok(());
            }
            self.check_fits(name, plan)?;
            if !self.roster.is_wanted(name) {
                return Err(ApiError::internal("no request waits for this model any more"));
            }
            match self.roster.take_idle() {
                Some(resident) => self.unload(resident, &format!("for {name}")).await,
                None => changed.await,
            }
        }
    }

    /// Refuses a model that would not fit if the others were gone, which then stay.
    fn check_fits(&self, name: &str, plan: &Plan) -> ApiResult<()> {
        let room = self.roster.room_bytes().unwrap_or(u64::MAX);
        if plan.needed_bytes() <= room {
            return Ok(());
        }
        let reason = format!(
            "it does not fit: it needs {}, and {} were free before a model was loaded (moeflux plan \
             shows what takes them)",
            show_bytes(plan.needed_bytes()),
            show_bytes(room)
        );
        Err(refusal(name, LibraryError::Failed(reason)))
    }

    /// Unloads a model that is not in use.
    async fn unload(&self, resident: Resident<Served>, why: &str) {
        let Resident { name, served, .. } = resident;
        let roster = Arc::clone(&self.roster);
        let unloaded = blocking(move || {
            served.loaded.scheduler().shutdown(Duration::ZERO);
            roster.keep_figures(&served);
            wait_for_readers(&served);
        });
        match unloaded.await {
            Ok(()) => self.common.log(&format!("{name} was unloaded ({why})")),
            Err(err) => self.common.log(&format!("warning: {name}: {}", err.message)),
        }
        self.roster.gave_back();
    }

    /// Unloads a model when its last request has ended, and waits for it; whether it was loaded.
    pub(super) async fn dismiss(&self, name: &str) -> bool {
        if !self.roster.dismiss(name) {
            return false;
        }
        loop {
            let changed = self.roster.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.roster.is_gone(name) {
                return true;
            }
            changed.await;
        }
    }

    /// Unloads models that have not been used for as long as they are kept; runs as long as the
    /// server.
    pub(super) async fn unload_expired(self: Arc<Loader>) {
        loop {
            tokio::time::sleep(EXPIRY_PAUSE).await;
            if let Some(resident) = self.roster.take_expired() {
                self.unload(resident, "not used").await;
            }
        }
    }
}

/// Waits for those who look at figures of a model, so that its memory is free afterwards.
fn wait_for_readers(served: &Arc<Served>) {
    for _ in 0..MAX_READER_LOOKS {
        if Arc::strong_count(served) == 1 {
            return;
        }
        std::thread::sleep(READER_PAUSE);
    }
}
