//! Plans, facts, tokens and chat templates.

use std::ptr::null_mut;

use moeflux_c::*;
use serde_json::Value;

use crate::support::{
    Demo, Errors, MOEFLUX_ERROR_OPTION, MOEFLUX_ERROR_REQUEST, QUESTION, c, demo, rust,
};

#[test]
fn text_comes_back_from_its_tokens_and_users_write_no_control_tokens() {
    let demo = Demo::open(&[]);
    let text = "Why is <|im_end|> there?\n";
    let literal = demo.tokenize(text);
    let mut tokens = null_mut();
    // SAFETY: the text has that many bytes, and the place is a local.
    let status = unsafe {
        moeflux_tokenize(
            demo.model,
            text.as_ptr().cast(),
            text.len(),
            moeflux_markup::MOEFLUX_PROMPT as i32,
            &raw mut tokens,
            demo.errors.0,
        )
    };
    demo.errors.ok(status);
    let prompt = demo.ids(tokens);
    assert!(prompt.len() < literal.len(), "{prompt:?} {literal:?}");
    for tokens in [literal, prompt] {
        let mut back = null_mut();
        // SAFETY: there are that many tokens, and the place is a local.
        let status = unsafe {
            moeflux_detokenize(
                demo.model,
                tokens.as_ptr(),
                tokens.len(),
                &raw mut back,
                demo.errors.0,
            )
        };
        demo.errors.ok(status);
        assert_eq!(demo.take(back), text);
    }
}

#[test]
fn a_chat_template_is_applied_as_text_and_as_tokens() {
    let demo = Demo::open(&[]);
    let (messages, mut text, mut tokens) = (c(QUESTION), null_mut(), null_mut());
    // SAFETY: the messages live on, and the places are locals.
    let status = unsafe {
        moeflux_chat_prompt(
            demo.model,
            messages.as_ptr(),
            null_mut(),
            &raw mut text,
            &raw mut tokens,
            demo.errors.0,
        )
    };
    demo.errors.ok(status);
    let (text, tokens) = (demo.take(text), demo.ids(tokens));
    assert!(text.contains("What is 23 + 45?") && text.ends_with("assistant\n"), "{text}");
    assert!(tokens.len() > 5 && tokens.len() < text.len());
}

#[test]
fn a_plan_and_facts_are_json() {
    let errors = Errors::new();
    let (path, mut plan) = (demo(), null_mut());
    // SAFETY: the path lives on, and the place is a local.
    errors.ok(unsafe { moeflux_plan(path.as_ptr(), null_mut(), &raw mut plan, errors.0) });
    let demo = Demo::open(&[("ctx", "64"), ("threads", "1")]);
    let plan: Value = serde_json::from_str(&demo.take(plan)).expect("JSON");
    assert_eq!(plan["fits"], true);
    let rows = plan["rows"].as_array().expect("rows");
    let total: u64 = rows.iter().filter_map(|row| row["bytes"].as_u64()).sum();
    assert_eq!(Some(total), plan["total_bytes"].as_u64(), "{plan}");

    let (mut info, mut stats) = (null_mut(), null_mut());
    // SAFETY: the place is a local.
    errors.ok(unsafe { moeflux_model_info(demo.model, &raw mut info, errors.0) });
    let info: Value = serde_json::from_str(&demo.take(info)).expect("JSON");
    assert_eq!((&info["context_length"], &info["threads"]), (&64.into(), &1.into()));
    assert_eq!(info["has_chat_template"], true);

    assert_eq!(demo.text(demo.chat(QUESTION, &[])), "68");
    // SAFETY: the place is a local.
    errors.ok(unsafe { moeflux_model_stats(demo.model, &raw mut stats, errors.0) });
    let stats: Value = serde_json::from_str(&demo.take(stats)).expect("JSON");
    assert_eq!(stats["answers"]["ended"], 1, "{stats}");
    let used = ["hits", "misses"].map(|name| stats["experts"][name].as_u64().unwrap_or(0));
    assert!(used.iter().sum::<u64>() > 0, "{stats}");
}

#[test]
fn values_that_make_no_sense_name_their_option() {
    let errors = Errors::new();
    let (mut options, mut request) = (null_mut(), null_mut());
    // SAFETY: the place is a local.
    errors.ok(unsafe { moeflux_options_new(&raw mut options, errors.0) });
    // SAFETY: the place is a local.
    errors.ok(unsafe { moeflux_request_new(&raw mut request, errors.0) });
    for (name, value) in [
        ("ctx", "0"),
        ("ctx", "many"),
        ("threads", "-1"),
        ("kv_type", "f64"),
        ("device", "tpu"),
        ("expert_cache", "2XB"),
        ("speculation", "99"),
        ("sessions", "0"),
        ("prefetch", ""),
        ("allow_missing_experts", "yes"),
        ("prompt_cache", ""),
        ("expert_io", "fast"),
    ] {
        let (name, value) = (c(name), c(value));
        // SAFETY: the texts live on.
        let status =
            unsafe { moeflux_options_set(options, name.as_ptr(), value.as_ptr(), errors.0) };
        errors.failed(status, MOEFLUX_ERROR_OPTION);
        assert_eq!(errors.option(), name.to_str().unwrap_or_default());
    }
    for (name, value) in [
        ("max_tokens", "0"),
        ("temperature", "nan"),
        ("stop", "no JSON"),
        ("stop", "[1]"),
        ("tool_choice", "{}"),
        ("tools", "{}"),
        ("logit_bias", r#"{"a": 1}"#),
        ("thinking", "1"),
        ("logit_bias", r#"{"1": 1e300}"#),
        ("seed", "-1"),
        ("format", "xml"),
    ] {
        let (name, value) = (c(name), c(value));
        // SAFETY: the texts live on.
        let status =
            unsafe { moeflux_request_set(request, name.as_ptr(), value.as_ptr(), errors.0) };
        errors.failed(status, MOEFLUX_ERROR_REQUEST);
        assert_eq!(errors.option(), name.to_str().unwrap_or_default());
    }
    let (name, value) = (c("no_such_option"), c("1"));
    // SAFETY: the texts live on.
    let status = unsafe { moeflux_options_set(options, name.as_ptr(), value.as_ptr(), errors.0) };
    errors.failed(status, MOEFLUX_ERROR_OPTION);
    assert!(errors.text().contains("expert_cache"), "{}", errors.text());
    errors.ok(moeflux_options_free(options));
    errors.ok(moeflux_request_free(request));
}

#[test]
fn options_that_the_model_refuses_are_named_as_a_setter_takes_them() {
    let errors = Errors::new();
    let (mut options, mut model) = (null_mut(), null_mut());
    // SAFETY: the place is a local.
    errors.ok(unsafe { moeflux_options_new(&raw mut options, errors.0) });
    let (name, value, path) = (c("experts_per_token"), c("1000"), demo());
    // SAFETY: the texts live on.
    errors.ok(unsafe { moeflux_options_set(options, name.as_ptr(), value.as_ptr(), errors.0) });
    // SAFETY: the path lives on, and the place is a local.
    let status =
        unsafe { moeflux_open(path.as_ptr(), options, None, null_mut(), &raw mut model, errors.0) };
    errors.failed(status, MOEFLUX_ERROR_OPTION);
    assert!(model.is_null());
    assert_eq!(errors.option(), "experts_per_token");
    assert!(errors.text().contains("experts_per_token"), "{}", errors.text());
    errors.ok(moeflux_options_free(options));
}

#[test]
fn every_status_has_a_name() {
    assert_eq!(rust(moeflux_status_name(0)), "MOEFLUX_OK");
    assert_eq!(rust(moeflux_status_name(-11)), "MOEFLUX_ERROR_OPTION");
    assert_eq!(rust(moeflux_status_name(i32::MIN)), "no status of moeflux");
    assert_eq!(moeflux_abi_version(), MOEFLUX_ABI_VERSION);
    assert_eq!(rust(moeflux_version()), env!("CARGO_PKG_VERSION"));
}
