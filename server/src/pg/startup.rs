//! The start of a connection: protocol version, database, parameters, the key to cancel with.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use futures::sink::Sink;
use pgwire::api::auth::{
    DefaultServerParameterProvider, ServerParameterProvider, StartupHandler, finish_authentication,
    protocol_negotiation, save_startup_parameters_to_metadata,
};
use pgwire::api::{
    ClientInfo, ConnectionGuard, ConnectionHandle, ConnectionManager, METADATA_DATABASE, METADATA_USER,
    PidSecretKeyGenerator, RandomPidSecretKeyGenerator,
};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};

use weir_planner::options::SERVER_VERSION;

use super::DATABASE;
use super::connection::Connection;
use super::error::fatal;

/// Numbers connections across the server, so that a cancel key names one of them.
static KEYS: std::sync::LazyLock<RandomPidSecretKeyGenerator> =
    std::sync::LazyLock::new(RandomPidSecretKeyGenerator::default);

/// Lets any user in to the one database.
pub(super) struct Startup {
    connection: Arc<Connection>,
    manager: Arc<ConnectionManager>,
}

impl Startup {
    pub(super) fn new(connection: Arc<Connection>, manager: Arc<ConnectionManager>) -> Self {
        Self { connection, manager }
    }
}

#[async_trait]
impl StartupHandler for Startup {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let PgWireFrontendMessage::Startup(startup) = message else {
            return Err(fatal("08P01", "the connection must start with a startup message".to_owned(), None));
        };
        protocol_negotiation(client, &startup).await?;
        save_startup_parameters_to_metadata(client, &startup);
        let user = client.metadata().get(METADATA_USER).cloned().unwrap_or_else(|| DATABASE.to_owned());
        let database = client.metadata().get(METADATA_DATABASE).filter(|name| !name.is_empty()).unwrap_or(&user);
        if database != DATABASE {
            return Err(fatal(
                "3D000",
                format!("database \"{database}\" does not exist"),
                Some(format!("Weir has one database: connect to \"{DATABASE}\" (psql -d {DATABASE})")),
            ));
        }
        let options = client.metadata().get("options").map(|text| options(text)).unwrap_or_default();
        self.connection.begin(&user, options).await?;

        let (pid, secret_key) = KEYS.generate(client);
        client.set_pid_and_secret_key(pid, secret_key.clone());
        let (handle, guard) = self.manager.register(pid, secret_key);
        client.session_extensions().insert::<Arc<ConnectionHandle>>(handle);
        client.session_extensions().insert::<ConnectionGuard>(guard);
        finish_authentication(client, &Parameters).await
    }
}

/// What drivers read before the first statement.
struct Parameters;

impl ServerParameterProvider for Parameters {
    fn server_parameters<C>(&self, client: &C) -> Option<HashMap<String, String>>
    where
        C: ClientInfo,
    {
        let mut standard = DefaultServerParameterProvider::default();
        standard.server_version = SERVER_VERSION.to_owned();
        standard.time_zone = "UTC".to_owned();
        standard.date_style = "ISO, MDY".to_owned();
        standard.server_parameters(client)
    }
}

/// `-c name=value --name=value`, as PGOPTIONS has them; a backslash keeps a space.
fn options(text: &str) -> Vec<(String, String)> {
    let (mut words, mut word, mut chars) = (Vec::new(), String::new(), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => word.extend(chars.next()),
            c if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    let mut settings = Vec::new();
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let setting = match word.as_str() {
            "-c" => words.next(),
            word => word.strip_prefix("-c").or_else(|| word.strip_prefix("--")).map(str::to_owned),
        };
        if let Some((name, value)) = setting.as_deref().and_then(|setting| setting.split_once('=')) {
            settings.push((name.to_owned(), value.to_owned()));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_startup_message() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            options(r"-c execution.checkpointing.interval=300ms --search_path=a,\ b -cx=1"),
            [pair("execution.checkpointing.interval", "300ms"), pair("search_path", "a, b"), pair("x", "1")]
        );
        assert!(options("").is_empty());
    }
}
