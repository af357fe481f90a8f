//! Data sets of every kind that files hold: read right when they are whole, refused in words when they are not.

#[path = "../common/checkpoints.rs"]
#[allow(dead_code)]
mod checkpoints;
mod files;
mod kinds;
mod mutations;
mod real;
