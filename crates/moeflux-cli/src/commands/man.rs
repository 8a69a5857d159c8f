//! `moeflux man`: manual pages, made from the command line.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::args::ManArgs;
use crate::files::OutFile;
use crate::help;

/// What follows a page's name in its title: section, no date, the source and the manual that the last and
/// the first line name.
const TITLE: &str =
    concat!("\"1\" \"\" \"moeflux ", env!("CARGO_PKG_VERSION"), "\" \"moeflux manual\"");

pub(crate) fn run(args: &ManArgs) -> Result<()> {
    let dir = &args.out;
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot make the folder {} (--out)", dir.display()))?;
    let mut command =
        help::command().subcommand_help_heading("COMMANDS").after_help(help::EXAMPLES.trim_start());
    // Gives every command its full name, by which pages refer to each other.
    command.build();
    write_page(&dir.join("moeflux.1"), &command)?;
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_page(&dir.join(format!("moeflux-{}.1", command.get_name())), command)?;
    }
    Ok(())
}

fn write_page(path: &Path, command: &Command) -> Result<()> {
    let write = || -> io::Result<()> {
        let out = OutFile::create(path)?;
        out.file().write_all(&page(command)?)?;
        out.publish()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    // `render_title` leaves an empty date out, and formatters then take the source for one.
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    writeln!(page, ".TH \"{name}\" {TITLE}")?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        page.extend(block(&text.to_string()).render().into_bytes());
    }
    if !command.has_subcommands() {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([roman("moeflux(1)")]);
        page.extend(roff.render().into_bytes());
    }
    Ok(page)
}

/// A section of lines that keep their breaks, headed by the first of them: examples.
fn block(text: &str) -> Roff {
    let (head, lines) = text.split_once('\n').unwrap_or(("Notes:", text));
    let mut roff = Roff::new();
    roff.control("SH", [head.trim_end_matches(':').to_uppercase().as_str()]).control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
    roff
}
