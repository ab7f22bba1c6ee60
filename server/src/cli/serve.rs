//! `weir serve`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::config_file::ConfigFile;
use super::{Failure, ServeArgs};
use crate::config::{Config, cores};
use crate::engine::Engine;

/// Where doors open when nothing is said.
const LISTEN_SQL: &str = "127.0.0.1:4577";
const LISTEN_HTTP: &str = "127.0.0.1:4578";

/// Runs a server until it is told to stop.
pub(super) async fn serve(args: ServeArgs) -> Result<(), Failure> {
    let (config, sql, http) = configure(args)?;
    // Ports before the store: a second server must not take a store over only to find its port taken.
    let sql = listen("SQL", sql).await?;
    let http = listen("HTTP", http).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let engine = tokio::select! {
        started = Engine::start(config) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    announce(&engine, sql.local_addr()?, http.local_addr()?)?;

    let shutdown = CancellationToken::new();
    let sql = tokio::spawn(crate::pg::serve(Arc::clone(&engine), sql, shutdown.clone()));
    let http = tokio::spawn(crate::http::serve(Arc::clone(&engine), http, shutdown.clone()));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    println!("stopping: taking a last checkpoint of each query");
    shutdown.cancel();
    // A second signal ends at once: the next start recovers as after a crash.
    tokio::select! {
        () = engine.shutdown() => {}
        _ = terminate.recv() => return Err(Failure::Message("stopped before the last checkpoint was complete".into())),
        _ = interrupt.recv() => return Err(Failure::Message("stopped before the last checkpoint was complete".into())),
    }
    let _ = tokio::join!(sql, http);
    Ok(())
}

/// Flags and environment before the file, the file before defaults.
fn configure(args: ServeArgs) -> Result<(Config, SocketAddr, SocketAddr), Failure> {
    let file = ConfigFile::read(args.config.as_ref())?;
    let given = |key: &str| file.server.get(key).cloned();
    let address = |flag: Option<SocketAddr>, key: &str, default: &str| -> Result<SocketAddr, Failure> {
        match flag {
            Some(address) => Ok(address),
            None => {
                let text = given(key).unwrap_or_else(|| default.to_owned());
                text.parse().map_err(|_| {
                    Failure::Message(format!("{key}: \"{text}\" is not an address with a port, such as {default}"))
                })
            }
        }
    };
    let sql = address(args.listen_sql, "listen-sql", LISTEN_SQL)?;
    let http = address(args.listen_http, "listen-http", LISTEN_HTTP)?;
    let data_dir = args.data_dir.or_else(|| given("data-dir").map(PathBuf::from)).unwrap_or_else(|| "weir-data".into());
    let mut config = Config::embedded(data_dir);
    if let Some(store) = store(args.store, given("store"), file.options.get("execution.checkpointing.dir")?)? {
        config.store = store;
    }
    config.parallelism = match (args.parallelism, given("parallelism")) {
        (Some(flag), _) => flag,
        (None, Some(text)) => text.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
            Failure::Message(format!("parallelism: \"{text}\" is not a number of subtasks, 1 or more"))
        })?,
        (None, None) => cores(),
    };
    config.listen_sql = Some(sql);
    config.listen_http = Some(http);
    config.options = file.options;
    config.store_options = file.store;
    Ok((config, sql, http))
}

/// The store's URL: the flag, before what the file says under either name.
fn store(flag: Option<String>, named: Option<String>, dir: &str) -> Result<Option<String>, Failure> {
    let dir = Some(dir.to_owned()).filter(|dir| !dir.is_empty());
    match (flag, named, dir) {
        (Some(flag), ..) => Ok(Some(flag)),
        (None, Some(store), Some(dir)) if store != dir => Err(Failure::Message(format!(
            "the configuration file names two stores: store = {store} and execution.checkpointing.dir = {dir}; \
             everything durable lies in one, so keep one of the two"
        ))),
        (None, store, dir) => Ok(store.or(dir)),
    }
}

async fn listen(door: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the {door} door is open to other machines, and asks nobody for a password");
    }
    TcpListener::bind(address).await.map_err(|error| {
        let flag = format!("--listen-{}", door.to_lowercase());
        Failure::Message(match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "{address} is in use by another process: stop it, or choose another address for the {door} door with {flag}"
            ),
            _ => format!("cannot listen on {address} for the {door} door ({flag}): {error}"),
        })
    })
}

/// Tells where the doors and the data are.
fn announce(engine: &Engine, sql: SocketAddr, http: SocketAddr) -> Result<(), Failure> {
    let database = crate::pg::DATABASE;
    let host = |address: SocketAddr| match address.ip() {
        ip if ip.is_unspecified() => "127.0.0.1".to_owned(),
        ip => ip.to_string(),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "Weir {} is ready.", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  SQL        psql -h {} -p {} -d {database} -U {database}", host(sql), sql.port())?;
    writeln!(out, "  REST       http://{http}/v1    (OpenAPI: http://{http}/openapi.json)")?;
    writeln!(out, "  Dashboard  http://{http}/")?;
    writeln!(out, "  Data       {}", engine.store_url())?;
    writeln!(out, "  Local      {}", absolute(&engine.config.data_dir))?;
    Ok(out.flush()?)
}

fn absolute(path: &std::path::Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> ServeArgs {
        ServeArgs { data_dir: None, store: None, listen_sql: None, listen_http: None, config: None, parallelism: None }
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let (config, sql, http) = configure(args()).unwrap();
        assert_eq!(config.data_dir, PathBuf::from("weir-data"));
        assert_eq!((sql.to_string().as_str(), http.to_string().as_str()), (LISTEN_SQL, LISTEN_HTTP));
        assert_eq!(config.parallelism, cores());
    }

    #[test]
    fn flags_go_before_the_file() {
        let dir = std::env::temp_dir().join(format!("weir-config-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("weir.yaml");
        std::fs::write(&path, "parallelism: 3\nlisten-sql: 127.0.0.1:9\ndata-dir: /from/file\n").unwrap();
        let given = ServeArgs { config: Some(path), data_dir: Some("/from/flag".into()), ..args() };
        let (config, sql, _) = configure(given).unwrap();
        assert_eq!((config.parallelism, sql.port()), (3, 9));
        assert_eq!(config.data_dir, PathBuf::from("/from/flag"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_is_said_so() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let Err(Failure::Message(message)) = listen("SQL", address).await else { panic!("bound twice") };
        assert!(message.contains("is in use by another process") && message.contains("--listen-sql"), "{message}");
    }

    #[test]
    fn the_store_is_named_once() {
        let some = |text: &str| Some(text.to_owned());
        let store = |flag, named, dir| match store(flag, named, dir) {
            Ok(store) => Ok(store),
            Err(Failure::Message(text)) => Err(text),
            Err(_) => Err(String::new()),
        };
        assert_eq!(store(None, None, "").unwrap(), None);
        assert_eq!(store(None, None, "s3://b/ckpt").unwrap(), some("s3://b/ckpt"));
        assert_eq!(store(None, some("s3://b/ckpt"), "s3://b/ckpt").unwrap(), some("s3://b/ckpt"));
        assert_eq!(store(some("memory:"), some("s3://a"), "s3://b").unwrap(), some("memory:"));
        assert!(store(None, some("s3://a"), "s3://b").unwrap_err().contains("two stores"));
    }
}
