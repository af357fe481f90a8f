//! The bundled demo models.
