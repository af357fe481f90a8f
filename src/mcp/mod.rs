//! A session for other programs, over the Model Context Protocol on standard input and output: they look, forecast, rehearse and
//! propose with the same questions that agents have ([`crate::agent::tools`]).
//!
//! Not here: what a question's answer is (`agent::tools`), whether a proposal stands (`host`). Invariants: nothing that comes in here
//! approves, edits, vetoes, runs, exports or touches a file; whoever asks shows up in the session under their own name; standard
//! output carries the protocol alone.

mod live;
mod server;

pub use server::Limits;

use crate::headless::runtime;
use crate::session::Place;
use live::Live;
use rmcp::ServiceExt;
use std::sync::Arc;

/// Serves the session at `place` until the client closes the stream.
///
/// # Errors
/// No host that could be reached or started; a client that speaks no version of the protocol.
pub fn run(place: Place, limits: Limits) -> anyhow::Result<()> {
    let runtime = runtime(2)?;
    let served = runtime.block_on(async {
        let live = Arc::new(Live::new(place));
        // A session that cannot be served is told before a client waits for it.
        live.open("mcp client").await.map_err(anyhow::Error::msg)?;
        let server = server::Server::new(live, limits);
        let running = server.serve(rmcp::transport::stdio()).await?;
        running.waiting().await?;
        anyhow::Ok(())
    });
    // A read of standard input cannot be cut short.
    runtime.shutdown_background();
    served
}
