//! What the HTTP door needs of the server behind it. The engine is the one implementation; tests have another, so that
//! the door is tested without a store.

use std::net::SocketAddr;
use std::sync::Arc;

use arrow::datatypes::DataType;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::scalar::ScalarValue;
use serde::Serialize;
use serde_json::Value;
use weir_planner::{ErrorKind, Parsed, Relation, SqlError};

use crate::engine::{CheckpointRow, Engine, IngestReceipt, OperatorInfo, QueryInfo};
use crate::session::{Outcome, Session};

/// The server itself.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct ServerInfo {
    /// Version of Weir.
    pub version: String,
    /// URL of the store that holds everything durable.
    pub store: String,
    /// Address for psql and every other PostgreSQL client; null when that door is closed.
    pub listen_sql: Option<String>,
    /// Address of this interface.
    pub listen_http: String,
}

/// Runs statements of one request.
#[async_trait]
pub(super) trait Connection: Send {
    /// Runs one statement.
    async fn run(&mut self, statement: &Parsed, parameters: &[Value]) -> Result<Outcome, SqlError>;
}

/// The server behind the door.
#[async_trait]
pub(super) trait Backend: Send + Sync + 'static {
    fn server(&self) -> ServerInfo;
    fn connect(&self) -> Box<dyn Connection>;
    fn relations(&self) -> Vec<Arc<Relation>>;
    fn queries(&self) -> Vec<QueryInfo>;
    fn operators(&self, query: &str) -> Option<Vec<OperatorInfo>>;
    fn checkpoints(&self, query: Option<&str>) -> Result<Vec<CheckpointRow>, SqlError>;
    fn health(&self) -> Result<(), SqlError>;
    async fn ingest(
        &self,
        stream: &str,
        content_type: &str,
        client_key: Option<&str>,
        body: Bytes,
    ) -> Result<IngestReceipt, SqlError>;
}

/// The engine as a backend.
pub(super) struct EngineBackend {
    engine: Arc<Engine>,
    address: SocketAddr,
}

impl EngineBackend {
    pub(super) fn new(engine: Arc<Engine>, address: SocketAddr) -> Self {
        Self { engine, address }
    }
}

#[async_trait]
impl Backend for EngineBackend {
    fn server(&self) -> ServerInfo {
        ServerInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store: self.engine.store_url().to_owned(),
            listen_sql: self.engine.config.listen_sql.map(|address| address.to_string()),
            listen_http: self.address.to_string(),
        }
    }

    fn connect(&self) -> Box<dyn Connection> {
        Box::new(self.engine.session("http"))
    }

    fn relations(&self) -> Vec<Arc<Relation>> {
        self.engine.relations()
    }

    fn queries(&self) -> Vec<QueryInfo> {
        self.engine.queries()
    }

    fn operators(&self, query: &str) -> Option<Vec<OperatorInfo>> {
        self.engine.operators(query)
    }

    fn checkpoints(&self, query: Option<&str>) -> Result<Vec<CheckpointRow>, SqlError> {
        self.engine.checkpoints(query)
    }

    fn health(&self) -> Result<(), SqlError> {
        self.engine.health()
    }

    async fn ingest(
        &self,
        stream: &str,
        content_type: &str,
        client_key: Option<&str>,
        body: Bytes,
    ) -> Result<IngestReceipt, SqlError> {
        self.engine.ingest(stream, content_type, client_key, body).await
    }
}

#[async_trait]
impl Connection for Session {
    async fn run(&mut self, statement: &Parsed, parameters: &[Value]) -> Result<Outcome, SqlError> {
        let wanted = match parameters {
            [] => Vec::new(),
            _ => self.describe(statement).await?.parameters,
        };
        let scalars = parameters.iter().enumerate().map(|(i, value)| scalar(value, i, wanted.get(i)));
        let scalars = scalars.collect::<Result<Vec<_>, _>>()?;
        self.execute(statement, &scalars).await
    }
}

/// The value of `$index+1`, of the type that the statement wants where that is known.
fn scalar(value: &Value, index: usize, wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    let plain = match value {
        Value::Null => ScalarValue::Null,
        Value::Bool(value) => ScalarValue::Boolean(Some(*value)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => ScalarValue::Int64(Some(whole)),
            None => ScalarValue::Float64(number.as_f64()),
        },
        Value::String(text) => ScalarValue::Utf8(Some(text.clone())),
        // JSON columns take them as they are; nothing else can be made of them.
        Value::Array(_) | Value::Object(_) => ScalarValue::Utf8(Some(value.to_string())),
    };
    match wanted {
        None | Some(DataType::Null) => Ok(plain),
        Some(wanted) => plain.cast_to(wanted).map_err(|_| {
            SqlError::new(
                ErrorKind::INVALID_VALUE,
                format!("parameter ${} is {value}, which is no {wanted}", index + 1),
            )
            .hint("numbers, booleans and null are given as JSON; every other type as a string in PostgreSQL's notation")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_take_the_type_that_the_statement_wants() {
        let cast = |json: &str, wanted: Option<DataType>| scalar(&json.parse().unwrap(), 0, wanted.as_ref());
        assert_eq!(cast("7", None).unwrap(), ScalarValue::Int64(Some(7)));
        assert_eq!(cast("7", Some(DataType::Int32)).unwrap(), ScalarValue::Int32(Some(7)));
        assert_eq!(cast("\"2013-01-01\"", Some(DataType::Date32)).unwrap(), ScalarValue::Date32(Some(15706)));
        assert_eq!(cast("null", Some(DataType::Int32)).unwrap(), ScalarValue::Int32(None));
        assert_eq!(cast("1.5", Some(DataType::Null)).unwrap(), ScalarValue::Float64(Some(1.5)));
        let error = cast("\"x\"", Some(DataType::Int32)).unwrap_err();
        assert_eq!(error.message, "parameter $1 is \"x\", which is no Int32");
    }
}
