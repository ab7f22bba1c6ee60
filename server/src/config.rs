//! How a server is started: flags, environment and a configuration file in one typed place.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory for local state (a cache) and, unless `store` says otherwise, for everything durable.
    pub data_dir: PathBuf,
    /// URL of the store that holds everything durable.
    pub store: String,
    /// Address of the SQL door; `None` to not open it.
    pub listen_sql: Option<SocketAddr>,
    /// Address of the HTTP door; `None` to not open it.
    pub listen_http: Option<SocketAddr>,
    /// Subtasks of each operator.
    pub parallelism: u32,
    /// Options for all queries that their session does not set, by name.
    pub options: BTreeMap<String, String>,
}
