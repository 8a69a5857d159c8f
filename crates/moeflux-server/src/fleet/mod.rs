//! The models of a server, of which some are loaded: requests lease the one that they name, which is
//! loaded for them where it is not.

mod about;
mod catalog;
mod figures;
mod files;
mod lease;
mod loader;
mod memory;
mod roster;
mod state;
mod work;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use moeflux_core::OptionId;
use moeflux_engine::Engine;
use tokio::sync::oneshot;

pub(crate) use self::about::About;
pub(crate) use self::catalog::Catalog;
pub(crate) use self::figures::Figures;
pub(crate) use self::files::Pulled;
pub(crate) use self::lease::Lease;
use self::lease::wait;
use self::loader::Loader;
use self::roster::Limits;
pub(crate) use self::roster::{Loaded, Roster};
pub(crate) use self::state::Keep;
use crate::access;
use crate::common::Common;
use crate::error::{ApiError, ApiResult};
use crate::library::{Library, LibraryModel, OneModel, PullProgress};
use crate::served::Served;

/// The models of a server.
pub(crate) struct Fleet {
    pub(crate) common: Arc<Common>,
    /// All of them.
    pub(crate) catalog: Arc<Catalog>,
    /// Those that are loaded.
    pub(crate) roster: Arc<Roster>,
    loader: Arc<Loader>,
}

impl Fleet {
    /// One model, which stays loaded.
    ///
    /// # Errors
    /// As [`Fleet::put`].
    pub(crate) fn of_engine(engine: Engine, common: Arc<Common>) -> Result<Fleet, moeflux::Error> {
        let (fleet, model) = Fleet::of_one(&engine, common);
        fleet.put(model.name(), engine)?;
        Ok(fleet)
    }

    /// One model that is loaded and runs.
    pub(crate) fn of_model(model: moeflux::Model, common: Arc<Common>) -> Fleet {
        let (fleet, listed) = Fleet::of_one(model.engine(), common);
        let served = Served::of_model(model, &listed, Arc::clone(&fleet.common));
        fleet.loader.add(served, Duration::ZERO);
        fleet
    }

    /// A fleet of one model, which is not yet in it.
    fn of_one(engine: &Engine, common: Arc<Common>) -> (Fleet, LibraryModel) {
        let plan = engine.plan();
        let names = common.options.model_names.clone();
        let model = LibraryModel {
            names: if names.is_empty() { vec![String::from("moeflux")] } else { names },
            bytes: plan.resident_bytes + plan.expert_bytes,
            ..LibraryModel::named("")
        };
        let name = model.name().to_owned();
        let catalog = Catalog::new(Arc::new(OneModel { model }), Some(name.clone())).fixed();
        let fleet = Fleet::new(catalog, common);
        let model = fleet.catalog.listed(&name);
        (fleet, model)
    }

    /// The models of a library, of which none is loaded. Requests that name none mean `default`.
    pub(crate) fn of_library(
        library: Arc<dyn Library>,
        default: Option<String>,
        common: Arc<Common>,
    ) -> Fleet {
        Fleet::new(Catalog::new(library, default), common)
    }

    fn new(catalog: Catalog, common: Arc<Common>) -> Fleet {
        let options = &common.options;
        let catalog = Arc::new(catalog.taking_any_name(options.any_model));
        let roster = Arc::new(Roster::new(Limits {
            max_waiting: options.max_waiting,
            max_loaded: options.max_loaded.unwrap_or(usize::MAX),
        }));
        let loader = Arc::new(Loader {
            common: Arc::clone(&common),
            catalog: Arc::clone(&catalog),
            roster: Arc::clone(&roster),
        });
        Fleet { common, catalog, roster, loader }
    }

    /// Adds a model of the library that is open.
    ///
    /// # Errors
    /// Where it has no usable tokenizer or template, or the system starts no thread.
    pub(crate) fn put(&self, name: &str, engine: Engine) -> Result<(), moeflux::Error> {
        let model = self.catalog.listed(name);
        let served = Served::new(engine, &model, Arc::clone(&self.common))?;
        self.loader.add(served, Duration::ZERO);
        Ok(())
    }

    /// The model that a request means, by its name in the library. Where there is but one it is that
    /// one: handlers refuse other names where these matter.
    ///
    /// # Errors
    /// Where there is none of this name, or none is named and it is not clear which one is meant.
    pub(crate) fn find(&self, name: Option<&str>) -> ApiResult<Arc<str>> {
        match name.filter(|name| !name.is_empty()) {
            Some(name) => match (self.catalog.find(name), &*self.catalog.models()) {
                (Err(_), [one]) => Ok(one.name().into()),
                (found, _) => found,
            },
            None => match self.roster.current() {
                Some(served) => Ok(served.model_name().into()),
                None => self.catalog.find_default(),
            },
        }
    }

    /// The model of a name.
    ///
    /// # Errors
    /// Where there is none.
    pub(crate) fn model(&self, name: &str) -> ApiResult<LibraryModel> {
        Ok(self.catalog.listed(&self.catalog.find(name)?))
    }

    /// Leases the model that a request means: waits until it is loaded, and for the turn of its
    /// requests.
    ///
    /// # Errors
    /// As [`Fleet::find`]; where the model cannot be loaded, and where too many requests wait.
    pub(crate) async fn lease(&self, name: Option<&str>) -> ApiResult<Lease> {
        let name = self.find(name)?;
        let served = match self.roster.admit(&name) {
            Some(served) => served,
            None => wait(&self.roster, &self.loader, &name).await?,
        };
        if let Some(record) = access::current() {
            record.set_model(served.model_name());
        }
        Ok(Lease::new(&self.roster, served))
    }

    /// Leases a model that is loaded.
    #[cfg(test)]
    pub(crate) fn lease_now(&self, name: &str) -> Option<Lease> {
        Some(Lease::new(&self.roster, self.roster.admit(name)?))
    }

    /// Sets how long a model stays loaded without requests, where another one could be loaded.
    pub(crate) fn set_keep(&self, name: &str, keep: Keep) {
        if !self.catalog.is_fixed {
            self.roster.set_keep(name, keep);
        }
    }

    /// Unloads a model when its last request has ended, without waiting for that.
    pub(crate) fn dismiss(&self, name: &str) {
        if !self.catalog.is_fixed {
            self.roster.dismiss(name);
        }
    }

    /// Unloads models that have not been used for as long as they are kept; runs as long as the
    /// server.
    pub(crate) async fn unload_expired(self: Arc<Fleet>) {
        Arc::clone(&self.loader).unload_expired().await;
    }

    /// Begins to download a model. `progress` is called on a thread of its own. A model that is here
    /// needs no download where clients may not ask for one.
    ///
    /// # Errors
    /// Where clients may not download models, and where too many downloads run.
    pub(crate) fn pull(
        &self,
        name: &str,
        progress: impl FnMut(PullProgress) + Send + 'static,
    ) -> ApiResult<Pulled> {
        if self.common.options.manages_models {
            return files::pull(&self.catalog, &self.common, name, progress);
        }
        self.model(name).map_err(|err| not_allowed("downloads", Some(err)))?;
        let (sender, ended) = oneshot::channel();
        let _ = sender.send(Ok(()));
        Ok(ended)
    }

    /// Removes a model's files, after it was unloaded.
    ///
    /// # Errors
    /// Where there is no such model, it cannot be removed, or clients may not remove models.
    pub(crate) async fn remove(&self, name: &str) -> ApiResult<()> {
        if !self.common.options.manages_models {
            return Err(not_allowed("removes", None));
        }
        let model = self.model(name)?;
        self.loader.dismiss(model.name()).await;
        self.catalog.remove(model.name()).await?;
        self.common.log(&format!("{} was removed", model.name()));
        Ok(())
    }

    /// Refuses all requests from now on, lets answers finish for `grace`, and stores what the prompt
    /// cache is to keep.
    pub(crate) fn shutdown(&self, grace: Duration) {
        let ends = Instant::now() + grace;
        self.roster.close(&ApiError::shutting_down());
        for Loaded { served, .. } in self.roster.loaded() {
            served.loaded.scheduler().shutdown(ends.saturating_duration_since(Instant::now()));
        }
    }
}

/// Why a server changes no models; a model that is not there is not found all the same.
fn not_allowed(what: &str, missing: Option<ApiError>) -> ApiError {
    let (hub, manage) = (OptionId::Hub, OptionId::Manage);
    let reason = format!(
        "this server {what} no models for its clients: start it with {hub}, and with {manage} where it \
         has keys"
    );
    match missing {
        Some(err) => ApiError { message: format!("{} ({reason})", err.message), ..err },
        None => ApiError::new(StatusCode::FORBIDDEN, reason),
    }
}
