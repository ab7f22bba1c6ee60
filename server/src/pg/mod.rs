//! The PostgreSQL door: psql and every driver.
//!
//! ```text
//!   socket ──► startup.rs ──► connection.rs ──► Session::execute ──► Outcome
//!                              state.rs
//!                                 │                                    │
//!              parameters.rs ◄────┤ Bind                        rows.rs│ batch by batch
//!                                 ▼                                    ▼
//!                              error.rs                     encode/ ─► DataRow, CopyData
//!   psql's \d … ──► catalog/ : pg_catalog and information_schema over the engine's relations
//! ```

pub mod catalog;
mod connection;
pub mod encode;
mod error;
mod parameters;
mod rows;
mod savepoint;
mod startup;
mod state;
pub mod types;

use std::sync::Arc;
use std::time::Duration;

use pgwire::api::cancel::{CancelHandler, DefaultCancelHandler};
use pgwire::api::copy::CopyHandler;
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::api::{ConnectionManager, ErrorHandler, NoopHandler, PgWireServerHandlers};
use pgwire::tokio::process_socket;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::Engine;
use connection::Connection;
use startup::Startup;

/// The only database.
pub const DATABASE: &str = "weir";

/// Serves connections until `shutdown` is cancelled, then closes them all.
pub async fn serve(engine: Arc<Engine>, listener: TcpListener, shutdown: CancellationToken) {
    let manager = Arc::new(ConnectionManager::new());
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                let handlers = Handlers::new(&engine, &manager);
                let shutdown = shutdown.clone();
                connections.spawn(async move {
                    let Err(error) = converse(socket, handlers, &shutdown).await else { return };
                    tracing::debug!(%peer, %error, "connection ended");
                });
            }
            Err(error) => {
                // Out of file handles, most likely: existing connections go on, and some will end.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

/// One connection from its start to its end.
async fn converse(socket: TcpStream, handlers: Handlers, shutdown: &CancellationToken) -> std::io::Result<()> {
    // A second handle on the same socket: while a statement runs, nothing reads the first, and a client that has gone
    // would otherwise keep its subscription alive until there is a row to send.
    let socket = socket.into_std()?;
    let watched = TcpStream::from_std(socket.try_clone()?)?;
    let socket = TcpStream::from_std(socket)?;
    let gone = handlers.connection.gone();
    tokio::select! {
        result = process_socket(socket, None, handlers) => result,
        never = watch(&watched, &gone) => match never {},
        () = shutdown.cancelled() => Ok(()),
    }
}

/// Cancels `gone` when the other end has closed; never ends itself, so that statements already sent are still run.
async fn watch(socket: &TcpStream, gone: &CancellationToken) -> std::convert::Infallible {
    use tokio::io::Interest;
    loop {
        match socket.ready(Interest::READABLE).await {
            Ok(ready) if ready.is_read_closed() => break,
            Err(_) => break,
            // There is something to read, which the connection will do when it comes to it.
            Ok(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    gone.cancel();
    std::future::pending().await
}

/// pgwire's view of one connection.
struct Handlers {
    startup: Arc<Startup>,
    connection: Arc<Connection>,
    manager: Arc<ConnectionManager>,
}

impl Handlers {
    fn new(engine: &Arc<Engine>, manager: &Arc<ConnectionManager>) -> Self {
        let connection = Arc::new(Connection::new(Arc::clone(engine)));
        let startup = Arc::new(Startup::new(Arc::clone(&connection), Arc::clone(manager)));
        Self { startup, connection, manager: Arc::clone(manager) }
    }
}

impl PgWireServerHandlers for Handlers {
    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        Arc::clone(&self.connection)
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        Arc::clone(&self.connection)
    }

    fn startup_handler(&self) -> Arc<impl pgwire::api::auth::StartupHandler> {
        Arc::clone(&self.startup)
    }

    fn copy_handler(&self) -> Arc<impl CopyHandler> {
        Arc::new(NoopHandler)
    }

    fn error_handler(&self) -> Arc<impl ErrorHandler> {
        Arc::new(NoopHandler)
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        Arc::new(DefaultCancelHandler::new(Arc::clone(&self.manager)))
    }
}
