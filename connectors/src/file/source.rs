//! The file source: finds files and cuts them into splits.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use tokio::runtime::Handle;
use weir_runtime::Result;
use weir_runtime::graph::ConnectorOptions;
use weir_runtime::source::{Source, SourceReader, SourceRequest, SplitState};

use super::input::Input;
use super::location::{FoundFile, Location};
use super::reader::FileReader;
use super::split::{Part, Split, cut_bytes, cut_groups, pieces};
use super::{SourceOptions, fault, join_fault};
use crate::ConnectorContext;
use crate::format::encode::Compression;
use crate::format::{Format, parquet};

/// What all readers of a source share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: SourceOptions,
    pub(crate) location: Location,
    pub(crate) request: SourceRequest,
    /// The columns to produce.
    pub(crate) schema: SchemaRef,
}

/// The file source.
#[derive(Debug)]
pub(crate) struct FileSource {
    shared: Arc<Shared>,
}

impl FileSource {
    pub(crate) fn open(
        options: &ConnectorOptions,
        request: &SourceRequest,
        context: &ConnectorContext,
    ) -> Result<Self> {
        let options = SourceOptions::parse(options)?;
        let location = Location::parse(&options.path, context)?;
        let schema = request.projected()?;
        options.format.check(&request.declared).map_err(|reason| fault(&options.path, reason))?;
        Ok(Self { shared: Arc::new(Shared { options, location, request: request.clone(), schema }) })
    }

    #[cfg(test)]
    pub(crate) fn at(options: &ConnectorOptions, request: &SourceRequest, location: Location) -> Result<Self> {
        let options = SourceOptions::parse(options)?;
        let schema = request.projected()?;
        Ok(Self { shared: Arc::new(Shared { options, location, request: request.clone(), schema }) })
    }

    /// The parts of one file.
    async fn cut(&self, file: &FoundFile, pieces: u64) -> Result<Vec<Part>> {
        let options = &self.shared.options;
        let minimum = options.split_min_size;
        let whole_only = options.watch.is_some() || pieces <= 1 || file.size < 2 * minimum;
        if whole_only || options.compression_of(&file.url) != Compression::None {
            return Ok(vec![Part::Whole]);
        }
        match &options.format {
            Format::Csv(csv) if csv.multiline => Ok(vec![Part::Whole]),
            Format::Csv(_) | Format::Json { .. } => Ok(cut_bytes(file.size, pieces, minimum)),
            Format::Parquet => {
                let (shared, url, handle) = (Arc::clone(&self.shared), file.url.clone(), Handle::current());
                let groups = tokio::task::spawn_blocking(move || {
                    let input = Input::open(&shared.location, &url, &handle)?;
                    parquet::row_groups(&input).map_err(|reason| fault(url, reason))
                });
                let groups = groups.await.map_err(|error| join_fault(&error))??;
                Ok(cut_groups(&groups, pieces.min(file.size / minimum)))
            }
        }
    }
}

#[async_trait]
impl Source for FileSource {
    async fn discover(&self, known: &[SplitState], parallelism: u32) -> Result<Vec<SplitState>> {
        let watched = self.shared.options.watch.is_some();
        // What a bounded source reads is settled when it starts.
        if !watched && !known.is_empty() {
            return Ok(Vec::new());
        }
        // A watched file may come later.
        let files =
            if watched && self.shared.location.is_missing() { Vec::new() } else { self.shared.location.list().await? };
        if files.is_empty() && !watched {
            return Err(fault(
                self.shared.location.shown(),
                "no file matches; check the path, or use mode = 'watch' to wait for files",
            ));
        }
        let seen: HashSet<String> = known.iter().map(|state| Split::parse(&state.id).url).collect();
        let new: Vec<FoundFile> = files.into_iter().filter(|file| !seen.contains(&file.url)).collect();
        let pieces = pieces(new.len(), parallelism);
        let mut splits = Vec::new();
        for file in &new {
            for part in self.cut(file, pieces).await? {
                let id = Split { url: file.url.clone(), part }.id();
                splits.push(SplitState { id, position: serde_json::Value::Null, finished: false });
            }
        }
        Ok(splits)
    }

    fn discovery_interval(&self) -> Option<Duration> {
        self.shared.options.watch
    }

    async fn reader(&self, splits: Vec<SplitState>) -> Result<Box<dyn SourceReader>> {
        let mut reader = FileReader::new(Arc::clone(&self.shared));
        reader.add_splits(splits).await?;
        Ok(Box::new(reader))
    }
}
