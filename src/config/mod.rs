//! Layered settings, keymap, theme and prompt loading: a value plus every diagnostic, not the first error.
