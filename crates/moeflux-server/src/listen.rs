//! Connections: taking them, bounding them, and letting them finish.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use moeflux_engine::{Engine, explain_thread_error};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};

use crate::app::App;
use crate::auth::Gate;
use crate::error::ServerError;
use crate::log::log;
use crate::options::ServerOptions;
use crate::patience::Patient;
use crate::routes::Service;

/// Bytes of a request's header at most, and of what is read ahead.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Header lines of a request at most.
const MAX_HEADERS: usize = 100;

/// Threads that serve connections.
const N_WORKERS: usize = 2;

/// After a failure to take a connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Between two looks at what the prompt cache met.
const WARNINGS_PAUSE: Duration = Duration::from_secs(5);

/// A server that listens and does not answer yet.
pub struct Server {
    listener: StdListener,
    service: Arc<Service>,
    addr: SocketAddr,
}

impl Server {
    /// Takes the address, and the engine.
    ///
    /// # Errors
    /// Where the address is taken or needs a key, or the model cannot be
    /// talked to.
    pub fn bind(engine: Engine, options: ServerOptions) -> Result<Server, ServerError> {
        let refuse = |source| ServerError::Listen { addr: options.addr, source };
        let listener = StdListener::bind(options.addr).map_err(refuse)?;
        listener.set_nonblocking(true).map_err(refuse)?;
        let addr = listener.local_addr().map_err(refuse)?;
        let gate = Gate::new(&options, addr.port())?;
        let app = Arc::new(App::new(engine, options)?);
        Ok(Server { listener, service: Arc::new(Service { app, gate }), addr })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Answers until the process is told to end (Ctrl-C, SIGTERM, the end of a
    /// console), then lets what runs finish, and keeps what should last.
    ///
    /// # Errors
    /// Where the system has no threads for it.
    pub fn run(self) -> Result<(), ServerError> {
        self.run_until(told_to_end())
    }

    /// As [`Server::run`], until `stop` is ready.
    ///
    /// # Errors
    /// As [`Server::run`].
    pub fn run_until(self, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
        let runtime =
            start_runtime().map_err(|err| ServerError::Start(explain_thread_error(err)))?;
        let app = Arc::clone(&self.service.app);
        let result = runtime.block_on(self.serve(stop));
        app.scheduler.shutdown(Duration::ZERO);
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }

    async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Server { listener, service, .. } = self;
        let listener = TcpListener::from_std(listener).map_err(ServerError::Start)?;
        let options = service.app.options.clone();
        let room = Arc::new(Semaphore::new(options.max_connections));
        let (is_ending, ending) = watch::channel(false);
        tokio::pin!(stop);
        let told = tokio::spawn(tell_warnings(Arc::clone(&service.app)));
        loop {
            let next = async {
                let place = Arc::clone(&room).acquire_owned().await;
                (listener.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                () = &mut stop => break,
                next = next => next,
            };
            match accepted {
                Ok((stream, _)) => {
                    let serving = connection(stream, Arc::clone(&service), ending.clone());
                    tokio::spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        drop(listener);
        told.abort();
        // Nobody may be connected.
        let _ = is_ending.send(true);
        finish(&service.app, &room).await;
        Ok(())
    }
}

/// Starts the threads that serve connections.
///
/// Tokio panics where the system refuses one of its threads, and then waits for the others without
/// end. So threads are started for a try first.
fn start_runtime() -> io::Result<Runtime> {
    // All of them exist at the same time: they wait for the end of this lock.
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let _closed = gate.lock();
        let wait = || drop(gate.lock());
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, wait).map(drop);
        (0..N_WORKERS).try_for_each(start)
    })?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(N_WORKERS).thread_name("http").enable_io().enable_time().build()
}

/// Takes what the prompt cache met, and tells it where logs are wanted: it
/// names files.
async fn tell_warnings(app: Arc<App>) {
    loop {
        tokio::time::sleep(WARNINGS_PAUSE).await;
        for warning in app.engine.take_warnings() {
            if app.options.log_requests {
                log(&format!("warning: {warning}"));
            }
        }
    }
}

/// Waits for the engine, then for the connections.
async fn finish(app: &App, room: &Semaphore) {
    let (grace, n_all) = (app.options.grace, app.options.max_connections);
    // This blocks the thread that took connections; other threads serve those that are open.
    app.scheduler.shutdown(grace);
    let closed = room.acquire_many(u32::try_from(n_all).unwrap_or(u32::MAX));
    // Whoever still reads has had its time.
    let _ = tokio::time::timeout(Duration::from_secs(2), closed).await;
}

/// Serves one connection to its end.
async fn connection(stream: TcpStream, service: Arc<Service>, mut ending: watch::Receiver<bool>) {
    // Events are small and should not wait for each other.
    let _ = stream.set_nodelay(true);
    let options = &service.app.options;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES);
    let io = TokioIo::new(Patient::new(stream, options.write_timeout));
    let answer = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(service.handle(request).await) }
    });
    let connection = http.serve_connection(io, answer);
    tokio::pin!(connection);
    tokio::select! {
        // What goes wrong here is the client's doing, and it is gone.
        _ = &mut connection => return,
        _ = ending.wait_for(|it| *it) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Ready when the process is told to end.
async fn told_to_end() {
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
