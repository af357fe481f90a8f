//! Layered settings, keymap and theme loading: a value plus every diagnostic, not the first error. Also the lowest room
//! for text and colour helpers that make foreign strings safe to show.

mod color;
mod diag;
mod keymap;
mod settings;
pub mod text;
mod theme;

pub use color::{ANSI_NAMES, ColorLevel, Rgb, from_256};
pub use diag::{Diagnostic, nearest, suggestion};
pub use keymap::{ACTS, Act, ActSpec, Key, Keymap};
pub use settings::{
    KEYS, KeySpec, Loaded, MAC_CONVENTIONS, SORTS, Settings, Sources, config_dir, load, mac_convention, process_env,
};
pub use theme::{BUILT_IN, Role, Theme};
