//! What jinja2 gives for templates, and that none of them takes memory without bound.
//!
//! `tools/templates/check_expressions.py` compares many more with jinja2 itself.

use serde_json::json;

use super::{environment, render, values};

fn result(source: &str) -> Result<String, String> {
    let variables = json!({
        "x": {"b": [1, 2.5, null], "a": "<é>", "items": 5},
        "tools": null,
        "n": 7,
    });
    let serde_json::Value::Object(variables) = variables else { panic!("an object") };
    let now = chrono::NaiveDate::from_ymd_opt(2024, 7, 6).unwrap();
    let now = now.and_hms_micro_opt(17, 4, 3, 120_045).unwrap();
    let env = environment(source).map_err(|err| err.to_string())?;
    render(&env, values(&variables), now).map_err(|err| err.to_string())
}

#[track_caller]
fn check(expression: &str, want: &str) {
    let source = if expression.contains("{%") || expression.contains("{{") {
        expression.to_owned()
    } else {
        format!("{{{{ {expression} }}}}")
    };
    assert_eq!(result(&source).as_deref(), Ok(want), "{source}");
}

#[test]
fn white_space_is_what_python_strips() {
    let text = r"'\x1f\x1c a \u2028\u2029\x85 \x0b\x1f'";
    for trimmed in ["| trim", ".strip()", ".lstrip().rstrip()", ".split()[0]"] {
        check(&format!("({text}){trimmed}"), "a");
    }
    check(r"'xax' | trim('x')", "a");
    check(r"'xax' | trim(chars='x')", "a");
    check("7 | trim ~ (none | trim) ~ (missing | trim)", "7None");
    assert!(result("{{ 'a' | trim(1) }}").is_err());
}

#[test]
fn tests_answer_as_python_does() {
    check("none is iterable", "False");
    check("tools is iterable and tools | length > 0", "False");
    check("'abc' is sequence ~ x is sequence ~ n is sequence", "TrueTrueFalse");
    check("strftime_now is callable ~ n is callable", "TrueFalse");
    check("{% macro f() %}{% endmacro %}{{ f is callable }}{{ f is mapping }}", "TrueTrue");
}

#[test]
fn values_print_as_python_prints_them() {
    check("[1e20, 1e-7, 1.0, -0.0] ~ 1e16", "[1e+20, 1e-07, 1.0, -0.0]1e+16");
    check("x", "{'b': [1, 2.5, None], 'a': '<é>', 'items': 5}");
    check("[\"it's\", 'a\\n\\x07', (1,)] | string", "[\"it's\", 'a\\n\\x07', (1,)]");
    check("x.items() | list | length", "3");
}

#[test]
fn percent_fills_in_values_and_keeps_its_rank() {
    check("'%s is %d' % ('x', 3)", "x is 3");
    check("'%(a)s %(items)05d' % x", "<é> 00005");
    check("'%5.1f|%-4d|%#x|%r|%c|%%' % (2.25, 3, 255, 'a', 65)", "  2.2|3   |0xff|'a'|A|%");
    check("'%s' % [1, none] ~ '%e' % 12345.678", "[1, None]1.234568e+04");
    assert!(result("{{ '%s %s' % ('a',) }}").is_err());
    assert!(result("{{ '%s' % ('a', 'b') }}").is_err());
}

#[test]
fn operators_bind_as_tightly_as_before() {
    check("'%d' % n % () ~ n % 4 * 2 ~ (1 + 2)", "763");
    check("n * 2 if n % 2 == 1 and 'a' ~ n == 'a7' else 0", "14");
    check("{% set y = 'a' ~ n, -n % 4 %}{{ y }}{{ [1, 2, 3][-1:0:-1] }}", "('a7', 1)[3, 2]");
    check("{{ '%}' ~ \"}}\" }}{# {{ ' #}{% raw %}{{ a ~ b }}{% endraw %}", "%}}}{{ a ~ b }}");
}

#[test]
fn macros_get_varargs_kwargs_and_earlier_parameters() {
    check("{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, 2) }}{{ f(1) }}", "1(2,)1()");
    check("{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(x=1) }}", "{'x': 1}");
    check("{% macro f(a, b=a ~ 1) %}{{ b }}{% endmacro %}{{ f('x') }}{{ f('x', 2) }}", "x12");
}

#[test]
fn line_ends_and_white_space_are_those_of_jinja2() {
    check("a\r\n  {% if true %}\r\n b\r\n  {% endif %}\r\nc{{ '\r' }}\r\n", "a\n b\nc\n");
    check("{% raw %}\nx\n{% endraw %}\ny", "\nx\ny");
    check("a\n{% generation %}\nb\n{% endgeneration %}\nc", "a\nb\nc");
    check("a\n{%- generation -%}\nb\n{%- endgeneration -%}\nc", "abc");
    check("{% set generation = 1 %}{{ generation }}{{ '{% generation %}' }}", "1{% generation %}");
}

#[test]
fn the_clock_has_the_fields_of_python() {
    check("strftime_now('%f|%z|%-d|%e|%j|%^a|%Q|%')", "120045||6| 6|188|SAT|%Q|%");
}

#[test]
fn widths_and_counts_have_bounds() {
    for expression in [
        "'a'.zfill(1000000000)",
        "'a'.center(10 ** 15)",
        "'a'.ljust(1000000000) | length",
        "'%1000000000d' % 1",
        "'%.1000000000f' % 1",
        "'%*d' % (1000000000, 1)",
        "'%99999999999999999999d' % 1",
        "'{:1000000000}'.format('a')",
        "'{:{}}'.format('a', 1000000000)",
        "'{:.1000000000%}'.format(1)",
        "'\\t'.expandtabs(1000000000)",
        "'a' | center(1000000000)",
        "'a\\nb' | indent(1000000000)",
        "'a' * 1000000000",
        "[1] * 1000000000",
        "('a' * 100000).replace('a', 'a' * 100000)",
        "('a' * 1000).join(('a' * 100000) | list)",
        "strftime_now('%1000000000Y')",
        "strftime_now('%65536Y')",
        "strftime_now('%65535Y' * 2000)",
        "'%65536d' % 1",
        "'%65535d' * 2000 % ((1,) * 2000)",
        "'abc'.translate({97: 'a' * 60000000, 98: 'a' * 60000000})",
    ] {
        let refused = result(&format!("{{{{ {expression} }}}}")).unwrap_err();
        assert!(
            refused.contains("allowed") || refused.contains("too large"),
            "{expression}: {refused}"
        );
    }
}

#[test]
fn malformed_templates_are_refused() {
    for source in [
        "{{ n ~ }}",
        "{{ % n }}",
        "{{ 'a }}",
        "{% if n %}",
        "{{ [1, 2 }}",
        "{{ n",
        "{{ 1 * }}",
        "{#",
    ] {
        let reason = result(source).unwrap_err();
        assert!(reason.contains("syntax error"), "{source}: {reason}");
    }
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    assert!(result(&deep).is_err());
    assert!(result("{{ 9 is divisibleby 0 }}{{ 1 % 0 }}").is_err());
}

/// A loop of `n` rounds that changes `ns.s`, which begins as `[]`, and then `last`.
fn rounds(n: usize, change: &str, last: &str) -> String {
    format!(
        "{{% set ns = namespace(s=[]) %}}{{% for i in range({n}) %}}{change}{{% endfor %}}{last}"
    )
}

#[test]
fn data_and_namespaces_nest_to_a_depth() {
    for change in [
        "{% set ns.s = [ns.s] %}",
        "{% set ns.s = {'a': ns.s} %}",
        "{% set ns.s = [[1, (2, {'a': ns.s})], 3] %}",
        "{% set ns.s = dict(a=ns.s) %}",
        "{% set ns.s = [ns.s] | batch(1) %}",
        "{% set ns.s = [ns.s][0:1] %}",
        "{% set ns.s, ns.t = [ns.s], 1 %}",
        "{% set s = [ns.s] %}{% set ns.s = s %}",
        "{% set ns.s = {(ns.s,): 1} %}",
        "{% set ns.s | list | map('list') | batch(1) %}x{% endset %}{% set ns.s = [ns.t, ns.s] %}\
         {% set ns.t = ns.s %}",
    ] {
        let refused = result(&rounds(5000, change, "{{ ns.s == ns.s }}")).unwrap_err();
        let is_bounded = ["levels", "values"].iter().any(|word| refused.contains(word));
        assert!(is_bounded, "{change}: {refused}");
    }
    // What is computed when it is read is computed when it is assigned.
    let sliced = rounds(20_000, "{% set ns.s = (ns.s + [i])[-2:] %}", "{{ ns.s }}");
    assert_eq!(result(&sliced).as_deref(), Ok("[19998, 19999]"));
    for source in [
        "{% set ns=namespace() %}{% set ns.a=ns %}{{ ns == ns }}",
        "{% set ns=namespace() %}{% set ns.a=[{'b': ns}] %}{{ ns == ns }}",
        "{% set ns=namespace() %}{% set ns.a | default(ns, true) %}{% endset %}{{ ns }}",
        "{% set ns=namespace() %}{% set ns.a=cycler(ns) %}{{ ns }}",
        "{% set ns=namespace() %}{% set ns.a=joiner(ns) %}{{ ns }}",
        "{% set ns=namespace() %}{% macro m() %}{% endmacro %}{% set ns.a = m %}",
    ] {
        let refused = result(source).unwrap_err();
        assert!(refused.contains("field of a namespace"), "{source}: {refused}");
    }
    check("{% set ns=namespace(a=1) %}{% set b=ns %}{% set b.a=[x, (1,)] %}{{ ns.a[1] }}", "(1,)");
    check("{% set ns=namespace() %}{% set ns.a | trim | upper %} b {% endset %}{{ ns.a }}", "B");
    check(
        "{% set a, b = 1, [2] %}{% set c = 3, %}{% set d=a if b else c %}{{ [a, b, c, d] }}",
        "[1, [2], (3,), 1]",
    );
}

#[test]
fn long_sources_are_refused_before_they_are_parsed() {
    let n = 100_000;
    for source in [
        format!("{{{{ {}1 }}}}", "1+".repeat(n)),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ x{} }}}}", ".a".repeat(n)),
        format!("{{{{ x{} }}}}", "|abs".repeat(n)),
        format!("{{{{ x{} }}}}", "()".repeat(n)),
        format!("{{{{ {} }}}}", "[".repeat(n)),
        format!("{{{{ x{} }} {{%", ".a".repeat(n)),
        "{% if true %}".repeat(n),
        format!("{{% if n %}}{}{{% endif %}}", "{% elif n %}".repeat(n)),
    ] {
        assert!(result(&source).unwrap_err().contains("syntax error"), "{}", &source[..40]);
    }
}
