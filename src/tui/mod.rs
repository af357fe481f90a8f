//! The screen: view state, update, views, widgets, input, frame scheduling, terminal guard.
