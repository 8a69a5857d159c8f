//! Several answers at a time: their steps are shared, so that an expert is read once for all.
//!
//!     parallel MODEL

#![expect(clippy::print_stdout, reason = "an example prints its answer")]

use std::thread;

use moeflux::{Error, Model, Options, Request};

const PROMPTS: [&str; 4] = ["The drive", "A router", "Every layer", "The cache"];

fn main() -> Result<(), Error> {
    let path = std::env::args().nth(1).unwrap_or_else(|| String::from("crates/moeflux-cli/demo"));
    let options = Options::default().sessions(PROMPTS.len());
    let model = Model::open_with(path, &options)?;
    let request = Request::default().max_tokens(30);
    let texts = thread::scope(|scope| {
        let answer = |prompt| {
            let (model, request) = (&model, &request);
            scope.spawn(move || model.generate(prompt, request)?.text())
        };
        let threads = PROMPTS.map(answer);
        threads.map(|thread| thread.join().expect("no example panics"))
    });
    for (prompt, text) in PROMPTS.into_iter().zip(texts) {
        println!("{prompt}{}", text?);
    }
    Ok(())
}
