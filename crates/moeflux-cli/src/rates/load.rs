//! How busy the machine is: what is measured while other programs compute or read says little.

use std::time::Duration;

/// How long the cores are watched.
const TIME: Duration = Duration::from_millis(100);

/// The share of the cores' time that other programs may take.
const MOST_CORES: f64 = 0.25;

/// The share of the last ten seconds in which programs may have waited for drives.
const MOST_WAITING: f64 = 0.25;

/// What other programs take of a machine, as shares from 0 to 1; 0 where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Of the cores' time.
    pub(crate) cores: f64,
    /// Of the time: how long programs waited for drives.
    pub(crate) drives: f64,
}

impl Load {
    /// Watches the machine for a moment, in which this program should do nothing.
    pub(crate) fn watch() -> Load {
        let before = core_times();
        if before.is_some() {
            std::thread::sleep(TIME);
        }
        let cores = before.zip(core_times()).map(|(before, now)| share(before, now));
        Load { cores: cores.unwrap_or(0.0), drives: waiting_for_drives().unwrap_or(0.0) }
    }

    pub(crate) fn is_busy(self) -> bool {
        self.cores > MOST_CORES || self.drives > MOST_WAITING
    }

    /// What is busy, in words; `None` where nothing is.
    pub(crate) fn in_words(self) -> Option<String> {
        match self {
            Load { cores, .. } if cores > MOST_CORES => {
                Some(format!("the cores are busy ({:.0} % in use)", 100.0 * cores))
            }
            Load { drives, .. } if drives > MOST_WAITING => {
                Some(String::from("the drive is busy: other programs wait for it"))
            }
            _ => None,
        }
    }
}

/// Ticks of all cores: idle ones, and all.
type Ticks = [u64; 2];

/// What `/proc/stat` of Linux counts.
fn core_times() -> Option<Ticks> {
    ticks(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of users.
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some([idle, numbers.iter().take(8).sum()])
}

fn share(before: Ticks, now: Ticks) -> f64 {
    let [idle, all] = [0, 1].map(|i| now[i].saturating_sub(before[i]));
    if all == 0 { 0.0 } else { 1.0 - idle.min(all) as f64 / all as f64 }
}

/// What the pressure of Linux says.
fn waiting_for_drives() -> Option<f64> {
    average(&std::fs::read_to_string("/proc/pressure/io").ok()?)
}

fn average(pressure: &str) -> Option<f64> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = line.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    percent.parse::<f64>().ok().map(|percent| percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_counts_becomes_shares() {
        let at = |user: u64, idle: u64| {
            ticks(&format!("cpu  {user} 0 0 {idle} 5 0 0 0 7 0\ncpu0 1 1 1 1 1\n")).unwrap()
        };
        assert_eq!(share(at(100, 50), at(130, 60)), 0.75);
        assert_eq!(share(at(100, 50), at(100, 50)), 0.0);
        assert_eq!(share(at(100, 50), at(0, 0)), 0.0);
        assert_eq!((ticks(""), ticks("cpu  x"), ticks("cpu  1 2 3")), (None, None, None));
        let text = "some avg10=97.50 avg60=1.00\nfull avg10=0.00\n";
        assert_eq!(
            (average(text), average("some avg10=x"), average("")),
            (Some(0.975), None, None)
        );
    }

    #[test]
    fn a_busy_machine_says_so() {
        let of = |cores, drives| Load { cores, drives }.in_words();
        assert_eq!(of(0.1, 0.1), None);
        assert!(of(0.97, 0.0).unwrap().contains("97 %"));
        assert!(of(0.0, 0.9).unwrap().contains("drive"));
    }
}
