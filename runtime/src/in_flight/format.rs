//! Rows in flight as bytes.
//!
//! ```text
//!   1u8 · length of header u32 LE · header (JSON) · Arrow IPC streams (LZ4), one after the other
//!   {"channels":[{"from":"uid","from_subtask":0,"to":"uid","to_subtask":1,"input":0,"rows":12,"streams":[480]}]}
//! ```
//!
//! Weights are a last column `__op`, present if any row of a stream is a retraction. A channel has one stream for each run
//! of chunks with equal schemas. The segment's checksum covers all of it.

use arrow::array::Int8Array;
use serde::{Deserialize, Serialize};
use weir_storage::{LogBatch, OperatorUid, Subtask, decode_rows, encode_rows};

use super::{InFlight, Stored};
use crate::error::{Result, internal};
use crate::message::Chunk;

const FORMAT: u8 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    channels: Vec<ChannelHeader>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChannelHeader {
    from: OperatorUid,
    from_subtask: Subtask,
    to: OperatorUid,
    to_subtask: Subtask,
    input: usize,
    rows: u64,
    /// Length of each stream.
    streams: Vec<u64>,
}

fn broken(reason: impl Into<String>) -> crate::RuntimeError {
    internal("rows in flight", reason)
}

/// The persisted form; `uids` are the operators' by node. Nothing at all if there are no rows.
pub(crate) fn encode(in_flight: &[InFlight], uids: &[OperatorUid]) -> Result<Vec<u8>> {
    let uid = |node: usize| uids.get(node).cloned().ok_or_else(|| broken(format!("there is no operator {node}")));
    let (mut channels, mut body) = (Vec::new(), Vec::new());
    for InFlight { channel, chunks } in in_flight.iter().filter(|rows| !rows.chunks.is_empty()) {
        let batches: Vec<LogBatch> = chunks.iter().map(|chunk| (chunk.batch().clone(), chunk.ops().cloned())).collect();
        let (mut streams, mut rows) = (Vec::new(), 0);
        for (bytes, count) in encode_rows(&batches)? {
            streams.push(bytes.len() as u64);
            rows += count;
            body.push(bytes);
        }
        channels.push(ChannelHeader {
            from: uid(channel.from.node)?,
            from_subtask: channel.from.subtask,
            to: uid(channel.to.node)?,
            to_subtask: channel.to.subtask,
            input: channel.input,
            rows,
            streams,
        });
    }
    if channels.is_empty() {
        return Ok(Vec::new());
    }
    let header = serde_json::to_vec(&Header { channels }).map_err(|error| broken(error.to_string()))?;
    let mut bytes = Vec::with_capacity(5 + header.len() + body.iter().map(|part| part.len()).sum::<usize>());
    bytes.push(FORMAT);
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&header);
    body.iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
}

/// What [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Stored>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let cut_off = || broken("it is cut off");
    let (format, rest) = bytes.split_first().ok_or_else(cut_off)?;
    if *format != FORMAT {
        return Err(broken(format!("its format is {format}, and this version of Weir reads {FORMAT}")));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
    let (header, mut rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut_off)?;
    let header: Header = serde_json::from_slice(header).map_err(|error| broken(error.to_string()))?;
    let mut all = Vec::new();
    for channel in header.channels {
        let mut chunks = Vec::new();
        for length in channel.streams {
            let (stream, after) =
                usize::try_from(length).ok().and_then(|at| rest.split_at_checked(at)).ok_or_else(cut_off)?;
            rest = after;
            chunks.extend(decode_rows(stream)?.into_iter().map(chunk));
        }
        let rows: u64 = chunks.iter().map(|chunk| chunk.num_rows() as u64).sum();
        if rows != channel.rows {
            let (from, to, expected) = (channel.from, channel.to, channel.rows);
            return Err(broken(format!("{rows} of {expected} rows from {from} to {to} are there")));
        }
        let ChannelHeader { from, from_subtask, to, to_subtask, input, .. } = channel;
        all.push(Stored { from, from_subtask, to, to_subtask, input, chunks });
    }
    Ok(all)
}

fn chunk((batch, ops): (arrow::array::RecordBatch, Option<Int8Array>)) -> Chunk {
    match ops {
        Some(ops) => Chunk::new(batch, ops),
        None => Chunk::insert(batch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{ChannelId, Endpoint};
    use crate::testing::{int_values, ints, weighted};

    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/in-flight-v1.bin");

    fn uids() -> Vec<OperatorUid> {
        ["source-1", "aggregate-1"].map(|uid| OperatorUid(uid.to_owned())).to_vec()
    }

    fn example() -> Vec<InFlight> {
        let end = |node, subtask| Endpoint { node, subtask: Subtask(subtask) };
        let channel = |from| ChannelId { from: end(0, from), to: end(1, 2), input: 1 };
        vec![
            InFlight { channel: channel(0), chunks: vec![ints(&[1, 2]), weighted(&[(2, -1), (3, 1)])] },
            InFlight { channel: channel(1), chunks: vec![] },
            InFlight { channel: channel(3), chunks: vec![ints(&[7])] },
        ]
    }

    fn rows(stored: &Stored) -> Vec<(i64, i8)> {
        let of = |chunk: &Chunk| int_values(chunk).into_iter().enumerate().map(|(i, n)| (n, chunk.op(i))).collect();
        stored.chunks.iter().flat_map(|chunk| -> Vec<(i64, i8)> { of(chunk) }).collect()
    }

    #[test]
    fn golden_bytes_stay_the_same() {
        let bytes = encode(&example(), &uids()).unwrap();
        assert_eq!(
            bytes,
            GOLDEN,
            "written anew as {:?}",
            std::env::var_os("WEIR_UPDATE_GOLDEN").inspect(|to| std::fs::write(to, &bytes).unwrap())
        );
    }

    #[test]
    fn rows_come_back_by_channel_in_order_with_their_weights() {
        let stored = decode(GOLDEN).unwrap();
        let [first, second] = &stored[..] else { panic!("{stored:?}") };
        assert_eq!((first.from.0.as_str(), first.to.0.as_str(), first.input), ("source-1", "aggregate-1", 1));
        assert_eq!((first.from_subtask, first.to_subtask), (Subtask(0), Subtask(2)));
        assert_eq!(rows(first), [(1, 1), (2, 1), (2, -1), (3, 1)]);
        assert_eq!(second.from_subtask, Subtask(3));
        assert_eq!(rows(second), [(7, 1)]);
        assert!(second.chunks[0].ops().is_none(), "rows without retractions carry no weights");
        assert!(encode(&[], &uids()).unwrap().is_empty() && decode(&[]).unwrap().is_empty());
    }

    #[test]
    fn what_is_cut_off_or_of_another_format_is_an_error() {
        for at in 1..GOLDEN.len() {
            assert!(decode(&GOLDEN[..at]).is_err(), "cut at {at}");
        }
        assert!(decode(&[&[2][..], &GOLDEN[1..]].concat()).unwrap_err().to_string().contains("format is 2"));
    }
}
