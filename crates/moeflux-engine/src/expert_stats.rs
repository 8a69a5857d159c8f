//! What the cache learned of a model's experts, kept from one run to the next.
//! `docs/reference/format.md` has the byte map. It only ever changes what is read when,
//! so a damaged file costs a cold start and a warning.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use moeflux_core::atomic_file::{self, Access, Durability};
use moeflux_core::checkpoint::Checksum;
use moeflux_core::files::read_bounded;
use moeflux_core::private;
use moeflux_store::ExpertStore;

const MAGIC: &[u8; 8] = b"MFXSTATS";
const VERSION: u32 = 1;
/// Hexadecimal digits at the end.
const CHECKSUM_BYTES: usize = 32;
/// More than the experts of any model take.
const MAX_BYTES: u64 = 64 << 20;
/// How much may be lost if the program is killed.
const INTERVAL: Duration = Duration::from_secs(60);

/// A model's file in the directory of statistics.
#[derive(Debug)]
pub(crate) struct ExpertStats {
    path: PathBuf,
    identity: String,
    saved: Instant,
}

impl ExpertStats {
    /// Takes up what is known of a model, with a warning where it is damaged.
    pub(crate) fn open(
        dir: &Path,
        identity: &str,
        experts: &ExpertStore,
    ) -> (ExpertStats, Option<String>) {
        let name: String = identity.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
        let path = dir.join(format!("{name}.experts"));
        // Earlier versions let others read it. Where there is none there is nothing to do.
        let _ = private::restrict(dir).and_then(|()| private::restrict(&path));
        atomic_file::remove_abandoned_in(dir, |_| true);
        let warning = match read(&path) {
            None => None,
            Some(bytes) => match read_expert_stats(&bytes, identity) {
                Ok(learned) if experts.restore(&learned) => None,
                Ok(_) => None,
                Err(reason) => Some(format!("{}: {reason}; it is ignored", path.display())),
            },
        };
        let identity = identity.to_owned();
        (ExpertStats { path, identity, saved: Instant::now() }, warning)
    }

    /// Saves now and then.
    pub(crate) fn tick(&mut self, experts: &ExpertStore) {
        if self.saved.elapsed() > INTERVAL {
            self.save(experts);
        }
    }

    /// Writes the file, whole or not at all. Where that fails the next start is
    /// a cold one, and nothing else is lost.
    pub(crate) fn save(&mut self, experts: &ExpertStore) {
        self.saved = Instant::now();
        let Some(learned) = experts.learned() else { return };
        if learned.iter().all(|weight| *weight == 0.0) {
            return;
        }
        let bytes = encode(&learned, &self.identity);
        let _ = private::create_own_dir(atomic_file::directory_of(&self.path)).and_then(|()| {
            atomic_file::write(&self.path, &bytes, Access::Private, Durability::Cached)
        });
    }
}

/// A regular file's bytes, if there are any.
fn read(path: &Path) -> Option<Vec<u8>> {
    read_bounded(path, MAX_BYTES).ok()
}

fn encode(learned: &[f32], identity: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + identity.len() + 4 * learned.len());
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    for len in [identity.len(), learned.len()] {
        out.extend(u32::try_from(len).expect("few experts").to_le_bytes());
    }
    out.extend(identity.as_bytes());
    out.extend(learned.iter().flat_map(|weight| weight.to_le_bytes()));
    let mut checksum = Checksum::default();
    checksum.update(&out);
    out.extend(checksum.hex().bytes());
    out
}

/// The weights of all experts, layer after layer, that a file of statistics holds for the model with
/// this [`Engine::identity`](crate::Engine::identity). A weight that is no positive number is 0.
///
/// # Errors
/// Where the bytes are no such file, are damaged, or are of another model.
pub fn read_expert_stats(bytes: &[u8], identity: &str) -> Result<Vec<f32>, &'static str> {
    let (body, sum) = bytes
        .len()
        .checked_sub(CHECKSUM_BYTES)
        .map(|left| bytes.split_at(left))
        .ok_or("it is too short for statistics of experts")?;
    let rest = body.strip_prefix(MAGIC).ok_or("it holds no statistics of experts")?;
    let mut checksum = Checksum::default();
    checksum.update(body);
    if checksum.hex().as_bytes() != sum {
        return Err("its checksum does not agree");
    }
    let (head, rest) = rest.split_at_checked(12).ok_or("it ends inside its header")?;
    let figure = |i: usize| {
        u32::from_le_bytes([head[4 * i], head[4 * i + 1], head[4 * i + 2], head[4 * i + 3]])
    };
    if figure(0) != VERSION {
        return Err("it is of another version");
    }
    let (name, weights) =
        rest.split_at_checked(figure(1) as usize).ok_or("it ends inside its name")?;
    if name != identity.as_bytes() {
        return Err("it is of another model");
    }
    if weights.len() as u64 != 4 * u64::from(figure(2)) {
        return Err("its length does not agree");
    }
    let weights = weights
        .chunks_exact(4)
        .map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
    let sane = |value: f32| if value.is_finite() && value > 0.0 { value } else { 0.0 };
    Ok(weights.map(sane).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_found_again() {
        let learned = [0.0, 1.5, 1e-20, 3.0];
        assert_eq!(read_expert_stats(&encode(&learned, "model"), "model").unwrap(), learned);
        let strange = encode(&[f32::NAN, -1.0, f32::INFINITY, 2.0], "model");
        assert_eq!(read_expert_stats(&strange, "model").unwrap(), [0.0, 0.0, 0.0, 2.0]);
    }

    #[test]
    fn whatever_is_damaged_is_refused() {
        let good = encode(&[1.0, 2.0], "model");
        assert_eq!(read_expert_stats(&good, "other"), Err("it is of another model"));
        for len in 0..good.len() {
            assert!(read_expert_stats(&good[..len], "model").is_err(), "{len} bytes");
        }
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(read_expert_stats(&bytes, "model").is_err(), "byte {at}");
        }
    }
}
