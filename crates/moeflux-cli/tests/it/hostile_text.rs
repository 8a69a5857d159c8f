//! Chat templates and tokenizers that try to end, fill or hold up the program: each is refused in
//! one line, soon.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::server::Server;
use crate::common::{Copy, golden, refuses};
use serde_json::{Value, json};

const HF: &str = "hf-bf16";

/// More than any of these takes on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(10);

#[track_caller]
fn refuses_template(source: &str, words: &[&str]) {
    let copy = Copy::of(&golden(HF));
    fs::write(copy.file("chat_template.jinja"), source).unwrap();
    let started = Instant::now();
    refuses(&["run", "a", "--max-tokens", "2", "--model", copy.arg()], 1, words);
    let head: String = source.chars().take(80).collect();
    assert!(started.elapsed() < SOON, "{:?}: {head}", started.elapsed());
}

/// A loop of `n` steps that changes `ns.s`, which begins as `first`, and then `last`.
fn steps(first: &str, n: usize, step: &str, last: &str) -> String {
    format!(
        "{{% set ns=namespace(s={first}) %}}{{% for i in range({n}) %}}{{% set ns.s={step} %}}\
         {{% endfor %}}{last}"
    )
}

#[test]
fn templates_that_refer_to_themselves_are_refused() {
    for source in [
        "{% set ns=namespace() %}{% set ns.a=ns %}{{ ns }}",
        "{% set ns=namespace() %}{% set ns.a=[ns] %}{{ ns|tojson }}",
        "{% set ns=namespace() %}{% set ns.a=ns %}{% set b=namespace(a=ns) %}{{ b == ns }}{{ 1/0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'chat_template' %}",
        "{% extends 'chat_template' %}",
    ] {
        refuses_template(source, &["chat template"]);
    }
}

#[test]
fn templates_with_deep_expressions_are_refused() {
    let n = 200_000;
    for source in [
        format!("{{{{ {}1 }}}}", "1+".repeat(n)),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ {}1 }}}}", "-".repeat(n)),
        format!("{{{{ x{} }}}}", ".a".repeat(n)),
        format!("{{{{ x{} }}}}", "|abs".repeat(n)),
        format!("{{{{ {} }}}}", "[".repeat(n)),
        "{% if true %}".repeat(n / 4),
    ] {
        refuses_template(&source, &["chat template"]);
    }
}

#[test]
fn templates_that_nest_data_deeply_end_nothing() {
    // What fits the stack is written, and is then too long for the model's context.
    for last in ["{{ ns.s }}", "{{ ns.s|tojson }}", "{{ ns.s|pprint }}"] {
        for step in ["[ns.s]", "{'a': ns.s}", "[[[[[[[[ns.s]]]]]]]]"] {
            refuses_template(&steps("[]", 90_000, step, last), &[]);
        }
    }
}

/// Each of the short conversations by which the habits of a template are learned costs as much as
/// a request: templates that write or compute much are not asked on.
#[test]
fn templates_that_write_or_compute_much_are_not_tried_again_and_again() {
    let request = r#"{"messages": [{"role": "user", "content": "hello"}]}"#;
    let messages = "{% for m in messages %}{{ m.content }}{% endfor %}";
    // The limits grow with the source.
    let padding = format!("{{#{}#}}", "c".repeat(300_000));
    let writes = format!(
        "{padding}{messages}{{% set s = 'ab cd ' * 1000 %}}{{% for i in range(850) %}}{{{{ s }}}}{{% endfor %}}"
    );
    let step = "{% set s.n = s.n + i * 3 %}";
    let computes = format!(
        "{{% set s = namespace(n=0) %}}{messages}{{% for i in range(10000) %}}{step}{{% endfor %}}"
    );
    for (source, n_bytes) in [(writes, 5_100_005), (computes, 5)] {
        let copy = Copy::of(&golden(HF));
        fs::write(copy.file("chat_template.jinja"), source).unwrap();
        fs::write(copy.file("request.json"), request).unwrap();
        let file = copy.file("request.json");
        let args = ["prompt", "--model", copy.arg(), "--request", file.to_str().unwrap()];
        let started = Instant::now();
        let (text, _) = common::succeeds(&args);
        assert_eq!(text.trim_end_matches('\n').len(), n_bytes);
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}

#[test]
fn templates_that_grow_are_refused() {
    for source in [
        steps("'x'", 60, "ns.s ~ ns.s", "{{ ns.s }}"),
        steps("'x'", 60, "ns.s + ns.s", "{{ ns.s }}"),
        steps("[1]", 60, "ns.s + ns.s", "{{ ns.s|length }}"),
        steps("'xy'", 60, "ns.s|replace('x','xx')|replace('y','yxy')", "{{ ns.s }}"),
        steps("'x'", 60, "[ns.s,ns.s]|join(ns.s)", "{{ ns.s }}"),
        steps("'x\ny'", 60, "(ns.s ~ ns.s)|indent(10000)", "{{ ns.s }}"),
        steps("'x'", 60, "'%s%s'|format(ns.s, ns.s)", "{{ ns.s }}"),
        steps("'x'", 60, "ns.s.replace('x','xx')", "{{ ns.s }}"),
        steps("'x'", 60, "ns.s.join([ns.s,ns.s])", "{{ ns.s }}"),
        String::from("{{ ([[0] * 1000] * 1000)|tojson }}"),
        String::from("{{ 'abcdefgh' * 99999999 }}"),
        String::from("{{ [1] * 99999999 }}"),
        String::from("{{ \"%.1000000000f\"|format(1) }}"),
        String::from("{{ \"%1000000000s\"|format(1) }}"),
        String::from("{{ range(100000)|batch(3, range(100000)|list|string)|list }}"),
        String::from("{{ [1]|slice(1000000000)|list }}"),
        String::from("{{ [1]|batch(1000000000, 'x')|list }}"),
        String::from("{{ 'x'|center(2000000000) }}"),
        String::from("{{ 'x'.center(2000000000) }}{{ 'x'.zfill(2000000000) }}"),
    ] {
        refuses_template(&source, &["chat template"]);
    }
}

#[test]
fn a_template_that_fails_is_named_with_what_helps() {
    for source in ["{{ 1 / 0 }}", "{{ raise_exception('no') }}", "", "{{ messages[0].contents.x }}"]
    {
        refuses_template(source, &["/chat_template.jinja: the chat template ", "run --raw"]);
    }
}

#[test]
fn a_server_outlives_a_hostile_template() {
    let copy = Copy::of(&golden(HF));
    let hostile = "{% if messages[0].content == 'boom' %}".to_owned()
        + &steps("'x'", 60, "ns.s ~ ns.s", "{{ ns.s }}")
        + "{% endif %}hello";
    fs::write(copy.file("chat_template.jinja"), hostile).unwrap();
    let server = Server::start(copy.path());
    let name = copy.path().file_name().unwrap().to_str().unwrap();
    let ask = |content: &str| {
        let messages = json!([{"role": "user", "content": content}]);
        server.post(
            "/v1/chat/completions",
            &json!({"model": name, "messages": messages, "max_tokens": 1}),
        )
    };
    let good = ask("hi");
    assert_eq!(good.0, 200, "{}", good.1);
    for _ in 0..3 {
        let (status, body) = ask("boom");
        assert_eq!(status, 400, "{body}");
        assert!(body.contains("chat template"), "{body}");
        assert_eq!(ask("hi").0, 200);
    }
}

#[track_caller]
fn refuses_tokenizer(edit: impl FnOnce(&mut Value)) {
    let copy = Copy::of(&golden(HF));
    copy.edit_json("tokenizer.json", edit);
    let started = Instant::now();
    refuses(&["run", "--raw", "hello", "--model", copy.arg()], 1, &["tokenizer.json"]);
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

#[test]
fn tokenizers_that_hurt_are_refused() {
    let charsmap = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    for normalizer in [
        replace("", "x"),
        replace("a", &"a".repeat(2000)),
        json!({"type": "Sequence", "normalizers": vec![replace("e", "eeeeeeee"); 12]}),
        charsmap(""),
        charsmap("AAAAAA=="),
        charsmap("////////"),
        charsmap("/////w=="),
        charsmap("not base64"),
        json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 5000]}),
    ] {
        refuses_tokenizer(|file| file["normalizer"] = normalizer);
    }
    refuses_tokenizer(|file| {
        let one = file["added_tokens"][0].clone();
        let many = (0..300_000).map(|i| {
            let mut token = one.clone();
            (token["id"], token["content"]) = (json!(1000 + i), json!(format!("<t{i}>")));
            token
        });
        file["added_tokens"] = many.collect();
    });
    refuses_tokenizer(|file| {
        let piece = json!({"Sequence": {"id": "A", "type_id": 0}});
        file["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": vec![piece.clone(); 100_000],
            "pair": [piece],
            "special_tokens": {},
        });
    });
    refuses_tokenizer(|file| file["model"]["vocab"]["huge"] = json!(4_294_967_295u32));
    refuses_tokenizer(|file| file["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": []}));
}

#[cfg(unix)]
#[test]
fn special_files_are_refused_at_once() {
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        for target in ["pipe", "/dev/zero", "/proc/self/status"] {
            let copy = Copy::of(&golden(HF));
            let path = copy.file(name);
            let _ = fs::remove_file(&path);
            match target {
                "pipe" => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                target => std::os::unix::fs::symlink(target, &path).unwrap(),
            }
            let words = if target.starts_with("/proc") && !cfg!(target_os = "linux") {
                vec![name]
            } else {
                vec![name, "not a regular file"]
            };
            refuses(&["run", "a", "--model", copy.arg()], 1, &words);
        }
    }
}

/// Every process ends with an owner who takes its exit code.
#[cfg(target_os = "linux")]
#[test]
fn renderers_that_are_not_needed_any_more_leave_no_zombie() {
    const ROUNDS: usize = 3;
    const AT_ONCE: usize = 16;
    let copy = Copy::of_demo();
    let server = Server::start(copy.path());
    let body = json!({"messages": [{"role": "user", "content": "hello"}]});
    for _ in 0..ROUNDS {
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| assert_eq!(server.post("/apply-template", &body).0, 200));
            }
        });
    }
    let states = server.states_of_children();
    assert!(!states.contains(&'Z'), "{states:?}");
    // Those that wait for a next job.
    assert!(states.len() <= 2, "{states:?}");
}
