//! Listens, serves connections, and lets answers finish at the end.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use moeflux_core::OptionId;
use moeflux_engine::{Engine, explain_thread_error};
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::auth::Gate;
use crate::callers::Callers;
use crate::common::Common;
use crate::connections::Connections;
use crate::error::ServerError;
use crate::fleet::Fleet;
use crate::library::Library;
use crate::options::{ServerOptions, UnixSocket};
use crate::routes::{Root, router};
use crate::runtime::start_runtime;
use crate::service::Service;
use crate::site::Site;
#[cfg(unix)]
use crate::socket_file::SocketFile;
use crate::stream::ClientStream;
use crate::tls::Tls;

/// After a failure to accept a connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Between two looks at the warnings of the prompt cache.
const WARNINGS_PAUSE: Duration = Duration::from_secs(5);

/// Between two looks at the file of keys.
const KEYS_PAUSE: Duration = Duration::from_secs(2);

/// Between two looks at the files of the certificate.
const CERTIFICATE_PAUSE: Duration = Duration::from_secs(5);

/// Between two looks at whether the device was lost.
const DEVICE_PAUSE: Duration = Duration::from_secs(1);

/// For clients that still read when all answers have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A server that listens and does not answer yet.
pub struct Server {
    site: Arc<Site>,
    main: Port,
    ollama: Option<Port>,
    tls: Option<Arc<Tls>>,
}

/// An address with what is served there.
struct Port {
    listener: Listener,
    addr: SocketAddr,
    router: Router,
}

/// What connections come through.
enum Listener {
    Tcp(StdListener),
    #[cfg(unix)]
    Unix(SocketFile),
}

impl Server {
    /// Binds the address, and starts the engine's scheduler.
    ///
    /// # Errors
    /// Where the address is in use or needs a key, or the model has no usable tokenizer.
    pub fn bind(engine: Engine, options: ServerOptions) -> Result<Server, ServerError> {
        Server::bind_fleet(options, |common| Ok(Fleet::of_engine(engine, common)?))
    }

    /// Binds the address, to serve the models of a library: each is loaded by the first request for
    /// it. Requests that name none mean `default`, if there is one. `loaded` is a model of the library
    /// that is open already, with its name.
    ///
    /// # Errors
    /// Where the address is in use or needs a key, or the model that is loaded has no usable
    /// tokenizer.
    pub fn bind_library(
        library: Arc<dyn Library>,
        default: Option<String>,
        loaded: Option<(String, Engine)>,
        options: ServerOptions,
    ) -> Result<Server, ServerError> {
        Server::bind_fleet(options, |common| {
            let fleet = Fleet::of_library(library, default, common);
            if let Some((name, engine)) = loaded {
                fleet.put(&name, engine)?;
            }
            Ok(fleet)
        })
    }

    fn bind_fleet(
        options: ServerOptions,
        fleet: impl FnOnce(Arc<Common>) -> Result<Fleet, ServerError>,
    ) -> Result<Server, ServerError> {
        let callers = Arc::new(Callers::new(&options)?);
        let gate = Gate::new(&options, &callers)?;
        let tls = options.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new);
        let (listener, addr) = match &options.unix_socket {
            Some(socket) => (bind_socket(socket)?, options.addr),
            None => bind(options.addr, OptionId::Addr)?,
        };
        let ollama = match options.ollama_addr() {
            None => None,
            Some(addr) => {
                let gate = Gate::new(&options.for_ollama(), &callers)?;
                Some((bind(addr, OptionId::OllamaPort)?, gate))
            }
        };
        let common = Arc::new(Common::new(options, callers));
        let fleet = Arc::new(fleet(Arc::clone(&common))?);
        let site = Arc::new(Site { common, fleet });
        let main = Port { listener, addr, router: router(Arc::clone(&site), gate, Root::Page) };
        let ollama = ollama.map(|((listener, addr), gate)| {
            let router = router(Arc::clone(&site), gate, Root::Ollama);
            Port { listener, addr, router }
        });
        Ok(Server { site, main, ollama, tls })
    }

    /// Where it listens, unless this is a Unix socket.
    pub fn addr(&self) -> SocketAddr {
        self.main.addr
    }

    /// What the user should know of the files of the model that is loaded although nothing failed.
    pub fn warnings(&self) -> Vec<String> {
        let current = self.site.fleet.roster.current();
        current.map(|served| served.text.tokenizer().warnings().to_vec()).unwrap_or_default()
    }

    /// Where it listens for Ollama's clients as well.
    pub fn ollama_addr(&self) -> Option<SocketAddr> {
        self.ollama.as_ref().map(|port| port.addr)
    }

    /// Answers until the process is asked to end (Ctrl-C, SIGTERM, a console that closes), then
    /// lets running answers finish, and writes the prompt cache.
    ///
    /// # Errors
    /// Where the system has no threads for it, and where the device was lost.
    pub fn run(self) -> Result<(), ServerError> {
        self.run_until(asked_to_end())
    }

    /// As [`Server::run`], until `stop` is ready.
    ///
    /// # Errors
    /// As [`Server::run`].
    pub fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
        let runtime =
            start_runtime().map_err(|err| ServerError::Start(explain_thread_error(err)))?;
        let fleet = Arc::clone(&self.site.fleet);
        let result = runtime.block_on(self.serve(stop));
        fleet.shutdown(Duration::ZERO);
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }

    async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Server { site, main, ollama, tls } = self;
        let (is_ending, ending) = watch::channel(false);
        let connections = Arc::new(Connections::new(site.common.options.max_connections));
        let options: Arc<ServerOptions> = site.common.options.clone().into();
        let mut tasks = JoinSet::new();
        tasks.spawn(log_warnings(Arc::clone(&site)));
        tasks.spawn(Arc::clone(&site.fleet).unload_expired());
        tasks.spawn(watch_keys(Arc::clone(&site.common)));
        if let Some(tls) = &tls {
            tasks.spawn(watch_certificate(Arc::clone(&site.common), Arc::clone(tls)));
        }
        // The file of a Unix socket is removed when no more connections are accepted.
        #[cfg(unix)]
        let mut files = Vec::new();
        for Port { listener, router, .. } in [main].into_iter().chain(ollama) {
            let (options, ending) = (Arc::clone(&options), ending.clone());
            let service = Service { router, options, tls: tls.clone(), ending };
            let connections = Arc::clone(&connections);
            match listener {
                Listener::Tcp(listener) => {
                    let listener = TcpListener::from_std(listener).map_err(ServerError::Start)?;
                    tasks.spawn(accept(
                        async move || accept_tcp(&listener).await,
                        connections,
                        service,
                    ));
                }
                #[cfg(unix)]
                Listener::Unix(file) => {
                    let listener = file.listener.try_clone().map_err(ServerError::Start)?;
                    let listener = UnixListener::from_std(listener).map_err(ServerError::Start)?;
                    files.push(file);
                    let next = async move || Ok(listener.accept().await?.0);
                    tasks.spawn(accept(next, connections, service));
                }
            }
        }
        let ended = tokio::select! {
            () = stop => Ok(()),
            () = device_lost(&site.fleet) => Err(ServerError::DeviceLost),
        };
        tasks.shutdown().await;
        #[cfg(unix)]
        drop(files);
        // There may be no connections.
        let _ = is_ending.send(true);
        // This blocks one thread; the others serve the open connections.
        site.fleet.shutdown(site.common.options.grace);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connections.all_closed()).await;
        ended
    }
}

/// Listens at an address that an option names.
fn bind(addr: SocketAddr, option: OptionId) -> Result<(Listener, SocketAddr), ServerError> {
    let refuse = |source| ServerError::Listen { addr, option, source };
    let listener = StdListener::bind(addr).map_err(refuse)?;
    listener.set_nonblocking(true).map_err(refuse)?;
    let addr = listener.local_addr().map_err(refuse)?;
    Ok((Listener::Tcp(listener), addr))
}

#[cfg(unix)]
fn bind_socket(socket: &UnixSocket) -> Result<Listener, ServerError> {
    let UnixSocket { path, mode } = socket;
    let refuse = |source| ServerError::Socket { path: path.clone(), source };
    SocketFile::bind(path, *mode).map(Listener::Unix).map_err(refuse)
}

#[cfg(not(unix))]
fn bind_socket(socket: &UnixSocket) -> Result<Listener, ServerError> {
    let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
    Err(ServerError::Socket { path: socket.path.clone(), source })
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    // Events are small and should not wait for each other.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Accepts connections without end.
async fn accept<S: ClientStream + 'static>(
    mut next: impl AsyncFnMut() -> io::Result<S>,
    connections: Arc<Connections>,
    service: Service,
) {
    loop {
        match next().await {
            Ok(stream) => {
                let admitted = connections.admit().await;
                tokio::spawn(service.clone().serve(stream, admitted));
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Logs the warnings of the prompt caches, each of which says one once.
async fn log_warnings(site: Arc<Site>) {
    loop {
        tokio::time::sleep(WARNINGS_PAUSE).await;
        let loaded = site.fleet.roster.loaded();
        let warnings =
            loaded.iter().flat_map(|loaded| loaded.served.loaded.engine().take_warnings());
        for warning in warnings {
            site.common.log(&format!("warning: {warning}"));
        }
    }
}

/// Reads the file of keys again when it changes.
async fn watch_keys(common: Arc<Common>) {
    loop {
        tokio::time::sleep(KEYS_PAUSE).await;
        match common.callers.read_again() {
            Ok(false) => {}
            Ok(true) => common.log("the keys were read again"),
            Err(err) => common.log(&format!("warning: the keys stay as they are: {err}")),
        }
    }
}

/// Reads the certificate again when it changes: authorities renew them every few weeks.
async fn watch_certificate(common: Arc<Common>, tls: Arc<Tls>) {
    loop {
        tokio::time::sleep(CERTIFICATE_PAUSE).await;
        match tls.read_again() {
            Ok(false) => {}
            Ok(true) => common.log("the certificate was read again"),
            Err(err) => common.log(&format!("warning: the certificate stays as it is: {err}")),
        }
    }
}

/// Ready when the device was lost: all answers fail then, and another process may begin anew.
async fn device_lost(fleet: &Fleet) {
    while !fleet.roster.is_device_lost() {
        tokio::time::sleep(DEVICE_PAUSE).await;
    }
}

/// Ready when the process is asked to end.
async fn asked_to_end() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut terminate) = signal(SignalKind::terminate()) else {
            return drop(tokio::signal::ctrl_c().await);
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(windows)]
    {
        use tokio::signal::windows::{ctrl_break, ctrl_close, ctrl_shutdown};
        let (Ok(mut key), Ok(mut window), Ok(mut system)) =
            (ctrl_break(), ctrl_close(), ctrl_shutdown())
        else {
            return drop(tokio::signal::ctrl_c().await);
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = key.recv() => {}
            _ = window.recv() => {}
            _ = system.recv() => {}
        }
    }
}
