//! One connection: the messages that it sends, and what they make its session do.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::scalar::ScalarValue;
use futures::channel::oneshot;
use futures::sink::{Sink, SinkExt};
use pgwire::api::portal::Portal as WirePortal;
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::Response;
use pgwire::api::stmt::NoopQueryParser;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, ConnectionHandle};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription, RowDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended, Sync as PgSync,
    TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, NoticeResponse, TransactionStatus};
use pgwire::messages::simplequery::Query;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use weir_planner::{Parsed, Statement};

use super::error::{notice, refused, statement_error};
use super::rows::{Rows, send_copy, tag};
use super::savepoint::{Savepoint, aborted};
use super::state::{
    Content, Prepared, Progress, State, check_formats, check_same_columns, no_portal, no_statement, not_started,
    parameter_oid,
};
use super::types::field_infos;
use crate::engine::Engine;
use crate::session::Outcome;

/// A connection. One task uses it, message after message.
pub(super) struct Connection {
    engine: Arc<Engine>,
    state: Mutex<Option<State>>,
    gone: CancellationToken,
}

/// How to be told that the running statement is to stop.
type Cancel = Option<oneshot::Receiver<()>>;

impl Connection {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, state: Mutex::new(None), gone: CancellationToken::new() }
    }

    /// Cancelled when the client has closed its end.
    pub(super) fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Starts the session, with settings from the startup message.
    pub(super) async fn begin(&self, user: &str, settings: Vec<(String, String)>) -> PgWireResult<()> {
        let mut session = self.engine.session(user);
        for (name, value) in settings {
            let set = format!("SET '{}' = '{}'", name.replace('\'', "''"), value.replace('\'', "''"));
            for parsed in session.parse(&set).map_err(statement_error)? {
                session.execute(&parsed, &[]).await.map_err(statement_error)?;
            }
        }
        *self.state.lock().await = Some(State { session, prepared: HashMap::new(), portals: HashMap::new() });
        Ok(())
    }

    /// Runs work that a cancel request ends; with `listening`, also the client's going.
    async fn interruptible<T>(
        &self,
        cancel: &mut Cancel,
        listening: bool,
        work: impl Future<Output = PgWireResult<T>>,
    ) -> PgWireResult<T> {
        let cancelled = async {
            match cancel {
                // An error means that the handle is gone, which no cancel request can come through.
                Some(receiver) => match receiver.await {
                    Ok(()) => {}
                    Err(_) => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = work => result,
            () = cancelled => Err(PgWireError::QueryCanceled),
            () = self.gone.cancelled(), if listening => {
                Err(PgWireError::IoError(std::io::ErrorKind::ConnectionReset.into()))
            }
        }
    }

    /// Runs one statement of a script to its end.
    async fn run<C>(&self, client: &mut C, state: &mut State, parsed: &Parsed, cancel: &mut Cancel) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let executing = async { execute(client, state, parsed, &[]).await };
        match self.interruptible(cancel, false, executing).await? {
            Outcome::Rows { schema, rows, tag, endless } => {
                let mut rows = Rows::new(&schema, rows, tag, endless, &[]);
                client.feed(PgWireBackendMessage::RowDescription(rows.description())).await?;
                let (sent, _) = self.interruptible(cancel, endless, rows.send(client, None)).await?;
                complete(client, rows.tag(sent)).await
            }
            Outcome::CopyOut { schema, rows } => self.copy(client, &schema, rows, cancel).await,
            Outcome::Command { tag, notices } => {
                send_notices(client, notices).await?;
                complete(client, tag).await
            }
        }
    }

    async fn copy<C>(
        &self,
        client: &mut C,
        schema: &SchemaRef,
        rows: datafusion::physical_plan::SendableRecordBatchStream,
        cancel: &mut Cancel,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let sent = self.interruptible(cancel, true, send_copy(client, schema, rows)).await?;
        complete(client, tag("COPY", sent)).await
    }

    /// Runs a portal, or goes on with it.
    async fn run_portal<C>(
        &self,
        client: &mut C,
        state: &mut State,
        name: &str,
        limit: Option<usize>,
        cancel: &mut Cancel,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut portal = state.portals.remove(name).ok_or_else(|| no_portal(name))?;
        let parsed = match portal.content.clone() {
            Content::Statement(parsed) => parsed,
            Content::Savepoint(savepoint) => return control(client, savepoint).await,
            Content::Empty => {
                state.portals.insert(name.to_owned(), portal);
                return Ok(client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?);
            }
        };
        let mut rows = match portal.progress {
            Progress::Finished(tag) => return complete(client, tag).await,
            Progress::Suspended(rows) => rows,
            Progress::Bound => {
                let executing = async { execute(client, state, &parsed, &portal.parameters).await };
                match self.interruptible(cancel, false, executing).await? {
                    Outcome::Rows { schema, rows, tag, endless } => {
                        check_same_columns(portal.described.as_ref(), &schema)?;
                        check_formats(&portal.formats, schema.fields().len())?;
                        Rows::new(&schema, rows, tag, endless, &portal.formats)
                    }
                    Outcome::CopyOut { schema, rows } => return self.copy(client, &schema, rows, cancel).await,
                    Outcome::Command { tag, notices } => {
                        send_notices(client, notices).await?;
                        return complete(client, tag).await;
                    }
                }
            }
        };
        let listening = rows.endless();
        let (sent, ended) = self.interruptible(cancel, listening, rows.send(client, limit)).await?;
        if ended {
            portal.progress = Progress::Finished(rows.tag(0));
            state.portals.insert(name.to_owned(), portal);
            complete(client, rows.tag(sent)).await
        } else {
            portal.progress = Progress::Suspended(rows);
            state.portals.insert(name.to_owned(), portal);
            Ok(client.send(PgWireBackendMessage::PortalSuspended(PortalSuspended::new())).await?)
        }
    }
}

/// Runs a statement in the session, and keeps what the connection holds in step with it.
async fn execute<C>(
    client: &mut C,
    state: &mut State,
    parsed: &Parsed,
    parameters: &[ScalarValue],
) -> PgWireResult<Outcome>
where
    C: ClientInfo + Unpin + Send + Sync,
{
    let ends = matches!(parsed.statement, Statement::Commit | Statement::Rollback);
    if client.transaction_status() == TransactionStatus::Error && !ends {
        return Err(aborted());
    }
    let outcome = state.session.execute(parsed, parameters).await.map_err(statement_error)?;
    match &parsed.statement {
        Statement::Commit | Statement::Rollback => state.portals.clear(),
        Statement::DiscardAll => {
            state.prepared.clear();
            state.portals.clear();
        }
        Statement::Deallocate { name: Some(name) } => {
            state.prepared.remove(name);
        }
        Statement::Deallocate { name: None } => state.prepared.clear(),
        _ => {}
    }
    client.set_transaction_status(if state.session.in_transaction() {
        TransactionStatus::Transaction
    } else {
        TransactionStatus::Idle
    });
    Ok(outcome)
}

/// Answers what is about the transaction only.
async fn control<C>(client: &mut C, savepoint: Savepoint) -> PgWireResult<()>
where
    C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let status = savepoint.apply(client.transaction_status())?;
    client.set_transaction_status(status);
    complete(client, savepoint.tag().to_owned()).await
}

async fn send_notices<C>(client: &mut C, notices: Vec<String>) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    for sentence in notices {
        client.feed(PgWireBackendMessage::NoticeResponse(NoticeResponse::from(notice(sentence)))).await?;
    }
    Ok(())
}

async fn complete<C>(client: &mut C, tag: String) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    Ok(client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::new(tag))).await?)
}

/// A fresh way to be cancelled for the next statement.
async fn listen<C: ClientInfo>(client: &C) -> Cancel {
    let handle = client.session_extensions().get::<Arc<ConnectionHandle>>()?;
    Some(handle.start_query().await)
}

#[async_trait]
impl SimpleQueryHandler for Connection {
    async fn on_query<C>(&self, client: &mut C, query: Query) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut guard = self.state.lock().await;
        let state = guard.as_mut().ok_or_else(not_started)?;
        // A simple query ends the unnamed statement and portal, as in PostgreSQL.
        state.prepared.remove("");
        state.portals.remove("");
        if let Some(savepoint) = Savepoint::parse(&query.query) {
            control(client, savepoint).await?;
            let status = client.transaction_status();
            return send_ready_for_query(client, status).await;
        }
        let mut cancel = listen(client).await;
        let script = state.session.parse(&query.query).map_err(statement_error)?;
        if script.is_empty() {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
        }
        for parsed in &script {
            self.run(client, state, parsed, &mut cancel).await?;
        }
        let status = client.transaction_status();
        send_ready_for_query(client, status).await
    }

    async fn do_query<C>(&self, _client: &mut C, _query: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        // `on_query` answers by itself.
        Ok(Vec::new())
    }
}

#[async_trait]
impl ExtendedQueryHandler for Connection {
    type Statement = String;
    type QueryParser = NoopQueryParser;

    fn query_parser(&self) -> Arc<Self::QueryParser> {
        Arc::new(NoopQueryParser)
    }

    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut guard = self.state.lock().await;
        let state = guard.as_mut().ok_or_else(not_started)?;
        let name = message.name.unwrap_or_default();
        if !name.is_empty() && state.prepared.contains_key(&name) {
            return Err(refused("42P05", format!("prepared statement \"{name}\" already exists")));
        }
        let content = match Savepoint::parse(&message.query) {
            Some(savepoint) => Content::Savepoint(savepoint),
            None => {
                let mut script = state.session.parse(&message.query).map_err(statement_error)?;
                let last = script.pop();
                if !script.is_empty() {
                    return Err(refused("42601", "cannot insert multiple commands into a prepared statement"));
                }
                last.map_or(Content::Empty, |parsed| Content::Statement(Arc::new(parsed)))
            }
        };
        let prepared = Prepared { content, declared: message.type_oids, description: None };
        state.prepared.insert(name, prepared);
        client.feed(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?;
        Ok(())
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut guard = self.state.lock().await;
        let state = guard.as_mut().ok_or_else(not_started)?;
        let name = message.portal_name.clone().unwrap_or_default();
        let statement = message.statement_name.clone().unwrap_or_default();
        if !name.is_empty() && state.portals.contains_key(&name) {
            return Err(refused("42P03", format!("portal \"{name}\" already exists")));
        }
        if !message.parameters.is_empty() {
            // The types that the statement wants. An error in it comes out when it is executed.
            if let Err(error) = state.describe(&statement).await {
                tracing::debug!(?error, "a statement with parameters cannot be described");
            }
        }
        let prepared = state.prepared.get(&statement).ok_or_else(|| no_statement(&statement))?;
        let portal = state.bind(&message, prepared, prepared.description.as_ref())?;
        state.portals.insert(name, portal);
        client.feed(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut guard = self.state.lock().await;
        let state = guard.as_mut().ok_or_else(not_started)?;
        let name = message.name.unwrap_or_default();
        let (columns, formats) = match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                let (prepared, description) = state.describe(&name).await?;
                let count = prepared.declared.len().max(description.parameters.len());
                let types = (0..count)
                    .map(|i| parameter_oid(prepared.declared.get(i).copied(), description.parameters.get(i)))
                    .collect();
                let message = PgWireBackendMessage::ParameterDescription(ParameterDescription::new(types));
                client.feed(message).await?;
                (description.columns, Vec::new())
            }
            TARGET_TYPE_BYTE_PORTAL => match state.portals.get_mut(&name) {
                Some(portal) => {
                    if portal.described.is_none()
                        && let Content::Statement(parsed) = portal.content.clone()
                    {
                        portal.described = state.session.describe(&parsed).await.map_err(statement_error)?.columns;
                    }
                    if let Some(columns) = &portal.described {
                        check_formats(&portal.formats, columns.fields().len())?;
                    }
                    (portal.described.clone(), portal.formats.clone())
                }
                None => match state.describe_cursor(&name).await.map_err(statement_error)? {
                    Some(columns) => (Some(columns), Vec::new()),
                    None => return Err(no_portal(&name)),
                },
            },
            other => return Err(PgWireError::InvalidTargetType(other)),
        };
        let message = match columns {
            Some(columns) => {
                let fields = field_infos(&columns, &formats);
                PgWireBackendMessage::RowDescription(RowDescription::new(fields.iter().map(Into::into).collect()))
            }
            None => PgWireBackendMessage::NoData(NoData::new()),
        };
        client.feed(message).await?;
        Ok(())
    }

    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut guard = self.state.lock().await;
        let state = guard.as_mut().ok_or_else(not_started)?;
        let name = message.name.unwrap_or_default();
        // Zero means all; so does a negative number in PostgreSQL.
        let limit = usize::try_from(message.max_rows).ok().filter(|rows| *rows > 0);
        let mut cancel = listen(client).await;
        self.run_portal(client, state, &name, limit, &mut cancel).await
    }

    async fn on_sync<C>(&self, client: &mut C, _message: PgSync) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut guard = self.state.lock().await;
        let status = client.transaction_status();
        // Outside a transaction block each Sync ends a transaction, and with it the portals.
        if status == TransactionStatus::Idle
            && let Some(state) = guard.as_mut()
        {
            state.portals.clear();
        }
        send_ready_for_query(client, status).await
    }

    async fn on_close<C>(&self, client: &mut C, message: Close) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut guard = self.state.lock().await;
        let state = guard.as_mut().ok_or_else(not_started)?;
        let name = message.name.unwrap_or_default();
        match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                state.prepared.remove(&name);
            }
            TARGET_TYPE_BYTE_PORTAL => {
                state.portals.remove(&name);
            }
            other => return Err(PgWireError::InvalidTargetType(other)),
        }
        client.feed(PgWireBackendMessage::CloseComplete(CloseComplete::new())).await?;
        Ok(())
    }

    async fn do_query<C>(
        &self,
        _client: &mut C,
        _portal: &WirePortal<Self::Statement>,
        _max_rows: usize,
    ) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Self::Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        // `on_execute` answers by itself.
        Ok(Response::EmptyQuery)
    }
}
