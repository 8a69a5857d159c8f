//! A conversation on the terminal: a line is a message, an empty line ends it.
//!
//!     chat MODEL

#![expect(clippy::print_stdout, reason = "an example prints its answer")]

use std::io::{Write, stdin, stdout};

use moeflux::{Model, Piece};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| String::from("crates/moeflux-cli/demo"));
    let model = Model::open(path)?;
    let mut chat = model.chat()?;
    loop {
        print!("> ");
        stdout().flush()?;
        let mut line = String::new();
        if stdin().read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(());
        }
        for piece in chat.send(line.trim())? {
            match piece? {
                Piece::Thought(text) => print!("\x1b[2m{text}\x1b[0m"),
                piece => print!("{piece}"),
            }
            stdout().flush()?;
        }
        println!();
    }
}
