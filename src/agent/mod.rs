//! Roles, dialogue, prompt context, proposal parsing and validation, OpenAI-compatible transport.
