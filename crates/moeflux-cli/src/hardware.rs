//! What this machine is, by the names of its makers.

#[cfg(any(target_os = "macos", windows))]
use std::process::Command;

/// The longest name that is shown.
const MOST_CHARACTERS: usize = 80;

/// The processor's name, such as `AMD Ryzen 9 7950X 16-Core Processor`; that of its architecture
/// where the system does not tell.
pub(crate) fn cpu_name() -> String {
    match plain_name(&from_proc().or_else(from_system).unwrap_or_default()) {
        name if name.is_empty() => std::env::consts::ARCH.to_owned(),
        name => name,
    }
}

/// A maker's name in the characters that `docs/results/schema.json` allows: trademarks are dropped,
/// and what Markdown or a terminal would read as more than text becomes a space.
pub(crate) fn plain_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-()+,.@".contains(c);
    let dropped = |c: &char| !matches!(c, '™' | '®' | '©');
    let kept: String =
        name.chars().filter(dropped).map(|c| if plain(c) { c } else { ' ' }).collect();
    let words = kept.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).split_whitespace();
    let name: String = words.collect::<Vec<_>>().join(" ").chars().take(MOST_CHARACTERS).collect();
    name.trim_end().to_owned()
}

/// What Linux says: of a processor, or of a board that names its processor alone.
fn from_proc() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let of_label = |label: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == label && !value.trim().is_empty()).then(|| value.trim().to_owned())
        })
    };
    let board = || std::fs::read_to_string("/sys/firmware/devicetree/base/model").ok();
    of_label("model name")
        .or_else(|| of_label("Hardware"))
        .or_else(|| of_label("Model"))
        .or_else(board)
}

#[cfg(target_os = "macos")]
fn from_system() -> Option<String> {
    let said = Command::new("/usr/sbin/sysctl").args(["-n", "machdep.cpu.brand_string"]).output();
    String::from_utf8(said.ok().filter(|said| said.status.success())?.stdout).ok()
}

#[cfg(windows)]
fn from_system() -> Option<String> {
    const KEY: &str = r"HKLM\HARDWARE\DESCRIPTION\System\CentralProcessor\0";
    let said = Command::new("reg").args(["query", KEY, "/v", "ProcessorNameString"]).output();
    let text = String::from_utf8(said.ok().filter(|said| said.status.success())?.stdout).ok()?;
    text.split_once("REG_SZ").map(|(_, name)| name.trim().to_owned())
}

#[cfg(not(any(target_os = "macos", windows)))]
fn from_system() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_plain_characters() {
        for (name, want) in [
            ("AMD Ryzen 9 7950X 16-Core Processor", "AMD Ryzen 9 7950X 16-Core Processor"),
            ("Intel(R) Xeon(R) CPU @ 2.70GHz", "Intel(R) Xeon(R) CPU @ 2.70GHz"),
            ("AMD Radeon™  Graphics\u{7}", "AMD Radeon Graphics"),
            ("{{#include /etc/passwd}} [x](https://y)", "include etc passwd x (https y)"),
            ("…", ""),
        ] {
            assert_eq!(plain_name(name), want, "{name}");
        }
        assert_eq!(plain_name(&"a ".repeat(100)).len(), MOST_CHARACTERS - 1);
    }

    #[test]
    fn the_processor_has_a_name_of_one_line() {
        let name = cpu_name();
        assert!(!name.is_empty() && name.len() <= 4 * MOST_CHARACTERS);
        assert!(!name.contains(char::is_control) && name.trim() == name, "{name:?}");
    }
}
