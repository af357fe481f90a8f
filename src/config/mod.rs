//! Layered settings, keymap and theme loading: a value plus every diagnostic, not the first error. Also the lowest room
//! for text and colour helpers, for whom the user named as a language model's server ([`Origin`]), for rules from a file ([`Policy`]) and for
//! columns that users write ([`OwnColumn`]).

mod color;
pub mod columns;
mod diag;
mod expression;
mod keymap;
mod origin;
mod pictures;
mod rules;
mod settings;
pub mod text;
mod theme;

/// Bytes of a settings file, theme or prompt at most. The longest settings of use, every key bound and every colour set,
/// have 10 kB; a prompt of more than this leaves a model no room for anything else.
pub const MOST_BYTES: u64 = 1 << 16;

pub use color::{ColorLevel, Rgb, from_256};
pub use columns::OwnColumn;
pub use diag::{Diagnostic, nearest, suggestion};
pub use keymap::{ACTS, Act, ActSpec, Key, Keymap};
pub use origin::Origin;
pub use pictures::PictureKind;
pub use rules::{Policy, Rule, Verb};
pub use settings::{Loaded, MAC_CONVENTIONS, Settings, Sources, config_dir, load, mac_convention, process_env};
pub use theme::{BUILT_IN, Role, Theme};
