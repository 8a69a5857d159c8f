//! Responses by their ids: found by those who made them, and as long as there is room.

use serde_json::{Value, json};

use super::*;

const FIRST: &str = "resp_00112233445566778899aabb";
const SECOND: &str = "resp_ffffffffffffffffffffffff";

fn owner(key: &str) -> Owner {
    let mut headers = axum::http::HeaderMap::new();
    headers.insert("x-api-key", key.parse().unwrap());
    Owner::of(&headers)
}

/// Keeps a response with one message.
fn keep(kept: &KeptResponses, owner: &Owner, id: &str, body: &Value) -> String {
    let item = item_id("msg_", id, 0);
    let output = json!([{"type": "message", "id": item, "content": "Yes."}]);
    let response = json!({"id": id, "status": "completed", "output": output});
    kept.put(id, Record::of_request(owner.clone(), body).answered(&response));
    item
}

#[test]
fn keys_are_the_same_wherever_they_are_shown() {
    let mut headers = axum::http::HeaderMap::new();
    headers.insert("authorization", "Bearer  one".parse().unwrap());
    assert_eq!(Owner::of(&headers), owner("one"));
    assert_ne!(Owner::of(&headers), owner("other"));
}

#[test]
fn a_conversation_is_all_its_turns() {
    let (kept, owner) = (KeptResponses::new(None, LogFormat::Text), owner("key"));
    let item = keep(&kept, &owner, FIRST, &json!({"input": "Why?"}));
    let body = json!({
        "previous_response_id": FIRST,
        "input": [{"type": "item_reference", "id": item}, {"role": "user", "content": "So?"}],
    });
    keep(&kept, &owner, SECOND, &body);
    let items = kept.resolver(&owner).conversation(SECOND).unwrap();
    let said: Vec<&str> = items.iter().map(|item| item["content"].as_str().unwrap()).collect();
    assert_eq!(said, ["Why?", "Yes.", "Yes.", "So?", "Yes."]);
    // Some clients leave out the type of references.
    let found = kept.resolver(&owner).resolved(json!({"id": item})).unwrap();
    assert_eq!(found["content"], "Yes.");
}

#[test]
fn what_is_not_there_or_another_keys_is_not_found() {
    let (kept, owner, other) =
        (KeptResponses::new(None, LogFormat::Text), owner("key"), owner("other"));
    let item = keep(&kept, &owner, FIRST, &json!({"input": "Why?"}));
    let error = kept.resolver(&other).conversation(FIRST).unwrap_err();
    assert_eq!(error.status, 404);
    assert_eq!(error.message, format!("Previous response with id '{FIRST}' not found."));
    for id in [&*item, "msg_1", "rs_é", "", &"x".repeat(1000), "msg_00112233445566778899aabbfff"] {
        let refer = || json!({"type": "item_reference", "id": id});
        let error = kept.resolver(&other).resolved(refer()).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (404, Some("input")));
        assert!(error.message.starts_with("Item with id '"), "{}", error.message);
        assert_eq!(kept.resolver(&owner).resolved(refer()).is_ok(), id == item, "{id}");
    }
}

#[test]
fn many_references_to_much_are_refused() {
    let (kept, owner) = (KeptResponses::new(None, LogFormat::Text), owner("key"));
    let item = item_id("msg_", FIRST, 0);
    let output = json!([{"type": "message", "id": item, "content": "x".repeat(1 << 20)}]);
    let record = Record::of_request(owner.clone(), &json!({"input": "Why?"}));
    kept.put(FIRST, record.answered(&json!({"output": output})));
    let mut resolver = kept.resolver(&owner);
    let mut all = (0..100).map(|_| resolver.resolved(json!({"id": item})));
    let error = all.find_map(Result::err).unwrap();
    assert!(error.message.starts_with("input: it refers to more than 16 MiB"), "{error:?}");
}

#[test]
fn the_least_recently_used_leaves() {
    let (kept, owner) = (KeptResponses::new(None, LogFormat::Text), owner("key"));
    let id = |i: usize| format!("resp_{i:024x}");
    let text = "x".repeat(MAX_RECORD / 2);
    for i in 0..8 {
        keep(&kept, &owner, &id(i), &json!({"input": text}));
        // The first one is used all the time.
        assert!(kept.resolver(&owner).conversation(&id(0)).is_ok(), "{i}");
    }
    assert!(kept.resolver(&owner).conversation(&id(1)).is_err());
    assert!(kept.resolver(&owner).conversation(&id(7)).is_ok());
    keep(&kept, &owner, FIRST, &json!({"input": "x".repeat(MAX_RECORD)}));
    assert!(kept.resolver(&owner).conversation(FIRST).is_err(), "it is too large");
    assert!(kept.held().n_bytes <= MAX_BYTES);
}

#[test]
fn a_folder_has_them_after_a_restart() {
    let dir = std::env::temp_dir().join(format!("moeflux-kept-{}", std::process::id()));
    let (owner, other) = (owner("key"), owner("other"));
    let kept = KeptResponses::new(Some(&dir), LogFormat::Text);
    let item = keep(&kept, &owner, FIRST, &json!({"input": "Why?"}));
    // What was handed over is written.
    drop(kept);
    let kept = KeptResponses::new(Some(&dir), LogFormat::Text);
    assert_eq!(kept.resolver(&owner).conversation(FIRST).unwrap().len(), 2);
    assert!(kept.resolver(&other).conversation(FIRST).is_err());
    drop(kept);
    let [file] = std::fs::read_dir(&dir).unwrap().collect::<Vec<_>>().try_into().unwrap();
    let file = file.unwrap().path();
    for damaged in ["", "{}", "{\"version\": 9, \"input\": [], \"output\": [], \"head\": {}}"] {
        std::fs::write(&file, damaged).unwrap();
        let kept = KeptResponses::new(Some(&dir), LogFormat::Text);
        let refer = json!({"type": "item_reference", "id": item});
        assert!(kept.resolver(&owner).resolved(refer).is_err(), "{damaged}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_response_is_had_again_until_it_is_deleted() {
    let dir = std::env::temp_dir().join(format!("moeflux-deleted-{}", std::process::id()));
    let (owner, other) = (owner("key"), owner("other"));
    for dir in [None, Some(&*dir)] {
        let kept = KeptResponses::new(dir, LogFormat::Text);
        let item = keep(&kept, &owner, FIRST, &json!({"input": "Why?"}));
        keep(&kept, &owner, SECOND, &json!({"input": "So?"}));
        let response = kept.response(&owner, FIRST).unwrap();
        assert_eq!((&response["id"], &response["output"][0]["id"]), (&json!(FIRST), &json!(item)));
        for (owner, id) in [(&other, FIRST), (&owner, &*item), (&owner, "resp_1"), (&owner, "")] {
            for found in [kept.response(owner, id).map(drop), kept.delete(owner, id)] {
                assert_eq!(found.unwrap_err().status, 404, "{id}");
            }
            assert!(kept.input_items(owner, id).is_err());
        }
        kept.delete(&owner, FIRST).unwrap();
        assert_eq!(kept.held().records.len(), 1);
        let error = kept.delete(&owner, FIRST).unwrap_err();
        assert_eq!(error.message, format!("Response with id '{FIRST}' not found."));
        assert!(kept.resolver(&owner).conversation(FIRST).is_err());
        assert!(kept.response(&owner, SECOND).is_ok());
        let left = kept.record(&owner, SECOND).unwrap().n_bytes();
        assert_eq!(kept.held().n_bytes, left);
    }
    let files = std::fs::read_dir(&dir).unwrap().count();
    assert_eq!(files, 1, "the other one is left");
    let kept = KeptResponses::new(Some(&dir), LogFormat::Text);
    assert!(kept.response(&owner, FIRST).is_err() && kept.response(&owner, SECOND).is_ok());
    drop(kept);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn items_of_requests_are_listed_with_ids_and_parts() {
    let (kept, owner) = (KeptResponses::new(None, LogFormat::Text), owner("key"));
    let item = keep(&kept, &owner, FIRST, &json!({"input": "Why?"}));
    let body = json!({"input": [
        {"type": "item_reference", "id": item},
        {"role": "assistant", "content": "Said."},
        {"role": "user", "content": "So?", "id": "msg_own"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]});
    keep(&kept, &owner, SECOND, &body);
    let items = kept.input_items(&owner, SECOND).unwrap();
    assert_eq!(items[0]["content"][0]["text"], "Yes.");
    assert_eq!(items[1]["content"][0]["type"], "output_text");
    assert_eq!((&items[2]["id"], &items[2]["type"]), (&json!("msg_own"), &json!("message")));
    assert_eq!(items[2]["content"], json!([{"type": "input_text", "text": "So?"}]));
    assert_eq!(items[3]["type"], "function_call_output");
    let ids: std::collections::HashSet<_> =
        items.iter().map(|item| item["id"].to_string()).collect();
    assert_eq!(ids.len(), 4, "{items:?}");
}
