//! Command lines of other programs, and models without a flag.

use std::ffi::OsString;

use super::*;
use crate::help;

fn line(words: &str) -> Vec<OsString> {
    // Words in quotes are written with underscores.
    let word = |word: &str| OsString::from(word.replace('_', " "));
    [OsString::from("moeflux")].into_iter().chain(words.split(' ').map(word)).collect()
}

fn translated(words: &str) -> Result<String, String> {
    let done = translate(line(words), &help::command()).map_err(|err| err.to_string())?;
    let words: Vec<String> = done
        .arguments
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().replace(' ', "_"))
        .collect();
    Ok(words.join(" "))
}

#[test]
fn a_model_stands_without_a_flag_where_there_is_no_doubt() {
    for (written, want) in [
        ("run What_is_2?", "run What_is_2?"),
        ("run hello", "run hello"),
        ("run -- and/or", "run -- and/or"),
        ("run org/name", "run --model=org/name"),
        ("run org/name hi", "run --model=org/name hi"),
        ("run org/name:Q4_K_M hi".replace("_K_M", "").as_str(), "run --model=org/name:Q4 hi"),
        ("run hf.co/org/name hi", "run --model=hf.co/org/name hi"),
        ("run qwen3.6-35b-a3b hi", "run --model=qwen3.6-35b-a3b hi"),
        ("run ./nowhere.gguf hi", "run --model=./nowhere.gguf hi"),
        ("run -m org/name org/other", "run -m org/name org/other"),
        ("run --model=a/b c/d", "run --model=a/b c/d"),
        ("run hello world", "run hello world"),
        ("run gpt-oss-20 hi", "run --model=gpt-oss-20 hi"),
        ("run gpt-oss-20", "run gpt-oss-20"),
        ("run org/name two words", "run org/name two words"),
        ("run org/name -- -5", "run --model=org/name -- -5"),
        ("run --max-tokens 5 org/name hi", "run --max-tokens 5 --model=org/name hi"),
        ("run -qm org/name hi", "run -qm org/name hi"),
        ("chat src", "chat src"),
        ("chat src hi", "chat --model=src hi"),
        ("run /help", "run /help"),
        ("run -", "run -"),
        ("plan org/name --ctx 5", "plan --model=org/name --ctx 5"),
        ("plan nowhere", "plan --model=nowhere"),
        ("plan --shape tiny x", "plan --shape tiny x"),
        ("show org/name", "show --model=org/name"),
        ("serve org/name -p 80", "serve --model=org/name -p 80"),
        ("launch codex org/name -- -c x", "launch codex --model=org/name -- -c x"),
        ("pack a b", "pack a b"),
        ("pull org/name", "pull org/name"),
    ] {
        assert_eq!(translated(written).as_deref(), Ok(want.trim_end()), "{written}");
    }
}

#[test]
fn flags_of_other_programs_are_translated() {
    for (written, want) in [
        ("run -hf org/name hi", "run --model=org/name hi"),
        ("run -hf org/name -p hi", "run --model=org/name -- hi"),
        ("run --hf-repo=org/name -p -x", "run --model=org/name -p -x"),
        ("run org/name -p hi", "run --model=org/name -- hi"),
        ("run -hf org/name -hff x-Q8.gguf hi", "run --model=org/name:x-Q8.gguf hi"),
        ("chat -c 4096 -t 8 -n -1", "chat --ctx=4096 --threads=8"),
        ("serve --reasoning-budget 512", "serve --thinking-budget=512"),
        ("serve --reasoning-budget -1", "serve"),
        ("chat -c4096 -t8", "chat --ctx=4096 --threads=8"),
        ("chat -n 5 -ngl 0", "chat --max-tokens=5 --device=cpu"),
        ("serve -ctk q8_0 -ctv q8_0".replace("q8_0", "q8").as_str(), "serve --kv-type=q8"),
        ("serve -fa on --jinja --mlock -ot exps=CPU -fa", "serve"),
        ("serve --n-cpu-moe 20 -cmoe -np 2", "serve --sessions=2"),
        ("bench -p 64 -n 8 -r 2", "bench --prompt-tokens=64 --gen-tokens=8 --repeat=2"),
        ("run -c", "run --ctx"),
        ("run --json-schema {} hi", "run --schema={} hi"),
        ("chat --format json", "chat --schema=json"),
        ("launch codex -- -c x", "launch codex -- -c x"),
        ("run --system -c 5", "run --system --ctx=5"),
        ("pull -hf org/name", "pull org/name"),
        ("pull -hf org/name -hff x.gguf", "pull org/name:x.gguf"),
        ("rm --model=org/name -y", "rm org/name -y"),
        ("run -c 0 -t -1 -s -1 hi", "run hi"),
        ("run -b 64 -ub 64 hi", "run --chunk=64 hi"),
        ("run --threads 2 -tb 2 hi", "run --threads 2 hi"),
        ("run -t 2 --threads=2 hi", "run --threads=2 hi"),
        ("serve -a x -a y", "serve --model-name=x --model-name=y"),
        ("rm -yq x", "rm -yq x"),
        ("run -nh hi", "run -nh hi"),
    ] {
        let got = translated(written);
        if written.contains("-p -x") {
            assert!(got.unwrap_err().contains("-p needs a value"), "{written}");
            continue;
        }
        assert_eq!(got.as_deref(), Ok(want), "{written}");
    }
    for (written, words) in [
        ("run -ngl 99 hi", "--device gpu"),
        ("run --gpu-layers 5 hi", "--device gpu"),
        ("serve -ctk f16", "--kv-type"),
        ("serve -ctk bf16 -ctv f32", "one type"),
        ("serve --api-key secret", "MOEFLUX_API_KEY"),
        ("run -hff x.gguf hi", "org/name:x.gguf"),
        ("run -f prompt.txt", "moeflux run < FILE"),
        ("run --grammar x hi", "--schema"),
        ("serve --json-schema {}", "response_format"),
        ("run -b 2048 -ub 512 hi", "-b and -ub are one flag here, --chunk"),
        ("run --threads 2 -tb 4 hi", "--threads and -tb are one flag"),
        ("run -c 2048 -c 512 hi", "-c is given twice"),
        ("pull -hf", "-hf needs a value"),
        ("ps -hf x", "there is no flag -hf"),
        ("rm -yh x", "there is no flag -yh"),
        ("doctor -hello", "there is no flag -hello (see moeflux doctor --help)"),
        ("run -h2", "there is no flag -h2"),
        ("-hello", "there is no flag -hello (see moeflux --help)"),
        ("-Vx", "there is no flag -Vx"),
        ("--version foo", "'foo' does not go with --version"),
        ("-V run", "'run' does not go with -V"),
        ("-hf org/name", "moeflux chat --model"),
        ("-m org/name", "moeflux chat --model"),
    ] {
        let problem = translated(written).unwrap_err();
        assert!(problem.contains(words), "{written}: {problem}");
    }
    let notes = translate(line("serve --jinja -fa on"), &help::command()).unwrap().notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
}

#[test]
fn commands_are_proposed_by_what_they_mean() {
    let program = help::command();
    let command = |name: &str| Some(Meaning::Command(name.to_owned()));
    for (word, want) in [
        ("generate", command("run")),
        ("create", command("pack")),
        ("download", command("pull")),
        ("remove", command("rm")),
        ("status", command("ps")),
        ("llama-bench", command("bench")),
        ("chta", command("chat")),
        ("rnu", command("run")),
        ("lsit", command("list")),
        ("modles", command("models")),
        ("perp", command("perplexity")),
        ("verison", command("version")),
        ("sing", None),
        ("x", None),
        ("logs", None),
        ("", None),
    ] {
        assert_eq!(meaning(word, &program), want, "{word}");
    }
    for word in ["stop", "push", "login"] {
        assert!(matches!(meaning(word, &program), Some(Meaning::Advice(_))), "{word}");
    }
}
