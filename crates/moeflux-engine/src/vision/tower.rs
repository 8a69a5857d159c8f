//! The tower: loaded for the first picture, one picture at a time, and freed when it has had none for a
//! while.

use std::mem;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use moeflux_backend::{ActivationPrecision, Backend, DeviceError};
use moeflux_core::{OptionId, PictureRows, catch_out_of_memory};
use moeflux_image::{Frames, Prepared};
use moeflux_model::{Grid, Picture, Tower, TowerFiles};
use moeflux_store::{ExpertStore, usable_memory};

use super::seen::SeenPicture;
use crate::device::{self, Device};
use crate::error::EngineError;

/// Rows that a tower computes at a time on this device. A GPU takes all patches of a picture of 1,024 tokens,
/// the default's largest, at once: with fewer rows, kernels have fewer workgroups than it has processors.
pub(super) fn max_rows(device: Device) -> usize {
    if device == Device::Cpu { 1024 } else { 4096 }
}

/// How often a thread that waits for the tower asks whether to go on.
const ASKED: Duration = Duration::from_millis(50);

/// How long the thread that frees an idle tower sleeps at most, so that it ends soon after its model.
const WATCHED: Duration = Duration::from_secs(1);

/// Is called before each block of a tower with the number of blocks done and of all, and may end the
/// work. While another picture is computed, it is called with zeros.
pub type LookProgress<'a> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'a;

/// Where a tower computes, and what memory it takes there.
pub(super) struct TowerPlace {
    pub(super) device: Device,
    pub(super) n_threads: usize,
    pub(super) isa: Option<String>,
    pub(super) inputs: ActivationPrecision,
    /// How long it stays without pictures.
    pub(super) idle: Duration,
    /// Its bytes, while it is loaded.
    pub(super) bytes: u64,
    /// Whose cache gives the memory, where that is the processor's.
    pub(super) experts: Option<Arc<ExpertStore>>,
}

/// A tower's files, and the tower while it is in memory.
pub(super) struct TowerHost {
    files: TowerFiles,
    place: TowerPlace,
    state: Mutex<State>,
    /// The state has changed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None` while it is not loaded, or computes.
    idle: Option<OpenTower>,
    /// Whether a thread has it, or loads it.
    is_busy: bool,
    /// Whether a thread waits for it to be idle for long enough.
    is_watched: bool,
    /// Whether the GPU had too little memory for it.
    leaves_gpu: bool,
    /// What the user should know.
    warning: Option<String>,
}

/// A tower on its device.
struct OpenTower {
    tower: Tower,
    backend: Box<dyn Backend>,
    last_use: Instant,
    /// Bytes that the cache of experts gets back.
    _lent: Option<Lent>,
}

impl TowerHost {
    pub(super) fn new(files: TowerFiles, place: TowerPlace) -> TowerHost {
        TowerHost { files, place, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.place.bytes
    }

    /// Tells the tower from others, in 32 characters.
    pub(super) fn identity(&self) -> &str {
        self.files.identity()
    }

    pub(super) fn operations(&self, n_patches: usize) -> [f64; 2] {
        self.files.operations(n_patches)
    }

    pub(super) fn is_loaded(&self) -> bool {
        let state = self.state();
        state.is_busy || state.idle.is_some()
    }

    /// Looks at a picture once no other thread does, unless `known` has it by then.
    pub(super) fn look(
        self: &Arc<Self>,
        picture: &Prepared,
        rows: PictureRows,
        known: &mut dyn FnMut() -> Option<Arc<SeenPicture>>,
        progress: &mut LookProgress<'_>,
    ) -> Result<Option<Arc<SeenPicture>>, EngineError> {
        let Some(mut turn) = self.take(progress) else { return Ok(None) };
        if let Some(seen) = known() {
            return Ok(Some(seen));
        }
        let seen = match self.look_once(&mut turn.open, picture, rows, progress) {
            Err(err) if self.falls_back(&err) => {
                self.look_once(&mut turn.open, picture, rows, progress)
            }
            seen => seen,
        };
        Ok(seen?.map(Arc::new))
    }

    /// What the user should know, since the last call.
    pub(super) fn take_warning(&self) -> Option<String> {
        self.state().warning.take()
    }

    /// Looks at a picture with the tower of `open`, which is loaded where there is none. A tower that fails
    /// is dropped: what its device's buffers hold is not known.
    fn look_once(
        &self,
        open: &mut Option<OpenTower>,
        picture: &Prepared,
        rows: PictureRows,
        progress: &mut LookProgress<'_>,
    ) -> Result<Option<SeenPicture>, EngineError> {
        catch_out_of_memory(|| {
            let mut loaded = match open.take() {
                Some(loaded) => loaded,
                None => self.open()?,
            };
            let OpenTower { tower, backend, .. } = &mut loaded;
            let seen = look_at(tower, backend.as_mut(), picture, rows, progress)?;
            *open = Some(loaded);
            Ok(seen)
        })?
    }

    /// Whether another device may do what failed: the processor, where a GPU has too little memory left.
    fn falls_back(&self, err: &EngineError) -> bool {
        let mut state = self.state();
        let is_memory = matches!(err, EngineError::Device(DeviceError::OutOfMemory { .. }));
        if !is_memory || self.place.device == Device::Cpu || state.leaves_gpu {
            return false;
        }
        state.leaves_gpu = true;
        state.warning = Some(format!(
            "the vision tower runs on the processor: the GPU has too little memory left ({})",
            OptionId::DeviceCache
        ));
        true
    }

    /// Where the tower computes.
    fn device(&self) -> Device {
        if self.state().leaves_gpu { Device::Cpu } else { self.place.device }
    }

    /// Frees the tower if it has had no picture for long enough, else says how long it stays. `None`
    /// where it is not loaded; then the caller watches it no more.
    fn free_if_idle(&self) -> Option<Duration> {
        let mut state = self.state();
        let idle = state.idle.as_ref().map(|open| open.last_use.elapsed());
        let left = match idle {
            _ if state.is_busy => Some(self.place.idle),
            Some(since) if since < self.place.idle => Some(self.place.idle - since),
            Some(_) | None => None,
        };
        state.is_watched = left.is_some();
        let freed = if left.is_none() { state.idle.take() } else { None };
        drop(state);
        drop(freed);
        left
    }

    /// Waits for the tower; `None` where `progress` has ended that.
    fn take(self: &Arc<Self>, progress: &mut LookProgress<'_>) -> Option<TowerTurn> {
        let mut state = self.state();
        while state.is_busy {
            drop(state);
            if progress(0, 0).is_break() {
                return None;
            }
            let waited =
                self.changed.wait_timeout_while(self.state(), ASKED, |state| state.is_busy);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_busy = true;
        let open = state.idle.take();
        Some(TowerTurn { host: Arc::clone(self), open })
    }

    fn open(&self) -> Result<OpenTower, EngineError> {
        let TowerPlace { n_threads, isa, inputs, bytes, experts, .. } = &self.place;
        let device = self.device();
        let lent = experts.as_ref().and_then(|experts| Lent::of(experts, *bytes));
        let available = usable_memory().available;
        if device == Device::Cpu && lent.is_none() && available < *bytes {
            return Err(EngineError::TowerMemory { needed: *bytes, available });
        }
        let mut backend = device::open_for_tower(device, *n_threads, isa.as_deref())?;
        let tower = self.files.load(backend.as_mut(), max_rows(device), *inputs, &mut |_| {})?;
        Ok(OpenTower { tower, backend, last_use: Instant::now(), _lent: lent })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tower while one thread has it. It goes back when this is dropped.
struct TowerTurn {
    host: Arc<TowerHost>,
    open: Option<OpenTower>,
}

impl Drop for TowerTurn {
    fn drop(&mut self) {
        let is_loaded = self.open.is_some();
        if let Some(open) = &mut self.open {
            open.last_use = Instant::now();
        }
        let mut state = self.host.state();
        state.idle = self.open.take();
        state.is_busy = false;
        let is_watched = !is_loaded || mem::replace(&mut state.is_watched, true);
        drop(state);
        self.host.changed.notify_all();
        if !is_watched {
            let host = Arc::downgrade(&self.host);
            // Without a thread the tower stays until its model is closed.
            let _ = thread::Builder::new()
                .name(String::from("tower-idle"))
                .spawn(move || free_when_idle(&host));
        }
    }
}

fn free_when_idle(host: &Weak<TowerHost>) {
    while let Some(left) = host.upgrade().and_then(|host| host.free_if_idle()) {
        thread::sleep(left.min(WATCHED));
    }
}

fn look_at(
    tower: &mut Tower,
    backend: &mut dyn Backend,
    picture: &Prepared,
    rows: PictureRows,
    progress: &mut LookProgress<'_>,
) -> Result<Option<SeenPicture>, EngineError> {
    let grid = picture.layout().grid();
    let merge = tower.merge();
    let write_patch = |nth, to: &mut [f32]| picture.write(nth..nth + 1, Frames::All, to);
    let shape = [grid.rows / merge, grid.columns / merge];
    let grid = Grid { rows: grid.rows, columns: grid.columns };
    let Some(seen) = tower.look(Picture { grid, write_patch: &write_patch }, backend, progress)?
    else {
        return Ok(None);
    };
    let all = [&seen.rows].into_iter().chain(&seen.deepstack).flatten();
    if let Some(value) = all.copied().find(|value| !value.is_finite()) {
        return Err(EngineError::NotFinite { what: String::from("a row of the picture"), value });
    }
    Ok(Some(SeenPicture::new(rows, shape, tower.hidden(), seen)))
}

/// Memory of the cache of experts, which it gets back when this is dropped.
struct Lent {
    experts: Arc<ExpertStore>,
    /// What the cache had.
    bytes: u64,
}

impl Lent {
    /// Takes `bytes` from the cache; `None` where it has not as much, or none of a size of its own.
    fn of(experts: &Arc<ExpertStore>, bytes: u64) -> Option<Lent> {
        let n_slots = experts.stats().n_slots as u64;
        let had = n_slots * experts.slot_bytes() as u64;
        let left = had.checked_sub(bytes)?;
        experts.resize(left).ok()?;
        Some(Lent { experts: Arc::clone(experts), bytes: had })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The cache has been as large before.
        let _ = self.experts.resize(self.bytes);
    }
}
