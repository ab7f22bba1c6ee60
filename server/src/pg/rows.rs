//! Rows to the client, batch by batch: what has come is flushed before more is waited for.

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::SendableRecordBatchStream;
use futures::sink::{Sink, SinkExt};
use futures::{FutureExt, StreamExt};
use pgwire::api::results::FieldInfo;
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::copy::{CopyData, CopyDone, CopyOutResponse};
use pgwire::messages::data::RowDescription;

use super::encode::{RowEncoder, copy_rows};
use super::error::{row_error, statement_error};
use super::types::field_infos;

/// The rows of a statement, as far as they have not been sent.
pub(super) struct Rows {
    fields: Vec<FieldInfo>,
    encoder: RowEncoder,
    stream: SendableRecordBatchStream,
    /// What is left of a batch when a client asked for fewer rows.
    rest: Option<RecordBatch>,
    tag: &'static str,
    endless: bool,
}

impl Rows {
    /// Rows in the formats that the client asked for.
    pub(super) fn new(
        schema: &SchemaRef,
        stream: SendableRecordBatchStream,
        tag: &'static str,
        endless: bool,
        formats: &[i16],
    ) -> Self {
        let fields = field_infos(schema, formats);
        let encoder = RowEncoder::new(&fields);
        Self { fields, encoder, stream, rest: None, tag, endless }
    }

    /// Whether they never end by themselves.
    pub(super) fn endless(&self) -> bool {
        self.endless
    }

    /// What the columns are.
    pub(super) fn description(&self) -> RowDescription {
        RowDescription::new(self.fields.iter().map(Into::into).collect())
    }

    /// The command tag once `sent` rows have gone.
    pub(super) fn tag(&self, sent: usize) -> String {
        tag(self.tag, sent)
    }

    /// Sends up to `limit` rows; says how many, and whether those were the last.
    pub(super) async fn send<C>(&mut self, client: &mut C, limit: Option<usize>) -> PgWireResult<(usize, bool)>
    where
        C: Sink<PgWireBackendMessage> + Unpin + Send,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut sent = 0;
        loop {
            let room = limit.map_or(usize::MAX, |limit| limit - sent);
            if room == 0 {
                return Ok((sent, false));
            }
            let batch = match self.rest.take() {
                Some(rest) => rest,
                None => match next(&mut self.stream, client).await? {
                    Some(batch) => batch,
                    None => return Ok((sent, true)),
                },
            };
            let taken = room.min(batch.num_rows());
            if taken < batch.num_rows() {
                self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
            for row in self.encoder.rows(&batch.slice(0, taken)).map_err(statement_error)? {
                client.feed(PgWireBackendMessage::DataRow(row.map_err(statement_error)?)).await?;
            }
            sent += taken;
        }
    }
}

/// A command tag, with the number of rows where PostgreSQL has one.
pub(super) fn tag(tag: &str, rows: usize) -> String {
    match tag {
        "SELECT" | "FETCH" | "SUBSCRIBE" | "COPY" => format!("{tag} {rows}"),
        _ => tag.to_owned(),
    }
}

/// Sends all rows in COPY's text format; answers how many.
pub(super) async fn send_copy<C>(
    client: &mut C,
    schema: &SchemaRef,
    mut stream: SendableRecordBatchStream,
) -> PgWireResult<usize>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let columns = schema.fields().len();
    let response = CopyOutResponse::new(0, columns as i16, vec![0; columns]);
    client.feed(PgWireBackendMessage::CopyOutResponse(response)).await?;
    let mut sent = 0;
    while let Some(batch) = next(&mut stream, client).await? {
        for line in copy_rows(&batch).map_err(statement_error)? {
            let line = line.map_err(statement_error)?.freeze();
            client.feed(PgWireBackendMessage::CopyData(CopyData::new(line))).await?;
        }
        sent += batch.num_rows();
    }
    client.feed(PgWireBackendMessage::CopyDone(CopyDone::new())).await?;
    Ok(sent)
}

/// The next batch. What was fed so far goes out first if there is to be any waiting.
async fn next<C>(stream: &mut SendableRecordBatchStream, client: &mut C) -> PgWireResult<Option<RecordBatch>>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let next = match stream.next().now_or_never() {
        Some(ready) => ready,
        None => {
            client.flush().await?;
            stream.next().await
        }
    };
    next.transpose().map_err(row_error)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use arrow::array::Int32Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

    use super::*;

    /// A client that notes what it was sent, and when it was flushed.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Sink<PgWireBackendMessage> for Notes {
        type Error = std::io::Error;

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn start_send(mut self: Pin<&mut Self>, message: PgWireBackendMessage) -> std::io::Result<()> {
            let note = match message {
                PgWireBackendMessage::DataRow(row) => format!("row {}", String::from_utf8_lossy(&row.data[4..])),
                PgWireBackendMessage::CopyOutResponse(copy) => format!("copy {}", copy.columns),
                PgWireBackendMessage::CopyData(data) => String::from_utf8_lossy(&data.data).into_owned(),
                PgWireBackendMessage::CopyDone(_) => "done".to_owned(),
                other => format!("{other:?}"),
            };
            self.0.push(note);
            Ok(())
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            self.0.push("flush".to_owned());
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, true)]))
    }

    fn batch(values: &[i32]) -> RecordBatch {
        RecordBatch::try_new(schema(), vec![Arc::new(Int32Array::from(values.to_vec()))]).unwrap()
    }

    fn stream(batches: impl futures::Stream<Item = RecordBatch> + Send + 'static) -> SendableRecordBatchStream {
        Box::pin(RecordBatchStreamAdapter::new(schema(), batches.map(Ok)))
    }

    #[tokio::test]
    async fn a_portal_is_suspended_inside_a_batch_and_goes_on() {
        let batches = futures::stream::iter([batch(&[1, 2, 3]), batch(&[]), batch(&[4])]);
        let mut rows = Rows::new(&schema(), stream(batches), "SELECT", false, &[]);
        let mut client = Notes::default();
        assert_eq!(rows.send(&mut client, Some(2)).await.unwrap(), (2, false));
        assert_eq!(rows.send(&mut client, Some(2)).await.unwrap(), (2, false));
        assert_eq!(rows.send(&mut client, Some(2)).await.unwrap(), (0, true));
        assert_eq!(client.0, ["row 1", "row 2", "row 3", "row 4"]);
        assert_eq!(rows.tag(4), "SELECT 4");
    }

    #[tokio::test]
    async fn rows_are_flushed_before_waiting_for_more() {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        sender.send(batch(&[1])).unwrap();
        let batches = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
        let mut rows = Rows::new(&schema(), stream(batches), "SELECT", true, &[]);
        let mut client = Notes::default();
        {
            let sending = rows.send(&mut client, None);
            tokio::pin!(sending);
            assert!(futures::poll!(sending.as_mut()).is_pending());
        }
        assert_eq!(client.0, ["row 1", "flush"]);
        sender.send(batch(&[2])).unwrap();
        drop(sender);
        assert_eq!(rows.send(&mut client, None).await.unwrap(), (1, true));
    }

    #[tokio::test]
    async fn copy_is_framed() {
        let mut client = Notes::default();
        let batches = stream(futures::stream::iter([batch(&[1, 2])]));
        assert_eq!(send_copy(&mut client, &schema(), batches).await.unwrap(), 2);
        assert_eq!(client.0, ["copy 1", "1\n", "2\n", "done"]);
    }
}
