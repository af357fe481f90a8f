//! The same commands without a screen: policies, text and JSON output.
