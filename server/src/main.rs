//! The `weir` binary.

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

// Arrow's buffers are many, short-lived and large; the system's allocator keeps their pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // WEIR_LOG as in `WEIR_LOG=weir=debug`; warnings by default, so that the output of `weir sql` stays its own.
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    weir_server::cli::main()
}
