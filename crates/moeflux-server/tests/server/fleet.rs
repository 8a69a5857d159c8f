//! Servers of several models: a library of folders that all hold the demo model.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use moeflux_engine::{Engine, EngineOptions, Inspection, inspect};
use moeflux_server::{Library, LibraryError, LibraryModel, PullProgress, Server, ServerOptions};
use serde_json::{Value, json};

use super::with;
use crate::common::{Running, options, question};

/// Models by name, which are all the demo model, but for `broken`.
struct Shelf {
    names: Mutex<Vec<&'static str>>,
    n_opened: AtomicUsize,
    /// How long opening a model takes in addition.
    delay: Duration,
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo")
}

impl Shelf {
    fn new(names: &[&'static str]) -> Arc<Shelf> {
        Arc::new(Shelf {
            names: Mutex::new(names.to_vec()),
            n_opened: AtomicUsize::new(0),
            delay: Duration::ZERO,
        })
    }

    fn options(&self) -> EngineOptions {
        EngineOptions::default().sessions(Some(2)).ctx(512)
    }

    fn check(&self, name: &str) -> Result<(), LibraryError> {
        if name == "broken" {
            return Err(LibraryError::Failed(String::from("its files are damaged")));
        }
        Ok(())
    }
}

impl Library for Shelf {
    fn models(&self) -> Vec<LibraryModel> {
        let model = |name: &&str| LibraryModel {
            names: vec![(*name).to_owned()],
            aliases: vec![format!("org/{name}")],
            bytes: 1000,
            modified: None,
        };
        self.names.lock().unwrap().iter().map(model).collect()
    }

    fn inspect(&self, name: &str) -> Result<Inspection, LibraryError> {
        self.check(name)?;
        inspect(&demo(), &self.options()).map_err(|err| LibraryError::Failed(err.to_string()))
    }

    fn open(&self, name: &str) -> Result<Engine, LibraryError> {
        self.check(name)?;
        thread::sleep(self.delay);
        self.n_opened.fetch_add(1, Ordering::Relaxed);
        Engine::open(&demo(), &self.options()).map_err(|err| LibraryError::Failed(err.to_string()))
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<(), LibraryError> {
        let status = String::from("pulling");
        progress(PullProgress { status: status.clone(), done: 5, total: 10 });
        // Pieces of a file are small and many.
        for _ in 0..100_000 {
            progress(PullProgress { status: status.clone(), done: 6, total: 10 });
        }
        progress(PullProgress { status, done: 10, total: 10 });
        match name {
            "new" => self.names.lock().unwrap().push("new"),
            _ => return Err(LibraryError::Failed(String::from("the Hub has no such model"))),
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), LibraryError> {
        self.names.lock().unwrap().retain(|own| *own != name);
        Ok(())
    }
}

fn several() -> ServerOptions {
    ServerOptions { model_names: Vec::new(), max_loaded: Some(1), ..options() }
}

fn serve(shelf: &Arc<Shelf>, options: ServerOptions) -> Running {
    let library = Arc::clone(shelf) as Arc<dyn Library>;
    Running::of(Server::bind_library(library, None, None, options).unwrap())
}

fn ask(server: &Running, model: &str) -> crate::common::Reply {
    let body = with(question("What is 7 + 12?"), json!({"model": model}));
    server.post("/v1/chat/completions", &body)
}

fn content(reply: &crate::common::Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn names_of(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect()
}

#[test]
fn models_are_loaded_by_the_requests_that_name_them() {
    let shelf = Shelf::new(&["a", "b"]);
    let server = serve(&shelf, several());
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/status").json()["model"], Value::Null);
    assert_eq!(server.get("/props").status, 503);
    assert_eq!(shelf.n_opened.load(Ordering::Relaxed), 0);
    let first = ask(&server, "a");
    assert_eq!(first.json()["model"], "a");
    let text = content(&first);
    for model in ["b", "org/a", "A", "b:latest", "a"] {
        assert_eq!(content(&ask(&server, model)), text, "{model}");
    }
    // a, b, a, b, a
    assert_eq!(shelf.n_opened.load(Ordering::Relaxed), 5);
    let models = server.get("/v1/models").json();
    let statuses: Vec<(&str, &str)> = models["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| (card["id"].as_str().unwrap(), card["status"]["value"].as_str().unwrap()))
        .collect();
    assert_eq!(statuses, [("a", "loaded"), ("b", "unloaded")]);
    // What is known of `b` from the time when it was loaded.
    assert_eq!(models["data"][1]["context_length"], 512);
    assert_eq!(names_of(&server.get("/api/tags").json()["models"]), ["a:latest", "b:latest"]);
    assert_eq!(names_of(&server.get("/api/ps").json()["models"]), ["a:latest"]);
    // A request that names no model goes to the one that was used last.
    let unnamed = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3});
    assert_eq!(server.post("/v1/chat/completions", &unnamed).json()["model"], "a");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("moeflux_models_loaded 1\n"), "{metrics}");
    let series = |model: &str| {
        format!(
            "moeflux_key_requests_total{{model=\"{model}\",api=\"openai\",key=\"\",status=\"2xx\"}}"
        )
    };
    assert!(metrics.contains(&series("a")) && metrics.contains(&series("b")), "{metrics}");
}

#[test]
fn small_models_stay_loaded_together() {
    let shelf = Shelf::new(&["a", "b"]);
    let server = serve(&shelf, ServerOptions { max_loaded: None, ..several() });
    for model in ["a", "b", "a", "b"] {
        content(&ask(&server, model));
    }
    assert_eq!(shelf.n_opened.load(Ordering::Relaxed), 2);
    assert_eq!(names_of(&server.get("/api/ps").json()["models"]), ["b:latest", "a:latest"]);
}

#[test]
fn a_model_that_cannot_be_had_leaves_the_loaded_one_alone() {
    let shelf = Shelf::new(&["a", "broken"]);
    let server = serve(&shelf, several());
    content(&ask(&server, "a"));
    let broken = ask(&server, "broken");
    assert_eq!(broken.status, 503);
    let message = broken.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "model 'broken' cannot be loaded: its files are damaged");
    let unknown = ask(&server, "c");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    let message = unknown.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "model 'c' not found: this server has 'a', 'broken'");
    let missing = server.post("/api/show", &json!({"model": "c"}));
    assert_eq!(missing.status, 404);
    assert!(missing.json()["error"].as_str().unwrap().contains("not found"));
    content(&ask(&server, "a"));
    assert_eq!(shelf.n_opened.load(Ordering::Relaxed), 1);
}

#[test]
fn without_a_name_or_a_loaded_model_the_request_must_say_which_it_means() {
    let shelf = Shelf::new(&["a", "b"]);
    let server = serve(&shelf, several());
    let unnamed = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let refused = server.post("/v1/chat/completions", &unnamed);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("model")));
    assert_eq!(shelf.n_opened.load(Ordering::Relaxed), 0);
}

/// Each of many clients gets the answer of the model that it asks, and none waits for ever.
#[test]
fn models_whose_requests_mix_take_turns() {
    let shelf = Shelf::new(&["a", "b"]);
    let server = serve(&shelf, several());
    let text = content(&ask(&server, "a"));
    let began = Instant::now();
    let n_asked = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in 0..8 {
            let (server, text, n_asked, shelf) = (&server, &text, &n_asked, &shelf);
            scope.spawn(move || {
                let mut model = client % 2;
                // On a slow machine a turn may take as long as all of it.
                let is_over = || {
                    let seconds = began.elapsed().as_secs();
                    seconds >= 60 || (seconds >= 8 && shelf.n_opened.load(Ordering::Relaxed) >= 3)
                };
                while !is_over() {
                    let name = ["a", "b"][model];
                    let reply = ask(server, name);
                    assert_eq!(content(&reply), *text);
                    assert_eq!(reply.json()["model"], name);
                    n_asked.fetch_add(1, Ordering::Relaxed);
                    model = 1 - model;
                }
            });
        }
    });
    let (n_asked, n_opened) =
        (n_asked.load(Ordering::Relaxed), shelf.n_opened.load(Ordering::Relaxed));
    assert!(n_opened >= 3, "{n_opened}: each model had more than one turn");
    assert!(n_asked >= n_opened, "{n_asked} answers of {n_opened} turns");
    assert_eq!(server.get("/status").json()["now"]["waiting"], 0);
}

#[test]
fn models_that_are_not_used_are_unloaded() {
    let shelf = Shelf::new(&["a"]);
    let idle_timeout = Some(Duration::from_secs(4));
    let server = serve(&shelf, ServerOptions { idle_timeout, ..several() });
    let loaded = || server.get("/api/ps").json()["models"].as_array().unwrap().len();
    content(&ask(&server, "a"));
    assert_eq!(loaded(), 1);
    let until = |n: usize| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while loaded() != n {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(50));
        }
    };
    until(0);
    // What was counted stays.
    assert!(server.get("/status").json()["now"]["generated_tokens"].as_u64().unwrap() > 0);

    // Ollama's clients say how long, for this model from now on.
    let generate = |keep: Value| {
        let body = json!({"model": "a", "prompt": "What is 7 + 12?", "stream": false, "keep_alive": keep,
            "options": {"temperature": 0}});
        assert_eq!(server.post("/api/generate", &body).status, 200);
    };
    generate(json!(-1));
    thread::sleep(Duration::from_secs(6));
    assert_eq!(loaded(), 1);
    generate(json!("0s"));
    until(0);
    let load = json!({"model": "a", "keep_alive": "1h"});
    assert_eq!(server.post("/api/chat", &load).json()["done_reason"], "load");
    assert_eq!(loaded(), 1);
    let unload = json!({"model": "a", "keep_alive": 0});
    assert_eq!(server.post("/api/generate", &unload).json()["done_reason"], "unload");
    until(0);
    let n_opened = shelf.n_opened.load(Ordering::Relaxed);
    assert_eq!(server.post("/api/generate", &unload).json()["done_reason"], "unload");
    assert_eq!(shelf.n_opened.load(Ordering::Relaxed), n_opened, "it is not loaded to be unloaded");
    let wrong = json!({"model": "a", "keep_alive": "soon"});
    assert_eq!(server.post("/api/generate", &wrong).status, 400);

    let named = json!({"model": "a"});
    assert_eq!(server.post("/models/load", &named).status, 200);
    assert_eq!(loaded(), 1);
    assert_eq!(server.post("/models/unload", &named).status, 200);
    until(0);
}

#[test]
fn clients_download_and_remove_models_where_they_may() {
    let shelf = Shelf::new(&["a"]);
    let server = serve(&shelf, ServerOptions { manages_models: true, ..several() });
    let pulled = server.post("/api/pull", &json!({"model": "new"}));
    let lines: Vec<Value> =
        pulled.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({"status": "pulling manifest"}));
    assert_eq!((&lines[1]["completed"], &lines[1]["total"]), (&json!(5), &json!(10)));
    assert_eq!(lines.last().unwrap(), &json!({"status": "success"}));
    assert!(lines.len() < 50, "{} lines", lines.len());
    content(&ask(&server, "new"));
    let failed = server.post("/api/pull", &json!({"model": "none", "stream": false}));
    assert_eq!(
        (failed.status, &failed.json()["error"]),
        (500, &json!("the Hub has no such model"))
    );

    let delete = |name: &str| {
        let body = json!({"model": name}).to_string();
        let head = format!(
            "DELETE /api/delete HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}",
            body.len()
        );
        server.send(&head, &body).status
    };
    assert_eq!(delete("new"), 200);
    assert_eq!(delete("new"), 404);
    assert_eq!(names_of(&server.get("/api/tags").json()["models"]), ["a:latest"]);
    assert_eq!(names_of(&server.get("/api/ps").json()["models"]), Vec::<&str>::new());

    let closed = serve(&shelf, several());
    let pull = |name: &str| closed.post("/api/pull", &json!({"model": name, "stream": false}));
    assert_eq!(pull("a").json(), json!({"status": "success"}));
    assert_eq!(pull("new").status, 404);
}

#[test]
fn facts_of_a_model_are_known_before_it_is_loaded() {
    let shelf = Shelf::new(&["a"]);
    let server = serve(&shelf, several());
    let listed = server.get("/v1/models").json();
    assert_eq!(listed["data"][0]["id"], "a");
    assert!(listed["data"][0].get("context_length").is_none(), "nothing was asked about it yet");
    let card = server.get("/v1/models/a").json();
    assert!(card["context_length"].is_u64() && card["status"]["value"] == "unloaded", "{card}");
    let shown = server.post("/api/show", &json!({"model": "a"})).json();
    assert_eq!(shown["model_info"]["general.architecture"], shown["details"]["family"]);
    assert!(shown["template"].as_str().unwrap().contains("messages"), "{shown}");
    assert_eq!(server.get("/v1/models/none").status, 404);
    assert_eq!(shelf.n_opened.load(Ordering::Relaxed), 0);
}
