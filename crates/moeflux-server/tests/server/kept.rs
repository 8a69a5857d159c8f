//! Responses that later requests refer to, and items that are read or refused.

use serde_json::{Value, json};

use crate::common::{Reply, Running, options, start, start_at};
use crate::thinker::{Folder, thinker};
use crate::with;

const KEYS: [&str; 2] = ["sk-first-0001", "sk-other-0002"];

fn ask_as(server: &Running, key: &str, fields: Value) -> Reply {
    let body = with(json!({"temperature": 0, "max_output_tokens": 30}), fields).to_string();
    let length = body.len();
    let head = format!(
        "POST /v1/responses HTTP/1.1\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}"
    );
    server.send(&head, &body)
}

fn ask(server: &Running, fields: Value) -> Reply {
    ask_as(server, "none", fields)
}

/// A conversation that goes on: tokens of the prompt, which tell whether all of it was read.
fn n_prompt(reply: &Reply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["usage"]["input_tokens"].as_u64().unwrap()
}

fn said_by_user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn responses_and_their_items_are_referred_to() {
    let model = thinker("referred");
    let server = start_at(&model.0, options());
    let first = ask(&server, json!({"input": "What is 23 + 45?", "thinking_budget": 5})).json();
    assert_eq!(first["store"], true);
    let items = first["output"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{first}");
    let question = said_by_user("And 1 more?");
    let spelled: Vec<Value> = [said_by_user("What is 23 + 45?")]
        .into_iter()
        .chain(items.iter().cloned())
        .chain([question.clone()])
        .collect();
    let want = n_prompt(&ask(&server, json!({"input": spelled})));
    let short =
        n_prompt(&ask(&server, json!({"input": [said_by_user("What is 23 + 45?"), question]})));
    assert!(want > short + 10, "{want} {short}");
    // As Vercel's SDK sends earlier turns, and as a type may be left out.
    for with_type in [true, false] {
        let refer = |item: &Value| {
            let kind = with_type.then_some("item_reference");
            json!({"type": kind, "id": item["id"]})
        };
        let input: Vec<Value> = [said_by_user("What is 23 + 45?")]
            .into_iter()
            .chain(items.iter().map(refer))
            .chain([question.clone()])
            .collect();
        assert_eq!(n_prompt(&ask(&server, json!({"input": input}))), want);
    }
    for input in [json!("And 1 more?"), json!([question])] {
        let fields = json!({"input": input, "previous_response_id": first["id"]});
        let next = ask(&server, fields);
        assert_eq!(n_prompt(&next), want);
        let next = next.json();
        assert_eq!(next["previous_response_id"], first["id"]);
        // Turns before the previous one count, too.
        let last = json!({"input": "Why?", "previous_response_id": next["id"]});
        assert!(n_prompt(&ask(&server, last)) > want + 10);
    }
    // A stream is kept as well.
    let streamed = ask(&server, json!({"input": "What is 7 + 12?", "stream": true})).body;
    let last = streamed.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    let fields = json!({"input": "Why?", "previous_response_id": last["response"]["id"]});
    assert!(n_prompt(&ask(&server, fields)) > 30);
}

#[test]
fn what_is_not_kept_is_not_found() {
    let keys = KEYS.map(String::from).to_vec();
    let server = start(moeflux_server::ServerOptions { api_keys: keys, ..options() });
    let first = ask_as(&server, KEYS[0], json!({"input": "Hi"})).json();
    let unkept = ask_as(&server, KEYS[0], json!({"input": "Hi", "store": false})).json();
    assert_eq!(unkept["store"], false);
    let previous = |id: &Value| json!({"input": "So?", "previous_response_id": id});
    let refer =
        |id: &Value| json!({"input": [{"type": "item_reference", "id": id}, said_by_user("So?")]});
    assert_eq!(ask_as(&server, KEYS[0], previous(&first["id"])).status, 200);
    assert_eq!(ask_as(&server, KEYS[0], refer(&first["output"][0]["id"])).status, 200);
    let mut invented = first["output"][0]["id"].as_str().unwrap().to_owned();
    invented.replace_range(invented.len() - 1.., "9");
    for (key, asked, param) in [
        (KEYS[1], previous(&first["id"]), "previous_response_id"),
        (KEYS[1], refer(&first["output"][0]["id"]), "input"),
        (KEYS[0], previous(&unkept["id"]), "previous_response_id"),
        (KEYS[0], refer(&unkept["output"][0]["id"]), "input"),
        (KEYS[0], refer(&json!(invented)), "input"),
        (KEYS[0], refer(&json!("msg_67ccd2bf17f0819081ff3bb2cf6508e6")), "input"),
    ] {
        let refused = ask_as(&server, key, asked.clone());
        assert_eq!(refused.status, 404, "{asked} {}", refused.body);
        let error = &refused.json()["error"];
        assert_eq!(
            (error["param"].as_str(), error["type"].as_str()),
            (Some(param), Some("invalid_request_error"))
        );
        assert!(error["message"].as_str().unwrap().contains("' not found."), "{error}");
    }
}

#[test]
fn a_folder_keeps_responses_over_a_restart() {
    let folder = Folder::new("responses");
    let with_folder = || {
        let response_dir = Some(folder.0.join("responses"));
        start(moeflux_server::ServerOptions { response_dir, ..options() })
    };
    let server = with_folder();
    let first = ask(&server, json!({"input": "What is 23 + 45?"})).json();
    drop(server);
    let server = with_folder();
    let next = json!({"input": "Why?", "previous_response_id": first["id"]});
    assert_eq!(ask(&server, next).status, 200);
    let refer =
        json!([{"type": "item_reference", "id": first["output"][0]["id"]}, said_by_user("So?")]);
    assert_eq!(ask(&server, json!({"input": refer})).status, 200);
}

#[test]
fn items_that_cannot_be_read_are_refused_or_named() {
    let server = start(options());
    for kind in ["compaction", "compaction_summary", "context_compaction"] {
        let item = json!({"type": kind, "encrypted_content": "zz"});
        let refused = ask(&server, json!({"input": [said_by_user("Hi"), item]}));
        assert_eq!(refused.status, 400, "{kind}");
        assert_eq!(refused.json()["error"]["param"], "input[1].type");
    }
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    let thought =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "zz"});
    let taken = ask(&server, json!({"input": [search, thought, said_by_user("Hi")]}));
    assert_eq!(taken.status, 200, "{}", taken.body);
    let named = "x-moeflux-ignored-fields: input[0], input[1].encrypted_content";
    assert!(taken.head.contains(named), "{}", taken.head);
}

fn method_as(server: &Running, key: &str, method: &str, path: &str) -> Reply {
    server.send(&format!("{method} {path} HTTP/1.1\r\nAuthorization: Bearer {key}"), "")
}

#[test]
fn a_kept_response_is_had_again_and_deleted_by_its_own_key() {
    let folder = Folder::new("deleted");
    let keys = KEYS.map(String::from).to_vec();
    let response_dir = Some(folder.0.join("responses"));
    let server = start(moeflux_server::ServerOptions { api_keys: keys, response_dir, ..options() });
    let made = ask_as(&server, KEYS[0], json!({"input": "Hi", "instructions": "Be brief."})).json();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    let items = format!("{path}/input_items");
    assert_eq!(method_as(&server, KEYS[0], "GET", &path).json(), made);
    let stream = ask_as(&server, KEYS[0], json!({"input": "Hi", "stream": true})).body;
    let last = stream.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    let streamed = format!("/v1/responses/{}", last["response"]["id"].as_str().unwrap());
    assert_eq!(method_as(&server, KEYS[0], "GET", &streamed).json(), last["response"]);
    let listed = method_as(&server, KEYS[0], "GET", &items).json();
    assert_eq!(listed["data"][0]["content"][0]["text"], "Hi");
    // Another key has none of it, and neither has one that names an item.
    for (key, method, path) in [
        (KEYS[1], "GET", path.clone()),
        (KEYS[1], "DELETE", path.clone()),
        (KEYS[1], "GET", items.clone()),
        (KEYS[0], "GET", format!("/v1/responses/{}", made["output"][0]["id"].as_str().unwrap())),
        (KEYS[0], "DELETE", String::from("/v1/responses/resp_%2e%2e%2f")),
    ] {
        let refused = method_as(&server, key, method, &path);
        assert_eq!(refused.status, 404, "{method} {path}");
        let error = &refused.json()["error"];
        assert!(error["message"].as_str().unwrap().starts_with("Response with id '"), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    assert_eq!(method_as(&server, KEYS[0], "GET", &format!("{items}?after=msg_1")).status, 404);
    for query in ["?limit=0", "?limit=x", "?order=up"] {
        assert_eq!(method_as(&server, KEYS[0], "GET", &format!("{items}{query}")).status, 400);
    }
    assert_eq!(method_as(&server, KEYS[0], "GET", &format!("{path}?stream=true")).status, 400);
    let n_files = || std::fs::read_dir(folder.0.join("responses")).unwrap().count();
    assert_eq!(n_files(), 2);
    let deleted = method_as(&server, KEYS[0], "DELETE", &path).json();
    assert_eq!(deleted, json!({"id": made["id"], "object": "response", "deleted": true}));
    assert_eq!(n_files(), 1);
    for method in ["GET", "DELETE"] {
        assert_eq!(method_as(&server, KEYS[0], method, &path).status, 404);
    }
    let next = json!({"input": "So?", "previous_response_id": made["id"]});
    assert_eq!(ask_as(&server, KEYS[0], next).status, 404);
    assert_eq!(method_as(&server, KEYS[0], "GET", &streamed).status, 200);
}
