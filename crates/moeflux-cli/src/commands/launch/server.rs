//! The server of a launched agent: one that runs already, or one that is started for it.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use moeflux_core::files::{check_target, read_bounded};
use moeflux_core::private;
use serde_json::Value;

use crate::args::LaunchArgs;
use crate::dial::{Dial, Place, certificate_problem};
use crate::paths::cache_dir;
use crate::program;
use crate::report::note;
use crate::values::Sessions;

/// Between two looks at a server that starts or ends.
const TICK: Duration = Duration::from_millis(50);

/// How long a server may take to finish what it answers and to write what should last.
const ENDING: Duration = Duration::from_secs(20);

/// How long one that runs may take for a reply.
const REPLY: Duration = Duration::from_secs(10);

/// What an agent needs to know of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The model's name; others may mean it too.
    pub(super) model: String,
    pub(super) names: Vec<String>,
    /// Tokens of a conversation; `None` where the server does not run.
    pub(super) ctx: Option<usize>,
}

/// A server that may run already.
pub(super) struct Running {
    dial: Dial,
    /// By which programs of this machine reach it.
    pub(super) url: String,
}

impl Running {
    /// At an address, with TLS where `ca` has its certificate or its authority's.
    ///
    /// # Errors
    /// Where that file cannot be read or has no certificate.
    pub(super) fn new(addr: SocketAddr, ca: Option<&Path>) -> Result<Running> {
        let addr = local(addr);
        let dial = Dial::new(Place::Tcp(addr), ca)?;
        // Certificates have names rather than numbers.
        let url = match ca {
            Some(_) if addr.ip().is_loopback() => format!("https://localhost:{}", addr.port()),
            _ => dial.to_string(),
        };
        Ok(Running { dial, url })
    }
}

/// The address by which programs of this machine reach a server that listens at `addr`.
fn local(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// Asks a server what it serves; `None` where nothing listens. Of several models the one that is
/// wanted is described, else the one that is loaded.
pub(super) fn ask(server: &Running, key: Option<&str>, wanted: &[String]) -> Result<Option<Facts>> {
    let url = &server.url;
    let agent = server.dial.agent(REPLY);
    let mut request = agent.get(format!("{}/v1/models", Dial::ORIGIN));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = match request.call() {
        Ok(response) => response,
        Err(ureq::Error::Io(err)) if err.kind() == ErrorKind::ConnectionRefused => {
            return Ok(None);
        }
        Err(ureq::Error::ConnectionFailed) => return Ok(None),
        Err(ureq::Error::Io(err)) if certificate_problem(&err).is_some() => bail!(
            "the server at {url} has another certificate than --tls-ca names: give the file of its \
             --tls-cert, or that of its authority ({err})"
        ),
        Err(err) => return Err(anyhow!(err).context(format!("the server at {url} (--addr)"))),
    };
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string().unwrap_or_default();
    match status {
        200 => facts(&text, wanted).map(Some).ok_or_else(|| foreign(url)),
        401 if key.is_none() => {
            bail!("the server at {url} wants a key: give --api-key-file, or set MOEFLUX_API_KEY")
        }
        401 => {
            bail!("the server at {url} does not know the first key that was given (--api-key-file)")
        }
        _ => Err(foreign(url)),
    }
}

fn foreign(url: &str) -> anyhow::Error {
    anyhow!("another program answers at {url}: end it, or choose another address with --addr")
}

/// Reads the list of models of a server of ours.
fn facts(text: &str, wanted: &[String]) -> Option<Facts> {
    let value: Value = serde_json::from_str(text).ok()?;
    let models = value["data"].as_array()?;
    let first_of_all = models.first().filter(|model| model["owned_by"] == "moeflux")?;
    let find = |is_meant: &dyn Fn(&Value) -> bool| models.iter().find(|model| is_meant(model));
    let meant = find(&|model| wanted.iter().any(|name| model["id"] == *name));
    let first = meant.or_else(|| find(&|model| model["status"]["value"] == "loaded"));
    let first = first.unwrap_or(first_of_all);
    let names = models.iter().filter_map(|model| model["id"].as_str().map(str::to_owned));
    let ctx = first["context_length"].as_u64().and_then(|ctx| usize::try_from(ctx).ok());
    let model = first["id"].as_str()?.to_owned();
    Some(Facts { model, names: names.collect(), ctx })
}

/// A server that was started here. It ends when its standard input does, so that it never
/// survives this process.
pub(super) struct Started {
    child: Child,
    alive: Option<ChildStdin>,
    log: PathBuf,
    pub(super) url: String,
    pub(super) facts: Facts,
}

impl Started {
    /// Starts a server and waits until it answers. What it says until then goes to standard error.
    pub(super) fn new(args: &LaunchArgs, key: Option<&str>) -> Result<Started> {
        let (log, file) = open_log(args.addr.port())?;
        note(false, &format!("starting the server (log: {})", log.display()));
        let mut child = command(args)?
            .stdin(Stdio::piped())
            .stdout(file.try_clone().context("the server's log")?)
            .stderr(file)
            .spawn()
            .context("cannot start the server")?;
        let alive = child.stdin.take();
        let facts = Facts { model: String::new(), names: Vec::new(), ctx: None };
        let mut started = Started { child, alive, log, url: String::new(), facts };
        started.wait_until_ready(key)?;
        Ok(started)
    }

    fn wait_until_ready(&mut self, key: Option<&str>) -> Result<()> {
        let mut n_shown = 0;
        loop {
            // Looked at before the log, whose last lines say why it ended.
            let ended = self.child.try_wait().context("cannot wait for the server")?;
            let text = read(&self.log);
            if let Some(status) = ended {
                bail!("{}", why_it_ended(&text, status, &self.log));
            }
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            if let Some(new) = text.get(n_shown..whole) {
                // Nothing is lost where standard error is closed: the log has it.
                let _ = std::io::stderr().write_all(new.as_bytes());
                n_shown = whole;
            }
            let addr = text.lines().find_map(|line| line.split("listening on http://").nth(1));
            if let Some(addr) = addr.and_then(|addr| addr.trim().parse().ok()) {
                let server = Running::new(addr, None)?;
                if let Some(facts) = ask(&server, key, &[])? {
                    self.url = server.url;
                    self.facts = facts;
                    return Ok(());
                }
            }
            sleep(TICK);
        }
    }

    /// Ends it: what it answers may finish.
    pub(super) fn end(mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            let why = why_it_ended(&read(&self.log), status, &self.log);
            return note(false, &format!("the server ended before the agent: {why}"));
        }
        self.alive = None;
        let start = Instant::now();
        while start.elapsed() < ENDING {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(TICK);
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `moeflux serve` as the arguments ask for it.
fn command(args: &LaunchArgs) -> Result<Command> {
    let mut command = program::again().context("cannot find this program's file")?;
    command.args(serve_args(args)).arg("--until-eof");
    // Ctrl-C is meant for the agent.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    #[cfg(windows)]
    {
        const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
        std::os::windows::process::CommandExt::creation_flags(
            &mut command,
            CREATE_NEW_PROCESS_GROUP,
        );
    }
    Ok(command)
}

/// Arguments of a server for `launch`.
pub(super) fn serve_args(args: &LaunchArgs) -> Vec<std::ffi::OsString> {
    let mut all = vec!["serve".into(), "--addr".into(), args.addr.to_string().into()];
    if let Some(model) = &args.model {
        all.extend(["--model".into(), model.into()]);
    }
    if let Some(ctx) = args.ctx {
        all.extend(["--ctx".into(), ctx.to_string().into()]);
    }
    if let Some(n) = args.thinking_budget {
        all.extend(["--thinking-budget".into(), n.to_string().into()]);
    }
    let sessions = Sessions::of_launch(args.sessions);
    all.extend(["--sessions".into(), sessions.to_string().into()]);
    if args.no_prompt_cache {
        all.push("--no-prompt-cache".into());
    }
    if let Some(file) = &args.api_key_file {
        all.extend(["--api-key-file".into(), file.into()]);
    }
    all
}

fn open_log(port: u16) -> Result<(PathBuf, File)> {
    let dir = cache_dir()?;
    let path = dir.join(format!("launch-{port}.log"));
    let open = || {
        private::create_dir_all(&dir)?;
        // A pipe of that name would wait for a reader.
        check_target(&path)?;
        private::open(File::options().create(true).write(true).truncate(true), &path)
    };
    let file =
        open().with_context(|| format!("cannot write {} (MOEFLUX_CACHE)", path.display()))?;
    Ok((path, file))
}

/// Bytes of a log that are read, at most: it is short while a server starts.
const MAX_LOG: u64 = 16 << 20;

/// A log is text that this program wrote.
fn read(log: &Path) -> String {
    let bytes = read_bounded(log, MAX_LOG).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn why_it_ended(log: &str, status: ExitStatus, path: &Path) -> String {
    let last = log.lines().rev().map(str::trim).find(|line| !line.is_empty());
    match last.map(|line| line.strip_prefix("moeflux: ").unwrap_or(line)) {
        Some(line) => line.to_owned(),
        None => format!("{status} (log: {})", path.display()),
    }
}
