//! What the device has written for the host.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use moeflux_backend::DeviceError;
use wgpu::PollType;

use super::Encoder;
use crate::writers::look_away;

/// How long the host asks again and again before it sleeps until the device is
/// done: a thread that sleeps wakes tens of microseconds too late, and a layer of
/// a decoded token takes less than this.
const ASKING: Duration = Duration::from_millis(1);

/// Longest time between the end of a wait and the word of it.
const CALLBACK: Duration = Duration::from_secs(10);

impl Encoder {
    /// Waits for a buffer to be mapped, of which `word` tells.
    pub(super) fn await_mapping(&self, word: &Receiver<bool>) -> Result<(), DeviceError> {
        let is_mapped = match self.ask_for(word) {
            Some(is_mapped) => Ok(is_mapped),
            None => {
                if let Err(err) = self.context.device.poll(PollType::wait_indefinitely()) {
                    self.context.lose(format!("waiting failed: {err}"));
                }
                self.context.check()?;
                // Another backend of this device may be the one that is about to say so.
                word.recv_timeout(CALLBACK)
            }
        };
        self.context.check()?;
        match is_mapped {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.lose(String::from("reading back failed"))),
            Err(err) => Err(self.lose(format!("reading back never ended: {err}"))),
        }
    }

    /// The device is of no use any more.
    pub(super) fn lose(&self, reason: String) -> DeviceError {
        self.context.lose(reason.clone());
        DeviceError::Lost { reason }
    }

    /// Asks for a word for a while.
    fn ask_for(&self, word: &Receiver<bool>) -> Option<bool> {
        let since = Instant::now();
        while since.elapsed() < ASKING {
            if let Err(err) = self.context.device.poll(PollType::Poll) {
                self.context.lose(format!("waiting failed: {err}"));
                return None;
            }
            match word.try_recv() {
                Ok(it) => return Some(it),
                Err(TryRecvError::Empty) => look_away(),
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        None
    }
}
