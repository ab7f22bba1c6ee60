//! Memory that all keyed states of a process share, and how their databases are set up.

use std::{collections::HashSet, fmt, sync::Arc};

use parking_lot::Mutex;
use rocksdb::{
    BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, DataBlockIndexType, LogLevel, Options,
    UniversalCompactOptions, WriteBufferManager,
};
use uuid::Uuid;

/// What is written stays in memory up to this size before it becomes a file, memory permitting.
const MEMTABLE_BYTES: usize = 32 << 20;
/// Largest file of a compaction: bounds what one changed key can cause to be uploaded again, and what restore holds in
/// memory for each file.
const FILE_BYTES: u64 = 32 << 20;
/// Sorted runs that may lie side by side before they are merged. A checkpoint makes one; reads skip most of them by
/// their bloom filters.
const SORTED_RUNS: i32 = 8;
/// Size at which the list of files is written afresh. Every checkpoint carries the whole list.
const MANIFEST_BYTES: usize = 32 << 10;

/// Memory shared by all keyed states of a process: one cache of blocks, indexes and filters, of which up to a half holds
/// what was written and is not yet in a file.
#[derive(Clone)]
pub struct StateResources {
    shared: Arc<Shared>,
}

struct Shared {
    cache: Cache,
    buffers: WriteBufferManager,
    open: Mutex<HashSet<Uuid>>,
}

impl StateResources {
    /// Resources that use about `memory_bytes` in all.
    #[must_use]
    pub fn new(memory_bytes: usize) -> Self {
        let cache = Cache::new_hyper_clock_cache(memory_bytes, 0);
        // Not stalling: a writer that waits for the flush of another task's memory would stop the whole dataflow.
        let buffers = WriteBufferManager::new_write_buffer_manager_with_cache(memory_bytes / 2, false, cache.clone());
        Self { shared: Arc::new(Shared { cache, buffers, open: Mutex::default() }) }
    }

    /// Bytes in use by the cache, unwritten changes included.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.shared.cache.get_usage()
    }

    /// The instances whose directories this process has open.
    pub(crate) fn open_instances(&self) -> &Mutex<HashSet<Uuid>> {
        &self.shared.open
    }

    /// Options of a state database.
    pub(crate) fn options(&self) -> Result<Options, rocksdb::Error> {
        // The directory is a cache that is removed with its last handle: flushing it on close would be in vain.
        let mut options = Options::default().get_options_from_string("avoid_flush_during_shutdown=true")?;
        options.create_if_missing(true);
        options.set_write_buffer_manager(&self.shared.buffers);
        options.set_write_buffer_size(MEMTABLE_BYTES);
        options.set_max_write_buffer_number(3);
        // The default reserves 1 MB for each database even if it holds ten keys.
        options.set_arena_block_size(128 << 10);
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_block_based_table_factory(&self.table_options());
        // Checkpoints come every second and make a small file each. Merging runs of like size uploads a key again a
        // logarithmic number of times; levels would rewrite (and upload) the whole of a small state every few seconds.
        options.set_compaction_style(DBCompactionStyle::Universal);
        let mut universal = UniversalCompactOptions::default();
        universal.set_size_ratio(10);
        universal.set_min_merge_width(4);
        options.set_universal_compaction_options(&universal);
        options.set_level_zero_file_num_compaction_trigger(SORTED_RUNS);
        options.set_target_file_size_base(FILE_BYTES);
        options.set_max_background_jobs(2);
        options.set_max_open_files(-1);
        options.set_max_manifest_file_size(MANIFEST_BYTES);
        options.set_manifest_preallocation_size(MANIFEST_BYTES);
        options.set_skip_stats_update_on_db_open(true);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_log_level(LogLevel::Warn);
        options.set_keep_log_file_num(1);
        Ok(options)
    }

    fn table_options(&self) -> BlockBasedOptions {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&self.shared.cache);
        table.set_block_size(8 << 10);
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        table.set_bloom_filter(10.0, false);
        table.set_whole_key_filtering(true);
        table.set_cache_index_and_filter_blocks(true);
        table.set_cache_index_and_filter_blocks_with_high_priority(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table
    }
}

impl fmt::Debug for StateResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateResources").field("used_bytes", &self.used_bytes()).finish_non_exhaustive()
    }
}
