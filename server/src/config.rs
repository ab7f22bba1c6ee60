//! How a server is started: flags, environment and a configuration file in one typed place.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use weir_planner::Options;

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
    /// Options of the server, and of all queries whose session does not set them.
    pub options: Options,
    /// Options of the store (`s3.endpoint`, …) from the configuration file; credentials come from the environment.
    pub store_options: BTreeMap<String, String>,
}

impl Config {
    /// A server on `data_dir` with everything embedded and no doors, as tests and `weir run` want it.
    pub fn embedded(data_dir: impl Into<PathBuf>) -> Self {
        let data_dir = data_dir.into();
        Self {
            store: format!("file:{}", data_dir.join("store").display()),
            data_dir,
            listen_sql: None,
            listen_http: None,
            parallelism: cores(),
            options: Options::new(),
            store_options: BTreeMap::new(),
        }
    }
}

/// Number of cores this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}
