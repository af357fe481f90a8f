//! Runtime: jobs, device worker, cancellation, socket server, lifecycle.
