//! What is around a download: certificates, names of hosts, and odd files in the cache.

use std::fs;

use moeflux_hub::{Certificates, Event, HubEnv, resolve};

#[cfg(unix)]
use crate::hub::{check_complete, fetch, partial};
use crate::hub::{env, hub};

#[test]
fn certificates_that_are_none_are_named() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let file = cache.path().join("ca.pem");
    fs::write(&file, "no certificate").unwrap();
    for path in [file, cache.path().join("missing.pem")] {
        let source = "SSL_CERT_FILE";
        let certificates = Some(Certificates { path: path.clone(), source });
        let endpoint = hub.endpoint.replace("http://", "https://");
        let env = HubEnv { certificates, endpoint, ..env(&hub, cache.path()) };
        let error = resolve("org/name", &env, &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{source} names {}: ", path.display())), "{error}");
    }
}

#[test]
fn a_name_that_does_not_resolve_is_asked_for_once() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    // Longer than a part of a name may be, so that no server of names is asked.
    let endpoint = format!("http://{}.invalid", "a".repeat(70));
    let env = HubEnv { endpoint, ..env(&hub, cache.path()) };
    let mut n_retries = 0;
    let error = resolve("org/name", &env, &mut |event| {
        n_retries += usize::from(matches!(event, Event::Retrying(_)));
    });
    let error = error.unwrap_err().to_string();
    assert_eq!(n_retries, 0, "{error}");
    assert!(
        error.ends_with("no host of that name is found: check the network and HF_ENDPOINT"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn links_and_pipes_in_the_cache_lead_nowhere() {
    let (hub, cache) = (hub(), tempfile::tempdir().unwrap());
    let own = cache.path().join("own.txt");
    fs::write(&own, "mine").unwrap();
    std::os::unix::fs::symlink(&own, partial(cache.path())).unwrap();
    check_complete(&fetch(&hub, cache.path()).unwrap());
    assert_eq!(fs::read_to_string(&own).unwrap(), "mine");
    let locks = cache.path().join(".locks/models--org--name");
    fs::remove_file(locks.join("moeflux.lock")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(locks.join("moeflux.lock")).status();
    assert!(made.unwrap().success());
    fs::remove_dir_all(cache.path().join("models--org--name")).unwrap();
    let error = fetch(&hub, cache.path()).unwrap_err().to_string();
    assert!(error.contains("moeflux.lock: something other than a file"), "{error}");
}
