//! Continues a text and prints it while it is made.
//!
//!     generate MODEL [PROMPT]

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its answer")]

use std::io::Write;

use moeflux::{Error, Model, Request};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| String::from("crates/moeflux-cli/demo"));
    let prompt = args.next().unwrap_or_else(|| String::from("The engine reads an expert"));
    let model = Model::open(path)?;
    let mut answer = model.generate(&prompt, &Request::default().max_tokens(60))?;
    print!("{prompt}");
    for piece in &mut answer {
        print!("{}", piece?);
        std::io::stdout().flush().ok();
    }
    println!();
    if let Some(summary) = answer.summary() {
        let n = summary.generated_tokens;
        eprintln!("{n} tokens in {:.1} s", summary.decode.as_secs_f64());
    }
    Ok(())
}
